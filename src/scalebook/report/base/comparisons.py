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
from operator import itemgetter
from typing import Any, Literal

from scalebook import identity
from scalebook.facts.catalog.types import TINY
from scalebook.measure.economics import Inputs, answer
from scalebook.measure.intervals import Interval, point
from scalebook.measure.verdicts import Verdict
from scalebook.measure.verdicts.differences import Difference, differences
from scalebook.record import text_of
from scalebook.report.base.frames import ReportData, records
from scalebook.report.base.html_tables import (
    Column,
    Row,
    noted,
    plain,
    ranged,
    table,
    text,
    verdict_column,
)
from scalebook.report.base.markup import Markup
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
from scalebook.report.base.versus import Configuration, best_of, verdict_on

Kind = Literal["matched configuration", "best against best", "one option"]
MATCHED: Kind = "matched configuration"
BEST: Kind = "best against best"

# What is said of a difference once the two platforms are named.
GPU = frozenset({
    "platform", "accelerator", "accelerator_memory_gib", "multiprocessors", "power_cap_watts",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pair:
    """What is compared: a configuration on either side, and how they were chosen."""

    kind: Kind
    name_a: str
    name_b: str
    a: Configuration
    b: Configuration

    @property
    def verdict(self) -> Verdict | None:
        """Rate of A over rate of B; None where a side has no interval."""
        return verdict_on(self.a, self.b)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The runs of both sides."""
        return (*self.a.runs, *self.b.runs)

    @property
    def source(self) -> str:
        """The source of the runs that were not measured here; empty where all were."""
        return min({row["source"] for row in self.rows} - {"measured"}, default="")

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Return every setting, version and device that differs."""
        left, right = ([row["record"] for row in side.runs] for side in (self.a, self.b))
        return differences(left, right)

    @property
    def beside_the_gpu(self) -> tuple[Difference, ...]:
        """Return those of them that are not facts of the GPU, where the sides have two."""
        own = GPU if len({row["platform"] for row in self.rows}) > 1 else frozenset[str]()
        return tuple(item for item in self.differences if item.name not in own)


def comparable(every: Sequence[Row]) -> tuple[Row, ...]:
    """Return measured runs of whole models on accelerators, or else what comes next to them.

    Models made for a CPU are too small for an accelerator's rate to mean anything.
    """
    own = [row for row in every if row["source"] == "measured"] or every
    on_gpus = [row for row in own if row["platform"] != "cpu"] or own
    whole = [*filter(is_whole, on_gpus)] or on_gpus
    return tuple([row for row in whole if not row["model"].startswith(TINY)] or whole)


def ranked(data: ReportData) -> tuple[Row, ...]:
    """Return every run that has a rate, in the order of the frame, with its ``record``."""
    held, rows = records(data), data.ranked.drop_nulls("rate").iter_rows(named=True)
    return tuple({**row, "record": held[row["run_id"]]} for row in rows if row["run_id"] in held)


def side_name(row: Row) -> str:
    """Return the side that a run is of: its platform, with engine and source where unusual."""
    engine, source = row["engine"], row["source"]
    more = [engine] if engine not in (None, "megatron") else []
    name = ", ".join([str(row["platform"] or UNKNOWN_PLATFORM), *more])
    return name if source in (None, "measured") else f"{name} [{source}]"


def grouped(rows: Sequence[Row], key: Callable[[Row], str | None]) -> dict[str, tuple[Row, ...]]:
    """Return the runs by key, those without one left out."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        name = key(row)
        if name is not None:
            found.setdefault(name, []).append(row)
    return {name: tuple(group) for name, group in found.items()}


@dataclass(frozen=True, slots=True)
class Division:
    """A way to divide runs into sides. ``varies`` is the setting that two sides may differ in."""

    key: str
    title: str  # as a menu has it
    side: Callable[[Row], str | None]  # None: of no side
    varies: str = ""
    shown: Callable[[str], str | None] = str  # a side in words

    def matched(self, row: Row) -> str | None:
        """Return what runs of two sides share where only the sides differ; None where unknown."""
        return self._with_side(row, identity.matched(row["record"], self.varies))

    def work(self, row: Row) -> str | None:
        """Return what runs of two sides share that do the same work; None where unknown."""
        return self._with_side(row, identity.work(row["record"], self.varies))

    def _with_side(self, row: Row, key: str | None) -> str | None:
        """Add the platform, which sides of another kind have in common."""
        if key is None or self.varies == "platform":
            return key
        return f"{key} {side_name(row)}"


def _versions(row: Row) -> str | None:
    stood_on = {name: row["record"].environment.get(name) for name in identity.VERSIONS}
    words = (
        f"{VERSION_WORDS.get(name, name)} {str(one).partition('+')[0]}"  # torch names its CUDA too
        for name, one in stood_on.items()
        if one
    )
    return ", ".join(words) or None


PLATFORMS = Division("platform", "platforms", side_name, "platform", platform_title)
DIVISIONS = (
    PLATFORMS,
    Division("model", "models", itemgetter("model"), "model", model_title),
    Division("precision", "precisions", itemgetter("precision"), "precision", precision_title),
    Division("versions", "versions of the software", _versions),
    Division(
        "plan",
        "plans",
        lambda row: text_of(row["record"].schedule.get("plan")) or None,
        shown="plan {}".format,
    ),
    Division("folder", "folders of runs", itemgetter("folder")),
)


@dataclass(frozen=True, slots=True)
class Sided:
    """The runs of one side, in the groups that pairs are found in."""

    name: str
    runs: tuple[Row, ...]
    matched: Mapping[str, tuple[Row, ...]]  # by what a matched configuration shares
    work: Mapping[str, tuple[Row, ...]]


def divided(rows: Sequence[Row], by: Division) -> list[Sided]:
    """Return the sides of runs, in the order of their first run."""
    return [
        Sided(by.shown(name) or name, own, grouped(own, by.matched), grouped(own, by.work))
        for name, own in grouped(rows, by.side).items()
    ]


def platform_pairs(rows: Sequence[Row]) -> tuple[Pair, ...]:
    """Return the pairs of every two platforms: matched configurations, then best against best."""
    two = combinations(divided(rows, PLATFORMS), 2)
    return tuple(pair for a, b in two for pair in pairs(a, b))


def pairs(a: Sided, b: Sided) -> Iterator[Pair]:
    """Yield a pair for each configuration and each work of both, on either side its fastest."""
    groups = ((a.matched, b.matched), (a.work, b.work))
    for kind, (left, right) in zip((MATCHED, BEST), groups, strict=True):
        for name in left:
            if name in right:
                yield Pair(kind, a.name, b.name, best_of(left[name]), best_of(right[name]))


def ratio(verdict: Verdict) -> str:
    """Return a ratio with its interval: ``1.41× (1.39 to 1.43)``."""
    return f"{times(verdict.ratio)} ({number(verdict.low)} to {number(verdict.high)})"


def equal_work(pairs: Sequence[Pair]) -> Markup | None:
    """Return how two platforms compare at equal work; None where no pair has intervals."""
    known = [(pair, found) for pair in pairs if (found := pair.verdict) is not None]
    if not known:
        return None
    pair, verdict = max(
        known, key=lambda one: (one[0].kind == MATCHED, max(row["rate"] for row in one[0].rows))
    )
    row, names = pair.a.row, (pair.name_a, pair.name_b)
    if verdict.ratio < 1:
        names, verdict = names[::-1], verdict.turned
    how = split_name(row) if pair.kind == MATCHED else "each in its best layout"
    code = [{row["record"].environment.get("git_commit") for row in own.runs}
            for own in (pair.a, pair.b)]  # fmt: skip
    older = "" if code[0] == code[1] else ", with other versions of the trainer"
    words = "At equal work ({}, sequence {:,}), {} is {} as fast as {}{}."
    return Markup(words).format(
        how, row["sequence_length"], names[0], ratio(verdict), names[1], older
    )


def title(pair: Pair) -> str:
    """Return the pair in words."""
    row = pair.a.row
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


Basis = tuple[str, str, Callable[[Row], Interval | None], str]


def _bases(stated: Stated) -> tuple[Basis, ...]:
    """Return what a rate is shown per: its name, unit, divisor of the rate per rank, and reason.

    The divisor is in units a rank: nodes, watts, currency per second, TFLOP/s.
    """
    return (
        ("GPU", "tokens/s per GPU", lambda _: point(1), ""),
        ("node", "tokens/s per node", lambda row: _known(row, "nodes", "world_size"),
         "the number of nodes is not recorded"),
        ("watt", "tokens/J", lambda row: _known(row, "mean_power_watts"),
         "power was not measured"),
        ("price", "tokens per unit of currency", lambda row: _price(row, stated),
         "no price is stated"),
        ("peak FLOP", "tokens per dense peak TFLOP",
         lambda row: _known(row, "peak_tflops_per_second"),
         "no dense peak is known for the device and precision"),
    )  # fmt: skip


def _known(row: Row, name: str, over: str = "") -> Interval | None:
    """Return a column of a run, divided by another where one is named; None without a value."""
    value, divisor = row[name], row[over] if over else 1
    return point(value / divisor) if value and divisor else None


def _price(row: Row, stated: Stated) -> Interval | None:
    """Return the price of a GPU's second, by the formula of tokens per unit of currency."""
    price = stated.of(row["platform"], "price_per_gpu_hour")
    one = Inputs(tokens_per_second=point(1), gpus=point(1), price_per_gpu_hour=price)
    found = answer("tokens_per_dollar", one).value
    return found.reciprocal() if found else None


def named(pair: Pair) -> dict[str, Any]:
    """Return what a table says of a pair: its work, how it was chosen, both configurations."""
    names = dict.fromkeys(str(side.row["configuration_name"]) for side in (pair.a, pair.b))
    return {"what": title(pair), "kind": pair.kind, "configurations": " against ".join(names)}


COMPARED = Column(
    "what", "Comparison", lambda row: noted(row["what"], row["configurations"]),
    numeric=False, wide=True,
)  # fmt: skip


def per_basis(found: Sequence[Pair], stated: Stated) -> Markup:
    """Return every pair per GPU, node, watt, price and peak FLOP, with reasons for the nulls."""
    columns = (
        *(COMPARED, text("kind", "Kind"), text("per", "Per")),
        *(plain("a", "First"), plain("b", "Second"), text("unit", "Unit")),
        Column(
            "ratio", "First over second", ranged("ratio", three, "low", "high"),
            hint="with the interval of the throughput",
        ),
        verdict_column("word", "Verdict", "on the first side, by its throughput"),
        text("reason", "Why not", wide=True),
    )  # fmt: skip
    rows = (row for pair in found for row in basis_rows(pair, stated))
    return table(rows, columns, "comparison")


def basis_rows(pair: Pair, stated: Stated) -> Iterator[dict[str, Any]]:
    """Yield one row per basis: the throughput has an interval, a stated price may have a range."""
    a, b, verdict = pair.a.row, pair.b.row, pair.verdict
    for per, unit, divisor, missing in _bases(stated):
        under_a, under_b = divisor(a), divisor(b)
        names = [n for n, x in ((pair.name_a, under_a), (pair.name_b, under_b)) if not x]
        reason = f"{missing}: {', '.join(names)}" if names else None
        if "cpu" in (a["platform"], b["platform"]):
            under_a = under_b = None
            reason = "processes of a CPU share its cores, so a rate has no such basis"
        left = pair.a.rate / under_a.middle if under_a else None
        right = pair.b.rate / under_b.middle if under_b else None
        factor = under_b / under_a if verdict and under_a and under_b else None
        yield {
            **named(pair), "per": per, "unit": unit,
            "a": left, "b": right, "reason": reason,
            "source": pair.source, "word": verdict.word if verdict else "no interval",
            "ratio": left / right if left and right else None,
            "low": verdict.low * factor.low if verdict and factor else None,
            "high": verdict.high * factor.high if verdict and factor else None,
        }  # fmt: skip


def three(value: float | None) -> str:
    """Return a ratio to three decimals."""
    return NONE if value is None else f"{value:.3f}"
