"""Two sides of a comparison: which of their runs are paired, and what they reach per GPU or price.

A side is a platform, a run or a set of runs and never mixes engines or sources. ``matched`` pairs
were asked for the same configuration but for the platform; ``best`` pairs do the same work (model,
sequence, precision, number of GPUs), each side in its own fastest configuration. ``identity``
decides both. A pair is shown per GPU, node, watt, price and peak FLOP, or the reason why not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp
from statistics import fmean
from typing import Any, Literal

from scalebook import identity
from scalebook.facts.catalog.types import TINY
from scalebook.identity import alike
from scalebook.measure.economics import Inputs, answer
from scalebook.measure.intervals import Interval, point
from scalebook.measure.metrics.repeats import Estimate
from scalebook.measure.verdicts import Verdict, compare
from scalebook.measure.verdicts.differences import Difference, differences
from scalebook.record import RunRecord, text_of
from scalebook.report.base.frames import ReportData
from scalebook.report.base.html_tables import Column, noted, plain, table, text
from scalebook.report.base.markup import Fragment, Markup
from scalebook.report.base.naming import (
    UNKNOWN_PLATFORM,
    VERSION_WORDS,
    is_whole,
    model_title,
    platform_title,
    precision_title,
    sequence_words,
    split_name,
    units,
)
from scalebook.report.base.quantities import NONE, count, number, times
from scalebook.report.base.stated import Stated
from scalebook.report.base.versus import estimate_of, spreads_of, unnumbered

Row = Mapping[str, Any]
MATCHED = "matched configuration"
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
        sides = ([item.row for item in side] for side in (self.a, self.b))
        return compare(left, right, **spreads_of(*sides))

    @property
    def source(self) -> str:
        """The source of the runs that were not measured here; empty where all were."""
        return min({i.row["source"] for i in (*self.a, *self.b)} - {"measured"}, default="")

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Return every setting, version and device that differs."""
        left, right = ([item.record for item in side] for side in (self.a, self.b))
        return differences(left, right)

    @property
    def beside_the_gpu(self) -> tuple[Difference, ...]:
        """Return those of them that are not facts of the GPU, where the sides have two."""
        platforms = {item.row["platform"] for item in (*self.a, *self.b)}
        own = GPU if len(platforms) > 1 else frozenset[str]()
        return tuple(item for item in self.differences if item.name not in own)


def _estimates(side: Sequence[Member]) -> list[Estimate]:
    return [found for item in side if (found := item.estimate) is not None]


def comparable(every: Sequence[Member]) -> tuple[Member, ...]:
    """Return measured runs of whole models on accelerators, or else what comes next to them.

    Models made for a CPU are too small for an accelerator's rate to mean anything.
    """
    own = [item for item in every if item.row["source"] == "measured"] or every
    on_gpus = [item for item in own if item.row["platform"] != "cpu"] or own
    whole = [item for item in on_gpus if is_whole(item.row)] or on_gpus
    return tuple([i for i in whole if not i.row["model"].startswith(TINY)] or whole)


def shared_row(side: Sequence[Member]) -> Row:
    """Return the first run of a side, of several under the name that they share."""
    return unnumbered(side[0].row) if len(side) > 1 else side[0].row


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
    name = ", ".join([str(row["platform"] or UNKNOWN_PLATFORM), *more])
    return name if source in (None, "measured") else f"{name} [{source}]"


def work_key(item: Member) -> str | None:
    """Return what two runs must share to do the same work; None where a part is unknown."""
    return identity.work(item.record)


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


@dataclass(frozen=True, slots=True)
class Division:
    """A way to divide runs into sides. ``varies`` is the setting that two sides may differ in."""

    key: str
    title: str  # as a menu has it
    side: Callable[[Member], str | None]  # None: of no side
    varies: str = ""
    shown: Callable[[str], str | None] = str  # a side in words

    def matched(self, item: Member) -> str | None:
        """Return what runs of two sides share where only the sides differ; None where unknown."""
        return self._with_side(item, identity.matched(item.record, self.varies))

    def work(self, item: Member) -> str | None:
        """Return what runs of two sides share that do the same work; None where unknown."""
        return self._with_side(item, identity.work(item.record, self.varies))

    def _with_side(self, item: Member, key: str | None) -> str | None:
        """Add the platform, which sides of another kind have in common."""
        if key is None or self.varies == "platform":
            return key
        return f"{key} {side_name(item.row)}"


