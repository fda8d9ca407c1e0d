"""What the runs show, in sentences: the winner of each group, warnings, runs without a result."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from scalebook.identity import alike
from scalebook.report.base import html_tables as tables
from scalebook.report.base.frames import ReportData
from scalebook.report.base.markup import (
    Markup,
    bullets,
    by_cause,
    callout,
    join,
    opened,
    paragraphs,
    run_link,
    run_links,
)
from scalebook.report.base.naming import Row, sentence
from scalebook.report.base.quantities import NONE, count, percent, times
from scalebook.report.base.sections import missing_mfu, rising_losses, unranked
from scalebook.report.base.versus import Configuration, configurations, named, rate, verdict_on


def group_findings(runs: pl.DataFrame) -> Iterator[Markup]:
    """Yield the winner of one group of comparable runs, and how far the others are behind.

    The repeats of a configuration count as one, with the rate of them all.
    """
    ranked = configurations(runs.drop_nulls("rate").iter_rows(named=True))
    group = Markup("<strong>{}</strong>").format(runs["group"][0])
    if not ranked:
        words = "{}: {} with a throughput in total, but of how many ranks is not recorded."
        yield Markup(words).format(group, count(runs.height, "run"))
        return
    best, others = ranked[0], ranked[1:]
    # at one model, size and device the MFU follows the rate, so repeats are pooled alike
    mfu = best.mean("mfu")
    reached = (rate(best), "" if mfu is None else f", an MFU of {percent(mfu)}")
    if not others:
        yield _only(group, best, reached)
        return
    amount = sum(len(one.every) for one in ranked)
    words = "{}: {} is the fastest of {}, with {}{}."
    yield Markup(words).format(group, named(best), count(amount, "run"), *reached)
    if len(others) == 1:
        yield _spread("The other", best, others[0])
        yield from _contested(best, others[0], Markup("It"))
    else:
        second = Markup("The runner-up, {},").format(named(others[0]))
        yield from _contested(best, others[0], second)
        yield _spread("The slowest", best, others[-1])


def _only(group: Markup, one: Configuration, reached: tuple[str, str]) -> Markup:
    """Return what the one configuration of a group reached, and how far its repeats are apart."""
    if len(one.every) == 1:
        return Markup("{}: one run, {}, reached {}{}.").format(group, named(one), *reached)
    rates, many = [row["rate"] for row in one.every], count(len(one.every), "run")
    words = "{}: {} of one configuration, {}, {}reached {}{}; the slowest is {} below the fastest."
    together = "together " if len(one.runs) > 1 else ""
    apart = percent(1 - min(rates) / max(rates), 2)
    return Markup(words).format(group, many, named(one), together, *reached, apart)


def _spread(role: str, best: Configuration, worst: Configuration) -> Markup:
    """Return how far a configuration is behind the first."""
    return Markup("{}, {}, reached {}: a spread of {}.").format(
        role, named(worst), rate(worst), times(best.rate / worst.rate)
    )


def _contested(best: Configuration, second: Configuration, beginning: Markup) -> Iterator[Markup]:
    """Yield a sentence where the first two are not surely apart, and what would decide."""
    verdict = verdict_on(best, second)
    if verdict is not None and verdict.word == "cannot tell":
        words = "{} is within the noise. {}"
        yield Markup(words).format(beginning, verdict.advice or "")


def failed(data: ReportData) -> Markup:
    """Return the runs that gave no result, each with its reason and the end of its log."""

    def tail(row: Row) -> Markup:
        lines = data.log_tails.get(row["run_id"], ())
        shown = Markup("<pre>{}</pre>").format("\n".join(lines))
        return opened(f"{len(lines)} lines", shown) if lines else Markup(NONE)

    columns = (
        *(tables.RUN, tables.STATUS, tables.RAN),
        tables.text("reason", "Reason", prose=True),
        tables.Column("", "End of the log", tail, numeric=False, wide=True),
    )
    runs = data.runs.filter(pl.col("tokens_per_second").is_null())
    reasons = runs.with_columns(pl.col("reason").fill_null(pl.col("throughput_reason")))
    none = "Every run completed and has a throughput."
    return tables.table(reasons.iter_rows(named=True), columns, "failed", empty=none)


def behind(data: ReportData) -> Markup:
    """Return what is behind the first screen: warnings, and where findings and runs are."""
    links = (
        'The findings of each group and every run are on the page <a href="throughput.html">'
        'Throughput and MFU</a>, what failed is on <a href="reliability.html">Reliability</a>.'
    )
    box = warnings(data)
    shown = opened("Before you use these numbers", box, "sb-fold") if box else box
    return Markup("<h2>Behind these answers</h2>") + shown + paragraphs(Markup(links))


def throughput(data: ReportData) -> Markup:
    """Return the winner of each group, runs that did not learn, and those not compared."""
    groups = data.ranked.group_by("group", maintain_order=True)
    winners = (join(group_findings(runs), " ") for _, runs in groups)
    said = (*rising_losses(data.completed), *winners, *unranked(data))
    return bullets(said, empty="No run completed with a throughput.")


def warnings(data: ReportData) -> Markup:
    """Return what a reader must know before using a number; nothing where all is well."""
    return callout("Before you use these numbers", _warnings(data))


def _warnings(data: ReportData) -> Iterator[Markup]:
    runs = data.completed
    for row in data.runs.filter(pl.col("status") == "void").iter_rows(named=True):
        yield Markup("{} is not counted. {}").format(run_link(row["run_id"]), row["reason"])
    if "cpu" in set(runs["platform"]):
        yield Markup(
            "Runs on <code>cpu</code> show that training works and how layouts compare inside one "
            "machine. Their throughput says nothing about any accelerator."
        )
    foreign = data.runs.filter(pl.col("source") != "measured")
    for (source,), rows in foreign.group_by("source", maintain_order=True):
        words = "{} <strong>{}</strong>, not measured here: marked in every table and chart."
        yield Markup(words).format(count(rows.height, "run is", "runs are"), source)
    yield from _packed(data)
    for run_id, sentences in data.differences.items():
        words = "{} <strong>did not run as requested</strong>: {}"
        yield Markup(words).format(run_link(run_id), " ".join(sentences))
    yield from missing_mfu(runs)
    yield from _thin_windows(data)
    if data.problems:
        yield Markup("{} could not be read: see the end of this page.").format(
            count(len(data.problems), "part of the run files", "parts of the run files")
        )


def _packed(data: ReportData) -> Iterator[Markup]:
    """Yield the runs whose samples hold several documents, with what their FLOPs count."""
    packed = data.completed.filter(pl.col("packed_documents") > 1)
    columns = ("packed_documents", "sequence_length")
    for (many, length), rows in packed.group_by(columns, maintain_order=True):
        words = (
            "{} documents are packed into a sample of {:,} tokens by {}. Attention stays inside "
            "documents, so FLOPs, TFLOP/s and MFU count it over {:,.0f} tokens."
        )
        yield Markup(words).format(many, length, run_links(rows["run_id"]), length / many)


def _thin_windows(data: ReportData) -> Iterator[Markup]:
    """Yield the completed runs that measured nothing, or too little to rely on."""
    nothing = data.runs.filter(
        pl.col("status") == "completed", pl.col("tokens_per_second").is_null()
    )
    unsure = data.completed.filter(pl.col("tokens_per_second_low").is_null())
    for runs, words, column in (
        (nothing, "{} completed without a throughput ({}): {}", "throughput_reason"),
        (unsure, "{} measured without an interval ({}): {}", "interval_reason"),
    ):
        reasons = runs[column].fill_null("no reason is recorded.")
        for reason, run_ids in by_cause(zip(reasons, runs["run_id"], strict=True)):
            yield Markup(words).format(count(len(run_ids), "run"), run_links(run_ids), reason)
    changing = data.completed.filter(pl.col("steady_change") > 0)
    if changing.height:
        ids = run_links(changing["run_id"])
        most = percent(changing["steady_change"].max(), 2)  # pyright: ignore[reportArgumentType]
        words = (
            "The steps of {} still drift or shift, by up to {} over their window, less than the "
            "1 % that would refuse them; their intervals hold it: {}."
        )
        yield Markup(words).format(count(changing.height, "run"), most, ids)


def notes(data: ReportData) -> Markup:
    """Return the notes in the records of the runs; nothing where there are none."""
    said = [(sentence(one), run_id) for run_id, notes in data.notes.items() for one in notes]
    items = (
        Markup("{} ({})").format(same[0][0], run_links(run_id for _, run_id in same))
        for same in alike(said, lambda pair: pair[0])
    )
    return callout("Notes of the runs", items)
