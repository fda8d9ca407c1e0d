"""Charts of a probe, and of predicted against measured: errors, rates, the parts of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from scalebook.measure.probes import Collective, Matmul, Sustained
from scalebook.report.base.naming import precision_title
from scalebook.report.base.quantities import count, number, percent
from scalebook.report.charts.figure import (
    SHARES,
    SIGNED,
    TICKS,
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


TFLOPS = "TFLOP/s"
# Expressions of Vega that write a tick: a whole number, or bytes in their binary unit.
WHOLE = "format(datum.value, ',')"
BINARY = (
    "datum.value >= 1073741824 ? format(datum.value / 1073741824, '.3~g') + ' GiB' : "
    "datum.value >= 1048576 ? format(datum.value / 1048576, '.3~g') + ' MiB' : "
    "datum.value >= 1024 ? format(datum.value / 1024, '.3~g') + ' KiB' : datum.value + ' B'"
)


def _curves(
    values: Sequence[Mapping[str, Any]], x: tuple[str, str, str], title: str, colour: str, tips: Any
) -> Any:
    """Return rates over sizes, one line per kind; the axis doubles, with a tick per measured size.

    ``x`` has the column, its title and the expression of its ticks.
    """
    column, name, labels = x
    sizes = alt.Axis(values=sorted({row[column] for row in values}), labelExpr=labels)
    scale = alt.Scale(type="log", base=2, nice=False, padding=20)
    base = alt.Chart(rows(pl.DataFrame(values))).encode(
        x=alt.X(f"{column}:Q", title=f"{name} (log)", scale=scale, axis=sizes),
        y=alt.Y("rate:Q", title=title, axis=TICKS),
        color=alt.Color(f"{colour}:N", title=None),
    )
    marks = base.mark_point(filled=True, size=70).encode(tooltip=tooltips(colour, *tips))
    return base.mark_line() + marks


def products(found: Sequence[Matmul], peaks: Mapping[str, float]) -> Figure | None:
    """Return the rate of square products by size, next to the dense peaks (TFLOP/s)."""
    if not found:
        return None
    values = [
        {"size": row.n, "rate": row.tflops, "best": row.tflops_best,
         "precision": precision_title(row.precision)}
        for row in found
    ]  # fmt: skip
    rates = (("rate", f"median {TFLOPS}", ",.4~g"), ("best", f"best {TFLOPS}", ",.4~g"))
    x = ("size", "rows = columns = depth", WHOLE)
    chart = _curves(values, x, TFLOPS, "precision", (("size", "", ",d"), *rates))
    limits = [
        {"precision": precision_title(name), "peak": peaks[name]}
        for name in dict.fromkeys(row.precision for row in found)
        if name in peaks
    ]
    if limits:
        rule = alt.Chart(alt.Data(values=limits)).mark_rule(strokeDash=[5, 4])
        chart += rule.encode(y="peak:Q", color="precision:N")
    fastest = max(found, key=lambda row: row.tflops)
    words = (
        f"Rate of {count(len(found), 'square matrix product')} by size; the fastest is "
        f"{number(fastest.tflops)} {TFLOPS} in {precision_title(fastest.precision)} at {fastest.n}."
    )
    return drawn(chart, words, 320)


def over_time(row: Sustained) -> Figure | None:
    """Return the rate of one product repeated for seconds, in equal parts of the time."""
    if not row.series_tflops:
        return None
    step = row.seconds / len(row.series_tflops)
    values = [
        {"seconds": (index + 0.5) * step, "rate": rate}
        for index, rate in enumerate(row.series_tflops)
    ]
    chart = alt.Chart(alt.Data(values=values)).mark_line(point=True).encode(
        x=alt.X("seconds:Q", title="seconds"),
        y=alt.Y("rate:Q", title=TFLOPS, scale=alt.Scale(zero=False)),
        tooltip=tooltips(("rate", TFLOPS, ",.4~g")),
    )  # fmt: skip
    words = (
        f"Rate of one {precision_title(row.precision)} product over {number(row.seconds)} s: "
        f"{number(row.burst_tflops)} {TFLOPS} at first, "
        f"{percent(row.sustained_tflops / row.burst_tflops)} of that in the second half."
    )
    return drawn(chart, words, 220)


def bus(found: Sequence[Collective]) -> Figure | None:
    """Return the bus rate of collectives by size of the buffer, one colour per operation."""
    if not found:
        return None
    values = [
        {"bytes": row.bytes, "rate": row.bus_gb_per_second, "milliseconds": row.seconds * 1e3,
         "operation": row.operation.replace("_", "-")}
        for row in found
    ]  # fmt: skip
    tips = (("bytes", "", "~s"), ("rate", "GB/s bus", ",.4~g"), ("milliseconds", "ms", ",.4~g"))
    x = ("bytes", "size of the buffer", BINARY)
    chart = _curves(values, x, "GB/s bus", "operation", tips)
    fastest = max(found, key=lambda row: row.bus_gb_per_second)
    words = (
        f"Bus rate of {count(len({row.operation for row in found}), 'collective')} by size; the "
        f"highest is {number(fastest.bus_gb_per_second)} GB/s by "
        f"{fastest.operation.replace('_', '-')}."
    )
    return drawn(chart, words, 300)
