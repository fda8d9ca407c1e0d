"""Charts of comparisons: ratios of two sides, and what each switch is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from scalebook.report.base.quantities import count, percent
from scalebook.report.charts.figure import (
    SIGNED,
    TICKS,
    Figure,
    by_source,
    drawn,
    names,
    rows,
    tooltips,
)
from scalebook.report.charts.rate_charts import whiskers
from scalebook.report.charts.theme import GREY, PALETTE

ROW_HEIGHT = 28
MAX_ROWS = 24
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
