"""When measured steps ran, and the joules that a device used meanwhile.

Samples are matched to steps by time. Energy is that of the device's counter, else of its power.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from scalebook.measure.telemetry.samples import Device, Reading
from scalebook.record import StepRecord
from scalebook.step_columns import Steps

SLACK_SECONDS = 1.0  # between two steps, for what no step counts; longer where steps are
COUNTER, POWER = "energy counter", "integrated power"
FEWEST = 3  # readings within the windows
_EDGE_PERIODS = 2.5  # a window may stick out of the readings by so much
_GAP_PERIODS = 5.0
_GAP_SHARE = 0.1  # of the windows, without a reading of the power
# Some drivers' counters are known to be wrong by a factor; readings of the power are then right.
_AGREEMENT = (0.7, 1.4)


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


@dataclass(frozen=True, slots=True)
class Energy:
    """Joules over all windows and how they were found; None with the reason."""

    joules: float | None
    method: str | None = None
    reason: str | None = None
    note: str | None = None


def energy_of(device: Device, windows: Sequence[Window], period: float) -> Energy:
    """Return the energy of a device over the windows: by its counter, else by its power."""
    counter = _usable(_counter_joules, device, "energy_joules", windows, period)
    power = _usable(_power_joules, device, "power_watts", windows, period)
    if counter.joules is None:
        has_counter = bool(device.series("energy_joules"))
        return counter if has_counter and power.joules is None else power
    if power.joules:
        ratio = counter.joules / power.joules
        if not _AGREEMENT[0] <= ratio <= _AGREEMENT[1]:
            note = (
                f"The energy counter of {device.name} says {ratio:.2g} times what its power "
                "readings add up to: the readings count."
            )
            return Energy(power.joules, POWER, None, note)
    return counter


def _usable(
    measure: Callable[[Sequence[Reading], Sequence[Window], float], Energy],
    device: Device,
    column: str,
    windows: Sequence[Window],
    period: float,
) -> Energy:
    readings = device.series(column)
    if not readings:
        return Energy(None, reason=f"{device.name} reports neither its energy nor its power.")
    inside = sum(window.begin <= one.time <= window.end for one in readings for window in windows)
    if inside < FEWEST:
        total = sum(window.seconds for window in windows)
        return Energy(
            None,
            reason=f"Only {inside} samples of {device.name} lie in the {total:.3g} s measured: "
            f"at least {FEWEST} are needed. Run more steps, or sample more often.",
        )
    slack = _EDGE_PERIODS * period
    first, last = readings[0].time - slack, readings[-1].time + slack
    if any(window.begin < first or window.end > last for window in windows):
        return Energy(None, reason=f"The samples of {device.name} do not cover the measured steps.")
    return measure(readings, windows, period)


def _counter_joules(
    readings: Sequence[Reading], windows: Sequence[Window], period: float
) -> Energy:
    pairs = itertools.pairwise(readings)
    if any(after.value < before.value for before, after in pairs):
        return Energy(None, reason="The energy counter was reset during the run.")
    joules = sum(_at(readings, window.end) - _at(readings, window.begin) for window in windows)
    if joules <= 0:
        return Energy(None, reason="The energy counter did not move while steps ran.")
    return Energy(joules, COUNTER)


def _power_joules(readings: Sequence[Reading], windows: Sequence[Window], period: float) -> Energy:
    """Integrate by the trapezoidal rule; the ends of a window are interpolated."""
    total = sum(window.seconds for window in windows)
    most = max(_GAP_PERIODS * period, _GAP_SHARE * total)
    joules = 0.0
    for window in windows:
        inner = [one for one in readings if window.begin < one.time < window.end]
        ends = [Reading(time, _held(readings, time)) for time in (window.begin, window.end)]
        points = [ends[0], *inner, ends[1]]
        for before, after in itertools.pairwise(points):
            width = after.time - before.time
            if width > most:
                return Energy(None, reason=f"The samples have a gap of {width:.3g} s.")
            joules += width * (before.value + after.value) / 2
    return Energy(joules, POWER)


def _held(readings: Sequence[Reading], time: float) -> float:
    """Return the value at a time, linear between two readings; outside them the nearest."""
    return _at(readings, min(max(time, readings[0].time), readings[-1].time))


def _at(readings: Sequence[Reading], time: float) -> float:
    """Return the value at a time on the line through the two nearest readings."""
    place = bisect_left(readings, time, key=lambda one: one.time)
    place = min(max(place, 1), len(readings) - 1)
    before, after = readings[place - 1], readings[place]
    width = after.time - before.time
    if width <= 0:
        return after.value
    return before.value + (after.value - before.value) * (time - before.time) / width
