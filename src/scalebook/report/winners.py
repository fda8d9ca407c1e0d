"""The winner of each group of comparable runs in sentences, and how far the others are behind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from scalebook.markup import Markup, run_link, run_links
from scalebook.naming import in_words
from scalebook.quantities import count, interval, percent, quantity, times
from scalebook.report.versus import verdict_on

Row = Mapping[str, Any]


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
    others = [row for row in ranked.iter_rows(named=True) if _again(row) != _again(best)]
    if not others:
        yield _only_repeats(group, ranked, reached)
        return
    words = "{}: {} is the fastest of {}, with {}{}."
    yield Markup(words).format(group, _named(best), count(ranked.height, "run"), *reached)
    if len(others) == 1:
        yield _spread("The other", best, others[0])
        yield from _contested(best, others[0], Markup("These runs"))
    else:
        second = Markup("Against the second, {}, these runs").format(_named(others[0]))
        yield from _contested(best, others[0], second)
        yield _spread("The slowest", best, others[-1])
    yield from _largest_total(ranked, best)


def _again(row: Row) -> str:
    """Return what the repeats of a configuration are all called."""
    return re.sub(r" · repeat [0-9]+", "", row["name"] or row["run_id"])


def _only_repeats(group: Markup, ranked: pl.DataFrame, reached: tuple[str, Markup]) -> Markup:
    """Return how far the repeats of the one configuration of a group are apart."""
    best, last = ranked.row(0, named=True), ranked.row(-1, named=True)
    words = "{}: {} of one configuration, {}, the fastest at {}{}, the slowest {} below it ({})."
    return Markup(words).format(
        group,
        count(ranked.height, "run"),
        re.sub(r", repeat [0-9]+", "", in_words(best)),
        *reached,
        percent(1 - last["rate"] / best["rate"], 2),
        run_links(ranked["run_id"]),
    )


def _spread(role: str, best: Row, worst: Row) -> Markup:
    """Return how far a run is behind the first."""
    return Markup("{}, {}, reached {}: a spread of {}.").format(
        role, _named(worst), _rate(worst), times(best["rate"] / worst["rate"])
    )


def _largest_total(runs: pl.DataFrame, best: Row) -> Iterator[Markup]:
    """Yield the run with the highest total throughput where that is another one."""
    top = runs.sort("tokens_per_second", descending=True).row(0, named=True)
    if top["run_id"] != best["run_id"]:
        ends = (top["tokens_per_second_low"], top["tokens_per_second_high"])
        total = interval(top["tokens_per_second"], *ends, "tokens/s")
        yield Markup("The most in total is {}, with {}.").format(total, _named(top))


def _contested(best: Row, second: Row, beginning: Markup) -> Iterator[Markup]:
    """Yield a sentence where the first two are not surely apart, and what would decide."""
    verdict = verdict_on(best, second)
    if verdict is not None and verdict.word == "cannot tell":
        words = "{} do not settle which of the two is faster. {}"
        yield Markup(words).format(beginning, verdict.advice or "")


def peaks(runs: pl.DataFrame) -> Iterator[Markup]:
    """Yield what the MFU of these sentences is counted by and divided by."""
    columns = ("flops_convention", "peak_precision", "peak_tflops_per_second", "accelerator")
    for row in runs.drop_nulls("mfu").select(columns).unique(maintain_order=True).to_dicts():
        words = "MFU on {} is by <code>{}</code> over its dense {} peak of {}, steady steps alone."
        peak = quantity(row["peak_tflops_per_second"], "TFLOP/s", 4)
        yield Markup(words).format(
            row["accelerator"], row["flops_convention"], row["peak_precision"], peak
        )


def _named(row: Row) -> Markup:
    """Return a run in a sentence: its configuration and a link to its row."""
    return Markup("{} ({})").format(in_words(row), run_link(row["run_id"]))


def _rate(row: Row) -> str:
    return interval(row["rate"], row["rate_low"], row["rate_high"], row["rate_unit"])


def _mfu(row: Row) -> Markup:
    if row["mfu"] is None:
        return Markup("")
    return Markup(", an MFU of {}").format(percent(row["mfu"]))
