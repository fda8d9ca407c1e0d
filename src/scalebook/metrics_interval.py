"""How sure a rate is: a moving-block bootstrap of the step series, in plain Python."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import accumulate

MINIMUM_STEPS = 10
RESAMPLES = 1000
SEED = 20210613


def block_length(count: int) -> int:
    """Return how many neighbouring steps are drawn together: the cube root of their number.

    Steps are autocorrelated (clocks, data, stragglers), so single draws would make the interval
    too narrow; n^(1/3) is the rate of Kunsch 1989 (doi 10.1214/aos/1176347265).
    """
    return max(1, math.ceil(count ** (1 / 3)))


def rate_interval(
    amounts: Sequence[float],
    seconds: Sequence[float],
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> tuple[float, float] | None:
    """Return the low and high ends of total amount over total seconds (amount per second).

    None for fewer than ``MINIMUM_STEPS`` steps. The same series gives the same interval: the
    generator is seeded. Blocks wrap around the end so that every step is drawn as often.
    """
    count = len(seconds)
    if count < MINIMUM_STEPS:
        return None
    length = block_length(count)
    amount_sums, second_sums = (_block_sums(series, length) for series in (amounts, seconds))
    generator = random.Random(seed)
    draws = math.ceil(count / length)
    rates: list[float] = []
    for _ in range(resamples):
        starts = generator.choices(range(count), k=draws)
        taken = sum(second_sums[start] for start in starts)
        rates.append(sum(amount_sums[start] for start in starts) / taken)
    rates.sort()
    tail = (1 - confidence) / 2
    return _quantile(rates, tail), _quantile(rates, 1 - tail)


def _block_sums(series: Sequence[float], length: int) -> list[float]:
    """Return the sum of ``length`` neighbours from each position on, wrapping around."""
    wrapped = [*series, *series[: length - 1]]
    sums = [0.0, *accumulate(wrapped)]
    return [sums[start + length] - sums[start] for start in range(len(series))]


def _quantile(ordered: Sequence[float], fraction: float) -> float:
    """Return the linearly interpolated quantile of a sorted series."""
    position = fraction * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
