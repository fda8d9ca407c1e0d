"""Charts of steps: each curve, where it is steady or broke off, and what a step's time went to."""

from __future__ import annotations

from typing import cast

import altair as alt
import polars as pl

from scalebook.report.base.naming import platform_title
from scalebook.report.base.quantities import count, number, percent, quantity
from scalebook.report.charts.figure import (
    MAX_BARS,
    AnyChart,
    Figure,
    Figures,
    by_part,
    entitled,
    names,
    rows,
)
from scalebook.report.charts.rate_charts import FROM_ZERO, TICKS
from scalebook.report.charts.theme import FAINT, GREY

MAX_RUNS = 10  # curves that a reader can still tell apart: as many as there are colours
MAX_POINTS = 200  # per curve: no screen shows more

# A run that was not measured here is never drawn as a solid line.
DASHES = alt.Scale(
    domain=["measured", "ingested", "simulated", "published", "inferred"],
    range=[[1, 0], [8, 3], [4, 3], [2, 2], [6, 2, 1, 2]],
)


def curves(
    steps: pl.DataFrame, runs: pl.DataFrame, field: str, title: str, which: str = "first"
) -> Figure | None:
    """Return a line a run of one field of its steps; None where no step has it.

    Where there are more runs than colours, the first ones of ``runs`` are drawn; ``which`` says
    what those are.
    """
    known = steps.filter(pl.col(field).is_not_null()).sort("run_id", "step")
    names = runs.select("run_id", "label", "source")
    names = names.filter(pl.col("run_id").is_in(known["run_id"].unique().implode()))
    data = thinned(known.join(names.head(MAX_RUNS), on="run_id"))
    if data.is_empty():
        return None
    cut = names.height > MAX_RUNS
    shown = f"The {which} {MAX_RUNS} of {names.height} runs" if cut else None
    data = data.select("run_id", "label", "source", "step", "phase", field)
    # Vega breaks down over an order of thousands of names
    chart = _curves(data, field, title, names["label"].head(MAX_RUNS).to_list())
    return Figure(entitled(chart, shown), _describe_curves(data, field, title))


def _curves(data: pl.DataFrame, field: str, title: str, order: list[str]) -> AnyChart:
    """Return the lines, and the point under the pointer with its run id."""
    pick = alt.selection_point(fields=["label"], bind="legend")
    near = alt.selection_point(nearest=True, on="pointerover", fields=["step"], empty=False)
    low, middle, high = (
        cast(float, getattr(data[field], one)()) for one in ("min", "median", "max")
    )
    wide = low > 0 and high >= WIDE * middle  # one step would press all others onto the axis
    scale = alt.Scale(type="log") if wide else alt.Scale(zero=False)
    base = alt.Chart(rows(data)).encode(
        x=alt.X("step:Q", title="optimizer step", axis=alt.Axis(format="d", tickMinStep=1)),
        y=alt.Y(f"{field}:Q", title=f"{title} (log)" if wide else title, scale=scale),
        color=alt.Color("label:N", title=None, sort=order),
    )
    line = base.mark_line().encode(
        strokeDash=alt.StrokeDash("source:N", legend=None, scale=DASHES),
        detail="run_id:N",
        opacity=alt.condition(pick, alt.value(0.9), alt.value(0.1)),
    )
    dots = base.mark_point(filled=True, size=45).encode(
        opacity=alt.condition(near, alt.value(1), alt.value(0)),
        tooltip=[
            *(alt.Tooltip("run_id:N", title="run"), alt.Tooltip("label:N", title="what")),
            *(alt.Tooltip("source:N"), alt.Tooltip("step:Q"), alt.Tooltip("phase:N")),
            alt.Tooltip(f"{field}:Q", title=title, format=".4~g"),
        ],
    )
    layers = line.add_params(pick) + dots.add_params(near)
    return layers.properties(width="container", height=300)


