"""Speed-up, efficiency and projection of one series of runs that differ only in size.

A series holds runs of one configuration at several world sizes (repeats allowed). ``table``
says how each did against a named base; ``project`` says what a larger size would do, with an
interval, or why it does not say. Nothing here assumes that scaling is linear.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scalebook.errors import ClaimError
from scalebook.measure.scaling.law import FittedLaw, ScalingKind, fit_law

Base = Literal["smallest", "node"]

LARGEST_RATE = 1e20  # tokens/s; quotients of such stay finite
DEFAULT_LIMIT_FACTOR = 4.0  # how far past the largest measured size a projection may go


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """One measured run. ``global_batch_size`` in samples per optimizer step; None if unknown."""

    world_size: int
    tokens_per_second: float  # of all ranks together
    nodes: int = 1
    global_batch_size: int | None = None
    label: str = ""  # a run id or a name, shown with the row

    def __post_init__(self) -> None:
        if self.world_size < 1 or not 1 <= self.nodes <= self.world_size:
            raise ClaimError(
                f"world_size={self.world_size} on nodes={self.nodes} is not a valid size. "
                "Both must be at least 1, and a node has at least one GPU."
            )
        if not 1 / LARGEST_RATE <= self.tokens_per_second <= LARGEST_RATE:
            raise ClaimError(
                f"tokens_per_second={self.tokens_per_second} at world_size={self.world_size} "
                "is not a valid rate. Give a number above 0, or leave the run out."
            )
        if self.global_batch_size is not None and self.global_batch_size < 1:
            raise ClaimError(f"global_batch_size={self.global_batch_size} must be at least 1.")

    @property
    def tokens_per_second_per_gpu(self) -> float:
        return self.tokens_per_second / self.world_size


@dataclass(frozen=True, slots=True)
class ScalingRow:
    """One point against the base: ``speedup`` is a ratio, ``scaling_efficiency`` a fraction."""

    point: ScalingPoint
    speedup: float  # tokens/s over the base's tokens/s
    ideal_speedup: float  # world size over the base's world size
    scaling_efficiency: float  # speedup / ideal_speedup
    is_base: bool


@dataclass(frozen=True, slots=True)
class ScalingTable:
    """Rows by world size, the base in words, and which kind of scaling the batches show."""

    rows: tuple[ScalingRow, ...]
    base_world_size: int
    base_tokens_per_second: float
    base_text: str  # for people: "1 GPU on 1 node at 34,086 tokens/s"
    kind: ScalingKind | None  # "weak", "strong" or None
    kind_reason: str  # why that kind, or why none can be told


@dataclass(frozen=True, slots=True)
class Projection:
    """What a size would reach, in tokens per second with a 95 % interval, or why nobody can say.

    ``interpolated`` is true inside the measured range. When ``reason`` is not None every number
    but ``world_size`` is None.
    """

    world_size: int
    limit_world_size: int  # the largest size that this series lets one project to
    tokens_per_second: float | None = None
    low: float | None = None
    high: float | None = None  # None with a value: the data do not bound it from above
    scaling_efficiency: float | None = None  # against the table's base
    interpolated: bool = False
    law: FittedLaw | None = None
    reason: str | None = None


def _base_points(points: Sequence[ScalingPoint], base: Base) -> list[ScalingPoint]:
    """Return the repeats that the others are compared with."""
    if base == "smallest":
        size = min(point.world_size for point in points)
        return [point for point in points if point.world_size == size]
    on_one_node = [point for point in points if point.nodes == 1]
    if not on_one_node:
        raise ClaimError("No run on one node: use the smallest run as the base.")
    size = max(point.world_size for point in on_one_node)
    return [point for point in on_one_node if point.world_size == size]


def scaling_kind(points: Sequence[ScalingPoint]) -> tuple[ScalingKind | None, str]:
    """Return weak or strong, decided by the global batches, and why; None where neither fits."""
    if len({point.world_size for point in points}) < 2:
        return None, "one world size only"
    batches = [point.global_batch_size for point in points if point.global_batch_size is not None]
    if len(batches) < len(points):
        return None, "the global batch size of a run is unknown"
    if len(set(batches)) == 1:
        return "strong", f"every run has a global batch of {batches[0]}"
    sizes = [point.world_size for point in points]
    # cross products, so that batch per GPU is compared exactly
    if all(b * sizes[0] == batches[0] * n for b, n in zip(batches, sizes, strict=True)):
        per_gpu = batches[0] / sizes[0]
        return "weak", f"every run has {per_gpu:g} samples per GPU and step"
    return None, "neither the global batch nor the batch per GPU is the same in all runs"


def table(points: Sequence[ScalingPoint], base: Base = "smallest") -> ScalingTable:
    """Return every point against the base (the smallest run, or the largest on one node).

    Repeats at the base's size are pooled as all tokens over all time. Raises ClaimError when
    there are no points, or none on one node where that base is asked for.
    """
    if not points:
        raise ClaimError("No runs to scale. Give at least one measured run.")
    chosen = _base_points(points, base)
    first, rate = chosen[0], len(chosen) / sum(1 / one.tokens_per_second for one in chosen)
    kind, reason = scaling_kind(points)
    rows = tuple(
        ScalingRow(
            point=point,
            speedup=point.tokens_per_second / rate,
            ideal_speedup=point.world_size / first.world_size,
            scaling_efficiency=point.tokens_per_second_per_gpu / (rate / first.world_size),
            is_base=point in chosen,
        )
        for point in sorted(points, key=lambda point: (point.world_size, point.nodes))
    )
    return ScalingTable(
        rows, first.world_size, rate, _base_text(first, rate, len(chosen)), kind, reason
    )


def _base_text(first: ScalingPoint, rate: float, repeats: int) -> str:
    gpus = "GPU" if first.world_size == 1 else "GPUs"
    nodes = "node" if first.nodes == 1 else "nodes"
    text = f"{first.world_size} {gpus} on {first.nodes} {nodes} at {rate:,.0f} tokens/s"
    return text if repeats == 1 else f"{text} ({repeats} runs pooled)"


def project(
    points: Sequence[ScalingPoint],
    world_size: int,
    *,
    limit_factor: float = DEFAULT_LIMIT_FACTOR,
    kind: ScalingKind | None = None,
    gpus_per_node: int | None = None,
) -> Projection:
    """Return tokens per second at ``world_size``, or a projection whose ``reason`` says why not.

    ``kind`` overrides what the batches show; ``gpus_per_node`` lets runs inside one node be
    projected up to the whole node. A projection past ``limit_factor`` times the largest
    measured size is refused, and so is one across nodes from runs on a single node, because
    such runs hold nothing about the network.
    """
    if world_size < 1:
        raise ClaimError(f"world_size={world_size} must be at least 1.")
    if not (math.isfinite(limit_factor) and limit_factor >= 1):
        raise ClaimError(f"limit_factor={limit_factor} must be a number of at least 1.")
    series = table(points)
    limit = _limit(points, limit_factor, gpus_per_node)
    reason = _refusal(points, world_size, limit, limit_factor)
    chosen = kind or series.kind
    if reason is None and chosen is None:
        reason = f"It is unknown whether this is weak or strong scaling: {series.kind_reason}."
    if reason is not None or chosen is None:
        return Projection(world_size, limit, reason=reason)
    law = fit_law([(p.world_size, p.tokens_per_second) for p in points], chosen)
    if isinstance(law, str):
        return Projection(world_size, limit, reason=law)
    value, low, high = law.predict(world_size)
    per_gpu_at_base = series.base_tokens_per_second / series.base_world_size
    return Projection(
        world_size=world_size,
        limit_world_size=limit,
        tokens_per_second=value,
        low=low,
        high=high,
        scaling_efficiency=value / world_size / per_gpu_at_base,
        interpolated=min(law.world_sizes) <= world_size <= max(law.world_sizes),
        law=law,
    )


def _limit(points: Sequence[ScalingPoint], factor: float, gpus_per_node: int | None) -> int:
    """Return the largest world size that the measured range lets one project to."""
    largest = max(point.world_size for point in points)
    if all(point.nodes == 1 for point in points):
        return min(int(largest * factor), max(gpus_per_node or largest, largest))
    return int(largest * factor)


def _refusal(
    points: Sequence[ScalingPoint], world_size: int, limit: int, factor: float
) -> str | None:
    """Return why no projection to this size is made; None if it may be."""
    sizes = [point.world_size for point in points]
    if world_size < min(sizes):
        return f"{world_size} GPUs are fewer than the smallest measured run ({min(sizes)})."
    if world_size <= limit:
        return None
    if world_size <= max(sizes) * factor:
        return (
            f"Every run was on one node of at most {max(sizes)} GPUs, which says nothing about "
            f"the network that {world_size} GPUs may need. Measure two nodes, or give the GPUs "
            "of a node."
        )
    return (
        f"{world_size} GPUs are {world_size / max(sizes):.3g} times the largest measured run "
        f"({max(sizes)}); the limit is {factor:g} times, {limit} GPUs. Measure a larger run."
    )
