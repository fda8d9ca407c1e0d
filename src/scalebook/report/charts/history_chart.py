"""The rate of a configuration over the commits that it ran at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby

import altair as alt
import polars as pl

from scalebook.report.base.against import HistoryPoint
from scalebook.report.base.quantities import count
from scalebook.report.charts.figure import Figure, Figures, rows


def charts(points: Sequence[HistoryPoint]) -> Figures | None:
    """Return one chart per configuration; None where no configuration has several commits."""
    groups = groupby(points, key=lambda one: one.configuration)
    return Figures.of((name, _chart(list(members))) for name, members in groups)


def _chart(points: Sequence[HistoryPoint]) -> Figure:
    data = pl.DataFrame([asdict(one) for one in points])
    order = [one.commit for one in points]
    axis = alt.Axis(labelAngle=-35, labelOverlap="greedy")
    x = alt.X("commit:N", sort=order, title="commit, by its first run", axis=axis)
    scale = alt.Scale(zero=False, nice=True)
    y = alt.Y("rate:Q", title="tokens/s of all GPUs", scale=scale, axis=alt.Axis(tickCount=5))
    tips = ["commit:N", "started_at:N", "runs:Q", "rate:Q", "low:Q", "high:Q"]
    base = alt.Chart(rows(data)).encode(x=x)
    line = base.mark_line(opacity=0.5).encode(y=y)
    bars = base.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q", scale=scale), y2="high:Q")
    marks = base.mark_point(filled=True, size=60, opacity=1).encode(y=y, tooltip=tips)
    chart = (line + bars + marks).properties(width="container", height=220)
    first, last = points[0], points[-1]
    text = (
        f"Rate at {count(len(points), 'commit')} with 95 % intervals: {first.rate:,.0f} tokens/s "
        f"at the first, {last.rate:,.0f} at the last."
    )
    return Figure(chart, text)
