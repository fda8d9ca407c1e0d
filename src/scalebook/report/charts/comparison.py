"""Charts of comparisons: ratios of two sides, and what each switch is worth."""

from __future__ import annotations

import altair as alt
import polars as pl

from scalebook.report.base.quantities import count, percent
from scalebook.report.charts.figure import SIGNED, Figure, by_source, names, rows
from scalebook.report.charts.rate_charts import whiskers
from scalebook.report.charts.theme import GREY, PALETTE

ROW_HEIGHT = 28
MAX_ROWS = 24
# ``change`` is a ratio less 1, with the ends of its interval; ``word`` the verdict
RATIO_SCHEMA: dict[str, type[pl.DataType]] = {
    # run_id is of side A
    **dict.fromkeys(("label", "run_id", "other_run_id", "kind", "source"), pl.String),
    **dict.fromkeys(("change", "change_low", "change_high"), pl.Float64),
    "word": pl.String,
}
# the same hue means the same verdict in every chart; grey is no verdict
WORDS = ("faster", "cannot tell", "slower")
COLOURS = alt.Scale(domain=list(WORDS), range=[PALETTE["light"][2], GREY, PALETTE["light"][1]])
BAR_SCHEMA: dict[str, type[pl.DataType]] = {
    # step: which configuration: optimised, baseline, or one switch changed
    **dict.fromkeys(("label", "run_id", "source", "step"), pl.String),
    **dict.fromkeys(("rate", "rate_low", "rate_high"), pl.Float64),
    "unit": pl.String,
}


def ratios(data: pl.DataFrame, axis: str, what: str) -> Figure | None:
    """Return points with intervals, a row a comparison, none marked; None for no row.

    ``axis`` says what is over what, ``what`` is the noun of a row.
    """
    shown = data.head(MAX_ROWS)
    if shown.is_empty():
        return None
    y = names("label", shown["label"], grid=True)
    base = alt.Chart(rows(shown))
    points = base.mark_point(filled=True, size=90).encode(
        y=y,
        x=alt.X("change:Q", title=axis, axis=alt.Axis(labelExpr=SIGNED, tickCount=7)),
        color=alt.Color("word:N", title=None, scale=COLOURS),
        shape=by_source(shown["source"]),
        tooltip=[
            alt.Tooltip("label:N", title=what),
            alt.Tooltip("run_id:N", title="run"),
            alt.Tooltip("other_run_id:N", title="against"),
            alt.Tooltip("kind:N"),
            alt.Tooltip("source:N"),
            alt.Tooltip("change:Q", title="difference", format="+.2%"),
            alt.Tooltip("change_low:Q", title="from", format="+.2%"),
            alt.Tooltip("change_high:Q", title="to", format="+.2%"),
            alt.Tooltip("word:N", title="verdict"),
        ],
    )
    none = alt.Chart(alt.Data(values=[{"none": 0}])).mark_rule(strokeDash=[5, 4])
    chart = (none.encode(x="none:Q") + whiskers(base, y, "change") + points).properties(
        width="container", height=ROW_HEIGHT * shown.height + 10
    )
    return Figure(chart, _describe(shown, what))


def _describe(data: pl.DataFrame, what: str) -> str:
    largest = data.sort("change", descending=True).row(0, named=True)
    return (
        f"{count(data.height, what)}; the largest difference is that of {largest['label']}, "
        f"{percent(largest['change'])}."
    )


def against_baseline(data: pl.DataFrame) -> Figure | None:
    """Return bars of the rate of the baseline, each change and the optimised configuration."""
    shown = data.head(MAX_ROWS)
    if shown.is_empty():
        return None
    y = names("label", shown["label"])
    base = alt.Chart(rows(shown))
    pick = alt.selection_point(fields=["step"], bind="legend")
    bars = base.mark_bar(cornerRadiusEnd=2).encode(
        y=y,
        x=alt.X("rate:Q", title=shown["unit"][0], axis=alt.Axis(tickCount=6)),
        color=alt.Color("step:N", title=None, sort=None),
        opacity=alt.condition(pick, alt.value(1), alt.value(0.15)),
        tooltip=[
            alt.Tooltip("label:N", title="configuration"),
            alt.Tooltip("run_id:N", title="run"),
            alt.Tooltip("source:N"),
            alt.Tooltip("rate:Q", title=shown["unit"][0], format=",.0f"),
            alt.Tooltip("rate_low:Q", title="from", format=",.0f"),
            alt.Tooltip("rate_high:Q", title="to", format=",.0f"),
        ],
    )
    chart = (bars.add_params(pick) + whiskers(base, y, "rate")).properties(
        width="container", height=ROW_HEIGHT * shown.height + 10
    )
    first, last = shown.row(0, named=True), shown.row(-1, named=True)
    words = f"{count(shown.height, 'configuration')}, from {first['label']} to {last['label']}, "
    return Figure(
        chart, f"{words}whose rate is {last['rate'] / first['rate']:.2f} times the first."
    )