def _versions(item: Member) -> str | None:
    stood_on = {name: item.record.environment.get(name) for name in identity.VERSIONS}
    words = (
        f"{VERSION_WORDS.get(name, name)} {str(one).partition('+')[0]}"  # torch names its CUDA too
        for name, one in stood_on.items()
        if one
    )
    return ", ".join(words) or None


def _by_setting(name: str, shown: Callable[[str], str | None]) -> Division:
    return Division(name, f"{name}s", lambda item: item.row[name], name, shown)


PLATFORMS = Division(
    "platform", "platforms", lambda item: side_name(item.row), "platform", platform_title
)
DIVISIONS = (
    PLATFORMS,
    *(_by_setting("model", model_title), _by_setting("precision", precision_title)),
    Division("versions", "versions of the software", _versions),
    Division(
        "plan",
        "plans",
        lambda item: text_of(item.record.schedule.get("plan")) or None,
        shown="plan {}".format,
    ),
    Division("folder", "folders of runs", lambda item: item.row["folder"]),
)


@dataclass(frozen=True, slots=True)
class Sided:
    """The runs of one side, in the groups that pairs are found in."""

    name: str
    runs: tuple[Member, ...]
    matched: Mapping[str, tuple[Member, ...]]  # by what a matched configuration shares
    work: Mapping[str, tuple[Member, ...]]


def divided(items: Sequence[Member], by: Division) -> list[Sided]:
    """Return the sides of runs, in the order of their first run."""
    sides_of = grouped(items, by.side).items()
    return [
        Sided(by.shown(name) or name, own, grouped(own, by.matched), grouped(own, by.work))
        for name, own in sides_of
    ]


def platform_pairs(items: Sequence[Member]) -> Iterator[Pair]:
    """Yield the pairs of every two platforms: matched configurations, then best against best."""
    for a, b in combinations(divided(items, PLATFORMS), 2):
        yield from pairs(a, b)


def pairs(a: Sided, b: Sided) -> Iterator[Pair]:
    """Yield a pair for each configuration and each work of both, on either side its fastest."""
    kinds: tuple[Kind, Kind] = ("matched configuration", "best against best")
    for kind, left, right in zip(kinds, (a.matched, a.work), (b.matched, b.work), strict=True):
        for name in left:
            if name in right:
                yield Pair(kind, a.name, b.name, fastest(left[name]), fastest(right[name]))


def fastest(items: Sequence[Member]) -> tuple[Member, ...]:
    """Return the repeats of the fastest configuration among these runs.

    Runs with an interval go before those without, which no verdict can be given on.
    """
    certain = [item for item in items if item.estimate is not None]
    configurations = alike(certain or items, lambda item: item.row["configuration"])
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


def ratio(verdict: Verdict) -> str:
    """Return a ratio with its interval: ``1.41× (1.39 to 1.43)``."""
    return f"{times(verdict.ratio)} ({number(verdict.low)} to {number(verdict.high)})"


def equal_work(pairs: Sequence[Pair]) -> Markup | None:
    """Return how two platforms compare at equal work; None where no pair has intervals."""
    known = [(pair, pair.verdict) for pair in pairs if pair.verdict is not None]
    if not known:
        return None
    reached = [max(item.row["rate"] for item in (*pair.a, *pair.b)) for pair, _ in known]
    at = max(range(len(known)), key=lambda i: (known[i][0].kind == MATCHED, reached[i]))
    pair, verdict = known[at]
    row, names = pair.a[0].row, (pair.name_a, pair.name_b)
    if verdict.ratio < 1:
        names, verdict = names[::-1], verdict.turned
    how = split_name(row) if pair.kind == MATCHED else "each in its best layout"
    code = [{item.record.environment.get("git_commit") for item in own} for own in (pair.a, pair.b)]
    older = "" if code[0] == code[1] else ", with other versions of the trainer"
    words = "At equal work ({}, sequence {:,}), {} is {} as fast as {}{}."
    return Markup(words).format(
        how, row["sequence_length"], names[0], ratio(verdict), names[1], older
    )


def title(pair: Pair) -> str:
    """Return the pair in words."""
    row = pair.a[0].row
    split = split_name(row)
    # A split of one rank is only its number, which the work has already.
    told = pair.kind == MATCHED and not split[:1].isdigit()
    how = f", {split}" if told else ""
    return f"{sides(pair)}, {model_title(row['model'])} on {work(row)}{how}"


def sides(pair: Pair) -> str:
    """Return the names of both sides."""
    return f"{pair.name_a} against {pair.name_b}"


