"""The names of megatron.core that the trainer uses, and every difference between its versions.

Megatron-Core is partly typed, so its names are ``Any`` here. Importing this module imports
megatron.core; on the CPU ``scalebook.train.cpu.install()`` must have run before.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def _import(name: str) -> Any:
    with warnings.catch_warnings():
        # Absent Apex and Transformer Engine are recorded in the environment instead.
        warnings.filterwarnings("ignore", message=".*(Apex|Transformer Engine).*")
        return import_module(name)


core: Any = _import("megatron.core")
parallel_state: Any = _import("megatron.core.parallel_state")
tensor_parallel: Any = _import("megatron.core.tensor_parallel")
_gpt_specs: Any = _import("megatron.core.models.gpt.gpt_layer_specs")
_optimizer: Any = _import("megatron.core.optimizer")
_schedules: Any = _import("megatron.core.pipeline_parallel.schedules")
_distributed: Any = _import("megatron.core.distributed")

GPTModel: Any = _import("megatron.core.models.gpt.gpt_model").GPTModel
TransformerConfig: Any = _import("megatron.core.transformer.transformer_config").TransformerConfig
MegatronModule: Any = _import("megatron.core.transformer.module").MegatronModule
DistributedDataParallel: Any = _distributed.DistributedDataParallel
DistributedDataParallelConfig: Any = _distributed.DistributedDataParallelConfig
finalize_model_grads: Any = _distributed.finalize_model_grads
OptimizerConfig: Any = _optimizer.OptimizerConfig
get_megatron_optimizer: Any = _optimizer.get_megatron_optimizer
OptimizerParamScheduler: Any = _import(
    "megatron.core.optimizer_param_scheduler"
).OptimizerParamScheduler
get_forward_backward_func: Any = _schedules.get_forward_backward_func

_moe_utils: Any = _import("megatron.core.transformer.moe.moe_utils")

version: str = core.__version__

# 0.16 compares this name with None in the router, but defines it with Transformer Engine only.
if not hasattr(_moe_utils, "te_general_gemm"):
    _moe_utils.te_general_gemm = None


def transformer_engine_version() -> str | None:
    """Return the version of Transformer Engine that Megatron-Core will use; None without one."""
    if find_spec("transformer_engine") is None:
        return None
    return str(getattr(import_module("transformer_engine"), "__version__", "unknown"))


def quiet() -> None:
    """Keep Megatron-Core's advice to its own users (such as deprecations) out of the log."""
    logging.getLogger("megatron").setLevel(logging.ERROR)
    # Newer torch renames collectives that Megatron-Core still calls by the old name.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    warnings.filterwarnings("ignore", message="full scope is deprecated")


def block_spec(
    config: Any, *, transformer_engine: bool, norm: Any, core_attention: Any, vp_stage: int | None
) -> Any:
    """Return the layers of one model chunk as Megatron-Core's specification of submodules.

    Without Transformer Engine, norms and core attention are replaced by ours: Megatron-Core's own
    refuse sequence parallelism, context parallelism and use no fused attention kernel.
    """
    spec = _gpt_specs.get_gpt_decoder_block_spec(
        config,
        use_transformer_engine=transformer_engine,
        normalization=config.normalization,
        vp_stage=vp_stage,
    )
    if transformer_engine:
        return spec
    layers = [_torch_layer(layer, config, norm, core_attention) for layer in spec.layer_specs]
    return replace(spec, layer_specs=layers, layer_norm=norm)


def _torch_layer(layer: Any, config: Any, norm: Any, core_attention: Any) -> Any:
    attention = layer.submodules.self_attention
    parts: dict[str, Any] = {"core_attention": core_attention}
    if config.qk_layernorm:
        parts |= {"q_layernorm": norm, "k_layernorm": norm}
    attention = replace(attention, submodules=replace(attention.submodules, **parts))
    submodules = replace(
        layer.submodules,
        input_layernorm=norm,
        pre_mlp_layernorm=norm,
        self_attention=attention,
    )
    return replace(layer, submodules=submodules)


def forget_auxiliary_losses() -> None:
    """Empty the tracker in which MoE layers add up their auxiliary losses; nothing reads it."""
    clear = getattr(_moe_utils, "clear_aux_losses_tracker", None)
    if clear is not None:
        clear()
