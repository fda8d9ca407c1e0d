"""Claims as values: rows, the tables that they stand in, and all of one source."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scalebook import untrusted
from scalebook.audit.printed import Printed
from scalebook.errors import ClaimError


@dataclass(frozen=True, slots=True)
class Row:
    """One row: ``values`` by field name as typed, ``words``, and where it stands in the source.

    ``given`` are the fields that were not claimed by this row but hold for its whole table.
    """

    table: str
    label: str
    line: int | None
    values: Mapping[str, Printed]
    words: Mapping[str, str]
    given: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that belong together, and what the source says about them as a whole."""

    name: str
    rows: tuple[Row, ...]
    base: str | None = None
    same: tuple[str, ...] = ()
    total: str | None = None


@dataclass(frozen=True, slots=True)
class Claims:
    """All claims of one source, and what of its tables could not be read as a claim."""

    title: str
    source: str
    tables: tuple[Table, ...] = field(default=())
    unread: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every row of every table."""
        return tuple(row for table in self.tables for row in table.rows)


def read_bounded(path: Path, limit: int, *, follow: bool = False) -> bytes:
    """Return the bytes of a file of claims or rows, ``limit`` at the most.

    Raises:
        ClaimError: the file cannot be read or is too large.
    """
    try:
        return untrusted.read_bytes(path, limit, follow=follow)
    except OSError as error:
        advice = " Split it." if error.errno == errno.EFBIG else ""
        raise ClaimError(f"{path} cannot be read: {error.strerror or error}.{advice}") from error
