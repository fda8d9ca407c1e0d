"""The model: a RunConfig and a ModelShape become this rank's chunks of a GPTModel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from scalebook.catalog.types import ModelShape
from scalebook.config import RunConfig
from scalebook.errors import ConfigError
from scalebook.train import fsdp, fused, layers, mcore, weights
from scalebook.train.cross_entropy import cross_entropy
from scalebook.train.switches import Switches, resolve
from scalebook.train.world import World

VOCABULARY_MULTIPLE = 128  # Megatron-LM's --make-vocab-size-divisible-by
# What parameters are computed in: FP8 is a format of the matrix products alone.
DTYPES = {"bf16": torch.bfloat16, "fp8": torch.bfloat16, "fp32": torch.float32}
# The weight that Mixtral's configuration gives to the load-balancing loss is 0.02; Megatron-LM's
# examples use 0.01.
AUXILIARY_LOSS_COEFFICIENT = 1e-2


@dataclass(frozen=True, slots=True)
class Model:
    """This rank's part of the model, wrapped for data parallelism."""

    chunks: list[Any]  # DistributedDataParallel or fsdp.Sharded, one a virtual pipeline stage
    config: Any  # megatron.core.TransformerConfig
    ddp_config: Any
    padded_vocab_size: int
    switches: Switches
    parameter_count: int  # of this pipeline stage, whole


def refuse_unsupported(config: RunConfig, shape: ModelShape) -> None:
    """Raise ConfigError where this trainer cannot run what is asked for."""
    if config.precision not in DTYPES:
        raise ConfigError(
            f"precision={config.precision!r} is not supported by engine 'megatron'. "
            f"Use one of: {', '.join(DTYPES)}."
        )
    if config.data_parallel_sharding == "full" and (
        config.pipeline_parallel_size > 1 or shape.moe is not None
    ):
        raise ConfigError(
            "data_parallel_sharding='full' (FSDP) is supported by engine 'megatron' without "
            "pipeline stages and without experts. Use 'none' or 'optimizer'."
        )
    if shape.mla is not None or shape.mtp_layers:
        raise ConfigError(
            f"{shape.name} uses multi-latent attention or multi-token prediction, which engine "
            "'megatron' does not train. Choose another model."
        )
    if config.sequence_length > shape.max_sequence_length and shape.learned_positions:
        raise ConfigError(
            f"sequence_length={config.sequence_length} is beyond the "
            f"{shape.learned_positions} learned positions of {shape.name}."
        )


def padded_vocabulary(vocab_size: int, tensor_parallel_size: int) -> int:
    """Return the vocabulary rounded up to a multiple of 128 x tensor-parallel size."""
    multiple = VOCABULARY_MULTIPLE * tensor_parallel_size
    return math.ceil(vocab_size / multiple) * multiple


def _architecture(shape: ModelShape) -> dict[str, Any]:
    options: dict[str, Any] = {
        "num_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "ffn_hidden_size": shape.ffn_hidden_size,
        "num_attention_heads": shape.num_attention_heads,
        "num_query_groups": shape.num_query_groups,
        "kv_channels": shape.head_dim,
        "normalization": "RMSNorm" if shape.normalization == "rms" else "LayerNorm",
        "layernorm_epsilon": 1e-5,
        "gated_linear_unit": shape.gated_mlp,
        "activation_func": functional.silu if shape.gated_mlp else functional.gelu,
        "add_bias_linear": shape.mlp_bias,
        "add_qkv_bias": shape.attention_bias in ("qkv", "all"),
        "qk_layernorm": shape.qk_norm,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "init_method_std": weights.INIT_STD,
    }
    return options | _experts(shape)


def _experts(shape: ModelShape) -> dict[str, Any]:
    if shape.moe is None:
        return {}
    dense = shape.moe.first_dense_layers
    return {
        "num_moe_experts": shape.moe.num_experts,
        "moe_router_topk": shape.moe.top_k,
        "moe_ffn_hidden_size": shape.moe.ffn_hidden_size,
        "moe_shared_expert_intermediate_size": shape.moe.shared_ffn_hidden_size or None,
        "moe_layer_freq": [0] * dense + [1] * (shape.num_layers - dense),
        "moe_token_dispatcher_type": "alltoall",
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": AUXILIARY_LOSS_COEFFICIENT,
        "moe_router_dtype": "fp32",
    }


def _split(config: RunConfig) -> dict[str, Any]:
    stages = config.virtual_pipeline_parallel_size
    return {
        "tensor_model_parallel_size": config.tensor_parallel_size,
        "pipeline_model_parallel_size": config.pipeline_parallel_size,
        "virtual_pipeline_model_parallel_size": stages if stages > 1 else None,
        "context_parallel_size": config.context_parallel_size,
        "expert_model_parallel_size": config.expert_parallel_size,
        "expert_tensor_parallel_size": config.expert_tensor_parallel_size,
        "sequence_parallel": config.sequence_parallel,
        "pipeline_dtype": DTYPES[config.precision],
        "params_dtype": DTYPES[config.precision],
        "bf16": config.precision != "fp32",
    }


def _recompute(config: RunConfig) -> dict[str, Any]:
    if config.recompute == "full":
        return {
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
        }
    return {"recompute_granularity": "selective"} if config.recompute == "selective" else {}


