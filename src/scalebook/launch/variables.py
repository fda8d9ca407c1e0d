"""Environment variables of a run: those to set, with the reason, and those that a record keeps."""

from __future__ import annotations

from collections.abc import Mapping

from scalebook import catalog
from scalebook.catalog.types import Platform
from scalebook.config import RunConfig
from scalebook.launch.command import Variable

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


def performance_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that change how fast training is, sorted by name."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(PERFORMANCE_PREFIXES)
    }
