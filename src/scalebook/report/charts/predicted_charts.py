"""Predicted against measured: errors by layout, rates side by side, and the parts of a step."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from scalebook.report.base.quantities import count
from scalebook.report.charts.figure import SIGNED, Figure, entitled, names, rows

ROW_HEIGHT = 28
_NAMED = dict.fromkeys(("run_id", "label", "platform"), pl.String)
ERRORS = {**_NAMED, "error": pl.Float64, "family": pl.String}
RATES = {**_NAMED, **dict.fromkeys(("measured", "predicted", "low", "high"), pl.Float64)}
PARTS = {**_NAMED, "part": pl.String, "share": pl.Float64, "place": pl.Int64}
_WHO = [alt.Tooltip("label:N", title="configuration"), alt.Tooltip("run_id:N", title="run")]


def errors(data: pl.DataFrame, families: Sequence[str]) -> Figure | None:
    """Return a point per configuration (columns of ERRORS), a row per kind of layout."""
    if data.is_empty():
        return None
    order = sorted(families)
    scale = alt.Scale(nice=True, padding=6)  # no mark is cut off at the edge
    base = alt.Chart(rows(data)).encode(y=alt.Y("family:N", sort=order, title=None))
    points = base.mark_point(filled=True, size=55).encode(
        x=alt.X(
            "error:Q",
            title="predicted over measured step time, minus 1",
            axis=alt.Axis(labelExpr=SIGNED, tickCount=6),
            scale=scale,
        ),
        color=alt.Color("platform:N", title=None),
        tooltip=[*_WHO, alt.Tooltip("error:Q", format="+.1%")],
    )
    chart = alt.layer(_rule("error", 0.0), points)
    text = f"Error of {count(data.height, 'prediction')} in {count(len(order), 'kind')} of layout."
    return Figure(chart.properties(width="container", height=ROW_HEIGHT * len(order) + 10), text)


def rates(data: pl.DataFrame, known: int) -> Figure | None:
    """Return rates over the measured one (columns of RATES): hollow marks are predictions.

    Rates of different models differ a hundredfold: side by side no error would be seen.
    """
    if data.is_empty():
        return None
    order = data["label"].unique(maintain_order=True).to_list()
    over = data.with_columns(
        (pl.col(name) / pl.col("measured")).alias(f"{name}_share")
        for name in ("measured", "predicted", "low", "high")
    )
    axis = alt.Axis(format="%", tickCount=6)

    def x(name: str) -> alt.X:
        scale = alt.Scale(zero=False)
        return alt.X(f"{name}_share:Q", title="over the measured rate", axis=axis, scale=scale)

    names_ = ("measured", "predicted", "low", "high")
    tooltip = [*_WHO, *(alt.Tooltip(f"{name}:Q", format=",.0f") for name in names_)]
    base = alt.Chart(rows(over)).encode(
        y=names("label", order, grid=True),
        color=alt.Color("platform:N", title=None),
        tooltip=tooltip,
    )
    chart = alt.layer(
        base.mark_rule(strokeWidth=1.5).encode(x=x("low"), x2="high_share:Q"),
        base.mark_point(filled=False, size=80, strokeWidth=1.8).encode(x=x("predicted")),
        base.mark_point(filled=True, size=55, opacity=1).encode(x=x("measured")),
    )
    cut = f"The {len(order)} largest misses of {known}" if known > len(order) else None
    sized = chart.properties(width="container", height=ROW_HEIGHT * len(order) + 10)
    text = f"Measured and predicted tokens/s per GPU of {count(len(order), 'configuration')}."
    return Figure(entitled(sized, cut), text)


def parts(data: pl.DataFrame, order: Sequence[str]) -> Figure | None:
    """Return the parts of each predicted step over the measured one, stacked (columns of PARTS)."""
    if data.is_empty():
        return None
    labels = data["label"].unique(maintain_order=True).to_list()
    bars = (
        alt.Chart(rows(data.filter(pl.col("share") > 0)))
        .mark_bar(size=14)
        .encode(
            y=names("label", labels),
            x=alt.X(
                "share:Q",
                title="predicted time over the measured step",
                axis=alt.Axis(format="%", tickCount=6),
                stack="zero",
            ),
            color=alt.Color("part:N", title=None, sort=list(order)),
            order=alt.Order("place:Q"),
            tooltip=[*_WHO, alt.Tooltip("part:N"), alt.Tooltip("share:Q", format=".1%")],
        )
    )
    chart = alt.layer(bars, _rule("share", 1.0))
    text = f"Predicted parts of the step of {count(len(labels), 'configuration')}."
    return Figure(chart.properties(width="container", height=ROW_HEIGHT * len(labels) + 10), text)


def _rule(field: str, value: float) -> alt.Chart:
    """Return a line where prediction and measurement are equal."""
    data = rows(pl.DataFrame({field: [value]}))
    return alt.Chart(data).mark_rule(strokeDash=[4, 3]).encode(x=f"{field}:Q")
