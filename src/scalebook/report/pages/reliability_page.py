"""The reliability page: how runs ended, what checkpoints cost, and recovery drills."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import altair as alt
import polars as pl

from scalebook import store
from scalebook.identity import alike
from scalebook.measure.reliability import (
    CheckpointRecord,
    DrillRecord,
    read_checkpoints,
    read_drill,
)
from scalebook.report.base import html_tables as tables
from scalebook.report.base import sections
from scalebook.report.base.frames import ReportData
from scalebook.report.base.html_tables import Column, Row
from scalebook.report.base.markup import Markup, bullets, join, run_link, run_links
from scalebook.report.base.naming import model_title, platform_title
from scalebook.report.base.quantities import count, duration, number, percent, quantity
from scalebook.report.charts.figure import Figure, drawn, first, names, rows, tooltips

GIB = 2**30
MOST = 30  # runs of a chart
ROW_HEIGHT = 34
TIMES = {  # by column: what is over when it is
    "blocking_seconds": "training waits for a save",
    "save_seconds": "a save is complete",
    "load_seconds": "a load",
}
PARTS = {  # of a recovery, in their order: their names in the chart and in the table
    "detection_seconds": ("torchrun notices", "Notice"),
    "start_seconds": ("processes start", "Start"),
    "build_seconds": ("they connect and build the model", "Build"),
    "load_seconds": ("the checkpoint is loaded", "Load"),
    "step_seconds": ("the first step", "First step"),
}


@dataclass(frozen=True, slots=True)
class Reliability:
    """Everything that the page shows besides the statuses, and lines that could not be read."""

    saved: tuple[Row, ...]  # of a run with checkpoints: its row of the report and their figures
    drills: tuple[tuple[Row, DrillRecord], ...]  # each with its run
    problems: tuple[str, ...]


def reliability(data: ReportData) -> Reliability:
    """Return the checkpoints and drills of every run of the report, in the order of its table."""
    places = {path.name: path for path in store.run_directories(data.folder)}
    times = _times(data.steps)
    saved: list[Row] = []
    drills: list[tuple[Row, DrillRecord]] = []
    problems: list[str] = []
    for run in data.runs.iter_rows(named=True):
        path = places.get(run["run_id"])
        if path is None:
            continue
        entries, broken = read_checkpoints(path)
        problems += [f"{path.name}: {sentence}" for sentence in broken]
        if entries:
            saved.append(_saved(run, entries, times.get(run["run_id"], [None] * 3)))
        drill = read_drill(path)
        if drill is not None:
            drills.append((run, drill))
    return Reliability(tuple(saved), tuple(drills), tuple(problems))


def _times(steps: pl.DataFrame) -> dict[str, list[Any]]:
    """Return of each run: seconds of all steps, median seconds of a measured one, last step."""
    seconds = pl.col("step_seconds")
    found = steps.group_by("run_id").agg(
        seconds.sum().alias("all"),
        seconds.filter(pl.col("phase") == "measured").median().alias("usual"),
        pl.col("step").max().alias("last"),
    )
    return {run_id: times for run_id, *times in found.iter_rows()}


def _saved(run: Row, entries: Sequence[CheckpointRecord], times: Sequence[Any]) -> dict[str, Any]:
    """Return a run with the figures of its checkpoints: medians over its saves and its loads."""
    saves, loads = ([one for one in entries if one.kind == kind] for kind in ("save", "load"))
    every, step, last = times
    waited = _median(one.blocking_seconds for one in saves)
    modes = [("synchronous", "asynchronous")[one.asynchronous] for one in saves]
    return {
        **run,
        "saves": len(saves),
        "mode": modes[-1] if modes else None,
        "size_gib": (saves or loads)[-1].size_bytes / GIB,
        "save_seconds": _median(one.seconds for one in saves),
        "blocking_seconds": waited,
        "save_rate": _median(one.gib_per_second for one in saves),
        "waited_steps": waited / step if waited is not None and step else None,
        "waited_share": _waited_share(saves, loads, every, last),
        "load_seconds": _median(one.seconds for one in loads),
        "load_rate": _median(one.gib_per_second for one in loads),
    }


def _waited_share(
    saves: Sequence[CheckpointRecord],
    loads: Sequence[CheckpointRecord],
    steps_seconds: float | None,
    last_step: int | None,
) -> float | None:
    """Return the share of training that was waiting for saves; None without steps or saves.

    None also where processes were started again: the waits of steps that were done anew are in
    no step that counts.
    """
    if not saves or not steps_seconds or any(one.restart for one in (*saves, *loads)):
        return None
    # A wait is part of the next step; there is none after the last.
    after = sum(one.blocking_seconds for one in saves if one.step >= (last_step or 0))
    return sum(one.blocking_seconds for one in saves) / (steps_seconds + after)


def _median(values: Iterable[float | None]) -> float | None:
    return median(known) if (known := [value for value in values if value is not None]) else None


def failure_kinds(failed: pl.DataFrame) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each kind of failure, the most frequent first: status, what happened, and its runs.

    Failures are of one kind where the trainer recorded the same cause. Where a record has none,
    only equal reasons are of one kind: no part of a sentence says what it has in common with
    another.
    """
    kinds = alike(failed.iter_rows(named=True), _failure)
    for same in sorted(kinds, key=lambda same: -len(same)):
        first = same[0]
        cause = _cause(first)
        words = first["reason"] or (cause or "no reason recorded").replace("_", " ")
        if len({row["reason"] for row in same}) > 1:
            words = f"The first: {words}"
        yield first["status"], words.rstrip("."), [row["run_id"] for row in same]


