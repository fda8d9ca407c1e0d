"""Charts by the number of GPUs or processes: runs, the ideal, and a scaling law.

``points`` are those of a ``ScalingSeries``; ``many`` is the word for its ranks.
"""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import polars as pl

from scalebook.report.base.quantities import count, percent, quantity
from scalebook.report.charts.figure import Figure, by_source, rows
from scalebook.report.charts.theme import GREY

BORDER = "The dotted vertical line is the border of a node: right of it runs have more nodes."
WIDE = 4  # from this ratio of sizes on, both axes double, so that ideal scaling is a straight line


def against_ideal(points: pl.DataFrame, many: str) -> Figure:
    """Return tokens per second by world size, and the line that the base would reach."""
    x = _sizes(points, many)
    scale = alt.Scale(type="log", base=2, nice=False) if _is_wide(points) else alt.Scale(zero=True)
    unit = "tokens/s (log)" if _is_wide(points) else "tokens/s"
    y = alt.Y("tokens_per_second:Q", title=unit, scale=scale, axis=alt.Axis(tickCount=6))
    base = alt.Chart(rows(_named(points)))
    ideal = base.mark_line(strokeDash=[5, 4], strokeWidth=1.5).encode(
        x=x, y="ideal_tokens_per_second:Q", color=alt.value(GREY)
    )
    lines = base.mark_line().encode(
        x=x, y="max(tokens_per_second):Q", color="layout:N", detail="source:N"
    )
    marks = _run_marks(base, points, many).encode(x=x, y=y)
    chart = _with_border(alt.layer(ideal, lines, marks), points, x).properties(
        width="container", height=320
    )
    largest = points.sort("world_size", "tokens_per_second").row(-1, named=True)
    text = (
        f"Throughput of {count(points.height, 'run')} by number of {many} with the ideal line; "
        f"the fastest on {largest['world_size']} reaches "
        f"{percent(largest['scaling_efficiency'])} of the ideal."
    ) + _border_words(points)
    return Figure(chart, text)


def efficiency(points: pl.DataFrame, many: str) -> Figure:
    """Return scaling efficiency by world size, the ideal marked at 100 %."""
    top = max(1.05, 1.05 * max(points["scaling_efficiency"]))
    y = alt.Y(
        "scaling_efficiency:Q",
        title="efficiency",
        axis=alt.Axis(format="%", tickCount=6),
        scale=alt.Scale(domain=[0, top]),
    )
    base = alt.Chart(rows(_named(points)))
    x = _sizes(points, many)
    marks = _run_marks(base, points, many).encode(x=x, y=y)
    whole = alt.Chart(alt.Data(values=[{"ideal": 1}]))
    ideal = whole.mark_rule(strokeDash=[5, 4]).encode(y="ideal:Q")
    chart = _with_border(alt.layer(ideal, marks), points, x).properties(
        width="container", height=240
    )
    worst = points.sort("scaling_efficiency").row(0, named=True)
    text = (
        f"Scaling efficiency of {count(points.height, 'run')} by number of {many}; the lowest is "
        f"{percent(worst['scaling_efficiency'])} on {worst['world_size']}."
    ) + _border_words(points)
    return Figure(chart, text)


def speedup(points: pl.DataFrame, many: str) -> Figure:
    """Return speed-up over the base by world size, and the ideal, which is the ratio of sizes."""
    scale = alt.Scale(type="log", base=2, nice=False) if _is_wide(points) else alt.Scale(zero=True)
    y = alt.Y("speedup:Q", title="speed-up", scale=scale, axis=alt.Axis(tickCount=6))
    x = _sizes(points, many)
    base = alt.Chart(rows(_named(points)))
    ideal = base.mark_line(strokeDash=[5, 4], strokeWidth=1.5).encode(
        x=x, y="ideal_speedup:Q", color=alt.value(GREY)
    )
    marks = _run_marks(base, points, many).encode(x=x, y=y)
    chart = _with_border(alt.layer(ideal, marks), points, x).properties(
        width="container", height=240
    )
    best = points.sort("speedup").row(-1, named=True)
    text = (
        f"Speed-up of {count(points.height, 'run')} by number of {many}; the highest is "
        f"{best['speedup']:.2f} on {best['world_size']}, where {best['ideal_speedup']:g} is ideal."
    ) + _border_words(points)
    return Figure(chart, text)


def node_border(points: pl.DataFrame) -> float | None:
    """Return the size between runs of one node and runs of several, in GPUs or processes.

    It is the geometric mean of the largest on one node and the smallest on several. None where all
    runs are on one side, or the sides overlap.
    """
    nodes = pl.col("nodes").fill_null(1)
    inside: Any = points.filter(nodes <= 1)["world_size"].max()
    outside: Any = points.filter(nodes > 1)["world_size"].min()
    if inside is None or outside is None or inside >= outside:
        return None
    return math.sqrt(inside * outside)


