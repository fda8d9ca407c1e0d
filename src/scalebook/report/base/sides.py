"""Two sides of a comparison: platforms, runs or sets of runs, and which of their runs to pair.

A side never mixes engines or sources. ``matched`` pairs were asked for the same configuration but
for the platform; ``best`` pairs do the same work (model, sequence, precision, number of GPUs),
each side in its own fastest configuration. ``identity`` decides both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp
from statistics import fmean
from typing import Any, Literal

from scalebook import identity
from scalebook.identity import alike
from scalebook.measure.metrics.repeats import Estimate
from scalebook.measure.verdicts import Verdict, compare
from scalebook.measure.verdicts.differences import Difference, differences
from scalebook.record import RunRecord
from scalebook.report.base.frames import ReportData
from scalebook.report.base.versus import estimate_of, starts_of

Row = Mapping[str, Any]
Kind = Literal["matched configuration", "best against best", "as named"]

# What is said of a difference once the two platforms are named.
GPU = frozenset({
    "platform", "accelerator", "accelerator_memory_gib", "multiprocessors", "power_cap_watts",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Member:
    """One run of a side: its row of the run frame and its record."""

    row: Row
    record: RunRecord

    @property
    def estimate(self) -> Estimate | None:
        """The run's rate with its interval; None where it has none."""
        return estimate_of(self.row)


@dataclass(frozen=True, slots=True)
class Pair:
    """What is compared: repeats of one configuration on either side, and how they were chosen."""

    kind: Kind
    name_a: str
    name_b: str
    a: tuple[Member, ...]
    b: tuple[Member, ...]

    @property
    def verdict(self) -> Verdict | None:
        """Rate of A over rate of B; None where a side has no interval."""
        left, right = _estimates(self.a), _estimates(self.b)
        if not left or not right:
            return None
        return compare(left, right, start_spread=starts_of(item.row for item in (*self.a, *self.b)))

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Return every setting, version and device that is not equal."""
        left, right = ([item.record for item in side] for side in (self.a, self.b))
        return differences(left, right)

    @property
    def beside_the_gpu(self) -> tuple[Difference, ...]:
        """Return those of them that are no fact of the GPU, where the sides have two."""
        platforms = {item.row["platform"] for item in (*self.a, *self.b)}
        own = GPU if len(platforms) > 1 else frozenset[str]()
        return tuple(item for item in self.differences if item.name not in own)


def _estimates(side: Sequence[Member]) -> list[Estimate]:
    return [found for item in side if (found := item.estimate) is not None]


def mean_rate(side: Sequence[Member]) -> float:
    """Return the rate of a side in the unit of its first run: the geometric mean of its runs."""
    known = _estimates(side)
    if known:
        return exp(fmean(item.log_rate for item in known))
    return fmean(item.row["rate"] for item in side)


def members(data: ReportData, records: Mapping[str, RunRecord]) -> tuple[Member, ...]:
    """Return every run that has a rate, in the order of the frame."""
    rows = data.ranked.drop_nulls("rate").iter_rows(named=True)
    return tuple(Member(row, records[row["run_id"]]) for row in rows if row["run_id"] in records)


def side_name(row: Row) -> str:
    """Return the side that a run is of: its platform, with engine and source where unusual."""
    engine, source = row["engine"], row["source"]
    more = [engine] if engine not in (None, "megatron") else []
    name = ", ".join([str(row["platform"] or "unknown platform"), *more])
    return name if source in (None, "measured") else f"{name} [{source}]"


def work_key(item: Member) -> str | None:
    """Return what two runs must share to do the same work; None where a part is unknown."""
    return identity.work(item.record)


def matched_key(item: Member) -> str | None:
    """Return what two runs must share to have a matched configuration; None where unknown."""
    return identity.matched(item.record)


def grouped(
    items: Sequence[Member], key: Callable[[Member], str | None]
) -> dict[str, tuple[Member, ...]]:
    """Return the runs by key, those without one left out."""
    found: dict[str, list[Member]] = {}
    for item in items:
        name = key(item)
        if name is not None:
            found.setdefault(name, []).append(item)
    return {name: tuple(group) for name, group in found.items()}


def platform_pairs(items: Sequence[Member]) -> Iterator[Pair]:
    """Yield the pairs of every two sides: matched configurations, then best against best."""
    sides = grouped(items, lambda item: side_name(item.row))
    for (name_a, a), (name_b, b) in combinations(sides.items(), 2):
        yield from pairs("matched configuration", (name_a, a), (name_b, b), matched_key)
        yield from pairs("best against best", (name_a, a), (name_b, b), work_key)


def pairs(
    kind: Kind,
    side_a: tuple[str, Sequence[Member]],
    side_b: tuple[str, Sequence[Member]],
    key: Callable[[Member], str | None],
) -> Iterator[Pair]:
    """Yield a pair for each key that both sides have: on each the fastest configuration of it."""
    left, right = grouped(side_a[1], key), grouped(side_b[1], key)
    for name in left:
        if name in right:
            yield Pair(kind, side_a[0], side_b[0], fastest(left[name]), fastest(right[name]))


def fastest(items: Sequence[Member]) -> tuple[Member, ...]:
    """Return the repeats of the fastest configuration among these runs.

    Runs with an interval go before those without, which no verdict can be given on.
    """
    certain = [item for item in items if item.estimate is not None]
    configurations = alike(certain or items, lambda item: identity.repeat(item.record))
    return max(map(tuple, configurations), key=mean_rate)


def named_pair(items: Sequence[Member], a: str, b: str) -> Pair | None:
    """Return the pair of two sides named by run ids (separated by commas) or by platform.

    None where a side has no run with a rate.
    """
    left, right = _chosen(items, a), _chosen(items, b)
    return Pair("as named", a, b, left, right) if left and right else None


def _chosen(items: Sequence[Member], name: str) -> tuple[Member, ...]:
    wanted = {part.strip() for part in name.split(",")}
    runs = tuple(item for item in items if item.row["run_id"] in wanted)
    side = [item for item in items if side_name(item.row) == name]
    return runs or (fastest(side) if side else ())
