"""How a run ended, from what its log says: a cause of ``causes``, an interruption, an exception."""

from __future__ import annotations

import re
from dataclasses import dataclass

from scalebook.logs import causes
from scalebook.record import Status

TRACEBACK = "Traceback (most recent call last)"
# Literal pieces of further lines that tell an end, in order of weight within one line.
ENDINGS: tuple[tuple[str, Status], ...] = (
    ("RESOURCE_EXHAUSTED", "out_of_memory"),
    ("collective operation timeout", "timeout"),
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
    (TRACEBACK, "failed"),
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
# Pieces of lines behind which a step may be held up by something else than training.
HOLDS = (
    "saving checkpoint", "Saving checkpoint", "aving model checkpoint", "saved checkpoint",
    "aving the checkpoint", "validation loss at", "unning Evaluation", "unning evaluation",
    "unning validation", "umping profiler", "rofiler trace", "tarting profil", "topping profil",
    "ecompiling", "ecompilation",
)  # fmt: skip
_WEIGHT = {"out_of_memory": 50, "timeout": 40, "interrupted": 30, "failed": 10, "completed": 0}
_EXCEPTION_WEIGHT = 20  # over the bare header of its traceback
_OF_A_RULE = 100
_LONGEST = 2000  # characters of a line that are looked at
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]{0,200}(?::\s.{0,300})?$")


@dataclass(frozen=True, slots=True)
class Ending:
    """A line that tells how a run ended; ``weight`` says how much it explains."""

    status: Status
    line: str
    weight: int = 0
    cause: str | None = None  # the kind, of ``causes``
    sentence: str | None = None


def ending(line: str) -> Ending | None:
    """Return what a line says about the end of the run, None where it says nothing."""
    shown = line.strip()[:300]
    if any(piece in line for piece in causes.PIECES):
        found = causes.search([line[:_LONGEST]], causes.LOG_RULES)
        if found is not None:
            weight = _OF_A_RULE - causes.LOG_RULES.index(found.rule)
            rule = found.rule
            return Ending(rule.status, shown, weight, rule.cause, causes.sentence(found, None))
    for piece, status in ENDINGS:
        if piece in line:
            return Ending(status, shown, _WEIGHT[status])
    return None


def exception(text: str) -> Ending | None:
    """Return the exception that ends a traceback, None where the text is not one."""
    text = text.strip()[:300]
    if not _EXCEPTION.match(text) or causes.CONSEQUENCE.search(text):
        return None
    sentence = f"The trainer failed: {text}"
    return Ending("failed", text, _EXCEPTION_WEIGHT, "python_error", sentence)


def mentions_ending(text: str) -> bool:
    """Whether any line of a text may tell an end."""
    return any(piece in text for piece, _ in ENDINGS) or any(
        piece in text for piece in causes.PIECES
    )


def holds_up(text: str) -> bool:
    """Whether a text tells of a checkpoint, an evaluation, a profiler or a compilation."""
    return any(piece in text for piece in HOLDS)


def weightier(first: Ending | None, second: Ending) -> Ending:
    """Return the one that explains more: an out-of-memory error over the traceback it causes."""
    return second if first is None or second.weight > first.weight else first
