"""Judge the facts of a machine by every check."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from scalebook.doctor import devices, software, system
from scalebook.doctor.facts import MachineFacts
from scalebook.doctor.findings import CheckResult

CHECKS: tuple[Callable[[MachineFacts], CheckResult | None], ...] = (
    *devices.CHECKS,
    *system.CHECKS,
    *software.CHECKS,
)


def examine(facts: MachineFacts) -> tuple[CheckResult, ...]:
    """Return what every check that concerns this machine found."""
    return tuple(finding for check in CHECKS if (finding := check(facts)) is not None)


def exit_code(findings: Iterable[CheckResult], *, strict: bool = False) -> int:
    """Return 1 if there is a problem (``strict``: or a warning), else 0."""
    bad = ("problem", "warning") if strict else ("problem",)
    return int(any(finding.level in bad for finding in findings))
