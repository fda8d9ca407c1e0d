"""How far a run has come: the last line of a growing steps.jsonl, and one line of text about it."""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from scalebook import untrusted
from scalebook.record import StepRecord

POLL_SECONDS = 0.5  # reading more often would take a core from the ranks of a CPU run
SLOW_STEPS = 5.0  # median steps without a new one before people are told
LEAST_QUIET_SECONDS = 5.0  # below it, looking now and then is no measure
CLOSING_SECONDS = 60.0  # what a run whose steps are all done may take beyond a limit


@dataclass(slots=True)
class Tail:
    """A steps.jsonl being written; reads only what was appended since the last look."""

    path: Path
    last: StepRecord | None = None
    _offset: int = field(default=0, repr=False)
    _rest: bytes = field(default=b"", repr=False)
    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=50), repr=False)
    _stepped: float = field(default=0.0, repr=False)

    def read(self) -> StepRecord | None:
        """Return the newest whole step, None before the first."""
        for line in self._new_lines()[-50:]:
            try:
                self.last = StepRecord.model_validate_json(line)
            except ValidationError:
                continue
            self._stepped = time.monotonic()
            # The first step compiles: no measure of the others.
            if self.last.step_seconds is not None and self.last.phase != "startup":
                self._seconds.append(self.last.step_seconds)
        return self.last

    def median_seconds(self) -> float | None:
        """Return the median of the last 50 steps in seconds, None before the second step."""
        return statistics.median(self._seconds) if self._seconds else None

    def quiet_seconds(self) -> float | None:
        """Return the seconds since the last step where they are unusually many, else None."""
        median = self.median_seconds()
        if median is None:
            return None
        quiet = time.monotonic() - self._stepped
        return quiet if quiet > max(SLOW_STEPS * median, LEAST_QUIET_SECONDS) else None

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
    """Return how long beyond a limit a run may continue.

    With all its steps done it only has to write a profile or a checkpoint and to close: ended
    there, what it has measured would be lost.
    """
    return CLOSING_SECONDS if step is not None and step.step >= steps_asked else 0.0


def line(step: StepRecord | None, steps_asked: int, quiet_seconds: float | None = None) -> str:
    """Return step, rate in tokens per second and time left as one line.

    Where no step has come for ``quiet_seconds`` it says so in place of the rate.
    """
    if step is None or step.step_seconds is None or step.tokens is None:
        return "starting"
    if step.phase == "profiled":
        return f"step {step.step}, profiling"
    if quiet_seconds is not None and step.step < steps_asked:
        return f"step {step.step}/{steps_asked}, no step for {duration(quiet_seconds)}"
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
