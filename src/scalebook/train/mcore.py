"""The names of megatron.core that the trainer uses, and every difference between its versions.

Megatron-Core is partly typed, so its names are ``Any`` here. Importing this module imports
megatron.core; on the CPU ``scalebook.train.cpu.install()`` must have run before.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from types import SimpleNamespace
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
_clip_grads: Any = _import("megatron.core.optimizer.clip_grads")
_schedules: Any = _import("megatron.core.pipeline_parallel.schedules")
_distributed: Any = _import("megatron.core.distributed")

GPTModel: Any = _import("megatron.core.models.gpt.gpt_model").GPTModel
_config: Any = _import("megatron.core.transformer.transformer_config")
TransformerConfig: Any = _config.TransformerConfig
MLATransformerConfig: Any = _config.MLATransformerConfig
MegatronModule: Any = _import("megatron.core.transformer.module").MegatronModule
MLP: Any = _import("megatron.core.transformer.mlp").MLP
_latent: Any = _import("megatron.core.transformer.multi_latent_attention")
MLASelfAttention: Any = _latent.MLASelfAttention
_utils: Any = _import("megatron.core.transformer.utils")
make_sharded_tensors_for_checkpoint: Any = _utils.make_sharded_tensors_for_checkpoint
ModuleSpec: Any = _import("megatron.core.transformer.spec_utils").ModuleSpec
_attention: Any = _import("megatron.core.transformer.dot_product_attention")
DotProductAttention: Any = _attention.DotProductAttention
ColumnParallelLinear: Any = tensor_parallel.ColumnParallelLinear
RowParallelLinear: Any = tensor_parallel.RowParallelLinear
VocabParallelEmbedding: Any = tensor_parallel.VocabParallelEmbedding
DistributedDataParallel: Any = _distributed.DistributedDataParallel
DistributedDataParallelConfig: Any = _distributed.DistributedDataParallelConfig
finalize_model_grads: Any = _distributed.finalize_model_grads
OptimizerConfig: Any = _optimizer.OptimizerConfig
get_megatron_optimizer: Any = _optimizer.get_megatron_optimizer
_scheduler: Any = _import("megatron.core.optimizer_param_scheduler")
OptimizerParamScheduler: Any = _scheduler.OptimizerParamScheduler
get_forward_backward_func: Any = _schedules.get_forward_backward_func

_moe_utils: Any = _import("megatron.core.transformer.moe.moe_utils")
_further_tokens: Any = _import("megatron.core.transformer.multi_token_prediction")

version: str = core.__version__

# 0.16 compares this name with None in the router, but defines it with Transformer Engine only.
if not hasattr(_moe_utils, "te_general_gemm"):
    _moe_utils.te_general_gemm = None


def _nothing(*_: Any, **__: Any) -> AbstractContextManager[None]:
    return nullcontext()


# 0.16 takes Transformer Engine for installed here, and then None for one of its classes. Where it
# recomputes a module, it asks the absent engine whether FP8 is on, whatever the precision.
if find_spec("transformer_engine") is None:
    _latent.HAVE_TE = False
    _random: Any = _import("megatron.core.tensor_parallel.random")
    if not hasattr(_random, "FP8GlobalStateManager"):
        _random.FP8GlobalStateManager = SimpleNamespace(is_fp8_enabled=lambda: False)
        _random.activation_recompute_forward = _random.fp8_autocast = _nothing


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


@dataclass(frozen=True, slots=True)
class Pieces:
    """The classes (or specs) that take the places of Megatron-Core's local ones in a layer."""

    norm: Any
    core_attention: Any
    column: Any
    row: Any
    expert_row: Any
    experts: type | None  # None: Megatron-Core's, one after the other
    latent_attention: Any


@contextmanager
def _local_provider(pieces: Pieces) -> Generator[None]:
    """Let Megatron-Core's local specifications be made of our pieces."""
    local: Any = _gpt_specs.LocalSpecProvider

    class Provider(local):
        def column_parallel_linear(self) -> Any:
            return pieces.column

        def row_parallel_linear(self) -> Any:
            return pieces.row

        def layer_norm(self, **_: Any) -> Any:
            return pieces.norm

        def core_attention(self) -> Any:
            return pieces.core_attention

        def grouped_mlp_modules(self, *given: Any, **options: Any) -> Any:
            parent: Any = super()
            if pieces.experts is None:
                built: Any = parent.grouped_mlp_modules(*given, **options)
                paired = isinstance(built, tuple)
                own: Any = built[1] if paired else built.keywords["submodules"]
                parts = replace(own, linear_fc2=pieces.expert_row)
                return (built[0], parts) if paired else partial(built.func, submodules=parts)
            # Before 0.18: a class and its submodules, for any number of arguments.
            paired = (
                "moe_use_legacy_grouped_gemm" in signature(parent.grouped_mlp_modules).parameters
            )
            return (pieces.experts, None) if paired else pieces.experts

    _gpt_specs.LocalSpecProvider = Provider
    try:
        yield
    finally:
        _gpt_specs.LocalSpecProvider = local


