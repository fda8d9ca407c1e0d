"""A against B: which is faster, by how much, how sure that is, and what would decide.

The ratio is throughput of A over throughput of B, so above 1 means that A is faster: tokens per
second where both sides tell their tokens, else steps per second. ``compare`` works on estimates
alone; ``read`` makes them from runs, folders of repeats and files (``series``), ``differences``
says what else differs between the sides, and ``gate`` compares folders of runs configuration by
configuration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean
from typing import Literal

from scalebook.measure.intervals import student_quantile
from scalebook.measure.metrics.repeats import (
    DEVICE_SPREAD,
    START_SPREAD,
    WORTH,
    Z95,
    ChanceVariance,
    Estimate,
    chance_variance,
)
from scalebook.untrusted import html_table

Word = Literal["faster", "slower", "cannot tell"]

Rate = Literal["tokens/s of all GPUs", "steps/s"]

_MOST_REPEATS = 50  # beyond this no one will repeat a run to settle a difference


@dataclass(frozen=True, slots=True)
class Verdict:
    """Throughput of A over that of B with its interval, and what it means; above 1 A is faster."""

    word: Word
    ratio: float
    low: float
    high: float
    advice: str | None = None  # what would decide, where nothing does
    rate: Rate | None = None  # what is compared, where the estimates are known to be of it
    start_spread: float | None = None  # assumed from one start to the next, a fraction
    measured_spread: float | None = None  # of runs of one side, where there are repeats
    other_devices: bool | None = None  # whether the sides ran on other devices, where known

    @property
    def turned(self) -> Verdict:
        """The verdict on B over A."""
        words: dict[Word, Word] = {"faster": "slower", "slower": "faster"}
        word = words.get(self.word, self.word)
        ends = {"ratio": 1 / self.ratio, "low": 1 / self.high, "high": 1 / self.low}
        return replace(self, word=word, **ends)

    def _repr_html_(self) -> str:
        return html_table({"verdict": self.sentence, "advice": self.advice})

    @property
    def sentence(self) -> str:
        """The verdict in words, with the interval in percent and what it is of."""
        low, high = 100 * (self.low - 1), 100 * (self.high - 1)
        of = f", in {self.rate}" if self.rate else ""
        if self.word == "faster":
            return f"A is faster than B by {_digits(low)} to {_digits(high)} %{of}."
        if self.word == "slower":
            return f"A is slower than B by {_digits(-high)} to {_digits(-low)} %{of}."
        slower, faster = _digits(-low), _digits(high)
        return f"Cannot tell: A is between {slower} % slower and {faster} % faster{of}."

    @property
    def assumption(self) -> str | None:
        """Which spread from start to start the interval stands on, in a sentence."""
        if self.start_spread is None:
            return None
        assumed = f"{100 * self.start_spread:.2g} %"
        if self.measured_spread is None:
            where = {
                None: "from start to start; two devices of one kind may differ by more",
                False: "from start to start on the same devices",
                True: "from start to start and from device to device",
            }[self.other_devices]
            return (
                f"Assumed: the speed of one configuration varies by {assumed} (standard deviation) "
                f"{where}. Repeats on both would show it."
            )
        return (
            f"Runs of a side vary by {100 * self.measured_spread:.2g} % (standard deviation); "
            f"{assumed} was assumed before."
        )


def _digits(value: float) -> str:
    return f"{value:.2g}" if abs(value) < 10 else f"{value:.0f}"


def compare(
    a: Sequence[Estimate],
    b: Sequence[Estimate],
    *,
    start_spread: float = START_SPREAD,
    device_spread: float = 0.0,
    level: float = 0.95,
) -> Verdict:
    """Return the verdict on two sets of runs, at least one run each.

    With repeats, the spread of runs around their side's mean, pooled over both sides, gives
    Student's interval, with ``start_spread`` as the prior: repeats never decide less often than
    single runs. A single run per side shows nothing of starts: there it is assumed. What nodes
    differ by, ``device_spread``, counts where the sides ran on other ones, repeats or not.
    """
    difference = fmean(item.log_rate for item in a) - fmean(item.log_rate for item in b)
    found = chance_variance(a, b, start_spread, device_spread)
    half = _quantile(found.freedom, level) * math.sqrt(found.variance)
    low, high = math.exp(difference - half), math.exp(difference + half)
    word: Word = "faster" if low > 1 else "slower" if high < 1 else "cannot tell"
    assumed = math.hypot(start_spread, math.sqrt(found.devices / 2))
    advice = None
    if word == "cannot tell":
        advice = _advice(a, b, abs(difference), start_spread, found=found, level=level)
    measured = math.sqrt(found.measured.variance) if found.measured else None
    return Verdict(
        word,
        math.exp(difference),
        low,
        high,
        advice,
        start_spread=assumed,
        measured_spread=measured,
    )


def _quantile(freedom: float | None, level: float) -> float:
    at = 0.5 + level / 2
    return NormalDist().inv_cdf(at) if freedom is None else student_quantile(freedom, at)


def _advice(
    a: Sequence[Estimate],
    b: Sequence[Estimate],
    size: float,
    start: float,
    *,
    found: ChanceVariance,
    level: float,
) -> str:
    """Return what would decide a difference of the size seen: steps, repeats, or one node."""
    if _quantile(None, level) * math.sqrt(found.devices) >= size:
        return (
            f"Devices of one kind differ by about {100 * DEVICE_SPREAD:.2g} %, which repeats on "
            "the same ones do not change: run both sides on one node, or each on several."
        )
    single = len(a) == len(b) == 1
    constant = 2 * start**2 + found.devices
    if single and (steps := _more_steps(a[0], b[0], size, constant, level)) is not None:
        more = "step" if steps == 1 else "steps"
        return f"About {steps:,} more {more} per run would decide a difference of this size."
    scattered, within = found.measured, fmean(item.variance for item in (*a, *b))
    variance = scattered.variance if scattered else start**2 + within
    have = min(len(a), len(b))
    worth = scattered.freedom - (len(a) + len(b) - 2) if scattered else WORTH
    for repeats in range(have + 1, _MOST_REPEATS + 1):
        quantile = student_quantile(worth + 2 * repeats - 2, 0.5 + level / 2)
        if quantile * math.sqrt(2 * variance / repeats + found.devices) < size:
            more = repeats - have
            runs = "repeat" if more == 1 else "repeats"
            return f"About {more} more {runs} per side would decide a difference of this size."
    return (
        f"A difference of {100 * size:.2g} % is too small to settle with {_MOST_REPEATS} repeats "
        "per side at this spread."
    )


def _more_steps(a: Estimate, b: Estimate, size: float, rest: float, level: float) -> int | None:
    """Return how many steps more would decide; None if the ``rest`` of the variance hides it."""
    normal = NormalDist().inv_cdf(0.5 + level / 2)
    room = size**2 - normal**2 * rest
    own = (a.half**2 + b.half**2) * (normal / Z95) ** 2
    if room <= 0 or min(a.steps, b.steps) < 1:
        return None
    factor = own / room  # the variance of a mean falls as its steps
    return math.ceil(max(factor - 1, 0.1) * max(a.steps, b.steps)) if factor <= 100 else None
