"""What a job on a cluster and its submitter leave in a run directory until it has its record."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from scalebook import store, untrusted
from scalebook.ownership import JOB_FILE
from scalebook.running.finish_run import now
from scalebook.store import read_object

EVENTS = "job.jsonl"  # written by the job itself: start and end of each attempt


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a run in its job; times as records keep them, None where not noted."""

    started_at: str | None
    ended_at: str | None
    exit_code: int | None  # None: the job did not live to note it
    asked_to_end: bool
    restart: int  # how often the job had been requeued

    @property
    def seconds(self) -> float | None:
        """How long the attempt lasted, None where its end was not noted."""
        try:
            begin = datetime.fromisoformat(self.started_at or "")
            return (datetime.fromisoformat(self.ended_at or "") - begin).total_seconds()
        except (ValueError, TypeError):  # no time, or one of the two without its zone
            return None


@dataclass(frozen=True, slots=True)
class Job:
    """The job that a run directory waits for."""

    job_id: str
    submitted_at: str | None
    runs: int  # of the same job

    @classmethod
    def read(cls, directory: Path) -> Job | None:
        """Return the job of a directory, None where it waits for none."""
        value = read_object(directory / JOB_FILE)
        job_id, runs = value.get("job_id") or _noted_id(directory), value.get("runs")
        if not isinstance(job_id, str):
            return None
        return cls(job_id, _text(value.get("submitted_at")), runs if isinstance(runs, int) else 1)


def _noted_id(directory: Path) -> str | None:
    """Return the id that the job itself noted: it may start before its submitter can."""
    return next((event["job_id"] for event in _events(directory) if "job_id" in event), None)


def write_job(directory: Path, job_id: str | None, runs: int) -> None:
    """Note which job a directory waits for; None: it is about to be submitted."""
    value = {"scheduler": "slurm", "job_id": job_id, "submitted_at": now(), "runs": runs}
    store.write_json(directory / JOB_FILE, value)


def attempts(directory: Path) -> list[Attempt]:
    """Return the attempts that a job noted, the first one first; lines cut off are left out."""
    found: list[Attempt] = []
    for event in _events(directory):
        if event.get("event") == "start":
            restart = _whole(event.get("restart")) or 0
            found.append(Attempt(_text(event.get("at")), None, None, False, restart))
        elif event.get("event") == "end" and found:
            last = found[-1]
            found[-1] = Attempt(
                last.started_at,
                _text(event.get("at")),
                _whole(event.get("code")),
                event.get("asked_to_end") is True,
                last.restart,
            )
    return found


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def _events(directory: Path) -> list[dict[str, Any]]:
    try:
        lines = untrusted.read_text(directory / EVENTS).splitlines()
    except OSError:
        return []
    found: list[dict[str, Any]] = []
    for line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            found.append(cast("dict[str, Any]", value))
    return found
