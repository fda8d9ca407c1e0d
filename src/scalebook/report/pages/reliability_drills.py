"""Sentences, chart and table of the recovery drills of a report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from scalebook.measure.reliability import DrillRecord
from scalebook.report.base import html_tables as tables
from scalebook.report.base.html_tables import Column
from scalebook.report.base.markup import Fragment, Markup, bullets, paragraphs, run_link
from scalebook.report.base.quantities import count, duration, percent
from scalebook.report.charts import reliability_charts as charts
from scalebook.report.charts.figure import Figure
from scalebook.report.pages.reliability_data import Drilled, Reliability, bar_label

PART_FIELDS = (
    "detection_seconds",
    "start_seconds",
    "build_seconds",
    "load_seconds",
    "step_seconds",
)


def findings(found: Reliability) -> Fragment:
    """Return each drill in a sentence, or how to run one."""
    if not found.drills:
        return paragraphs(
            Markup(
                "No recovery drill was run. <code>scalebook drill</code> trains, kills a rank, "
                "lets torchrun start all processes again, and measures how long it takes until "
                "training goes on from the last checkpoint, and whether the losses are the same."
            )
        )
    return bullets([_sentence(item) for item in found.drills])


def _sentence(item: Drilled) -> Markup:
    drill = item.drill
    when = "while a checkpoint was saved" if drill.kill_during == "save" else "between two saves"
    verdict = "Recovered" if drill.passed else "Not recovered as it should"
    words = Markup("<strong>{}</strong> on {}: rank {} of {} ({}) died after step {}, {}. {} {}")
    return words.format(
        *(verdict, item.run["platform"], drill.kill_rank, item.run["model"]),
        run_link(item.run["run_id"]),
        *(drill.last_step, when, _return(drill), _losses(drill)),
    )


def _return(drill: DrillRecord) -> str:
    """Return in words when training went on, and from where."""
    if drill.next_step_seconds is None:
        return "Training did not go on."
    start = (
        "from its first step, without a checkpoint"
        if drill.resumed_step is None
        else f"from the checkpoint of step {drill.resumed_step}"
    )
    lost = count(drill.steps_lost or 0, "step")
    parts = [
        f"{words} {duration(getattr(drill, name))}"
        for name, words in (("detection_seconds", "to notice"), ("load_seconds", "to load"))
        if getattr(drill, name) is not None
    ]
    among = f" ({', '.join(parts)})" if parts else ""
    regained = (
        ""
        if drill.regained_seconds is None
        else f", and the lost work was regained after {duration(drill.regained_seconds)}"
    )
    return (
        f"A step was finished again {duration(drill.next_step_seconds)} after the kill{among}, "
        f"{start}; {lost} had to be done again{regained}."
    )


def _losses(drill: DrillRecord) -> str:
    difference = drill.largest_loss_difference
    if difference is None:
        return "No loss could be compared."
    against = "with an uninterrupted run" if drill.reference_run else "between steps done twice"
    compared = f"{count(drill.compared_steps, 'loss', 'losses')} compared {against}"
    if drill.identical:
        return f"All {compared} are identical."
    return f"The {compared} differ by up to {percent(difference)}."


def chart(found: Reliability) -> Figure | None:
    """Return the time line of each drill; None where there is none."""
    rows = [part for item in found.drills for part in _parts(item)]
    return charts.timeline(pl.DataFrame(rows, schema=charts.TIMELINE_SCHEMA))


def _parts(item: Drilled) -> Iterator[dict[str, Any]]:
    """Yield the parts of a recovery, each after the last; up to the first that is not known."""
    begins = 0.0
    kept = {"label": bar_label(item.run), **{key: item.run[key] for key in ("run_id", "source")}}
    for place, (part, name) in enumerate(zip(charts.PARTS, PART_FIELDS, strict=True)):
        seconds: float | None = getattr(item.drill, name)
        if seconds is None:
            return
        ends = begins + seconds
        times = {"seconds": seconds, "begins": begins, "ends": ends}
        yield {**kept, "part": part, "place": place, **times}
        begins = ends


def table(found: Reliability) -> Fragment:
    """Return the timings of every drill."""
    if not found.drills:
        return Fragment(Markup(""))
    columns = (
        *(tables.RUN, tables.RAN),
        tables.text("verdict", "Verdict"),
        tables.plain("kill_rank", "Rank"),
        tables.text("kill_during", "Killed in a"),
        tables.plain("last_step", "After step"),
        tables.plain("steps_lost", "Steps lost"),
        _time("detection_seconds", "Notice"),
        _time("start_seconds", "Start"),
        _time("build_seconds", "Build"),
        _time("load_seconds", "Load"),
        _time("step_seconds", "First step"),
        _time("next_step_seconds", "Together"),
        _time("regained_seconds", "Regained", "kill to the first step not done before"),
        Column("largest_loss_difference", "Loss differs", _difference, hint="largest, relative"),
    )
    return tables.table((_row(item) for item in found.drills), columns, "drills")


def _row(item: Drilled) -> dict[str, Any]:
    verdict = "recovered" if item.drill.passed else "not as it should"
    return {**item.run, **item.drill.model_dump(), "verdict": verdict}


def _time(key: str, label: str, hint: str = "") -> Column:
    return Column(key, label, lambda row: duration(row.get(key)), hint=hint)


def _difference(row: tables.Row) -> str:
    difference = row["largest_loss_difference"]
    return "identical" if difference == 0 else percent(difference)
