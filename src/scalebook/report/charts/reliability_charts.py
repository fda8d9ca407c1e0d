"""Charts of checkpoints and of recoveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from scalebook.report.base.quantities import count, duration
from scalebook.report.charts.figure import Figure, drawn, first, names, rows, tooltips

MOST = 30  # runs of a chart
ROW_HEIGHT = 34
KINDS = ("training waits for a save", "a save is complete", "a load")
PARTS = (
    "torchrun notices", "processes start", "they connect and build the model",
    "the checkpoint is loaded", "the first step",
)  # fmt: skip


def checkpoints(bars: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Return one bar per run and kind of the seconds of its checkpoints; None without one.

    One row per bar: run_id, label, source, ``kind`` (one of KINDS), median seconds and size_gib.
    """
    if not bars:
        return None
    tips = (("kind", "time until"), ("seconds", "", ".4~g"), ("size_gib", "GiB", ".4~g"))
    labels, data, cut = first(pl.DataFrame(bars), MOST)
    chart = _bars(data, labels, "kind", KINDS, tips).encode(
        yOffset=alt.YOffset("kind:N", sort=list(KINDS)),
        x=alt.X("seconds:Q", title="seconds, median of the run"),
    )
    longest = data.sort("seconds").row(-1, named=True)
    words = (
        f"{count(len(labels), 'run')} with checkpoints; the longest time is "
        f"{duration(longest['seconds'])}, until {longest['kind']}."
    )
    return drawn(chart, words, ROW_HEIGHT * len(labels) + 10, cut)


def timeline(bars: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Return one bar per drill of what followed the kill, in its order; None without a drill.

    One row per part: run_id, label, source, ``part`` (one of PARTS), its seconds, and the seconds
    after the kill at which it ``begins`` and ``ends``.
    """
    if not bars:
        return None
    ends = ("ends", "seconds after the kill", ".4~g")
    labels, data, cut = first(pl.DataFrame(bars), MOST)
    chart = _bars(data, labels, "part", PARTS, ("part", ("seconds", "", ".4~g"), ends)).encode(
        x=alt.X("begins:Q", title="seconds after the kill"), x2="ends:Q"
    )
    slowest = data.sort("ends").row(-1, named=True)
    words = (
        f"{count(len(labels), 'drill')}; the slowest had a step finished "
        f"{duration(slowest['ends'])} after the kill."
    )
    return drawn(chart, words, ROW_HEIGHT * len(labels) + 10, cut)


def _bars(
    data: pl.DataFrame, labels: Sequence[str], column: str, order: Sequence[str], tips: Any
) -> alt.Chart:
    """Return bars in one row per run, coloured by a column in its order; x is for the caller."""
    return alt.Chart(rows(data)).mark_bar().encode(
        y=names("label", labels),
        color=alt.Color(f"{column}:N", title=None, scale=alt.Scale(domain=list(order))),
        tooltip=tooltips("run_id", "label", "source", *tips),
    )  # fmt: skip