def _failure(run: Row) -> tuple[str, ...] | None:
    """Return the kind of a run's failure; None where its record says nothing of it."""
    cause = _cause(run)
    what = cause or run["reason"]
    return (run["status"], "cause" if cause else "reason", what) if what else None


def _cause(run: Row) -> str | None:
    """Return the recorded cause; older records of a GPU that ran out of memory have none."""
    older = run["status"] == "out_of_memory" and run["platform"] not in (None, "cpu")
    return run["cause"] or ("gpu_memory" if older else None)


def statuses(data: ReportData) -> Markup:
    """Return how the runs of the report ended, and what those that failed have in common."""
    counts = data.runs.group_by("status").len().sort("len", "status", descending=[True, False])
    ends = join(f"{n} {tables.status_words(status)}" for status, n in counts.iter_rows())
    first = Markup("{}: {}.").format(count(data.runs.height, "run"), ends)
    return bullets([first, *failures(data), *filter(None, [sections.open_ended(data)])])


def failures(data: ReportData) -> Iterator[Markup]:
    """Yield a sentence per kind of failure, and one of the configurations that were not tried."""
    inferred = pl.col("source") == "inferred"
    for status, words, run_ids in failure_kinds(sections.failed(data).filter(~inferred)):
        many, ended = count(len(run_ids), "run"), tables.failure_words(status)
        said = Markup("<strong>{}</strong>: {} ({}). {}.")
        yield said.format(ended, many, run_links(run_ids), words)
    skipped = data.unfinished.filter(inferred)["run_id"]
    if len(skipped):
        words = "<strong>{} not run</strong>: a smaller one had run out of memory ({})."
        many = count(len(skipped), "configuration was", "configurations were")
        yield Markup(words).format(many, run_links(skipped))


def checkpoint_findings(found: Reliability) -> Markup:
    """Return what checkpoints cost on each platform and in each mode, or how to measure it."""
    none = Markup(
        "No run saved a checkpoint. <code>scalebook run --set checkpoint_interval=10"
        "</code> saves every tenth step and measures what that costs; "
        "<code>--set checkpoint_async=true</code> writes while training continues."
    )
    rows = [row for row in found.saved if row["saves"]]
    groups = alike(rows, lambda row: (row["platform"], row["model"], row["mode"]))
    return bullets(map(_cost, groups), empty=none)


