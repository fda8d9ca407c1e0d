"""The memory page: what was predicted, what was measured, and what fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

import polars as pl

from scalebook.errors import CatalogError
from scalebook.facts import catalog
from scalebook.report.base.frames import ReportData
from scalebook.report.base.html_tables import (
    RAN,
    RUN,
    STATUS,
    Column,
    plain,
    status_words,
    table,
    text,
)
from scalebook.report.base.markup import Fragment, Markup, bullets, paragraphs, run_link, run_links
from scalebook.report.base.quantities import count, number, percent, quantity
from scalebook.report.charts import Figure, Figures
from scalebook.report.charts import memory_charts as charts

Row = Mapping[str, Any]


def compared(data: ReportData) -> pl.DataFrame:
    """Return the runs that have a measured peak and a prediction (GiB of the fullest rank)."""
    found: list[dict[str, Any]] = []
    for row in data.runs.iter_rows(named=True):
        predicted = _total(data, row)
        peak = row["peak_memory_gib"]
        if predicted and peak is not None:
            facts = {"predicted_gib": predicted, "difference_gib": peak - predicted}
            found.append({**row, **facts, "ending": status_words(row["status"])})
    return pl.DataFrame(found, schema=charts.COMPARED | {"status": pl.String})


def _total(data: ReportData, row: Row) -> float | None:
    parts = _parts(data, row)
    return parts["total"] if parts else None


def _parts(data: ReportData, row: Row) -> Mapping[str, float] | None:
    found = data.predictions.get(row["run_id"])
    return found.parts if found else None


def scatter(data: ReportData) -> Figure | None:
    """Return measured over predicted memory; None where no run has both."""
    return charts.predicted_against_measured(compared(data).select(*charts.COMPARED))


def bars(data: ReportData) -> Figures | None:
    """Return the predicted parts of each run's fullest rank, with its measured peak."""
    found: list[dict[str, Any]] = []
    for row in data.runs.iter_rows(named=True):
        parts = _parts(data, row) or {}
        facts = {name: row[name] for name in ("run_id", "label", "platform", "source")}
        facts |= {"total_gib": parts.get("total"), "peak_memory_gib": row["peak_memory_gib"]}
        facts["capacity_gib"] = _capacity(row)
        for place, part in enumerate(charts.PART_NAMES):
            if part in parts:
                found.append(facts | {"part": part, "gib": parts[part], "place": place})
    return charts.parts(pl.DataFrame(found, schema=charts.PARTS))


def _capacity(row: Row) -> float | None:
    """Return the memory of the device that ran, in GB as sold: GiB within 1 %; or None."""
    name = row["accelerator"]
    try:
        device = catalog.accelerator_for_device(name) if name else None
    except CatalogError:
        return None
    return device.memory_gb if device else None


def parts_table(data: ReportData) -> Fragment:
    """Return prediction and measurement of each run in numbers, with the difference."""
    found: list[dict[str, Any]] = []
    for row in data.runs.iter_rows(named=True):
        parts, peak = _parts(data, row), row["peak_memory_gib"]
        if parts is not None:
            difference = None if peak is None else peak - parts["total"]
            share = None if difference is None else difference / parts["total"]
            more = {"difference": difference, "share": share, "capacity": _capacity(row)}
            found.append({**row, **parts, **more})
    if not found:
        return Fragment(Markup(""))
    columns = (
        *(RUN, STATUS, RAN),
        plain("total", "Predicted", "GiB"),
        plain("peak_memory_gib", "Measured peak", "GiB"),
        Column("difference", "Difference", lambda row: _signed(row["difference"]), "GiB"),
        Column("share", "Of the prediction", lambda row: percent(row["share"], 2)),
        plain("capacity", "Device, as sold", "GB"),
        *(plain(name, name.capitalize(), "GiB") for name in charts.PART_NAMES),
        plain("micro_batch_size", "Micro batch"),
        text("recompute", "Recompute"),
    )
    return table(found, columns, "memory")


def _signed(value: float | None) -> str:
    return number(value) if value is None or value <= 0 else f"+{number(value)}"


def findings(data: ReportData) -> Fragment:
    """Return how far prediction and measurement are apart, and what ran out of memory."""
    return bullets([*_agreement(data), *_ran_out(data), *_unknown(data)])


def _agreement(data: ReportData) -> Iterator[Markup]:
    """Yield, by platform and source, the spread of the differences of completed runs."""
    # a rate that is void leaves the peak of the memory true
    done = compared(data).filter(pl.col("ending").is_in(("completed", "void")))
    if done.is_empty():
        yield Markup("No completed run has both a measured peak and a prediction.")
    for (platform, source), runs in done.group_by("platform", "source", maintain_order=True):
        shares = (runs["difference_gib"] / runs["predicted_gib"]).to_list()
        above = sum(share > 0 for share in shares)
        far = runs.sort(pl.col("difference_gib").abs()).row(-1, named=True)
        words = (
            "<strong>{}</strong> ({}): {} completed with both numbers. The measured peak is "
            "between {} and {} of the prediction, {} in the middle, and above it in {}. The "
            "largest difference is {} ({})."
        )
        yield Markup(words).format(
            platform or "unknown platform",
            source,
            count(runs.height, "run"),
            percent(1 + min(shares)),
            percent(1 + max(shares)),
            percent(1 + median(shares)),
            f"{above} of {runs.height}",
            quantity(far["difference_gib"], "GiB"),
            run_link(far["run_id"]),
        )


def _ran_out(data: ReportData) -> Iterator[Markup]:
    """Yield what the prediction said of runs that ran out of memory."""
    broke = data.runs.filter(pl.col("status") == "out_of_memory", pl.col("source") != "inferred")
    for row in broke.iter_rows(named=True):
        predicted, capacity = _total(data, row), _capacity(row)
        if predicted is None or capacity is None:
            yield Markup("{} ran out of memory; there is no prediction to hold it against.").format(
                run_link(row["run_id"])
            )
            continue
        side = "more" if predicted > capacity else "less"
        words = "{} ({}{}) ran out of memory: {} predicted, {} than the device's {}."
        batch = f", micro batch {number(row['micro_batch_size'])}"
        told = Markup(words).format(
            run_link(row["run_id"]),
            row["label"],
            "" if "micro batch" in row["label"] else batch,
            quantity(predicted, "GiB"),
            side,
            quantity(capacity, "GB"),
        )
        missed = (
            " The prediction did not see it coming. It leaves out collectives and fragmentation, "
            "and does not know what a version of the trainer held too long; a peak beside it is of "
            "the steps that were done."
        )
        yield told + ("" if side == "more" else missed)


def _unknown(data: ReportData) -> Iterator[Markup]:
    """Yield the runs without a prediction or without a measured peak, with the reason."""
    without: dict[str, list[str]] = {}
    for run_id in data.runs["run_id"]:
        found = data.predictions.get(run_id)
        if found is not None and found.parts is None:
            without.setdefault(found.reason or "no reason", []).append(run_id)
    for reason, run_ids in without.items():
        yield Markup("{} without a prediction ({}): {}.").format(
            count(len(run_ids), "run"), reason, run_links(run_ids)
        )
    silent = data.completed.filter(pl.col("peak_memory_gib").is_null())
    if silent.height:
        yield Markup("{} recorded no memory: {}.").format(
            count(silent.height, "completed run"), run_links(silent["run_id"])
        )


def empty_note(data: ReportData) -> Fragment:
    """Return a sentence where there is no run at all."""
    return paragraphs("No run could be read.") if data.runs.is_empty() else Fragment(Markup(""))
