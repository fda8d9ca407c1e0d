"""What differs from start to start: repeats as one number, and what a single run cannot show.

Runs differ by more than their steps do (placement, clocks, neighbours). The variance of a run's
mean is that of its steps plus that of starts, and the assumed spread of starts is the prior of the
second: worth ``WORTH`` observations, so that repeats decide no less than single runs. Repeats that
contradict it count by themselves; a single difference still has it as one observation. Intervals
are Student's t on logarithms of rates.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import Any

from scalebook import identity
from scalebook.errors import ConfigError
from scalebook.measure.intervals import student_quantile
from scalebook.measure.row import SPREAD_VARIABLE, RunMetrics
from scalebook.record import RunRecord

# Standard deviation of the mean step time from one start to the next, as a fraction, where it was
# not measured by repeats. Half a percent is also the floor of the scaling law's intervals;
# processes that share the cores of a machine repeat less well.
START_SPREAD = 0.005
START_SPREAD_CPU = 0.02
# The same from one device of a kind to another: H200s of several nodes at one power cap.
DEVICE_SPREAD = 0.012

# With eight, two runs on one side decide as often as one; as many repeats outweigh it.
WORTH = 8.0
_CONTRADICTS = 1.281552  # the normal distribution's 90 % point

Z95 = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class Estimate:
    """One run's rate in a unit of its own, as a logarithm, with half its 95 % interval."""

    log_rate: float
    half: float  # of the logarithm
    steps: int
    devices: str = ""  # ids, separated by blanks; empty: not known

    @classmethod
    def of(
        cls, rate: float, low: float, high: float, steps: int, devices: str | None = None
    ) -> Estimate:
        """Return the estimate of a rate with its interval; all are above zero."""
        half = max(math.log(high / rate), math.log(rate / low), 0.0)
        return cls(math.log(rate), half, steps, devices or "")

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
    assumed = start_spread**2 + within
    agrees = total <= assumed * _most_by_chance(freedom)
    worth = WORTH if agrees else 1.0 if freedom == 1 else 0.0
    variance = (worth * assumed + total) / (worth + freedom)
    return Spread(max(variance, within), worth + freedom)


def _most_by_chance(freedom: int) -> float:
    """Return the 90 % point of chi-square (Wilson and Hilferty, A&S 26.4.17)."""
    part = 2 / (9 * freedom)
    return freedom * (1 - part + _CONTRADICTS * math.sqrt(part)) ** 3


@dataclass(frozen=True, slots=True)
class ChanceVariance:
    """What two sides may differ by: a variance of logarithms, and what it consists of."""

    variance: float
    freedom: float | None  # None: all of it is assumed
    devices: float  # the part of it that further runs on the same devices leave
    measured: Spread | None  # of single runs that nothing but a start tells apart


def chance_variance(
    a: Sequence[Estimate], b: Sequence[Estimate], start_spread: float, device_spread: float
) -> ChanceVariance:
    """Return what two sides of nothing but other starts, on these nodes, may differ by.

    A node is as fast for all its runs: repeats do not take its share away, the other side on the
    same node does. Where each run had a node of its own, their scatter shows both.
    """
    sides, nodes = (a, b), dict[str, float]()
    groups: dict[tuple[int, str], list[Estimate]] = {}
    ids = [set(one.devices.split()) for side in sides for one in side]
    for number, side in enumerate(sides):
        for one in side:
            own = set(one.devices.split())
            same = [other for other in ids if own & other]  # of a node that runs use parts of
            node = min(set[str]().union(*same), default=f"side {number}")
            nodes[node] = nodes.get(node, 0.0) + (-1) ** number / len(side)
            groups.setdefault((number, node), []).append(one)
    devices = device_spread**2 * sum(share**2 for share in nodes.values())
    split = list(groups.values())
    if devices and len(nodes) == len(a) + len(b) > 2:
        start_spread, devices, split = math.hypot(start_spread, device_spread), 0.0, sides
    measured = spread(split, start_spread)
    if measured is None:
        own = sum((start_spread**2 + fmean(i.variance for i in one)) / len(one) for one in sides)
        return ChanceVariance(own + devices, None, devices, None)
    own = measured.variance * (1 / len(a) + 1 / len(b))
    freedom = measured.freedom * (1 + devices / own) ** 2 if own else measured.freedom
    return ChanceVariance(own + devices, freedom, devices, measured)


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
    """Return the assumed spread of starts on a platform, a fraction.

    Raises:
        ConfigError: the environment variable that replaces it is not a fraction below 1.
    """
    stated = os.environ.get(SPREAD_VARIABLE)
    if stated:
        return read_spread(stated)
    return START_SPREAD_CPU if platform == "cpu" else START_SPREAD


