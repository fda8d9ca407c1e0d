"""The steady state of a series of step times: where it starts, its mean, and how sure that is.

A series that is too short, still drifts or changes its level is refused with a reason and has no
mean. README.md beside this file says how the method was chosen and what it was measured to do.

Spikes at a fixed period (a checkpoint or a garbage collection every k steps) and patterns of a few
steps are no noise: the mean must hold them in their share, and an interval that takes them for
chance is too wide. Their height is set aside. Spikes without a period stay chance: few were seen.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import mul, sub
from statistics import median

from scalebook.measure.metrics.autoregression import blocks, mean_posterior
from scalebook.measure.metrics.stability import MINIMUM_STEPS, Problem, Settled, relative, settle
from scalebook.untrusted import html_table

_SPIKE_REACH = 5  # neighbours on each side that say what a step would have taken
_STANDS_OUT = 5.0  # times the noise around its neighbours
_LEAST = 1e-3  # of the median: less is no spike, even in a series without noise
_MOST_CANDIDATES = 400  # more pairs of a period and a phase are no pattern of spikes
_RARE_SHARE, _RARE_COUNT = 0.05, 12  # more irregular spikes than that are ordinary noise
_LONGEST_PATTERN = 8
_PATTERN_SAMPLE = 256  # steps that are enough to see a pattern of so few
_CERTAIN = 6.0  # normal deviations at which a pattern counts as one


@dataclass(frozen=True, slots=True)
class Periodic:
    """Spikes every ``period`` steps: where, and by how much the step is longer (seconds)."""

    period: int
    positions: tuple[int, ...]
    height: float


@dataclass(frozen=True, slots=True)
class Spikes:
    """A series taken apart: periodic spikes, irregular ones, and the rest as a smooth series."""

    periodic: tuple[Periodic, ...]
    irregular: tuple[tuple[int, float], ...]  # position and height
    pattern: int | None  # steps after which a pattern repeats
    smooth: tuple[float, ...]


def take_apart(seconds: Sequence[float]) -> Spikes:
    """Return the spikes of a series and the series without them."""
    smooth = list(seconds)  # its numbers are objects already
    excess = [value - level for value, level in zip(smooth, local_median(smooth), strict=True)]
    standing = _standing_out(seconds, excess)
    classes, rest = _periods(standing, len(seconds))
    periodic: list[Periodic] = []
    for period, positions in classes:
        # the middle one: a step that is due to two periods stands out more
        height = median(excess[at] for at in positions)
        periodic.append(Periodic(period, positions, height))
        for at in positions:
            smooth[at] -= height
    rare = len(rest) <= min(_RARE_COUNT, max(2, _RARE_SHARE * len(seconds)))
    irregular = tuple((at, excess[at]) for at in rest) if rare else ()
    for at, height in irregular:
        smooth[at] -= height
    pattern, smooth = _without_pattern(smooth)
    return Spikes(tuple(periodic), irregular, pattern, tuple(smooth))


def local_median(series: Sequence[float]) -> list[float]:
    """Return the median of each value and its neighbours."""
    window = sorted(series[: _SPIKE_REACH + 1])
    levels: list[float] = []
    for at in range(len(series)):
        size = len(window)
        levels.append((window[(size - 1) // 2] + window[size // 2]) / 2)
        if at + _SPIKE_REACH + 1 < len(series):
            insort(window, series[at + _SPIKE_REACH + 1])
        if at >= _SPIKE_REACH:
            del window[bisect_left(window, series[at - _SPIKE_REACH])]
    return levels


def _standing_out(seconds: Sequence[float], excess: Sequence[float]) -> list[int]:
    """Return the steps far above their neighbours; slow first steps are a warm-up instead."""
    noise = 1.4826 * median(map(abs, excess))  # the standard deviation of normal noise
    limit = max(_STANDS_OUT * noise, _LEAST * median(seconds))
    first = next((at for at, value in enumerate(excess) if value <= limit), 0)
    return [at for at in range(first, len(excess)) if excess[at] > limit]


def _periods(
    positions: Sequence[int], count: int
) -> tuple[list[tuple[int, tuple[int, ...]]], list[int]]:
    """Return the periods among positions, each with its positions, and what is left over."""
    everywhere = frozenset(positions)
    left = set(positions)
    found: list[tuple[int, tuple[int, ...]]] = []
    while len(left) > 1 and len(found) < 3:
        best = max(_candidates(sorted(left), left, everywhere, count), default=None)
        if best is None:
            break
        found.append((best[1], best[2]))
        left -= set(best[2])
    return found, sorted(left)


def _candidates(
    ordered: Sequence[int], left: set[int], everywhere: frozenset[int], count: int
) -> Iterable[tuple[int, int, tuple[int, ...]]]:
    """Yield (new ones, period, positions) of each period whose spikes are nearly all there."""
    pairs = {
        (later - earlier, earlier % (later - earlier))
        for index, earlier in enumerate(ordered)
        for later in ordered[index + 1 : index + 4]
        if later - earlier > 1
    }
    for period, phase in pairs if len(pairs) <= _MOST_CANDIDATES else ():
        expected = range(phase, count, period)
        hits = tuple(at for at in expected if at in everywhere)
        fresh = sum(at in left for at in hits)
        # a warm-up may hide the first ones
        seen = min(hits[0], max(10, count // 10))
        missed = sum(at >= seen for at in expected) - len(hits)
        enough = fresh > 2 or len(ordered) == fresh == 2
        if missed <= len(hits) // 10 and enough and 2 * fresh > len(hits):
            yield fresh, period, hits


def _without_pattern(series: list[float]) -> tuple[int | None, list[float]]:
    """Return after how many steps a pattern repeats, and the series without it."""
    sample = series[-_PATTERN_SAMPLE:]
    found = [
        (rest, period) for period in range(2, _LONGEST_PATTERN + 1)
        if (rest := _pattern_rest(sample, period)) is not None
    ]  # fmt: skip
    if not found:
        return None, series
    # of equals the shortest: a multiple of a period explains as much
    least = min(found)[0]
    period = next(period for rest, period in found if rest <= 1.25 * least)
    offsets = _offsets(*_detrended(series, period), period)
    return period, [value - offsets[at % period] for at, value in enumerate(series)]


def _detrended(series: Sequence[float], period: int) -> tuple[list[float], int]:
    """Return what differs from the mean of the period around a step, and its first position.

    Outliers are drawn in, so that no spike makes a pattern.
    """
    half = period // 2
    count = (len(series) - period + 1) // period * period
    changes = map(sub, series[period:], series)
    totals = accumulate(changes, initial=sum(series[:period]))
    middles = series[half : half + count]
    rest = [value - total / period for value, total in zip(middles, totals, strict=False)]
    ordered = sorted(map(abs, rest))
    limit = 4 * (ordered[(count - 1) // 2] + ordered[count // 2])  # 8 medians
    if ordered[-1] <= limit:
        return rest, half
    return [max(-limit, min(limit, value)) for value in rest], half


def _offsets(rest: Sequence[float], first: int, period: int) -> list[float]:
    """Return by how much each phase is above the mean of all, phase 0 being position 0."""
    mean = sum(rest) / len(rest)
    each = len(rest) // period
    phases = [sum(rest[start::period]) / each - mean for start in range(period)]
    return [phases[(at - first) % period] for at in range(period)]


def _pattern_rest(series: Sequence[float], period: int) -> float | None:
    """Return the variance that a pattern of this period leaves; None where there is none."""
    if len(series) < 5 * period + period:
        return None
    rest, _ = _detrended(series, period)
    count, chance = len(rest), _chance(len(rest), period)
    total = math.hypot(*rest) ** 2 - sum(rest) ** 2 / count
    # What differs from period to period is in no pattern; its squares add up to four times at most.
    if total <= (1 + chance) * math.dist(rest[period:], rest[:-period]) ** 2 / 4:
        return None
    offsets = _offsets(rest, 0, period)
    between = sum(map(mul, offsets, offsets)) * (count // period)
    if between <= 1e-9 * total or total <= 0:
        return None
    within = max(total - between, 1e-12 * total)
    return within / (count - period) if between > chance * within else None


@lru_cache(maxsize=1024)
def _chance(count: int, period: int) -> float:
    """Return how large the squares between phases may be by chance, over those within.

    An F test of the phases' means, its F made normal by Wilson and Hilferty (A&S 26.6.15).
    """
    a, b, most = 2 / (9 * (period - 1)), 2 / (9 * (count - period)), _CERTAIN**2
    # ((1 - b) x - (1 - a)) / sqrt(b x^2 + a) = _CERTAIN, where x^3 is F
    square, linear, rest = (1 - b) ** 2 - most * b, (1 - a) * (1 - b), (1 - a) ** 2 - most * a
    if square <= 0:  # too few for any F
        return math.inf
    root = (linear + math.sqrt(linear**2 - square * rest)) / square
    return root**3 * (period - 1) / (count - period)


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
    seconds: Sequence[float],
    minimum: int = 0,
    *,
    settled_devices: bool = False,
    interval: bool = True,
) -> Steady:
    """Return the steady state of step times (seconds, finite and above zero).

    The first ``minimum`` steps are warm-up whatever they look like. ``settled_devices`` says that
    telemetry shows steady clocks and temperatures, so that a short window is not brief. Of a series
    beyond ``_MOST`` steps, means of as many neighbours as it takes are judged: the mean and its
    interval are of all steps, the start is exact to one block, and quantiles are of evenly spaced
    steps. Without ``interval`` only what the mean is of, and the mean, are found.
    """
    if len(seconds) - minimum < MINIMUM_STEPS:
        return _refused(seconds, minimum, Settled(0, "too short"))
    series, each, warmup = seconds[minimum:], 1, minimum
    if len(series) > _MOST:
        each = math.ceil(len(series) / _MOST)
        minimum += len(series) % each  # what fills no block
        series, _ = blocks(series, len(series) // each)
    spikes = take_apart(series)
    settled = settle(spikes.smooth, drift=interval)
    if settled.problem is not None:
        over = minimum - warmup
        at = None if settled.at is None else settled.at * each + over
        return _refused(seconds, warmup, replace(settled, start=settled.start * each + over, at=at))
    start, end = settled.start, _end(spikes, settled.start, len(series))
    window = seconds[minimum + start * each : minimum + end * each]
    mean = sum(window) / len(window)
    known = Steady(len(seconds), None, None, minimum + start * each, len(window), mean=mean)
    if not interval:
        return known
    seen = _seen(spikes, start, end, mean, settled.change / 2 * mean)
    brief = not settled_devices and (len(window) < BRIEF_STEPS or sum(window) < BRIEF_SECONDS)
    down, up = _unsettled(settled, mean, seen) if brief else (mean - seen[0], seen[1] - mean)
    ordered = sorted(window[::each])
    return replace(
        known,
        median=median(ordered),
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


def _seen(
    spikes: Spikes, start: int, end: int, mean: float, tolerated: float
) -> tuple[float, float]:
    """Return the interval of the mean by the steps of the window, a tolerated change added."""
    smooth = spikes.smooth[start:end]
    count = len(smooth)
    half = 0.0
    if relative(smooth) is not None:
        half = mean_posterior(smooth).half_width()
        # Where means of neighbours say far more, the memory is not of first order.
        means, size = blocks(smooth, _FEW_BLOCKS if count < 3 * _MANY_BLOCKS else _MANY_BLOCKS)
        if size > 1 and (wider := mean_posterior(means).half_width()) > _FAR_MORE * half:
            half = wider
    below = above = half
    heights = [height for at, height in spikes.irregular if start <= at < end]
    if heights:
        fewer, more = _poisson_interval(len(heights))
        each = sum(heights) / len(heights) / count
        # Two independent parts: distances from the estimate add as squares (Zou and Donner 2008).
        below = math.hypot(half, each * (len(heights) - fewer))
        above = math.hypot(half, each * (more - len(heights)))
    # a logarithmic interval would bound a mean above zero too; at these widths they agree
    return max(mean - below - tolerated, 0.0), mean + above + tolerated


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
    percent = f"{float(f'{100 * abs(settled.change):.2g}'):g} %"
    more = "more" if settled.change > 0 else "less"
    if settled.at is not None:  # a shift, which alone is at one step
        return (
            f"The level shifts after {settled.at} of {len(seconds) - minimum} measured steps: they "
            f"take {percent} {more} from there on. Find what changed, or measure only one level."
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
