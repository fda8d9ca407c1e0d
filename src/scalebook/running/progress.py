"""How far a run has come: the last line of a growing steps.jsonl, and one line of text about it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from scalebook import untrusted
from scalebook.record import StepRecord

POLL_SECONDS = 0.5  # reading more often would take a core from the ranks of a CPU run
CLOSING_SECONDS = 60.0  # what a run whose steps are all done may take beyond a limit


@dataclass(slots=True)
class Tail:
    """A steps.jsonl being written; reads only what was appended since the last look."""

    path: Path
    last: StepRecord | None = None
    _offset: int = field(default=0, repr=False)
    _rest: bytes = field(default=b"", repr=False)

    def read(self) -> StepRecord | None:
        """Return the newest whole step, None before the first."""
        for line in reversed(self._new_lines()):
            try:
                self.last = StepRecord.model_validate_json(line)
            except ValidationError:
                continue
            break
        return self.last

    def _new_lines(self) -> list[bytes]:
        try:
            with untrusted.opened(self.path) as stream:
                stream.seek(self._offset)
                new = stream.read()
        except OSError:
            return []
        self._offset += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        return lines


def extra_seconds(step: StepRecord | None, steps_asked: int) -> float:
    """Return how long beyond a limit a run may go on.

    With all its steps done it only has to write a profile or a checkpoint and to close: ended
    there, what it has measured would be lost.
    """
    return CLOSING_SECONDS if step is not None and step.step >= steps_asked else 0.0


def line(step: StepRecord | None, steps_asked: int) -> str:
    """Return step, rate in tokens per second and time left as one line."""
    if step is None or step.step_seconds is None or step.tokens is None:
        return "starting"
    if step.phase == "profiled":
        return f"step {step.step}, profiling"
    rate = step.tokens / step.step_seconds if step.step_seconds > 0 else 0.0
    left = duration((steps_asked - step.step) * step.step_seconds)
    return f"step {step.step}/{steps_asked}, {rate:,.0f} tokens/s, {left} left"


def duration(seconds: float) -> str:
    """Return a time for people: ``8 s``, ``3:05 min`` or ``2:10 h``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"


def last_lines(path: Path, count: int, limit_bytes: int = 512 * 1024) -> list[str]:
    """Return the last lines of a text file of any size; none where it does not exist."""
    try:
        with untrusted.opened(path) as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - limit_bytes))
            text = stream.read().decode(errors="replace")
    except OSError:
        return []
    # A progress bar rewrites its line with carriage returns: what it last showed is the line.
    return [entry.rpartition("\r")[2] for entry in text.split("\n")][-count:]