def between(start: float, assumed: float, other_devices: bool | None) -> tuple[float, float]:
    """Return the spreads of starts and of devices for two sides; nodes say which devices count.

    A measured one may be of repeats on several devices: on the same ones what is ``assumed`` of
    starts counts. What the environment states is for both.
    """
    if other_devices is None or os.environ.get(SPREAD_VARIABLE):
        return start, 0.0
    if not other_devices:
        return min(start, assumed), DEVICE_SPREAD
    return START_SPREAD, math.sqrt(max(start**2 - START_SPREAD**2, DEVICE_SPREAD**2))


def read_spread(text: str) -> float:
    """Return a spread of starts that a user stated, like 0.01 or 1%, as a fraction.

    Raises:
        ConfigError: it is not a fraction of at least 0 and below 1.
    """
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise ConfigError(
            f"The spread of starts {text[:40]!r} is not a fraction from 0 to below 1. Write it "
            "like 0.01 or 1%."
        )
    return value


def estimate(item: RunMetrics) -> Estimate | None:
    """Return a run's tokens per second as an estimate; None where it has no interval."""
    rate, low, high = (
        item.tokens_per_second,
        item.run_tokens_per_second_low,
        item.run_tokens_per_second_high,
    )
    if rate is None or low is None or high is None:
        return None
    return Estimate.of(rate, low, high, item.steady_steps or 0, item.device_ids)


def of_configuration(rate: float, low: float, high: float, start: float) -> tuple[float, float]:
    """Return the interval of a configuration's rate by one run of it.

    The ends of the run's own interval and the spread of starts are independent: distances add as
    squares, on logarithms.
    """
    starts = Z95 * start
    below, above = math.log(rate / low), math.log(high / rate)
    return rate * math.exp(-math.hypot(below, starts)), rate * math.exp(math.hypot(above, starts))


def with_repeats(pairs: Iterable[tuple[RunRecord, RunMetrics]]) -> list[RunMetrics]:
    """Return the metrics of runs, each with the pooled rate of its configuration's repeats.

    Repeats also measure the spread of starts of their platform, which then counts in the interval
    of every configuration on it.
    """
    return pooled_repeats((identity.repeat(record), item) for record, item in pairs)


def pooled_repeats(pairs: Iterable[tuple[str | None, RunMetrics]]) -> list[RunMetrics]:
    """Return the same for metrics with the key that repeats share."""
    found = [(key, item, estimate(item)) for key, item in pairs]
    groups: dict[str, list[Estimate]] = {}
    platforms: dict[str, str | None] = {}
    for key, item, known in found:
        if key is not None and known is not None:
            groups.setdefault(key, []).append(known)
            platforms[key] = item.platform
    starts: dict[str | None, tuple[float, int]] = {}
    for platform in set(platforms.values()):
        of_it = [group for key, group in groups.items() if platforms[key] == platform]
        starts[platform] = _measured_starts(of_it, start_spread(platform))
    pooled = {key: pool(group, start_spread(platforms[key])) for key, group in groups.items()}
    return [
        item.changed(
            _with_starts(item, starts) | _pooled(None if known is None else pooled.get(key or ""))
        )
        for key, item, known in found
    ]


def _measured_starts(groups: Sequence[Sequence[Estimate]], assumed: float) -> tuple[float, int]:
    """Return the spread of starts and over how many repeats it was measured; 0 where assumed."""
    repeated = [group for group in groups if len(group) > 1]
    scatter = spread(repeated, assumed)
    if scatter is None:
        return assumed, 0
    within = fmean(item.variance for group in repeated for item in group)
    return math.sqrt(max(scatter.variance - within, 0.0)), sum(map(len, repeated))


def _with_starts(
    item: RunMetrics, starts: Mapping[str | None, tuple[float, int]]
) -> dict[str, Any]:
    """Return what changes with the spread of starts of the platform in every interval."""
    start, runs = starts.get(item.platform, (item.start_spread, 0))
    if start is None or start == item.start_spread or item.start_spread is None:
        return {}
    # replaces the spread that the interval has by the one that was measured
    more = Z95**2 * (start**2 - item.start_spread**2)

    def moved(value: float | None, end: float | None, sign: int) -> float | None:
        if value is None or end is None:
            return end
        return value * math.exp(sign * math.sqrt(max(math.log(end / value) ** 2 + more, 0.0)))

    rate, mfu = item.tokens_per_second, item.mfu
    return {
        "start_spread": start,
        "start_spread_runs": runs,
        "tokens_per_second_low": moved(rate, item.tokens_per_second_low, -1),
        "tokens_per_second_high": moved(rate, item.tokens_per_second_high, 1),
        "mfu_low": moved(mfu, item.mfu_low, -1),
        "mfu_high": moved(mfu, item.mfu_high, 1),
    }


def _pooled(pooled: Pooled | None) -> dict[str, Any]:
    if pooled is None:
        return {"pooled_reason": "It takes two runs of a configuration with an interval."}
    return {
        "repeats": pooled.runs,
        "pooled_tokens_per_second": pooled.rate,
        "pooled_tokens_per_second_low": pooled.low,
        "pooled_tokens_per_second_high": pooled.high,
        "pooled_reason": None,
    }
