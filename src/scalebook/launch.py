"""RunConfig -> the command and the environment that start its training, as plain data."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from scalebook import catalog
from scalebook.catalog.types import Platform
from scalebook.config import RunConfig
from scalebook.errors import LaunchError

TRAINER = "scalebook.train"

# Variables with these prefixes change how fast training is: a record keeps what they were.
PERFORMANCE_PREFIXES = (
    "CUDA_",
    "CUBLAS",
    "CUDNN_",
    "GLOO_",
    "GPU_",
    "HIPBLASLT_",
    "HIP_",
    "HSA_",
    "KMP_",
    "MIOPEN_",
    "MKL_",
    "NCCL_",
    "NVTE_",
    "OMP_",
    "PYTORCH_",
    "RCCL_",
    "ROCM_",
    "ROCR_",
    "TORCH_",
    "UB_",
    "UCX_",
)


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable that the launcher sets unless the user already has."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start: ``command`` as argv, and the variables to start it with."""

    command: tuple[str, ...]
    variables: tuple[Variable, ...]

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the whole environment of the command; what the user set wins."""
        return {variable.name: variable.value for variable in self.variables} | dict(base)


def variables(config: RunConfig) -> tuple[Variable, ...]:
    """Return the variables that a run needs on the devices of its platform."""
    platform = catalog.platform(config.platform)
    chosen = [Variable("PYTHONUNBUFFERED", "1", "the log holds what was printed before a kill")]
    if platform.vendor == "cpu":
        reason = "ranks share the cores; more threads than cores make step times noise"
        chosen.append(Variable("OMP_NUM_THREADS", "1", reason))
    if _needs_one_queue(config, platform):
        reason = "collectives start before the matrix products that hide them"
        chosen.append(Variable("CUDA_DEVICE_MAX_CONNECTIONS", "1", reason))
    return tuple(chosen)


def _needs_one_queue(config: RunConfig, platform: Platform) -> bool:
    """Return whether kernels must start in the order of their launch.

    With one hardware queue a collective starts before the matrix product that it should overlap
    with. Megatron-LM requires it for TP and CP up to Hopper (compute capability 9); Blackwell
    keeps the order by itself, and FSDP is faster without.
    """
    if platform.vendor != "nvidia" or platform.accelerator is None:
        return False
    generation = catalog.accelerator(platform.accelerator).compute_capability.partition(".")[0]
    blackwell = generation.isdigit() and int(generation) >= 10
    model_parallel = config.tensor_parallel_size > 1 or config.context_parallel_size > 1
    return model_parallel and config.data_parallel_sharding != "full" and not blackwell


def direct(
    config: RunConfig,
    *,
    config_path: Path,
    output: Path,
    trainer: str = TRAINER,
    python: str = sys.executable,
) -> Launch:
    """Return how to start a run on this machine, without a container.

    Raises:
        LaunchError: the run needs more than one node, or an engine that has no adaptor.
    """
    refusal = unavailable(config)
    if refusal:
        raise LaunchError(refusal)
    command = (
        *(python, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(config.world_size), "-m", trainer),
        *("--config", str(config_path), "--output", str(output)),
    )
    return Launch(command, variables(config))


def unavailable(config: RunConfig, devices: int | None = None) -> str | None:
    """Return why this machine cannot start a run, None if it can; ``devices`` None: any number."""
    if config.nodes > 1:
        return f"needs {config.nodes} nodes, and 'scalebook run' starts one"
    if config.engine != "megatron":
        return f"needs the engine {config.engine!r}, and only 'megatron' is started directly"
    if devices is not None and config.world_size > devices:
        gpus = "GPU" if config.world_size == 1 else "GPUs"
        return f"needs {config.world_size} {gpus}, this machine has {devices}"
    return None


def require_trainer() -> None:
    """Refuse to start where what the trainer imports is not installed.

    Raises:
        LaunchError: torch or megatron-core is missing, with how to install it.
    """
    if find_spec("torch") is None:
        raise LaunchError(
            "torch is not installed here. Use a training container, or install the extra 'train': "
            "pip install 'scalebook[train]'."
        )
    if find_spec("megatron") is None:
        raise LaunchError(
            "megatron-core is not installed here. Beside a torch that must stay as it is: "
            "pip install --no-deps megatron-core."
        )


def performance_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that change how fast training is, sorted by name."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(PERFORMANCE_PREFIXES)
    }
