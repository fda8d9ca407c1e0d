"""What Scalebook's own trainer does not train: said before a run is started, and by the trainer."""

from __future__ import annotations

from collections.abc import Iterator

from scalebook.config import RunConfig
from scalebook.facts.catalog.types import ModelShape

LAYER_NORMS = 2  # one before the attention, one before the MLP
PRECISIONS = ("bf16", "fp8", "fp32")


def untrained(config: RunConfig, shape: ModelShape) -> Iterator[str]:
    """Yield a sentence for each thing asked for that engine 'megatron' does not train."""
    if shape.hybrid is not None:
        kinds = shape.hybrid.words
        yield f"{shape.name} has {kinds}, which no engine here trains. Use another model."
        return
    if config.precision not in PRECISIONS:
        yield (
            f"precision={config.precision!r} is not supported by engine 'megatron'. Use one of: "
            f"{', '.join(PRECISIONS)}."
        )
    if config.data_parallel_sharding == "full" and (
        config.pipeline_parallel_size > 1 or shape.moe is not None
    ):
        yield (
            "data_parallel_sharding='full' (FSDP) is supported by engine 'megatron' without "
            "pipeline stages and without experts. Use 'none' or 'optimizer'."
        )
    if shape.norms_per_layer != LAYER_NORMS or shape.qk_norm_full_width:
        kind = "full-width query-key norms" if shape.qk_norm_full_width else "other norms per layer"
        yield (
            f"{shape.name} has {kind}, which engine 'megatron' does not train. Use another model."
        )
    if shape.moe is not None and shape.mlp_bias and config.expert_tensor_parallel_size > 1:
        # Each tensor-parallel rank would add the whole bias to its part of the output.
        yield (
            f"expert_tensor_parallel_size={config.expert_tensor_parallel_size} splits the experts "
            f"of {shape.name}, which have biases. Use expert_tensor_parallel_size=1."
        )
    if config.mtp_layers and (
        config.pipeline_parallel_size > 1
        or config.context_parallel_size > 1
        or config.data_parallel_sharding == "full"
    ):
        yield (
            f"mtp_layers={config.mtp_layers} (multi-token prediction) is trained by engine "
            "'megatron' without pipeline stages, context parallelism and FSDP. Use mtp_layers=0."
        )
    if config.recompute == "pointwise" and config.layer_spec == "transformer_engine":
        yield (
            "recompute='pointwise' is made for layer_spec 'torch'. Use recompute 'full' or 'none'."
        )
    if "moe_act" in config.recomputation.modules and config.grouped_gemm == "off":
        yield "recompute_modules with 'moe_act' needs grouped experts. Use grouped_gemm 'auto'."
    yield from _offload(config, shape)


def _offload(config: RunConfig, shape: ModelShape) -> Iterator[str]:
    layers = config.offload_layers
    if layers == 0:
        return
    needs = {
        "recompute='pointwise'": config.recompute == "pointwise",
        "no pipeline stages": config.pipeline_parallel_size == 1,
        "a gated MLP without experts": shape.gated_mlp and shape.moe is None,
        f"as many layers ({shape.name} has {shape.num_layers})": layers <= shape.num_layers,
    }
    missing = [need for need, met in needs.items() if not met]
    if missing:
        yield f"offload_layers={layers} needs {' and '.join(missing)}. Use offload_layers=0."
