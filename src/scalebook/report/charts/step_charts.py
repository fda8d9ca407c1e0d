"""Charts of steps: each curve, where it is steady or broke off; and a bar per run."""

from __future__ import annotations

from typing import cast

import altair as alt
import polars as pl

from scalebook.report.base.quantities import count, number, quantity
from scalebook.report.charts.figure import (
    FROM_ZERO,
    PALER,
    TICKS,
    Figure,
    drawn,
    first,
    names,
    rows,
    tooltips,
)
from scalebook.report.charts.theme import GREY

MAX_RUNS = 10  # curves that a reader can still tell apart: as many as there are colours
MAX_POINTS = 200  # per curve: no screen shows more
WIDE = 6.0  # the highest over the median from which an axis is logarithmic
FREE = alt.Scale(zero=False)
ENDINGS = ("completed", "did not complete")

# A run that was not measured here is never drawn as a solid line.
DASHES = alt.Scale(
    domain=["measured", "ingested", "simulated", "published", "inferred"],
    range=[[1, 0], [8, 3], [4, 3], [2, 2], [6, 2, 1, 2]],
)


def thinned(steps: pl.DataFrame, points: int = MAX_POINTS) -> pl.DataFrame:
    """Return at most about ``points`` steps a run, evenly spread, the first and last among them."""
    place, last = pl.int_range(pl.len()).over("run_id"), pl.len().over("run_id") - 1
    stride = ((last + points) // points).clip(1, None)
    return steps.filter((place % stride == 0) | (place == last))


def steadiness(steps: pl.DataFrame, runs: pl.DataFrame) -> Figure | None:
    """Return one line per run of each step's time over the run's median; None for no step."""
    median = pl.col("step_seconds").median().over("run_id")
    ratio = pl.when(median > 0).then(pl.col("step_seconds") / median)
    known = steps.with_columns(value=ratio, steady=False).drop_nulls("value")
    spread = known.group_by("run_id").agg(spread=pl.col("value").std()).fill_nan(None)
    ordered = runs.join(spread, "run_id").sort("spread", descending=True, nulls_last=True)
    shown = ordered.head(MAX_RUNS).select("run_id", "label", "source", "status")
    cut = f"The least steady {MAX_RUNS} of {ordered.height} runs"
    lines = shown.join(known, on="run_id", maintain_order="left_right")
    return steady_lines(lines, "time over median", cut if ordered.height > MAX_RUNS else None)


def run_bars(data: pl.DataFrame, title: str, format_: str) -> Figure | None:
    """Return one bar per run, in the order given; None for no bar.

    Columns: run_id, label, source, value, ``ending`` (one of ENDINGS) and ``reason``.
    """
    labels, shown, cut = first(data)
    if shown.is_empty():
        return None
    several = shown["ending"].n_unique() > 1
    colours = alt.Scale(domain=list(ENDINGS))
    legend = alt.Legend() if several else None
    tips = tooltips("run_id", "label", "source", ("reason", "ended"), ("value", title, format_))
    bars = alt.Chart(rows(shown)).mark_bar(cornerRadiusEnd=2).encode(
        y=names("label", labels),
        x=alt.X("value:Q", title=title, axis=TICKS, scale=FROM_ZERO),
        color=alt.Color("ending:N", title=None, scale=colours, legend=legend),
        opacity=PALER,
        tooltip=tips,
    )  # fmt: skip
    top = shown.sort("value", descending=True).row(0, named=True)
    text = f"{count(shown.height, 'run')}; the highest is {quantity(top['value'], title)} of "
    return drawn(bars, f"{text}{top['label']}.", 24 * shown.height + 10, cut)


def steady_lines(data: pl.DataFrame, title: str, cut: str | None = None) -> Figure | None:
    """Return one line per run: thick where it is steady, with a cross where it broke off.

    Columns: run_id, label, source, status, phase, step, value, and ``steady`` of a step that is
    inside the run's steady state. The steps that are in that of every run that has one are shaded.
    """
    known = data.drop_nulls("value").sort("run_id", "step")
    if known.is_empty():
        return None
    order: list[str] = data["label"].unique(maintain_order=True).to_list()
    shown = thinned(known).with_columns(value=pl.col("value").round_sig_figs(5))
    facts = rows(known.unique("run_id", keep="first").select("run_id", "label", "source", "status"))
    # what is the same for a whole run is said once; the layers share the data of the chart
    named = alt.LookupData(data=facts, key="run_id", fields=["label", "source", "status"])
    low, middle, high = (
        cast(float, one(known["value"])) for one in (pl.Series.min, pl.Series.median, pl.Series.max)
    )
    if wide := low > 0 and high >= WIDE * middle:  # one step would press all others onto the axis
        title = f"{title} (log)"
    base = alt.Chart().transform_lookup(lookup="run_id", from_=named).encode(
        x=alt.X("step:Q", title="optimizer step", axis=alt.Axis(format="d", tickMinStep=1)),
        y=alt.Y("value:Q", title=title, scale=alt.Scale(type="log") if wide else FREE),
        color=_by_label(order),
    )  # fmt: skip
    window = common_window(known)
    layers = [*_shade(window), *_lines(base, title, steady=bool(known["steady"].any()))]
    layers += _ends(known, title, order)
    values = rows(shown.select("run_id", "step", "phase", "value", "steady"))
    return drawn(alt.layer(*layers, data=values), _describe_lines(known, title, window), 260, cut)


def _by_label(order: list[str]) -> alt.Color:
    return alt.Color("label:N", title=None, sort=order, scale=alt.Scale(domain=order))


def _lines(base: alt.Chart, title: str, *, steady: bool) -> list[alt.Chart]:
    """Return thin lines, thick ones in the steady state, and the point under the pointer."""
    pick = alt.selection_point(fields=["label"], bind="legend")
    near = alt.selection_point(nearest=True, on="pointerover", fields=["step"], empty=False)
    lines = base.encode(
        strokeDash=alt.StrokeDash("source:N", legend=None, scale=DASHES),
        detail="run_id:N",
        opacity=alt.condition(pick, alt.value(0.9), alt.value(0.1)),
    )
    thick = lines.transform_filter("datum.steady").mark_line(strokeWidth=3.2)
    dots = base.mark_point(filled=True, size=45).encode(
        opacity=alt.condition(near, alt.value(1), alt.value(0)), tooltip=_tips(title)
    )
    # A layer without a row would have no extent.
    thin = lines.mark_line(strokeWidth=1.2).add_params(pick)
    return [thin, *([thick] if steady else []), dots.add_params(near)]


def _tips(title: str) -> list[alt.Tooltip]:
    steady = ("steady", "in the steady state")
    numbers = (("step", "", "d"), "phase", steady, ("value", title, ".4~g"))
    return tooltips("run_id", "label", "source", "status", *numbers)


def _ends(known: pl.DataFrame, title: str, order: list[str]) -> list[alt.Chart]:
    """Return a cross on the last step of each run that did not complete; nothing without one."""
    broken = known.filter(pl.col("status") != "completed")
    if broken.is_empty():
        return []
    ends = broken.group_by("run_id", maintain_order=True).last().select(known.columns)
    crosses = alt.Chart(rows(ends)).mark_point(
        shape="cross", filled=True, angle=45, size=160, opacity=1
    )
    return [crosses.encode(x="step:Q", y="value:Q", color=_by_label(order), tooltip=_tips(title))]


def common_window(known: pl.DataFrame) -> tuple[int, int] | None:
    """Return first and last step that are steady in every run that has a steady state."""
    step = pl.col("step")
    windows = known.filter("steady").group_by("run_id").agg(first=step.min(), last=step.max())
    if windows.is_empty():
        return None
    first, last = cast(int, windows["first"].max()), cast(int, windows["last"].min())
    return (first, last) if first < last else None


def _shade(window: tuple[int, int] | None) -> list[alt.Chart]:
    """Return the shade over the window that is common to all; nothing where there is none."""
    if window is None:
        return []
    shade = alt.Chart(alt.Data(values=[{"first": window[0], "last": window[1]}]))
    return [shade.mark_rect(color=GREY, opacity=0.13).encode(x="first:Q", x2="last:Q")]


def _describe_lines(known: pl.DataFrame, title: str, window: tuple[int, int] | None) -> str:
    ends = known.group_by("run_id", maintain_order=True).agg(pl.col("value").last())["value"]
    low, high = cast(float, ends.min()), cast(float, ends.max())
    broke = known.filter(pl.col("status") != "completed")["run_id"].n_unique()
    shaded = f" Steps {window[0]} to {window[1]} are shaded." if window else ""
    return (
        f"{title} by optimizer step of {count(ends.len(), 'run')}, ending between {number(low)} "
        f"and {number(high)}; {broke} did not complete.{shaded}"
    )
