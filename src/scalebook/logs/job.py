"""One job of a log: its table of records, its settings and how it ended."""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import filterfalse, pairwise

from scalebook.logs.causes import Ending
from scalebook.logs.numbers import MISSING
from scalebook.logs.setting_lines import Value

# Seconds are of one optimizer step; a rate is per second; memory is in GiB.
COLUMNS = [
    "step", "seconds", "loss", "grad_norm", "learning_rate", "global_batch_size", "sequence_length",
    "consumed_samples", "consumed_tokens", "samples_per_second", "samples_per_second_per_gpu",
    "tokens_per_second", "tokens_per_second_per_gpu", "tflops_per_gpu", "mfu", "tokens_in_step",
    "allocated_gib", "reserved_gib", "device_gib", "skipped", "nan",
    "not_finite",  # 1 where the loss was printed and is not a number
    "held",  # 1 where the log tells of a checkpoint, an evaluation, ... since the row before
    "phase_code",  # of a run of ours that comes back from a tracker: its place in ``PHASES``
    "clock",
]  # fmt: skip


SAME_LOSS = 5e-3  # losses of one step of one training differ by less, relatively
_HIGHER = 1.3  # times the loss before: not of the same training
_OTHER_PACE = 1.25  # times as fast


def in_words(name: str) -> str:
    """Return a setting or a rate as readers call it."""
    return name.replace("_", " ").replace("gpu", "GPU")


