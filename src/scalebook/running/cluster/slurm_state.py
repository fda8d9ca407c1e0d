"""What Slurm says of a job, asked of its controller alone: no accounting is needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scalebook import query
from scalebook.record import Status

GONE = "GONE"  # the controller has forgotten the job, as it does some minutes after its end

ACTIVE = frozenset(
    (
        "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "REQUEUED",
        "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT",
        "POWER_UP_NODE", "RESV_DEL_HOLD",
    )
)  # fmt: skip
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


Ask = Callable[[Sequence[str]], query.Answer]


@dataclass(frozen=True, slots=True)
class JobState:
    """A job's state in Slurm's word, why it waits, and how often it was started again."""

    name: str
    reason: str = ""
    restarts: int = 0

    @property
    def active(self) -> bool:
        """Whether the job is still to run, runs, or will run again."""
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
    restarts = fields.get("Restarts", "")
    reason = fields.get("Reason", "")
    return JobState(
        name, "" if reason == "None" else reason, int(restarts) if restarts.isdigit() else 0
    )


def ending(state: JobState, asked_to_end: bool, seconds: float | None) -> tuple[Status, str] | None:
    """Return status and sentence of a run that its job's end has ended; None: look at its log.

    ``asked_to_end``: the job noted a SIGTERM; ``seconds``: how long it had run then.
    """
    if state.name in _ENDS:
        return _ENDS[state.name]
    if state.name == GONE and asked_to_end:
        ran = "" if seconds is None else f" after {seconds:.0f} s"
        return (
            "interrupted",
            f"The job was asked to end{ran} (cancelled, preempted or at its time limit: Slurm "
            "has forgotten which)",
        )
    return None


def queue(user: int, ask: Ask = query.ask) -> dict[str, JobState] | None:
    """Return the jobs of a user that have not ended, by id; None without an answer."""
    answer = ask(("squeue", "--noheader", f"--user={user}", "--format=%i|%T|%r"))
    if answer.code != 0:
        return None
    found: dict[str, JobState] = {}
    for line in answer.output.splitlines():
        job_id, _, rest = line.strip().partition("|")
        name, _, reason = rest.partition("|")
        found[job_id] = JobState(name, "" if reason == "None" else reason)
    return found
