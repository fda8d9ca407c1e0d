"""Charts of memory: predictions next to measurements, and what fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from scalebook.facts.feasibility.known import PARTS
from scalebook.report.base.quantities import count, quantity
from scalebook.report.charts.figure import (
    AnyChart,
    Figure,
    Figures,
    by,
    by_platform,
    by_source,
    drawn,
    first,
    names,
    rows,
    stacked,
    tooltips,
)
from scalebook.report.charts.theme import GREY, PALETTE

# Two runs of one place in a map may disagree; so there are four verdicts.
VERDICTS = ("fits", "out of memory", "both", "cannot tell")
KINDS = ("shown by a run", "inferred", "predicted")
SOLID = (1.0, 0.25, 0.0)  # how solid the place of each kind is
_BESIDE_ZERO = alt.Scale(zero=False, padding=12)
_RUN = tooltips("run_id", "label", "source")
_MEASURED = ("peak_memory_gib", "measured peak, GiB", ".2f")


def predicted_against_measured(compared: pl.DataFrame) -> Figure | None:
    """Return one point per run, measured over predicted GiB, with the line where both agree.

    A run that did not complete is a hollow point.
    """
    if compared.is_empty():
        return None
    values = [*compared["predicted_gib"], *compared["peak_memory_gib"]]
    low, high = 0.9 * min(values), 1.06 * max(values)
    ends = [low if 10 * low > high else 0.0, high]
    scale = alt.Scale(domain=ends, nice=False, zero=False)
    line = alt.Chart(alt.Data(values=[{"gib": end} for end in ends])).mark_line(
        strokeDash=[5, 4], strokeWidth=1.5, color=GREY
    )
    numbers = tooltips(
        ("ending", "ended as"), ("predicted_gib", "predicted, GiB", ".2f"), _MEASURED,
        ("difference_gib", "difference, GiB", "+.2f"),
    )  # fmt: skip
    base = alt.Chart(rows(compared)).encode(
        x=alt.X("predicted_gib:Q", title="predicted, GiB", scale=scale),
        y=alt.Y("peak_memory_gib:Q", title="measured peak, GiB", scale=scale),
        color=by("platform", compared),
        shape=by_source(compared["source"]),
        tooltip=[*_RUN, *numbers],
    )
    whole = base.transform_filter("datum.ending == 'completed'")
    broken = base.transform_filter("datum.ending != 'completed'")
    chart = (
        line.encode(x="gib:Q", y="gib:Q")
        + whole.mark_point(filled=True, size=90, opacity=0.8)
        + broken.mark_point(filled=False, size=110, strokeWidth=2, opacity=1)
    )
    far = compared.sort(pl.col("difference_gib").abs()).row(-1, named=True)
    sign = "above" if far["difference_gib"] >= 0 else "below"
    words = (
        f"Measured peak memory over the prediction for {count(compared.height, 'run')}; the "
        f"farthest from the line is {quantity(abs(far['difference_gib']), 'GiB')} {sign} it."
    )
    return drawn(chart, words, 340)


def speed_against_memory(runs: pl.DataFrame, frontier: Sequence[str]) -> Figure | None:
    """Return one point per run of one work, rate over peak GiB, with the line of the best ones.

    ``frontier`` has the ids of the runs that no other run beats in both.
    """
    if runs.height < 3:  # of two runs there is nothing to choose
        return None
    data = runs.select(
        *("run_id", "label", "source", "peak_memory_gib", "tokens_per_second_per_gpu"),
        best=pl.col("run_id").is_in(list(frontier)),
    )
    rate = ("tokens_per_second_per_gpu", "tokens/s per GPU", ",.0f")
    base = alt.Chart(rows(data)).encode(
        x=alt.X("peak_memory_gib:Q", title="measured peak, GiB per GPU", scale=_BESIDE_ZERO),
        y=alt.Y("tokens_per_second_per_gpu:Q", title="tokens/s per GPU", scale=_BESIDE_ZERO),
        shape=by_source(data["source"]),
        tooltip=[*_RUN, *tooltips(_MEASURED, rate)],
    )
    best = base.transform_filter("datum.best")
    chart = (
        best.mark_line(interpolate="step-after", strokeDash=[5, 4], color=GREY)
        + base.transform_filter("!datum.best").mark_point(filled=False, size=80, strokeWidth=1.5)
        + best.mark_point(filled=True, size=100, opacity=0.9)
    )
    least = min(data.filter("best")["peak_memory_gib"].to_list())
    words = (
        f"Rate over measured memory of {count(data.height, 'run')}; {len(frontier)} of them "
        f"are the fastest for their memory, from {quantity(least, 'GiB')} on."
    )
    return drawn(chart, words, 260)


def parts(bars: Sequence[Mapping[str, Any]]) -> Figures | None:
    """Return the predicted parts as stacked bars, one chart per platform, with the measured peak.

    One row per part: run_id, label, platform, source, part, gib, its place in the bar, and of the
    run total_gib, peak_memory_gib and capacity_gib.
    """
    return Figures.of((name, _parts(members)) for name, members in by_platform(bars))


def _parts(bars: pl.DataFrame) -> Figure:
    labels, data, cut = first(bars.filter(pl.col("gib") > 0).drop("platform"))
    numbers = (("gib", "predicted, GiB", ".2f"), ("total_gib", "in all, GiB", ".2f"), _MEASURED)
    tips = [*_RUN, *tooltips("part", *numbers)]
    x = alt.X("gib:Q", title="GiB on the fullest rank", stack="zero")
    chart: AnyChart = stacked(data, labels, x, PARTS, tips) + _ticks(data, names("label", labels))
    for size in data["capacity_gib"].drop_nulls().unique().to_list():
        rule = alt.Chart(alt.Data(values=[{"gib": size}]))
        chart += rule.mark_rule(strokeDash=[5, 4]).encode(x="gib:Q")
    largest = data.sort("gib", descending=True).row(0, named=True)
    words = (
        f"{count(len(labels), 'bar')}; the largest part of all is {largest['part']} of "
        f"{largest['label']}, {quantity(largest['gib'], 'GiB')}."
    )
    return drawn(chart, words, 30 * len(labels) + 10, cut)


def _ticks(data: pl.DataFrame, y: alt.Y) -> AnyChart:
    """Return the measured peak of each bar as a line that shows on every colour."""
    peaks = data.drop_nulls("peak_memory_gib").unique("run_id", keep="first", maintain_order=True)
    base = alt.Chart(rows(peaks)).encode(y=y, x="peak_memory_gib:Q", tooltip=_RUN)
    wide = base.mark_tick(thickness=6, size=22, style="halo")
    return wide + base.mark_tick(thickness=2.5, size=22, style="ink")


def feasibility_map(cells: pl.DataFrame, frontier: pl.DataFrame) -> Figure:
    """Return one map: one row per split and recomputation, one column per micro batch.

    ``cells`` are in the order of the rows: row, micro, verdict, ``kind`` (one of KINDS), what is
    ``shown`` in the cell, run_ids, reason, evidence, peak_memory_gib and predicted_gib;
    ``frontier`` has row and micro of the first cell of a row at which memory runs out.
    """
    order = cells["row"].unique(maintain_order=True).to_list()
    micros = sorted(cells["micro"].unique().to_list(), key=int)
    axis = alt.Axis(orient="top", labelAngle=0)
    base = alt.Chart(rows(cells)).encode(
        x=alt.X("micro:O", sort=micros, title="micro batch", axis=axis), y=names("row", order)
    )
    # blue, orange, violet, grey of the theme's own hues
    hues = [PALETTE["light"][place] for place in (0, 1, 3, 6)]
    verdict = alt.Scale(domain=list(VERDICTS), range=hues)
    square = alt.Legend(symbolType="square", symbolFillColor=GREY, symbolStrokeColor=GREY)
    solid = alt.Scale(type="ordinal", domain=list(KINDS), range=list(SOLID))
    tiles = base.mark_rect(cornerRadius=3, strokeWidth=2).encode(
        color=alt.Color("verdict:N", title=None, scale=verdict),
        stroke=alt.Stroke("verdict:N", title=None, scale=verdict),
        fillOpacity=alt.FillOpacity("kind:O", title=None, scale=solid, legend=square),
        tooltip=tooltips(
            *(("row", "split"), ("micro", "micro batch"), ("verdict", ""), ("evidence", "")),
            *(_MEASURED, ("predicted_gib", "predicted, GiB", ".2f")),
            *(("reason", "why"), ("run_ids", "run")),
        ),
    )
    shown = base.encode(text="shown:N")
    measured = shown.transform_filter(f"datum.kind == '{KINDS[0]}'")
    others = shown.transform_filter(f"datum.kind != '{KINDS[0]}'")
    edge = alt.Chart(rows(frontier)).mark_rule(strokeWidth=5, strokeCap="butt").encode(
        x=alt.X("micro:O", sort=micros, bandPosition=0),
        y=alt.Y("row:N", sort=order, bandPosition=0),
        y2=alt.Y2("row:N", bandPosition=1),
    )  # fmt: skip
    chart = alt.layer(
        tiles, measured.mark_text(style="on-bar", fontSize=12), others.mark_text(), edge
    )
    words = (
        f"{count(cells.height, 'cell')}, {cells.filter(kind=KINDS[0]).height} of them shown by "
        f"runs; memory runs out in {count(frontier.height, 'row')}."
    )
    return drawn(chart, words, 34 * len(order) + 10)
