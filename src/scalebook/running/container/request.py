"""A command in a container: what is mounted, passed on and set, and the engine's argv for it.

Pure: nothing here looks at the machine. Every part of a command is one argument of a list, and no
shell reads any of it; a path that an engine's own syntax cannot name is refused.
"""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalebook.errors import LaunchError

# Folders of an image that a mount would hide.
SYSTEM = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "run", "sbin", "sys", "usr")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the host that the container sees under the same path."""

    source: Path
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Contained:
    """What to start in a container, whichever engine does it.

    Paths mean the same inside and outside. ``environment`` is set and shown; ``passed`` names
    variables of the caller, whose values (a token, perhaps) stay out of every command line.
    ``user`` None leaves the image's own; ``rootless`` means that the engine runs without root, so
    that ids have to be mapped. ``arguments`` are the user's own, for the engine. ``scratch`` is an
    empty folder for engines that have no /tmp of their own. ``fetches``: the command reads from the
    network, which docker and podman otherwise keep from it.
    """

    command: tuple[str, ...]
    vendor: str
    image: str
    name: str
    mounts: tuple[Mount, ...]
    workdir: Path
    environment: Mapping[str, str]
    passed: tuple[str, ...] = ()
    user: tuple[int, int] | None = None
    groups: tuple[int, ...] = ()
    arguments: tuple[str, ...] = ()
    rootless: bool = False
    scratch: Path = Path("/tmp")
    fetches: bool = False


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """An engine's argv; ``environment`` is added to that of the engine's own process.

    ``renamed`` are variables of the caller that the engine takes under another name; ``scratch``
    is a folder to make before and to remove afterwards.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    renamed: Mapping[str, str]
    scratch: Path | None = None

    def shown(self) -> str:
        """Return the line that a person can paste into a shell; secret values are not in it."""
        settings = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        settings += [f'{new}="${old}"' for new, old in self.renamed.items()]
        folder = ["mkdir", shlex.quote(str(self.scratch)), "&&"] if self.scratch else []
        line = [*folder, *(["env"] if settings else []), *settings, shlex.join(self.argv)]
        return " ".join(line)

    def full_environment(self, caller: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the engine's process."""
        renamed = {new: caller[old] for new, old in self.renamed.items() if old in caller}
        return {**caller, **self.environment, **renamed}


def csv_line(*fields: str) -> str:
    """Return fields as a line of CSV, in which a comma or a quote in a path does not separate."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()


def check(contained: Contained) -> None:
    """Refuse what no engine could carry over unchanged.

    Raises:
        LaunchError: a path hides the image's own files, or a text has control characters.
    """
    for mount in contained.mounts:
        path = mount.source
        if not path.is_absolute() or path == Path("/") or path.parts[1] in SYSTEM:
            raise LaunchError(
                f"{path} cannot be mounted into a container under its own path: that would hide "
                "files of the image. Move the project, its runs or its data elsewhere."
            )
    texts = [str(mount.source) for mount in contained.mounts]
    texts += [str(contained.workdir), *contained.command, *contained.environment.values()]
    for text in texts:
        if _CONTROL.search(text):
            raise LaunchError(f"{text!r} has control characters, which no container gets.")


def settle(defaults: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Return an engine's arguments: the user's own replace defaults of the same name.

    Raises:
        LaunchError: an argument of the user's is not one word that begins with ``--``.
    """
    for argument in given:
        if not re.match(r"--[a-z]", argument):
            raise LaunchError(
                f"Container argument {argument!r} must begin with '--' and be one word, "
                "as in --container-arg=--ulimit=memlock=1048576."
            )
    replaced = {_key(argument) for argument in given}
    return (*(argument for argument in defaults if _key(argument) not in replaced), *given)


# Options that may be given more than once, each time for something else.
_REPEATED = ("ulimit", "security-opt", "device", "cap-add", "group-add", "env", "mount", "tmpfs")


def _key(argument: str) -> str:
    """Return what an argument sets: its option, with the thing it is for where it repeats."""
    option, _, value = argument.removeprefix("--").partition("=")
    return f"{option}={re.split('[=:]', value)[0]}" if option in _REPEATED else option
