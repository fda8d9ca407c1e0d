"""Charts of rates: throughput, MFU, best of a group, energy, published results, over commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

import altair as alt
import polars as pl

from scalebook.report.base.against import HistoryPoint
from scalebook.report.base.frames import PROXY, for_charts
from scalebook.report.base.naming import convention_title
from scalebook.report.base.quantities import NONE, count, number, percent, quantity
from scalebook.report.charts.figure import (
    MAX_BARS,
    AnyChart,
    Figure,
    Figures,
    by_source,
    entitled,
    names,
    rows,
)
from scalebook.report.charts.theme import FAINT, GREY

MAX_CHARTS = 12
FEW_WHOLE = 5  # whole models in a chart that has no room for all
ROW_HEIGHT = 28

ROOM = 0.2  # of the longest bar: a shorter one is written on nothing
PALE = FAINT  # opacity of what was not measured here
FROM_ZERO = alt.Scale(domainMin=0)
_FIELDS = (
    "run_id", "label", "name", "model", "platform", "split", "source", "step_seconds_median",
    "tokens_per_second", "rate", "rate_low", "rate_high", "rate_unit", "mfu", "mfu_low", "mfu_high",
)  # fmt: skip
TICKS = alt.Axis(tickCount=6)
_WHICH_RUN = [
    alt.Tooltip("run_id:N", title="run"),
    alt.Tooltip("model:N"),
    alt.Tooltip("platform:N"),
    alt.Tooltip("name:N", title="configuration"),
    alt.Tooltip("source:N"),
]
_TOOLTIP = [
    *_WHICH_RUN,
    alt.Tooltip("tokens_per_second:Q", title="tokens/s", format=",.0f"),
    alt.Tooltip("rate:Q", title="ranked by", format=",.0f"),
    alt.Tooltip("rate_unit:N", title="in"),
    alt.Tooltip("step_seconds_median:Q", title="median step, s", format=".4f"),
    alt.Tooltip("interval:N", title="95 % interval"),
]


def throughput(runs: pl.DataFrame) -> Figures | None:
    """Return bars of each run's throughput, one chart per group; None where no run has one.

    Only runs of one group do the same work and so share an axis. Groups of one run, in which
    nothing is ranked, come last and together, accelerators and CPUs apart.
    """
    known = runs.filter(pl.col("rate").is_not_null()).with_columns(many=pl.len().over("group"))
    several = known.filter(pl.col("many") > 1).group_by("group", maintain_order=True)
    parts = [(str(group), bars(members)) for (group,), members in several]
    if len(parts) > MAX_CHARTS:
        title, figure = parts[MAX_CHARTS - 1]
        more = count(len(parts) - MAX_CHARTS, "group of runs is", "groups of runs are")
        parts[MAX_CHARTS - 1] = (f"{title} ({more} only in the table)", figure)
    singles: list[tuple[str, Figure | None]] = []
    alone = known.filter(pl.col("many") == 1)
    for (on_cpu,), members in alone.group_by(
        pl.col("platform").eq_missing("cpu"), maintain_order=True
    ):
        title = f"{'CPU runs' if on_cpu else 'Runs'} without a comparable run"
        singles.append((title, bars(members, "label")))
    return Figures.of([*parts[:MAX_CHARTS], *singles])


def bars(runs: pl.DataFrame, column: str = "name") -> Figure | None:
    """Return bars of the rate that runs are ranked by, with intervals; None for no run.

    ``column`` is the one that a bar is called by.
    """
    highest, cut = _highest(runs, "rate", "runs")
    data = _with_marks(highest)
    if data.is_empty():
        return None
    unit = data["rate_unit"][0]
    base = alt.Chart(rows(data))
    y = names(column, data[column])
    marks = base.mark_bar(cornerRadiusEnd=2).encode(
        y=y,
        x=alt.X("rate:Q", title=unit, axis=TICKS),
        opacity=alt.Opacity("alpha:Q", scale=None),
        tooltip=_TOOLTIP,
    )
    chart = (marks + whiskers(base, y, "rate") + _numbers(base, y, data["rate"].max())).properties(
        width="container", height=ROW_HEIGHT * data.height
    )
    return Figure(entitled(chart, cut), _describe(data, unit))


def _numbers(base: alt.Chart, y: alt.Y, longest: Any) -> alt.Chart:
    """Return the rate in figures at the foot of each bar that has room for them."""
    room = base.transform_filter(alt.datum.rate > longest * ROOM)
    return room.mark_text(align="left", dx=6, style="on-bar").encode(
        y=y, x=alt.datum(0), text=alt.Text("rate:Q", format=",.0f")
    )


def utilisation(runs: pl.DataFrame) -> Figure | None:
    """Return points of MFU with their intervals; None where no run has an MFU."""
    highest, cut = _highest(runs, "mfu", "runs")
    data = _with_marks(highest)
    if data.is_empty():
        return None
    y = names("label", data["label"], grid=True)
    base = alt.Chart(rows(data))
    x = alt.X("mfu:Q", title="MFU", axis=alt.Axis(format="%", tickCount=6), scale=FROM_ZERO)
    points = base.mark_point(filled=True, size=90).encode(
        y=y,
        x=x,
        color=_by_model(data),
        shape=by_source(data["source"]),
        tooltip=[*_TOOLTIP, alt.Tooltip("mfu:Q", title="MFU", format=".1%")],
    )
    chart = (whiskers(base, y, "mfu") + points).properties(
        width="container", height=ROW_HEIGHT * data.height
    )
    best = data.sort("mfu", descending=True).row(0, named=True)
    text = f"MFU of {count(data.height, 'run')}; the highest is {percent(best['mfu'])} of "
    return Figure(entitled(chart, cut), f"{text}{best['label']}.")


def whiskers(base: alt.Chart, y: alt.Y, field: str) -> AnyChart:
    """Return the interval of a field as a line that shows on the page and on a bar alike."""
    low, high = f"{field}_low", f"{field}_high"
    ends = base.transform_filter(f"isValid(datum.{low}) && isValid(datum.{high})").encode(
        y=y, x=f"{low}:Q", x2=f"{high}:Q"
    )
    return ends.mark_rule(strokeWidth=4, style="halo") + ends.mark_rule(strokeWidth=1.5)


def _by_model(data: pl.DataFrame) -> alt.Color:
    """Return colour by model, with a legend where there is more than one."""
    several = data["model"].n_unique() > 1
    return alt.Color("model:N", title=None, legend=alt.Legend() if several else None)


def _highest(runs: pl.DataFrame, by: str, what: str) -> tuple[pl.DataFrame, str | None]:
    """Return the rows that a chart has room for, and which those are where it is not all.

    The first layers of a model are fast because they are few: they push no whole model out, and
    where not all have room a few whole models stand without them.
    """
    known = runs.filter(pl.col(by).is_not_null())
    ranked = known.sort(PROXY, by, descending=[False, True], maintain_order=True)
    if ranked.height <= MAX_BARS:
        return ranked, None
    whole = ranked.filter(~PROXY)
    many, cut = whole.height, ranked.height - whole.height
    if cut and many >= FEW_WHOLE:
        first = f"the {MAX_BARS} highest of {many} {what}" if many > MAX_BARS else f"{many} {what}"
        title = f"Whole models: {first}; {cut} with fewer layers are in the table"
        return whole.head(MAX_BARS), title
    mixed = f"{MAX_BARS} of {ranked.height} {what}, whole models first, the highest first"
    title = f"The {MAX_BARS} highest of {ranked.height} {what}" if not (cut and many) else mixed
    return ranked.head(MAX_BARS), title


def _with_marks(data: pl.DataFrame) -> pl.DataFrame:
    """Return the columns that a chart of runs shows, with interval and opacity."""
    ends = (pl.col(name).round(0).cast(pl.Int64) for name in ("rate_low", "rate_high"))
    alpha = pl.when(pl.col("source") == "measured").then(1.0).otherwise(PALE)
    interval = pl.format("{} to {}", *ends).fill_null(NONE)
    return data.select(_FIELDS).with_columns(interval=interval, alpha=alpha)


def _describe(data: pl.DataFrame, unit: str) -> str:
    ordered = data.sort("rate", descending=True, maintain_order=True)
    best, worst = ordered.row(0, named=True), ordered.row(-1, named=True)
    return (
        f"{count(data.height, 'run')}, from {best['label']} at {quantity(best['rate'], unit)} "
        f"to {worst['label']} at {quantity(worst['rate'], unit)}."
    )


PANEL_HEIGHT = 22
PANEL: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("run_id", "model", "group", "platform", "split", "source"), pl.String),
    # with its interval where it has one; limit: what it is held against
    **dict.fromkeys(("value", "value_low", "value_high", "limit"), pl.Float64),
}
_PANEL_TOOLTIP = [
    alt.Tooltip("run_id:N", title="run"),
    alt.Tooltip("group:N"),
    alt.Tooltip("split:N", title="parallelism"),
    alt.Tooltip("source:N"),
]


def panel(best: pl.DataFrame, title: str, format_: str, limit: str = "") -> Figure | None:
    """Return a bar per group (columns of PANEL), with a tick where it has a limit.

    The highest is first, whole models before the first layers of one.
    """
    data, cut = _highest(best, "value", "groups")
    if data.is_empty():
        return None
    several = data["platform"].n_unique() > 1
    y = names("group", data["group"])
    values = [alt.Tooltip("value:Q", title=title, format=format_)]
    values += [alt.Tooltip("limit:Q", title=limit, format=format_)] if limit else []
    axis = alt.Axis(format="%", tickCount=6) if "%" in format_ else TICKS
    base = alt.Chart(rows(data)).encode(y=y, tooltip=[*_PANEL_TOOLTIP, *values])
    bars = base.mark_bar(cornerRadiusEnd=2).encode(
        x=alt.X("value:Q", title=title, axis=axis, scale=FROM_ZERO),
        color=alt.Color("platform:N", title=None, legend=alt.Legend() if several else None),
        opacity=alt.condition("datum.source == 'measured'", alt.value(1), alt.value(PALE)),
    )
    ticks = base.transform_filter("isValid(datum.limit)").mark_tick(
        thickness=2.5, size=18, style="ink"
    )
    if data["value_low"].count():
        bars = bars + whiskers(base, y, "value")
    chart = alt.layer(bars, ticks.encode(x="limit:Q")) if limit else bars
    top = data.row(0, named=True)
    text = f"{title} of the best configuration of {count(data.height, 'group')}; the first is "
    sized = chart.properties(width="container", height=PANEL_HEIGHT * data.height + 10)
    return Figure(entitled(sized, cut), f"{text}{number(_in_unit(top, format_))}, {top['group']}.")


def _in_unit(row: dict[str, float], format_: str) -> float:
    return 100 * row["value"] if "%" in format_ else row["value"]


def spread(runs: pl.DataFrame, title: str) -> Figure | None:
    """Return every configuration as a point and its group as a box of quartiles.

    ``runs`` has the columns of PANEL, one row per run.
    """
    if runs.is_empty():
        return None
    most = runs.group_by("group", "model").agg(pl.col("value").max())
    most, cut = _highest(most.sort("group"), "value", "groups")
    order = most["group"].to_list()
    data = runs.filter(pl.col("group").is_in(order))
    y = names("group", order)
    x = alt.X("value:Q", title=title, axis=TICKS, scale=FROM_ZERO)
    base = alt.Chart(rows(data)).encode(y=y)
    # a box of fewer than five points would draw quartiles that are the points themselves
    many = data.filter(pl.len().over("group") >= 5)
    boxes = alt.Chart(rows(many)).mark_boxplot(
        extent="min-max", size=16, color=GREY, opacity=1, box={"fillOpacity": 0.25, "stroke": GREY}
    )
    points = base.mark_point(filled=True, size=55).encode(
        x=x,
        color=alt.Color("platform:N", title=None, legend=None),
        shape=by_source(data["source"]),
        tooltip=[*_PANEL_TOOLTIP, alt.Tooltip("value:Q", title=title, format=",.0f")],
    )
    layers = [boxes.encode(y=y, x=x), points] if many.height else [points]
    chart = alt.layer(*layers).properties(
        width="container", height=PANEL_HEIGHT * len(order) + 10
    )  # fmt: skip
    text = f"{title} of {count(data.height, 'run')} in {count(len(order), 'group')}."
    return Figure(entitled(chart, cut), text)


_ENERGY_FIELDS = (
    "run_id", "label", "name", "model", "platform", "split", "source",
    "energy_joules_per_token", "mean_power_watts", "energy_method",
)  # fmt: skip


def energy_bars(runs: pl.DataFrame) -> Figure | None:
    """Return bars of J per token, the least first; None for no run."""
    data = runs.select(_ENERGY_FIELDS).sort("energy_joules_per_token").head(MAX_BARS)
    data = data.with_columns(millijoules=1e3 * pl.col("energy_joules_per_token"))
    if data.is_empty():
        return None
    chart = (
        alt.Chart(rows(data))
        .mark_bar(cornerRadiusEnd=2)
        .encode(
            y=names("name", data["name"]),
            x=alt.X("millijoules:Q", title="mJ per token, devices only", axis=TICKS),
            opacity=alt.condition("datum.source == 'measured'", alt.value(1), alt.value(PALE)),
            tooltip=[
                *_WHICH_RUN,
                alt.Tooltip("millijoules:Q", title="mJ/token", format=".4~g"),
                alt.Tooltip("mean_power_watts:Q", title="W per device", format=".0f"),
                alt.Tooltip("energy_method:N", title="by"),
            ],
        )
        .properties(width="container", height=26 * data.height + 10)
    )
    cut = f"The {MAX_BARS} lowest of {runs.height} runs" if runs.height > MAX_BARS else None
    best, worst = data.row(0, named=True), data.row(-1, named=True)
    return Figure(
        entitled(chart, cut),
        f"{count(data.height, 'run')}, from {best['label']} with "
        f"{quantity(best['millijoules'], 'mJ per token')} to {worst['label']} with "
        f"{quantity(worst['millijoules'], 'mJ per token')}.",
    )


PUBLISHED: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("run_id", "source", "model", "accelerator"), pl.String),
    **dict.fromkeys(("world_size", "sequence_length"), pl.Int64),
    **dict.fromkeys(("precision", "family", "where"), pl.String),
    "tflops": pl.Float64,
    "ours": pl.Boolean,
}
WIDTHS = ("16 bit", "8 bit", "4 bit")
_PUBLISHED_TOOLTIP = [
    alt.Tooltip("run_id:N", title="run"),
    alt.Tooltip("source:N"),
    alt.Tooltip("model:N"),
    alt.Tooltip("accelerator:N"),
    alt.Tooltip("world_size:Q", title="GPUs"),
    alt.Tooltip("sequence_length:Q", title="sequence"),
    alt.Tooltip("precision:N"),
    alt.Tooltip("tflops:Q", title="TFLOP/s per GPU", format=",.0f"),
    alt.Tooltip("where:N", title="from"),
]


def published_field(data: pl.DataFrame, convention: str) -> Figure | None:
    """Return a strip a device of TFLOP/s per GPU; menus pick a model and an accelerator."""
    if data.is_empty():
        return None
    data = for_charts(data)  # the menus name what the marks do
    best = data.group_by("accelerator").agg(pl.col("tflops").max()).sort("tflops", descending=True)
    order = best["accelerator"].to_list()
    picks = [_menu(data, name) for name in ("model", "accelerator")]
    shown = data.with_columns(pl.col("tflops").round(1))
    base = alt.Chart(rows(shown)).transform_filter(picks[0]).transform_filter(picks[1])
    chart = (
        base.mark_point(filled=True, size=60, strokeWidth=1)
        .encode(
            y=alt.Y("accelerator:N", sort=order, title=None, axis=alt.Axis(grid=True)),
            x=alt.X(
                "tflops:Q", title=f"TFLOP/s per GPU by {convention_title(convention)}", axis=TICKS
            ),
            color=alt.Color("family:N", title=None, scale=alt.Scale(domain=list(WIDTHS))),
            shape=by_source(data["source"]),
            size=alt.condition("datum.ours", alt.value(180), alt.value(45)),
            opacity=alt.condition("datum.ours", alt.value(1), alt.value(PALE)),
            tooltip=_PUBLISHED_TOOLTIP,
        )
        .add_params(*picks)
        .properties(width="container", height=24 * len(order) + 10)
    )
    top = data.sort("tflops", descending=True).row(0, named=True)
    ours = data.filter(pl.col("ours")).height
    return Figure(
        chart,
        f"{count(data.height, 'result')} on {count(len(order), 'accelerator')}, {ours} of them "
        f"ours; the highest is {top['model']} on {top['accelerator']} with "
        f"{number(top['tflops'])} TFLOP/s per GPU.",
    )


def _menu(data: pl.DataFrame, name: str) -> alt.Parameter:
    """Return a menu of a field's values; the first entry shows them all."""
    values: list[str | None] = [None, *sorted(data[name].drop_nulls().unique().to_list())]
    labels = ["all", *(str(value) for value in values[1:])]
    title = f"{name.capitalize()} "
    menu = alt.BindRadioSelect(input="select", options=values, labels=labels, name=title)
    return alt.selection_point(fields=[name], bind=menu, name=f"pick_{name}")


def over_commits(points: Sequence[HistoryPoint]) -> Figures | None:
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
    line = base.mark_line().encode(y=y)
    bars = base.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q", scale=scale), y2="high:Q")
    marks = base.mark_point(filled=True, size=60, opacity=1).encode(y=y, tooltip=tips)
    chart = (line + bars + marks).properties(width="container", height=220)
    first, last = points[0], points[-1]
    text = (
        f"Rate at {count(len(points), 'commit')} with 95 % intervals: {first.rate:,.0f} tokens/s "
        f"at the first, {last.rate:,.0f} at the last."
    )
    return Figure(chart, text)
