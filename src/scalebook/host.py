"""What this machine and this checkout are, for the record: no names of hosts or users."""

from __future__ import annotations

import gc
import hashlib
import os
import platform
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from scalebook import __version__, scrub
from scalebook.query import printed, said_of

Item = TypeVar("Item")
Result = TypeVar("Result")
_MOST_PROCESSES = 8  # each has its own memory, and disks gain nothing from more
_RARELY = 100_000  # new objects between two looks for garbage

# Names of variables that the user asked for by name (--env), separated by spaces.
ASKED = "SCALEBOOK_VARIABLES"

# Names the commit where the package is a copy without git's folder, such as in an image.
COMMIT_VARIABLE = "SCALEBOOK_GIT_COMMIT"

PACKAGES = Path("/opt/scalebook/packages.cdx.json")  # written by containers/install.py

_PINNED = re.compile(r"[@:](sha256:[0-9a-f]{64})")

# Set by the launcher, or by the images of NVIDIA and AMD themselves.
CONTAINER_VARIABLES = (
    "SCALEBOOK_CONTAINER",
    "SCALEBOOK_IMAGE",
    "SCALEBOOK_IMAGE_ID",
    "SCALEBOOK_BASE_IMAGE",
    "NVIDIA_PRODUCT_NAME",
    "NVIDIA_PYTORCH_VERSION",
)

# Variables with these prefixes change how fast training is: a record keeps what they were.
PERFORMANCE_PREFIXES = (
    "CUDA_", "CUBLAS", "CUDNN_", "GLOO_", "GPU_", "HIPBLASLT_", "HIP_", "HSA_", "KMP_", "MIOPEN_",
    "MKL_", "NCCL_", "NVTE_", "OMP_", "PYTHONUNBUFFERED", "PYTORCH_", "RCCL_", "ROCM_", "ROCR_",
    "TORCH_", "UB_", "UCX_",
)  # fmt: skip


def performance_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a record keeps, sorted by name.

    Those that change how fast training is, and those that the user asked for by name.
    """
    asked = environment.get(ASKED, "").split()
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(PERFORMANCE_PREFIXES) or name in asked
    }


def container(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what is known of the container that this is; empty on a bare machine.

    ``SCALEBOOK_IMAGE_ID`` is what the launcher found, else the digest that the image was named by.
    ``packages_sha256`` is of the image's list of packages: equal where two builds hold the same.
    """
    found = {name: environment[name] for name in CONTAINER_VARIABLES if environment.get(name)}
    if pinned := image_digest(found.get("SCALEBOOK_IMAGE", "")):
        found.setdefault("SCALEBOOK_IMAGE_ID", pinned)
    try:
        return found | {"packages_sha256": hashlib.sha256(PACKAGES.read_bytes()).hexdigest()}
    except OSError:  # not an image of ours
        return found


def image_digest(reference: str) -> str | None:
    """Return the digest that an image is named by, ``@sha256:...`` (for enroot ``:sha256:...``)."""
    found = _PINNED.search(reference)
    return found[1] if found and found.end() == len(reference) else None


def facts(environment: Mapping[str, str], checkout: Path | None) -> dict[str, Any]:
    """Return versions, commit, host and performance variables as a record keeps them.

    The trainer reports the same under the same names, and its values win; a run that dies before
    it could report has these.
    """
    return {
        "scalebook": __version__,
        "git_commit": environment.get(COMMIT_VARIABLE)
        or (git_commit(checkout) if checkout else None),
        "python": platform.python_version(),
        "host": {
            "cpu_model": cpu_name(),
            "cpu_cores": available_cores(),
            "memory_gib": memory_gib(),
            "kernel": platform.release(),
            "architecture": platform.machine(),
        },
        "container": container(environment),
        "variables": scrub.without_secrets(performance_variables(environment)),
    }


def available_cores() -> int | None:
    """Return how many CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def at_once(pieces: int) -> int:
    """Return how many processes to start for some pieces of work: one per core, 8 at most."""
    return min(available_cores() or 1, _MOST_PROCESSES, pieces)


def by_processes(
    function: Callable[[Item], Result], items: Sequence[Item], chunk: int
) -> Iterator[Result]:
    """Yield what a function returns for each item, in order, by a process for each core.

    Each process is handed ``chunk`` items at a time. The processes are forks, which start at once
    and know what this one knows. A fork of a process with threads may wait for a lock for ever:
    there, and where two chunks are not reached, items are worked on here, one after the other.
    """
    processes = at_once(len(items) // chunk)
    often = gc.get_threshold()
    gc.set_threshold(_RARELY, *often[1:])  # what is read is no garbage: a sixth of the time
    try:
        if processes < 2 or threading.active_count() > 1 or sys.platform != "linux":
            yield from map(function, items)
            return
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        ignore = (signal.SIGINT, signal.SIG_IGN)  # this process is interrupted, and ends the others
        with ProcessPoolExecutor(processes, get_context("fork"), signal.signal, ignore) as pool:
            yield from pool.map(function, items, chunksize=chunk)
    finally:
        gc.set_threshold(*often)


def cpu_name(path: Path = Path("/proc/cpuinfo")) -> str | None:
    """Return the CPU's model name, None where the system does not say."""
    name = said_of(path, r"^model name\s*: (.+)$")
    return name.strip() if name else platform.processor() or None


def memory_gib() -> float | None:
    """Return the host's memory in GiB, None where the system does not say."""
    try:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
    return round(pages * size / 2**30, 1)


def git_commit(checkout: Path) -> str | None:
    """Return the commit of a checkout, with ``-dirty`` where files differ; None without git."""
    command = ("git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40")
    described = printed((*command, "--exclude=*"), seconds=30)
    return described.strip() or None if described else None
