"""Repeats of one configuration as one number: what differs from start to start counts.

Runs differ by more than their steps do (placement, clocks, neighbours), so the interval is
Student's t over the means of runs, on logarithms of rates. Its variance is at least what the steps
explain. Two runs alone would have a t of 12.7 with a spread from one difference; there, the spread
that starts are assumed to have (``START_SPREAD``) counts as one more observation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean

from scalebook import identity
from scalebook.measure.metrics.row import RunMetrics
from scalebook.measure.metrics.student import student_quantile
from scalebook.record import RunRecord

# Standard deviation of the mean step time from one start to the next, as a fraction, where it was
# not measured by repeats. Half a percent is also the floor of the scaling law's intervals;
# processes that share the cores of a machine repeat less well.
START_SPREAD = 0.005
START_SPREAD_CPU = 0.02

Z95 = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class Estimate:
    """One run's rate in a unit of its own, as a logarithm, with half its 95 % interval."""

    log_rate: float
    half: float  # of the logarithm
    steps: int

    @classmethod
    def of(cls, rate: float, low: float, high: float, steps: int) -> Estimate:
        """Return the estimate of a rate with its interval; all are above zero."""
        half = max(math.log(high / rate), math.log(rate / low), 0.0)
        return cls(math.log(rate), half, steps)

    @property
    def variance(self) -> float:
        """The variance that the run's own steps explain."""
        return (self.half / Z95) ** 2


@dataclass(frozen=True, slots=True)
class Spread:
    """The variance of one run's mean and the degrees of freedom it is known with."""

    variance: float
    freedom: float


def spread(groups: Sequence[Sequence[Estimate]], start_spread: float) -> Spread | None:
    """Return how much single runs scatter, pooled over groups; None where no group has two."""
    freedom = sum(len(group) - 1 for group in groups)
    if freedom < 1:
        return None
    total = 0.0
    for group in groups:
        centre = fmean(item.log_rate for item in group)
        total += sum((item.log_rate - centre) ** 2 for item in group)
    within = fmean(item.variance for group in groups for item in group)
    if freedom == 1:
        return Spread(max(total, start_spread**2 + within), 2)
    return Spread(max(total / freedom, within), freedom)


@dataclass(frozen=True, slots=True)
class Pooled:
    """The rate of a configuration over its repeats, with its 95 % interval."""

    runs: int
    rate: float
    low: float
    high: float


def pool(group: Sequence[Estimate], start_spread: float = START_SPREAD) -> Pooled | None:
    """Return repeats as one rate (the geometric mean); None for fewer than two."""
    found = spread([group], start_spread)
    if found is None:
        return None
    centre = fmean(item.log_rate for item in group)
    half = student_quantile(found.freedom) * math.sqrt(found.variance / len(group))
    return Pooled(len(group), math.exp(centre), math.exp(centre - half), math.exp(centre + half))


def start_spread(platform: str | None) -> float:
    """Return the assumed spread of starts on a platform."""
    return START_SPREAD_CPU if platform == "cpu" else START_SPREAD


def estimate(item: RunMetrics) -> Estimate | None:
    """Return a run's tokens per second as an estimate; None where it has no interval."""
    rate, low, high = (
        item.tokens_per_second,
        item.tokens_per_second_low,
        item.tokens_per_second_high,
    )
    if rate is None or low is None or high is None:
        return None
    return Estimate.of(rate, low, high, item.steady_steps or 0)


def with_repeats(pairs: Iterable[tuple[RunRecord, RunMetrics]]) -> list[RunMetrics]:
    """Return the metrics of runs, each with the pooled rate of its configuration's repeats."""
    return pooled_repeats((identity.repeat(record), item) for record, item in pairs)


def pooled_repeats(pairs: Iterable[tuple[str | None, RunMetrics]]) -> list[RunMetrics]:
    """Return the same for metrics with the key that repeats share."""
    found = list(pairs)
    groups: dict[str, list[Estimate]] = {}
    for key, item in found:
        known = estimate(item)
        if key is not None and known is not None:
            groups.setdefault(key, []).append(known)
    platforms = {key: item.platform for key, item in found}
    pooled = {key: pool(group, start_spread(platforms[key])) for key, group in groups.items()}
    return [_pooled(item, pooled.get(key) if key is not None else None) for key, item in found]


def _pooled(item: RunMetrics, pooled: Pooled | None) -> RunMetrics:
    if pooled is None or estimate(item) is None:
        reason = "It takes two runs of a configuration with an interval."
        return replace(item, pooled_reason=reason)
    return replace(
        item,
        repeats=pooled.runs,
        pooled_tokens_per_second=pooled.rate,
        pooled_tokens_per_second_low=pooled.low,
        pooled_tokens_per_second_high=pooled.high,
        pooled_reason=None,
    )
