"""One job as read from a log: its rows, what it told about itself, and how it ended."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from scalebook.logs.settings import Value
from scalebook.logs.status import Ending
from scalebook.logs.table import Table


@dataclass(slots=True)
class Counts:
    """What of the file could not be used, or was used in another way than row by row."""

    duplicate_records: int = 0  # the same record printed again, by another rank or sink
    repeated_steps: int = 0  # trained again after a restart; the last attempt was kept
    restarts: int = 0
    other_rank_records: int = 0
    broken_records: int = 0  # cut off or garbled before the time of the step
    records_beyond_limit: int = 0

    def told(self) -> dict[str, int]:
        """Return the counts that are not zero."""
        return {name: getattr(self, name) for name in self.__slots__ if getattr(self, name)}


@dataclass(slots=True)
class Job:
    """Everything that one job left in a file; nothing in it is guessed."""

    dialect: str
    first_number: int = 1  # what the trainer calls its first step
    table: Table = field(default_factory=Table)
    samples: Table = field(default_factory=Table)  # telemetry
    settings: dict[str, Value] = field(default_factory=dict[str, Value])
    derived: dict[str, str] = field(default_factory=dict[str, str])  # name -> from what
    rates: dict[str, float] = field(default_factory=dict[str, float])  # of the whole run, printed
    details: dict[str, object] = field(default_factory=dict[str, object])
    notes: list[str] = field(default_factory=list[str])
    counts: Counts = field(default_factory=Counts)
    conflicts: dict[str, list[Value]] = field(default_factory=dict[str, list[Value]])
    attempts: list[int] = field(default_factory=lambda: [0])  # first row of each attempt
    ending: Ending | None = None  # told since the last step
    finished: bool = False
    rank: int | None = None  # whose records are kept where several ranks print
    total_steps: int | None = None
    world: int | None = None  # told on the record lines themselves
    skipped_in_all: int | None = None  # where the trainer prints a running total
    finest: dict[str, float] = field(default_factory=dict[str, float])  # half of a last digit
    rounded: float = 0.0  # relative error of every figure, where the trainer rounds to few digits

    def note(self, text: str) -> None:
        """Add a warning once."""
        if text not in self.notes and len(self.notes) < 100:
            self.notes.append(text)

    @property
    def first_step(self) -> int | None:
        """The number of the first record."""
        return self._step(0)

    @property
    def last_step(self) -> int | None:
        """The number of the last record."""
        return self._step(-1)

    def _step(self, index: int) -> int | None:
        if not len(self.table):
            return None
        value = self.table.column("step")[index]
        return None if math.isnan(value) else int(value)

    def drop_conflicts(self) -> None:
        """Leave out each setting that the file gives several values, and ask for the right one."""
        for name, values in self.conflicts.items():
            if len(values) < 2:
                continue
            self.settings.pop(name, None)
            said = " and as ".join(map(str, values[:5]))
            option = "gpus" if name == "world_size" else name.replace("_", "-")
            self.note(f"The file gives {name} as {said}: none is used. Say which with --{option}.")

    def drop_repeats(self) -> None:
        """Keep of every step the last attempt alone."""
        if len(self.attempts) < 2:
            return
        steps = self.table.column("step")
        wanted = [True] * len(steps)
        bound = math.inf
        for start, end in reversed(
            list(zip(self.attempts, [*self.attempts[1:], len(steps)], strict=True))
        ):
            for row in range(start, end):
                wanted[row] = not steps[row] >= bound
            bound = min(bound, steps[start]) if start < len(steps) else bound
        self.counts.repeated_steps = wanted.count(False)
        self.table.keep(wanted)
        self.attempts = [0]
