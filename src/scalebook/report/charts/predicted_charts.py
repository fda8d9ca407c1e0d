"""Predicted against measured: errors by layout, rates side by side, and the parts of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from scalebook.report.base.quantities import count
from scalebook.report.charts.figure import (
    SHARES,
    SIGNED,
    Figure,
    by,
    drawn,
    names,
    rows,
    stacked,
    tooltips,
)

ROW_HEIGHT = 28
Rows = Sequence[Mapping[str, Any]]  # each with run_id, label and platform
_WHO = (("label", "configuration"), "run_id")


def errors(points: Rows, families: Sequence[str]) -> Figure | None:
    """Return a point per configuration (its ``error`` and ``family``), a row per kind of layout."""
    if not points:
        return None
    order = sorted(families)
    axis = alt.Axis(labelExpr=SIGNED, tickCount=6)
    scale = alt.Scale(nice=True, padding=6)  # no mark is cut off at the edge
    title = "predicted over measured step time, minus 1"
    data = pl.DataFrame(points)
    marks = alt.Chart(rows(data)).mark_point(filled=True, size=55).encode(
        y=alt.Y("family:N", sort=order, title=None),
        x=alt.X("error:Q", title=title, axis=axis, scale=scale),
        color=by("platform", data),
        tooltip=tooltips(*_WHO, ("error", "", "+.1%")),
    )  # fmt: skip
    words = f"Error of {count(len(points), 'prediction')} in {count(len(order), 'kind')} of layout."
    return drawn(alt.layer(_rule("error", 0.0), marks), words, ROW_HEIGHT * len(order) + 10)


def rates(points: Rows, known: int) -> Figure | None:
    """Return measured, predicted, low and high rates over the measured one: hollow is predicted.

    Rates of different models differ a hundredfold: side by side no error would be seen.
    """
    if not points:
        return None
    data = pl.DataFrame(points)
    columns = ("measured", "predicted", "low", "high")
    over = data.with_columns(
        (pl.col(name) / pl.col("measured")).alias(f"{name}_share") for name in columns
    )
    low, predicted, measured = (
        alt.X(f"{name}_share:Q", title="over the measured rate", axis=SHARES,
              scale=alt.Scale(zero=False))
        for name in ("low", "predicted", "measured")
    )  # fmt: skip
    order = data["label"].unique(maintain_order=True).to_list()
    base = alt.Chart(rows(over)).encode(
        y=names("label", order, grid=True),
        color=by("platform", data),
        tooltip=tooltips(*_WHO, *((name, "", ",.0f") for name in columns)),
    )
    chart = alt.layer(
        base.mark_rule(strokeWidth=1.5).encode(x=low, x2="high_share:Q"),
        base.mark_point(filled=False, size=80, strokeWidth=1.8).encode(x=predicted),
        base.mark_point(filled=True, size=55, opacity=1).encode(x=measured),
    )
    cut = f"The {len(order)} largest misses of {known}" if known > len(order) else None
    words = f"Measured and predicted tokens/s per GPU of {count(len(order), 'configuration')}."
    return drawn(chart, words, ROW_HEIGHT * len(order) + 10, cut)


def parts(bars: Rows, order: Sequence[str]) -> Figure | None:
    """Return each ``part`` of a predicted step as a ``share`` of the measured one, stacked."""
    if not bars:
        return None
    data = pl.DataFrame(bars)
    labels = data["label"].unique(maintain_order=True).to_list()
    title = "predicted time over the measured step"
    x = alt.X("share:Q", title=title, axis=SHARES, stack="zero")
    tips = tooltips(*_WHO, "part", ("share", "", ".1%"))
    marks = stacked(data.filter(pl.col("share") > 0), labels, x, order, tips)
    words = f"Predicted parts of the step of {count(len(labels), 'configuration')}."
    return drawn(alt.layer(marks, _rule("share", 1.0)), words, ROW_HEIGHT * len(labels) + 10)


def _rule(field: str, value: float) -> alt.Chart:
    """Return a line where prediction and measurement are equal."""
    data = rows(pl.DataFrame({field: [value]}))
    return alt.Chart(data).mark_rule(strokeDash=[4, 3]).encode(x=f"{field}:Q")
