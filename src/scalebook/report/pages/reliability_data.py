"""What the runs of a report tell about checkpoints and drills, a row a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import polars as pl

from scalebook import store
from scalebook.identity import alike
from scalebook.measure.reliability import (
    CheckpointRecord,
    DrillRecord,
    read_checkpoints,
    read_drill,
)
from scalebook.report.base.frames import ReportData
from scalebook.report.base.markup import short_id

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Saved:
    """The checkpoints of one run; ``run`` is its row of the report."""

    run: Mapping[str, Any]
    saves: tuple[CheckpointRecord, ...]
    loads: tuple[CheckpointRecord, ...]
    steps_seconds: float | None  # all recorded steps together
    usual_step: float | None  # seconds, median of the measured ones
    last_step: int | None

    def row(self) -> dict[str, Any]:
        """Return the figures of a table: medians over the saves, and over the loads, of the run."""
        waited = _median([entry.blocking_seconds for entry in self.saves])
        step = self.usual_step
        return {
            **self.run,
            "saves": len(self.saves),
            "mode": self.mode,
            "size_gib": (self.saves or self.loads)[-1].size_bytes / GIB,
            "save_seconds": _median([entry.seconds for entry in self.saves]),
            "blocking_seconds": waited,
            "save_rate": _median([entry.gib_per_second for entry in self.saves]),
            "waited_steps": waited / step if waited is not None and step else None,
            "waited_share": self.waited_share,
            "load_seconds": _median([entry.seconds for entry in self.loads]),
            "load_rate": _median([entry.gib_per_second for entry in self.loads]),
        }

    @property
    def mode(self) -> str | None:
        """How the checkpoints were saved; None where none was."""
        if not self.saves:
            return None
        return "asynchronous" if self.saves[-1].asynchronous else "synchronous"

    @property
    def waited_share(self) -> float | None:
        """The share of training that was waiting for saves; None without steps or saves.

        None also where processes were started again: the waits of steps that were done anew are in
        no step that counts.
        """
        restarted = any(entry.restart for entry in (*self.saves, *self.loads))
        if not self.saves or not self.steps_seconds or restarted:
            return None
        waited = sum(entry.blocking_seconds for entry in self.saves)
        # A wait is part of the next step; there is none after the last.
        after = [e.blocking_seconds for e in self.saves if e.step >= (self.last_step or 0)]
        return waited / (self.steps_seconds + sum(after))


@dataclass(frozen=True, slots=True)
class Drilled:
    """A drill and the row of its run."""

    run: Mapping[str, Any]
    drill: DrillRecord


@dataclass(frozen=True, slots=True)
class Reliability:
    """Everything that the page shows beside the statuses, and lines that could not be read."""

    saved: tuple[Saved, ...]
    drills: tuple[Drilled, ...]
    problems: tuple[str, ...]


def reliability(data: ReportData) -> Reliability:
    """Return the checkpoints and drills of every run of the report, in the order of its table."""
    places = {path.name: path for path in store.run_directories(data.folder)}
    times = _times(data.steps)
    saved: list[Saved] = []
    drills: list[Drilled] = []
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
            drills.append(Drilled(run, drill))
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


def _saved(
    run: Mapping[str, Any], entries: Sequence[CheckpointRecord], times: Sequence[Any]
) -> Saved:
    kinds = {kind: tuple(e for e in entries if e.kind == kind) for kind in ("save", "load")}
    return Saved(run, kinds["save"], kinds["load"], *times)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def bar_label(run: Mapping[str, Any]) -> str:
    """Return what names a run in a chart that shows runs of one configuration side by side.

    Its configuration's hash would not tell them apart; the time at which it started does.
    """
    run_id: str = run["run_id"]
    return f"{run['label']}, {run_id if short_id(run_id) == run_id else run_id[:15]}"


def failure_kinds(runs: pl.DataFrame) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each kind of failure, the most frequent first: status, what happened, and its runs.

    Failures are of one kind where the trainer recorded the same cause. Where a record has none,
    only equal reasons are of one kind: no part of a sentence says what it has in common with
    another.
    """
    no_failure = pl.col("status").is_in(("completed", "void"))
    failed = list(runs.filter(~no_failure).iter_rows(named=True))
    for same in sorted(alike(failed, _failure), key=lambda same: -len(same)):
        first = same[0]
        words = first["reason"] or first["cause"] or "no reason recorded"
        if len(same) > 1 and first["cause"]:
            words = first["cause"].replace("_", " ").replace("gpu", "GPU")
        yield first["status"], words.rstrip("."), [row["run_id"] for row in same]


def _failure(run: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the kind of a run's failure; None where its record says nothing of it."""
    what = run["cause"] or run["reason"]
    return (run["status"], "cause" if run["cause"] else "reason", what) if what else None