def work(row: Row) -> str:
    """Return the work of a run in words."""
    ranks = count(row["world_size"] or 0, *units(row["platform"]))
    return f"{ranks}, {precision_title(row['precision'])}, {sequence_words(row)}"


Basis = tuple[str, str, Callable[[Member], Interval | None], str]


def _bases(stated: Stated) -> tuple[Basis, ...]:
    """Return what a rate is shown per: its name, unit, divisor of the rate per rank, and reason.

    The divisor is in units a rank: nodes, watts, currency per second, TFLOP/s.
    """
    return (
        ("GPU", "tokens/s per GPU", lambda _: point(1), ""),
        ("node", "tokens/s per node", lambda item: _known(item, "nodes", "world_size"),
         "the number of nodes is not recorded"),
        ("watt", "tokens/J", lambda item: _known(item, "mean_power_watts"),
         "power was not measured"),
        ("price", "tokens per unit of currency", lambda item: _price(item, stated),
         "no price is stated"),
        ("peak FLOP", "tokens per dense peak TFLOP",
         lambda item: _known(item, "peak_tflops_per_second"),
         "no dense peak is known for the device and precision"),
    )  # fmt: skip


def _known(item: Member, name: str, over: str = "") -> Interval | None:
    """Return a column of a run, divided by another where one is named; None without a value."""
    value, divisor = item.row[name], item.row[over] if over else 1
    return point(value / divisor) if value and divisor else None


def _price(item: Member, stated: Stated) -> Interval | None:
    """Return the price of a GPU's second, by the formula of tokens per unit of currency."""
    price = stated.of(item.row["platform"], "price_per_gpu_hour")
    one = Inputs(tokens_per_second=point(1), gpus=point(1), price_per_gpu_hour=price)
    found = answer("tokens_per_dollar", one).value
    return found.reciprocal() if found else None


def named(pair: Pair) -> dict[str, Any]:
    """Return what a table says of a pair: its work, how it was chosen, both configurations."""
    names = dict.fromkeys(str(side[0].row["configuration_name"]) for side in (pair.a, pair.b))
    return {"what": title(pair), "kind": pair.kind, "configurations": " against ".join(names)}


COMPARED = Column(
    "what", "Comparison", lambda row: noted(row["what"], row["configurations"]),
    numeric=False, wide=True,
)  # fmt: skip


def per_basis(found: Sequence[Pair], stated: Stated) -> Fragment:
    """Return every pair per GPU, node, watt, price and peak FLOP, with reasons for the nulls."""
    columns = (
        *(COMPARED, text("kind", "Kind"), text("per", "Per")),
        *(plain("a", "First"), plain("b", "Second"), text("unit", "Unit")),
        Column(
            "ratio", "First over second",
            lambda row: ratio_cell(*(row[name] for name in ("ratio", "low", "high"))),
            hint="with the interval of the throughput",
        ),
        text("reason", "Why not", wide=True),
    )  # fmt: skip
    rows = (row for pair in found for row in basis_rows(pair, stated))
    return table(rows, columns, "comparison")


def basis_rows(pair: Pair, stated: Stated) -> Iterator[dict[str, Any]]:
    """Yield one row per basis: the throughput has an interval, a stated price may have a range."""
    a, b = pair.a[0], pair.b[0]
    verdict = pair.verdict
    for per, unit, divisor, missing in _bases(stated):
        under_a, under_b = divisor(a), divisor(b)
        names = [n for n, x in ((pair.name_a, under_a), (pair.name_b, under_b)) if not x]
        reason = f"{missing}: {', '.join(names)}" if names else None
        if "cpu" in (a.row["platform"], b.row["platform"]):
            under_a = under_b = None
            reason = "processes of a CPU share its cores, so a rate has no such basis"
        left = mean_rate(pair.a) / under_a.middle if under_a else None
        right = mean_rate(pair.b) / under_b.middle if under_b else None
        factor = under_b / under_a if verdict and under_a and under_b else None
        yield {
            **named(pair), "per": per, "unit": unit,
            "a": left, "b": right, "reason": reason,
            "source": pair.source,
            "ratio": left / right if left and right else None,
            "low": verdict.low * factor.low if verdict and factor else None,
            "high": verdict.high * factor.high if verdict and factor else None,
        }  # fmt: skip


def ratio_cell(value: float | None, low: float | None, high: float | None) -> Markup | str:
    """Return a ratio with its interval below it, if it has one."""
    if value is None or low is None:
        return NONE if value is None else f"{value:.3f}"
    return noted(f"{value:.3f}", f"{low:.3f} to {high:.3f}")