def thinned(steps: pl.DataFrame, points: int = MAX_POINTS) -> pl.DataFrame:
    """Return at most about ``points`` steps a run, evenly spread, the first and last among them."""
    place, last = pl.int_range(pl.len()).over("run_id"), pl.len().over("run_id") - 1
    stride = ((last + points) // points).clip(1, None)
    return steps.filter((place % stride == 0) | (place == last))


def steadiness(steps: pl.DataFrame, runs: pl.DataFrame) -> Figure | None:
    """Return a line a run of each step's time over the run's median; None for no step."""
    median = pl.col("step_seconds").median().over("run_id")
    ratio = pl.when(median > 0).then(pl.col("step_seconds") / median)
    known = steps.with_columns(over_median=ratio)
    spread = known.group_by("run_id").agg(spread=pl.col("over_median").std()).fill_nan(None)
    ordered = runs.join(spread, "run_id", "left").sort("spread", descending=True, nulls_last=True)
    return curves(known, ordered, "over_median", "time over median", "least steady")


def _describe_curves(data: pl.DataFrame, field: str, title: str) -> str:
    ends = data.group_by("run_id", maintain_order=True).agg(last=pl.col(field).last())["last"]
    low, high = cast(float, ends.min()), cast(float, ends.max())
    return (
        f"{title} by optimizer step of {count(ends.len(), 'run')}, "
        f"ending between {number(low)} and {number(high)}."
    )


ROW_HEIGHT = 24
WIDE = 6.0  # the highest over the median from which an axis is logarithmic
BARS: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("run_id", "label", "source", "ending", "reason"), pl.String),
    "value": pl.Float64,
}
LINES: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("run_id", "label", "source", "status", "phase"), pl.String),
    "step": pl.Int64,
    "value": pl.Float64,
    "steady": pl.Boolean,  # inside the run's steady state
}
ENDINGS = ("completed", "did not complete")


def run_bars(data: pl.DataFrame, title: str, format_: str) -> Figure | None:
    """Return one bar per run (columns of BARS), in the order given; None for no bar."""
    shown = data.head(MAX_BARS)
    if shown.is_empty():
        return None
    order: list[str] = shown["label"].to_list()
    several = shown["ending"].n_unique() > 1
    chart = (
        alt.Chart(rows(shown))
        .mark_bar(cornerRadiusEnd=2)
        .encode(
            y=names("label", order),
            x=alt.X("value:Q", title=title, axis=TICKS, scale=FROM_ZERO),
            color=alt.Color(
                "ending:N",
                title=None,
                scale=alt.Scale(domain=list(ENDINGS)),
                legend=alt.Legend() if several else None,
            ),
            opacity=alt.condition("datum.source == 'measured'", alt.value(1), alt.value(FAINT)),
            tooltip=[
                *(alt.Tooltip("run_id:N", title="run"), alt.Tooltip("label:N", title="what")),
                *(alt.Tooltip("source:N"), alt.Tooltip("reason:N", title="ended")),
                alt.Tooltip("value:Q", title=title, format=format_),
            ],
        )
        .properties(width="container", height=ROW_HEIGHT * shown.height + 10)
    )
    cut = f"The first {MAX_BARS} of {data.height} runs" if data.height > MAX_BARS else None
    top = shown.sort("value", descending=True).row(0, named=True)
    text = f"{count(shown.height, 'run')}; the highest is {quantity(top['value'], title)} of "
    return Figure(entitled(chart, cut), f"{text}{top['label']}.")


