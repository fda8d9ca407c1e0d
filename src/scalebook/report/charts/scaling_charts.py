"""Charts by the number of GPUs or processes: runs, the ideal, and a scaling law.

``points`` are those of a ``ScalingSeries``; ``many`` is the word for its ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from scalebook.report.base.quantities import count, percent, quantity
from scalebook.report.charts.figure import SHARES, Figure, by_source, drawn, rows, tooltips
from scalebook.report.charts.theme import GREY

BORDER = "The dotted vertical line is the border of a node: right of it runs have more nodes."
WIDE = 4  # from this ratio of sizes on, the axis doubles
_RATE = ("tokens_per_second", "tokens/s", ",.0f")


def by_size(points: pl.DataFrame, many: str) -> Figure:
    """Return the scaling efficiency by world size, with the 100 % that is ideal."""
    base, field = _base(points, many), "scaling_efficiency"
    scale = alt.Scale(domain=[0, max(1.05, 1.05 * max(points[field]))])
    y = alt.Y(f"{field}:Q", title="efficiency", scale=scale, axis=SHARES)
    ideal = alt.Chart(alt.Data(values=[{"ideal": 1}])).mark_rule(strokeDash=[5, 4])
    fastest = {"y": f"max({field}):Q", "color": "layout:N", "detail": "source:N"}
    lines = base.mark_line().encode(**fastest)
    layers = [ideal.encode(y="ideal:Q"), lines, _marks(base, points, many, y)]
    largest = points.sort("world_size", "tokens_per_second").row(-1, named=True)
    words = (
        f"Scaling efficiency of {count(points.height, 'run')} by number of {many}; "
        f"the fastest on {largest['world_size']} reaches "
        f"{percent(largest['scaling_efficiency'])} of the ideal."
    )
    size = node_border(points)
    if size is None:
        return drawn(alt.layer(*layers), words, 240)
    border = alt.Chart(alt.Data(values=[{"world_size": size}])).encode(x=_sizes(points, many))
    label = border.mark_text(align="left", baseline="top", dx=5).encode(
        y=alt.value(4), text=alt.value("several nodes")
    )
    # one by one: the runs' layers share their data
    chart = alt.layer(*layers) + border.mark_rule(strokeDash=[2, 4]) + label
    return drawn(chart, f"{words} {BORDER}", 240)


def node_border(points: pl.DataFrame) -> float | None:
    """Return the size between runs of one node and runs of several, in GPUs or processes.

    It is the geometric mean of the largest on one node and the smallest on several. None where all
    runs are on one side, or the sides overlap. A run of unknown nodes is on neither.
    """
    nodes = pl.col("nodes")
    inside: Any = points.filter(nodes <= 1)["world_size"].max()
    outside: Any = points.filter(nodes > 1)["world_size"].min()
    if inside is None or outside is None or inside >= outside:
        return None
    return math.sqrt(inside * outside)


def _base(points: pl.DataFrame, many: str) -> alt.Chart:
    """Return the runs by size; ``layout`` is the split of each without the replicas."""
    layout = pl.col("split").str.replace(r"\s*\bDP\d+", "").str.strip_chars()
    replicas_alone = (layout == "") | layout.str.contains(r"^\d")
    named = points.select(
        *("run_id", "split", "source", "world_size", "nodes", "tokens_per_second"),
        *("scaling_efficiency", "speedup"),
        layout=pl.when(replicas_alone).then(pl.lit("data parallel only")).otherwise(layout),
    )
    return alt.Chart(rows(named)).encode(x=_sizes(points, many))


def _marks(base: alt.Chart, points: pl.DataFrame, many: str, y: alt.Y) -> alt.Chart:
    """Return one point per run, coloured by layout, shaped by source, with its run id on hover."""
    share = ("scaling_efficiency", "efficiency", ".1%")
    return base.mark_point(filled=True, size=110, opacity=0.9).encode(
        y=y,
        color=alt.Color("layout:N", title=None),
        shape=by_source(points["source"]),
        tooltip=tooltips(
            *("run_id", "split", "source", ("world_size", many, "d"), ("nodes", "", "d")),
            *(_RATE, ("speedup", "speed-up", ".2f"), share),
        ),
    )


def _sizes(points: pl.DataFrame, many: str) -> alt.X:
    """Return the axis of world sizes, one tick per measured size."""
    sizes = sorted(set(points["world_size"]))
    return _size_axis(sizes, many, log=sizes[-1] >= WIDE * sizes[0])


def _size_axis(ticks: Sequence[int], many: str, *, log: bool) -> alt.X:
    doubling = alt.Scale(type="log", base=2, nice=False, padding=24)
    return alt.X(
        "world_size:Q",
        title=f"{many} (log)" if log else many,
        scale=doubling if log else alt.Scale(zero=False, nice=False, padding=24),
        axis=alt.Axis(values=ticks, format="d", grid=False),
    )


_MOST = 3.0  # an unbounded or very wide upper end is drawn up to so many times the ideal


def fitted(runs: Sequence[Mapping[str, Any]], curve: pl.DataFrame, many: str) -> Figure:
    """Return measured points, the law with its 95 % band, and the ideal of the base.

    ``curve`` has by world_size the law's value, low and high (null where unbounded), and the ideal;
    the law is dashed where it is ``projected`` beyond the largest size of the runs.
    """
    columns = ("run_id", "split", "source", "world_size", "tokens_per_second")
    points = pl.DataFrame([{name: row[name] for name in columns} for row in runs])
    ticks = [2**power for power in range(31) if 2**power <= max(curve["world_size"])]
    x = _size_axis(ticks, many, log=True)
    top = pl.col("high").fill_null(_MOST * pl.col("ideal"))
    shown = curve.with_columns(top=pl.min_horizontal(top, _MOST * pl.col("ideal")))
    base = alt.Chart(rows(shown)).encode(x=x)
    band = base.mark_area(opacity=0.18).encode(y=alt.Y("low:Q", title="tokens/s (log)"), y2="top:Q")
    ideal = base.mark_line(strokeDash=[2, 3], strokeWidth=1.5).encode(
        y="ideal:Q", color=alt.value(GREY)
    )
    law = base.encode(
        y=alt.Y(
            "value:Q",
            title="tokens/s (log)",
            scale=alt.Scale(type="log", nice=False),
            axis=alt.Axis(tickCount=6, format=",.0f"),
        ),
        tooltip=tooltips(
            *(("world_size", many, "d"), ("value", "law, tokens/s", ",.0f")),
            *(("low", "from", ",.0f"), ("high", "to", ",.0f"), ("projected", "")),
        ),
    )
    # the last measured size belongs to both parts, so that the line has no gap
    largest = max(points["world_size"])
    inside = law.transform_filter(f"datum.world_size <= {largest}").mark_line()
    beyond = law.transform_filter(f"datum.world_size >= {largest}").mark_line(strokeDash=[7, 5])
    measured = alt.Chart(rows(points)).mark_point(filled=True, size=110, opacity=0.95).encode(
        x=x,
        y="tokens_per_second:Q",
        shape=by_source(points["source"]),
        tooltip=tooltips("run_id", "split", "source", ("world_size", many, "d"), _RATE),
    )  # fmt: skip
    last = curve.sort("world_size").row(-1, named=True)
    words = (
        f"A law through {count(points.height, 'run')} by number of {many}, with its 95 % band; "
        f"at {last['world_size']} it gives {quantity(last['value'], 'tokens/s')}."
    )
    return drawn(alt.layer(band, ideal, inside, beyond, measured), words, 320)
