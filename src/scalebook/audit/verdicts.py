"""What the audit answers: one verdict a check, and the whole of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from scalebook.audit.rows import Claims, Row

# "possible": no limit is broken and no value is known that it should equal
Verdict = Literal["holds", "possible", "contradicts", "impossible", "not checkable"]

# the worst first: what a claim is when several checks speak about it
ORDER: tuple[Verdict, ...] = (
    "impossible",
    "contradicts",
    "holds",
    "possible",
    "not checkable",
)


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
    return Check(
        table=row.table,
        label=row.label,
        line=row.line,
        field=field,
        stated=stated.removeprefix("="),
        rule=rule,
        verdict=verdict,
        remark=row.words.get("note", ""),
        **more,
    )
