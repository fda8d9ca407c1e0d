"""The chart of a scaling law: measured runs, the law through them, its band, the ideal."""

from __future__ import annotations

import altair as alt
import polars as pl

from scalebook.report.base.quantities import count, quantity
from scalebook.report.charts.figure import Figure, by_source, rows

POINTS: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("run_id", "split", "source"), pl.String),
    "world_size": pl.Int64,
    "tokens_per_second": pl.Float64,
}
CURVE: dict[str, type[pl.DataType]] = {
    "world_size": pl.Int64,
    **dict.fromkeys(("value", "low", "high", "ideal"), pl.Float64),  # high: null if unbounded
    "projected": pl.Boolean,  # beyond the largest measured size
}
_MOST = 3.0  # an unbounded or very wide upper end is drawn up to so many times the ideal


def fitted(points: pl.DataFrame, curve: pl.DataFrame, many: str) -> Figure:
    """Return measured points, the law with its 95 % band, and the ideal of the base.

    The law is dashed where it is a projection.
    """
    log = alt.Scale(type="log", base=2, nice=False, padding=20)
    ticks = sorted(2**power for power in range(31) if 2**power <= max(curve["world_size"]))
    x = alt.X(
        "world_size:Q", title=many, scale=log, axis=alt.Axis(values=ticks, format="d", grid=False)
    )
    y = alt.Y(
        "value:Q",
        title="tokens/s",
        scale=alt.Scale(type="log", base=2, nice=False),
        axis=alt.Axis(tickCount=6, format=",.0f"),
    )
    top = pl.col("high").fill_null(_MOST * pl.col("ideal"))
    drawn = curve.with_columns(top=pl.min_horizontal(top, _MOST * pl.col("ideal")))
    base = alt.Chart(rows(drawn)).encode(x=x)
    band = base.mark_area(opacity=0.18).encode(y=alt.Y("low:Q", title="tokens/s"), y2="top:Q")
    ideal = base.mark_line(strokeDash=[2, 3], strokeWidth=1.5, opacity=0.8).encode(
        y="ideal:Q", color=alt.value("gray")
    )
    tooltip = [
        alt.Tooltip("world_size:Q", title=many),
        alt.Tooltip("value:Q", title="law, tokens/s", format=",.0f"),
        alt.Tooltip("low:Q", title="from", format=",.0f"),
        alt.Tooltip("high:Q", title="to", format=",.0f"),
        alt.Tooltip("projected:N"),
    ]
    # the last measured size belongs to both parts, so that the line has no gap
    largest = max(points["world_size"])
    inside = base.transform_filter(f"datum.world_size <= {largest}").mark_line()
    beyond = base.transform_filter(f"datum.world_size >= {largest}").mark_line(strokeDash=[7, 5])
    chart = alt.layer(
        band,
        ideal,
        inside.encode(y=y, tooltip=tooltip),
        beyond.encode(y=y, tooltip=tooltip),
        _marks(points, x),
    ).properties(width="container", height=320)
    return Figure(chart, _describe(points, curve, many))


def _marks(points: pl.DataFrame, x: alt.X) -> alt.Chart:
    return (
        alt.Chart(rows(points))
        .mark_point(filled=True, size=110, opacity=0.95)
        .encode(
            x=x,
            y="tokens_per_second:Q",
            shape=by_source(points["source"]),
            tooltip=[
                *(alt.Tooltip("run_id:N", title="run"), alt.Tooltip("split:N")),
                *(alt.Tooltip("source:N"), alt.Tooltip("world_size:Q", title="size")),
                alt.Tooltip("tokens_per_second:Q", title="tokens/s", format=",.0f"),
            ],
        )
    )


def _describe(points: pl.DataFrame, curve: pl.DataFrame, many: str) -> str:
    last = curve.sort("world_size").row(-1, named=True)
    return (
        f"A law through {count(points.height, 'run')} by number of {many}, with its 95 % band; "
        f"at {last['world_size']} it gives {quantity(last['value'], 'tokens/s')}."
    )
