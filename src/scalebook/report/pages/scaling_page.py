"""Charts and table of the scaling page, over all series of the report."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from scalebook.report.base import html_tables as tables
from scalebook.report.base.markup import Fragment, Markup
from scalebook.report.base.naming import units
from scalebook.report.base.scaling_series import ScalingSeries
from scalebook.report.charts import Figures, against_ideal
from scalebook.report.charts import efficiency as efficiency_chart
from scalebook.report.charts.scaling_charts import speedup as speedup_chart


def throughput(found: Sequence[ScalingSeries]) -> Figures | None:
    """Return a chart of throughput against the ideal for each series; None where there is none."""
    return Figures.of((item.group, against_ideal(item.points, _many(item))) for item in found)


def efficiency(found: Sequence[ScalingSeries]) -> Figures | None:
    """Return a chart of efficiency for each series; None where there is none."""
    return Figures.of((item.group, efficiency_chart(item.points, _many(item))) for item in found)


def speedup(found: Sequence[ScalingSeries]) -> Figures | None:
    """Return a chart of speed-up over the base for each series; None where there is none."""
    return Figures.of((item.group, speedup_chart(item.points, _many(item))) for item in found)


def table(found: Sequence[ScalingSeries]) -> Fragment:
    """Return speed-up and efficiency of every run of every series."""
    if not found:
        return Fragment(Markup(""))
    named = [item.points.with_columns(series=pl.lit(item.group)) for item in found]
    return tables.scaling(pl.concat(named, how="vertical_relaxed"))


def _many(item: ScalingSeries) -> str:
    return units(item.base["platform"])[1]
