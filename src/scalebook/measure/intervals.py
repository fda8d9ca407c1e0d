"""Intervals of real numbers, the interval that a printed number stands for, and Student's t."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache

from scalebook.errors import ClaimError

_WORDS = ("thousand", "million", "billion", "trillion")
SCALES = {"": 1} | {
    name: 1000**power for power, word in enumerate(_WORDS, 1) for name in (word, "kmbt"[power - 1])
}

_NUMERAL = re.compile(
    r"(?P<sign>[-+−–]?)[$€£¥]?(?P<digits>\d{1,3}(?:,\d{3}){1,6}|\d{1,24})(?P<decimals>\.\d{1,17})?"
    r"(?:e(?P<exponent>[-+]?\d{1,2}))?\s*(?P<scale>[a-z]*)\s*(?P<percent>%?)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Interval:
    """All numbers from ``low`` to ``high``; an end may be infinite, never NaN.

    ``estimate`` is what the ends lie about, where it is not their middle; arithmetic drops it.
    """

    low: float
    high: float
    estimate: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if math.isnan(self.low) or math.isnan(self.high) or self.low > self.high:
            raise ClaimError(f"{self.low} to {self.high} is not a range: write the low end first.")

    @property
    def middle(self) -> float:
        """The estimate or else the middle; the finite end of a one-sided interval."""
        if self.estimate is not None:
            return self.estimate
        if math.isinf(self.low) or math.isinf(self.high):
            return self.high if math.isinf(self.low) else self.low
        return (self.low + self.high) / 2

    @property
    def exact(self) -> bool:
        """Whether the interval is one number."""
        return self.low == self.high

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    def __mul__(self, other: Interval) -> Interval:
        """Return every product; zero times an open end counts as zero."""
        ends = [
            0.0 if a == 0 or b == 0 else a * b
            for a in (self.low, self.high)
            for b in (other.low, other.high)
        ]
        return Interval(min(ends), max(ends))

    def reciprocal(self) -> Interval:
        """Return every 1 / x; the whole line where the interval reaches across zero."""
        if self.low < 0 < self.high:
            return Interval(-math.inf, math.inf)
        # At zero, infinity on the side on which the interval lies; zero itself has both.
        ends = 1 / self.low if self.low else math.inf, 1 / self.high if self.high else -math.inf
        return Interval(min(ends), max(ends))

    def __truediv__(self, other: Interval) -> Interval:
        return self * other.reciprocal()

    def scaled(self, factor: float) -> Interval:
        """Return the interval times a positive factor."""
        return Interval(self.low * factor, self.high * factor)

    def widened(self, fraction: float) -> Interval:
        """Return the interval with each end moved outwards by a fraction of itself."""
        return Interval(
            self.low - abs(self.low) * fraction if math.isfinite(self.low) else self.low,
            self.high + abs(self.high) * fraction if math.isfinite(self.high) else self.high,
        )

    def meets(self, other: Interval, relative: float = 1e-9) -> bool:
        """Return whether some number lies in both, up to floating-point rounding."""
        ends = (self.low, other.high, other.low, self.high)
        slack = relative * max((abs(end) for end in ends if not math.isinf(end)), default=0.0)
        return self.low <= other.high + slack and other.low <= self.high + slack


def point(value: float) -> Interval:
    """Return the interval of one number."""
    return Interval(value, value)


@dataclass(frozen=True, slots=True)
class Numeral:
    """A number as printed: its value, the size of one unit of its last digit, and a percent sign.

    The value of ``38.3%`` is 0.383 and its unit 0.001.
    """

    value: float
    unit: float
    percent: bool


def read_numeral(text: str) -> Numeral:
    """Return a printed number such as ``87,933``, ``7.6B``, ``$1,869.90``, ``38.3%``, ``1.5e12``.

    A comma behind a first zero, ``0,552``, is a decimal one.

    Raises:
        ClaimError: the text is no such number.
    """
    match = _NUMERAL.fullmatch(re.sub(r"^(\D?0),(?=\d)", r"\1.", text.strip()))
    scale = SCALES.get(match["scale"].lower()) if match else None
    if match is None or scale is None:
        raise ClaimError(
            f"{text[:40]!r} is not a number. Write one like 87,933 or 7.6B or 38.3% or 1.5e12."
        )
    decimals = match["decimals"] or ""
    number = Decimal(match["digits"].replace(",", "") + decimals)
    power = Decimal(10) ** int(match["exponent"] or 0) * scale / (100 if match["percent"] else 1)
    unit = Decimal(10) ** -max(0, len(decimals) - 1) * power
    sign = -1 if match["sign"] in ("-", "−", "–") else 1
    return Numeral(float(number * power) * sign, float(unit), bool(match["percent"]))


_SQRT_2 = math.sqrt(2)


def mean_tail(rows: Sequence[tuple[float, float]], freedom: float) -> float:
    """Return the mean of Student's P(|T| > t) over pairs of a weight and a t.

    Each is within 1 % of itself to t = 3 from 8 degrees of freedom up (Wallace).
    """
    scale = (8 * freedom + 1) / (8 * freedom + 3)
    erfc, sqrt, log1p = math.erfc, math.sqrt, math.log1p
    return sum(
        [
            weight * erfc(scale * sqrt(freedom * log1p(t * t / freedom)) / _SQRT_2)
            for weight, t in rows
        ]
    )


@lru_cache(maxsize=1024)
def student_quantile(freedom: float, probability: float = 0.975) -> float:
    """Return Student's t at a probability above one half; ``freedom`` may be a fraction."""
    low, high = 0.0, 1e12
    for _ in range(100):
        middle = (low + high) / 2
        # P(T > t) is half the regularised incomplete beta function (A&S 26.7.1)
        tail = _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + middle * middle)) / 2
        if tail > 1 - probability:
            low = middle
        else:
            high = middle
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return I_x(a, b) by its continued fraction (A&S 26.5.8), on the side where it is fast."""
    if x == 1:
        return 1.0
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
