"""When the measured steps ran, so that samples can be matched to them by time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from scalebook.record import StepRecord
from scalebook.step_columns import Steps


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of steps without a gap, in seconds since 1970."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.begin


def windows_of(steps: Iterable[StepRecord]) -> tuple[Window, ...]:
    """Return the stretches that these steps cover; none where the steps tell no time of day.

    Steps that follow one another are one stretch: a step lasts from the end of the one before.
    """
    found: list[Window] = []
    before = math.nan
    rows = Steps.of(steps)
    columns = rows.ends(), rows.numbers("step_seconds"), rows.numbers("step")
    for end, seconds, step in zip(*columns, strict=True):
        if math.isnan(end + seconds):
            return ()
        if step == before + 1 and end >= found[-1].end:
            found[-1] = Window(found[-1].begin, end)
        else:
            found.append(Window(end - seconds, end))
        before = step
    return tuple(found)
