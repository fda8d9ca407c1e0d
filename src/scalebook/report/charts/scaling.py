"""Charts of throughput against the number of GPUs or processes, beside the ideal.

``points`` are those of a ``ScalingSeries``; ``many`` is the word for its ranks.
"""

from __future__ import annotations

import altair as alt
import polars as pl

from scalebook.report.base.quantities import count, percent
from scalebook.report.charts.figure import Figure, by_source, rows

WIDE = 4  # from this ratio of sizes on, both axes double, so that ideal scaling is a straight line


def against_ideal(points: pl.DataFrame, many: str) -> Figure:
    """Return tokens per second by world size, and the line that the base would reach."""
    x = _sizes(points, many)
    scale = alt.Scale(type="log", base=2, nice=False) if _is_wide(points) else alt.Scale(zero=True)
    y = alt.Y("tokens_per_second:Q", title="tokens/s", scale=scale, axis=alt.Axis(tickCount=6))
    base = alt.Chart(rows(_named(points)))
    ideal = base.mark_line(strokeDash=[5, 4], strokeWidth=1.5, opacity=0.7).encode(
        x=x, y="ideal_tokens_per_second:Q", color=alt.value("gray")
    )
    lines = base.mark_line(opacity=0.6).encode(
        x=x, y="max(tokens_per_second):Q", color="layout:N", detail="source:N"
    )
    marks = _marks(base, points, many).encode(x=x, y=y)
    chart = (ideal + lines + marks).properties(width="container", height=320)
    largest = points.sort("world_size", "tokens_per_second").row(-1, named=True)
    text = (
        f"Throughput of {count(points.height, 'run')} by number of {many} with the ideal line; "
        f"the fastest on {largest['world_size']} reaches "
        f"{percent(largest['scaling_efficiency'])} of the ideal."
    )
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
    marks = _marks(base, points, many).encode(x=_sizes(points, many), y=y)
    whole = alt.Chart(alt.Data(values=[{"ideal": 1}]))
    ideal = whole.mark_rule(strokeDash=[5, 4]).encode(y="ideal:Q")
    chart = (ideal + marks).properties(width="container", height=240)
    worst = points.sort("scaling_efficiency").row(0, named=True)
    text = (
        f"Scaling efficiency of {count(points.height, 'run')} by number of {many}; the lowest is "
        f"{percent(worst['scaling_efficiency'])} on {worst['world_size']}."
    )
    return Figure(chart, text)


def speedup(points: pl.DataFrame, many: str) -> Figure:
    """Return speed-up over the base by world size, and the ideal, which is the ratio of sizes."""
    scale = alt.Scale(type="log", base=2, nice=False) if _is_wide(points) else alt.Scale(zero=True)
    y = alt.Y("speedup:Q", title="speed-up", scale=scale, axis=alt.Axis(tickCount=6))
    x = _sizes(points, many)
    base = alt.Chart(rows(_named(points)))
    ideal = base.mark_line(strokeDash=[5, 4], strokeWidth=1.5, opacity=0.7).encode(
        x=x, y="ideal_speedup:Q", color=alt.value("gray")
    )
    chart = (ideal + _marks(base, points, many).encode(x=x, y=y)).properties(
        width="container", height=240
    )
    best = points.sort("speedup").row(-1, named=True)
    text = (
        f"Speed-up of {count(points.height, 'run')} by number of {many}; the highest is "
        f"{best['speedup']:.2f} on {best['world_size']}, where {best['ideal_speedup']:g} is ideal."
    )
    return Figure(chart, text)


def _marks(base: alt.Chart, points: pl.DataFrame, many: str) -> alt.Chart:
    """Return a point a run, coloured by layout, shaped by source, with its run id when touched."""
    return base.mark_point(filled=True, size=110, opacity=0.9).encode(
        color=alt.Color("layout:N", title=None),
        shape=by_source(points["source"]),
        tooltip=[
            alt.Tooltip("run_id:N", title="run"),
            alt.Tooltip("split:N", title="parallelism"),
            alt.Tooltip("source:N"),
            alt.Tooltip("world_size:Q", title=many),
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
        *("run_id", "split", "source", "world_size", "tokens_per_second"),
        *("ideal_tokens_per_second", "scaling_efficiency", "speedup", "ideal_speedup"),
        layout=pl.when(replicas_alone).then(pl.lit("data parallel alone")).otherwise(layout),
    )


def _is_wide(points: pl.DataFrame) -> bool:
    sizes = points["world_size"].to_list()
    return max(sizes) >= WIDE * min(sizes)


def _sizes(points: pl.DataFrame, many: str) -> alt.X:
    """Return the axis of world sizes, a tick a measured size."""
    log = alt.Scale(type="log", base=2, nice=False, padding=24)
    return alt.X(
        "world_size:Q",
        title=many,
        scale=log if _is_wide(points) else alt.Scale(zero=False, nice=False, padding=24),
        axis=alt.Axis(values=sorted(set(points["world_size"])), format="d", grid=False),
    )
