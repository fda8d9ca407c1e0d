"""How a run ended, from what its log says."""

from __future__ import annotations

from dataclasses import dataclass

from scalebook.record import Status

# Literal pieces of the lines that tell an end, in order of weight within one line.
ENDINGS: tuple[tuple[str, Status], ...] = (
    ("out of memory", "out_of_memory"),
    ("OutOfMemoryError", "out_of_memory"),
    ("RESOURCE_EXHAUSTED", "out_of_memory"),
    ("oom-kill", "out_of_memory"),
    ("Watchdog caught collective operation timeout", "timeout"),
    ("collective operation timeout", "timeout"),
    ("Timed out waiting for", "timeout"),
    ("DUE TO TIME LIMIT", "interrupted"),
    ("KeyboardInterrupt", "interrupted"),
    ("DUE TO PREEMPTION", "interrupted"),
    ("CANCELLED AT", "interrupted"),
    ("Received SIGTERM", "interrupted"),
    ("got signal: 15", "interrupted"),
    ("signal 15", "interrupted"),
    ("exiting program", "interrupted"),
    ("Segmentation fault", "failed"),
    ("ChildFailedError", "failed"),
    ("Traceback (most recent call last)", "failed"),
    ("Root Cause (first observed failure)", "failed"),
    ("terminate called after throwing", "failed"),
    ("NODE_FAIL", "failed"),
    ("srun: error:", "failed"),
    ("after training is done", "completed"),
    ("torchrun exited with code 0", "completed"),
    ("Training completed", "completed"),
    ("Training finished", "completed"),
    ("trainer finished", "completed"),
    ("`Trainer.fit` stopped: `max_steps=", "completed"),
)
_WEIGHT = {"out_of_memory": 5, "timeout": 4, "interrupted": 3, "failed": 2, "completed": 1}


@dataclass(frozen=True, slots=True)
class Ending:
    """A line that tells how a run ended."""

    status: Status
    line: str


def ending(line: str) -> Ending | None:
    """Return what a line says about the end of the run, None where it says nothing."""
    for piece, status in ENDINGS:
        if piece in line:
            return Ending(status, line.strip()[:300])
    return None


def mentions_ending(text: str) -> bool:
    """Whether any line of a text may tell an end."""
    return any(piece in text for piece, _ in ENDINGS)


def weightier(first: Ending | None, second: Ending) -> Ending:
    """Return the one that explains more: an out-of-memory error over the traceback it causes."""
    if first is None or _WEIGHT[second.status] > _WEIGHT[first.status]:
        return second
    return first
