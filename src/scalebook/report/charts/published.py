"""Chart of published results and our own on one axis."""

from __future__ import annotations

import altair as alt
import polars as pl

from scalebook.report.base.quantities import count, number
from scalebook.report.charts.figure import Figure, by_source, rows
from scalebook.report.charts.throughput import TICKS

SCHEMA: dict[str, type[pl.DataType]] = {
    "run_id": pl.String,
    "source": pl.String,
    "model": pl.String,
    "accelerator": pl.String,
    "world_size": pl.Int64,
    "sequence_length": pl.Int64,
    "precision": pl.String,
    "family": pl.String,
    "tflops": pl.Float64,
    "where": pl.String,
    "ours": pl.Boolean,
}
WIDTHS = ("16 bit", "8 bit", "4 bit")
_TOOLTIP = [
    alt.Tooltip("run_id:N", title="run"),
    alt.Tooltip("source:N"),
    alt.Tooltip("model:N"),
    alt.Tooltip("accelerator:N"),
    alt.Tooltip("world_size:Q", title="GPUs"),
    alt.Tooltip("sequence_length:Q", title="sequence"),
    alt.Tooltip("precision:N"),
    alt.Tooltip("tflops:Q", title="TFLOP/s per GPU", format=",.0f"),
    alt.Tooltip("where:N", title="from"),
]


def field(data: pl.DataFrame, convention: str) -> Figure | None:
    """Return a strip a device of TFLOP/s per GPU; menus pick a model and an accelerator."""
    if data.is_empty():
        return None
    best = data.group_by("accelerator").agg(pl.col("tflops").max()).sort("tflops", descending=True)
    order = best["accelerator"].to_list()
    picks = [_menu(data, name) for name in ("model", "accelerator")]
    shown = data.with_columns(pl.col("tflops").round(1))
    base = alt.Chart(rows(shown)).transform_filter(picks[0]).transform_filter(picks[1])
    chart = (
        base.mark_point(filled=True, size=60, strokeWidth=1)
        .encode(
            y=alt.Y("accelerator:N", sort=order, title=None, axis=alt.Axis(grid=True)),
            x=alt.X("tflops:Q", title=f"TFLOP/s per GPU by {convention}", axis=TICKS),
            color=alt.Color("family:N", title=None, scale=alt.Scale(domain=list(WIDTHS))),
            shape=by_source(data["source"]),
            size=alt.condition("datum.ours", alt.value(180), alt.value(45)),
            opacity=alt.condition("datum.ours", alt.value(1), alt.value(0.5)),
            tooltip=_TOOLTIP,
        )
        .add_params(*picks)
        .properties(width="container", height=24 * len(order) + 10)
    )
    top = data.sort("tflops", descending=True).row(0, named=True)
    ours = data.filter(pl.col("ours")).height
    return Figure(
        chart,
        f"{count(data.height, 'result')} on {count(len(order), 'accelerator')}, {ours} of them "
        f"ours; the highest is {top['model']} on {top['accelerator']} with "
        f"{number(top['tflops'])} TFLOP/s per GPU.",
    )


def _menu(data: pl.DataFrame, name: str) -> alt.Parameter:
    """Return a menu of a field's values; the first entry shows them all."""
    values: list[str | None] = [None, *sorted(data[name].drop_nulls().unique().to_list())]
    labels = ["all", *(str(value) for value in values[1:])]
    title = f"{name.capitalize()} "
    menu = alt.BindRadioSelect(input="select", options=values, labels=labels, name=title)
    return alt.selection_point(fields=[name], bind=menu, name=f"pick_{name}")
