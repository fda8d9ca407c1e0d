"""The scaling page: series against the ideal, and laws fitted where runs differ only in size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import polars as pl

from scalebook.errors import CatalogError
from scalebook.facts import catalog
from scalebook.measure.scaling import Projection, project
from scalebook.measure.scaling import table as measured_scaling
from scalebook.measure.scaling.law import FittedLaw, ScalingKind, fit_law
from scalebook.report.base import html_tables as tables
from scalebook.report.base.html_tables import Column, Row, plain, share, text
from scalebook.report.base.html_tables import table as html_table
from scalebook.report.base.markup import Markup, bullets, join, opened
from scalebook.report.base.naming import units
from scalebook.report.base.quantities import count, number, percent
from scalebook.report.base.scaling_series import ScalingSeries, point
from scalebook.report.charts import Figures, by_size
from scalebook.report.charts.css_charts import Dot
from scalebook.report.charts.scaling_charts import fitted
from scalebook.settings import names

# What must agree, beside the group, for runs to differ in size alone.
_SIZE = ("world_size", "nodes", "global_batch_size")
_LAYOUT = (*(name for name in names("layout") if name not in _SIZE), "recompute")
MOST_POINTS = 60  # of a drawn law
MOST_SERIES = 20  # groups of runs that are drawn, each in a chart; the table has all
MOST_DRAWN = 12  # laws, those through most sizes; the sentences and the table have more


@dataclass(frozen=True, slots=True)
class Arm:
    """Runs of one group, layout and batch rule: the fastest of each size, smallest first."""

    group: str
    layout: str
    kind: ScalingKind
    runs: tuple[Row, ...]

    @property
    def title(self) -> str:
        """What the runs have in common."""
        return f"{self.kind.capitalize()} scaling of {self.group}, {self.layout}"

    @property
    def sizes(self) -> list[int]:
        """World sizes, smallest first."""
        return [row["world_size"] for row in self.runs]

    @property
    def many(self) -> str:
        """The word for its ranks."""
        return units(self.runs[0]["platform"])[1]

    def law(self) -> FittedLaw | str:
        """Return the law, or why there is none."""
        return fit_law(
            [(row["world_size"], row["tokens_per_second"]) for row in self.runs], self.kind
        )

    def project(self, world_size: int) -> Projection:
        """Return what a size would do, or why that cannot be said."""
        node = _gpus_per_node(self.runs[0]["platform"])
        return project([*map(point, self.runs)], world_size, kind=self.kind, gpus_per_node=node)


def _gpus_per_node(platform: str | None) -> int | None:
    try:
        return catalog.platform(platform).gpus_per_node if platform else None
    except CatalogError:
        return None


def arms(found: Sequence[ScalingSeries]) -> tuple[Arm, ...]:
    """Return every set of runs that differ only in size, at two sizes or more, GPUs only."""
    return tuple(arm for item in found for arm in _arms(item))


@lru_cache(maxsize=256)  # each part of the page asks for those of all series
def _arms(item: ScalingSeries) -> tuple[Arm, ...]:
    made: list[Arm] = []
    if item.base["platform"] == "cpu":
        return ()
    batched = item.points.filter(pl.col("global_batch_size") >= 1)
    each = batched.with_columns(each=pl.col("global_batch_size") / pl.col("world_size"))
    rules: tuple[tuple[ScalingKind, str], ...] = (("weak", "each"), ("strong", "global_batch_size"))
    for kind, batch in rules:
        for _, same in each.group_by(*_LAYOUT, batch, maintain_order=True):
            fastest = same.sort("tokens_per_second", descending=True)
            best = fastest.unique("world_size", keep="first").sort("world_size")
            if best.height > 1:
                rows = tuple(best.iter_rows(named=True))
                made.append(Arm(item.group, _layout(rows[0], kind), kind, rows))
    return tuple(made)


def _layout(row: Row, kind: ScalingKind) -> str:
    """Return the layout without the replicas, and the batch that stays the same."""
    names = (("TP", "tensor_parallel_size"), ("PP", "pipeline_parallel_size"))
    names += (("CP", "context_parallel_size"), ("EP", "expert_parallel_size"))
    parts = [f"{short}{row[name]}" for short, name in names if (row[name] or 1) > 1]
    split = " ".join(parts) or "data parallel only"
    batch = row["global_batch_size"]
    if kind == "strong":
        return f"{split}, global batch {batch}"
    return f"{split}, {batch / row['world_size']:g} samples per GPU and step"


def findings(found: Sequence[ScalingSeries]) -> Markup:
    """Return what the laws say, or why they say nothing, one sentence per set of runs."""
    laws = len(_with_law(found))
    words = "Drawn are {} of {} laws, those through most sizes; the table of projections has all."
    cut = [Markup(words).format(MOST_DRAWN, laws)] if laws > MOST_DRAWN else []
    if len(found) > MOST_SERIES:
        words = "Drawn are {} of {} groups of runs; the table of speed-up and efficiency has all."
        cut.append(Markup(words).format(MOST_SERIES, len(found)))
    return bullets([*cut, *_sentences(found), *_mixed(found)])


def _with_law(found: Sequence[ScalingSeries]) -> list[tuple[Arm, FittedLaw]]:
    """Return every set of runs that has a law, those with most sizes first."""
    every = [(arm, law) for arm in arms(found) if not isinstance(law := arm.law(), str)]
    return sorted(every, key=lambda pair: -len(pair[0].sizes))


def _sentences(found: Sequence[ScalingSeries]) -> Iterator[Markup]:
    """Yield each law, then why others have none; the table has what they project."""
    silent: dict[str, list[str]] = {}
    for arm in arms(found):
        law = arm.law()
        if isinstance(law, str):
            silent.setdefault(law, []).append(arm.title)
        else:
            head = Markup("<strong>{}</strong>: ").format(arm.title)
            yield head + _law_words(arm, law)
    for why, titles in silent.items():
        words = "Nothing is fitted or projected for {}. {} {}"
        those = opened("These sets", join(titles, "; "))
        yield Markup(words).format(count(len(titles), "set of runs", "sets of runs"), why, those)


def _law_words(arm: Arm, law: FittedLaw) -> Markup:
    parts = [f"{number(value * 1e6)} ({name})" for name, value in law.coefficients]
    same = law.alternatives - 1
    others = (
        f"; {count(same, 'other law')} {'fits' if same == 1 else 'fit'} as well" if same else ""
    )
    return Markup("the base is {}. A token takes {} µs of a GPU, with a scatter of {}{}.").format(
        measured_scaling([*map(point, arm.runs)]).base_text, join(parts, " + "),
        percent(law.relative_scatter, 2), others,
    )  # fmt: skip


def _mixed(found: Sequence[ScalingSeries]) -> Iterator[Markup]:
    """Yield the groups whose sizes differ in more than size, so that no law can be fitted."""
    together = {arm.group for arm in arms(found)}
    shared = [item.group for item in found if item.base["platform"] == "cpu"]
    mixed = [item.group for item in found if item.group not in (*together, *shared)]
    for groups, why in (
        (shared, "processes share one machine's cores, so nothing is fitted"),
        (mixed, "layout, batch or recomputation differ with the size, so no law can be fitted"),
    ):
        if groups:
            those = opened("These groups", join(groups, "; "))
            yield Markup("In {} {}. {}").format(count(len(groups), "group"), why, those)


def curve(arm: Arm, law: FittedLaw) -> pl.DataFrame:
    """Return the law from the smallest size to the largest that it may be projected to."""
    low, high = arm.sizes[0], arm.project(arm.sizes[-1]).limit_world_size
    ratio = (high / low) ** (1 / MOST_POINTS)
    spread = {round(low * ratio**place) for place in range(MOST_POINTS + 1)}
    each = arm.runs[0]["tokens_per_second"] / low
    made: list[dict[str, Any]] = []
    for size in sorted(spread | set(arm.sizes)):
        value, lower, upper = law.predict(size)
        facts = {"world_size": size, "value": value, "low": lower, "high": upper}
        made.append(facts | {"ideal": each * size, "projected": size > arm.sizes[-1]})
    return pl.DataFrame(made, schema_overrides={"high": pl.Float64})


def figures(found: Sequence[ScalingSeries]) -> Figures | None:
    """Return a chart of MOST_DRAWN sets of runs that have a law; None where there is none."""
    return Figures.of(
        (arm.title, fitted(arm.runs, curve(arm, law), arm.many))
        for arm, law in _with_law(found)[:MOST_DRAWN]
    )


def projections(found: Sequence[ScalingSeries]) -> Markup:
    """Return what each law says of twice, four times, ... the largest size, or why not."""
    rows: list[dict[str, Any]] = []
    for arm, _ in _with_law(found):
        for one in (arm.project(factor * arm.sizes[-1]) for factor in (2, 4, 8)):
            if rows and one.reason and rows[-1]["reason"] == one.reason:
                continue  # beyond the first size that is refused, the others are too
            rows.append({
                "kind": arm.kind, "title": f"{arm.group}, {arm.layout}", "size": one.world_size,
                "value": one.tokens_per_second, "low": one.low, "high": one.high,
                "efficiency": one.scaling_efficiency, "reason": one.reason,
            })  # fmt: skip
    columns = (
        *(text("kind", "Scaling"), text("title", "Runs", wide=True)),
        plain("size", "Projected to", "GPUs"),
        *(plain("value", "Throughput", "tokens/s"), plain("low", "From", "tokens/s")),
        plain("high", "To", "tokens/s", hint="empty: not bounded by the runs"),
        share("efficiency", "Efficiency"),
        text("reason", "Why not", wide=True),
    )
    return html_table(rows, columns, "projections")


def charts(found: Sequence[ScalingSeries]) -> Figures | None:
    """Return a chart of the efficiency by size for each series; None where there is none."""
    return Figures.of(
        (item.group, by_size(item.points, units(item.base["platform"])[1]))
        for item in found[:MOST_SERIES]
    )


def table(found: Sequence[ScalingSeries]) -> Markup:
    """Return speed-up and efficiency of every run of every series, the base marked."""
    efficiency = tables.ranged("scaling_efficiency", percent, "efficiency_low", "efficiency_high")
    columns = (
        text("series", "Series", show=tables.narrow),
        *(tables.RUN, tables.SPLIT, tables.WORLD, tables.TOKENS),
        Column("speedup", "Speed\N{NON-BREAKING HYPHEN}up", lambda row: f"{row['speedup']:.2f}×"),
        Column("ideal_speedup", "Ideal", lambda row: f"{row['ideal_speedup']:.2f}×"),
        Column("scaling_efficiency", "Efficiency", efficiency, hint="with its 95 % interval"),
        text("kind", "Scaling", hint="strong: same global batch; weak: same batch per rank"),
    )
    rows = ({**row, "series": one.group} for one in found for row in one.points.to_dicts())
    return html_table(rows, columns, "scaling")


def projected_efficiency(one: ScalingSeries, tint: int, many: str) -> Iterator[Dot]:
    """Yield the efficiency at twice the largest size, where a law of these runs reaches it."""
    for arm in arms([one])[:1]:
        found = arm.project(2 * max(arm.sizes))
        value, rate_ = found.scaling_efficiency, found.tokens_per_second
        low, high = found.low, found.high
        if value is not None and rate_ and low and high:
            ends = (100 * value * low / rate_, 100 * value * high / rate_)
            name, text = f"{found.world_size} {many}", f"{100 * value:.1f}\N{NO-BREAK SPACE}%"
            yield Dot(name, 100 * value, *ends, text, "by a fitted law", tint, predicted=True)
