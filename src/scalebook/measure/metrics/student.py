"""Student's t: the tail that many evaluations need fast, and quantiles that must be exact."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

_SQRT_2 = math.sqrt(2)


def two_sided_tail(t: float, freedom: float) -> float:
    """Return P(|T| > t), to about 1 % of itself from 8 degrees of freedom up (Wallace 1959)."""
    scale = (8 * freedom + 1) / (8 * freedom + 3)
    return math.erfc(scale * math.sqrt(freedom * math.log1p(t * t / freedom)) / _SQRT_2)


def mean_tail(distance: float, errors: Sequence[tuple[float, float]], freedom: float) -> float:
    """Return the mean of P(|T| > distance / error) over pairs of a weight and an error.

    The same as ``two_sided_tail`` of each, which is evaluated hundreds of times for one interval.
    """
    scale = (8 * freedom + 1) / (8 * freedom + 3)
    erfc, sqrt, log1p = math.erfc, math.sqrt, math.log1p
    return sum(
        [
            weight * erfc(scale * sqrt(freedom * log1p(t * t / freedom)) / _SQRT_2)
            for weight, error in errors
            for t in (distance / error,)
        ]
    )


@lru_cache(maxsize=1024)
def student_quantile(freedom: float, probability: float = 0.975) -> float:
    """Return Student's t at a probability above one half; ``freedom`` may be a fraction."""
    low, high = 0.0, 1.0
    while _upper_tail(high, freedom) > 1 - probability and high < 1e12:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        if _upper_tail(middle, freedom) > 1 - probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _upper_tail(t: float, freedom: float) -> float:
    """Return P(T > t) for t >= 0: half the regularised incomplete beta function (A&S 26.7.1)."""
    return 0.5 * _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return I_x(a, b) by its continued fraction (A&S 26.5.8), on the side where it is fast."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction, evaluated from the front (Lentz's method)."""
    tiny = 1e-300
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or tiny)
    value = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / (1 + term * d or tiny)
            c = 1 + term / c or tiny
            value *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return value
