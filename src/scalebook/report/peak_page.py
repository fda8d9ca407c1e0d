"""The peak page: the best configuration of each model on each platform, in nine panels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from scalebook import catalog
from scalebook.charts import Figure
from scalebook.charts import peak as charts
from scalebook.economics import SECONDS_PER_DAY
from scalebook.errors import CatalogError
from scalebook.frames import ReportData
from scalebook.markup import Fragment, Markup, bullets, paragraphs, run_link, run_links
from scalebook.naming import sized
from scalebook.quantities import count, number, percent, quantity, times
from scalebook.report.versus import verdict_on
from scalebook.tables import (
    MFU,
    PLATFORM,
    RUN,
    SPLIT,
    STEP,
    TFLOPS,
    TOKENS,
    TOKENS_EACH,
    WORLD,
    Column,
    plain,
    table,
    text,
)  # fmt: skip

Row = Mapping[str, Any]
# Groups of one model under the same work compare across platforms.
_WORK = ("model", "precision", "sequence_length", "source")


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: the column it shows, in words, and which run of a group it is of."""

    field: str
    title: str
    format: str
    total: bool = False  # of the run with most tokens/s in all, not the most per GPU
    limit: str = ""  # the column of what the value is held against
    limit_title: str = ""


PANELS = {
    "total": Panel("tokens_per_second", "tokens/s in all", ",.0f", total=True),
    "compute": Panel("total_tflops", "TFLOP/s in all", ",.0f", total=True),
    "mfu": Panel("mfu", "MFU", ".1%"),
    "each": Panel("tokens_per_second_per_gpu", "tokens/s per GPU", ",.0f"),
    "rate": Panel(
        "model_tflops_per_second_per_gpu", "TFLOP/s per GPU", ",.0f",
        limit="peak_tflops_per_second", limit_title="dense peak",
    ),
    "step": Panel("step_seconds_median", "median step, s", ",.3f"),
    "memory": Panel(
        "peak_memory_gib", "GiB", ",.1f", limit="capacity_gib", limit_title="of the device"
    ),
    "day": Panel("tokens_per_day", "billion tokens a day", ",.2f", total=True),
}  # fmt: skip


def field(data: ReportData) -> pl.DataFrame:
    """Return the runs that the page is about, with totals and capacity a day.

    Accelerators alone where there are any: processes of a CPU share its cores.
    """
    runs = data.completed
    on_gpus = runs.filter(pl.col("platform") != "cpu")
    shown = runs if on_gpus.is_empty() else on_gpus
    names = shown["accelerator"].unique().to_list()
    sizes = {name: size for name in names if (size := _capacity(name)) is not None}
    return shown.with_columns(
        total_tflops=pl.col("model_tflops_per_second_per_gpu") * pl.col("world_size"),
        tokens_per_day=pl.col("tokens_per_second") * SECONDS_PER_DAY / 1e9,
        samples_per_day=pl.col("tokens_per_second") * SECONDS_PER_DAY / pl.col("sequence_length"),
        capacity_gib=pl.col("accelerator").replace_strict(
            sizes, default=None, return_dtype=pl.Float64
        ),
    )


def _capacity(accelerator: str | None) -> float | None:
    try:
        device = catalog.accelerator_for_device(accelerator) if accelerator else None
    except CatalogError:
        return None
    return device.memory_gb if device else None


def best(data: ReportData, by: str = "rate") -> pl.DataFrame:
    """Return the run of each group that is highest by a column, the highest group first.

    Whole models come before the first layers of one, which are fast because they are few.
    """
    known = field(data).drop_nulls(by).sort(by, descending=True, maintain_order=True)
    first = known.unique("group", keep="first", maintain_order=True)
    proxies = pl.col("model").str.contains("@", literal=True)
    return first.sort(proxies, maintain_order=True)


def panel(data: ReportData, name: str) -> Figure | None:
    """Return one panel; None where no run has its number."""
    one = PANELS[name]
    runs = best(data, "tokens_per_second" if one.total else "rate")
    limit = pl.col(one.limit) if one.limit else pl.lit(None)
    columns = pl.col("run_id", "group", "platform", "split", "source")
    shown = runs.select(columns, value=one.field, limit=limit.cast(pl.Float64))
    return charts.panel(shown, one.title, one.format, one.limit_title)


def spread(data: ReportData) -> Figure | None:
    """Return all configurations of each group by the rate that runs are ranked by."""
    runs = field(data).drop_nulls("rate")
    if runs.is_empty():
        return None
    shown = runs.select(
        *("run_id", "group", "platform", "split", "source"), value="rate", limit=pl.lit(None)
    )
    return charts.spread(shown, runs["rate_unit"][0])


