"""The energy of a token as telemetry measured it: sentences, chart and table of the cost page."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from scalebook.report.base.columns import PROXY
from scalebook.report.base.frames import ReportData
from scalebook.report.base.markup import Fragment, Markup, join, run_link
from scalebook.report.base.quantities import count, number, quantity
from scalebook.report.base.tables import SPLIT, Column, table, text
from scalebook.report.charts.cost import energy_bars
from scalebook.report.charts.figure import Figures

MOST_NAMED = 8


def energy_findings(data: ReportData) -> Iterator[Markup]:
    """Yield which run took the least energy, and which have none and why."""
    known = data.completed.drop_nulls("energy_joules_per_token")
    if known.height:
        runs, of = _whole_models(known)
        best = runs.sort("energy_joules_per_token").row(0, named=True)
        words = (
            "Energy was measured in {}: the least{} is {} by {} of {} ({}), of its devices alone."
        )
        yield Markup(words).format(
            count(known.height, "run"),
            of,
            quantity(1e3 * best["energy_joules_per_token"], "mJ a token"),
            run_link(best["run_id"]),
            best["model"],
            best["energy_method"],
        )
    missing = data.completed.filter(pl.col("energy_joules_per_token").is_null())
    for (reason,), rows in missing.group_by("energy_reason", maintain_order=True):
        ids = join(map(run_link, rows["run_id"].head(MOST_NAMED)))
        more = rows.height - MOST_NAMED
        tail = f" and {more} more" if more > 0 else ""
        yield Markup("No energy per token of {}{}: {}").format(ids, tail, reason or "no reason.")


def energy_chart(data: ReportData) -> Figures | None:
    """Return the measured energy per token, a chart a model and platform."""
    known = data.completed.drop_nulls("energy_joules_per_token")
    groups = known.group_by("group", maintain_order=True)
    return Figures.of((str(name), energy_bars(rows)) for (name,), rows in groups)


def energy_table(data: ReportData) -> Fragment:
    """Return energy per token and mean power of the runs that have them."""
    known = data.completed.drop_nulls("energy_joules_per_token")
    if known.is_empty():
        return Fragment(Markup(""))
    columns = (
        Column("run_id", "Run", lambda row: run_link(row["run_id"]), numeric=False),
        SPLIT,
        Column(
            "energy_joules_per_token", "Energy",
            lambda row: number(1e3 * row["energy_joules_per_token"]), "mJ/token",
            hint="in the CSV file in J",
        ),
        Column(
            "mean_power_watts", "Mean power",
            lambda row: number(row["mean_power_watts"]), "W per device",
        ),
        *(text("energy_method", "By"), text("group", "Group")),
    )  # fmt: skip
    rows = known.sort("group", "energy_joules_per_token").iter_rows(named=True)
    return table(rows, columns, "energy")


def _whole_models(runs: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Return the runs of whole models where accelerators ran both, and words that say so.

    The first layers of a model are fast because they are few.
    """
    whole = runs.filter(~PROXY, pl.col("platform") != "cpu")
    mixed = not whole.is_empty() and not runs.filter(PROXY).is_empty()
    return (whole, " of a whole model") if mixed else (runs, "")
