"""Charts over the steps of a run: loss, and the time of each step."""

from __future__ import annotations

from typing import cast

import altair as alt
import polars as pl

from scalebook.report.base.quantities import count, number
from scalebook.report.charts.figure import AnyChart, Figure, entitled, rows

MAX_RUNS = 10  # curves that a reader can still tell apart: as many as there are colours
MAX_POINTS = 200  # per curve: no screen shows more

# A run that was not measured here is never drawn as a solid line.
DASHES = alt.Scale(
    domain=["measured", "ingested", "simulated", "published", "inferred"],
    range=[[1, 0], [8, 3], [4, 3], [2, 2], [6, 2, 1, 2]],
)


def curves(steps: pl.DataFrame, runs: pl.DataFrame, field: str, title: str) -> Figure | None:
    """Return a line a run of one field of its steps; None where no step has it.

    Where there are more runs than colours, the first ones of ``runs`` are drawn.
    """
    known = steps.filter(pl.col(field).is_not_null()).sort("run_id", "step")
    names = runs.select("run_id", "label", "source")
    names = names.filter(pl.col("run_id").is_in(known["run_id"].unique().implode()))
    data = thinned(known.join(names.head(MAX_RUNS), on="run_id"))
    if data.is_empty():
        return None
    cut = names.height > MAX_RUNS
    shown = f"The first {MAX_RUNS} of {names.height} runs" if cut else None
    data = data.select("run_id", "label", "source", "step", "phase", field)
    # Vega breaks down over an order of thousands of names
    chart = _lines(data, field, title, names["label"].head(MAX_RUNS).to_list())
    return Figure(entitled(chart, shown), _describe(data, field, title))


def _lines(data: pl.DataFrame, field: str, title: str, order: list[str]) -> AnyChart:
    """Return the lines, and the point under the pointer with its run id."""
    pick = alt.selection_point(fields=["label"], bind="legend")
    near = alt.selection_point(nearest=True, on="pointerover", fields=["step"], empty=False)
    base = alt.Chart(rows(data)).encode(
        x=alt.X("step:Q", title="optimizer step", axis=alt.Axis(format="d", tickMinStep=1)),
        y=alt.Y(f"{field}:Q", title=title, scale=alt.Scale(zero=False)),
        color=alt.Color("label:N", title=None, sort=order),
    )
    line = base.mark_line().encode(
        strokeDash=alt.StrokeDash("source:N", legend=None, scale=DASHES),
        detail="run_id:N",
        opacity=alt.condition(pick, alt.value(0.9), alt.value(0.1)),
    )
    dots = base.mark_point(filled=True, size=45).encode(
        opacity=alt.condition(near, alt.value(1), alt.value(0)),
        tooltip=[
            *(alt.Tooltip("run_id:N", title="run"), alt.Tooltip("label:N", title="what")),
            *(alt.Tooltip("source:N"), alt.Tooltip("step:Q"), alt.Tooltip("phase:N")),
            alt.Tooltip(f"{field}:Q", title=title, format=".4~g"),
        ],
    )
    layers = line.add_params(pick) + dots.add_params(near)
    return layers.properties(width="container", height=300)


def thinned(steps: pl.DataFrame, points: int = MAX_POINTS) -> pl.DataFrame:
    """Return at most about ``points`` steps a run, evenly spread, the first and last among them."""
    place, last = pl.int_range(pl.len()).over("run_id"), pl.len().over("run_id") - 1
    stride = ((last + points) // points).clip(1, None)
    return steps.filter((place % stride == 0) | (place == last))


def steadiness(steps: pl.DataFrame, runs: pl.DataFrame) -> Figure | None:
    """Return a line a run of each step's time over the run's median; None for no step."""
    median = pl.col("step_seconds").median().over("run_id")
    ratio = pl.when(median > 0).then(pl.col("step_seconds") / median)
    return curves(steps.with_columns(over_median=ratio), runs, "over_median", "time over median")


def _describe(data: pl.DataFrame, field: str, title: str) -> str:
    ends = data.group_by("run_id", maintain_order=True).agg(last=pl.col(field).last())["last"]
    low, high = cast(float, ends.min()), cast(float, ends.max())
    return (
        f"{title} by optimizer step of {count(ends.len(), 'run')}, "
        f"ending between {number(low)} and {number(high)}."
    )
