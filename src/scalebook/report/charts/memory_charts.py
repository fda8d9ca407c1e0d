"""Charts of memory: predictions next to measurements, and what fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import polars as pl

from scalebook.report.base.naming import platform_title
from scalebook.report.base.quantities import count, quantity
from scalebook.report.charts.figure import (
    MAX_BARS,
    AnyChart,
    Figure,
    Figures,
    by_part,
    by_source,
    entitled,
    names,
    rows,
)
from scalebook.report.charts.theme import GREY, PALETTE

ROW_HEIGHT = 30
PART_NAMES = (
    *("parameters", "gradients", "optimizer", "activations", "logits", "gathered", "backward"),
)
COMPARED: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("run_id", "label", "platform", "model", "split", "source"), pl.String),
    "ending": pl.String,
    **dict.fromkeys(("predicted_gib", "peak_memory_gib", "difference_gib"), pl.Float64),
}  # fmt: skip
PARTS: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("run_id", "label", "platform", "source", "part"), pl.String),
    **dict.fromkeys(("gib", "total_gib", "peak_memory_gib", "capacity_gib"), pl.Float64),
    "place": pl.Int64,
}
# Two runs of one place in a map may disagree; so there are four verdicts.
VERDICTS = ("fits", "out of memory", "both", "cannot tell")
KINDS = ("shown by a run", "inferred", "predicted")
SOLID = (1.0, 0.25, 0.0)  # how solid the place of each kind is
MAP: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("row", "micro", "verdict", "kind", "shown", "run_ids", "reason"), pl.String),
    **dict.fromkeys(("recompute", "evidence"), pl.String),
    **dict.fromkeys(("peak_memory_gib", "predicted_gib"), pl.Float64),
    "runs": pl.Int64,
}
_BESIDE_ZERO = alt.Scale(zero=False, padding=12)
_TOOLTIP = [
    alt.Tooltip("run_id:N", title="run"),
    alt.Tooltip("label:N", title="what"),
    alt.Tooltip("source:N"),
]


def predicted_against_measured(compared: pl.DataFrame) -> Figure | None:
    """Return one point per run, measured over predicted GiB, with the line where both agree.

    ``compared`` has the columns of COMPARED. A run that did not complete is a hollow point.
    """
    if compared.is_empty():
        return None
    values = [*compared["predicted_gib"], *compared["peak_memory_gib"]]
    scale = alt.Scale(domain=[0.9 * min(values), 1.06 * max(values)], nice=False, zero=False)
    ends = [{"gib": 0.9 * min(values)}, {"gib": 1.06 * max(values)}]
    line = alt.Chart(alt.Data(values=ends)).mark_line(
        strokeDash=[5, 4], strokeWidth=1.5, color=GREY
    )
    several = compared["platform"].n_unique() > 1
    base = alt.Chart(rows(compared)).encode(
        x=alt.X("predicted_gib:Q", title="predicted, GiB", scale=scale),
        y=alt.Y("peak_memory_gib:Q", title="measured peak, GiB", scale=scale),
        color=alt.Color("platform:N", title=None, legend=alt.Legend() if several else None),
        shape=by_source(compared["source"]),
        tooltip=[
            *_TOOLTIP,
            alt.Tooltip("ending:N", title="ended as"),
            alt.Tooltip("predicted_gib:Q", title="predicted, GiB", format=".2f"),
            alt.Tooltip("peak_memory_gib:Q", title="measured, GiB", format=".2f"),
            alt.Tooltip("difference_gib:Q", title="difference, GiB", format="+.2f"),
        ],
    )
    whole = base.transform_filter("datum.ending == 'completed'")
    broken = base.transform_filter("datum.ending != 'completed'")
    chart = (
        line.encode(x="gib:Q", y="gib:Q")
        + whole.mark_point(filled=True, size=90, opacity=0.8)
        + broken.mark_point(filled=False, size=110, strokeWidth=2, opacity=1)
    ).properties(width="container", height=340)
    return Figure(chart, _describe_compared(compared))


def _describe_compared(compared: pl.DataFrame) -> str:
    far = compared.sort(pl.col("difference_gib").abs()).row(-1, named=True)
    sign = "above" if far["difference_gib"] >= 0 else "below"
    return (
        f"Measured peak memory over the prediction for {count(compared.height, 'run')}; the "
        f"farthest from the line is {quantity(abs(far['difference_gib']), 'GiB')} {sign} it."
    )


def speed_against_memory(runs: pl.DataFrame, frontier: Sequence[str]) -> Figure | None:
    """Return one point per run of one work, rate over peak GiB, with the line of the best ones.

    ``frontier`` has the ids of the runs that no other run beats in both.
    """
    if runs.height < 3:  # of two runs there is nothing to choose
        return None
    data = runs.with_columns(pl.col("run_id").is_in(list(frontier)).alias("best"))
    base = alt.Chart(rows(data)).encode(
        x=alt.X("peak_memory_gib:Q", title="measured peak, GiB per GPU", scale=_BESIDE_ZERO),
        y=alt.Y("tokens_per_second_per_gpu:Q", title="tokens/s per GPU", scale=_BESIDE_ZERO),
        shape=by_source(data["source"]),
        tooltip=[
            *_TOOLTIP,
            alt.Tooltip("peak_memory_gib:Q", title="peak, GiB", format=".1f"),
            alt.Tooltip("tokens_per_second_per_gpu:Q", title="tokens/s per GPU", format=",.0f"),
        ],
    )
    best = base.transform_filter("datum.best")
    chart = (
        best.mark_line(interpolate="step-after", strokeDash=[5, 4], color=GREY)
        + base.transform_filter("!datum.best").mark_point(filled=False, size=80, strokeWidth=1.5)
        + best.mark_point(filled=True, size=100, opacity=0.9)
    ).properties(width="container", height=260)
    least, most = min(data.filter("best")["peak_memory_gib"].to_list()), data.height
    return Figure(
        chart,
        f"Rate over measured memory of {count(most, 'run')}; {len(frontier)} of them "
        f"are beaten by none in both, from {quantity(least, 'GiB')} on.",
    )


def parts(bars: pl.DataFrame) -> Figures | None:
    """Return the predicted parts as stacked bars, one chart per platform, with the measured peak.

    ``bars`` has the columns of PARTS, a row a part.
    """
    platforms = bars.group_by("platform", maintain_order=True)
    return Figures.of((platform_title(name), _stacked(members)) for (name,), members in platforms)


def _stacked(bars: pl.DataFrame) -> Figure | None:
    labels: list[str] = bars["label"].unique(maintain_order=True).to_list()
    shown = labels[:MAX_BARS]
    data = bars.filter(pl.col("label").is_in(shown), pl.col("gib") > 0).drop("platform")
    if data.is_empty():
        return None
    y = names("label", shown)
    pick = alt.selection_point(fields=["part"], bind="legend")
    stack = (
        alt.Chart(rows(data))
        .mark_bar()
        .encode(
            y=y,
            x=alt.X("gib:Q", title="GiB on the fullest rank", stack="zero"),
            order=alt.Order("place:Q"),
            color=by_part(PART_NAMES),
            opacity=alt.condition(pick, alt.value(1), alt.value(0.15)),
            tooltip=[
                *_TOOLTIP,
                alt.Tooltip("part:N"),
                alt.Tooltip("gib:Q", title="predicted, GiB", format=".2f"),
                alt.Tooltip("total_gib:Q", title="in all, GiB", format=".2f"),
                alt.Tooltip("peak_memory_gib:Q", title="measured peak, GiB", format=".2f"),
            ],
        )
        .add_params(pick)
    )
    layers: AnyChart = stack + _ticks(data, y)
    sizes = data["capacity_gib"].drop_nulls().unique().to_list()
    for size in sizes:
        rule = alt.Chart(alt.Data(values=[{"gib": size}]))
        layers += rule.mark_rule(strokeDash=[5, 4]).encode(x="gib:Q")
    height = ROW_HEIGHT * len(shown) + 10
    cut = f"The first {MAX_BARS} of {len(labels)} runs" if len(labels) > MAX_BARS else None
    chart = layers.properties(width="container", height=height)
    return Figure(entitled(chart, cut), _describe_parts(data, len(shown)))


def _ticks(data: pl.DataFrame, y: alt.Y) -> AnyChart:
    """Return the measured peak of each bar as a line that shows on every colour."""
    peaks = data.filter(pl.col("peak_memory_gib").is_not_null()).unique(
        "run_id", keep="first", maintain_order=True
    )
    base = alt.Chart(rows(peaks)).encode(y=y, x="peak_memory_gib:Q", tooltip=_TOOLTIP)
    wide = base.mark_tick(thickness=6, size=22, style="halo")
    return wide + base.mark_tick(thickness=2.5, size=22, style="ink")


def _describe_parts(data: pl.DataFrame, bars: int) -> str:
    largest = data.sort("gib", descending=True).row(0, named=True)
    return (
        f"{count(bars, 'bar')}; the largest part of all is {largest['part']} of "
        f"{largest['label']}, {quantity(largest['gib'], 'GiB')}."
    )


def feasibility_map(cells: pl.DataFrame, frontier: pl.DataFrame) -> Figure:
    """Return one map: a row a split and recomputation, a column a micro batch.

    ``cells`` has the columns of MAP, in the order of the rows; ``frontier`` has row and micro of
    the first cell of a row at which memory runs out.
    """
    order = cells["row"].unique(maintain_order=True).to_list()
    micros = sorted(cells["micro"].unique().to_list(), key=int)
    x = alt.X(
        "micro:O", sort=micros, title="micro batch", axis=alt.Axis(orient="top", labelAngle=0)
    )
    y = names("row", order)
    base = alt.Chart(rows(cells)).encode(x=x, y=y)
    tiles = base.mark_rect(cornerRadius=3, strokeWidth=2).encode(
        color=_verdict("color"),
        stroke=_verdict("stroke"),
        fillOpacity=alt.FillOpacity(
            "kind:O",
            title=None,
            scale=alt.Scale(type="ordinal", domain=list(KINDS), range=list(SOLID)),
            legend=alt.Legend(
                symbolType="square", symbolFillColor=GREY, symbolStrokeColor=GREY
            ),
        ),
        tooltip=_MAP_TOOLTIP,
    )  # fmt: skip
    solid = base.transform_filter(f"datum.kind == '{KINDS[0]}'").mark_text(
        style="on-bar", fontSize=12
    )
    pale = base.transform_filter(f"datum.kind != '{KINDS[0]}'").mark_text()
    edge = (
        alt.Chart(rows(frontier))
        .mark_rule(strokeWidth=5, strokeCap="butt")
        .encode(
            x=alt.X("micro:O", sort=micros, bandPosition=0),
            y=alt.Y("row:N", sort=order, bandPosition=0),
            y2=alt.Y2("row:N", bandPosition=1),
        )
    )
    chart = alt.layer(
        tiles, solid.encode(text="shown:N"), pale.encode(text="shown:N"), edge
    ).properties(width="container", height=34 * len(order) + 10)
    return Figure(chart, _describe_map(cells, frontier))


_MAP_TOOLTIP = [
    alt.Tooltip("row:N", title="split"),
    alt.Tooltip("micro:N", title="micro batch"),
    alt.Tooltip("verdict:N"),
    alt.Tooltip("evidence:N"),
    alt.Tooltip("peak_memory_gib:Q", title="measured peak, GiB", format=".2f"),
    alt.Tooltip("predicted_gib:Q", title="predicted, GiB", format=".2f"),
    alt.Tooltip("reason:N", title="why"),
    alt.Tooltip("run_ids:N", title="run"),
]


def _verdict(channel: str) -> Any:
    """Return colour by verdict: blue, orange, violet, grey of the theme's own hues."""
    scale = alt.Scale(
        domain=list(VERDICTS), range=[PALETTE["light"][place] for place in (0, 1, 3, 6)]
    )
    if channel == "stroke":
        return alt.Stroke("verdict:N", title=None, scale=scale)
    return alt.Color("verdict:N", title=None, scale=scale)


def _describe_map(cells: pl.DataFrame, frontier: pl.DataFrame) -> str:
    shown = cells.filter(pl.col("kind") == KINDS[0]).height
    return (
        f"{count(cells.height, 'cell')}, {shown} of them shown by runs; memory runs out in "
        f"{count(frontier.height, 'row')}."
    )
