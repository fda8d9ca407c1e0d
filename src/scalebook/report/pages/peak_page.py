"""The peak page: the best configuration of each model on each platform, in nine panels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from scalebook.facts.catalog.types import TINY
from scalebook.measure.economics import SECONDS_PER_DAY
from scalebook.report.base import html_tables as tables
from scalebook.report.base.frames import PROXY, ReportData, capacity
from scalebook.report.base.markup import Markup, bullets, run_links
from scalebook.report.base.naming import Row
from scalebook.report.base.quantities import count
from scalebook.report.base.sections import unranked
from scalebook.report.base.versus import Configuration, configurations
from scalebook.report.charts import Figure
from scalebook.report.charts import rate_charts as charts


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: the column it shows, in words, and which run of a group it is of."""

    field: str
    title: str
    format: str
    total: bool = False  # of the run with most tokens/s in all, not the most per GPU
    limit: str = ""  # the column of what the value is held against
    limit_title: str = ""
    power: int = 1  # of the rate, which its interval comes from: -1 of a time, 0 of no rate


PANELS = {
    "total": Panel("tokens_per_second", "tokens/s in all", ",.0f", total=True),
    "compute": Panel("total_tflops", "TFLOP/s in all", ",.0f", total=True),
    "mfu": Panel("mfu", "MFU", ".1%"),
    "each": Panel("tokens_per_second_per_gpu", "tokens/s per GPU", ",.0f"),
    "rate": Panel(
        "model_tflops_per_second_per_gpu", "TFLOP/s per GPU", ",.0f",
        limit="peak_tflops_per_second", limit_title="dense peak",
    ),
    "step": Panel("step_seconds_median", "median step, s", ",.3f", power=-1),
    "memory": Panel(
        "peak_memory_gib", "GiB", ",.1f", limit="capacity_gib", limit_title="of the device",
        power=0,
    ),
    "day": Panel("tokens_per_day", "billion tokens per day", ",.2f", total=True),
}  # fmt: skip
SHOWN = pl.col("run_id", "model", "group", "platform", "split", "source")


def field(data: ReportData) -> pl.DataFrame:
    """Return the runs that the page is about, with totals and capacity a day.

    Only accelerators where there are any: processes of a CPU share its cores.
    """
    runs = data.ranked
    on_gpus = runs.filter(pl.col("platform") != "cpu")
    real = on_gpus.filter(~pl.col("model").str.starts_with(TINY))  # than those made for a CPU
    shown = next((some for some in (real, on_gpus) if not some.is_empty()), runs)
    names = shown["accelerator"].unique().to_list()
    sizes = {name: size for name in names if (size := capacity(name)) is not None}
    return shown.with_columns(
        total_tflops=pl.col("model_tflops_per_second_per_gpu") * pl.col("world_size"),
        tokens_per_day=pl.col("tokens_per_second") * SECONDS_PER_DAY / 1e9,
        samples_per_day=pl.col("tokens_per_second") * SECONDS_PER_DAY / pl.col("sequence_length"),
        capacity_gib=pl.col("accelerator").replace_strict(
            sizes, default=None, return_dtype=pl.Float64
        ),
    )


def best(data: ReportData, by: str = "rate") -> pl.DataFrame:
    """Return a run of the configuration of each group that is highest by a column.

    The highest group is first. Repeats of a configuration count with the mean of them all; shown
    is the fastest that has an interval. Whole models come before the first layers of one, which
    are fast because they are few.
    """
    known = field(data).drop_nulls(["rate", by])
    groups = known.group_by("group", maintain_order=True)
    top = [max(_of(runs), key=lambda one: one.mean(by) or 0.0) for _, runs in groups]
    top.sort(key=lambda one: one.mean(by) or 0.0, reverse=True)
    place = {one.runs[0]["run_id"]: i for i, one in enumerate(top)}
    first = known.filter(pl.col("run_id").is_in(list(place)))
    order = pl.col("run_id").replace_strict(place, return_dtype=pl.Int64, default=None)
    return first.sort(PROXY, order, maintain_order=True)


def _by_use(runs: pl.DataFrame, data: ReportData) -> pl.DataFrame:
    """Return runs with the model that most runs are about first; rates of two are not compared."""
    used = dict(field(data).group_by("model").len().iter_rows())
    many = pl.col("model").replace_strict(used, return_dtype=pl.Int64, default=0)
    return runs.sort(PROXY, -many, maintain_order=True)


def _of(runs: pl.DataFrame) -> list[Configuration]:
    """Return the configurations of some runs, the fastest first."""
    return configurations(runs.drop_nulls("rate").iter_rows(named=True))


def panel(data: ReportData, name: str) -> Figure | None:
    """Return one panel; None where no run has its number."""
    one = PANELS[name]
    runs = best(data, "tokens_per_second" if one.total else "rate")
    limit = pl.col(one.limit) if one.limit else pl.lit(None)
    ends = ("low", "high")[:: one.power or 1]
    low, high = (
        pl.col(one.field)
        * (pl.col(f"tokens_per_second_{end}") / pl.col("tokens_per_second")).pow(one.power)
        if one.power
        else pl.lit(None, pl.Float64)
        for end in ends
    )
    shown = runs.select(
        SHOWN, value=one.field, value_low=low, value_high=high, limit=limit.cast(pl.Float64)
    )
    return charts.panel(shown, one.title, one.format, one.limit_title)


def spread(data: ReportData) -> Figure | None:
    """Return all configurations of each group by the rate that runs are ranked by."""
    runs = field(data).drop_nulls("rate")
    shown = runs.select(SHOWN, value="rate")
    return charts.spread(shown, runs["rate_unit"][0]) if runs.height else None


def best_table(data: ReportData) -> Markup:
    """Return the best configuration of each group with all its numbers."""
    runs = _by_use(best(data), data)
    columns = (
        *tables.WHAT_RAN, tables.TOKENS_EACH, tables.MFU, tables.STEP, tables.TOKENS,
        tables.plain("micro_batch_size", "Micro batch"),
        *(tables.text("recompute", "Recomputation"), tables.TFLOPS),
        tables.plain("peak_tflops_per_second", "Dense peak", "TFLOP/s", digits=4),
        tables.plain("peak_memory_gib", "Peak memory", "GiB"),
        tables.Column("tokens_per_day", "A day", _day("tokens_per_day"), "billion tokens"),
        tables.Column(
            "samples_per_day", "A day", _day("samples_per_day"), "samples",
            hint="samples of the run's own sequence length, without stops or checkpoints",
        ),
        tables.text("source", "Source"),
        tables.text("mfu_reason", "Why no MFU"),
    )  # fmt: skip
    return tables.table(runs.iter_rows(named=True), columns, "peak")


def _day(column: str) -> Callable[[Row], str]:
    return lambda row: Configuration((row,)).derived(row[column])


def left_out(data: ReportData) -> Markup:
    """Return the runs that the page leaves out, and why; nothing where it shows all."""
    said = [*unranked(data)]
    if best(data).is_empty():
        said.insert(0, Markup("No run has a throughput that can be ranked, so there is no best."))
    shown = field(data)["run_id"].implode()
    missing = data.ranked.filter(pl.col("platform") == "cpu", ~pl.col("run_id").is_in(shown)).height
    if missing:
        words = "{} on a CPU left out: processes share its cores."
        said.append(Markup(words).format(count(missing, "run")))
    unsized = field(data).filter(pl.col("rate").is_null())
    if unsized.height:
        ids = run_links(unsized["run_id"])
        said.append(Markup("The number of ranks of {} is not recorded.").format(ids))
    return bullets(said)
