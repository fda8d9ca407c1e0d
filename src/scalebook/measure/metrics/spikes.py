"""Steps that stand out of a series, and patterns that repeat: part of the steady state.

A checkpoint or a garbage collection every k steps is no noise: the mean must hold one in k of them,
and an interval that takes them for chance is too wide. So spikes at a fixed period, and patterns of
a few steps, are found and their height is set aside; spikes without a period stay chance, of which
few were seen.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import sub
from statistics import median

_REACH = 5  # neighbours on each side that say what a step would have taken
_STANDS_OUT = 5.0  # times the noise around its neighbours
_LEAST = 1e-3  # of the median: less is no spike, however quiet the series
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
    excess = [value - level for value, level in zip(seconds, local_median(seconds), strict=True)]
    standing = _standing_out(seconds, excess)
    classes, rest = _periods(standing, len(seconds))
    smooth = list(seconds)
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
    window = sorted(series[: _REACH + 1])
    levels: list[float] = []
    for at in range(len(series)):
        size = len(window)
        levels.append((window[(size - 1) // 2] + window[size // 2]) / 2)
        if at + _REACH + 1 < len(series):
            insort(window, series[at + _REACH + 1])
        if at >= _REACH:
            del window[bisect_left(window, series[at - _REACH])]
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
    limit = 8 * _middle(ordered)
    if ordered[-1] <= limit:
        return rest, half
    return [max(-limit, min(limit, value)) for value in rest], half


def _middle(ordered: Sequence[float]) -> float:
    """Return the median of sorted values."""
    at = len(ordered) // 2
    return ordered[at] if len(ordered) % 2 else (ordered[at - 1] + ordered[at]) / 2


def _offsets(rest: Sequence[float], first: int, period: int) -> list[float]:
    """Return by how much each phase is above the mean of all, phase 0 being position 0."""
    mean = sum(rest) / len(rest)
    each = len(rest) // period
    phases = [sum(rest[start::period]) / each - mean for start in range(period)]
    return [phases[(at - first) % period] for at in range(period)]


def _pattern_rest(series: Sequence[float], period: int) -> float | None:
    """Return the variance that a pattern of this period leaves; None where there is none.

    An F test of the phases' means, its F made normal by Wilson and Hilferty (A&S 26.6.15).
    """
    if len(series) < 5 * period + period:
        return None
    rest, first = _detrended(series, period)
    mean, count = sum(rest) / len(rest), len(rest)
    total = sum([difference * difference for difference in [value - mean for value in rest]])
    between = sum(offset**2 for offset in _offsets(rest, first, period)) * (count // period)
    if between <= 1e-9 * total or total <= 0:
        return None
    within = max(total - between, 1e-12 * total) / (count - period)
    ratio = (between / (period - 1) / within) ** (1 / 3)
    a, b = 2 / (9 * (period - 1)), 2 / (9 * (count - period))
    certainty = ((1 - b) * ratio - (1 - a)) / math.sqrt(b * ratio**2 + a)
    return within if certainty > _CERTAIN else None
