"""Claims as values (rows, tables, all of one source) and the verdicts on them."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from scalebook import untrusted
from scalebook.audit.printed import Printed
from scalebook.errors import ClaimError


@dataclass(frozen=True, slots=True)
class Row:
    """One row: ``values`` by field name as typed, ``words``, and where it stands in the source.

    ``given`` are the fields that were not claimed by this row but hold for its whole table;
    ``bare`` those whose heading does not say what is counted: TFLOPS. ``doubtful`` ones may mean
    something else: they come from the text around a table, or from a heading without a unit.
    """

    table: str
    label: str
    line: int | None
    values: Mapping[str, Printed]
    words: Mapping[str, str]
    given: frozenset[str] = frozenset()
    bare: frozenset[str] = frozenset()
    doubtful: frozenset[str] = frozenset()
    lines: Mapping[str, int] = field(default_factory=dict[str, int])  # of fields on other lines


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that belong together, and what the source says about them as a whole."""

    name: str
    rows: tuple[Row, ...]
    base: str | None = None
    same: tuple[str, ...] = ()
    total: str | None = None


@dataclass(slots=True)
class Sheet:
    """A table as it stands in a document: its heading cells and its rows with their lines."""

    name: str
    head: list[str]
    rows: list[tuple[int, list[str]]] = field(default_factory=list[tuple[int, list[str]]])
    given: dict[str, str] = field(default_factory=dict[str, str])  # of the text around it
    above: str = ""  # that text, where nothing is read of it yet, and what follows the table
    below: str = ""
    far: frozenset[str] = frozenset()  # what of ``given`` stands elsewhere in the document
    sized: dict[str, str] = field(default_factory=dict[str, str])  # models that the text names
    cases: dict[int, str] = field(default_factory=dict[int, str])  # by column, of two heading rows
    lines: dict[int, int] = field(default_factory=dict[int, int])  # by column, where it was a row


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


def read_utf8(path: Path, limit: int, *, follow: bool = False) -> str:
    """Return the text of a file of claims, raising as ``read_bounded``."""
    try:
        return read_bounded(path, limit, follow=follow).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ClaimError(f"{path} is not UTF-8 text. Save it as UTF-8.") from error


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


# "possible": no limit is broken and no value is known that it should equal
Verdict = Literal["holds", "possible", "contradicts", "impossible", "not checkable"]

# the worst first: what a claim is when several checks speak about it
ORDER: tuple[Verdict, ...] = ("impossible", "contradicts", "holds", "possible", "not checkable")


@dataclass(frozen=True, slots=True)
class Check:
    """One claim against one identity, fact or limit.

    ``expected`` is the right value in the unit of ``field``, of all other numbers as they are
    written, with its ends (an interval of their rounding); None where there is no single one.
    ``arithmetic`` shows how it came about, and ``note`` says under which convention or peak the
    claim fits, or why it cannot be checked.
    """

    table: str
    label: str
    line: int | None  # in the source
    field: str
    stated: str
    rule: str
    verdict: Verdict
    expected: float | None = None
    expected_low: float | None = None
    expected_high: float | None = None
    arithmetic: str = ""
    note: str = ""
    remark: str = ""  # the note of the row in the claims file


@dataclass(frozen=True, slots=True)
class Audit:
    """All checks of the claims of one source, in the order of its rows."""

    claims: Claims
    checks: tuple[Check, ...]

    def counts(self) -> dict[Verdict, int]:
        """Return how many claims (a field of a row) there are by their worst verdict."""
        return count_claims(self.checks)


def count_claims(checks: tuple[Check, ...]) -> dict[Verdict, int]:
    """Return how many claims (a field of a row) there are by their worst verdict."""
    worst: dict[tuple[str, str, int | None, str, str], Verdict] = {}
    for check in checks:
        key = (check.table, check.label, check.line, check.field, check.stated)
        seen = worst.get(key, check.verdict)
        worst[key] = ORDER[min(ORDER.index(seen), ORDER.index(check.verdict))]
    totals = Counter(worst.values())
    return {verdict: totals[verdict] for verdict in ORDER}


def check_of(row: Row, field: str, rule: str, verdict: Verdict, **more: Any) -> Check:
    """Return a check about a field of a row."""
    stated = row.values[field].text if field in row.values else row.words.get(field, "")
    line, remark = row.lines.get(field, row.line), row.words.get("note", "")
    place = (row.table, row.label, line, field, stated.removeprefix("="))
    return Check(*place, rule, verdict, remark=remark, **more)
