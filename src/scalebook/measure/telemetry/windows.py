"""When the measured steps ran, so that samples can be matched to them by time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from scalebook.record import StepRecord


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of steps without a gap, in seconds since 1970."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.begin


def windows_of(steps: Sequence[StepRecord]) -> tuple[Window, ...]:
    """Return the stretches that these steps cover; none where the steps tell no time of day.

    Steps that follow one another are one stretch: a step lasts from the end of the one before.
    """
    found: list[Window] = []
    before: StepRecord | None = None
    for step in steps:
        end = _time(step.finished_at)
        if end is None or step.step_seconds is None:
            return ()
        if before is not None and step.step == before.step + 1 and end >= found[-1].end:
            found[-1] = Window(found[-1].begin, end)
        else:
            found.append(Window(end - step.step_seconds, end))
        before = step
    return tuple(found)


def _time(stamp: str | None) -> float | None:
    """Return seconds since 1970 of an ISO 8601 time with its zone, None for anything else."""
    if stamp is None:
        return None
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        return None
    return None if moment.tzinfo is None else moment.timestamp()
