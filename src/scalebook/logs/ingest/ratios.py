"""Whole numbers that follow from quotients of columns, as far as their digits tell."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable

from scalebook.logs.job import Job
from scalebook.logs.numbers import rounding


def only_integer(value: float, tolerance: float, grain: int = 1) -> int | None:
    """Return the one multiple of ``grain`` within a relative tolerance of a value, else None."""
    if not 0 < value < 1e15:
        return None
    low = math.ceil(value * (1 - tolerance) / grain - 1e-12)
    high = math.floor(value * (1 + tolerance) / grain + 1e-12)
    return low * grain if low == high and low > 0 else None


def rounding_of(job: Job, name: str) -> float:
    """Return the relative error that the digits of a column leave on its median."""
    values = job.table.values(name)[:200]
    median = job.table.median(name)
    if not values or not median:
        return math.inf
    finest = min((rounding(value) * abs(value) for value in values if value), default=math.inf)
    finest = min(finest, job.finest.get(name, math.inf))
    return max(finest / abs(median), job.rounded)


def ratio(job: Job, above: Iterable[str], below: Iterable[str]) -> tuple[float, float] | None:
    """Return the median over rows of a quotient of columns, and its relative error."""
    names = [*above, *below]
    count = len(list(above))
    columns = [job.table.column(name) for name in names]
    quotients: list[float] = []
    for row in zip(*columns, strict=True):
        top, bottom = math.prod(row[:count]), math.prod(row[count:])
        if top > 0 and bottom > 0:  # false for NaN
            quotients.append(top / bottom)
    if not quotients:
        return None
    error = sum(rounding_of(job, name) for name in names)
    return statistics.median(quotients), error


def difference(job: Job, above: str, below: str) -> int | None:
    """Return the quotient of what two counters gained over the rows, if it is one whole number."""
    top, bottom = job.table.column(above), job.table.column(below)
    found: Counter[int] = Counter()
    for index in range(1, len(job.table)):
        gained, steps = top[index] - top[index - 1], bottom[index] - bottom[index - 1]
        if gained > 0 and steps > 0 and (gained / steps).is_integer():
            found[int(gained / steps)] += 1
    if not found:
        return None
    value, times = found.most_common(1)[0]
    return value if times * 2 > len(job.table) - 1 or times == sum(found.values()) else None
