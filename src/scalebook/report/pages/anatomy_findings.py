"""Sentences of the anatomy page, from the same breakdowns as its bars and tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scalebook.measure.anatomy import Breakdown
from scalebook.measure.metrics.step_anatomy import RunAnatomy
from scalebook.report.base.frames import ReportData
from scalebook.report.base.markup import Fragment, Markup, bullets, join, paragraphs, run_link
from scalebook.report.base.quantities import count, duration, percent
from scalebook.report.pages.anatomy_page import Row, profiled_seconds, profiles, runs_with

NOTABLE = 0.05  # of the step: below this, exposed communication and idle time are not singled out
SHOWN = 8
COLLECTIVES = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "send_receive": "sends and receives between stages",
    "other": "collectives that their kernel's name does not tell",
}
HOW = "'scalebook run --profile' adds two profiled steps behind the measured ones"


def findings(data: ReportData) -> Fragment:
    """Return what the profiles show, each sentence with its run."""
    sentences = [*_profiled(data), *_bubbles(data), *_slowest(data), *_marks(data), *_missing(data)]
    if not sentences:
        return paragraphs(f"No run has a profile or time marks: {HOW}.")
    return bullets(sentences)


def _profiled(data: ReportData) -> Iterator[Markup]:
    """Yield where the step of each profiled run goes, largest part first."""
    for number, (row, one, label) in enumerate(profiles(data)):
        if number == SHOWN:
            yield Markup("The other profiles are in the table.")
            return
        yield _sentence(row, one, label)


def _sentence(row: Row, one: Breakdown, label: str) -> Markup:
    whole = one.step_seconds or 1.0
    parts = sorted(profiled_seconds(one).items(), key=lambda item: -item[1])
    shares = [f"{percent(time / whole, 2)} {name}" for name, time in parts if time / whole >= 0.005]
    words = "{} ({}): a profiled step of {} is {}.{}{}"
    return Markup(words).format(
        Markup("<strong>{}</strong>").format(label),
        run_link(row["run_id"]),
        duration(whole),
        join(shares),
        _hidden(one),
        _gaps(one, whole),
    )


def _hidden(one: Breakdown) -> str:
    """Return how much of the communication runs behind computation."""
    total, overlapped = one.communication_seconds, one.overlapped_communication_seconds
    if not total or overlapped is None:
        return ""
    exposed = {name: time for name, time in one.exposed_by_collective.items() if time > 0}
    longest = max(exposed, key=lambda name: exposed[name], default=None)
    named = f"; most of the rest is {COLLECTIVES.get(longest, longest)}" if longest else ""
    return (
        f" {percent(overlapped / total, 2)} of its communication is hidden behind compute{named}."
    )


def _gaps(one: Breakdown, whole: float) -> str:
    gap = one.launch_gap_seconds
    if gap is None or gap / whole < NOTABLE:
        return ""
    return f" For {percent(gap / whole)} of the step the device waited for the host's next launch."


def _slowest(data: ReportData) -> Iterator[Markup]:
    """Yield how much longer profiled steps are than measured ones: what profiling costs."""
    ratios: list[tuple[float, str]] = []
    for row, found in runs_with(data):
        median, profile = row["step_seconds_median"], _first(found)
        if median and profile is not None and profile.step_seconds:
            ratios.append((profile.step_seconds / median, row["run_id"]))
    longer = sorted((one for one in ratios if one[0] >= 1 + NOTABLE), reverse=True)
    if not longer:
        return
    words = (
        "The profiler slows its own steps down: {} took {} times as long as measured ones ({}). "
        "Shares are those of the profiled steps, where idle time is too long by about as much."
    )
    high, low = f"{longer[0][0]:.2f}", f"{longer[-1][0]:.2f}"
    times = high if high == low else f"{low} to {high}"
    runs = join(run_link(run_id) for _, run_id in longer[:SHOWN])
    yield Markup(words).format(count(len(longer), "profiled run"), times, runs)


def _bubbles(data: ReportData) -> Iterator[Markup]:
    """Yield the bubble that theory gives each profiled pipeline beside what its profile shows."""
    for row, found in runs_with(data):
        profile, sent = _first(found), found.theory
        if profile is None or sent is None or not sent.bubble or not profile.step_seconds:
            continue
        waits = profile.exposed_by_collective.get("send_receive", 0.0) / profile.step_seconds
        words = (
            "{} ({}): equal stages would be idle for {} of the step; exposed sends and receives, "
            "which hold the waits for other stages, take {} of the profiled one."
        )
        yield Markup(words).format(
            row["label"], run_link(row["run_id"]), percent(sent.bubble, 2), percent(waits, 2)
        )


def _first(found: RunAnatomy) -> Breakdown | None:
    return found.profiles[0] if found.profiles else None


def _marks(data: ReportData) -> Iterator[Markup]:
    """Yield which run waits longest in a part that is no computation, by time marks."""
    rows: list[tuple[float, Any, str]] = []
    for row, found in runs_with(data):
        marked = found.marked
        if marked is None:
            continue
        for name, words in (
            ("pipeline", "waiting for another pipeline stage"),
            ("gradients", "reducing gradients after the backward pass"),
            ("data", "fetching data"),
        ):
            rows.append((marked.parts.get(name, 0.0) / marked.step_seconds, row["run_id"], words))
    worst = max(rows, default=None, key=lambda item: item[0])
    if worst is None:
        return
    share, run_id, words = worst
    if share >= NOTABLE:
        text = "By time marks of the measured steps, {} spends most on a wait: {} of its step {}."
        yield Markup(text).format(run_link(run_id), percent(share), words)
    else:
        yield Markup(
            "By time marks of the measured steps, no run spends {} or more of its step on waits "
            "between stages, on reducing gradients after the backward pass or on data."
        ).format(percent(NOTABLE))


def _missing(data: ReportData) -> Iterator[Markup]:
    """Yield which runs have no profile and how they get one, and profiles without numbers."""
    for run_id, found in data.anatomies.items():
        for problem in found.problems:
            yield Markup("{}: {}").format(run_link(run_id), problem)
    without = [
        row["run_id"]
        for row in data.completed.iter_rows(named=True)
        if not _profiles_of(data, row["run_id"])
    ]
    if without:
        shown = join(map(run_link, without[:SHOWN]))
        more = f" and {len(without) - SHOWN} more" if len(without) > SHOWN else ""
        words = "{} no profile ({}{}): {}."
        has = count(len(without), "run with a throughput has", "runs with a throughput have")
        yield Markup(words).format(has, shown, more, HOW)


def _profiles_of(data: ReportData, run_id: str) -> tuple[Breakdown, ...]:
    found = data.anatomies.get(run_id)
    return found.profiles if found else ()
