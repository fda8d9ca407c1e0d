"""The answer of one check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem", "unknown"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check found and how bad that is; ``advice`` says what to do, None where nothing is.

    ``problem``: training fails or its numbers are wrong. ``warning``: they may be. ``unknown``: the
    machine does not tell.
    """

    check: str
    level: Level
    found: str
    advice: str | None = None


def ok(check: str, found: str) -> CheckResult:
    """Return a finding that needs nothing."""
    return CheckResult(check, "ok", found)
