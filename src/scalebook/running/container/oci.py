"""The argv of docker and podman."""

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

ENGINES = ("docker", "podman")
STOP_SECONDS = 60  # from SIGTERM to SIGKILL: a trainer finishes its step and its record is written

COMMON = (
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


def command(engine: str, contained: Contained) -> EngineCommand:
    """Return how docker or podman starts a command in a container.

    Raises:
        LaunchError: a path cannot be mounted.
    """
    check(contained)
    alone = () if contained.fetches else (NO_NETWORK,)
    flags = [*COMMON, *alone, *image(contained.vendor).flags.get(engine, ())]
    groups, user = [f"--group-add={group}" for group in contained.groups], contained.user
    if engine == "podman" and contained.rootless:
        flags = [flag for flag in flags if not flag.argument.startswith("--group-add")]
        groups = ["--group-add=keep-groups"] if contained.groups else []
        flags.append(Flag("--userns=keep-id", "the caller's id is the same inside and outside"))
    argv = (
        *(engine, "run", f"--name={contained.name}"),
        *settle([flag.argument for flag in flags], contained.arguments),
        *([f"--user={user[0]}:{user[1]}"] if user else []),
        *groups,
        *(f"--mount={_mount(mount)}" for mount in contained.mounts),
        f"--workdir={contained.workdir}",
        *(f"--env={name}={value}" for name, value in contained.environment.items()),
        *(f"--env={name}" for name in contained.passed),
        contained.image,
        *contained.command,
    )
    return EngineCommand(argv, {}, {})


def _mount(mount: Mount) -> str:
    """Return a mount as one line of CSV, which both engines read: any path can be quoted."""
    access = () if mount.writable else ("readonly",)
    return csv_line("type=bind", f"source={mount.source}", f"target={mount.source}", *access)


def remove(engine: str, name: str) -> tuple[str, ...]:
    """Return the argv that ends and removes a container, whatever it does."""
    return (engine, "rm", "--force", name)


def inspect(engine: str, reference: str) -> tuple[str, ...]:
    """Return the argv that prints a local image's id and the base it was built on."""
    label = '{{index .Config.Labels "org.opencontainers.image.base.name"}}'
    return (engine, "image", "inspect", f"--format={{{{.Id}}}} {label}", reference)
