"""Which course fits a series best: a warm-up that ends, a level that shifts, a drift.

Each is found by least squares over all places and lengths where it could be; whether it is more
than chance is judged elsewhere, because autocorrelated noise has such courses too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import mul
from typing import Literal

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
    best = WarmUp("step", 1, 0.0)
    for at, gain in _steps(series, 1, early(count)):
        if gain > best.gain * _SURELY:
            best = WarmUp("step", at, gain)
    for kind, value, course, room in _candidates(count):
        gain = sum(map(mul, course, series)) ** 2 / room
        if gain > best.gain * _SURELY:
            best = WarmUp(kind, value, gain)
    return best


@lru_cache(maxsize=8)
def _candidates(count: int) -> tuple[tuple[Kind, float, tuple[float, ...], float], ...]:
    """Return kind, length, values and sum of squares around the mean of each possible warm-up."""
    found: list[tuple[Kind, float, tuple[float, ...], float]] = []
    for length in _lengths(count // 2):
        candidates: tuple[tuple[Kind, float], ...] = (
            ("ramp", length), ("cut", length), ("decay", length / 3),
        )  # fmt: skip
        for kind, value in candidates:
            course = _values(kind, value)[:count]
            total = sum(course)
            room = sum(map(mul, course, course)) - total * total / count
            found.append((kind, value, course, room))
    return tuple(found)


def best_shift(series: Sequence[float]) -> tuple[int, float]:
    """Return the first step after the best change of level past the warm-up, and its gain."""
    count = len(series)
    last = count - max(5, count // _END_SHARE)
    best, best_gain = count // 2, 0.0
    for at, gain in _steps(series, early(count) + 1, last):
        if gain > best_gain * _SURELY:
            best, best_gain = at, gain
    return best, best_gain


def _steps(series: Sequence[float], first: int, last: int) -> Iterator[tuple[int, float]]:
    """Yield the gain of a change of level before each step from ``first`` to ``last``."""
    count = len(series)
    total = sum(series[: first - 1])
    for at in range(first, last + 1):
        total += series[at - 1]
        yield at, total * total * count / (at * (count - at))


@lru_cache(maxsize=16)
def line(count: int) -> tuple[float, ...]:
    """Return a straight line that rises by 1 from the first to the last step, of mean 0."""
    return tuple(at / (count - 1) - 0.5 for at in range(count))


def line_gain(series: Sequence[float]) -> float:
    """Return by how much a straight line lowers the sum of squares of a series of zero mean."""
    straight = line(len(series))
    return sum(map(mul, straight, series)) ** 2 / sum(map(mul, straight, straight))


def without(series: Sequence[float], course: Sequence[float]) -> list[float]:
    """Return a series of zero mean less its least-squares share of a course."""
    mean = sum(course) / len(course)
    centred = [value - mean for value in course]
    share = sum(map(mul, centred, series)) / sum(map(mul, centred, centred))
    return [value - share * part for value, part in zip(series, centred, strict=True)]
