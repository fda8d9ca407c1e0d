"""Step records as columns of doubles: a log of millions of steps fits in memory."""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import filterfalse

from scalebook.logs.numbers import MISSING

# Seconds are of one optimizer step; a rate is per second; memory is in GiB.
COLUMNS = [
    "step",
    "seconds",
    "loss",
    "grad_norm",
    "learning_rate",
    "global_batch_size",
    "sequence_length",
    "consumed_samples",
    "consumed_tokens",
    "samples_per_second",
    "samples_per_second_per_gpu",
    "tokens_per_second",
    "tokens_per_second_per_gpu",
    "tflops_per_gpu",
    "mfu",
    "tokens_in_step",
    "allocated_gib",
    "reserved_gib",
    "device_gib",
    "skipped",
    "nan",
    "not_finite",  # 1 where the loss was printed and is not a number
    "held",  # 1 where the log tells of a checkpoint, an evaluation, ... since the row before
    "clock",
]


class Table:
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
