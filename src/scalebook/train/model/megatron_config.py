"""Megatron-Core's settings: a RunConfig and a ModelShape as fields of its own configurations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional

from scalebook.config import RunConfig, recompute_options, split_sizes
from scalebook.facts.catalog.types import ModelShape
from scalebook.parallelism import chunk_sizes
from scalebook.train import mcore
from scalebook.train.model import weights
from scalebook.train.model.switches import DTYPES, Switches
from scalebook.train.world import World

# The weight that Mixtral's configuration gives to the load-balancing loss is 0.02; Megatron-LM's
# examples use 0.01.
AUXILIARY_LOSS_COEFFICIENT = 1e-2
# DeepSeek-V3 gives the loss of further tokens 0.3 at first and 0.1 for the rest (arXiv 2412.19437,
# section 4.2); Megatron-LM's default is 0.1.
FURTHER_TOKENS_LOSS_COEFFICIENT = 0.1
# DeepSeek-V3 moves an expert's bias by 0.001 a step (arXiv 2412.19437, section 4.2).
EXPERT_BIAS_RATE = 1e-3


def squared_relu(hidden: Tensor) -> Tensor:
    """Return max(x, 0)^2 (Primer, arXiv 2109.08668)."""
    return functional.relu(hidden).square()


ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "squared_relu": squared_relu,
}


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
        "activation_func": ACTIVATIONS[shape.activation],
        "add_bias_linear": shape.mlp_bias,
        "add_qkv_bias": shape.attention_bias in ("qkv", "all"),
        "qk_layernorm": shape.qk_norm,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "init_method_std": weights.INIT_STD,
    }
    return options | _latent(shape) | _attention(shape)


def _attention(shape: ModelShape) -> dict[str, Any]:
    """Sliding windows and sinks: the first layer of each ``sliding_window_every`` is windowed."""
    options: dict[str, Any] = {"softmax_type": "learnable"} if shape.attention_sinks else {}
    if shape.sliding_window:
        every = shape.sliding_window_every
        options["window_size"] = (shape.sliding_window - 1, 0)
        options["window_attn_skip_freq"] = [
            int(layer % every == 0) for layer in range(shape.num_layers)
        ]
    return options


def _further_tokens(config: RunConfig) -> dict[str, Any]:
    """Multi-token prediction: modules behind the last layer, each with a loss of its own."""
    if not config.mtp_layers:
        return {}
    return {
        "mtp_num_layers": config.mtp_layers,
        "mtp_loss_scaling_factor": FURTHER_TOKENS_LOSS_COEFFICIENT,
    }


def _experts(config: RunConfig, shape: ModelShape) -> dict[str, Any]:
    if shape.moe is None:
        return {}
    dense = shape.moe.first_dense_layers
    # A bias of every linear layer takes in the router's; without them, it is the one that evens
    # the experts out without a loss, which Megatron-Core has for sigmoid scores only.
    evens_out = shape.moe.router_bias and not shape.mlp_bias
    biased: dict[str, Any] = {
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_bias_update_rate": EXPERT_BIAS_RATE,
    }
    return (biased if evens_out else {}) | {
        "num_moe_experts": shape.moe.num_experts,
        "moe_router_topk": shape.moe.top_k,
        # the softmax of the one chosen score is 1, whatever the router says
        "moe_router_pre_softmax": shape.moe.top_k == 1 and not evens_out,
        "moe_ffn_hidden_size": shape.moe.ffn_hidden_size,
        "moe_shared_expert_intermediate_size": shape.moe.shared_ffn_hidden_size or None,
        "moe_layer_freq": [0] * dense + [1] * (shape.num_layers - dense),
        "moe_token_dispatcher_type": "alltoall",
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": AUXILIARY_LOSS_COEFFICIENT,
        "moe_router_dtype": "fp32",
        "moe_router_force_load_balancing": config.expert_balance == "forced",
    }


def _latent(shape: ModelShape) -> dict[str, Any]:
    """Multi-latent attention, with plain rotary embedding: no stretching of the context."""
    mla = shape.mla
    if mla is None:
        return {}
    return {
        "multi_latent_attention": True,
        "q_lora_rank": mla.q_lora_rank or None,
        "kv_lora_rank": mla.kv_lora_rank,
        "qk_head_dim": mla.qk_nope_head_dim,
        "qk_pos_emb_head_dim": mla.qk_rope_head_dim,
        "v_head_dim": mla.v_head_dim,
        "qk_layernorm": True,  # the norms of both compressed vectors
        "rope_type": "rope",
        "rotary_base": shape.rope_theta,
        "rotary_scaling_factor": 1.0,
    }


def _stages(config: RunConfig, shape: ModelShape) -> dict[str, Any]:
    """How many layers a stage has, and with an interleaved schedule each of its chunks."""
    last, chunks = config.last_pipeline_stage_layers, config.virtual_pipeline_parallel_size
    if not last or chunks == 1:
        return {"num_layers_in_last_pipeline_stage": last or None}
    stages = config.pipeline_parallel_size
    sizes = chunk_sizes(shape.num_layers, stages, chunks, last)
    layout = [
        ["decoder"] * sizes[stage][chunk] for chunk in range(chunks) for stage in range(stages)
    ]
    layout[0].insert(0, "embedding")
    layout[-1].append("loss")
    return {"pipeline_model_parallel_layout": layout}


def last_stage_layers(config: Any) -> int:
    """Return the layers of the last stage of a TransformerConfig; 0: as many as the others."""
    layout = config.pipeline_model_parallel_layout
    if layout is None:
        return config.num_layers_in_last_pipeline_stage or 0
    return sum(layer.name == "decoder" for chunk in layout.layout[-1] for layer in chunk)


def _split(config: RunConfig, shape: ModelShape) -> dict[str, Any]:
    return {
        **split_sizes(config),
        **_stages(config, shape),
        "pipeline_dtype": DTYPES[config.precision],
        "params_dtype": DTYPES[config.precision],
        "bf16": config.precision != "fp32",
    }


def _recompute(config: RunConfig, on: Switches) -> dict[str, Any]:
    """Megatron-Core's options; experts without Transformer Engine are ours to recompute."""
    options = {name: value for name, value in recompute_options(config).items() if value}
    if "recompute_modules" in options and not on.transformer_engine:
        names = [name for name in options["recompute_modules"] if name != "moe_act"]
        options["recompute_modules"] = names
    return options


