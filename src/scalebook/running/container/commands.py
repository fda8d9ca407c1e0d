"""The argv by which docker, podman, apptainer and enroot start a command in a container.

Pure: nothing here looks at the machine. Every part of a command is one argument of a list, and no
shell reads any of it; a path that an engine's own syntax cannot name is refused.
"""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scalebook.errors import LaunchError
from scalebook.running.container.images import Flag, image

OCI = ("docker", "podman")
STOP_SECONDS = 60  # from SIGTERM to SIGKILL: a trainer finishes its step and its record is written
DOCKER_FLAGS = (
    Flag("--rm", "nothing is left when the command has ended"),
    Flag("--init", "a small first process passes signals on and takes ended processes away"),
    Flag("--interactive", "standard input ends with the caller, and the run with it"),
    Flag("--cap-drop=ALL", "training needs no capability"),
    Flag("--security-opt=no-new-privileges", "no program of the image can gain any"),
    # podman allows 2048; docker has no limit, so that a fork bomb would take the host with it.
    Flag("--pids-limit=65536", "eight ranks start thousands of threads"),
    Flag(f"--stop-timeout={STOP_SECONDS}", "a stopped run writes its record first"),
)
# These engines start runs of one node; a cluster's scheduler starts those of several, in its own
# containers. Left out, an engine's default applies, which may be the host's network.
NO_NETWORK = Flag("--network=none", "ranks of one node meet on the loopback; nothing is fetched")
APPTAINER_FLAGS = (
    Flag("--cleanenv", "what the host exports stays outside"),
    Flag("--contain", "the host's home, /tmp and devices stay outside"),
)
# A login shell reads the image's /etc/profile, which on Debian sets PATH anew: the Python of a
# virtual environment that the image has on its PATH would not be found.
ENROOT_PLAIN_SHELL = {"ENROOT_LOGIN_SHELL": "no"}

# Folders of an image that a mount would hide.
SYSTEM = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "run", "sbin", "sys", "usr")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ENROOT_SPLITS = re.compile(r"[\s:\\$]")  # enroot cuts a mount at colons and spaces, reads escapes
# Options that may be given more than once, each time for something else.
_REPEATED = ("ulimit", "security-opt", "device", "cap-add", "group-add", "env", "mount", "tmpfs")


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the host that the container sees under the same path."""

    source: Path
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Host:
    """What a container takes over from the machine: read once, by ``nested.describe``.

    ``user`` is who shall own what is written. ``groups`` are those of AMD's device files.
    ``rootless``: the engine runs without root, so that ids have to be mapped. ``scratch`` is an
    empty folder for engines that have no /tmp of their own.
    """

    project: Path
    user: tuple[int, int]
    rootless: bool
    groups: tuple[int, ...]
    scratch: Path
    name: str
    commit: str | None
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What the user asked for: the engine, the image, and what to add.

    ``arguments`` are the user's own, for the engine. ``fetches``: the command reads from the
    network, which docker and podman otherwise keep from it.
    """

    engine: str
    vendor: str
    image: str
    image_id: str | None = None
    base: str | None = None
    arguments: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()  # NAME or NAME=VALUE
    fetches: bool = False