class ColumnTable:
    """Rows of optional numbers; a column exists once a row has had a value for it."""

    __slots__ = ("_columns", "_length")

    def __init__(self) -> None:
        self._columns: dict[str, array[float]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, row: Mapping[str, float]) -> None:
        """Add one row; names that it lacks are missing."""
        columns = self._columns
        for name in row:
            if name not in columns:
                columns[name] = array("d", [MISSING]) * self._length
        for name, column in columns.items():
            column.append(row.get(name, MISSING))
        self._length += 1

    def extend(self, rows: Mapping[str, Sequence[float]], count: int) -> None:
        """Add ``count`` rows given as columns."""
        for name in rows:
            if name not in self._columns:
                self._columns[name] = array("d", [MISSING]) * self._length
        gap = array("d", [MISSING]) * count
        for name, column in self._columns.items():
            column.extend(array("d", rows.get(name, gap)))  # far faster than from a list
        self._length += count

    def amend(self, name: str, value: float) -> None:
        """Give the last row a value that was printed behind it."""
        if name not in self._columns:
            self._columns[name] = array("d", [MISSING]) * self._length
        if self._length:
            self._columns[name][-1] = value

    def keep(self, wanted: Sequence[bool]) -> None:
        """Drop the rows that are not wanted."""
        for name, column in self._columns.items():
            kept = (value for value, keep in zip(column, wanted, strict=True) if keep)
            self._columns[name] = array("d", kept)
        self._length = sum(wanted)

    def column(self, name: str) -> Sequence[float]:
        """Return a column, NaN where a row has no value."""
        found = self._columns.get(name)
        return array("d", [MISSING]) * self._length if found is None else found

    def set_column(self, name: str, values: Iterable[float]) -> None:
        """Replace or add a column."""
        self._columns[name] = array("d", values)

    def has(self, name: str) -> bool:
        """Whether any row has a value in this column."""
        return any(not math.isnan(value) for value in self._columns.get(name, ()))

    def values(self, name: str, start: int = 0) -> list[float]:
        """Return the values that are there, from row ``start`` on."""
        return list(filterfalse(math.isnan, self.column(name)[start:]))

    def median(self, name: str, start: int = 0) -> float | None:
        """Return the median of the values that are there, None without any."""
        values = self.values(name, start)
        return statistics.median(values) if values else None

    def row(self, index: int) -> dict[str, float]:
        """Return the values that one row has."""
        cells = ((name, column[index]) for name, column in self._columns.items())
        return {name: value for name, value in cells if not math.isnan(value)}


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
    table: ColumnTable = field(default_factory=ColumnTable)
    samples: ColumnTable = field(default_factory=ColumnTable)  # telemetry
    settings: dict[str, Value] = field(default_factory=dict[str, Value])
    derived: dict[str, str] = field(default_factory=dict[str, str])  # name -> from what
    rates: dict[str, float] = field(default_factory=dict[str, float])  # of the whole run, printed
    details: dict[str, object] = field(default_factory=dict[str, object])
    notes: list[str] = field(default_factory=list[str])
    counts: Counts = field(default_factory=Counts)
    conflicts: dict[str, list[Value]] = field(default_factory=dict[str, list[Value]])
    attempts: list[int] = field(default_factory=lambda: [0])  # first row of each attempt
    blocks: list[int] = field(default_factory=list[int])  # rows at which another quotation begins
    ending: Ending | None = None  # told since the last step
    finished: bool = False
    rank: int | None = None  # whose records are kept where several ranks print
    total_steps: int | None = None
    reached: int | None = None  # the last step, where the line that names it is not a record
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

    def apart(self) -> list[Job]:
        """Return the jobs that stand in quoted blocks whose steps rise, or one behind another.

        Behind a gap in the steps, another pace or a higher loss is that of another run. So is
        another pace, or another curve of the loss, behind a start from the first step.
        """
        ends = [0, *self.blocks, len(self.table)]
        rows = [
            row
            for at, row in enumerate(self.blocks)
            if len(self.attempts) == 1 and self._another(slice(ends[at], row), row, ends[at + 2])
        ]
        ends = [*self.attempts, len(self.table)]
        rows += [
            row
            for at, row in enumerate(self.attempts[1:])
            if self._afresh(ends[at], row, ends[at + 2])
        ]
        return self._parted(rows[0]) if rows else [self]

    def _parted(self, row: int) -> list[Job]:
        before, after = deepcopy(self), deepcopy(self)
        before.table.keep([one < row for one in range(len(self.table))])
        after.table.keep([one >= row for one in range(len(self.table))])
        before.blocks = [one for one in self.blocks if one < row]
        after.blocks = [one - row for one in self.blocks if one > row]
        before.attempts = [one for one in self.attempts if one < row]
        after.attempts = [0, *(one - row for one in self.attempts if one > row)]
        for job in (before, after):
            job.counts.restarts = len(job.attempts) - 1
        before.ending, before.finished = None, False
        return [before, *after.apart()]

    def _afresh(self, start: int, row: int, end: int) -> bool:
        """Whether an attempt from the first step on is of another run than the one before it."""
        steps, losses = self.table.column("step"), self.table.column("loss")
        known = dict(zip(steps[start:row], losses[start:row], strict=True))
        both = [
            (known[s], x)
            for s, x in zip(steps[row:end], losses[row:end], strict=True)
            if s in known
        ]
        if steps[row] > 1 or steps[row] != steps[start] or len(both) < 3:
            return False
        apart = sum(abs(one - other) > SAME_LOSS * abs(one) for one, other in both)
        return 2 * apart > len(both) or self._other_pace(slice(start + 1, row), slice(row + 1, end))

    def _another(self, before: slice, row: int, end: int) -> bool:
        """Whether the block of records from a row on is of another run than the one before it."""
        steps, losses = self.table.column("step"), self.table.column("loss")
        gaps = [b - a for a, b in pairwise(steps[before])]
        if not gaps or end - row < 2 or not steps[row] - steps[row - 1] > 1.5 * max(gaps):
            return False
        higher = losses[row] > _HIGHER * losses[row - 1]
        return higher or self._other_pace(before, slice(row + 1, end))

    def _other_pace(self, before: slice, after: slice) -> bool:
        for name in ("seconds", "tokens_per_second", "tokens_per_second_per_gpu"):
            column = self.table.column(name)
            both = [
                statistics.median([one for one in part if one > 0] or [MISSING])
                for part in (column[before], column[after])
            ]
            if max(both) > _OTHER_PACE * min(both):
                return True
        return False

    def drop_conflicts(self) -> None:
        """Leave out each setting that the file gives several values."""
        for name, values in self.conflicts.items():
            if len(values) > 1:
                self.settings.pop(name, None)

    def drop_repeats(self) -> None:
        """Keep only the last attempt of every step."""
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
