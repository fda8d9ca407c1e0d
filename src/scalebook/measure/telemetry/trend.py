"""Whether a series of readings rises or falls by more than its noise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from scalebook.measure.telemetry.samples import Device, Reading

FEWEST = 12
_DEVIATIONS = 4.0  # of the slope's standard error; each of a node's GPUs is asked
_SMALLEST = 0.01  # a change below 1 % of the mean explains no step time


@dataclass(frozen=True, slots=True)
class Trend:
    """A straight line through readings: its first and last value, and if it is beyond noise."""

    first: float
    last: float
    certain: bool

    @property
    def change(self) -> float:
        """Return the change over the readings as a fraction of the first value."""
        return self.last / self.first - 1 if self.first else 0.0


@dataclass(frozen=True, slots=True)
class Settling:
    """Whether the devices had settled; None where their telemetry is too little to say."""

    settled: bool | None
    reason: str | None = None  # what still changed, in a sentence


def settling(devices: Sequence[Device]) -> Settling:
    """Return whether clocks and temperatures were steady over these readings.

    A clock that falls says that the steps still get slower. A temperature that rises while the
    clock holds says that it may, so that nothing is known.
    """
    clocks = [(one.name, trend_of(one.series("clock_mhz"))) for one in devices]
    falling = [(n, t) for n, t in clocks if t and t.certain and t.change < -_SMALLEST]
    if falling:
        name, trend = min(falling, key=lambda pair: pair[1].change)
        return Settling(
            False,
            f"The devices had not settled: the clock of {name} fell by {-trend.change:.1%} over "
            "the window. Warm up longer, or measure for longer.",
        )
    heat = [trend_of(one.series("temperature_celsius")) for one in devices]
    trends = [*(trend for _, trend in clocks), *heat]
    known = bool(trends) and all(trend is not None for trend in trends)
    steady = known and not any(trend.certain for trend in trends if trend)
    return Settling(True if steady else None)


def trend_of(readings: Sequence[Reading]) -> Trend | None:
    """Return the least-squares line of the readings; None for fewer than ``FEWEST``.

    Neighbours are correlated: the slope's error is widened by (1 + r) / (1 - r) with r the
    residuals' correlation at lag 1 (an autoregressive noise of order 1).
    """
    count = len(readings)
    if count < FEWEST:
        return None
    start = readings[0].time
    times = [one.time - start for one in readings]
    values = [one.value for one in readings]
    middle, mean = sum(times) / count, sum(values) / count
    spread = sum((time - middle) ** 2 for time in times)
    if spread == 0:
        return None
    pairs = list(zip(times, values, strict=True))
    slope = sum((time - middle) * (value - mean) for time, value in pairs) / spread
    rest = [value - mean - slope * (time - middle) for time, value in pairs]
    first, last = mean + slope * (times[0] - middle), mean + slope * (times[-1] - middle)
    error = _error(rest, spread)
    moves = abs(last - first) >= _SMALLEST * abs(mean)
    return Trend(first, last, moves and abs(slope) > _DEVIATIONS * error)


def _error(rest: Sequence[float], spread: float) -> float:
    """Return the standard error of the slope from the residuals."""
    squares = sum(value**2 for value in rest)
    if squares == 0:
        return 0.0
    lagged = sum(left * right for left, right in itertools.pairwise(rest))
    correlation = min(max(lagged / squares, 0.0), 0.95)
    widened = squares / (len(rest) - 2) * (1 + correlation) / (1 - correlation)
    return math.sqrt(widened / spread)