def _speed(config: RunConfig, shape: ModelShape, world: World, on: Switches) -> dict[str, Any]:
    te = on.transformer_engine
    interleaved = config.virtual_pipeline_parallel_size > 1
    return {
        "use_cpu_initialization": not world.on_gpu,
        "bias_activation_fusion": on.fused_activation or _remakes_activation(config, shape),
        "bias_dropout_fusion": on.fused_activation,
        "masked_softmax_fusion": False,
        "gradient_accumulation_fusion": on.fused_weight_gradient,
        "apply_rope_fusion": te and on.fused_rope,
        "moe_grouped_gemm": te and shape.moe is not None,
        # With 2 stages, batched sends of both directions go to the same peer and are mixed up.
        "overlap_p2p_comm": interleaved,
        "batch_p2p_comm": not interleaved,
        # As Megatron-LM. The interleaved schedule frees an output before it has waited for its
        # send: right in a GPU's stream order, but over gloo wrong numbers arrive.
        "batch_p2p_sync": world.on_gpu,
        "deallocate_pipeline_outputs": world.on_gpu,
    }


def _quantised(config: RunConfig) -> dict[str, Any]:
    """Transformer Engine's FP8: E4M3 forward, E5M2 backward (arXiv 2209.05433)."""
    if config.precision != "fp8":
        return {}
    return {
        "fp8": "hybrid",
        "fp8_recipe": config.fp8_recipe,
        "fp8_param": config.fp8_primary_weights,
    }


def _remakes_activation(config: RunConfig, shape: ModelShape) -> bool:
    return config.recompute == "pointwise" and shape.gated_mlp


def _ddp_config(config: RunConfig, on: Switches) -> Any:
    return mcore.DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=config.data_parallel_sharding == "optimizer",
        overlap_grad_reduce=on.overlap_grad_reduce,
        overlap_param_gather=on.overlap_param_gather,
        fp8_param_gather=config.fp8_primary_weights,
    )


class _GPTModel(mcore.GPTModel):
    """Megatron-Core's model with our cross entropy, where that is on."""

    fused_cross_entropy = False

    def compute_language_model_loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Return the loss [batch, sequence] of logits [sequence, batch, columns of this rank]."""
        if not self.fused_cross_entropy:
            parent: Any = super()
            return parent.compute_language_model_loss(labels, logits)
        group = self.pg_collection.tp
        loss = cross_entropy(logits, labels.transpose(0, 1).contiguous(), group, compiled=True)
        return loss.transpose(0, 1).contiguous()


def _chunk(config: Any, shape: ModelShape, run: RunConfig, stage: int | None, on: Switches) -> Any:
    style = layers.Style(
        compiled_norm=on.fused_norm,
        fused_attention=on.fused_attention,
        overlap_tensor_parallel=on.overlap_tensor_parallel,
        remake=run.recompute == "pointwise",
    )
    pieces = None if on.transformer_engine else style.pieces()
    ranks = mcore.parallel_state
    where = {"ignore_virtual": False, "vp_stage": stage}
    chunk = _GPTModel(
        config=config,
        transformer_layer_spec=mcore.block_spec(config, pieces=pieces, vp_stage=stage),
        vocab_size=padded_vocabulary(shape.vocab_size, run.tensor_parallel_size),
        max_sequence_length=shape.learned_positions or run.sequence_length,
        pre_process=ranks.is_pipeline_first_stage(**where),
        post_process=ranks.is_pipeline_last_stage(**where),
        share_embeddings_and_output_weights=shape.tied_embeddings,
        position_embedding_type="learned_absolute" if shape.learned_positions else "rope",
        rotary_base=shape.rope_theta,
        vp_stage=stage,
    )
    chunk.fused_cross_entropy = on.fused_cross_entropy
    return chunk


def _install(config: RunConfig, shape: ModelShape, on: Switches) -> None:
    """Put the pieces in place that Megatron-Core has no seam for."""
    if on.fused_rope and not on.transformer_engine:
        fused.compile_rotary_embedding()
    if _remakes_activation(config, shape):
        fused.remake_activation(fused=on.fused_activation)


def build(config: RunConfig, shape: ModelShape, world: World) -> Model:
    """Return this rank's model chunks with weights that do not depend on the layout."""
    on = resolve(config, shape, world)
    _install(config, shape, on)
    options = _architecture(shape) | _split(config) | _recompute(config) | _quantised(config)
    transformer = mcore.TransformerConfig(**options, **_speed(config, shape, world, on))
    stages = config.virtual_pipeline_parallel_size
    sharded = config.data_parallel_sharding == "full"
    # FSDP keeps the fp32 parameters that are updated in the model itself.
    dtype = torch.float32 if sharded else DTYPES[config.precision]
    chunks = [
        _chunk(transformer, shape, config, stage, on).to(device=world.device, dtype=dtype)
        for stage in (range(stages) if stages > 1 else [None])
    ]
    weights.initialise(
        chunks,
        transformer,
        vocab_size=shape.vocab_size,
        tied=shape.tied_embeddings,
        seed=config.seed,
    )
    count = weights.parameter_count(chunks, shape.tied_embeddings)
    ddp_config = _ddp_config(config, on)
    if sharded:
        computed = DTYPES[config.precision]
        wrapped = [fsdp.shard(transformer, chunk, world, computed) for chunk in chunks]
    else:
        wrapped = [_wrap(transformer, ddp_config, one, index) for index, one in enumerate(chunks)]
    return Model(
        chunks=wrapped,
        config=transformer,
        ddp_config=ddp_config,
        padded_vocab_size=padded_vocabulary(shape.vocab_size, config.tensor_parallel_size),
        switches=on,
        parameter_count=count,
    )


def _wrap(config: Any, ddp_config: Any, chunk: Any, index: int) -> Any:
    return mcore.DistributedDataParallel(
        config=config, ddp_config=ddp_config, module=chunk, disable_bucketing=index > 0
    )
