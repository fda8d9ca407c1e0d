"""Where a series settles, and whether it stays as it is from there on.

Warm-ups are taken off the start one after the other, the best-fitting first, while they are more
than chance. What is left must neither drift nor change its level. All three are judged by
``autoregression.effect``, so that slow noise is not taken for a course of its own. A drift or a
change below ``TOLERANCE`` is part of how machines run; it widens the interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from operator import mul
from statistics import fmean
from typing import Literal

from scalebook.measure.metrics.autoregression import blocks, effect, largest_effect, mean_posterior

MINIMUM_STEPS = 10  # fewer say nothing of how steady they are
TOLERANCE = 0.01  # a drift or shift over the window, of the mean, that is only said

# Probabilities at which a course is more than chance. A warm-up and a shift are each the best of
# many, hence the small ones: about 1 % of stable series is refused for either.
_WARM_UP, _DRIFT, _SHIFT = 2e-3, 0.01, 3e-4
_BLOCKS = 50  # a drift and a shift are judged on about so many means of neighbours
_FEW = 4.0  # independent steps below which a drift hides in slow noise
_NOTHING = 5.0  # square of a t that is not worth a closer look
_HINT = 0.25  # probability at which there might be one

Problem = Literal["too short", "warm-up", "drift", "shift"]


@dataclass(frozen=True, slots=True)
class Settled:
    """Where the steady state starts and what is wrong with it, if anything is."""

    start: int
    problem: Problem | None = None
    change: float = 0.0  # a drift or shift over the window, as a fraction of the mean
    at: int | None = None  # the first step after a shift
    independent: float | None = None  # steps that the window is worth, where too few
    drift: float = 0.0  # over the window, as a fraction of the mean, certain or not
    drift_error: float = 0.0  # its standard error


@dataclass(frozen=True, slots=True)
class _Course:
    """The drift and the shift of a window, with how sure each is."""

    drift: float
    drift_probability: float
    drift_error: float
    shift: float
    shift_probability: float
    shift_at: int
    independent: float


def relative(series: Sequence[float]) -> list[float] | None:
    """Return each value's difference from the mean, as a fraction; None for a constant series."""
    mean = sum(series) / len(series)
    differences = [value / mean - 1 for value in series]
    return differences if max(map(abs, differences)) > 1e-9 else None


def settle(series: Sequence[float], *, drift: bool = True) -> Settled:
    """Return where a series without spikes settles, or the problem with it.

    Without ``drift``, one that is within the tolerance is not looked for.
    """
    start = 0
    for _ in range(8):  # a warm-up of more than so many parts is none
        window = series[start:]
        if len(window) < MINIMUM_STEPS:
            return Settled(start, "too short")
        differences = relative(window)
        if differences is None:
            return Settled(start)
        shift = best_shift(differences)
        length = _warm_up(differences, shift)
        if length == 0:
            course = _course(differences, *shift, small=drift)
            return Settled(start) if course is None else _judge(start, course)
        start += length
        if start > len(series) // 2:
            return Settled(start, "warm-up")
    return Settled(start, "warm-up")


def _warm_up(series: Sequence[float], shift: tuple[int, float]) -> int:
    """Return how many steps a warm-up takes off the start; 0 where there is none."""
    found = best_warm_up(series)
    at, gain = shift
    drift = line_gain(series)
    if found.gain < max(gain, drift):
        # Looked for again without the larger course, which would hide it or be taken for it.
        count = len(series)
        course = line(count) if drift >= gain else [0.0] * at + [1.0] * (count - at)
        series = without(series, course)
        found = best_warm_up(series)
        if (found.kind == "decay" and found.length > count / 9) or found.length > count / 3:
            return 0
    return _length(found, series)


def _length(found: WarmUp, series: Sequence[float]) -> int:
    count = len(series)
    # Less than chance gives even where neighbours are unrelated, the case most in its favour.
    if found.gain * count < _NOTHING * math.hypot(*series) ** 2:
        return 0
    judged = effect(series, found.course(count))
    if judged.probability > _WARM_UP:
        return 0
    return found.settled(judged.size, judged.mean_variance**0.5, count)


