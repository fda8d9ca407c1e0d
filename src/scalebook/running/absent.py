"""What a machine lacks that was asked to run as a platform whose GPUs it does not show."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from scalebook.facts.catalog.types import Platform
from scalebook.running.container import inside

# The file by which a vendor's driver is reached, and the tools that name its devices.
_DRIVERS = {
    "nvidia": ("dev/nvidiactl", "NVIDIA driver", ("nvidia-smi",), "--gpus=all"),
    "amd": ("dev/kfd", "amdgpu driver", ("amd-smi", "rocm-smi"), "--device=/dev/kfd"),
}


def explain(
    platform: Platform,
    environment: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
    which: Callable[[str], str | None] = shutil.which,
) -> str:
    """Return in sentences what is missing for a GPU platform on a machine without a GPU to see."""
    file, driver, tools, flag = _DRIVERS[platform.vendor]
    told: list[str] = []
    if not (root / file).exists():
        told.append(f"/{file} is not there: the {driver} is not loaded.")
        if inside.container(environment, root):
            told[-1] = (
                f"/{file} is not in this container: start it with {flag}, or load the driver."
            )
    elif not any(which(tool) for tool in tools):
        told.append(f"The driver is loaded, but {' and '.join(tools)} were not found on PATH.")
    else:
        told.append(f"The driver is loaded, but {tools[0]} names no device; run it by hand.")
    if which("sbatch"):
        told.append("This host has Slurm: make ... LAUNCHER=slurm (--launcher slurm) submits jobs.")
    told.append("'scalebook doctor' checks the rest; --force-platform runs all the same.")
    return " ".join(told)
