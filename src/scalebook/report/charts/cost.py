"""Chart of the energy that a token took, as telemetry measured it."""

from __future__ import annotations

import altair as alt
import polars as pl

from scalebook.report.base.quantities import count, quantity
from scalebook.report.charts.figure import MAX_BARS, Figure, entitled, names, rows
from scalebook.report.charts.throughput import TICKS

_FIELDS = (
    "run_id", "label", "name", "model", "platform", "split", "source",
    "energy_joules_per_token", "mean_power_watts", "energy_method",
)  # fmt: skip


def energy_bars(runs: pl.DataFrame) -> Figure | None:
    """Return bars of J per token, the least first; None for no run."""
    data = runs.select(_FIELDS).sort("energy_joules_per_token").head(MAX_BARS)
    data = data.with_columns(millijoules=1e3 * pl.col("energy_joules_per_token"))
    if data.is_empty():
        return None
    chart = (
        alt.Chart(rows(data))
        .mark_bar(cornerRadiusEnd=2)
        .encode(
            y=names("name", data["name"]),
            x=alt.X("millijoules:Q", title="mJ per token, devices alone", axis=TICKS),
            opacity=alt.condition("datum.source == 'measured'", alt.value(1), alt.value(0.55)),
            tooltip=[
                alt.Tooltip("run_id:N", title="run"),
                alt.Tooltip("model:N"),
                alt.Tooltip("platform:N"),
                alt.Tooltip("name:N", title="configuration"),
                alt.Tooltip("source:N"),
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
        f"{quantity(best['millijoules'], 'mJ a token')} to {worst['label']} with "
        f"{quantity(worst['millijoules'], 'mJ a token')}.",
    )
