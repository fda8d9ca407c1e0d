"""The command and the variables that start a run on this machine: torchrun, from a RunConfig."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalebook import engines, untrusted
from scalebook.config import RunConfig
from scalebook.errors import LaunchError
from scalebook.facts.catalog.types import Platform
from scalebook.host import ASKED
from scalebook.running.container.engines import current_container, missing_trainer
from scalebook.running.container.rules import Variable, variables


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start: ``command`` as argv, and the variables to start it with."""

    command: tuple[str, ...]
    variables: tuple[Variable, ...]

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the whole environment of the command; what the user set wins."""
        asked = base.get(ASKED, "").split()
        result = dict(base)
        for variable in self.variables:
            baked = base.get(variable.name) in variable.replaces and variable.name not in asked
            if variable.name not in base or baked:
                result[variable.name] = variable.value
        return result


def direct(
    config: RunConfig,
    *,
    config_path: Path,
    output: Path,
    trainer: str = "",
    meeting: Sequence[str] = (),
) -> Launch:
    """Return how to start this machine's ranks; ``trainer`` empty: its engine's own module.

    ``meeting`` are torchrun's options by which the nodes of a run find each other; empty: the run
    has this machine only. Whether they can run here is for ``unavailable`` to say.
    """
    command = (
        *(sys.executable, "-m", "torch.distributed.run", *(meeting or ("--standalone",))),
        *("--nproc-per-node", str(config.world_size // config.nodes)),
        *(("--max-restarts", str(config.max_restarts)) if config.max_restarts else ()),
        *("-m", trainer or engines.TRAINERS[config.engine]),
        *("--config", str(config_path), "--output", str(output)),
    )
    return Launch(command, variables(config))


def guarded(
    run_id: str,
    grace_seconds: float,
    command: tuple[str, ...],
    environment: Mapping[str, str],
    log_file: Path,
) -> subprocess.Popen[bytes]:
    """Start a command under a guard (``guard``), which ends it when this process dies."""
    guard = (sys.executable, "-m", "scalebook.running.guard", run_id, str(grace_seconds))
    with untrusted.appended(log_file) as log:
        return subprocess.Popen(
            (*guard, *command),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            # A Jupyter interrupt goes to the kernel's process group; the run must end by request.
            start_new_session=True,
        )


def unavailable(
    config: RunConfig, devices: int | None = None, *, allocated: bool = False
) -> str | None:
    """Return why a run cannot start here, None if it can.

    ``devices`` is how many GPUs may be used: those of this machine, or fewer by ``--gpus``; None:
    any number. ``allocated``: this machine is one of the run's nodes, and the others are there.
    """
    if config.nodes > 1 and not allocated:
        return f"needs {config.nodes} nodes, and 'scalebook run' starts one"
    lack = engines.missing(config.engine)
    if lack:
        return f"needs the engine {config.engine!r}: {lack.rstrip('.')}"
    needed = config.world_size // config.nodes
    if devices is not None and needed > devices:
        gpus = "GPU" if needed == 1 else "GPUs"
        return f"needs {needed} {gpus}, the limit is {devices} (--gpus or this machine's)"
    return None


def require_trainer() -> None:
    """Refuse to start where what the trainer imports is not installed.

    Raises:
        LaunchError: torch or megatron-core is missing, with how to install it.
    """
    if lack := missing_trainer():
        raise LaunchError(f"{lack} Or use a training container (--container).")


# The file by which a vendor's driver is reached, and the tools that name its devices.
_DRIVERS = {
    "nvidia": ("dev/nvidiactl", "NVIDIA driver", ("nvidia-smi",), "--gpus=all"),
    "amd": ("dev/kfd", "amdgpu driver", ("amd-smi", "rocm-smi"), "--device=/dev/kfd"),
}


def explain_missing_gpus(
    platform: Platform,
    environment: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
    which: Callable[[str], str | None] = shutil.which,
) -> str:
    """Return in sentences what is missing for a GPU platform on a machine without a GPU to see."""
    file, driver, tools, flag = _DRIVERS[platform.vendor]
    reasons: list[str] = []
    if not (root / file).exists():
        reasons.append(f"/{file} does not exist: the {driver} is not loaded.")
        if current_container(environment, root):
            reasons[-1] = (
                f"/{file} is not in this container: start it with {flag}, or load the driver."
            )
    elif not any(which(tool) for tool in tools):
        reasons.append(f"The driver is loaded, but {' and '.join(tools)} were not found on PATH.")
    else:
        reasons.append(f"The driver is loaded, but {tools[0]} names no device; run it by hand.")
    if which("sbatch"):
        reasons.append(
            "This host has Slurm: --launcher slurm (make ... LAUNCHER=slurm) submits jobs."
        )
    reasons.append("'scalebook doctor' checks the rest; --force-platform runs anyway.")
    return " ".join(reasons)
