"""What each speed switch of a RunConfig comes to on this machine: the one place that decides.

``auto`` is on where the machine and the configuration can; ``on`` where they cannot is an error
that says why. Nothing here names a vendor: what the device's torch can do is asked of it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch

from scalebook.config import RunConfig
from scalebook.errors import ConfigError
from scalebook.facts.catalog.types import ModelShape
from scalebook.facts.flops import graph_by_default
from scalebook.parallelism import experts_need_no_host
from scalebook.train import mcore
from scalebook.train.experts import grouped
from scalebook.train.layers import async_tensor_parallel, fused
from scalebook.train.world import World

# What parameters are computed in: FP8 is a format of the matrix products only.
DTYPES = {"bf16": torch.bfloat16, "fp8": torch.bfloat16, "fp32": torch.float32}

NO_GPU = "it is made for GPUs"
NO_COMPILER = "torch.compile finds no C compiler (cc, gcc or clang)"


@dataclass(frozen=True, slots=True)
class Switches:
    """Each speed switch, decided: the names are those of RunConfig."""

    transformer_engine: bool
    fused_attention: bool
    fused_norm: bool
    fused_rope: bool
    fused_activation: bool
    fused_cross_entropy: bool
    fused_weight_gradient: bool
    fused_optimizer: bool
    grouped_gemm: bool
    overlap_grad_reduce: bool
    overlap_param_gather: bool
    overlap_tensor_parallel: bool
    cuda_graph: bool

    def observed(self) -> dict[str, str]:
        """Return RunConfig's names with what is in force, as in observed.json."""
        values = asdict(self)
        spec = "transformer_engine" if values.pop("transformer_engine") else "torch"
        return {"layer_spec": spec} | {name: "on" if on else "off" for name, on in values.items()}


def _decide(config: RunConfig, name: str, obstacle: str | None, *, default: bool = True) -> bool:
    """Return whether a switch is on; ``obstacle`` says why it cannot be, None where it can."""
    value = getattr(config, name)
    if value == "on" and obstacle is not None:
        raise ConfigError(f"{name}='on' is not possible here: {obstacle}. Use 'auto' or 'off'.")
    return value == "on" or (value == "auto" and default and obstacle is None)


def _transformer_engine(config: RunConfig, world: World) -> bool:
    found = world.on_gpu and mcore.transformer_engine_version() is not None
    if config.layer_spec == "transformer_engine" and not found:
        raise ConfigError(
            "layer_spec='transformer_engine' needs a GPU and the package transformer_engine. "
            "Use 'auto' or 'torch'."
        )
    if config.precision == "fp8" and (config.layer_spec == "torch" or not found):
        raise ConfigError(
            "precision='fp8' needs Transformer Engine on a GPU. Install it, or use bf16."
        )
    # Its linear layers save their input themselves, which pointwise recomputation frees.
    return found and config.layer_spec != "torch" and config.recompute != "pointwise"


def _compiled(world: World) -> str | None:
    if not world.on_gpu:
        return NO_GPU
    return None if fused.can_compile() else NO_COMPILER


def _weight_gradient(config: RunConfig, world: World, te: bool) -> str | None:
    if config.data_parallel_sharding == "full":
        return "FSDP has no main gradient that outlasts a micro batch"
    one_type = DTYPES[config.precision] == DTYPES[config.gradient_precision]
    if not (te or one_type or fused.can_accumulate(world.device)):
        return "this device's GEMM cannot add bf16 products to an fp32 sum"
    return None


def _is_usual(shape: ModelShape) -> bool:
    return shape.activation == ("silu" if shape.gated_mlp else "gelu")


def _activation(shape: ModelShape, ours: bool) -> str | None:
    """Say why this model's activation cannot be fused; ``ours``: grouped experts do it."""
    if shape.activation == "gelu" and not (shape.gated_mlp or shape.mlp_bias):
        return "the fused GELU of Megatron-Core wants a bias"
    if shape.moe is not None and shape.mlp_bias and not ours:
        return "Megatron-Core's fused SwiGLU of experts takes no bias"
    fused_geglu = shape.activation == "gelu" and shape.moe is None
    if not (_is_usual(shape) or fused_geglu):
        return f"Megatron-Core has no fused kernel for the activation of {shape.name}"
    return None


