"""Charts of a probe: matrix products by size, a product over time, collectives by size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from scalebook.measure.probes import Collective, Matmul, Sustained
from scalebook.report.base.naming import precision_title
from scalebook.report.base.quantities import count, number, percent
from scalebook.report.charts.figure import TICKS, Figure, drawn, rows, tooltips

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
