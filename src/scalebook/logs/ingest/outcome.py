"""How a job ended: a status of ours and a sentence."""

from __future__ import annotations

import itertools
import math

from scalebook.logs.causes import Ending
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
    skipped, lost = table.column("skipped"), table.column("not_finite")
    if _all_skipped(job):
        return "Every iteration was skipped: nothing was learnt."
    if lost[-1] > 0:
        every = "every record" if all(one > 0 for one in lost) else "the last record"
        return f"The loss is not a number in {every}."
    seconds = table.column("seconds")
    if not table.has("loss") and not job.details.get("loss_expected"):
        return None
    loss = table.column("loss")
    last = max((row for row in range(len(loss)) if not math.isnan(seconds[row])), default=-1)
    if last >= 0 and math.isnan(loss[last]) and not skipped[last] > 0:
        step = table.column("step")[last]
        where = f"step {int(step)}" if not math.isnan(step) else "the last record"
        return f"The loss is missing or not a number at {where}, the last one."
    return None


def _all_skipped(job: Job) -> bool:
    """Return whether each record counts as many skipped iterations as it stands for.

    That is at most what lies between it and the record before; of the first, its step number.
    """
    steps, skipped = job.table.column("step"), job.table.column("skipped")
    if not all(count > 0 for count in skipped):
        return False
    gaps = [after - before for before, after in itertools.pairwise(steps)]
    first = min([steps[0], *gaps]) if steps[0] > 0 else 1.0
    return all(count >= gap for count, gap in zip(skipped, [first, *gaps], strict=True))


def status_of(job: Job) -> tuple[Status, str | None]:
    """Return the status and, unless completed, its reason.

    A log that stops without a word, before the last step or without telling which that is, is
    of a run that was interrupted, as far as anyone can know.
    """
    ending, last = job.ending, job.last_step
    if ending and ending.status in ("out_of_memory", "timeout"):
        return ending.status, _told(ending)
    lost = diverged(job)
    if lost:
        return "diverged", lost
    end = None if job.total_steps is None else job.total_steps - 1 + job.first_number
    reached = last is not None and end is not None and last >= end
    if reached or job.finished:
        return "completed", None
    if ending:
        return ending.status, _told(ending)
    return "interrupted", f"{_where(job)} and does not say how the run ended."


def cause_of(job: Job, status: Status) -> str | None:
    """Return the kind of an ending as records name it; None where the log does not say one."""
    if status == "diverged":
        return "skipped_steps" if _all_skipped(job) else "not_finite"
    return job.ending.cause if job.ending and status == job.ending.status else None


def _told(ending: Ending) -> str:
    if ending.sentence is None:
        return f"{_SENTENCES[ending.status]}: {ending.line}"
    if ending.cause == "python_error":
        return ending.sentence
    return f"{ending.sentence.rstrip('.')}. The log says: {ending.line}"


def _where(job: Job) -> str:
    """Return where a log stops, as the start of a sentence."""
    if not len(job.table):
        return "The log holds no training step"
    if job.last_step is None:
        return f"The log ends after {len(job.table)} record(s)"
    if beyond := job.counts.records_beyond_limit:
        kept = f"{len(job.table):,} records are kept, up to step {job.last_step}"
        return f"Only the first {kept} ({beyond:,} more were not), so the log goes on"
    of = f" of {job.total_steps}" if job.total_steps else ""
    return f"The log ends at step {job.last_step}{of}"
