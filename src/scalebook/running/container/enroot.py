"""The argv of enroot."""

from __future__ import annotations

import re
from pathlib import Path

from scalebook.errors import LaunchError
from scalebook.running.container.images import image
from scalebook.running.container.request import Contained, EngineCommand, Mount, check, settle

_UNFIT = re.compile(r"[\s:\\$]")  # enroot cuts a mount at colons and spaces, and reads escapes

# A login shell reads the image's /etc/profile, which on Debian sets PATH anew: the Python of a
# virtual environment that the image has on its PATH would not be found.
PLAIN_SHELL = {"ENROOT_LOGIN_SHELL": "no"}


def command(contained: Contained) -> EngineCommand:
    """Return how enroot starts a command in an image file, as the user who calls it.

    enroot has no option for the working directory: ``env --chdir`` of the image enters it. The
    image stays read-only; the host's environment stays outside by itself.

    Raises:
        LaunchError: a path cannot be mounted.
    """
    check(contained)
    flags = image(contained.vendor).flags.get("enroot", ())
    argv = (
        *("enroot", "start"),
        *settle([flag.argument for flag in flags], contained.arguments),
        *(f"--mount={_mount(item)}" for item in contained.mounts),
        *(f"--env={name}={value}" for name, value in contained.environment.items()),
        *(f"--env={name}" for name in contained.passed),
        contained.image,
        *("env", f"--chdir={contained.workdir}"),
        *contained.command,
    )
    return EngineCommand(argv, PLAIN_SHELL, {})


def _mount(item: Mount) -> str:
    access = "rw" if item.writable else "ro"
    return f"{mount(item.source, str(item.source))}:none:x-create=auto,rbind,{access},rslave"


def mount(source: Path, target: str) -> str:
    """Return the first two fields of a mount.

    Raises:
        LaunchError: enroot would cut the path in two.
    """
    for path in (str(source), target):
        if _UNFIT.search(path):
            raise LaunchError(
                f"enroot cannot mount {path!r}: it allows no spaces, ':', '\\' or '$' in a path. "
                "Move the folder, or use another engine (--container podman)."
            )
    return f"{source}:{target}"