def steady_lines(data: pl.DataFrame, title: str, cut: str | None = None) -> Figure | None:
    """Return a line a run (columns of LINES): thick where it is steady, a cross where it broke.

    The steps that are in the steady state of every run that has one are shaded.
    """
    known = data.filter(pl.col("value").is_not_null()).sort("run_id", "step")
    if known.is_empty():
        return None
    order: list[str] = data["label"].unique(maintain_order=True).to_list()
    drawn = thinned(known).with_columns(value=pl.col("value").round_sig_figs(5))
    facts = rows(known.unique("run_id", keep="first").select("run_id", "label", "source", "status"))
    # what is the same for a whole run is said once; the layers share the data of the chart
    named = alt.LookupData(data=facts, key="run_id", fields=["label", "source", "status"])
    base = (
        alt.Chart()
        .transform_lookup(lookup="run_id", from_=named)
        .encode(
            x=alt.X("step:Q", title="optimizer step", axis=alt.Axis(format="d", tickMinStep=1)),
            y=alt.Y("value:Q", title=title, scale=alt.Scale(zero=False)),
            color=alt.Color("label:N", title=None, sort=order, scale=alt.Scale(domain=order)),
        )
    )
    steady = bool(known["steady"].any())
    layers = (*_shade(known), *_lines(base, title, steady), *_ends(known, title, order))
    data_of_lines = rows(drawn.select("run_id", "step", "phase", "value", "steady"))
    chart = alt.layer(*layers, data=data_of_lines).properties(width="container", height=260)
    return Figure(entitled(chart, cut), _describe_lines(known, title))


def _lines(base: alt.Chart, title: str, steady: bool) -> tuple[alt.Chart, ...]:
    """Return thin lines, thick ones in the steady state, and the point under the pointer."""
    pick = alt.selection_point(fields=["label"], bind="legend")
    near = alt.selection_point(nearest=True, on="pointerover", fields=["step"], empty=False)
    dash = alt.StrokeDash("source:N", legend=None, scale=DASHES)
    faded = alt.condition(pick, alt.value(0.9), alt.value(0.1))
    thin = base.mark_line(strokeWidth=1.2).encode(strokeDash=dash, detail="run_id:N", opacity=faded)
    thick = (
        base.transform_filter("datum.steady")
        .mark_line(strokeWidth=3.2)
        .encode(strokeDash=dash, detail="run_id:N", opacity=faded)
    )
    dots = base.mark_point(filled=True, size=45).encode(
        opacity=alt.condition(near, alt.value(1), alt.value(0)), tooltip=_tooltip(title)
    )
    # A layer without a row would have no extent.
    return thin.add_params(pick), *((thick,) if steady else ()), dots.add_params(near)


def _tooltip(title: str) -> list[alt.Tooltip]:
    return [
        *(alt.Tooltip("run_id:N", title="run"), alt.Tooltip("label:N", title="what")),
        *(alt.Tooltip("source:N"), alt.Tooltip("status:N"), alt.Tooltip("step:Q")),
        *(alt.Tooltip("phase:N"), alt.Tooltip("steady:N", title="in the steady state")),
        alt.Tooltip("value:Q", title=title, format=".4~g"),
    ]


def _ends(known: pl.DataFrame, title: str, order: list[str]) -> tuple[alt.Chart, ...]:
    """Return a cross on the last step of each run that did not complete; nothing without one."""
    broken = known.filter(pl.col("status") != "completed")
    if broken.is_empty():
        return ()
    ends = broken.group_by("run_id", maintain_order=True).last().select(known.columns)
    crosses = (
        alt.Chart(rows(ends))
        .mark_point(shape="cross", filled=True, angle=45, size=160, opacity=1)
        .encode(
            x="step:Q",
            y="value:Q",
            color=alt.Color("label:N", title=None, sort=order, scale=alt.Scale(domain=order)),
            tooltip=_tooltip(title),
        )
    )
    return (crosses,)


def common_window(known: pl.DataFrame) -> tuple[int, int] | None:
    """Return first and last step that are steady in every run that has a steady state."""
    windows = known.filter("steady").group_by("run_id").agg(
        first=pl.col("step").min(), last=pl.col("step").max()
    )  # fmt: skip
    if windows.is_empty():
        return None
    first, last = cast(int, windows["first"].max()), cast(int, windows["last"].min())
    return (first, last) if first < last else None


def _shade(known: pl.DataFrame) -> tuple[alt.Chart, ...]:
    """Return the shade over the window that is common to all; nothing where there is none."""
    window = common_window(known)
    if window is None:
        return ()
    shade = alt.Chart(alt.Data(values=[{"first": window[0], "last": window[1]}]))
    return (shade.mark_rect(color=GREY, opacity=0.13).encode(x="first:Q", x2="last:Q"),)


