"""Charts of what each run reached: throughput with its interval, MFU."""

from __future__ import annotations

import altair as alt
import polars as pl

from scalebook.charts.figure import AnyChart, Figure, Figures, by_source, entitled, rows
from scalebook.quantities import NONE, count, percent, quantity

MAX_BARS = 40  # more bars than this are read as a wall; the table holds them all
ROW_HEIGHT = 26

PALE = 0.55  # opacity of what was not measured here
FROM_ZERO = alt.Scale(domainMin=0)
_FIELDS = (
    "run_id", "label", "model", "platform", "split", "source", "step_seconds_median",
    "tokens_per_second", "rate", "rate_low", "rate_high", "rate_unit", "mfu", "mfu_low", "mfu_high",
)  # fmt: skip
TICKS = alt.Axis(tickCount=6)
_TOOLTIP = [
    alt.Tooltip("run_id:N", title="run"),
    alt.Tooltip("model:N"),
    alt.Tooltip("platform:N"),
    alt.Tooltip("split:N", title="parallelism"),
    alt.Tooltip("source:N"),
    alt.Tooltip("tokens_per_second:Q", title="tokens/s", format=",.0f"),
    alt.Tooltip("rate:Q", title="ranked by", format=",.0f"),
    alt.Tooltip("rate_unit:N", title="in"),
    alt.Tooltip("step_seconds_median:Q", title="median step, s", format=".4f"),
    alt.Tooltip("interval:N", title="95 % interval"),
]


def throughput(runs: pl.DataFrame) -> Figures | None:
    """Return bars of each run's throughput, a chart a platform; None where no run has one.

    A process of a CPU and a GPU share no axis.
    """
    platforms = runs.group_by("platform", maintain_order=True)
    return Figures.of(
        (str(name or "unknown platform"), bars(members)) for (name,), members in platforms
    )


def bars(runs: pl.DataFrame) -> Figure | None:
    """Return bars of the rate that runs are ranked by, with intervals; None for no run."""
    data = _shown(runs, "rate")
    if data.is_empty():
        return None
    unit = data["rate_unit"][0]
    base = alt.Chart(rows(data))
    y = alt.Y("label:N", sort=data["label"].to_list(), title=None)
    pick = alt.selection_point(fields=["model"], bind="legend")
    marks = base.mark_bar(cornerRadiusEnd=2).encode(
        y=y,
        x=alt.X("rate:Q", title=unit, axis=TICKS),
        color=_by_model(data),
        opacity=alt.condition(pick, alt.Opacity("alpha:Q", scale=None), alt.value(0.15)),
        tooltip=_TOOLTIP,
    )
    chart = (marks.add_params(pick) + whiskers(base, y, "rate")).properties(
        width="container", height=ROW_HEIGHT * data.height
    )
    return Figure(entitled(chart, _cut(runs, data)), _describe(data, unit))


def utilisation(runs: pl.DataFrame) -> Figure | None:
    """Return points of MFU with their intervals; None where no run has an MFU."""
    data = _shown(runs, "mfu")
    if data.is_empty():
        return None
    y = alt.Y("label:N", sort=data["label"].to_list(), title=None, axis=alt.Axis(grid=True))
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
    best = data.row(0, named=True)
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
    """Return what a chart shows: its runs, with the interval per GPU and how solid each is."""
    data = runs.filter(pl.col(by).is_not_null()).sort(by, descending=True).head(MAX_BARS)
    ends = (pl.col(name).round(0).cast(pl.Int64) for name in ("rate_low", "rate_high"))
    alpha = pl.when(pl.col("source") == "measured").then(1.0).otherwise(PALE)
    interval = pl.format("{} to {}", *ends).fill_null(NONE)
    return data.select(_FIELDS).with_columns(interval=interval, alpha=alpha)


def _describe(data: pl.DataFrame, unit: str) -> str:
    best, worst = data.row(0, named=True), data.row(-1, named=True)
    return (
        f"{count(data.height, 'run')}, from {best['label']} at {quantity(best['rate'], unit)} "
        f"to {worst['label']} at {quantity(worst['rate'], unit)}."
    )