def _cost(rows: Sequence[Row]) -> Markup:
    first = rows[0]
    words = Markup(
        "<strong>{}</strong> on {}, {}: {} of {} in {}. A save is complete after {}{}, and "
        "training waits {} for it{}."
    )
    rates, steps, shares = (_known(rows, n) for n in ("save_rate", "waited_steps", "waited_share"))
    rate = f" ({_span(rates, lambda value: quantity(value, 'GiB/s'))})" if rates else ""
    note = f", as long as {_span(steps, number)} steps" if steps else ""
    note += f". Waiting takes {_span(shares, percent)} of the training time" if shares else ""
    return words.format(
        *(model_title(first["model"]), platform_title(first["platform"]), first["mode"]),
        count(sum(row["saves"] for row in rows), "save"),
        _span(_known(rows, "size_gib"), lambda value: quantity(value, "GiB")),
        count(len(rows), "run"),
        _span(_known(rows, "save_seconds"), duration),
        rate,
        _span(_known(rows, "blocking_seconds"), duration),
        note,
    )


def _known(rows: Sequence[Row], name: str) -> list[float]:
    return [row[name] for row in rows if row[name] is not None]


def _span(values: list[float], show: Callable[[float], str]) -> str:
    """Return the smallest and the largest value, or one where they print alike."""
    low, high = show(min(values)), show(max(values))
    return low if low == high else f"{low} to {high}"


def checkpoint_chart(found: Reliability) -> Figure | None:
    """Return the median times of each run's saves and loads; None where no run has a checkpoint."""
    facts = ("run_id", "label", "source", "size_gib")
    bars = [
        {key: row[key] for key in facts} | {"kind": kind, "seconds": row[name]}
        for row in found.saved
        for name, kind in TIMES.items()
        if row[name] is not None
    ]
    kinds = list(TIMES.values())
    tips = (("kind", "time until"), ("seconds", "", ".4~g"), ("size_gib", "GiB", ".4~g"))
    words = "{} with checkpoints; the longest time is {}, until {}."
    x = alt.X("seconds:Q", title="seconds, median of the run")
    offset = alt.YOffset("kind:N", sort=kinds)
    return _bars(bars, "run", "seconds", words, ("kind", kinds, tips), x=x, yOffset=offset)


def _bars(
    bars: Sequence[Row], what: str, size: str, words: str, parts: tuple[str, list[str], Any],
    **places: Any,
) -> Figure | None:  # fmt: skip
    """Return bars in one row per run, or None for no bar.

    ``parts`` are the column that they are coloured by, its values in their order, and what a bar
    shows under the pointer. ``words`` take how many rows there are, the largest ``size`` (s), and
    the part that has it.
    """
    if not bars:
        return None
    column, order, tips = parts
    labels, data, cut = first(pl.DataFrame(bars), MOST)
    chart = alt.Chart(rows(data)).mark_bar().encode(
        y=names("label", labels),
        color=alt.Color(f"{column}:N", title=None, scale=alt.Scale(domain=order)),
        tooltip=tooltips("run_id", "label", "source", *tips),
        **places,
    )  # fmt: skip
    largest = data.sort(size).row(-1, named=True)
    said = words.format(count(len(labels), what), duration(largest[size]), largest[column])
    return drawn(chart, said, ROW_HEIGHT * len(labels) + 10, cut)


def checkpoint_table(found: Reliability) -> Markup:
    """Return size, times and rates of each run's checkpoints."""
    columns = (
        *(tables.RUN, tables.RAN),
        tables.text("mode", "Mode"),
        tables.plain("saves", "Saves"),
        tables.plain("size_gib", "Size", "GiB"),
        tables.time("save_seconds", "Save", "from begin until it would survive a kill"),
        tables.time("blocking_seconds", "Waited", "of it, the time that training stood still"),
        tables.plain("save_rate", "Rate", "GiB/s"),
        tables.plain("waited_steps", "Waited", "steps", hint="over the run's median step"),
        tables.share("waited_share", "Of training", "all saves over all steps"),
        tables.time("load_seconds", "Load", "until training can continue"),
        tables.plain("load_rate", "Rate", "GiB/s"),
    )
    none = "No checkpoint was saved or loaded."
    return tables.table(found.saved, columns, "checkpoints", empty=none)


def findings(found: Reliability) -> Markup:
    """Return each drill in a sentence, or how to run one."""
    none = Markup(
        "No recovery drill was run. <code>scalebook drill</code> trains, kills a rank, "
        "lets torchrun start all processes again, and measures how long it takes until "
        "training continues from the last checkpoint, and whether the losses are the same."
    )
    return bullets((_sentence(*one) for one in found.drills), empty=none)


