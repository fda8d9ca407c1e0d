"""How a step divides into its parts, as shares of its time: by its profile, else by its marks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from scalebook.measure.anatomy import Breakdown
from scalebook.record import StepRecord

# Megatron-Core's waits between stages, as a profile names their kernels.
BETWEEN_STAGES = "send_receive"


@dataclass(frozen=True, slots=True)
class Split:
    """Shares of a step's time, 0 to 1; None where its source does not say.

    ``profile`` is of one rank and divides the step whole. ``marks`` are means over ranks from time
    marks in the device's stream: forward and backward then hold what their collectives and the
    host's gaps took.
    """

    source: Literal["profile", "marks"]
    compute: float | None  # forward and backward
    optimizer: float | None
    communication: float | None  # exposed, of all kinds but that between stages
    between_stages: float | None  # exposed
    data: float | None
    idle: float | None
    launch_gaps: float | None  # of the idle time
    largest_collective: str | None = None
    collective_seconds: float | None = None  # of one step, exposed or not
    kernels_per_step: float | None = None
    kernel_seconds: float | None = None
    attention: float | None = None  # kernels of the profile, which may overlap with others
    elementwise: float | None = None  # with norms and copies


def split_of(breakdown: Breakdown | None, steps: Sequence[StepRecord]) -> Split | None:
    """Return how the steps divide, None where there is neither a profile nor marks."""
    profiled = _profile(breakdown) if breakdown is not None else None
    return profiled or _marks(steps)


def _profile(told: Breakdown) -> Split | None:
    whole, parts = told.step_seconds, told.parts
    values = (
        parts.forward_seconds, parts.backward_seconds, parts.optimizer_seconds,
        parts.exposed_communication_seconds, parts.data_seconds, parts.idle_seconds,
    )  # fmt: skip
    if not whole or whole <= 0 or any(value is None or value < 0 for value in values):
        return None
    forward, backward, optimizer, exposed, data, idle = (value or 0.0 for value in values)
    named = {name: time for name, time in told.exposed_by_collective.items() if time > 0}
    between = min(named.pop(BETWEEN_STAGES, 0.0), exposed)
    gaps = told.launch_gap_seconds
    return Split(
        source="profile",
        compute=(forward + backward) / whole,
        optimizer=optimizer / whole,
        communication=(exposed - between) / whole,
        between_stages=between / whole,
        data=data / whole,
        idle=idle / whole,
        launch_gaps=None if gaps is None else min(gaps, idle) / whole,
        largest_collective=max(named, key=lambda name: named[name]) if named else None,
        collective_seconds=told.communication_seconds,
        kernels_per_step=told.kernels_per_step,
        kernel_seconds=told.kernel_seconds,
        attention=told.kinds["attention"] / whole if "attention" in told.kinds else None,
        elementwise=_kinds(told, "elementwise", "norm", "copy"),
    )


def _kinds(told: Breakdown, *names: str) -> float | None:
    there = [told.kinds[name] for name in names if name in told.kinds]
    return sum(there) / told.step_seconds if there and told.step_seconds else None


def _marks(steps: Sequence[StepRecord]) -> Split | None:
    marked = [step for step in steps if step.part_seconds and step.step_seconds]
    whole = sum(step.step_seconds or 0.0 for step in marked)
    names = {name for step in marked for name in step.part_seconds}
    if not marked or whole <= 0:
        return None

    def share(*parts: str) -> float | None:
        there = [part for part in parts if part in names]
        if not there:
            return None
        return sum(step.part_seconds.get(part, 0.0) for step in marked for part in there) / whole

    return Split(
        source="marks",
        compute=share("forward", "backward"),
        optimizer=share("optimizer"),
        communication=share("gradients"),
        between_stages=share("pipeline"),
        data=share("data"),
        idle=None,
        launch_gaps=None,
        collective_seconds=None,
    )


def rank_seconds(steps: Sequence[StepRecord]) -> tuple[float, ...]:
    """Return each rank's mean step time; empty where the steps do not have it for all ranks."""
    ranks = {len(step.rank_step_seconds) for step in steps}
    if len(ranks) != 1 or 0 in ranks:
        return ()
    return tuple(
        fmean(times) for times in zip(*(one.rank_step_seconds for one in steps), strict=True)
    )