def _grouped(config: RunConfig, shape: ModelShape, world: World, te: bool) -> str | None:
    if shape.moe is None:
        return "the model has no experts"
    if te:
        return None
    if not _is_usual(shape):
        return f"grouped experts take SwiGLU or GELU, and {shape.name} has another activation"
    if not grouped.can_group(world.device, DTYPES[config.precision]):
        return f"torch {torch.__version__} has no grouped product for this device that is right"
    return None


def _param_gather(config: RunConfig) -> str | None:
    if config.data_parallel_sharding != "optimizer":
        return "only data_parallel_sharding='optimizer' gathers parameters after a step"
    if config.pipeline_parallel_size > 1:
        return "with pipeline stages the gathers would have to be aligned among them"
    return None


def _counts_stay(config: RunConfig, shape: ModelShape) -> bool:
    """Return whether no expert's number of tokens leaves the device, in a model with experts."""
    return experts_need_no_host(
        shape.num_experts, config.expert_parallel_size, config.expert_tensor_parallel_size
    )


def _graph(
    config: RunConfig, shape: ModelShape, world: World, *, grouped_by_torch: bool
) -> str | None:
    """Say why a micro batch cannot be captured; None where it can."""
    experts = shape.moe
    obstacles = {
        NO_GPU: not world.on_gpu,
        "without fused_weight_gradient the embedding's gradient asks the device for a size": (
            config.fused_weight_gradient == "off"
        ),
        "transfers are under way where a chunk would be captured": (
            config.virtual_pipeline_parallel_size > 1
        ),
        "stages cast their weights to FP8 in each pass": (
            config.pipeline_parallel_size > 1 and config.precision == "fp8"
        ),
        "the host needs to know how many tokens an expert gets": experts is not None
        and not (grouped_by_torch and _counts_stay(config, shape)),
        "the router's bias follows the load of the experts": (
            experts is not None and experts.router_bias and not shape.mlp_bias
        ),
        "FSDP frees and gathers parameters": config.data_parallel_sharding == "full",
        "the host asks whether FP8 primary weights were transposed": config.fp8_primary_weights,
        "copies to host memory are not captured": config.offload_layers > 0,
        "multi-token prediction is not captured": config.mtp_layers > 0,
        "a step has 1 micro batch, and the last is never shared": config.num_microbatches < 2,
    }
    return next((why for why, stands in obstacles.items() if stands), None)


def resolve(config: RunConfig, shape: ModelShape, world: World) -> Switches:
    """Return what is on, decided for this machine and configuration.

    Raises:
        ConfigError: a switch is asked to be on where it cannot be.
    """
    te = _transformer_engine(config, world)
    if shape.mla is not None and config.fused_attention == "off" and not te:
        raise ConfigError(
            "fused_attention='off' is not possible with multi-latent attention: Megatron-Core's "
            "own takes only queries and values of the same width. Use 'auto'."
        )
    compiled = _compiled(world)

    def decide(name: str, obstacle: str | None, *, default: bool = True) -> bool:
        return _decide(config, name, obstacle, default=default)

    # On a CPU the grouped product is computed expert after expert anyway.
    products = decide("grouped_gemm", _grouped(config, shape, world, te), default=world.on_gpu)
    ours = products and not te
    obstacle = _graph(config, shape, world, grouped_by_torch=ours)
    graphed = decide("cuda_graph", obstacle, default=graph_by_default(config, shape))
    return Switches(
        transformer_engine=te,
        fused_attention=decide("fused_attention", None),
        fused_norm=decide("fused_norm", None if te else compiled),
        fused_rope=decide("fused_rope", None if te else compiled),
        fused_activation=decide("fused_activation", _activation(shape, ours) or compiled),
        fused_cross_entropy=decide("fused_cross_entropy", compiled),
        fused_weight_gradient=decide(
            "fused_weight_gradient", _weight_gradient(config, world, te), default=world.on_gpu
        ),
        fused_optimizer=decide("fused_optimizer", None if world.on_gpu else NO_GPU),
        grouped_gemm=products,
        # On a CPU the collectives take the cores that compute: possible, but no gain.
        overlap_grad_reduce=decide("overlap_grad_reduce", None, default=world.on_gpu),
        overlap_param_gather=decide(
            "overlap_param_gather", _param_gather(config), default=world.on_gpu
        ),
        # Launched one by one, the pieces take the host longer than the device.
        overlap_tensor_parallel=decide(
            "overlap_tensor_parallel",
            async_tensor_parallel.obstacle(config, world, te),
            default=graphed,
        ),
        cuda_graph=graphed,
    )