def _describe_lines(known: pl.DataFrame, title: str) -> str:
    ends = known.group_by("run_id", maintain_order=True).agg(pl.col("value").last())["value"]
    low, high = cast(float, ends.min()), cast(float, ends.max())
    broke = known.filter(pl.col("status") != "completed")["run_id"].n_unique()
    window = common_window(known)
    shaded = f" Steps {window[0]} to {window[1]} are shaded." if window else ""
    return (
        f"{title} by optimizer step of {count(ends.len(), 'run')}, ending between {number(low)} "
        f"and {number(high)}; {broke} did not complete.{shaded}"
    )


BAR_ROW_HEIGHT = 30
BAR_SCHEMA: dict[str, type[pl.DataType]] = {
    # label: the run, and the rank where there are several; place: of the part in the bar
    **dict.fromkeys(("run_id", "label", "platform", "source", "part"), pl.String),
    **dict.fromkeys(("seconds", "share"), pl.Float64),
    "place": pl.Int64,
}
# One colour a part in every chart, whichever parts it shows: the order is that of the theme's hues.
PARTS = (
    "forward", "exposed communication", "backward", "optimizer", "data",
    "waiting for a stage", "idle", "gradients", "forward and backward", "outside",
)  # fmt: skip
KINDS = (
    "matrix products", "communication", "attention", "norm", "element-wise", "optimizer", "other",
    "copy",
)  # fmt: skip


def anatomy(bars: pl.DataFrame, domain: tuple[str, ...], axis: str) -> Figures | None:
    """Return stacked bars, one chart per platform; None where there is no bar.

    ``bars`` has the columns of BAR_SCHEMA, a row a part; ``axis`` names what a share is of.
    """
    platforms = bars.group_by("platform", maintain_order=True)
    return Figures.of(
        (platform_title(name), _stacked(members, domain, axis)) for (name,), members in platforms
    )


def _stacked(bars: pl.DataFrame, domain: tuple[str, ...], axis: str) -> Figure | None:
    labels: list[str] = bars["label"].unique(maintain_order=True).to_list()
    shown = labels[:MAX_BARS]
    data = bars.filter(pl.col("label").is_in(shown)).drop("platform")
    if data.is_empty():
        return None
    pick = alt.selection_point(fields=["part"], bind="legend")
    marks = (
        alt.Chart(rows(data))
        .mark_bar()
        .encode(
            y=names("label", shown),
            x=alt.X(
                "share:Q",
                title=axis,
                stack="zero",
                axis=alt.Axis(format="%", tickCount=6),
                scale=alt.Scale(domain=[0, 1], clamp=True),  # a sum of shares may round above 1
            ),
            order=alt.Order("place:Q"),
            color=by_part(domain),
            opacity=alt.condition(pick, alt.value(1), alt.value(0.15)),
            tooltip=[
                alt.Tooltip("run_id:N", title="run"),
                alt.Tooltip("label:N", title="what"),
                alt.Tooltip("source:N"),
                alt.Tooltip("part:N"),
                alt.Tooltip("seconds:Q", title="seconds per step", format=".4~g"),
                alt.Tooltip("share:Q", title="share", format=".1%"),
            ],
        )
        .add_params(pick)
        .properties(width="container", height=BAR_ROW_HEIGHT * len(shown) + 10)
    )
    cut = f"The first {MAX_BARS} of {len(labels)} bars" if len(labels) > MAX_BARS else None
    return Figure(entitled(marks, cut), _describe(data, len(shown)))


def _describe(data: pl.DataFrame, bars: int) -> str:
    largest = data.sort("share", descending=True).row(0, named=True)
    return (
        f"{count(bars, 'bar')}; the largest part of all is {largest['part']} of "
        f"{largest['label']}, {percent(largest['share'])}."
    )
