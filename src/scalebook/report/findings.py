"""What the runs show, in sentences made from the same frame as the tables beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from scalebook import tables
from scalebook.frames import ReportData
from scalebook.markup import (
    MOST_NAMED,
    Fragment,
    Markup,
    bullets,
    callout,
    join,
    paragraphs,
    run_link,
    run_links,
)
from scalebook.naming import in_words, sized
from scalebook.quantities import count, interval, number, percent, quantity, times
from scalebook.report.sections import loss_findings, missing_mfu
from scalebook.report.versus import verdict_on

Row = Mapping[str, Any]


def overview(data: ReportData) -> Fragment:
    """Return one sentence: how many runs there are and how they ended."""
    if data.runs.is_empty():
        return paragraphs("No run could be read.", style="lead")
    by_status = data.runs.group_by("status", maintain_order=True).len().sort("len", descending=True)
    ends = join(f"{number(n)} {tables.status_words(s)}" for s, n in by_status.iter_rows())
    models = join(sorted(data.runs["model"].drop_nulls().unique()))
    platforms = join(sorted(data.runs["platform"].drop_nulls().unique()))
    sentence = Markup("{}: {}. Models: {}. Platforms: {}.")
    runs = count(data.runs.height, "run")
    return paragraphs(sentence.format(runs, ends, models, platforms), style="lead")


def findings(data: ReportData) -> Fragment:
    """Return the findings as a list: an item a group of comparable runs, then losses, failures."""
    groups = data.completed.group_by("group", maintain_order=True)
    items = [join(group_findings(runs), " ") for _, runs in groups]
    if not items:
        items = [Markup("No run completed with a throughput, so there is no winner to name.")]
    else:
        items += [*repeat_findings(data), *loss_findings(data.completed)]
    return bullets([*items, *failure_findings(data)])


def group_findings(runs: pl.DataFrame) -> Iterator[Markup]:
    """Yield the winner of one group of comparable runs, and how far the others are behind."""
    ranked = runs.drop_nulls("rate").sort("rate", descending=True)
    group = Markup("<strong>{}</strong>").format(runs["group"][0])
    if ranked.is_empty():
        words = "{}: {} with a throughput in total, but of how many ranks is not recorded."
        yield Markup(words).format(group, count(runs.height, "run"))
        return
    best = ranked.row(0, named=True)
    reached = (_rate(best), _mfu(best))
    if ranked.height == 1:
        yield Markup("{}: one run, {}, reached {}{}.").format(group, _named(best), *reached)
        return
    words = "{}: {} is the fastest of {}, with {}{}."
    yield Markup(words).format(group, _named(best), count(ranked.height, "run"), *reached)
    yield from _contested(best, ranked.row(1, named=True))
    yield from _spread(best, ranked.row(-1, named=True))
    yield from _largest_total(ranked, best)


def _spread(best: Row, worst: Row) -> Iterator[Markup]:
    """Yield how far the last is behind the first."""
    yield Markup("The slowest, {}, reached {}: a spread of {}.").format(
        _named(worst), _rate(worst), times(best["rate"] / worst["rate"])
    )


def _largest_total(runs: pl.DataFrame, best: Row) -> Iterator[Markup]:
    """Yield the run with the highest total throughput where that is another one."""
    top = runs.sort("tokens_per_second", descending=True).row(0, named=True)
    if top["run_id"] != best["run_id"]:
        ends = (top["tokens_per_second_low"], top["tokens_per_second_high"])
        total = interval(top["tokens_per_second"], *ends, "tokens/s")
        yield Markup("The most in total is {}, with {}.").format(total, _named(top))


def _contested(best: Row, second: Row) -> Iterator[Markup]:
    """Yield a sentence where the first two are not surely apart, and what would decide."""
    verdict = verdict_on(best, second)
    if verdict is not None and verdict.word == "cannot tell":
        words = "Against the second, {}, these runs do not settle which of the two is faster. {}"
        yield Markup(words).format(_named(second), verdict.advice or "")


def repeat_findings(data: ReportData) -> Iterator[Markup]:
    """Yield the pooled rate of each configuration that has repeats."""
    pooled = data.completed.filter(pl.col("pooled_tokens_per_second").is_not_null())
    for _, rows in pooled.group_by("pooled_tokens_per_second", "group", maintain_order=True):
        row = rows.row(0, named=True)
        ends = (row["pooled_tokens_per_second_low"], row["pooled_tokens_per_second_high"])
        rate = interval(row["pooled_tokens_per_second"], *ends, "tokens/s")
        words = "{} of {} on {} together reached {}, the spread from run to run counted: {}."
        ids = run_links(rows["run_id"])
        repeats = count(rows.height, "repeat")
        yield Markup(words).format(repeats, row["model"], sized(row), rate, ids)


def failure_findings(data: ReportData) -> Iterator[Markup]:
    """Yield one sentence a kind of failure, with its runs and their reasons, and one of the rest.

    The rest was not run: a smaller configuration had run out of memory.
    """
    inferred = pl.col("source") == "inferred"
    for (status,), runs in data.unfinished.filter(~inferred).group_by(
        "status", maintain_order=True
    ):
        named = map(_ending, runs.head(MOST_NAMED).iter_rows(named=True))
        more = runs.height - MOST_NAMED
        reasons = join([*named, *([f"and {more:,} more"] if more > 0 else [])], "; ")
        yield Markup("<strong>{} ended as {}</strong>: {}.").format(
            count(runs.height, "run"), tables.status_words(str(status)), reasons
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
    return tables.failures(runs, data.log_tails)


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


def _named(row: Row) -> Markup:
    """Return a run in a sentence: its configuration and a link to its row."""
    return Markup("{} ({})").format(in_words(row), run_link(row["run_id"]))


def _rate(row: Row) -> str:
    return interval(row["rate"], row["rate_low"], row["rate_high"], row["rate_unit"])


def _mfu(row: Row) -> Markup:
    if row["mfu"] is None:
        return Markup("")
    peak = quantity(row["peak_tflops_per_second"], "TFLOP/s", 4)
    words = ", an MFU of {} by {} over the dense {} peak of {}"
    return Markup(words).format(
        percent(row["mfu"]), row["flops_convention"], row["peak_precision"], peak
    )
