"""The record of a run that a Slurm job trained: written by the job, or by whoever looks next.

``python -m scalebook.running.cluster.slurm_jobs DIRECTORY`` is the last thing that a job does for a
run that ended by itself. Where the job was ended (time limit, scancel, a dead node) it can't: then
``settle`` asks Slurm what became of it.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalebook import ownership, query, store
from scalebook.errors import LaunchError
from scalebook.record import RunRecord, Status
from scalebook.running import finish_run
from scalebook.running.cluster import job_files, node_record
from scalebook.running.cluster.job_files import Attempt, Job
from scalebook.running.cluster.slurm_state import Ask, JobState, ending, state_of

TIMEOUT_CODE = 124  # of the timeout command, which keeps a run's own limit
UNSUBMITTED_SECONDS = 600.0  # nobody waits so long for sbatch
NEVER_STARTED = "before the run had started"


@dataclass(frozen=True, slots=True)
class Settled:
    """A directory whose job has ended: its record, None where there was nothing to record."""

    path: Path
    record: RunRecord | None


def main(arguments: Sequence[str]) -> int:
    """Record a run whose job has just noted its end; return 0."""
    (directory,) = map(Path, arguments)
    with ownership.owned(directory):
        record = _conclude(directory, None)
        final = store.publish(directory)
    print(f"{final.name}: {record.status}. {record.reason or ''}")
    return 0


def settle(runs: Path, ask: Ask = query.ask) -> tuple[Settled, ...]:
    """Record every run under a folder whose job has ended; leave those of live jobs alone."""
    known: dict[str, JobState | None] = {}
    found: list[Settled] = []
    for partial in store.partial_directories(runs):
        job = job_files.Job.read(partial)
        if job is None:
            _forget_unsubmitted(partial)
            continue
        if job.job_id not in known:
            known[job.job_id] = state_of(job.job_id, ask)
        state = known[job.job_id]
        if state is None or state.active:
            continue
        settled = settle_one(partial, job, state)
        if settled is not None:
            found.append(settled)
    return tuple(found)


def _forget_unsubmitted(partial: Path) -> None:
    """Let go of a directory whose submitter died before it had a job: ``recover`` records it."""
    file = partial / ownership.JOB_FILE
    if store.read_object(file).get("scheduler") != "slurm":
        return
    with suppress(FileNotFoundError):
        if time.time() - file.stat().st_mtime > UNSUBMITTED_SECONDS:
            file.unlink()


def settle_one(partial: Path, job: Job, state: JobState) -> Settled | None:
    """Record the run of a job that has ended; None where another process does it."""
    try:
        with ownership.owned(partial):
            if not job_files.attempts(partial) and job.runs > 1:
                # A job of several runs ended before this one's turn: it is still to be run.
                shutil.rmtree(partial)
                return Settled(partial, None)
            record = _conclude(partial, state)
            return Settled(store.publish(partial), record)
    except (FileNotFoundError, LaunchError):  # the job or another process was faster
        return None


def _conclude(directory: Path, state: JobState | None) -> RunRecord:
    """Write the record of a run; ``state`` None: its job still lives, the run ended by itself."""
    job, tries = Job.read(directory), job_files.attempts(directory)
    last = tries[-1] if tries else None
    _complete_launch(directory, job, tries, state)
    requested = store.read_object(directory / "config.json")
    record = node_record.conclude_nodes(
        directory,
        exit_code=last.exit_code if last else None,
        stop=_stop(last, state, requested),
        finished_at=last.ended_at if last else None,
    )
    for name in (ownership.JOB_FILE, job_files.EVENTS):
        (directory / name).unlink(missing_ok=True)
    return record


def _stop(
    last: Attempt | None, state: JobState | None, requested: dict[str, Any]
) -> tuple[Status, str] | None:
    """Return status and sentence of a run that was ended from outside; None: its log tells."""
    limit = requested.get("time_limit_seconds")
    if last is not None and last.exit_code == TIMEOUT_CODE and limit:
        return "timeout", f"The time limit of {limit} s ran out"
    if state is None or (last is not None and last.exit_code == 0):
        return None
    told = ending(state, bool(last and last.asked_to_end), last.seconds if last else None)
    if told is not None:
        return told
    if last is None:
        return "interrupted", f"The job ended as {state.name} {NEVER_STARTED}"
    if last.exit_code is None:
        return "interrupted", "The job ended without a word: its first node died, or was killed"
    return None


def _complete_launch(
    directory: Path, job: Job | None, tries: list[Attempt], state: JobState | None
) -> None:
    """Add to what was noted at submission when the run started and what its job was."""
    launch = store.read_object(directory / finish_run.LAUNCH_FILE)
    requeued = max((one.restart for one in tries), default=0)
    slurm = {
        "job_id": job.job_id if job else None,
        "submitted_at": job.submitted_at if job else None,
        "requeued": requeued,
        "state": state.name if state else None,
    }
    environment = {**launch.get("environment", {}), "slurm": slurm}
    started = tries[-1].started_at if tries else None
    value = {**launch, "environment": environment, "started_at": started}
    store.write_json(directory / finish_run.LAUNCH_FILE, value)
    if requeued:
        schedule = store.read_object(directory / finish_run.SCHEDULE_FILE)
        times = "once" if requeued == 1 else f"{requeued} times"
        note = f"Slurm requeued the job {times}; what the earlier attempts left is in attempts/."
        schedule["notes"] = [*schedule.get("notes", ()), note]
        store.write_json(directory / finish_run.SCHEDULE_FILE, schedule)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