def best_table(data: ReportData) -> Fragment:
    """Return the best configuration of each group with all its numbers."""
    runs = best(data)
    if runs.is_empty():
        return Fragment(Markup(""))
    columns = (
        *(RUN, text("model", "Model"), PLATFORM, SPLIT, WORLD, TOKENS, TOKENS_EACH, MFU, STEP),
        plain("micro_batch_size", "Micro batch"),
        *(text("recompute", "Recompute"), TFLOPS),
        plain("peak_tflops_per_second", "Dense peak", "TFLOP/s", digits=4),
        plain("peak_memory_gib", "Peak memory", "GiB"),
        plain("tokens_per_day", "A day", "billion tokens"),
        Column(
            "samples_per_day", "A day", lambda row: number(row["samples_per_day"]), "samples",
            hint="samples of the run's own sequence length, without stops or checkpoints",
        ),
        text("source", "Source"),
        text("mfu_reason", "No MFU because"),
    )  # fmt: skip
    return table(runs.iter_rows(named=True), columns, "peak")


def findings(data: ReportData) -> Fragment:
    """Return the best of each group, what it could do in a day, and the platforms compared."""
    runs = best(data)
    if runs.is_empty():
        return paragraphs("No run has a throughput, so there is no peak.")
    return bullets([*map(_peak, _with_field(data, runs)), *_platforms(runs), *_left_out(data)])


def _with_field(data: ReportData, runs: pl.DataFrame) -> Iterator[tuple[Row, pl.DataFrame]]:
    every = field(data).drop_nulls("rate")
    for row in runs.iter_rows(named=True):
        yield row, every.filter(pl.col("group") == row["group"])


def _peak(found: tuple[Row, pl.DataFrame]) -> Markup:
    """Return the best run of a group in words, with how far its slowest run is behind."""
    row, members = found
    mfu = Markup("")
    if row["mfu"] is not None:
        peak = quantity(row["peak_tflops_per_second"], "TFLOP/s", 4)
        mfu = Markup(", {} of the dense {} peak of {}").format(
            percent(row["mfu"]), row["peak_precision"], peak
        )
    told = Markup("<strong>{}</strong>: best with {} ({}), {}{}; {} billion tokens a day").format(
        row["group"],
        sized(row),
        run_link(row["run_id"]),
        quantity(row["rate"], row["rate_unit"]),
        mfu,
        number(row["tokens_per_day"]),
    )
    if row["samples_per_day"] is not None:
        length = f"{row['sequence_length']:,}"
        samples = f"{row['samples_per_day']:,.0f}"
        told += Markup(" ({} samples of {}), without a stop").format(samples, length)
    if members.height == 1:
        return told + "."
    slowest = members.sort("rate").row(0, named=True)
    words = ". The slowest of its {} ({}) is a factor of {} behind."
    factor = times(row["rate"] / slowest["rate"])
    return told + Markup(words).format(
        count(members.height, "run"), run_link(slowest["run_id"]), factor
    )


def _platforms(runs: pl.DataFrame) -> Iterator[Markup]:
    """Yield the platforms of one model under the same work, each at its best."""
    for _, same in runs.group_by(*_WORK, maintain_order=True):
        ranked = same.unique("platform", keep="first", maintain_order=True)
        if ranked.height < 2:
            continue
        first = ranked.row(0, named=True)
        for other in ranked.tail(-1).iter_rows(named=True):
            verdict = verdict_on(first, other)
            word = verdict.word if verdict is not None else "no interval, so no verdict"
            words = "{} ({}, sequence {}) at its best: {} ({}) over {} ({}) is {} per GPU: {}."
            length = first["sequence_length"]
            yield Markup(words).format(
                first["model"],
                first["precision"] or "unknown precision",
                "unknown" if length is None else f"{length:,}",
                first["platform"],
                run_link(first["run_id"]),
                other["platform"],
                run_link(other["run_id"]),
                times(first["rate"] / other["rate"]),
                word,
            )


def _left_out(data: ReportData) -> Iterator[Markup]:
    """Yield the runs that the page leaves out, and why."""
    missing = data.completed.height - field(data).height
    if missing:
        yield Markup("{} on <code>cpu</code> left out: processes share its cores.").format(
            count(missing, "run")
        )
    unsized = field(data).filter(pl.col("rate").is_null())
    if unsized.height:
        ids = run_links(unsized["run_id"])
        yield Markup("Of how many ranks {} were is not recorded.").format(ids)
