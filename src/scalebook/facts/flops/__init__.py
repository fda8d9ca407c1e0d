"""FLOPs per trained token, with and without recomputation, and their conversion.

``conventions`` holds the formulas, ``parameters`` the parameter counts; both are offered from here.

Worked example, Llama 3.1 8B at 2,048 tokens (h = 4,096, MLP 14,336, 8 of 32 heads for keys and
values, so 1,024 wide, 32 layers, vocabulary 128,256), in the default convention:

    weights of a layer  2 h^2 + 2 h 1,024 + 3 h 14,336      =   218,103,808
    weights in products 32 x 218,103,808 + h 128,256        = 7,504,658,432
    forward, backward   6 x 7,504,658,432                   = 45.03 GFLOP per token
    causal attention    6 x 32 layers x 2,048 x 4,096       =  1.61 GFLOP per token
    flops_per_token(catalog.model("llama3.1-8b"), 2048)     = 46.64 GFLOP per token

At 4,096 tokens/s per GPU that is 191 TFLOP/s, 19.3 % of the 989.4 TFLOP/s of an H100 in bf16.
Recomputation is left out here and counted by ``hardware_flops_per_token``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scalebook.errors import ConfigError, unknown
from scalebook.facts import catalog
from scalebook.facts.catalog.results import number_width
from scalebook.facts.catalog.types import ModelShape
from scalebook.facts.flops.conventions import (
    CONVENTIONS,
    DEFAULT_CONVENTION,
    RECOMPUTED,
    TRAINED,
    FlopParts,
    attention_width,
    flop_parts,
    module_elements,
)
from scalebook.facts.flops.parameters import (
    attention_projections,
    layer_parameters,
    parameter_count,
)
from scalebook.parallelism import RECOMPUTE, experts_need_no_host
from scalebook.settings import RECOMPUTE_MODULES

if TYPE_CHECKING:
    from scalebook.config import RunConfig
    from scalebook.facts.catalog.results import PublishedResult

__all__ = [
    "CONVENTIONS", "DEFAULT_CONVENTION", "RECOMPUTED", "TRAINED", "AgainstBest", "ConventionFit",
    "FlopParts", "against_best", "attention_projections", "attention_width", "convention_fits",
    "convert_tflops", "flop_parts", "flops_per_token", "hardware_flops_per_token",
    "headline_convention", "layer_parameters", "model_tflops", "overstated_at_most",
    "packed_sequence_length", "padded_vocab_size", "parameter_count", "published_rate",
    "published_tflops",
]  # fmt: skip


def padded_vocab_size(vocab_size: int, tensor_parallel_size: int = 1) -> int:
    """Return the rows of Megatron's embedding: a multiple of 128 x tp."""
    multiple = 128 * tensor_parallel_size
    return -(-vocab_size // multiple) * multiple


def packed_sequence_length(lengths: Iterable[float]) -> float:
    """Return the sequence length whose attention costs what these packed documents cost.

    Attention inside documents alone takes sum(L^2) pairs for sum(L) tokens.
    """
    values = tuple(lengths)
    if not values or any(not math.isfinite(value) or value <= 0 for value in values):
        raise ConfigError("Packed lengths must be numbers above zero, at least one of them.")
    return sum(value * value for value in values) / sum(values)


def overstated_at_most(shape: ModelShape, sequence_length: float, *, mtp_layers: int = 0) -> float:
    """Return by which fraction packing can at most overstate the FLOPs of whole samples.

    Documents of a few tokens have next to no attention, which whole samples are counted with.
    """
    name = headline_convention(shape)
    whole, least = (
        flops_per_token(shape, length, name, mtp_layers=mtp_layers)
        for length in (sequence_length, 1.0)
    )
    return whole / least - 1


def flops_per_token(
    shape: ModelShape,
    sequence_length: float,
    convention: str = DEFAULT_CONVENTION,
    *,
    mtp_layers: int = 0,
    vocab_size: int | None = None,
    trained: str = "all",
) -> float:
    """Return model FLOPs per trained token, forward and backward, without recomputation.

    See ``flop_parts`` for the arguments; only ``narayanan_2021`` and ``narayanan_printed`` include
    recomputation. ``trained`` says which weights have gradients (``TRAINED``).
    """
    found = flop_parts(
        shape, sequence_length, convention, mtp_layers=mtp_layers, vocab_size=vocab_size
    )
    return float(found.due(trained).total)


def graph_by_default(config: RunConfig, shape: ModelShape) -> bool:
    """Return whether a CUDA graph is the default: the host launches no faster than a GPU runs.

    Replayed, Llama 3.2 3B and 1B were 4.7 and 2.4 % faster at 2.8 and 3.8 TFLOP per layer and micro
    batch, and Llama 3.1 8B at 5.6 as fast. Stages are replayed only where no other ranks take part.
    """
    if config.precision == "fp8" or config.pipeline_parallel_size not in (1, config.world_size):
        return False
    if config.tensor_parallel_size > 1 or shape.moe is not None:
        sizes = config.expert_parallel_size, config.expert_tensor_parallel_size
        return config.tensor_parallel_size > 1 or experts_need_no_host(shape.num_experts, *sizes)
    layers = flops_per_token(shape, config.sequence_length, "megatron_causal", vocab_size=1)
    tokens = config.micro_batch_size * config.sequence_length
    return config.context_parallel_size == 1 and layers / shape.num_layers * tokens < 4.5e12


def hardware_flops_per_token(
    shape: ModelShape,
    sequence_length: float,
    recompute: str = "none",
    convention: str = DEFAULT_CONVENTION,
    *,
    recompute_num_layers: int | None = None,
    recompute_modules: Sequence[str] = ("core_attn",),
    mtp_layers: int = 0,
    vocab_size: int | None = None,
    trained: str = "all",
) -> float:
    """Return FLOPs per trained token that the hardware executes, recomputed ones included.

    ``pointwise`` recomputes no matrix product, so it adds nothing here; ``selective`` runs the
    forward of ``recompute_modules`` twice, by default of the attention core (Korthikanti 2022,
    arXiv 2205.05198); ``full`` the forward of every layer, or of ``recompute_num_layers`` of them
    (taken as mean layers). The output layer is never recomputed, multi-token prediction is left
    out. The recomputation that Narayanan's conventions have in their model FLOPs is taken out
    first.
    """
    if recompute not in RECOMPUTE:
        raise ConfigError(unknown("recompute mode", recompute, RECOMPUTE))
    for module in recompute_modules:
        if module not in RECOMPUTE_MODULES:
            raise ConfigError(unknown("recomputed module", module, RECOMPUTE_MODULES))
    found = flop_parts(
        shape, sequence_length, convention, mtp_layers=mtp_layers, vocab_size=vocab_size
    )
    if convention in RECOMPUTED:
        once = (found.layers * 3 / 4, found.attention_core * 3 / 4)
        found = FlopParts(*once, found.logits, found.mtp)
    due = found.due(trained).total
    if recompute in ("none", "pointwise") or trained == "forward":
        return float(due)
    if recompute == "selective":
        core = found.attention_core / 3 if "core_attn" in recompute_modules else 0.0
        return due + core + 2 * sum(module_elements(shape, each) for each in set(recompute_modules))
    layers = shape.num_layers if recompute_num_layers is None else recompute_num_layers
    if not 0 <= layers <= shape.num_layers:
        raise ConfigError(
            f"recompute_num_layers={layers} must be between 0 and {shape.num_layers}."
        )
    forward = (found.layers + found.attention_core) / 3
    return due + forward * layers / shape.num_layers


def headline_convention(shape: ModelShape) -> str:
    """Return the convention of a model's MFU, which counts only the pairs inside its windows."""
    chunked = shape.hybrid is not None and shape.hybrid.attention_chunk > 0
    return "sliding_window" if shape.sliding_window or chunked else DEFAULT_CONVENTION


def model_tflops(
    tokens_per_second: float,
    shape: ModelShape,
    sequence_length: float,
    convention: str = DEFAULT_CONVENTION,
    *,
    mtp_layers: int = 0,
) -> float:
    """Return the model TFLOP/s of a token rate (both of one GPU, or both of all)."""
    per_token = flops_per_token(shape, sequence_length, convention, mtp_layers=mtp_layers)
    return tokens_per_second * per_token / 1e12


def convert_tflops(
    tflops: float,
    shape: ModelShape,
    sequence_length: float,
    source: str,
    target: str = DEFAULT_CONVENTION,
    *,
    mtp_layers: int = 0,
) -> float:
    """Return what TFLOP/s counted by the ``source`` convention are by the ``target`` one."""
    counted, wanted = (
        flops_per_token(shape, sequence_length, name, mtp_layers=mtp_layers)
        for name in (source, target)
    )
    return tflops / counted * wanted


@dataclass(frozen=True, slots=True)
class ConventionFit:
    """How well a convention explains a published (tokens/s, TFLOP/s) pair."""

    convention: str
    flops_per_token: float
    relative_difference: float  # published over counted, minus 1
    within: bool  # the tolerance


def convention_fits(
    tokens_per_second: float,
    tflops: float,
    shape: ModelShape,
    sequence_length: float,
    *,
    mtp_layers: int = 0,
    tolerance: float = 0.0,
) -> tuple[ConventionFit, ...]:
    """Return every convention against a published pair of one GPU, the likeliest first.

    Conventions within ``tolerance`` (a fraction: what the printed digits leave open) cannot be
    distinguished: they come first, in the order of ``CONVENTIONS``; then the others by distance.
    """
    if not (tokens_per_second > 0 and tflops > 0):
        raise ConfigError("Tokens per second and TFLOP/s must be above zero.")
    implied = tflops * 1e12 / tokens_per_second
    fits: list[ConventionFit] = []
    for name in CONVENTIONS:
        counted = flops_per_token(shape, sequence_length, name, mtp_layers=mtp_layers)
        off = implied / counted - 1
        fits.append(ConventionFit(name, counted, off, abs(off) <= tolerance))
    # a stable sort: those within the tolerance are all at distance 0
    return tuple(sorted(fits, key=lambda fit: max(0, abs(fit.relative_difference) - tolerance)))


def published_rate(row: PublishedResult) -> tuple[float | None, str]:
    """Return tokens/s per GPU of a published result; from what they follow, or why there are none.

    The words are empty where the source states this very rate.
    """
    if row.task != "pretrain":
        return None, f"{row.task}, not pretraining"
    if row.model is None:
        return None, "the catalog lacks the model's shape"
    if row.tokens_per_second_per_gpu is not None:
        return row.tokens_per_second_per_gpu, ""
    if row.tokens_per_second is not None and row.world_size:
        return row.tokens_per_second / row.world_size, "rate: of all GPUs over their number"
    claimed, convention = row.claimed_tflops_per_second_per_gpu, row.flops_convention
    if claimed is None or convention is None or row.sequence_length is None:
        return None, "neither tokens per second nor TFLOP/s of a known convention are stated"
    shape, modules = catalog.model(row.model), row.mtp_layers
    per_token = flops_per_token(shape, row.sequence_length, convention, mtp_layers=modules)
    return 1e12 * claimed / per_token, f"rate: from TFLOP/s by {convention}"


def published_tflops(row: PublishedResult) -> tuple[float | None, str]:
    """Return model TFLOP/s per GPU of a published result by the default convention, as its rate."""
    rate, how = published_rate(row)
    if rate is None or row.model is None or row.sequence_length is None:
        return None, how if rate is None else "no sequence length is stated"
    shape, length = catalog.model(row.model), row.sequence_length
    return model_tflops(
        rate, shape, length, mtp_layers=row.mtp_layers
    ), how or "counted from tokens"


@dataclass(frozen=True, slots=True)
class AgainstBest:
    """A rate (TFLOP/s per GPU, default convention) and the best published one of its kind."""

    tflops: float
    best_tflops: float
    best: PublishedResult

    @property
    def where(self) -> str:
        """The conditions and the source of the best one."""
        best, gpus = self.best, self.best.world_size or "unknown"
        sure = "" if best.confidence == "high" else f"; {best.confidence} confidence"
        sizes = f"sequence {best.sequence_length:,}, {gpus} GPUs"
        return f"{best.precision}, {sizes}; {best.source} (row {best.id}){sure}"


def against_best(tflops: float, model: str, device: str, precision: str) -> AgainstBest | None:
    """Return a rate next to the best published one: same model, device and width of the numbers.

    Other lengths, batches and numbers of GPUs are not corrected. None where nobody published one.
    """
    kind = (model, device, number_width(precision))
    alike = (
        (value, row)
        for row in catalog.published()
        if (row.model, row.accelerator, number_width(row.precision)) == kind
        if (value := published_tflops(row)[0]) is not None
    )
    best = max(alike, key=lambda one: one[0], default=None)
    return best and AgainstBest(tflops, *best)
