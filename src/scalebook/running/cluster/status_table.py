"""The current state of the runs of a folder: waiting, training, ended."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scalebook import ownership, query, store
from scalebook.errors import RecordError
from scalebook.record import object_of, seconds_between, text_of
from scalebook.running import finish_run, progress
from scalebook.running.cluster.jobs import Ask, JobState, SlurmJob, queue

RECENT_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run: ``state`` is Slurm's or our word for it, ``detail`` why it is in it."""

    run_id: str
    job_id: str | None
    state: str
    steps_done: int
    steps_asked: int | None
    seconds: float | None  # since it was submitted, started, or that it took
    detail: str | None

    def cells(self) -> tuple[str, ...]:
        asked = "?" if self.steps_asked is None else str(self.steps_asked)
        took = "-" if self.seconds is None else progress.duration(self.seconds)
        steps = f"{self.steps_done}/{asked}"
        return (self.run_id, self.job_id or "-", self.state, steps, took, self.detail or "")


def rows(runs: Path, everything: bool = False, ask: Ask = query.ask) -> list[RunRow]:
    """Return the runs of a folder, those that have ended first; the queue is asked once.

    Runs that ended more than a day ago are left out, unless ``everything``.
    """
    found: list[RunRow] = []
    now = datetime.now(UTC).isoformat()
    for directory in store.run_directories(runs):
        try:
            record = store.read_record(directory)
        except RecordError as error:
            found.append(RunRow(directory.name, None, "unreadable", 0, None, None, str(error)))
            continue
        age = seconds_between(record.finished_at, now)
        if everything or (age is not None and age < RECENT_SECONDS):
            row = RunRow(
                record.run_id,
                text_of(object_of(record.environment.get("slurm")).get("job_id")),
                record.status.replace("_", " "),
                _steps(directory),
                _whole(record.requested.get("steps")),
                seconds_between(record.started_at, record.finished_at),
                record.reason,
            )
            found.append(row)
    partials = store.partial_directories(runs)
    waits = any(SlurmJob.read(partial) for partial in partials)
    states = queue(os.getuid(), ask) if waits else {}
    found += [row for partial in partials if (row := _unfinished(partial, states)) is not None]
    return found


def _unfinished(partial: Path, states: Mapping[str, JobState] | None) -> RunRow | None:
    job = SlurmJob.read(partial)
    requested = store.read_object(partial / "config.json")
    if job is None:
        here = ownership.is_live(partial)
        pods = store.read_object(partial / ownership.JOB_FILE).get("scheduler") == "kubernetes"
        state = "in Kubernetes" if pods else "training here" if here else "left behind"
        detail = None if here else "its process is gone: scalebook recover"
        started = _started(partial)
    else:
        state, detail = _of_job(job, states)
        started = _started(partial) or job.submitted_at
    return RunRow(
        finish_run.run_id(partial),
        job.job_id if job else None,
        state,
        _steps(partial),
        _whole(requested.get("steps")),
        seconds_between(started, datetime.now(UTC).isoformat()),
        detail,
    )


def _started(partial: Path) -> str | None:
    return text_of(store.read_object(partial / finish_run.LAUNCH_FILE).get("started_at"))


def _of_job(job: SlurmJob, states: Mapping[str, JobState] | None) -> tuple[str, str | None]:
    """Return state and detail of a job that has no record yet."""
    if states is None:
        return "unknown", "Slurm does not answer here"
    state = states.get(job.job_id)
    if state is None:
        return "ended", "its record is not written yet"
    names = {"PENDING": "queued", "RUNNING": "training"}
    return names.get(state.name, state.name.lower().replace("_", " ")), state.reason or None


def _steps(directory: Path) -> int:
    step = progress.Tail(directory / "steps.jsonl").read()
    return step.step if step else 0


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None
