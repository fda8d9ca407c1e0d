"""The winner of each group of comparable runs in sentences, and how far the others are behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import polars as pl

from scalebook.report.base.markup import Markup, join, run_link, run_links
from scalebook.report.base.naming import in_words
from scalebook.report.base.quantities import count, interval, percent, quantity, times
from scalebook.report.base.versus import Configuration, configurations, verdict_on

Row = Mapping[str, Any]
Commits = Mapping[str, str]  # by run id: the commit of Scalebook that the run is of
SHORT = 7  # digits of a commit


def group_findings(runs: pl.DataFrame, commits: Commits | None = None) -> Iterator[Markup]:
    """Yield the winner of one group of comparable runs, and how far the others are behind.

    The repeats of a configuration count as one, with the rate of them all. ``commits`` are those of
    the whole report, in the order in which its runs started.
    """
    ranked = configurations(runs.drop_nulls("rate").iter_rows(named=True))
    group = Markup("<strong>{}</strong>").format(runs["group"][0])
    if not ranked:
        words = "{}: {} with a throughput in total, but of how many ranks is not recorded."
        yield Markup(words).format(group, count(runs.height, "run"))
        return
    best, others = ranked[0], ranked[1:]
    reached = (_rate(best), _mfu(best))
    if not others:
        yield _only(group, best, reached)
        return
    amount = sum(len(one.every) for one in ranked)
    words = "{}: {} is the fastest of {}, with {}{}."
    yield Markup(words).format(group, named(best), count(amount, "run"), *reached)
    if len(others) == 1:
        yield _spread("The other", best, others[0])
        yield from _contested(best, others[0], Markup("These runs"))
    else:
        second = Markup("Against the second, {}, these runs").format(named(others[0]))
        yield from _contested(best, others[0], second)
        yield _spread("The slowest", best, others[-1])
    yield from _made_by((best, others[-1]), commits or {})
    yield from _largest_total(ranked, best)


def _only(group: Markup, one: Configuration, reached: tuple[str, Markup]) -> Markup:
    """Return what the one configuration of a group reached, and how far its repeats are apart."""
    if len(one.every) == 1:
        return Markup("{}: one run, {}, reached {}{}.").format(group, named(one), *reached)
    rates = [row["rate"] for row in one.every]
    words = "{}: {} of one configuration, {}, {}reached {}{}; the slowest is {} below the fastest."
    many, apart = count(len(one.every), "run"), percent(1 - min(rates) / max(rates), 2)
    together = "together " if len(one.runs) > 1 else ""
    return Markup(words).format(group, many, named(one), together, *reached, apart)


def _spread(role: str, best: Configuration, worst: Configuration) -> Markup:
    """Return how far a configuration is behind the first."""
    return Markup("{}, {}, reached {}: a spread of {}.").format(
        role, named(worst), _rate(worst), times(best.rate / worst.rate)
    )


def _made_by(ends: tuple[Configuration, Configuration], commits: Commits) -> Iterator[Markup]:
    """Yield which commits of Scalebook a spread is of, where they are several or none is newest."""
    fast, slow = ({commits[id_] for id_ in _ids(one) if id_ in commits} for one in ends)
    if not fast or not slow:
        return
    if fast != slow:
        words = "The two are of different commits of Scalebook ({} and {})."
        yield Markup(words).format(_short(fast), _short(slow))
        return
    newest = list(commits.values())[-1]
    if newest not in fast:
        words = "Both are of an older commit of Scalebook ({}) than the newest runs here ({})."
        yield Markup(words).format(_short(fast), newest[:SHORT])


def _short(commits: Iterable[str]) -> Markup:
    return join(sorted(commit[:SHORT] for commit in commits))


def _ids(one: Configuration) -> Iterator[str]:
    return (row["run_id"] for row in one.runs)


def _largest_total(ranked: list[Configuration], best: Configuration) -> Iterator[Markup]:
    """Yield the configuration with the highest total throughput where that is another one."""
    top = max(ranked, key=lambda one: one.mean("tokens_per_second") or 0.0)
    if top is not best:
        total, (low, high) = top.mean("tokens_per_second") or 0.0, top.interval
        ranks = total / top.rate
        told = interval(total, low and low * ranks, high and high * ranks, "tokens/s")
        yield Markup("The most in total is {}, with {}.").format(told, named(top))


def _contested(best: Configuration, second: Configuration, beginning: Markup) -> Iterator[Markup]:
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


def repeats(runs: pl.DataFrame) -> Iterator[Markup]:
    """Yield the rate of all repeats together of each configuration that has repeats.

    A group of one configuration has that rate in its own sentence.
    """
    for _, group in runs.drop_nulls("rate").group_by("group", maintain_order=True):
        ranked = configurations(group.iter_rows(named=True))
        for one in ranked if len(ranked) > 1 else ():
            if len(one.estimates) > 1:
                words = (
                    "<strong>{}</strong>: {} of {} together reached {}, the spread from run to "
                    "run counted."
                )
                many = count(len(one.estimates), "repeat")
                yield Markup(words).format(one.row["group"], many, named(one), _rate(one))


def named(one: Configuration) -> Markup:
    """Return a configuration in a sentence: what it is called and links to its runs."""
    words = "{} ({})"
    if one.left_out:
        words = "{} ({}; without an interval and left out: {})"
    left_out = run_links(row["run_id"] for row in one.left_out)
    ids = join(run_link(run_id) for run_id in _ids(one))
    return Markup(words).format(in_words(one.row), ids, left_out)


def _rate(one: Configuration) -> str:
    return interval(one.rate, *one.interval, one.row["rate_unit"])


def _mfu(one: Configuration) -> Markup:
    # at one model, size and device the MFU follows the rate, so repeats are pooled alike
    mfu = one.mean("mfu")
    return Markup("") if mfu is None else Markup(", an MFU of {}").format(percent(mfu))
