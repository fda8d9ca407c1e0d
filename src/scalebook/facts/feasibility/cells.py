"""The values of a feasibility map: where a configuration stands in it, and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scalebook.config import RunConfig

Verdict = Literal["fits", "out_of_memory"]
# measured, or the source of a run that was not measured here; inferred from another cell by
# ``order``; predicted by scalebook.facts.memory alone.
Evidence = Literal["measured", "ingested", "simulated", "published", "inferred", "predicted"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One configuration of the map.

    ``verdict`` is None where prediction and device are too close to tell, or nothing is known of
    the device's memory. GiB are of the fullest rank.
    """

    model: str
    platform: str
    accelerator: str | None  # as the driver said; None where no run tells
    engine: str
    world_size: int
    sequence_length: int
    global_batch_size: int
    precision: str
    data_parallel_sharding: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    virtual_pipeline_parallel_size: int
    context_parallel_size: int
    expert_parallel_size: int
    sequence_parallel: bool
    micro_batch_size: int
    recompute: str
    verdict: Verdict | None
    evidence: Evidence
    reason: str
    run_ids: tuple[str, ...]  # the runs that show it, or that it is inferred from
    peak_memory_gib: float | None
    predicted_gib: float | None
    capacity_gib: float | None


# What the runs of one map have in common; the rest is inside it.
SCOPE = (
    *("model", "platform", "accelerator", "engine", "world_size", "sequence_length", "precision"),
    *("data_parallel_sharding", "context_parallel_size", "expert_parallel_size"),
)
SETTINGS = tuple(name for name in Cell.__dataclass_fields__ if name in RunConfig.model_fields)


def scope_of(cell: Cell) -> tuple[object, ...]:
    """Return the key of the map that a cell belongs to."""
    return tuple(getattr(cell, name) for name in SCOPE)