def _course(series: Sequence[float], at: int, gain: float, *, small: bool = True) -> _Course | None:
    """Return the drift of a window and its shift at a step.

    Unless ``small``, None where both are within the tolerance, certain or not.
    """
    size = (1 + fmean(series[at:])) / (1 + fmean(series[:at])) - 1
    means, each = blocks(series, _BLOCKS)
    count = len(means)
    straight = line(count)
    wanted = small or abs(size) > TOLERANCE
    if not wanted and largest_effect(means, straight) <= TOLERANCE:
        return None
    drift = effect(means, straight)
    if not wanted and abs(drift.size) <= TOLERANCE:
        return None
    block = min(max(round((at - len(series) % each) / each), 1), count - 1)
    chance = 1.0
    if gain * len(series) >= _NOTHING * math.hypot(*series) ** 2:
        chance = effect(means, [0.0] * block + [1.0] * (count - block)).probability
    independent = math.inf  # of a drift within the tolerance, nobody asks
    if abs(drift.size) > TOLERANCE:
        rho = mean_posterior(means).correlation
        independent = count * (1 - rho) / (1 + rho)
    return _Course(drift.size, drift.probability, drift.error, size, chance, at, independent)


def _judge(start: int, found: _Course) -> Settled:
    """Return what a window without a warm-up is."""
    drifts = found.drift_probability < _DRIFT
    shifts = found.shift_probability < _SHIFT
    if (
        shifts
        and abs(found.shift) > TOLERANCE
        and (not drifts or found.shift_probability < found.drift_probability)
    ):
        return Settled(start, "shift", found.shift, start + found.shift_at)
    if drifts and abs(found.drift) > TOLERANCE:
        return Settled(start, "drift", found.drift)
    hint = found.independent < 1 or (found.independent < _FEW and found.drift_probability < _HINT)
    if hint and abs(found.drift) > TOLERANCE:
        return Settled(start, "too short", found.drift, independent=found.independent)
    changes = [abs(found.drift)] * drifts + [abs(found.shift)] * shifts
    return Settled(
        start, None, max(changes, default=0.0), drift=found.drift, drift_error=found.drift_error
    )


# A step down after a few slow steps; a straight ramp; a decay that is cut off when it has fallen
# to a twentieth; a decay without an end.
Kind = Literal["step", "ramp", "cut", "decay"]

_SURELY = 1 + 1e-9  # an advantage that is more than rounding
_END_SHARE = 20  # a last stretch shorter than a 20th (or 5 steps) is no level of its own


@dataclass(frozen=True, slots=True)
class WarmUp:
    """A course at the start: its length (of a decay the time constant) in steps, and its gain.

    The gain is by how much it lowers the sum of squares; the course falls from 1 to 0.
    """

    kind: Kind
    length: float
    gain: float

    def course(self, count: int) -> list[float]:
        """Return the course over ``count`` steps."""
        values = list(_values(self.kind, self.length)[:count])
        return values + [0.0] * (count - len(values))

    def settled(self, size: float, error: float, count: int) -> int:
        """Return how many steps it takes until what is left does not matter.

        For a decay that is when the steps that are left would move the mean of the window by a
        fifth of its standard error.
        """
        if self.kind != "decay":
            return math.ceil(self.length)
        at = 1
        while at < count - 1:
            left = abs(size) * self.length * math.exp(-at / self.length) / (count - at)
            if left <= 0.2 * error:
                break
            at += 1
        return at


@lru_cache(maxsize=2048)
def _values(kind: Kind, length: float) -> tuple[float, ...]:
    if kind == "decay":
        return tuple(math.exp(-at / length) for at in range(int(7 * length) + 1))
    if kind == "cut":
        return tuple(math.exp(-3 * at / length) for at in range(math.ceil(length)))
    if kind == "ramp":
        return tuple(1 - at / length for at in range(math.ceil(length)))
    return (1.0,) * int(length)


@lru_cache(maxsize=64)
def _lengths(most: int) -> tuple[int, ...]:
    """Return every length up to 12, then longer ones an eighth apart."""
    lengths: list[int] = []
    length = 2
    while length <= most:
        lengths.append(length)
        length += 1 if length < 12 else math.ceil(length / 8)
    return tuple(lengths)


