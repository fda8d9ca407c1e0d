"""Charts of what each run reached: throughput with its interval, MFU."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from scalebook.report.base.frames import PROXY
from scalebook.report.base.quantities import NONE, count, percent, quantity
from scalebook.report.charts.figure import (
    MAX_BARS,
    AnyChart,
    Figure,
    Figures,
    by_source,
    entitled,
    names,
    rows,
)

MAX_CHARTS = 12
ROW_HEIGHT = 28

ROOM = 0.2  # of the longest bar: a shorter one is written on nothing
PALE = 0.55  # opacity of what was not measured here
FROM_ZERO = alt.Scale(domainMin=0)
_FIELDS = (
    "run_id", "label", "name", "model", "platform", "split", "source", "step_seconds_median",
    "tokens_per_second", "rate", "rate_low", "rate_high", "rate_unit", "mfu", "mfu_low", "mfu_high",
)  # fmt: skip
TICKS = alt.Axis(tickCount=6)
_TOOLTIP = [
    alt.Tooltip("run_id:N", title="run"),
    alt.Tooltip("model:N"),
    alt.Tooltip("platform:N"),
    alt.Tooltip("name:N", title="configuration"),
    alt.Tooltip("source:N"),
    alt.Tooltip("tokens_per_second:Q", title="tokens/s", format=",.0f"),
    alt.Tooltip("rate:Q", title="ranked by", format=",.0f"),
    alt.Tooltip("rate_unit:N", title="in"),
    alt.Tooltip("step_seconds_median:Q", title="median step, s", format=".4f"),
    alt.Tooltip("interval:N", title="95 % interval"),
]


def throughput(runs: pl.DataFrame) -> Figures | None:
    """Return bars of each run's throughput, a chart a group; None where no run has one.

    Only runs of one group do the same work and so share an axis. Groups of one run, in which
    nothing is ranked, come last and together, accelerators and CPUs apart.
    """
    known = runs.filter(pl.col("rate").is_not_null()).with_columns(many=pl.len().over("group"))
    several = known.filter(pl.col("many") > 1).group_by("group", maintain_order=True)
    parts = [(str(group), bars(members)) for (group,), members in several]
    if len(parts) > MAX_CHARTS:
        title, figure = parts[MAX_CHARTS - 1]
        more = count(len(parts) - MAX_CHARTS, "group of runs is", "groups of runs are")
        parts[MAX_CHARTS - 1] = (f"{title} ({more} only in the table)", figure)
    singles: list[tuple[str, Figure | None]] = []
    alone = known.filter(pl.col("many") == 1)
    for (on_cpu,), members in alone.group_by(
        pl.col("platform").eq_missing("cpu"), maintain_order=True
    ):
        title = f"{'CPU runs' if on_cpu else 'Runs'} that compare with no other"
        singles.append((title, bars(members, "label")))
    return Figures.of([*parts[:MAX_CHARTS], *singles])


def bars(runs: pl.DataFrame, column: str = "name") -> Figure | None:
    """Return bars of the rate that runs are ranked by, with intervals; None for no run.

    ``column`` is the one that a bar is called by.
    """
    data = _shown(runs, "rate")
    if data.is_empty():
        return None
    unit = data["rate_unit"][0]
    base = alt.Chart(rows(data))
    y = names(column, data[column])
    marks = base.mark_bar(cornerRadiusEnd=2).encode(
        y=y,
        x=alt.X("rate:Q", title=unit, axis=TICKS),
        opacity=alt.Opacity("alpha:Q", scale=None),
        tooltip=_TOOLTIP,
    )
    chart = (marks + whiskers(base, y, "rate") + _numbers(base, y, data["rate"].max())).properties(
        width="container", height=ROW_HEIGHT * data.height
    )
    return Figure(entitled(chart, _cut(runs, data)), _describe(data, unit))


def _numbers(base: alt.Chart, y: alt.Y, longest: Any) -> alt.Chart:
    """Return the rate in figures at the foot of each bar that has room for them."""
    room = base.transform_filter(alt.datum.rate > longest * ROOM)
    return room.mark_text(align="left", dx=6, style="on-bar").encode(
        y=y, x=alt.datum(0), text=alt.Text("rate:Q", format=",.0f")
    )


def utilisation(runs: pl.DataFrame) -> Figure | None:
    """Return points of MFU with their intervals; None where no run has an MFU."""
    data = _shown(runs, "mfu")
    if data.is_empty():
        return None
    y = names("label", data["label"], grid=True)
    base = alt.Chart(rows(data))
    x = alt.X("mfu:Q", title="MFU", axis=alt.Axis(format="%", tickCount=6), scale=FROM_ZERO)
    points = base.mark_point(filled=True, size=90).encode(
        y=y,
        x=x,
        color=_by_model(data),
        shape=by_source(data["source"]),
        tooltip=[*_TOOLTIP, alt.Tooltip("mfu:Q", title="MFU", format=".1%")],
    )
    chart = (whiskers(base, y, "mfu") + points).properties(
        width="container", height=ROW_HEIGHT * data.height
    )
    best = data.sort("mfu", descending=True).row(0, named=True)
    text = f"MFU of {count(data.height, 'run')}; the highest is {percent(best['mfu'])} of "
    return Figure(entitled(chart, _cut(runs, data)), f"{text}{best['label']}.")


def whiskers(base: alt.Chart, y: alt.Y, field: str) -> AnyChart:
    """Return the interval of a field as a line that shows on the page and on a bar alike."""
    low, high = f"{field}_low", f"{field}_high"
    ends = base.transform_filter(f"isValid(datum.{low}) && isValid(datum.{high})").encode(
        y=y, x=f"{low}:Q", x2=f"{high}:Q"
    )
    return ends.mark_rule(strokeWidth=4, style="halo") + ends.mark_rule(strokeWidth=1.5)


def _by_model(data: pl.DataFrame) -> alt.Color:
    """Return colour by model, with a legend where there is more than one."""
    several = data["model"].n_unique() > 1
    return alt.Color("model:N", title=None, legend=alt.Legend() if several else None)


def _cut(runs: pl.DataFrame, data: pl.DataFrame) -> str | None:
    """Return how many of the runs a chart shows, where that is not all of them."""
    cut = data.height == MAX_BARS < runs.height
    return f"The {MAX_BARS} highest of {runs.height} runs" if cut else None


def _shown(runs: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return what a chart shows: its runs, whole models first, with interval and opacity."""
    known = runs.filter(pl.col(by).is_not_null())
    # the first layers of a model are fast because they are few: they push no whole model out
    data = known.sort(PROXY, by, descending=[False, True], maintain_order=True).head(MAX_BARS)
    ends = (pl.col(name).round(0).cast(pl.Int64) for name in ("rate_low", "rate_high"))
    alpha = pl.when(pl.col("source") == "measured").then(1.0).otherwise(PALE)
    interval = pl.format("{} to {}", *ends).fill_null(NONE)
    return data.select(_FIELDS).with_columns(interval=interval, alpha=alpha)


def _describe(data: pl.DataFrame, unit: str) -> str:
    ordered = data.sort("rate", descending=True, maintain_order=True)
    best, worst = ordered.row(0, named=True), ordered.row(-1, named=True)
    return (
        f"{count(data.height, 'run')}, from {best['label']} at {quantity(best['rate'], unit)} "
        f"to {worst['label']} at {quantity(worst['rate'], unit)}."
    )