def block_spec(config: Any, *, pieces: Pieces | None, vp_stage: int | None) -> Any:
    """Return the layers of one model chunk as Megatron-Core's specification of submodules.

    Without ``pieces`` they are those of Transformer Engine.
    """
    options: dict[str, Any] = {"normalization": config.normalization, "vp_stage": vp_stage}
    build: Any = _gpt_specs.get_gpt_decoder_block_spec
    if pieces is None:
        spec = build(config, use_transformer_engine=True, **options)
        if config.multi_latent_attention and config.q_lora_rank is None:
            made = [_with_latent_attention(layer, _WholeQueries) for layer in spec.layer_specs]
            return replace(spec, layer_specs=made)
        return spec
    with _local_provider(pieces):
        spec = build(config, use_transformer_engine=False, **options)
    made = [_with_latent_attention(layer, pieces.latent_attention) for layer in spec.layer_specs]
    return replace(spec, layer_specs=made, layer_norm=pieces.norm)


def further_tokens_spec(
    config: Any, layers: Any, *, pieces: Pieces | None, vp_stage: int | None
) -> Any:
    """Return the multi-token prediction modules, made as the last of ``layers`` is."""
    build: Any = _gpt_specs.get_gpt_mtp_block_spec
    if pieces is None:
        return build(config, layers, use_transformer_engine=True, vp_stage=vp_stage)
    with _local_provider(pieces):
        return build(config, layers, use_transformer_engine=False, vp_stage=vp_stage)


def recomputes_further_tokens() -> bool:
    """Return whether full recomputation includes the multi-token prediction modules.

    0.18 hands its function a padding mask, which that does not take.
    """
    layer: Any = _further_tokens.MultiTokenPredictionLayer
    given = signature(layer.forward).parameters
    taken = signature(layer._checkpointed_forward).parameters
    return "padding_mask" not in given or "padding_mask" in taken or "kwargs" in taken


class _WholeQueries(MLASelfAttention):
    """Megatron-Core's, for queries that are not compressed: 0.19 would put a norm before them."""

    def _resolve_qk_norm_config(self, submodules: Any) -> dict[str, Any]:
        parent: Any = super()
        resolved: dict[str, Any] = parent._resolve_qk_norm_config(submodules)
        return resolved | {"linear_q_proj": submodules.linear_q_proj}


def _with_latent_attention(layer: Any, attention: Any) -> Any:
    """Return a layer's specification with ours in the place of Megatron-Core's, if it has one."""
    own = layer.submodules.self_attention
    if own.module is not MLASelfAttention:
        return layer
    parts = replace(layer.submodules, self_attention=replace(own, module=attention))
    return replace(layer, submodules=parts)


@contextmanager
def no_random_streams() -> Generator[None]:
    """Draw from no random stream of a tensor-parallel rank: a graph cannot change its seed.

    Dropout is zero in every model here. The random logits of a forced balance of experts are drawn
    from the device's own stream instead, whose state a graph keeps.
    """
    tracker: Any = tensor_parallel.get_cuda_rng_tracker()
    tracker.fork = _nothing
    try:
        yield
    finally:
        del tracker.fork


def scale_in_place(scale: Any) -> None:
    """Let gradients be clipped by ``scale``, unless Transformer Engine or Apex have a kernel."""
    if _clip_grads.multi_tensor_scale_impl.__name__ == "local_multi_tensor_scale":
        _clip_grads.multi_tensor_scale_impl = scale


def forget_auxiliary_losses() -> None:
    """Empty the trackers in which layers add up auxiliary losses; nothing reads them."""
    clear = getattr(_moe_utils, "clear_aux_losses_tracker", None)
    if clear is not None:
        clear()
    _further_tokens.MTPLossLoggingHelper.tracker.clear()