def _speed(config: RunConfig, shape: ModelShape, world: World, on: Switches) -> dict[str, Any]:
    te = on.transformer_engine
    interleaved = config.virtual_pipeline_parallel_size > 1
    return {
        "use_cpu_initialization": not world.on_gpu,
        "bias_activation_fusion": on.fused_activation or remakes_activation(config, shape),
        # Without a bias only an addition is left: launching it compiled takes the host far longer.
        "bias_dropout_fusion": on.fused_activation and shape.mlp_bias,
        "masked_softmax_fusion": False,
        "gradient_accumulation_fusion": on.fused_weight_gradient,
        "apply_rope_fusion": te and on.fused_rope,
        "fused_single_qkv_rope": splits_turned(config, shape, on),
        "moe_grouped_gemm": te and on.grouped_gemm,
        # With 2 stages, batched sends of both directions go to the same peer and are mixed up.
        "overlap_p2p_comm": interleaved,
        "batch_p2p_comm": not interleaved,
        # Else the host waits for the device after each transfer, which torch needed before 1.13
        # (pytorch/pytorch#82450), and launches are late.
        "batch_p2p_sync": False,
        # The interleaved schedule frees an output before it has waited for its send: right in a
        # GPU's stream order, but over gloo wrong numbers arrive.
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
        # Transformer Engine's own defaults; Megatron-Core's scale by the last amax alone.
        "fp8_amax_history_len": 1024,
        "fp8_amax_compute_algo": "max",
    }


def remakes_activation(config: RunConfig, shape: ModelShape) -> bool:
    """Return whether the product of the activation function is recomputed, not kept."""
    return config.recompute == "pointwise" and shape.activation == "silu" and shape.gated_mlp


def splits_turned(config: RunConfig, shape: ModelShape, on: Switches) -> bool:
    """Return whether queries and keys are turned while they are split from the values."""
    between = shape.qk_norm or shape.mla is not None or shape.learned_positions
    shared = shape.num_query_groups < config.tensor_parallel_size
    return on.fused_rope and not (on.transformer_engine or between or shared)


def ddp_config(config: RunConfig, world: World, on: Switches) -> Any:
    """Return how Megatron-Core's data parallelism reduces gradients."""
    return mcore.DistributedDataParallelConfig(
        grad_reduce_in_fp32=config.gradient_precision == "fp32",
        use_distributed_optimizer=config.data_parallel_sharding == "optimizer",
        overlap_grad_reduce=on.overlap_grad_reduce,
        overlap_param_gather=on.overlap_param_gather,
        fp8_param_gather=config.fp8_primary_weights,
        # Else a pass divides all gradients first. Gloo averaged wrongly up to torch 2.10, and of
        # experts on some ranks Megatron-Core refuses a factor that is rounded (3 of 33).
        average_in_collective=world.on_gpu and config.expert_parallel_size == 1,
    )


def transformer_config(config: RunConfig, shape: ModelShape, world: World, on: Switches) -> Any:
    """Return Megatron-Core's TransformerConfig of a run."""
    options = _architecture(shape) | _experts(config, shape) | _split(config, shape)
    options |= _recompute(config, on) | _quantised(config) | _further_tokens(config)
    kind = mcore.MLATransformerConfig if shape.mla else mcore.TransformerConfig
    return kind(**options, **_speed(config, shape, world, on))
