"""Charts of checkpoints and of recoveries."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from scalebook.report.base.quantities import count, duration
from scalebook.report.charts.figure import AnyChart, Figure, entitled, names, rows

MAX_BARS = 30
ROW_HEIGHT = 34
CHECKPOINT_SCHEMA: dict[str, type[pl.DataType]] = {
    "run_id": pl.String,
    "label": pl.String,
    "source": pl.String,
    "kind": pl.String,  # one of KINDS
    "seconds": pl.Float64,  # median over the run's saves or loads
    "size_gib": pl.Float64,
}
KINDS = ("training waits for a save", "a save is complete", "a load")
TIMELINE_SCHEMA: dict[str, type[pl.DataType]] = {
    "run_id": pl.String,
    "label": pl.String,
    "source": pl.String,
    "part": pl.String,  # one of PARTS
    "place": pl.Int64,
    "seconds": pl.Float64,
    "begins": pl.Float64,  # seconds after the kill
    "ends": pl.Float64,
}
PARTS = (
    "torchrun notices",
    "processes start",
    "they connect and build the model",
    "the checkpoint is loaded",
    "the first step",
)


def checkpoints(data: pl.DataFrame) -> Figure | None:
    """Return one bar per run and kind of the seconds of its checkpoints; None without one."""
    runs = data["label"].n_unique()
    labels, data = _first(data)
    if data.is_empty():
        return None
    told = (
        alt.Tooltip("kind:N", title="time until"),
        alt.Tooltip("seconds:Q", format=".4~g"),
        alt.Tooltip("size_gib:Q", title="GiB", format=".4~g"),
    )
    chart = _bars(data, labels, ("kind", KINDS), told).encode(
        yOffset=alt.YOffset("kind:N", sort=list(KINDS)),
        x=alt.X("seconds:Q", title="seconds, median of the run"),
    )
    longest = data.sort("seconds").row(-1, named=True)
    words = (
        f"{count(len(labels), 'run')} with checkpoints; the longest time is "
        f"{duration(longest['seconds'])}, until {longest['kind']}."
    )
    return Figure(_cut(chart, runs), words)


def timeline(data: pl.DataFrame) -> Figure | None:
    """Return one bar per drill of what followed the kill, in its order; None without a drill."""
    runs = data["label"].n_unique()
    labels, data = _first(data)
    if data.is_empty():
        return None
    told = (
        alt.Tooltip("part:N"),
        alt.Tooltip("seconds:Q", format=".4~g"),
        alt.Tooltip("ends:Q", title="seconds after the kill", format=".4~g"),
    )
    chart = _bars(data, labels, ("part", PARTS), told).encode(
        x=alt.X("begins:Q", title="seconds after the kill"),
        x2="ends:Q",
    )
    slowest = data.sort("ends").row(-1, named=True)
    words = (
        f"{count(len(labels), 'drill')}; the slowest had a step finished "
        f"{duration(slowest['ends'])} after the kill."
    )
    return Figure(_cut(chart, runs), words)


def _bars(
    data: pl.DataFrame,
    labels: Sequence[str],
    parts: tuple[str, Sequence[str]],
    told: Sequence[alt.Tooltip],
) -> alt.Chart:
    """Return bars in one row per run, coloured by a column in its order; x is for the caller."""
    column, order = parts
    return (
        alt.Chart(rows(data))
        .mark_bar()
        .encode(
            y=names("label", labels),
            color=alt.Color(f"{column}:N", title=None, scale=alt.Scale(domain=list(order))),
            tooltip=[
                alt.Tooltip("run_id:N", title="run"),
                alt.Tooltip("label:N", title="what"),
                alt.Tooltip("source:N"),
                *told,
            ],
        )
        .properties(width="container", height=ROW_HEIGHT * len(labels) + 10)
    )


def _first(data: pl.DataFrame) -> tuple[list[str], pl.DataFrame]:
    """Return the labels that a chart has room for, and their rows."""
    labels: list[str] = data["label"].unique(maintain_order=True).to_list()
    shown = labels[:MAX_BARS]
    return shown, data.filter(pl.col("label").is_in(shown))


def _cut(chart: AnyChart, runs: int) -> AnyChart:
    return entitled(chart, f"The first {MAX_BARS} of {runs} runs" if runs > MAX_BARS else None)
