"""The argv of apptainer (and of singularity, which it was called)."""

from __future__ import annotations

from scalebook.running.container.images import Flag, image
from scalebook.running.container.request import (
    Contained,
    EngineCommand,
    Mount,
    check,
    csv_line,
    settle,
)

COMMON = (
    Flag("--cleanenv", "what the host exports stays outside"),
    Flag("--contain", "the host's home, /tmp and devices stay outside"),
)


def command(contained: Contained) -> EngineCommand:
    """Return how apptainer starts a command in an image file, as the user who calls it.

    Variables go through apptainer's own environment (APPTAINERENV_NAME), as its ``--env`` splits
    values at commas. ``--workdir`` gives /tmp and home a folder of the host: its own have 64 MiB.

    Raises:
        LaunchError: a path cannot be mounted.
    """
    check(contained)
    flags = (*COMMON, *image(contained.vendor).flags.get("apptainer", ()))
    argv = (
        *("apptainer", "exec"),
        *settle([flag.argument for flag in flags], contained.arguments),
        f"--workdir={contained.scratch}",
        *(f"--mount={_mount(mount)}" for mount in contained.mounts),
        f"--pwd={contained.workdir}",
        contained.image,
        *contained.command,
    )
    shown = {f"APPTAINERENV_{name}": value for name, value in contained.environment.items()}
    passed = {f"APPTAINERENV_{name}": name for name in contained.passed}
    return EngineCommand(argv, shown, passed, contained.scratch)


def _mount(mount: Mount) -> str:
    access = () if mount.writable else ("ro",)
    return csv_line("type=bind", f"source={mount.source}", f"destination={mount.source}", *access)
