"""How sure a rate is: a moving-block bootstrap of the step series, in plain Python.

Steps are autocorrelated (clocks, data, stragglers): drawing them one by one would make the interval
too narrow. Blocks of neighbours keep the correlation inside a block (Künsch 1989, doi
10.1214/aos/1176347265); they wrap around the end, so that every step is drawn as often (Politis
and Romano 1992).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import accumulate

MINIMUM_STEPS = 10
RESAMPLES = 1000
SEED = 20210613
NORMAL = 1.959964  # the normal distribution's two-sided 95 % point


def rate_interval(
    amounts: Sequence[float],
    seconds: Sequence[float],
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> tuple[float, float] | None:
    """Return the 95 % interval of total amount over total seconds (amount per second).

    None for fewer than ``MINIMUM_STEPS`` steps. The same series gives the same interval: the
    generator is seeded. Deviations are taken of the logarithm, so that both ends are above zero.
    """
    count = len(seconds)
    if count < MINIMUM_STEPS:
        return None
    length = block_length(
        [second / amount for amount, second in zip(amounts, seconds, strict=True)]
    )
    amount_sums, second_sums = (_block_sums(series, length) for series in (amounts, seconds))
    centre = math.log(sum(amounts) / sum(seconds))
    generator = random.Random(seed)
    draws = math.ceil(count / length)
    deviations: list[float] = []
    for _ in range(resamples):
        starts = generator.choices(range(count), k=draws)
        taken = sum(second_sums[start] for start in starts)
        deviations.append(math.log(sum(amount_sums[start] for start in starts) / taken) - centre)
    deviations.sort()
    widen = _few_blocks(count / length) * math.sqrt(draws * length / count)
    low, high = (widen * _quantile(deviations, fraction) for fraction in (0.025, 0.975))
    return math.exp(centre + low), math.exp(centre + high)


def _few_blocks(blocks: float) -> float:
    """Return by how much few blocks make a bootstrap interval too narrow.

    Student's t over the normal point, and the variance's divisor of n - 1; t by its expansion in
    1/degrees of freedom (Abramowitz and Stegun 26.7.5), good to 1 % from 2.5 degrees up.
    """
    free, z = max(blocks - 1, 2.5), NORMAL
    student = (
        z
        + (z**3 + z) / (4 * free)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * free**3)
    )
    return student / z * math.sqrt(blocks / max(blocks - 1, 1))


def block_length(series: Sequence[float]) -> int:
    """Return how many neighbours are drawn together, from the series' own autocorrelation.

    Politis and White 2004 (doi 10.1081/ETC-120028836) with the correction of 2009 for blocks that
    wrap around; at least the cube root of the count, at most a quarter of it.
    """
    count = len(series)
    least = max(1, math.ceil(round(count ** (1 / 3), 9)))
    most = max(least, count // 4)
    covariance = _autocovariance(series, min(count - 1, math.ceil(math.sqrt(count)) + 5))
    if covariance[0] <= 1e-18 * (sum(series) / count) ** 2:  # constant but for rounding
        return least
    width = min(2 * max(_last_correlated(covariance, count), 1), len(covariance) - 1)
    # A flat-top window: whole up to half its width, then falling to zero.
    weights = [min(1.0, 2 * (1 - lag / width)) for lag in range(width + 1)]
    weighted = [weight * value for weight, value in zip(weights, covariance, strict=False)]
    spectrum = weighted[0] + 2 * sum(weighted[1:])
    if spectrum <= 0:
        return most
    slope = 2 * sum(lag * value for lag, value in enumerate(weighted))
    best = (2 * slope**2 / (4 / 3 * spectrum**2)) ** (1 / 3) * count ** (1 / 3)
    return min(max(math.ceil(best), least), most)


def _autocovariance(series: Sequence[float], lags: int) -> list[float]:
    mean = sum(series) / len(series)
    centred = [value - mean for value in series]
    return [
        sum(left * right for left, right in zip(centred, centred[lag:], strict=False)) / len(series)
        for lag in range(lags + 1)
    ]


def _last_correlated(covariance: Sequence[float], count: int) -> int:
    """Return the lag after which five correlations in a row are within their noise."""
    limit = 2 * math.sqrt(math.log10(count) / count) * covariance[0]
    quiet = [abs(value) < limit for value in covariance]
    for lag in range(1, len(quiet)):
        if all(quiet[lag : lag + 5]):
            return lag - 1
    return len(quiet) - 1


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
