"""The job that a run directory waits for: what Slurm says of it, and the record it ends in.

A job writes the record of a run that ends by itself (``node``). Where the job itself was ended
(time limit, scancel, a dead node) it can't: then ``settle`` asks Slurm what became of it. Only the
controller is asked: no accounting is needed.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalebook import query, store, untrusted
from scalebook.ownership import JOB_FILE
from scalebook.record import RunRecord, Status, object_of, text_of
from scalebook.running import finish_run, outcome
from scalebook.running.cluster import node_logs
from scalebook.running.cluster.node_logs import ASKED, FOLLOWED
from scalebook.running.finish_run import Recovered
from scalebook.running.progress import last_lines

FOLDER = ".slurm"  # below the runs: scripts, and what jobs print
UNSUBMITTED_SECONDS = 600.0  # sbatch answers sooner

GONE = "GONE"  # the controller has forgotten the job, as it does some minutes after its end

ACTIVE = (
    "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "REQUEUED",
    "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT",
    "POWER_UP_NODE", "RESV_DEL_HOLD",
)  # fmt: skip
_JOB_ID = re.compile(r"[0-9]{1,18}(?:[_+][0-9]{1,9})?", re.ASCII)  # of an array or a group, too
_FIELD = re.compile(r"(?:^|\s)(\w+)=(\S*)")

# What a job's last state means for its run, where that did not end by itself.
_ENDS: Mapping[str, tuple[Status, str]] = {
    "TIMEOUT": ("timeout", "The job's time limit in Slurm ran out"),
    "DEADLINE": ("timeout", "The job's deadline in Slurm passed"),
    "NODE_FAIL": ("interrupted", "A node of the job failed (Slurm: NODE_FAIL)"),
    "BOOT_FAIL": ("interrupted", "A node of the job did not boot (Slurm: BOOT_FAIL)"),
    "LAUNCH_FAILED": ("interrupted", "Slurm could not launch the job (LAUNCH_FAILED)"),
    "PREEMPTED": ("interrupted", "The job was preempted by another one"),
    "REVOKED": ("interrupted", "The job was revoked: another cluster took it"),
    "CANCELLED": ("interrupted", "The job was cancelled (scancel)"),
    "OUT_OF_MEMORY": ("out_of_memory", "The host's memory ran out: the job's limit in Slurm"),
}


Ask = Callable[[Sequence[str]], query.CommandAnswer]


@dataclass(frozen=True, slots=True)
class JobState:
    """A job's state in Slurm's word, why it waits, and how often it was started again."""

    name: str
    reason: str = ""
    restarts: int = 0

    @property
    def active(self) -> bool:
        """Whether the job waits, runs, or will be requeued."""
        return self.name in ACTIVE


def state_of(job_id: str, ask: Ask = query.ask) -> JobState | None:
    """Return a job's state, ``GONE`` where it is not known any more, None without an answer."""
    answer = ask(("scontrol", "show", "job", "-o", job_id))
    if "Invalid job id" in answer.errors:
        return JobState(GONE)
    if answer.code != 0:
        return None
    fields = dict(_FIELD.findall(answer.output))
    name = fields.get("JobState", "")
    if not name:
        return None
    reason, restarts = _reason(fields.get("Reason", "")), fields.get("Restarts", "")
    return JobState(name, reason, int(restarts) if restarts.isdigit() else 0)


def _reason(text: str) -> str:
    return "" if text == "None" else text


def queue(user: int, ask: Ask = query.ask) -> dict[str, JobState] | None:
    """Return the jobs of a user that have not ended, by id; None without an answer."""
    answer = ask(("squeue", "--noheader", f"--user={user}", "--format=%i|%T|%r"))
    if answer.code != 0:
        return None
    found: dict[str, JobState] = {}
    for line in answer.output.splitlines():
        job_id, _, rest = line.strip().partition("|")
        name, _, reason = rest.partition("|")
        found[job_id] = JobState(name, _reason(reason))
    return found


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """The job that a run directory waits for."""

    job_id: str
    submitted_at: str | None
    runs: int  # of the same job

    @classmethod
    def read(cls, directory: Path) -> SlurmJob | None:
        """Return the job of a directory, None where it waits for none."""
        value = store.read_object(directory / JOB_FILE)
        # The job notes its id too: it may start before its submitter can.
        job_id = value.get("job_id") or launched(directory).get("job_id")
        submitted, runs = text_of(value.get("submitted_at")), value.get("runs")
        if not isinstance(job_id, str) or not _JOB_ID.fullmatch(job_id):
            return None
        return cls(job_id, submitted, runs if isinstance(runs, int) else 1)


