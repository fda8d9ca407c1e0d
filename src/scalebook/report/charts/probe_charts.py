"""Charts of a probe: matrix products by size, a product over time, collectives by size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt

from scalebook.measure.probes import Collective, Matmul, Sustained
from scalebook.report.base.naming import precision_title
from scalebook.report.base.quantities import count, number, percent
from scalebook.report.charts.figure import Figure

TFLOPS = "TFLOP/s"


# Expressions of Vega that write a tick: a whole number, or bytes in their binary unit.
WHOLE = "format(datum.value, ',')"
BINARY = (
    "datum.value >= 1073741824 ? format(datum.value / 1073741824, '.3~g') + ' GiB' : "
    "datum.value >= 1048576 ? format(datum.value / 1048576, '.3~g') + ' MiB' : "
    "datum.value >= 1024 ? format(datum.value / 1024, '.3~g') + ' KiB' : datum.value + ' B'"
)


def _log(field: str, title: str, values: list[int], labels: str) -> alt.X:
    """Return an axis that doubles, a tick a measured size."""
    scale = alt.Scale(type="log", base=2, nice=False, padding=20)
    ticks = sorted(set(values))
    axis = alt.Axis(values=ticks, labelExpr=labels)
    return alt.X(f"{field}:Q", title=f"{title} (log)", scale=scale, axis=axis)


def products(rows: tuple[Matmul, ...], peaks: Mapping[str, float]) -> Figure | None:
    """Return the rate of square products by size, next to the dense peaks (TFLOP/s)."""
    if not rows:
        return None
    values: list[dict[str, Any]] = [
        {
            "size": row.n,
            "rate": row.tflops,
            "best": row.tflops_best,
            "precision": precision_title(row.precision),
        }
        for row in rows
    ]
    base = alt.Chart(alt.Data(values=values)).encode(
        x=_log("size", "rows = columns = depth", [row.n for row in rows], WHOLE),
        y=alt.Y("rate:Q", title=TFLOPS, axis=alt.Axis(tickCount=6)),
        color=alt.Color("precision:N", title=None),
    )
    tooltip = [
        alt.Tooltip("precision:N"),
        alt.Tooltip("size:Q"),
        alt.Tooltip("rate:Q", title=f"median {TFLOPS}", format=",.4~g"),
        alt.Tooltip("best:Q", title=f"best {TFLOPS}", format=",.4~g"),
    ]
    chart: Any = base.mark_line() + base.mark_point(filled=True, size=70).encode(tooltip=tooltip)
    known = {
        name: peaks[name] for name in dict.fromkeys(r.precision for r in rows) if name in peaks
    }
    if known:
        limits = [
            {"precision": precision_title(name), "peak": peak} for name, peak in known.items()
        ]
        chart += (
            alt.Chart(alt.Data(values=limits))
            .mark_rule(strokeDash=[5, 4])
            .encode(y="peak:Q", color="precision:N")
        )
    fastest = max(rows, key=lambda row: row.tflops)
    text = (
        f"Rate of {count(len(rows), 'square matrix product')} by size; the fastest is "
        f"{number(fastest.tflops)} {TFLOPS} in {precision_title(fastest.precision)} at {fastest.n}."
    )
    return Figure(chart.properties(width="container", height=320), text)


def over_time(row: Sustained) -> Figure | None:
    """Return the rate of one product repeated for seconds, in equal parts of the time."""
    if not row.series_tflops:
        return None
    step = row.seconds / len(row.series_tflops)
    values = [
        {"seconds": (index + 0.5) * step, "rate": rate}
        for index, rate in enumerate(row.series_tflops)
    ]
    chart = (
        alt.Chart(alt.Data(values=values))
        .mark_line(point=True)
        .encode(
            x=alt.X("seconds:Q", title="seconds"),
            y=alt.Y("rate:Q", title=TFLOPS, scale=alt.Scale(zero=False)),
            tooltip=[alt.Tooltip("rate:Q", title=TFLOPS, format=",.4~g")],
        )
        .properties(width="container", height=220)
    )
    text = (
        f"Rate of one {precision_title(row.precision)} product over {number(row.seconds)} s: "
        f"{number(row.burst_tflops)} {TFLOPS} at first, "
        f"{percent(row.sustained_tflops / row.burst_tflops)} of that in the second half."
    )
    return Figure(chart, text)


def bus(rows: tuple[Collective, ...]) -> Figure | None:
    """Return the bus rate of collectives by size of the buffer, a colour an operation."""
    if not rows:
        return None
    values = [
        {
            "bytes": row.bytes,
            "rate": row.bus_gb_per_second,
            "operation": row.operation.replace("_", "-"),
            "milliseconds": row.seconds * 1e3,
        }
        for row in rows
    ]
    base = alt.Chart(alt.Data(values=values)).encode(
        x=_log("bytes", "size of the buffer", [row.bytes for row in rows], BINARY),
        y=alt.Y("rate:Q", title="GB/s bus", axis=alt.Axis(tickCount=6)),
        color=alt.Color("operation:N", title=None),
    )
    tooltip = [
        alt.Tooltip("operation:N"),
        alt.Tooltip("bytes:Q", format="~s"),
        alt.Tooltip("rate:Q", title="GB/s bus", format=",.4~g"),
        alt.Tooltip("milliseconds:Q", title="ms", format=",.4~g"),
    ]
    chart: Any = base.mark_line() + base.mark_point(filled=True, size=70).encode(tooltip=tooltip)
    fastest = max(rows, key=lambda row: row.bus_gb_per_second)
    text = (
        f"Bus rate of {count(len({row.operation for row in rows}), 'collective')} by size; the "
        f"highest is {number(fastest.bus_gb_per_second)} GB/s by "
        f"{fastest.operation.replace('_', '-')}."
    )
    return Figure(chart.properties(width="container", height=300), text)
