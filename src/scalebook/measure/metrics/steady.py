"""The steady state of a series of step times: where it starts, its mean, and how sure that is.

A series that is too short, still drifts or changes its level is refused with a reason and has no
mean. README.md beside this file says how the method was chosen and what it was measured to do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from scalebook.measure.metrics.autoregression import blocks, mean_posterior
from scalebook.measure.metrics.spikes import Periodic, Spikes, take_apart
from scalebook.measure.metrics.stability import MINIMUM_STEPS, Problem, Settled, relative, settle
from scalebook.untrusted import html_table

_FEW_BLOCKS, _MANY_BLOCKS, _FAR_MORE = 30, 50, 1.5
_MOST = 20_000  # values that are looked at: of a longer series, means of neighbours
_NORMAL = 1.959964  # the normal distribution's two-sided 95 % point

# Below either, a device may still be warming up or slowing down unseen: see ``_unsettled``.
BRIEF_SECONDS, BRIEF_STEPS = 60.0, 40
# How far the settled mean may lie beyond the window's, in drifts over the window: 1.5 is that of an
# exponential whose time constant is one and a half windows. A slower one looks flat.
_REACH = 1.5
# A spike that no step shows: as long as a step, and one expected in as many steps again, but not in
# fewer than 45. What comes more often is not rare, and most windows show it.
_UNSEEN_HEIGHT, _UNSEEN_SHARE = 1.0, 1 / 45


@dataclass(frozen=True, slots=True)
class Steady:
    """What a series says of its steady state; every number but ``steps`` is None if refused.

    Times are in seconds. ``low`` and ``high`` bound the mean of the steady state at 95 %: they hold
    what the steps show (``seen``), a rare spike that none of them shows and, for a brief window,
    where its drift may still lead.
    """

    steps: int  # all steps of the series
    problem: Problem | None  # why it is refused, in one word
    reason: str | None  # the same in a sentence
    start: int | None = None  # index of the first step of the steady state
    count: int | None = None  # steps averaged; whole periods where something is periodic
    median: float | None = None
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    seen: tuple[float, float] | None = None  # the interval by the steps of this window only
    brief: bool = False  # under a minute or 40 steps, and no telemetry shows settled devices
    quantiles: tuple[float, float, float] | None = None  # 10 %, 90 % and 99 %
    periods: tuple[int, ...] = ()  # steps between periodic spikes, shortest first
    irregular: int = 0  # spikes without a period
    change: float = 0.0  # a drift or shift that is tolerated, as a fraction of the mean
    at: int | None = None  # of a series that is refused for a shift: the first step after it

    @property
    def accepted(self) -> bool:
        """Whether there is a steady state."""
        return self.problem is None

    def _repr_html_(self) -> str:
        mean, low, high = self.mean, self.low, self.high
        bounds = "" if low is None or high is None else f" ({low:.4g} to {high:.4g}, 95 %)"
        steps = f"{self.count} of {self.steps}" if self.count else f"none of {self.steps}"
        shown = None if mean is None else f"{mean:.4g} s{bounds}"
        return html_table({"mean step": shown, "steps": steps, "reason": self.reason})


def quantile(ordered: Sequence[float], fraction: float) -> float:
    """Return the linearly interpolated quantile of a sorted series."""
    position = fraction * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def middle(values: Sequence[float]) -> float:
    """Return the median; of a long series only the middle is sorted."""
    count = len(values)
    if count < _MOST:
        return median(values)
    sample = sorted(values[:: count // 1000])
    low, high = sample[len(sample) * 9 // 20], sample[len(sample) * 11 // 20]
    below = sum(map(low.__gt__, values))
    between = sorted(value for value in values if low <= value <= high)
    first, second = (count - 1) // 2 - below, count // 2 - below
    if first < 0 or second >= len(between):  # the sample is unlike the series: it has a rhythm
        return median(values)
    return (between[first] + between[second]) / 2


def find_steady(
    seconds: Sequence[float], minimum: int = 0, *, settled_devices: bool = False
) -> Steady:
    """Return the steady state of step times (seconds, finite and above zero).

    The first ``minimum`` steps are warm-up whatever they look like. ``settled_devices`` says that
    telemetry shows steady clocks and temperatures, so that a short window is not brief. Of a series
    beyond ``_MOST`` steps, means of as many neighbours as it takes are judged: the mean and its
    interval are of all steps, the start is exact to one block, and quantiles are of evenly spaced
    steps.
    """
    if len(seconds) - minimum < MINIMUM_STEPS:
        return _refused(seconds, minimum, Settled(0, "too short"))
    series, each = seconds[minimum:], 1
    if len(series) > _MOST:
        each = math.ceil(len(series) / _MOST)
        minimum += len(series) % each  # what fills no block
        series, _ = blocks(series, len(series) // each)
    spikes = take_apart(series)
    settled = settle(spikes.smooth)
    if settled.problem is not None:
        at = None if settled.at is None else settled.at * each
        problem = replace(settled, start=settled.start * each, at=at)
        return _refused(seconds, minimum, problem)
    start, end = settled.start, _end(spikes, settled.start, len(series))
    window = seconds[minimum + start * each : minimum + end * each]
    mean = sum(window) / len(window)
    below, above = _halves(spikes, start, end)
    tolerated = settled.change / 2 * mean
    # a logarithmic interval would bound a mean above zero too; at these widths they agree
    seen = max(mean - below - tolerated, 0.0), mean + above + tolerated
    brief = not settled_devices and (len(window) < BRIEF_STEPS or sum(window) < BRIEF_SECONDS)
    down, up = _unsettled(settled, mean, seen) if brief else (mean - seen[0], seen[1] - mean)
    ordered = sorted(window[::each])
    return Steady(
        steps=len(seconds),
        problem=None,
        reason=None,
        start=minimum + start * each,
        count=len(window),
        median=median(ordered),
        mean=mean,
        low=max(mean - down, 0.0),
        high=mean + math.hypot(up, _unseen(spikes, window)),
        seen=seen,
        brief=brief,
        quantiles=(quantile(ordered, 0.1), quantile(ordered, 0.9), quantile(ordered, 0.99)),
        periods=tuple(sorted({item.period for item in spikes.periodic})) if each == 1 else (),
        irregular=sum(start <= at < end for at, _ in spikes.irregular),
        change=settled.change,
    )


def longest_level(seconds: Sequence[float]) -> tuple[int, int] | None:
    """Return first and last index of the longest part at one level, None where there is none.

    A series that shifts is cut there, and so is each part, until a part is steady.
    """
    found = find_steady(seconds)
    if found.start is not None and found.count is not None:
        return found.start, found.start + found.count - 1
    cut = found.at
    if found.problem != "shift" or not cut:
        return None
    before, after = longest_level(seconds[:cut]), longest_level(seconds[cut:])
    parts = [before] if before else []
    if after is not None:
        parts.append((cut + after[0], cut + after[1]))
    return max(parts, key=lambda part: part[1] - part[0], default=None)


def _end(spikes: Spikes, start: int, count: int) -> int:
    """Return where the window ends so that it holds periodic spikes in their true proportion."""
    if not spikes.periodic:
        whole = (count - start) // (spikes.pattern or 1) * (spikes.pattern or 1)
        return start + whole
    longest = max(item.period for item in spikes.periodic)
    earliest = max(count - longest, start + MINIMUM_STEPS - 1)
    smooth = spikes.smooth[start:]
    changes = [(b - a) ** 2 for a, b in pairwise(smooth)]
    enough = 0.1 * math.sqrt(sum(changes) / 2) / len(smooth)  # a tenth of the standard error
    ends = range(count, earliest, -1)
    imbalances = [_imbalance(spikes.periodic, start, end) for end in ends]
    least = max(enough, min(imbalances) * (1 + 1e-9) + 1e-15)
    return next(end for end, imbalance in zip(ends, imbalances, strict=True) if imbalance <= least)


def _imbalance(periodic: Sequence[Periodic], start: int, end: int) -> float:
    """Return by how much the mean (seconds) is off for a part of a period that is in or out."""
    count = end - start
    return abs(
        sum(
            (sum(start <= at < end for at in item.positions) / count - 1 / item.period)
            * item.height
            for item in periodic
        )
    )


def _halves(spikes: Spikes, start: int, end: int) -> tuple[float, float]:
    """Return how far the interval of the mean reaches down and up (seconds)."""
    smooth = spikes.smooth[start:end]
    count = len(smooth)
    half = 0.0
    if relative(smooth) is not None:
        half = mean_posterior(smooth).half_width()
        # Where means of neighbours say far more, the memory is not of first order.
        means, size = blocks(smooth, _FEW_BLOCKS if count < 3 * _MANY_BLOCKS else _MANY_BLOCKS)
        if size > 1 and (wider := mean_posterior(means).half_width()) > _FAR_MORE * half:
            half = wider
    heights = [height for at, height in spikes.irregular if start <= at < end]
    if not heights:
        return half, half
    fewer, more = _poisson_interval(len(heights))
    each = sum(heights) / len(heights) / count
    # Two independent parts: distances from the estimate add as squares (Zou and Donner 2008).
    return (
        math.hypot(half, each * (len(heights) - fewer)),
        math.hypot(half, each * (more - len(heights))),
    )


def _unsettled(settled: Settled, mean: float, seen: tuple[float, float]) -> tuple[float, float]:
    """Return how far below and above the mean (seconds) a brief window's steady state may lie.

    A tail of a warm-up, or a device that slows down as it heats, shows as a drift that noise can
    hide. Its end is taken to be ``_REACH`` drifts away, give or take the drift's standard error.
    """
    drift, error = _REACH * settled.drift * mean, _REACH * settled.drift_error * mean
    below, above = mean - seen[0], seen[1] - mean
    return (
        max(below, math.hypot(below, error) - drift),
        max(above, math.hypot(above, error) + drift),
    )


def _unseen(spikes: Spikes, window: Sequence[float]) -> float:
    """Return what a rare spike that no step shows could add to the mean (seconds).

    Where spikes were seen, their number says how rare they are.
    """
    if spikes.irregular or spikes.periodic:
        return 0.0
    return _UNSEEN_HEIGHT * middle(window) * min(1 / len(window), _UNSEEN_SHARE)


def _poisson_interval(count: int) -> tuple[float, float]:
    """Return the 95 % interval of an expected count, of which ``count`` were seen (Byar)."""

    def end(value: int, deviation: float) -> float:
        return value * (1 - 1 / (9 * value) + deviation / (3 * math.sqrt(value))) ** 3

    return max(end(count, -_NORMAL), 0.0), end(count + 1, _NORMAL)


def _refused(seconds: Sequence[float], minimum: int, settled: Settled) -> Steady:
    at = None if settled.at is None else minimum + settled.at
    return Steady(len(seconds), settled.problem, _reason(seconds, minimum, settled), at=at)


def _reason(seconds: Sequence[float], minimum: int, settled: Settled) -> str:
    """Return why a series has no steady state, and what to do."""
    start = minimum + settled.start
    left = max(len(seconds) - start, 0)
    percent = f"{100 * abs(settled.change):.2g} %"
    more = "more" if settled.change > 0 else "less"
    if settled.at is not None:  # a shift, which alone is at one step
        return (
            f"The level shifts at step {minimum + settled.at} of {len(seconds)}: steps take "
            f"{percent} {more} from there on. Find what changed, or measure only one level."
        )
    if settled.problem == "drift":
        return (
            f"Still drifting: steps take {percent} {more} at the end of the {left} steps after "
            "the warm-up than at their start. Warm up longer, or measure for longer."
        )
    if settled.problem == "warm-up":
        return (
            f"Still warming up after {start} of {len(seconds)} steps, more than half of those "
            "that may count. Measure for longer."
        )
    if settled.independent is not None:
        return (
            f"Too short to say: steps resemble their neighbours so much that {left} of them are "
            f"worth {settled.independent:.1f}, and a drift of {percent} may be chance or not. "
            f"Measure about {_enough(left, settled.independent)} steps."
        )
    steps = "step" if left == 1 else "steps"
    return (
        f"Too short to say: {left} {steps} after a warm-up of {start}; at least {MINIMUM_STEPS} "
        "are needed. Measure more steps."
    )


def _enough(count: int, independent: float) -> int:
    """Return steps that would be worth ten independent ones, rounded up to tens."""
    return math.ceil(count * 10 / max(independent, 0.1) / 10) * 10
