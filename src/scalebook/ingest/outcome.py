"""How a job ended: a status of ours and a sentence."""

from __future__ import annotations

import math

from scalebook.logs.job import Job
from scalebook.record import Status

_SENTENCES = {
    "out_of_memory": "The log tells of memory that ran out",
    "timeout": "The log tells of a collective operation that timed out",
    "interrupted": "The log tells of an interruption",
    "failed": "The log tells of an error",
}


def diverged(job: Job) -> str | None:
    """Return why training diverged, None where it did not or no record can show it."""
    table = job.table
    if not len(table):
        return None
    skipped, seconds = table.column("skipped"), table.column("seconds")
    if all(count > 0 for count in skipped):
        return "Every record holds skipped iterations: nothing was learnt."
    if not table.has("loss") and not job.details.get("loss_expected"):
        return None
    loss = table.column("loss")
    last = max((row for row in range(len(loss)) if not math.isnan(seconds[row])), default=-1)
    if last >= 0 and math.isnan(loss[last]) and not skipped[last] > 0:
        step = table.column("step")[last]
        where = f"step {int(step)}" if not math.isnan(step) else "the last record"
        return f"The loss is missing or not a number at {where}, the last one."
    return None


def status_of(job: Job) -> tuple[Status, str | None]:
    """Return the status and, unless completed, its reason.

    A log that stops without a word, before the last step or without telling which that is, is
    of a run that was interrupted, as far as anyone can know.
    """
    ending, last = job.ending, job.last_step
    if ending and ending.status in ("out_of_memory", "timeout"):
        return ending.status, f"{_SENTENCES[ending.status]}: {ending.line}"
    lost = diverged(job)
    if lost:
        return "diverged", lost
    end = None if job.total_steps is None else job.total_steps - 1 + job.first_number
    reached = last is not None and end is not None and last >= end
    if reached or job.finished:
        return "completed", None
    if ending:
        return ending.status, f"{_SENTENCES[ending.status]}: {ending.line}"
    return "interrupted", f"{_where(job)} and does not say how the run ended."


def _where(job: Job) -> str:
    """Return where a log stops, as the start of a sentence."""
    if not len(job.table):
        return "The log holds no training step"
    if job.last_step is None:
        return f"The log ends after {len(job.table)} record(s)"
    of = f" of {job.total_steps}" if job.total_steps else ""
    return f"The log ends at step {job.last_step}{of}"
