"""FLOPs per trained token, with and without recomputation, and their conversion.

``flops_conventions`` holds the formulas, ``flops_parameters`` the parameter counts; both are
offered from here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from scalebook.catalog.types import ModelShape
from scalebook.errors import ConfigError, unknown
from scalebook.flops.conventions import (
    CONVENTIONS,
    DEFAULT_CONVENTION,
    FlopParts,
    attention_width,
    flop_parts,
)
from scalebook.flops.parameters import (
    LayerParameters,
    ParameterCount,
    attention_projections,
    dense_layers,
    layer_parameters,
    parameter_count,
)

__all__ = [
    "CONVENTIONS",
    "DEFAULT_CONVENTION",
    "RECOMPUTE",
    "ConventionFit",
    "FlopParts",
    "LayerParameters",
    "ParameterCount",
    "attention_projections",
    "attention_width",
    "convention_fits",
    "convert_tflops",
    "dense_layers",
    "flop_parts",
    "flops_per_token",
    "hardware_flops_per_token",
    "layer_parameters",
    "model_tflops",
    "packed_sequence_length",
    "padded_vocab_size",
    "parameter_count",
]

RECOMPUTE = ("none", "pointwise", "selective", "full")


def padded_vocab_size(
    vocab_size: int, tensor_parallel_size: int = 1, divisible_by: int = 128
) -> int:
    """Return the rows of Megatron's embedding: a multiple of ``divisible_by`` x tp."""
    multiple = divisible_by * tensor_parallel_size
    return -(-vocab_size // multiple) * multiple


def packed_sequence_length(lengths: Iterable[float]) -> float:
    """Return the sequence length whose attention costs what these packed documents cost.

    Attention inside documents alone takes sum(L^2) pairs for sum(L) tokens.
    """
    values = tuple(lengths)
    if not values or any(not math.isfinite(value) or value <= 0 for value in values):
        raise ConfigError("Packed lengths must be numbers above zero, at least one of them.")
    return sum(value * value for value in values) / sum(values)


def flops_per_token(
    shape: ModelShape,
    sequence_length: float,
    convention: str = DEFAULT_CONVENTION,
    *,
    mtp_layers: int = 0,
    vocab_size: int | None = None,
) -> float:
    """Return model FLOPs per trained token, forward and backward, without recomputation.

    See ``flop_parts`` for the arguments; ``narayanan_2021`` alone includes recomputation.
    """
    found = flop_parts(
        shape, sequence_length, convention, mtp_layers=mtp_layers, vocab_size=vocab_size
    )
    return float(found.total)


def hardware_flops_per_token(
    shape: ModelShape,
    sequence_length: float,
    recompute: str = "none",
    convention: str = DEFAULT_CONVENTION,
    *,
    recompute_num_layers: int | None = None,
    mtp_layers: int = 0,
    vocab_size: int | None = None,
) -> float:
    """Return FLOPs per trained token that the hardware executes, recomputed ones included.

    ``pointwise`` recomputes no matrix product, so it adds nothing here;
    ``selective`` runs the attention core's forward twice (Korthikanti 2022, arXiv 2205.05198);
    ``full`` the forward of every layer, or of ``recompute_num_layers`` of them (taken as mean
    layers). The output layer is never recomputed. ``narayanan_2021`` has recomputation in its
    model FLOPs: here it counts as ``full_attention`` with the mode that is asked for.
    """
    if recompute not in RECOMPUTE:
        raise ConfigError(unknown("recompute mode", recompute, RECOMPUTE))
    counted = "full_attention" if convention == "narayanan_2021" else convention
    found = flop_parts(
        shape, sequence_length, counted, mtp_layers=mtp_layers, vocab_size=vocab_size
    )
    if recompute in ("none", "pointwise"):
        return float(found.total)
    if recompute == "selective":
        return found.total + found.attention_core / 3
    layers = shape.num_layers if recompute_num_layers is None else recompute_num_layers
    if not 0 <= layers <= shape.num_layers:
        raise ConfigError(
            f"recompute_num_layers={layers} must be between 0 and {shape.num_layers}."
        )
    forward = (found.layers + found.attention_core) / 3
    return found.total + forward * layers / shape.num_layers


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


def convention_fits(
    tokens_per_second: float,
    tflops: float,
    shape: ModelShape,
    sequence_length: float,
    *,
    mtp_layers: int = 0,
) -> tuple[ConventionFit, ...]:
    """Return every convention against a published pair of one GPU, the best fit first."""
    if not (tokens_per_second > 0 and tflops > 0):
        raise ConfigError("Tokens per second and TFLOP/s must be above zero.")
    implied = tflops * 1e12 / tokens_per_second
    fits: list[ConventionFit] = []
    for name in CONVENTIONS:
        counted = flops_per_token(shape, sequence_length, name, mtp_layers=mtp_layers)
        fits.append(ConventionFit(name, counted, implied / counted - 1))
    return tuple(sorted(fits, key=lambda fit: abs(fit.relative_difference)))
