"""What a container takes over from this machine: who runs it, its devices' groups, its project."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

from scalebook import host as machine
from scalebook.running.container.nested import Host


def describe(
    project: Path, runs: Path, environment: Mapping[str, str] = os.environ, dev: Path = Path("/dev")
) -> Host:
    """Return the host of a container that writes to ``runs``."""
    name = f"scalebook-{secrets.token_hex(4)}"
    return Host(
        project=project.resolve(),
        user=owner(runs),
        rootless=os.geteuid() != 0,
        groups=device_groups(dev),
        scratch=Path(tempfile.gettempdir()) / name,
        name=name,
        commit=machine.git_commit(project),
        environment=environment,
    )


def owner(runs: Path, user: tuple[int, int] | None = None) -> tuple[int, int]:
    """Return who a container runs as: the caller, and for root the owner of the runs.

    Root in a user's folder would leave files there that the user cannot remove.
    """
    caller = user or (os.geteuid(), os.getegid())
    nearest = next((path for path in (runs, *runs.parents) if path.exists()), None)
    if caller[0] != 0 or nearest is None:
        return caller
    status = nearest.stat()
    return status.st_uid, status.st_gid


def device_groups(dev: Path) -> tuple[int, ...]:
    """Return the groups that own AMD's device files, root's left out, in order."""
    files = [dev / "kfd", *sorted(dev.glob("dri/renderD*"))]
    groups = {path.stat().st_gid for path in files if path.exists()}
    return tuple(sorted(groups - {0}))
