"""Environment variables of a run: those to set, with the reason, and those that a record keeps."""

from __future__ import annotations

from collections.abc import Mapping

from scalebook.config import RunConfig
from scalebook.running.command import ASKED, Variable
from scalebook.running.container import rules

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
    "PYTHONUNBUFFERED",
    "PYTORCH_",
    "RCCL_",
    "ROCM_",
    "ROCR_",
    "TORCH_",
    "UB_",
    "UCX_",
)


def variables(config: RunConfig) -> tuple[Variable, ...]:
    """Return the variables that a run needs on the devices of its platform (env.toml)."""
    values = rules.values_of(config)
    return tuple(
        Variable(rule.name, rule.value, rule.reason, rule.replaces)
        for rule in rules.rules(str(values["vendor"]))
        if rule.applies(values)
    )


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
