"""Panels of the peak page: one number of the best configuration of each group, and the field."""

from __future__ import annotations

import altair as alt
import polars as pl

from scalebook.report.base.frames import PROXY
from scalebook.report.base.quantities import count, number
from scalebook.report.charts.figure import MAX_BARS, Figure, by_source, entitled, names, rows
from scalebook.report.charts.throughput import FROM_ZERO, TICKS

ROW_HEIGHT = 22
PANEL: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("run_id", "model", "group", "platform", "split", "source"), pl.String),
    **dict.fromkeys(("value", "limit"), pl.Float64),  # limit: what the value is held against
}
_TOOLTIP = [
    alt.Tooltip("run_id:N", title="run"),
    alt.Tooltip("group:N"),
    alt.Tooltip("split:N", title="parallelism"),
    alt.Tooltip("source:N"),
]


def panel(best: pl.DataFrame, title: str, format_: str, limit: str = "") -> Figure | None:
    """Return a bar per group (columns of PANEL), with a tick where it has a limit.

    The highest is first, whole models before the first layers of one.
    """
    known = best.filter(pl.col("value").is_not_null())
    known = known.sort(PROXY, "value", descending=[False, True])
    data = known.head(MAX_BARS)
    if data.is_empty():
        return None
    several = data["platform"].n_unique() > 1
    y = names("group", data["group"])
    values = [alt.Tooltip("value:Q", title=title, format=format_)]
    values += [alt.Tooltip("limit:Q", title=limit, format=format_)] if limit else []
    axis = alt.Axis(format="%", tickCount=6) if "%" in format_ else TICKS
    base = alt.Chart(rows(data)).encode(y=y, tooltip=[*_TOOLTIP, *values])
    bars = base.mark_bar(cornerRadiusEnd=2).encode(
        x=alt.X("value:Q", title=title, axis=axis, scale=FROM_ZERO),
        color=alt.Color("platform:N", title=None, legend=alt.Legend() if several else None),
        opacity=alt.condition("datum.source == 'measured'", alt.value(1), alt.value(0.55)),
    )
    ticks = base.transform_filter("isValid(datum.limit)").mark_tick(
        thickness=2.5, size=18, style="ink"
    )
    chart = alt.layer(bars, ticks.encode(x="limit:Q")) if limit else bars
    cut = f"The {MAX_BARS} highest of {known.height}" if known.height > MAX_BARS else None
    top = data.row(0, named=True)
    text = f"{title} of the best configuration of {count(data.height, 'group')}; the first is "
    sized = chart.properties(width="container", height=ROW_HEIGHT * data.height + 10)
    return Figure(entitled(sized, cut), f"{text}{number(_shown(top, format_))}, {top['group']}.")


def _shown(row: dict[str, float], format_: str) -> float:
    return 100 * row["value"] if "%" in format_ else row["value"]


def spread(runs: pl.DataFrame, title: str) -> Figure | None:
    """Return every configuration as a point and its group as a box of quartiles.

    ``runs`` has the columns of PANEL, a row a run.
    """
    if runs.is_empty():
        return None
    most = runs.group_by("group", "model").agg(pl.col("value").max())
    most = most.sort(PROXY, "value", "group", descending=[False, True, False])
    order = most["group"].head(MAX_BARS).to_list()
    data = runs.filter(pl.col("group").is_in(order))
    y = names("group", order)
    x = alt.X("value:Q", title=title, axis=TICKS, scale=FROM_ZERO)
    base = alt.Chart(rows(data)).encode(y=y)
    # a box of fewer than five points would draw quartiles that are the points themselves
    many = data.filter(pl.len().over("group") >= 5)
    boxes = alt.Chart(rows(many)).mark_boxplot(
        extent="min-max", size=16, color="gray", opacity=0.35
    )
    points = base.mark_point(filled=True, size=55, opacity=0.85).encode(
        x=x,
        color=alt.Color("platform:N", title=None, legend=None),
        shape=by_source(data["source"]),
        tooltip=[*_TOOLTIP, alt.Tooltip("value:Q", title=title, format=",.0f")],
    )
    layers = [boxes.encode(y=y, x=x), points] if many.height else [points]
    chart = alt.layer(*layers).properties(
        width="container", height=ROW_HEIGHT * len(order) + 10
    )  # fmt: skip
    text = f"{title} of {count(data.height, 'run')} in {count(len(order), 'group')}."
    return Figure(chart, text)