def _with_border(chart: Any, points: pl.DataFrame, x: alt.X) -> Any:
    """Return a chart with the border of a node as a line with its name, if there is one."""
    size = node_border(points)
    if size is None:
        return chart
    base = alt.Chart(alt.Data(values=[{"world_size": size}])).encode(x=x)
    words = base.mark_text(align="left", baseline="top", dx=5)
    label = words.encode(y=alt.value(4), text=alt.value("several nodes"))
    return chart + base.mark_rule(strokeDash=[2, 4]) + label


def _border_words(points: pl.DataFrame) -> str:
    return f" {BORDER}" if node_border(points) is not None else ""


def _run_marks(base: alt.Chart, points: pl.DataFrame, many: str) -> alt.Chart:
    """Return one point per run, coloured by layout, shaped by source, with its run id on hover."""
    return base.mark_point(filled=True, size=110, opacity=0.9).encode(
        color=alt.Color("layout:N", title=None),
        shape=by_source(points["source"]),
        tooltip=[
            alt.Tooltip("run_id:N", title="run"),
            alt.Tooltip("split:N", title="parallelism"),
            alt.Tooltip("source:N"),
            alt.Tooltip("world_size:Q", title=many),
            alt.Tooltip("nodes:Q"),
            alt.Tooltip("tokens_per_second:Q", title="tokens/s", format=",.0f"),
            alt.Tooltip("ideal_tokens_per_second:Q", title="ideal tokens/s", format=",.0f"),
            alt.Tooltip("speedup:Q", title="speed-up", format=".2f"),
            alt.Tooltip("scaling_efficiency:Q", title="efficiency", format=".1%"),
        ],
    )


def _named(points: pl.DataFrame) -> pl.DataFrame:
    """Return what the charts show of each run; ``layout`` is its split without the replicas."""
    layout = pl.col("split").str.replace(r"\s*\bDP\d+", "").str.strip_chars()
    replicas_alone = (layout == "") | layout.str.contains(r"^\d")
    return points.select(
        *("run_id", "split", "source", "world_size", "nodes", "tokens_per_second"),
        *("ideal_tokens_per_second", "scaling_efficiency", "speedup", "ideal_speedup"),
        layout=pl.when(replicas_alone).then(pl.lit("data parallel only")).otherwise(layout),
    )


def _is_wide(points: pl.DataFrame) -> bool:
    sizes = points["world_size"].to_list()
    return max(sizes) >= WIDE * min(sizes)


def _sizes(points: pl.DataFrame, many: str) -> alt.X:
    """Return the axis of world sizes, a tick a measured size."""
    log = alt.Scale(type="log", base=2, nice=False, padding=24)
    return alt.X(
        "world_size:Q",
        title=f"{many} (log)" if _is_wide(points) else many,
        scale=log if _is_wide(points) else alt.Scale(zero=False, nice=False, padding=24),
        axis=alt.Axis(values=sorted(set(points["world_size"])), format="d", grid=False),
    )


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
        "world_size:Q",
        title=f"{many} (log)",
        scale=log,
        axis=alt.Axis(values=ticks, format="d", grid=False),
    )
    y = alt.Y(
        "value:Q",
        title="tokens/s (log)",
        scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(tickCount=6, format=",.0f"),
    )
    top = pl.col("high").fill_null(_MOST * pl.col("ideal"))
    drawn = curve.with_columns(top=pl.min_horizontal(top, _MOST * pl.col("ideal")))
    base = alt.Chart(rows(drawn)).encode(x=x)
    band = base.mark_area(opacity=0.18).encode(y=alt.Y("low:Q", title="tokens/s (log)"), y2="top:Q")
    ideal = base.mark_line(strokeDash=[2, 3], strokeWidth=1.5).encode(
        y="ideal:Q", color=alt.value(GREY)
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
        _measured(points, x),
    ).properties(width="container", height=320)
    return Figure(chart, _describe_law(points, curve, many))


def _measured(points: pl.DataFrame, x: alt.X) -> alt.Chart:
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
                alt.Tooltip("tokens_per_second:Q", title="tokens/s (log)", format=",.0f"),
            ],
        )
    )


def _describe_law(points: pl.DataFrame, curve: pl.DataFrame, many: str) -> str:
    last = curve.sort("world_size").row(-1, named=True)
    return (
        f"A law through {count(points.height, 'run')} by number of {many}, with its 95 % band; "
        f"at {last['world_size']} it gives {quantity(last['value'], 'tokens/s')}."
    )
