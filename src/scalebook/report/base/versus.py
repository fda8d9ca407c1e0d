"""Configurations on every page: the repeats of one are one rate, and verdicts are between rates.

What is a repeat ``identity`` decides; so no page pools runs in a way of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, floor, log, log10
from statistics import fmean
from typing import Any

from scalebook.identity import alike, other_devices
from scalebook.measure.metrics.repeats import Estimate, Pooled, between, pool, start_spread
from scalebook.measure.verdicts import Verdict, compare
from scalebook.report.base.markup import Markup, join, run_link, run_links
from scalebook.report.base.naming import Row, in_words, split_name
from scalebook.report.base.quantities import change, interval, number

LEAST_DIGITS, MOST_DIGITS = 3, 4  # of a number that follows from a rate


@dataclass(frozen=True, slots=True)
class Configuration:
    """Repeats of one configuration as one: those with an interval, where any has one.

    A repeat without an interval tells a rate that nobody knows the error of: it is ``left_out``
    beside those with one.
    """

    runs: tuple[Row, ...]  # the fastest first
    left_out: tuple[Row, ...] = ()

    @property
    def row(self) -> Row:
        """The fastest of its runs, under the name that they all share."""
        return unnumbered(self.runs[0]) if len(self.every) > 1 else self.runs[0]

    @property
    def every(self) -> tuple[Row, ...]:
        """All repeats, those left out too."""
        return (*self.runs, *self.left_out)

    @property
    def estimates(self) -> list[Estimate]:
        """What is known of the rate of each run."""
        return [found for row in self.runs if (found := estimate_of(row)) is not None]

    @property
    def rate(self) -> float:
        """The rate in the unit of its runs, of repeats the geometric mean."""
        return self.mean("rate") or 0.0

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """The ends of the rate's 95 % interval; of repeats, the spread of runs counted."""
        pooled = self._pooled()
        if pooled is not None:
            return pooled.low, pooled.high
        return self.runs[0]["rate_low"], self.runs[0]["rate_high"]

    def _pooled(self) -> Pooled | None:
        return pool(self.estimates, start_spread(self.runs[0]["platform"]))

    def mean(self, column: str) -> float | None:
        """Return the geometric mean of a column over the runs; None where one has no value."""
        values = [row[column] for row in self.runs]
        if not all(values):
            return None
        return values[0] if len(values) == 1 else exp(fmean(log(value) for value in values))

    def derived(self, value: float | None) -> str:
        """Return a number that follows from the rate, in no more digits than are known of that.

        They reach to the first digit of half the interval, three to four of them; three where the
        rate has no interval.
        """
        if not value:
            return number(value)
        low, high = self.interval
        digits = LEAST_DIGITS
        if low and high and high > low:
            half = value * (high - low) / 2 / self.rate
            digits = floor(log10(value)) - floor(log10(half)) + 1
        digits = min(max(digits, LEAST_DIGITS), MOST_DIGITS)
        return number(float(f"{value:.{digits}g}"), digits)


def configurations(rows: Iterable[Row]) -> list[Configuration]:
    """Return the configurations of runs that have a rate, the fastest first."""
    found = alike(rows, lambda row: row["configuration"])
    return sorted(map(_together, found), key=lambda one: one.rate, reverse=True)


def _together(rows: list[Row]) -> Configuration:
    ranked = sorted(rows, key=lambda row: row["rate"], reverse=True)
    certain = tuple(row for row in ranked if estimate_of(row) is not None)
    runs = certain or tuple(ranked)
    return Configuration(runs, tuple(row for row in ranked if row not in runs))


def unnumbered(row: Row) -> Row:
    """Return a run under the name of its configuration, without the number of a repeat."""
    return {**row, "name": row["configuration_name"]}


def verdict_on(a: Configuration, b: Configuration) -> Verdict | None:
    """Return the verdict on the rates of two configurations; None where one has no interval."""
    left, right = a.estimates, b.estimates
    if not left or not right:
        return None
    return compare(left, right, **spreads_of(a.runs, b.runs))


def spreads_of(a: Sequence[Row], b: Sequence[Row]) -> dict[str, float]:
    """Return the spreads of starts and devices of two sides, the largest of their platforms'."""
    assumed = max(start_spread(row["platform"]) for row in (*a, *b))
    starts = max(row.get("start_spread") or assumed for row in (*a, *b))
    found = between(starts, assumed, other_devices(a, b))
    return dict(zip(("start_spread", "device_spread"), found, strict=True))


def estimate_of(row: Row) -> Estimate | None:
    """Return the rate of a run with the interval of its own steps; None where it has none."""
    rate, total = row["rate"], row["tokens_per_second"]
    low, high = row["run_tokens_per_second_low"], row["run_tokens_per_second_high"]
    if not rate or not total or not low or not high:
        return None
    # the ends are of all GPUs, the rate may be per GPU
    ends = (rate * low / total, rate * high / total)
    return Estimate.of(rate, *ends, row.get("steady_steps") or 0, row.get("device_ids"))


def best_of(rows: Sequence[Row]) -> Configuration:
    """Return the fastest configuration of runs, those with an interval before those without."""
    every = configurations(rows)
    certain = [one for one in every if one.interval[0] is not None]
    return (certain or every)[0]


def gain(verdict: Verdict) -> str:
    """Return how much more A is than B, with its interval: ``+62.0 % (+59.8 % to +64.2 %)``."""
    ends = f"{change(verdict.low - 1)} to {change(verdict.high - 1)}"
    return f"{change(verdict.ratio - 1)} ({ends})"


def rate(one: Configuration, unit: str | None = None) -> str:
    """Return the rate of a configuration with its interval and unit."""
    return interval(
        one.rate, *one.interval, one.row["rate_unit"] if unit is None else unit
    ).rstrip()


def linked(one: Configuration, text: str) -> Markup:
    """Return a text that leads to the run of a configuration."""
    return run_link(one.row["run_id"], text)


def named(one: Configuration) -> Markup:
    """Return a configuration in a sentence: what it is called and links to its runs."""
    words = "{} ({})"
    if one.left_out:
        words = "{} ({}; without an interval and left out: {})"
    left_out = run_links(row["run_id"] for row in one.left_out)
    ids = join(run_link(row["run_id"]) for row in one.runs)
    return Markup(words).format(in_words(one.row), ids, left_out)


def varied(ones: Sequence[Configuration], most: int) -> list[Configuration]:
    """Return the fastest of each layout, then others with an interval, in the order given."""
    seen: set[tuple[Any, ...]] = set()
    ranked: list[tuple[bool, bool, int]] = []
    for place, one in enumerate(ones):
        layout = (one.row["platform"], one.row["precision"], split_name(one.row))
        ranked.append((layout in seen, one.interval[0] is None, place))
        seen.add(layout)
    return [ones[place] for place in sorted(place for *_, place in sorted(ranked)[:most])]


def shares(sizes: Iterable[int], most: int) -> list[int]:
    """Return how many of ``most`` rows each group may draw: the largest give up rows first."""
    given = list(sizes)
    while sum(given) > most and max(given) > 1:
        given[given.index(max(given))] -= 1
    return given