def launched(directory: Path) -> dict[str, Any]:
    """Return what a job noted of itself when it started a run; empty where it has not."""
    launch = store.read_object(directory / finish_run.LAUNCH_FILE)
    environment = object_of(launch.get("environment"))
    return object_of(environment.get("slurm"))


def write_job(directory: Path, job_id: str | None, runs: int) -> None:
    """Note which job a directory waits for; None: it is about to be submitted."""
    now = finish_run.now()
    value = {"scheduler": "slurm", "job_id": job_id, "submitted_at": now, "runs": runs}
    store.write_json(directory / JOB_FILE, value)


def settle(runs: Path, ask: Ask = query.ask) -> tuple[Recovered, ...]:
    """Record every run under a folder whose job has ended; leave those of live jobs as they are."""
    known: dict[str, JobState | None] = {}
    found: list[Recovered] = []
    for partial in store.partial_directories(runs):
        job = SlurmJob.read(partial)
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
    file = partial / JOB_FILE
    if store.read_object(file).get("scheduler", "slurm") != "slurm":  # none: nobody can read it
        return
    with suppress(FileNotFoundError):
        if abs(time.time() - file.lstat().st_mtime) > UNSUBMITTED_SECONDS:
            untrusted.remove(file)


def settle_one(partial: Path, job: SlurmJob, state: JobState) -> Recovered | None:
    """Record the run of a job that has ended; None where another process does it."""
    if links := finish_run.links_of(partial):  # what they lead to is not this folder's
        return Recovered(partial, problem=links)
    return finish_run.recorded(partial, lambda directory: _conclude(directory, job, state))


def _conclude(directory: Path, job: SlurmJob, state: JobState) -> RunRecord | None:
    """Write the record of a run whose job has ended without writing it; None: it had no turn."""
    begun = (finish_run.LAUNCH_FILE, "attempts", "checkpoints")
    if job.runs > 1 and not any((directory / name).exists() for name in begun):
        shutil.rmtree(directory)  # it is still to be run
        return None
    launch = store.read_object(directory / finish_run.LAUNCH_FILE)
    slurm = {"job_id": job.job_id, "submitted_at": job.submitted_at, "requeued": state.restarts}
    slurm |= launched(directory) | {"state": state.name}
    environment = object_of(launch.get("environment")) | {"slurm": slurm}
    store.write_json(directory / finish_run.LAUNCH_FILE, {**launch, "environment": environment})
    printed = _printed(directory.parent, job)
    stop = _stop(finish_run.read_exit(directory), state, bool(launch), bool(printed))
    record = node_logs.conclude_nodes(
        directory,
        stop=node_logs.own_stop(directory) or stop,
        exit_code=1 if printed and state.name == "FAILED" else None,
        finished_at=finish_run.last_sign(directory) if launch else None,
        printed=printed,
    )
    untrusted.remove(directory / JOB_FILE)
    return record


def _printed(runs: Path, job: SlurmJob) -> list[str]:
    """Return the last lines that a job printed; none where several runs share it."""
    if job.runs > 1:
        return []
    paths = sorted((runs / FOLDER).glob(f"*-{job.job_id}.out"))
    return last_lines(paths[0], finish_run.LOG_LINES) if paths else []


def _stop(
    end: finish_run.Ended | None, state: JobState, started: bool, printed: bool
) -> outcome.EndReason | None:
    """Return status and sentence of a run that was ended from outside; None: its log says."""
    if end is not None and end.stop != ASKED:
        return None if end.stop == FOLLOWED else end.stop
    if state.name in _ENDS:
        return _ENDS[state.name]
    if end is not None and state.name == GONE:
        words = "(cancelled, preempted or at its time limit: Slurm has forgotten which)"
        return "interrupted", f"{ASKED[1]} {words}"
    if not started and not (printed and state.name == "FAILED"):
        return "interrupted", f"The job ended as {state.name} before the run had started"
    if end is None and started:
        return "interrupted", "The job ended without a message: its first node died or was killed"
    return None
