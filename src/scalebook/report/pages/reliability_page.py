"""Sentences, charts and tables of the reliability page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import polars as pl

from scalebook.report.base import html_tables as tables
from scalebook.report.base.frames import ReportData
from scalebook.report.base.html_tables import Column
from scalebook.report.base.markup import (
    Fragment,
    Markup,
    bullets,
    callout,
    join,
    paragraphs,
    run_link,
)
from scalebook.report.base.quantities import count, duration, number, percent, quantity
from scalebook.report.charts import reliability_charts as charts
from scalebook.report.charts.figure import Figure
from scalebook.report.pages.reliability_data import Reliability, Saved, bar_label, failure_kinds

NAMED_RUNS = 3  # links in a sentence; the table has all


def statuses(data: ReportData) -> Fragment:
    """Return how the runs of the report ended, and what those that failed have in common."""
    counts = data.runs.group_by("status").len().sort("len", "status", descending=[True, False])
    ends = join(f"{n} {tables.status_words(status)}" for status, n in counts.iter_rows())
    first = Markup("{}: {}.").format(count(data.runs.height, "run"), ends)
    return bullets([first, *map(_kind, failure_kinds(data.runs))])


def _kind(found: tuple[str, str, list[str]]) -> Markup:
    status, stem, run_ids = found
    more = f" and {len(run_ids) - NAMED_RUNS} more" if len(run_ids) > NAMED_RUNS else ""
    return Markup("<strong>{}</strong>: {}. {} ({}{}).").format(
        tables.status_words(status),
        stem,
        count(len(run_ids), "run"),
        join(map(run_link, run_ids[:NAMED_RUNS])),
        more,
    )


def checkpoint_findings(found: Reliability) -> Fragment:
    """Return what checkpoints cost on each platform and in each mode, or how to measure it."""
    if not any(item.saves for item in found.saved):
        return paragraphs(
            Markup(
                "No run saved a checkpoint. <code>scalebook run --set checkpoint_interval=10"
                "</code> saves every tenth step and measures what that costs; "
                "<code>--set checkpoint_async=true</code> writes beside the training."
            )
        )
    groups: dict[tuple[str, str, str], list[Saved]] = {}
    for item in found.saved:
        key = (str(item.run["platform"]), str(item.run["model"]), str(item.mode))
        if item.saves:
            groups.setdefault(key, []).append(item)
    return bullets([_cost(*key, items) for key, items in groups.items()])


def _cost(platform: str, model: str, mode: str, items: list[Saved]) -> Markup:
    rows = [item.row() for item in items]
    words = Markup(
        "<strong>{}</strong> on {}, {}: {} of {} in {}. A save is whole after {}{}, and training "
        "waits {} for it{}."
    )
    rates, steps, shares = (_known(rows, n) for n in ("save_rate", "waited_steps", "waited_share"))
    rate = f" ({_span(rates, lambda value: quantity(value, 'GiB/s'))})" if rates else ""
    note = f", as long as {_span(steps, number)} steps" if steps else ""
    note += f". Waits are {_span(shares, percent)} of the training" if shares else ""
    return words.format(
        *(model, platform, mode, count(sum(row["saves"] for row in rows), "save")),
        _span(_known(rows, "size_gib"), lambda value: quantity(value, "GiB")),
        count(len(items), "run"),
        _span(_known(rows, "save_seconds"), duration),
        rate,
        _span(_known(rows, "blocking_seconds"), duration),
        note,
    )


def _known(rows: list[dict[str, Any]], name: str) -> list[float]:
    return [row[name] for row in rows if row[name] is not None]


def _span(values: list[float], show: Callable[[float], str]) -> str:
    """Return the smallest and the largest value, or one where they print alike."""
    low, high = show(min(values)), show(max(values))
    return low if low == high else f"{low} to {high}"


def checkpoint_chart(found: Reliability) -> Figure | None:
    """Return the chart of save and load times; None where no run has a checkpoint."""
    rows = [entry for item in found.saved for entry in _bars(item)]
    return charts.checkpoints(pl.DataFrame(rows, schema=charts.CHECKPOINT_SCHEMA))


def _bars(item: Saved) -> Iterator[dict[str, Any]]:
    row = item.row()
    fields = ("blocking_seconds", "save_seconds", "load_seconds")
    for kind, name in zip(charts.KINDS, fields, strict=True):
        if row[name] is not None:
            kept = {key: row[key] for key in ("run_id", "source", "size_gib")}
            yield {**kept, "label": bar_label(row), "kind": kind, "seconds": row[name]}


def checkpoint_table(found: Reliability) -> Fragment:
    """Return size, times and rates of each run's checkpoints."""
    if not found.saved:
        return paragraphs("No checkpoint was saved or loaded.")
    columns = (
        *(tables.RUN, tables.RAN),
        tables.text("mode", "Mode"),
        tables.plain("saves", "Saves"),
        tables.plain("size_gib", "Size", "GiB"),
        _time("save_seconds", "Save", "from begin until it would survive a kill"),
        _time("blocking_seconds", "Waited", "of it, the time that training stood still"),
        tables.plain("save_rate", "Rate", "GiB/s"),
        tables.plain("waited_steps", "Waited", "steps", hint="over the run's median step"),
        _share("waited_share", "Of training"),
        _time("load_seconds", "Load", "until training can go on"),
        tables.plain("load_rate", "Rate", "GiB/s"),
    )
    return tables.table((item.row() for item in found.saved), columns, "checkpoints")


def _time(key: str, label: str, hint: str) -> Column:
    return Column(key, label, lambda row: duration(row.get(key)), hint=hint)


def _share(key: str, label: str) -> Column:
    return Column(key, label, lambda row: percent(row.get(key)), hint="all saves over all steps")


def unreadable(found: Reliability) -> Fragment:
    """Return the lines of checkpoints that could not be read; nothing where there are none."""
    return callout("Not readable", found.problems)
