"""A run as a tracker keeps it, read as a history export of the same tracker is read.

The rows become JSON lines for the dialect of tables, so that names of columns, refusals and their
words are the same wherever a history comes from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, cast, get_args

from scalebook.errors import IngestError
from scalebook.logs.causes import Ending
from scalebook.logs.dialects.dialect import Dialect
from scalebook.logs.dialects.registry import FileContent
from scalebook.logs.dialects.rows import Rows, flat, is_known, tell
from scalebook.logs.source import Source
from scalebook.record import Status
from scalebook.trackers.exported import TAG

MOST_VALUES = 5_000_000  # numbers of one run that are held at once
MOST_PARAMETERS = 10_000
_TOGETHER = 1000  # rows that are turned into text at once
_NONE: frozenset[str] = frozenset()


@dataclass(slots=True)
class TrackedRun:
    """What a tracker holds of one run: ``rows`` are cells by the names that the run logged."""

    path: Path
    rows: Iterable[Mapping[str, object]] = ()
    parameters: dict[str, object] = field(default_factory=dict[str, object])
    ending: Ending | None = None
    notes: list[str] = field(default_factory=list[str])

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def parameter(self, name: str, value: object) -> None:
        """Set a parameter, or several where its value is an object."""
        cells: Iterable[tuple[str, object]] = ((name, value),)
        if isinstance(value, dict):
            cells = flat(cast("dict[str, Any]", value), name)
        for key, item in cells:
            if len(self.parameters) < MOST_PARAMETERS:
                self.parameters[key] = item


def wants(name: str, columns: frozenset[str]) -> bool:
    """Whether a name that a run logged is of a column that the dialect or the user knows."""
    return name in columns or is_known(name)


class History:
    """Numbers that a tracker keeps metric by metric, gathered into one row per step."""

    def __init__(self, path: Path, wanted: frozenset[str]) -> None:
        self._path, self._wanted = path, wanted
        self._rows: dict[int, dict[str, object]] = {}
        self._count = 0

    def wants(self, name: str) -> bool:
        """Whether a metric can say anything of a training step."""
        return wants(name, self._wanted)

    def add(self, name: str, step: int, value: float, seconds: float) -> None:
        """Take a number, logged at a time (seconds since 1970); the last of a step counts.

        Raises:
            IngestError: there are more than any run of training has.
        """
        self._count += 1
        if self._count > MOST_VALUES:
            raise IngestError(
                f"{self._path} contains more than {MOST_VALUES:,} numbers of one run. Export the "
                "columns that matter as CSV and ingest that."
            )
        row = self._rows.setdefault(step, {})
        row[name] = value
        row["_timestamp"] = seconds

    def __iter__(self) -> Iterator[Mapping[str, object]]:
        """Yield the rows in the order of the steps."""
        for step in sorted(self._rows):
            yield {"step": step, **self._rows[step]}


@dataclass(slots=True)
class _Lines(Source):
    """Rows as the text of a file of JSON lines."""

    rows: Iterable[Mapping[str, object]] = ()

    def pieces(self) -> Iterator[bytes]:
        rows = iter(self.rows)
        while some := list(islice(rows, _TOGETHER)):
            piece = "".join(f"{json.dumps(row)}\n" for row in some).encode()
            self._hash.update(piece)
            yield piece


def wanted(dialect: type[Dialect] | None) -> frozenset[str]:
    """Return the columns that the user maps."""
    return frozenset(dialect.mapping.values()) if dialect and issubclass(dialect, Rows) else _NONE


def content(tracker: str, run: TrackedRun, dialect: type[Dialect] | None) -> FileContent:
    """Return a run as ingest takes it; ``dialect`` is that of --map, if any."""
    base = dialect or Rows
    kind = cast("type[Dialect]", type(f"{tracker.title()}Rows", (base,), {"name": tracker}))
    reader, source = kind(), _Lines(run.path, rows=run.rows)
    tell(reader.out, run.parameters)
    jobs = reader.read(source)
    for note in (*run.notes, *source.notes):
        jobs[-1].note(note)
    if reason := run.parameters.get(f"{TAG}throughput_reason"):
        jobs[-1].details["withheld"] = str(reason)[:500]
    ending = _own_ending(run.parameters) or run.ending
    jobs[-1].ending = ending
    jobs[-1].finished = ending is not None and ending.status == "completed"
    said = json.dumps([source.digest(), run.parameters], sort_keys=True, default=str)
    digest = hashlib.sha256(said.encode()).hexdigest()
    return FileContent(run.path, kind, jobs, digest, source.tail())


def _own_ending(parameters: Mapping[str, object]) -> Ending | None:
    """Return how a run of ours ended, as its tags say; None for a run of others."""
    status = parameters.get(f"{TAG}status")
    if status not in get_args(Status):
        return None
    said = f"the status {status}"
    reason = str(parameters.get(f"{TAG}reason", ""))[:500] or None
    return Ending(cast("Status", status), said, sentence=reason)