def _sentence(run: Row, drill: DrillRecord) -> Markup:
    when = "while a checkpoint was saved" if drill.kill_during == "save" else "between two saves"
    verdict = "Recovered" if drill.passed else "Not recovered as expected"
    words = Markup("<strong>{}</strong> on {}: rank {} of {} ({}) died after step {}, {}. {} {}")
    return words.format(
        verdict,
        platform_title(run["platform"]),
        drill.kill_rank,
        model_title(run["model"]),
        run_link(run["run_id"]),
        drill.last_step,
        when,
        _return(drill),
        _losses(drill),
    )


def _return(drill: DrillRecord) -> str:
    """Return in words when training continued, and from where."""
    if drill.next_step_seconds is None:
        return "Training did not continue."
    start = f"from the checkpoint of step {drill.resumed_step}"
    if drill.resumed_step is None:
        start = "from its first step, without a checkpoint"
    lost = count(drill.steps_lost or 0, "step")
    parts = [
        f"{duration(getattr(drill, name))} {words}"
        for name, words in (("detection_seconds", "to notice"), ("load_seconds", "to load"))
        if getattr(drill, name) is not None
    ]
    among = f" ({', '.join(parts)})" if parts else ""
    if drill.regained_seconds is not None:
        regained = f", and the lost work was regained after {duration(drill.regained_seconds)}"
    else:
        regained = ""
    return (
        f"A step was finished again {duration(drill.next_step_seconds)} after the kill{among}, "
        f"{start}; {lost} had to be repeated{regained}."
    )


def _losses(drill: DrillRecord) -> str:
    difference = drill.largest_loss_difference
    if difference is None:
        return "No loss could be compared."
    against = "with an uninterrupted run" if drill.reference_run else "between repeated steps"
    compared = f"{count(drill.compared_steps, 'loss', 'losses')} compared {against}"
    if drill.identical:
        return f"All {compared} are identical."
    return f"The {compared} differ by up to {percent(difference)}."


def chart(found: Reliability) -> Figure | None:
    """Return one bar per drill of what followed the kill, in its order; None without a drill."""
    bars = [part for one in found.drills for part in _parts(*one)]
    tips = ("part", ("seconds", "", ".4~g"), ("ends", "seconds after the kill", ".4~g"))
    words = "{}; the slowest had a step finished {} after the kill."
    order = [part for part, _ in PARTS.values()]
    x = alt.X("begins:Q", title="seconds after the kill")
    return _bars(bars, "drill", "ends", words, ("part", order, tips), x=x, x2="ends:Q")


def _parts(run: Row, drill: DrillRecord) -> Iterator[dict[str, Any]]:
    """Yield the parts of a recovery, each after the last; up to the first that is not known."""
    ends, kept = 0.0, {key: run[key] for key in ("label", "run_id", "source")}
    for name, (part, _) in PARTS.items():
        seconds: float | None = getattr(drill, name)
        if seconds is None:
            return
        begins, ends = ends, ends + seconds
        yield {**kept, "part": part, "seconds": seconds, "begins": begins, "ends": ends}


def table(found: Reliability) -> Markup:
    """Return the timings of every drill."""
    columns = (
        *(tables.RUN, tables.RAN),
        tables.text("verdict", "Verdict"),
        tables.plain("kill_rank", "Rank"),
        tables.text("kill_during", "Killed in a"),
        tables.plain("last_step", "After step"),
        tables.plain("steps_lost", "Steps lost"),
        *(tables.time(name, label) for name, (_, label) in PARTS.items()),
        tables.time("next_step_seconds", "Together"),
        tables.time("regained_seconds", "Regained", "kill to the first new step"),
        Column("largest_loss_difference", "Loss differs", _difference, hint="largest, relative"),
    )
    verdicts = {True: "recovered", False: "not as expected"}
    rows = (
        {**run, **drill.model_dump(), "verdict": verdicts[drill.passed]}
        for run, drill in found.drills
    )
    return tables.table(rows, columns, "drills")


def _difference(row: Row) -> str:
    difference = row["largest_loss_difference"]
    return "identical" if difference == 0 else percent(difference)
