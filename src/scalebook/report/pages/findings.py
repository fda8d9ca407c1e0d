"""What the runs show, in sentences made from the same frame as the tables beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from scalebook.report.base import html_tables as tables
from scalebook.report.base.frames import ReportData, records
from scalebook.report.base.markup import (
    Fragment,
    Markup,
    bullets,
    callout,
    join,
    paragraphs,
    run_link,
    run_links,
)
from scalebook.report.base.quantities import count, percent
from scalebook.report.base.sections import loss_findings, missing_mfu, unranked
from scalebook.report.pages.failures import failures
from scalebook.report.pages.winners import group_findings, peaks, repeats

Row = Mapping[str, Any]
FEW = 2  # failures whose reasons fit into a sentence; the table has those of all


def folded(data: ReportData) -> Fragment:
    """Return what is behind the first screen: findings, warnings, runs, those without a result."""
    folds = (
        ("Findings, group by group", findings(data)),
        ("Before you use these numbers", warnings(data)),
        (count(data.runs.height, "run"), tables.overview(data.runs)),
        ("Runs without a result", failed(data)),
    )
    rest = Markup("").join(
        Markup('<details class="sb-fold"><summary>{}</summary>{}</details>').format(title, one.html)
        for title, one in folds
        if one.html
    )
    return Fragment(Markup("<h2>Behind these answers</h2>{}").format(rest))


def findings(data: ReportData) -> Fragment:
    """Return the findings as a list: an item per group of comparable runs, losses, failures."""
    return bullets(_items(data))


def _items(data: ReportData) -> list[Markup]:
    groups = data.ranked.group_by("group", maintain_order=True)
    commits = _commits(data)
    items = [join(group_findings(runs, commits), " ") for _, runs in groups]
    if data.completed.is_empty():
        items = [Markup("No run completed with a throughput, so there is no winner to name.")]
    else:
        items += [*repeats(data.ranked), *loss_findings(data.completed), *peaks(data.completed)]
    return [*items, *unranked(data), *failure_findings(data)]


def _commits(data: ReportData) -> dict[str, str]:
    """Return the commit of Scalebook that each run is of, where known, as the runs started."""
    started = sorted(records(data).values(), key=lambda record: record.started_at or "")
    known = ((record.run_id, record.environment.get("git_commit")) for record in started)
    return {run_id: commit for run_id, commit in known if isinstance(commit, str) and commit}


def failure_findings(data: ReportData) -> Iterator[Markup]:
    """Yield one sentence a kind of failure, with its runs and their reasons, and one of the rest.

    The rest was not run: a smaller configuration had run out of memory.
    """
    inferred = pl.col("source") == "inferred"
    for (status,), runs in data.unfinished.filter(~inferred).group_by(
        "status", maintain_order=True
    ):
        if runs.height > FEW:
            what = Markup("{}, with their reasons below").format(run_links(runs["run_id"]))
        else:
            what = join(map(_ending, runs.iter_rows(named=True)), "; ")
        yield Markup("<strong>{} ended as {}</strong>: {}.").format(
            count(runs.height, "run"), tables.status_words(str(status)), what
        )
    skipped = data.unfinished.filter(inferred)
    if skipped.height:
        ids = run_links(skipped["run_id"])
        words = "<strong>{} not run</strong>: a smaller one had run out of memory ({})."
        yield Markup(words).format(
            count(skipped.height, "configuration was", "configurations were"), ids
        )


def _ending(row: Row) -> Markup:
    reason = (row["reason"] or "no reason given").rstrip(".")
    return Markup("{} ({})").format(run_link(row["run_id"]), reason)


def warnings(data: ReportData) -> Fragment:
    """Return what a reader must know before using a number; nothing where all is well."""
    return callout("Before you use these numbers", _warnings(data))


def _warnings(data: ReportData) -> Iterator[Markup]:
    runs = data.completed
    for row in data.runs.filter(pl.col("status") == "void").iter_rows(named=True):
        yield Markup("{} counts nowhere. {}").format(run_link(row["run_id"]), row["reason"])
    if "cpu" in set(runs["platform"]):
        yield Markup(
            "Runs on <code>cpu</code> show that training works and how layouts compare inside one "
            "machine. Their throughput is no result about any accelerator."
        )
    foreign = data.runs.filter(pl.col("source") != "measured")
    for (source,), rows in foreign.group_by("source", maintain_order=True):
        words = "{} <strong>{}</strong>, not measured here: marked in every table and chart."
        yield Markup(words).format(count(rows.height, "run is", "runs are"), source)
    yield from _not_as_asked(data)
    yield from missing_mfu(runs)
    yield from _thin_windows(data)
    if data.problems:
        yield Markup("{} could not be read: see the end of this page.").format(
            count(len(data.problems), "part of the run files", "parts of the run files")
        )


def _not_as_asked(data: ReportData) -> Iterator[Markup]:
    """Yield the runs whose trainer read back another setting than the one asked for."""
    for run_id, sentences in data.differences.items():
        words = "{} <strong>did not run as asked</strong>: {}"
        yield Markup(words).format(run_link(run_id), " ".join(sentences))


def _thin_windows(data: ReportData) -> Iterator[Markup]:
    """Yield the completed runs that measured nothing, or too little to rely on."""
    nothing = data.runs.filter(
        pl.col("status") == "completed", pl.col("tokens_per_second").is_null()
    )
    for row in nothing.iter_rows(named=True):
        yield Markup("{} completed without a throughput: {}").format(
            run_link(row["run_id"]), row["throughput_reason"] or "no reason recorded."
        )
    unsure = data.completed.filter(pl.col("tokens_per_second_low").is_null())
    for (reason,), rows in unsure.group_by("interval_reason", maintain_order=True):
        ids = run_links(rows["run_id"])
        words = "{} without an interval ({}): {}"
        yield Markup(words).format(count(rows.height, "throughput"), ids, reason or "no reason.")
    changing = data.completed.filter(pl.col("steady_change") > 0)
    if changing.height:
        ids = run_links(changing["run_id"])
        most = percent(changing["steady_change"].max(), 2)  # pyright: ignore[reportArgumentType]
        words = (
            "The steps of {} still drift or shift, by up to {} over their window, less than the "
            "1 % that would refuse them; their intervals hold it: {}."
        )
        yield Markup(words).format(count(changing.height, "run"), most, ids)


def failed(data: ReportData) -> Fragment:
    """Return the table of runs that gave no result, or a sentence that there is none."""
    runs = data.runs.filter(pl.col("tokens_per_second").is_null())
    if runs.is_empty():
        return paragraphs("Every run completed and has a throughput.")
    return failures(runs, data.log_tails)


def notes(data: ReportData) -> Fragment:
    """Return what the runs' records note beside their numbers; nothing where there is nothing."""
    said: dict[str, list[str]] = {}
    for run_id, sentences in data.notes.items():
        for sentence in sentences:
            said.setdefault(sentence, []).append(run_id)
    items = (
        Markup("{} {}").format(sentence, Markup("({})").format(run_links(run_ids)))
        for sentence, run_ids in said.items()
    )
    return callout("Notes of the runs", items)


def unreadable(data: ReportData) -> Fragment:
    """Return the directories and lines that could not be read; nothing where there are none."""
    return callout("Not readable", data.problems)
