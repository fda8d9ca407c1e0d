"""The section of the throughput page on power, energy, clocks and temperatures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scalebook.measure.metrics import RunMetrics
from scalebook.report.base import tables
from scalebook.report.base.frames import ReportData
from scalebook.report.base.markup import Fragment, Markup, bullets, run_link, run_links
from scalebook.report.base.quantities import percent, quantity


def measured(data: ReportData) -> tuple[RunMetrics, ...]:
    """Return the numbers of the runs that have a throughput, in the order of the tables."""
    wanted: list[str] = data.completed["run_id"].to_list()
    return tuple(data.metrics[run_id] for run_id in wanted if run_id in data.metrics)


def overview(runs: Sequence[RunMetrics]) -> Fragment:
    """Return what held devices back, the least energy per token, and why energies are missing."""
    notes = [
        Markup("{}: {}").format(run_link(run.run_id), note)
        for run in runs
        for note in run.device_notes
    ]
    return bullets([*_least_energy(runs), *notes, *_missing(runs)])


def _least_energy(runs: Sequence[RunMetrics]) -> Iterator[Markup]:
    known = [run for run in runs if run.energy_joules_per_token is not None]
    if known:
        best = min(known, key=lambda run: run.energy_joules_per_token or 0.0)
        yield Markup("The least energy is {} by {} ({}), of its devices alone.").format(
            quantity(best.energy_joules_per_token, "J a token"),
            run_link(best.run_id),
            best.energy_method,
        )


def _missing(runs: Sequence[RunMetrics]) -> Iterator[Markup]:
    """Yield why runs have no energy, a sentence a reason."""
    reasons: dict[str, list[str]] = {}
    for run in runs:
        if run.energy_joules_per_token is None:
            reasons.setdefault(run.energy_reason or "no reason recorded", []).append(run.run_id)
    for reason, run_ids in reasons.items():
        yield Markup("No energy per token of {}: {}").format(run_links(run_ids), reason)


def table(runs: Sequence[RunMetrics]) -> Fragment:
    """Return what was read of each run's devices; nothing where nothing was."""
    rows = [run.as_dict() for run in runs if run.mean_power_watts or run.mean_clock_mhz]
    if not rows:
        return Fragment(Markup(""))
    columns = (
        tables.RUN,
        tables.plain(
            "energy_joules_per_token", "Energy", "J/token", hint="of all devices of the run"
        ),
        tables.text("energy_method", "By"),
        tables.plain("mean_power_watts", "Mean power", "W per device"),
        tables.plain("max_power_watts", "Highest", "W"),
        tables.plain("power_cap_watts", "Cap", "W"),
        tables.plain("mean_clock_mhz", "Mean clock", "MHz", digits=4),
        tables.plain("min_clock_mhz", "Lowest", "MHz", digits=4),
        tables.plain("max_temperature_celsius", "Hottest", "°C"),
        tables.Column(
            "gpu_busy_fraction",
            "Busy",
            lambda row: percent(row["gpu_busy_fraction"]),
            hint="of the time a kernel ran: not MFU",
        ),
    )
    return tables.table(rows, columns, "devices")
