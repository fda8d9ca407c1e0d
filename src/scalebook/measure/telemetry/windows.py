"""When the measured steps ran, so that samples can be matched to them by time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scalebook.record import StepRecord
from scalebook.step_columns import Steps

SLACK_SECONDS = 1.0  # between two steps, for what no step counts; longer where steps are


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
    """Return the stretches that these steps cover; none where the steps have no time of day.

    Steps that follow one another are one stretch: a step lasts from the end of the one before.
    Where the clock says that much more or less than a step has passed, another stretch begins.
    None too where the clock was set back into an earlier stretch: a sample would belong to both.
    """
    found: list[Window] = []
    before = math.nan
    rows = Steps.of(steps)
    columns = rows.ends(), rows.numbers("step_seconds"), rows.numbers("step")
    for end, seconds, step in zip(*columns, strict=True):
        if math.isnan(end + seconds):
            return ()
        if step == before + 1 and 0 <= end - found[-1].end <= seconds + max(seconds, SLACK_SECONDS):
            found[-1] = Window(found[-1].begin, end)
        else:
            found.append(Window(end - seconds, end))
        before = step
    return () if _overlap(found) else tuple(found)


def _overlap(windows: Sequence[Window]) -> bool:
    """Return whether two stretches share more time than clocks and rounding are apart."""
    ordered = sorted(windows, key=lambda one: one.begin)
    return any(
        before.end - after.begin > SLACK_SECONDS for before, after in itertools.pairwise(ordered)
    )
