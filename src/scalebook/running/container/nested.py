"""``scalebook`` inside a container as seen from outside: its command line, mounts and variables."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from scalebook.errors import LaunchError
from scalebook.facts.catalog.load import ENVIRONMENT_VARIABLE
from scalebook.host import ASKED, git_commit
from scalebook.query import ask
from scalebook.running.container import commands
from scalebook.running.container.commands import (
    OCI,
    Contained,
    ContainerRequest,
    EngineCommand,
    Host,
    Mount,
)
from scalebook.running.container.engines import CONTAINER
from scalebook.running.container.follow import scratch

# Which devices a process may use is the host's to say, and Slurm's: these pass without being named.
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
PYTHON = "python3"  # of the image
HOME = "/tmp/home"  # for caches; nothing of the host
END_SECONDS = 900.0  # a first start unpacks tens of gigabytes on some engines


def command(
    request: ContainerRequest,
    host: Host,
    arguments: Sequence[str],
    *,
    writes: Sequence[Path] = (),
    reads: Sequence[Path] = (),
) -> EngineCommand:
    """Return how to start ``python -m scalebook ARGUMENTS`` in a container.

    The project is seen read-only, ``writes`` (the runs) can be written, ``reads`` are further
    files and folders that the arguments name. All have the same path inside and outside.

    Raises:
        LaunchError: a path or a variable cannot be carried over.
    """
    given, passed = asked_variables(request.variables, host.environment)
    # by its id, as a tag may be given to another image between two looks at it
    image = (request.image_id if request.engine in OCI else None) or request.image
    start = (PYTHON, "-m", "scalebook", *arguments)
    variables = {**_variables(request, host, [*given, *passed]), **given}
    mounts = _mounts(host, writes, reads)
    return commands.command(
        Contained(request, host, start, image, host.project, variables, mounts, passed)
    )


def bare(request: ContainerRequest, host: Host, arguments: Sequence[str]) -> EngineCommand:
    """Return how to start the image's own Python with nothing of the host: no mounts, no checkout.

    Raises:
        LaunchError: an argument cannot be carried over.
    """
    environment = {"HOME": HOME, "USER": "scalebook"}
    start = (PYTHON, *arguments)
    contained = Contained(request, host, start, request.image, Path("/"), environment)
    return commands.command(contained)


def _variables(request: ContainerRequest, host: Host, asked: Sequence[str]) -> dict[str, str]:
    """Return what the launcher itself sets inside."""
    home = {} if request.engine == "apptainer" else {"HOME": HOME}
    optional = {
        "SCALEBOOK_IMAGE_ID": request.image_id,
        "SCALEBOOK_BASE_IMAGE": request.base,
        "SCALEBOOK_GIT_COMMIT": host.commit,
        ASKED: " ".join(asked),
        ENVIRONMENT_VARIABLE: os.pathsep.join(str(path) for path in catalogs(host.environment)),
        **{name: host.environment.get(name) for name in VISIBLE},
    }
    return {
        CONTAINER: request.engine,
        "SCALEBOOK_IMAGE": request.image,
        "SCALEBOOK_OWNER": "stdin",
        **home,
        "USER": "scalebook",  # the id has no name in the image, and torch asks for one
        "PYTHONPATH": str(host.project / "src"),  # the checkout, whose commit the record names
        "PYTHONDONTWRITEBYTECODE": "1",
        **{name: value for name, value in optional.items() if value},
    }


def catalogs(environment: Mapping[str, str]) -> list[Path]:
    """Return the catalog files that the user named, as absolute paths."""
    listed = environment.get(ENVIRONMENT_VARIABLE, "").split(os.pathsep)
    return [Path(part).absolute() for part in listed if part]


def _mounts(host: Host, writes: Sequence[Path], reads: Sequence[Path]) -> tuple[Mount, ...]:
    """Return the mounts, outer folders first; what lies in a mounted folder needs none."""
    wanted = [host.project, *catalogs(host.environment), *reads]
    chosen: list[Path] = []
    for path in sorted(set(wanted)):
        if not any(path.is_relative_to(outer) for outer in (*chosen, *writes)):
            chosen.append(path)
    mounts = [Mount(path) for path in chosen] + [Mount(path, writable=True) for path in writes]
    return tuple(sorted(mounts, key=lambda mount: len(mount.source.parts)))


def asked_variables(
    given: Sequence[str], environment: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables given as NAME=VALUE, and the names whose value is the caller's.

    Raises:
        LaunchError: a name is malformed, or has no value here.
    """
    values: dict[str, str] = {}
    names: list[str] = []
    for item in given:
        name, equals, value = item.partition("=")
        if not name.isidentifier() or not name.isascii():
            raise LaunchError(f"--env {item!r}: write NAME=VALUE, or NAME to pass it on from here.")
        if equals:
            values[name] = value
        elif name in environment:
            names.append(name)
        else:
            raise LaunchError(f"--env {name}: it is not set here. Write {name}=VALUE.")
    return values, tuple(names)


def not_passed(names: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Return those of the host's performance variables that a container will not see."""
    asked = {item.partition("=")[0] for item in given}
    own = (*VISIBLE, "PYTHONUNBUFFERED")  # each run sets the latter
    return tuple(name for name in names if name not in asked and name not in own)


def describe(project: Path, runs: Path, environment: Mapping[str, str] = os.environ) -> Host:
    """Return the host of a container that writes to ``runs``."""
    name = f"scalebook-{secrets.token_hex(4)}"
    return Host(
        project=project.resolve(),
        user=owner(runs),
        rootless=os.geteuid() != 0,
        groups=device_groups(Path("/dev")),
        scratch=Path(tempfile.gettempdir()) / name,
        name=name,
        commit=git_commit(project),
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


def output_of(command: EngineCommand, caller: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON object that a container prints as its last line.

    Raises:
        LaunchError: it printed none, or did not end.
    """
    with scratch(command):
        answer = ask(command.argv, END_SECONDS, command.full_environment(caller))
    lines = answer.output.strip().splitlines()
    try:
        value: object = json.loads(lines[-1]) if answer.code == 0 and lines else None
    except ValueError:
        value = None
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    said = answer.errors.strip().splitlines()[-1:] or ["no output"]
    raise LaunchError(f"The image reported nothing (exit {answer.code}): {said[0][:300]}")