@dataclass(frozen=True, slots=True)
class Contained:
    """What to start in a container, whichever engine does it.

    Paths mean the same inside and outside. ``environment`` is set and shown; ``passed`` names
    variables of the caller, whose values (a token, perhaps) stay out of every command line.
    """

    request: ContainerRequest
    host: Host
    command: tuple[str, ...]
    image: str
    workdir: Path
    environment: Mapping[str, str]
    mounts: tuple[Mount, ...] = ()
    passed: tuple[str, ...] = ()

    @property
    def own_flags(self) -> tuple[Flag, ...]:
        """The flags with which the vendor's image is started."""
        return image(self.request.vendor).flags.get(self.request.engine, ())

    def settled(self, flags: Sequence[Flag]) -> tuple[str, ...]:
        """Return the engine's arguments: these flags, and the user's own."""
        return settle([flag.argument for flag in flags], self.request.arguments)


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """An engine's argv; ``environment`` is added to that of the engine's own process.

    ``renamed`` are variables of the caller that the engine takes under another name; ``scratch``
    is a folder to make before and to remove afterwards.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
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


def command(contained: Contained) -> EngineCommand:
    """Return how an engine starts a command in a container.

    Raises:
        LaunchError: a path cannot be mounted, or a text has control characters.
    """
    _check(contained)
    start = {"apptainer": _apptainer, "enroot": _enroot}.get(contained.request.engine, _docker)
    return start(contained)


def _docker(contained: Contained) -> EngineCommand:
    request, host = contained.request, contained.host
    own = [*DOCKER_FLAGS, *(() if request.fetches else (NO_NETWORK,)), *contained.own_flags]
    given = host.groups if request.vendor == "amd" else ()
    groups = [f"--group-add={group}" for group in given]
    if request.engine == "podman" and host.rootless:
        own = [flag for flag in own if not flag.argument.startswith("--group-add")]
        groups = ["--group-add=keep-groups"] if groups else []
        own.append(Flag("--userns=keep-id", "the caller's id is the same inside and outside"))
    argv = (
        *(request.engine, "run", f"--name={host.name}"),
        *contained.settled(own),
        f"--user={host.user[0]}:{host.user[1]}",
        *groups,
        *(f"--mount={_csv_mount(mount, 'target', 'readonly')}" for mount in contained.mounts),
        f"--workdir={contained.workdir}",
        *(f"--env={name}={value}" for name, value in contained.environment.items()),
        *(f"--env={name}" for name in contained.passed),
        contained.image,
        *contained.command,
    )
    return EngineCommand(argv)


def _apptainer(contained: Contained) -> EngineCommand:
    """Return the command of apptainer (once called singularity), as the user who calls it.

    Variables go through apptainer's own environment (APPTAINERENV_NAME), as its ``--env`` splits
    values at commas. ``--workdir`` gives /tmp and home a folder of the host: its own have 64 MiB.
    """
    scratch = contained.host.scratch
    argv = (
        *("apptainer", "exec"),
        *contained.settled((*APPTAINER_FLAGS, *contained.own_flags)),
        f"--workdir={scratch}",
        *(f"--mount={_csv_mount(mount, 'destination', 'ro')}" for mount in contained.mounts),
        f"--pwd={contained.workdir}",
        contained.image,
        *contained.command,
    )
    shown = {f"APPTAINERENV_{name}": value for name, value in contained.environment.items()}
    passed = {f"APPTAINERENV_{name}": name for name in contained.passed}
    return EngineCommand(argv, shown, passed, scratch)


def _enroot(contained: Contained) -> EngineCommand:
    """Return the command of enroot, as the user who calls it.

    enroot has no option for the working directory: ``env --chdir`` of the image enters it. The
    image stays read-only; the host's environment stays outside by itself.
    """
    argv = [*("enroot", "start"), *contained.settled(contained.own_flags)]
    for mount in contained.mounts:
        fields = enroot_mount(mount.source, str(mount.source))
        access = "rw" if mount.writable else "ro"
        argv.append(f"--mount={fields}:none:x-create=auto,rbind,{access},rslave")
    argv += [f"--env={name}={value}" for name, value in contained.environment.items()]
    argv += [f"--env={name}" for name in contained.passed]
    argv += [contained.image, "env", f"--chdir={contained.workdir}", *contained.command]
    return EngineCommand(tuple(argv), ENROOT_PLAIN_SHELL)


def _csv_mount(mount: Mount, target: str, read_only: str) -> str:
    """Return a mount as one line of CSV, in which any path can be quoted."""
    line = io.StringIO()
    fields = ["type=bind", f"source={mount.source}", f"{target}={mount.source}"]
    fields += [] if mount.writable else [read_only]
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()


def enroot_mount(source: Path, target: str) -> str:
    """Return the first two fields of a mount of enroot.

    Raises:
        LaunchError: enroot would cut the path in two.
    """
    for path in (str(source), target):
        if _ENROOT_SPLITS.search(path):
            raise LaunchError(
                f"enroot cannot mount {path!r}: it allows no spaces, ':', '\\' or '$' in a path. "
                "Move the folder, or use another engine (--container podman)."
            )
    return f"{source}:{target}"


def _check(contained: Contained) -> None:
    """Refuse what no engine could carry over unchanged."""
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


def _key(argument: str) -> str:
    """Return what an argument sets: its option, with the thing it is for where it repeats."""
    option, _, value = argument.removeprefix("--").partition("=")
    return f"{option}={re.split('[=:]', value)[0]}" if option in _REPEATED else option
