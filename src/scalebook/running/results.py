"""What became of each run of a plan, in words and as an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scalebook.record import RunRecord
from scalebook.running.stopping import Stop
from scalebook.running.todo import Entry, label


@dataclass(frozen=True, slots=True)
class Result:
    """What became of an entry: a record where one was written now, ``note`` where none was."""

    entry: Entry
    record: RunRecord | None
    note: str | None = None
    inferred: bool = False  # not run: a smaller configuration ran out of memory

    @property
    def status(self) -> str:
        """What became of it, or else what was to be done, in words."""
        if self.inferred:
            return "inferred"
        status = self.record.status if self.record else self.entry.action
        return status.replace("known_illegal", "illegal").replace("_", " ")

    @property
    def good(self) -> bool:
        """Whether a completed run of this configuration exists."""
        done = self.entry.action == "done"
        return done or (self.record is not None and self.record.status == "completed")


def summary(results: Sequence[Result]) -> list[str]:
    """Return one line for each entry of a plan: what it is and what became of it."""
    lines: list[str] = []
    for result in results:
        note = (result.record.reason if result.record else result.note) or ""
        lines.append(
            f"{result.status:<13} {label(result.entry.config)}{': ' if note else ''}{note}"
        )
    return lines


def exit_code(results: Sequence[Result], stop: Stop) -> int:
    """Return 0 if any configuration has a completed run, 1 if none, 128 + n after signal n."""
    if stop.exit_code is not None:
        return stop.exit_code
    return 0 if any(result.good for result in results) else 1
