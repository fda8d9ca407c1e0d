"""Charts of what each run reached: throughput with its interval, MFU."""

from __future__ import annotations

import altair as alt
import polars as pl

from scalebook.charts.figure import Figure, Figures, by_source, entitled, rows
from scalebook.naming import unit_name
from scalebook.quantities import NONE, count, percent, quantity

MAX_BARS = 40  # more bars than this are read as a wall; the table holds them all
ROW_HEIGHT = 26

PALE = 0.55  # opacity of what was not measured here
FROM_ZERO = alt.Scale(domainMin=0)
_FIELDS = (
    "run_id", "label", "model", "platform", "split", "source", "world_size", "step_seconds_median",
    "tokens_per_second", "tokens_per_second_low", "tokens_per_second_high",
    "tokens_per_second_per_gpu", "mfu", "mfu_low", "mfu_high",
)  # fmt: skip
TICKS = alt.Axis(tickCount=6)
_TOOLTIP = [
    alt.Tooltip("run_id:N", title="run"),
    alt.Tooltip("model:N"),
    alt.Tooltip("platform:N"),
    alt.Tooltip("split:N", title="parallelism"),
    alt.Tooltip("source:N"),
    alt.Tooltip("tokens_per_second:Q", title="tokens/s", format=",.0f"),
    alt.Tooltip("tokens_per_second_per_gpu:Q", title="tokens/s each", format=",.0f"),
    alt.Tooltip("step_seconds_median:Q", title="median step, s", format=".4f"),
    alt.Tooltip("interval:N", title="95 % interval"),
]


def throughput(runs: pl.DataFrame) -> Figures | None:
    """Return bars of each run's throughput, a chart a platform; None where no run has one.

    A process of a CPU and a GPU share no axis.
    """
    platforms = runs.group_by("platform", maintain_order=True)
    return Figures.of((str(name), bars(members)) for (name,), members in platforms)


def bars(runs: pl.DataFrame) -> Figure | None:
    """Return bars of tokens per second per GPU (or process), with intervals; None for no run."""
    data = _shown(runs, "tokens_per_second_per_gpu")
    if data.is_empty():
        return None
    unit = unit_name(data["platform"][0])
    base = alt.Chart(rows(data))
    y = alt.Y("label:N", sort=data["label"].to_list(), title=None)
    pick = alt.selection_point(fields=["model"], bind="legend")
    marks = base.mark_bar(cornerRadiusEnd=2).encode(
        y=y,
        x=alt.X("tokens_per_second_per_gpu:Q", title=f"tokens/s per {unit}", axis=TICKS),
        color=_by_model(data),
        opacity=alt.condition(pick, alt.Opacity("alpha:Q", scale=None), alt.value(0.15)),
        tooltip=_TOOLTIP,
    )
    ends = base.transform_filter("isValid(datum.low) && isValid(datum.high)")
    whiskers = ends.mark_rule(strokeWidth=1.5).encode(y=y, x="low:Q", x2="high:Q")
    chart = (marks.add_params(pick) + whiskers).properties(
        width="container", height=alt.Step(ROW_HEIGHT)
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
        shape=by_source(),
        tooltip=[*_TOOLTIP, alt.Tooltip("mfu:Q", title="MFU", format=".1%")],
    )
    ends = base.transform_filter("isValid(datum.mfu_low) && isValid(datum.mfu_high)")
    whiskers = ends.mark_rule(strokeWidth=1.5).encode(y=y, x="mfu_low:Q", x2="mfu_high:Q")
    chart = (whiskers + points).properties(width="container", height=alt.Step(ROW_HEIGHT))
    best = data.row(0, named=True)
    text = f"MFU of {count(data.height, 'run')}; the highest is {percent(best['mfu'])} of "
    return Figure(entitled(chart, _cut(runs, data)), f"{text}{best['label']}.")


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
    size = pl.col("world_size")
    low, high = pl.col("tokens_per_second_low") / size, pl.col("tokens_per_second_high") / size
    interval = pl.format("{} to {}", low.round(0).cast(pl.Int64), high.round(0).cast(pl.Int64))
    alpha = pl.when(pl.col("source") == "measured").then(1.0).otherwise(PALE)
    return data.select(_FIELDS).with_columns(
        low=low, high=high, interval=interval.fill_null(NONE), alpha=alpha
    )


def _describe(data: pl.DataFrame, unit: str) -> str:
    best, worst = data.row(0, named=True), data.row(-1, named=True)
    each = f"tokens/s per {unit}"
    return (
        f"{count(data.height, 'run')}, from {best['label']} at "
        f"{quantity(best['tokens_per_second_per_gpu'], each)} to {worst['label']} at "
        f"{quantity(worst['tokens_per_second_per_gpu'], each)}."
    )
