"""Charts of rates: throughput, MFU, best of a group, energy, published, over commits, compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    FROM_ZERO,
    MAX_BARS,
    PALER,
    SHARES,
    SIGNED,
    TICKS,
    AnyChart,
    Figure,
    Figures,
    by,
    by_source,
    drawn,
    names,
    rows,
    tooltips,
)
from scalebook.report.charts.theme import FAINT, GREY, PALETTE

MAX_CHARTS = 12
FEW_WHOLE = 5  # whole models in a chart that has no room for all
ROW_HEIGHT, PANEL_HEIGHT = 28, 22

ROOM = 0.2  # of the longest bar: a shorter one is written on nothing
_FIELDS = (
    "run_id", "label", "name", "model", "platform", "split", "source", "step_seconds_median",
    "tokens_per_second", "rate", "rate_low", "rate_high", "rate_unit", "mfu", "mfu_low", "mfu_high",
)  # fmt: skip
_WHICH_RUN = tooltips(
    "run_id", ("model", ""), ("platform", ""), ("name", "configuration"), "source"
)
_TOOLTIP = [
    *_WHICH_RUN,
    *tooltips(("tokens_per_second", "tokens/s", ",.0f"), ("rate", "ranked by", ",.0f")),
    *tooltips(("rate_unit", "in"), ("step_seconds_median", "median step, s", ".4f")),
    *tooltips(("interval", "95 % interval")),
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
    if highest.is_empty():
        return None
    data = _with_interval(highest)
    unit, y = data["rate_unit"][0], names(column, data[column])
    base = alt.Chart(rows(data))
    marks = base.mark_bar(cornerRadiusEnd=2).encode(
        y=y, x=alt.X("rate:Q", title=unit, axis=TICKS), opacity=PALER, tooltip=_TOOLTIP
    )
    # the rate in figures at the foot of each bar that has room for them
    longest: Any = data["rate"].max()
    room = base.transform_filter(alt.datum.rate > longest * ROOM)
    figures = room.mark_text(align="left", dx=6, style="on-bar").encode(
        y=y, x=alt.datum(0), text=alt.Text("rate:Q", format=",.0f")
    )
    chart = marks + whiskers(base, y, "rate") + figures
    return drawn(chart, _describe(data, "rate", unit), ROW_HEIGHT * data.height, cut)


def utilisation(runs: pl.DataFrame) -> Figure | None:
    """Return points of MFU with their intervals; None where no run has an MFU."""
    highest, cut = _highest(runs, "mfu", "runs")
    if highest.is_empty():
        return None
    data = _with_interval(highest)
    y = names("label", data["label"], grid=True)
    base = alt.Chart(rows(data))
    points = base.mark_point(filled=True, size=90).encode(
        y=y,
        x=alt.X("mfu:Q", title="MFU", axis=SHARES, scale=FROM_ZERO),
        color=by("model", data),
        shape=by_source(data["source"]),
        tooltip=[*_TOOLTIP, *tooltips(("mfu", "MFU", ".1%"))],
    )
    best = data.sort("mfu", descending=True).row(0, named=True)
    words = f"MFU of {count(data.height, 'run')}; the highest is {percent(best['mfu'])} of "
    chart = whiskers(base, y, "mfu") + points
    return drawn(chart, f"{words}{best['label']}.", ROW_HEIGHT * data.height, cut)


def whiskers(base: alt.Chart, y: alt.Y, field: str) -> AnyChart:
    """Return the interval of a field as a line that shows on the page and on a bar alike."""
    low, high = f"{field}_low", f"{field}_high"
    ends = base.transform_filter(f"isValid(datum.{low}) && isValid(datum.{high})").encode(
        y=y, x=f"{low}:Q", x2=f"{high}:Q"
    )
    return ends.mark_rule(strokeWidth=4, style="halo") + ends.mark_rule(strokeWidth=1.5)


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


def _with_interval(data: pl.DataFrame) -> pl.DataFrame:
    """Return the columns that a chart of runs shows, with the interval of the rate in words."""
    ends = (pl.col(name).round(0).cast(pl.Int64) for name in ("rate_low", "rate_high"))
    return data.select(_FIELDS).with_columns(interval=pl.format("{} to {}", *ends).fill_null(NONE))


def _describe(data: pl.DataFrame, column: str, unit: str) -> str:
    """Return which runs have the first and the last bar."""
    first, last = data.row(0, named=True), data.row(-1, named=True)
    return (
        f"{count(data.height, 'run')}, from {first['label']} with {quantity(first[column], unit)} "
        f"to {last['label']} with {quantity(last[column], unit)}."
    )


_GROUP = tooltips("run_id", ("group", ""), "split", "source")


def panel(best: pl.DataFrame, title: str, format_: str, limit: str = "") -> Figure | None:
    """Return a bar per group with its interval, and a tick where it has a limit.

    Columns: run_id, model, group, platform, split, source, value, value_low, value_high and
    ``limit``, which the value is held against. The highest is first, whole models before others.
    """
    data, cut = _highest(best, "value", "groups")
    if data.is_empty():
        return None
    y = names("group", data["group"])
    values = [("value", title, format_), *([("limit", limit, format_)] if limit else [])]
    base = alt.Chart(rows(data)).encode(y=y, tooltip=[*_GROUP, *tooltips(*values)])
    axis = SHARES if "%" in format_ else TICKS
    chart: Any = base.mark_bar(cornerRadiusEnd=2).encode(
        x=alt.X("value:Q", title=title, axis=axis, scale=FROM_ZERO),
        color=by("platform", data),
        opacity=PALER,
    )
    if data["value_low"].count():
        chart += whiskers(base, y, "value")
    if limit:
        known = base.transform_filter("isValid(datum.limit)")
        ticks = known.mark_tick(thickness=2.5, size=18, style="ink").encode(x="limit:Q")
        chart = alt.layer(chart, ticks)
    top = data.row(0, named=True)
    value = number(100 * top["value"] if "%" in format_ else top["value"])
    words = f"{title} of the best configuration of {count(data.height, 'group')}; the first is "
    return drawn(chart, f"{words}{value}, {top['group']}.", PANEL_HEIGHT * data.height + 10, cut)


def spread(runs: pl.DataFrame, title: str) -> Figure:
    """Return every configuration as a point and its group as a box of quartiles.

    ``runs`` has the columns of ``panel``, one row per run, without the ends and the limit.
    """
    most = runs.group_by("group", "model").agg(pl.col("value").max())
    most, cut = _highest(most.sort("group"), "value", "groups")
    order = most["group"].to_list()
    data = runs.filter(pl.col("group").is_in(order))
    y = names("group", order)
    x = alt.X("value:Q", title=title, axis=TICKS, scale=FROM_ZERO)
    # a box of fewer than five points would draw quartiles that are the points themselves
    many = data.filter(pl.len().over("group") >= 5)
    boxes = alt.Chart(rows(many)).mark_boxplot(
        extent="min-max", size=16, color=GREY, opacity=1, box={"fillOpacity": 0.25, "stroke": GREY}
    )
    points = alt.Chart(rows(data)).mark_point(filled=True, size=55).encode(
        y=y,
        x=x,
        color=alt.Color("platform:N", title=None, legend=None),
        shape=by_source(data["source"]),
        tooltip=[*_GROUP, *tooltips(("value", title, ",.0f"))],
    )  # fmt: skip
    chart = alt.layer(*([boxes.encode(y=y, x=x)] if many.height else []), points)
    words = f"{title} of {count(data.height, 'run')} in {count(len(order), 'group')}."
    return drawn(chart, words, PANEL_HEIGHT * len(order) + 10, cut)


def energy_bars(runs: pl.DataFrame) -> Figure | None:
    """Return bars of J per token, the least first; None for no run."""
    joules = pl.col("energy_joules_per_token")
    data = runs.sort("energy_joules_per_token").head(MAX_BARS).select(
        *("run_id", "label", "name", "model", "platform", "source", "mean_power_watts"),
        "energy_method", millijoules=1e3 * joules,
    )  # fmt: skip
    if data.is_empty():
        return None
    energy = tooltips(
        ("millijoules", "mJ/token", ".4~g"), ("mean_power_watts", "W per device", ".0f"),
        ("energy_method", "by"),
    )  # fmt: skip
    chart = alt.Chart(rows(data)).mark_bar(cornerRadiusEnd=2).encode(
        y=names("name", data["name"]),
        x=alt.X("millijoules:Q", title="mJ per token, devices only", axis=TICKS),
        opacity=PALER,
        tooltip=[*_WHICH_RUN, *energy],
    )  # fmt: skip
    cut = f"The {MAX_BARS} lowest of {runs.height} runs" if runs.height > MAX_BARS else None
    words = _describe(data, "millijoules", "mJ per token")
    return drawn(chart, words, 26 * data.height + 10, cut)


WIDTHS = ("16 bit", "8 bit", "4 bit", "32 bit")


def published_field(data: pl.DataFrame, convention: str) -> Figure | None:
    """Return one strip per device of TFLOP/s per GPU; menus pick a model and an accelerator.

    One row per result: run_id, source, model, accelerator, world_size, sequence_length, precision,
    ``family`` (one of WIDTHS), tflops, where, and whether it is ``ours``.
    """
    if data.is_empty():
        return None
    data = for_charts(data)  # the menus name what the marks do
    best = data.sort("tflops", descending=True)
    order = best["accelerator"].unique(maintain_order=True).to_list()
    picks = [_menu(data, name) for name in ("model", "accelerator")]
    shown = alt.Chart(rows(data.with_columns(pl.col("tflops").round(1))))
    title = f"TFLOP/s per GPU by {convention_title(convention)}"
    chart = shown.transform_filter(picks[0]).transform_filter(picks[1]).mark_point(
        filled=True, size=60, strokeWidth=1
    ).encode(
        y=alt.Y("accelerator:N", sort=order, title=None, axis=alt.Axis(grid=True)),
        x=alt.X("tflops:Q", title=title, axis=TICKS),
        color=alt.Color("family:N", title=None, scale=alt.Scale(domain=list(WIDTHS))),
        shape=by_source(data["source"]),
        size=alt.condition("datum.ours", alt.value(180), alt.value(45)),
        opacity=alt.condition("datum.ours", alt.value(1), alt.value(FAINT)),
        tooltip=tooltips(
            *("run_id", "source", ("model", ""), ("accelerator", "")),
            *(("world_size", "GPUs", ",d"), ("sequence_length", "sequence", ",d")),
            *("precision", ("tflops", "TFLOP/s per GPU", ",.0f"), ("where", "from")),
        ),
    )  # fmt: skip
    top, ours = best.row(0, named=True), data["ours"].sum()
    words = (
        f"{count(data.height, 'result')} on {count(len(order), 'accelerator')}, {ours} of them "
        f"ours; the highest is {top['model']} on {top['accelerator']} with "
        f"{number(top['tflops'])} TFLOP/s per GPU."
    )
    return drawn(chart.add_params(*picks), words, 24 * len(order) + 10)


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
    first, last = points[0], points[-1]
    text = (
        f"Rate at {count(len(points), 'commit')} with 95 % intervals: {first.rate:,.0f} tokens/s "
        f"at the first, {last.rate:,.0f} at the last."
    )
    return drawn(line + bars + marks, text, 220)


MAX_ROWS = 24  # of comparisons
# the same hue means the same verdict in every chart; grey is no verdict
WORDS = ("faster", "cannot tell", "slower")
COLOURS = alt.Scale(domain=list(WORDS), range=[PALETTE["light"][2], GREY, PALETTE["light"][1]])


def ratios(found: Sequence[Mapping[str, Any]], axis: str, what: str) -> Figure | None:
    """Return points with intervals, one row per comparison, none marked; None for no row.

    ``change`` is a ratio less 1, change_low and change_high the ends of its interval, ``word`` the
    verdict, run_id that of the first side. ``axis`` says what is over what, ``what`` is the noun
    of a row.
    """
    if not found:
        return None
    shown = pl.DataFrame(found[:MAX_ROWS])
    y = names("label", shown["label"], grid=True)
    base = alt.Chart(rows(shown))
    points = base.mark_point(filled=True, size=90).encode(
        y=y,
        x=alt.X("change:Q", title=axis, axis=alt.Axis(labelExpr=SIGNED, tickCount=7)),
        color=alt.Color("word:N", title=None, scale=COLOURS),
        shape=by_source(shown["source"]),
        tooltip=tooltips(
            *(("label", what), "run_id", ("other_run_id", "against"), ("kind", ""), "source"),
            *(("change", "difference", "+.2%"), ("change_low", "from", "+.2%")),
            *(("change_high", "to", "+.2%"), ("word", "verdict")),
        ),
    )
    none = alt.Chart(alt.Data(values=[{"none": 0}])).mark_rule(strokeDash=[5, 4])
    chart = none.encode(x="none:Q") + whiskers(base, y, "change") + points
    largest = shown.sort("change", descending=True).row(0, named=True)
    words = (
        f"{count(shown.height, what)}; the largest difference is that of {largest['label']}, "
        f"{percent(largest['change'])}."
    )
    return drawn(chart, words, ROW_HEIGHT * shown.height + 10)


def against_baseline(found: Sequence[Mapping[str, Any]]) -> Figure:
    """Return bars of the rate of the baseline, each change and the optimised configuration.

    ``step`` says which of these a row is; each has its rate, rate_low, rate_high and unit.
    """
    shown = pl.DataFrame(found[:MAX_ROWS], infer_schema_length=None)
    y, unit = names("label", shown["label"]), shown["unit"][0]
    base = alt.Chart(rows(shown))
    pick = alt.selection_point(fields=["step"], bind="legend")
    bars = base.mark_bar(cornerRadiusEnd=2).encode(
        y=y,
        x=alt.X("rate:Q", title=unit, axis=TICKS),
        color=alt.Color("step:N", title=None, sort=None),
        opacity=alt.condition(pick, alt.value(1), alt.value(0.15)),
        tooltip=tooltips(
            *(("label", "configuration"), "run_id", "source", ("rate", unit, ",.0f")),
            *(("rate_low", "from", ",.0f"), ("rate_high", "to", ",.0f")),
        ),
    )
    chart = bars.add_params(pick) + whiskers(base, y, "rate")
    first, last = found[0], found[:MAX_ROWS][-1]
    words = (
        f"{count(shown.height, 'configuration')}, from {first['label']} to {last['label']}, "
        f"whose rate is {last['rate'] / first['rate']:.2f} times the first."
    )
    return drawn(chart, words, ROW_HEIGHT * shown.height + 10)