def early(count: int) -> int:
    """Return up to which step a change of level counts as the end of a warm-up."""
    return max(5, count // 4)


def best_warm_up(series: Sequence[float]) -> WarmUp:
    """Return the warm-up that fits a series of zero mean best; it takes half of it at most."""
    count = len(series)
    size = math.hypot(*series) or 1.0
    unit = tuple([value / size for value in series])
    squares = list(accumulate(map(mul, unit, unit)))
    at, share = _best_step(unit, 1, early(count))
    best: tuple[Kind, float] = "step", at
    dist, to_beat = math.dist, share * _SURELY
    known = (_of_short if count <= _SHORT else _candidates)(count)
    for kind, value, course, last, square, room in known:
        # Twice the sum of products, from the squares of both and of what differs: half of the time.
        gap = dist(course, unit[: last + 1])
        product = square + squares[last] - gap * gap
        if (gain := product * product / room) > to_beat:
            best = kind, value
            share, to_beat = gain, gain * _SURELY
    return WarmUp(*best, share * size * size)


@lru_cache(maxsize=4)  # of long series, which are few; a short one has a cache of its own
def _candidates(count: int) -> tuple[tuple[Kind, float, tuple[float, ...], int, float, float], ...]:
    """Return kind, length, values, last place, squares, and four times those around the mean."""
    found: list[tuple[Kind, float, tuple[float, ...], int, float, float]] = []
    for length in _lengths(count // 2):
        candidates: tuple[tuple[Kind, float], ...] = (
            ("ramp", length), ("cut", length), ("decay", length / 3),
        )  # fmt: skip
        for kind, value in candidates:
            course = _values(kind, value)[:count]
            total, square = sum(course), sum(map(mul, course, course))
            room = 4 * (square - total * total / count)
            found.append((kind, value, course, len(course) - 1, square, room))
    return tuple(found)


_SHORT = 128
_of_short = lru_cache(maxsize=_SHORT)(_candidates.__wrapped__)


def best_shift(series: Sequence[float]) -> tuple[int, float]:
    """Return the first step after the best change of level past the warm-up, and its gain."""
    count = len(series)
    return _best_step(series, early(count) + 1, count - max(5, count // _END_SHARE))


def _best_step(series: Sequence[float], first: int, last: int) -> tuple[int, float]:
    """Return the step up to ``last`` before which a change of level gains most, and its gain."""
    count, before = len(series), sum(series[: first - 1])
    totals = list(accumulate(series[first - 1 : last], initial=before))[1:]
    gains = list(map(mul, map(mul, totals, totals), _of_steps(count)[first - 1 : last]))
    largest = max(gains, default=0.0)
    found = (pair for pair in enumerate(gains, first) if pair[1] * _SURELY >= largest > 0)
    return next(found, (count // 2, 0.0))


@lru_cache(maxsize=_SHORT)
def _of_steps(count: int) -> tuple[float, ...]:
    """Return, by step, the gain of a change before it over the square of the sum to there."""
    return tuple(count / (at * (count - at)) for at in range(1, count))


@lru_cache(maxsize=_SHORT)
def line(count: int) -> tuple[float, ...]:
    """Return a straight line that rises by 1 from the first to the last step, of mean 0."""
    return tuple(at / (count - 1) - 0.5 for at in range(count))


def line_gain(series: Sequence[float]) -> float:
    """Return by how much a straight line lowers the sum of squares of a series of zero mean."""
    count = len(series)  # the squares of the line add up to its length times this twelfth
    room = count * (count + 1) / (12 * (count - 1))
    return sum(map(mul, line(count), series)) ** 2 / room


def without(series: Sequence[float], course: Sequence[float]) -> list[float]:
    """Return a series of zero mean less its least-squares share of a course."""
    mean = sum(course) / len(course)
    centred = [value - mean for value in course]
    share = sum(map(mul, centred, series)) / sum(map(mul, centred, centred))
    return [value - share * part for value, part in zip(series, centred, strict=True)]
