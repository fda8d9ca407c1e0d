"""What a step waits for, divided: the schedule's bubble, unequal stages, and the rest."""

from __future__ import annotations

from dataclasses import dataclass

from scalebook.measure.diagnosis.evidence import Evidence
from scalebook.measure.diagnosis.pipeline import bubble_of, imbalance_of


@dataclass(frozen=True, slots=True)
class Waiting:
    """Shares of the step: waits of one kind are counted once.

    A stage that waits for another runs a receiving kernel or nothing at all, so the bubble shows
    as communication or as idle time of a profile. What theory explains is taken from these first.
    """

    bubble: float
    imbalance: float
    stages: float  # beyond both, between stages
    idle: float | None  # beyond both, nothing ran


def waiting_of(found: Evidence) -> Waiting | None:
    """Return what waiting consists of; None where the schedule is not known."""
    bubble, imbalance = bubble_of(found), imbalance_of(found)
    if bubble is None:
        return None
    explained = bubble, (1 - bubble) * (imbalance or 0.0)
    split = found.split
    if split is None:
        return Waiting(*explained, stages=0.0, idle=None)
    if split.source == "marks":
        # The marks are means over ranks, as theory is; idle time hides in other parts.
        rest = max((split.between_stages or 0.0) - sum(explained), 0.0)
        return Waiting(*explained, stages=rest, idle=None)
    between, idle = split.between_stages or 0.0, split.idle or 0.0
    # A profile is of one rank, which may wait less than the mean: never explain more than it saw.
    bubble_seen = min(explained[0], between + idle)
    imbalance_seen = min(explained[1], between + idle - bubble_seen)
    left = bubble_seen + imbalance_seen
    from_between = min(between, left)
    return Waiting(
        bubble_seen, imbalance_seen, between - from_between, max(idle - (left - from_between), 0.0)
    )
