"""What torchrun writes into a log about itself, and what the ranks wrote before it.

Lines are read one by one and never joined: a log is untrusted and may hold any text many times.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# From here on torchrun speaks of its own traceback; what went wrong stands above it.
_REPORT = re.compile(
    r"torch/distributed/elastic/\S+ (failed \(exitcode|Received \d+ death signal)"
    r"|Sending process \d+ closing signal"
)
_ROOT = re.compile(r"^Root Cause\b")
_RANK = re.compile(r"^\s*rank\s+: (\d{1,9})\b")
_CODE = re.compile(r"^\s*exitcode\s+: (-?\d{1,9})\b(?:.*?\(pid: (\d{1,9})\))?")
_WITHIN = 12  # lines of a failure in the report

# torchrun prints which rank a line is of where it is told to; torch does at an uncaught exception.
_PREFIX = re.compile(r"^(?:\[(?:rank|default)(?P<rank>\d{1,9})\]:\s?){1,2}")
_EXCEPTION = re.compile(r"^(?P<text>[A-Za-z_][\w.]{0,200}(?:Error|Exception|Exit|Interrupt)\b.*)$")
_RAISED = re.compile(r"^(?P<text>[A-Za-z_][\w.]{0,200}(?::\s.*)?)$")
_OWN = "torch.distributed.elastic."  # torchrun's own errors say that a rank failed, not why
_HEADER = "Traceback (most recent call last):"


@dataclass(frozen=True, slots=True)
class RootCause:
    """The rank that torchrun saw fail first: its exit code (-n for signal n) and process id."""

    rank: int
    code: int
    process_id: int | None = None


@dataclass(frozen=True, slots=True)
class Raised:
    """An uncaught exception in a log: its first line without the rank that the line named."""

    rank: int | None
    text: str
    line: int  # index into the lines


def informative(log: Sequence[str]) -> list[str]:
    """Return the lines of a log that are not torchrun's report about itself, nor empty."""
    kept: list[str] = []
    for line in log:
        if _REPORT.search(line):
            break
        if line.strip():
            kept.append(line.rstrip())
    return kept or [line.rstrip() for line in log if line.strip()]


def root_cause(log: Sequence[str]) -> RootCause | None:
    """Return what torchrun says failed first, the last time that it says so."""
    for start in range(len(log) - 1, -1, -1):
        if not _ROOT.match(log[start]):
            continue
        rank: int | None = None
        for line in log[start : start + _WITHIN]:
            if match := _RANK.match(line):
                rank = int(match[1])
            elif rank is not None and (match := _CODE.match(line)):
                process = int(match[2]) if match[2] else None
                return RootCause(rank, int(match[1]), process)
    return None


def exceptions(lines: Sequence[str]) -> list[Raised]:
    """Return every exception that ends a traceback, and every line that reads like one."""
    found: list[Raised] = []
    open_traceback: set[int | None] = set()
    for number, line in enumerate(lines):
        prefix = _PREFIX.match(line)
        rank = int(prefix["rank"]) if prefix else None
        text = line[prefix.end() :] if prefix else line
        if text.strip() == _HEADER:
            open_traceback.add(rank)
        elif rank in open_traceback and text[:1] in {" ", "\t", ""}:
            continue
        else:
            pattern = _RAISED if rank in open_traceback else _EXCEPTION
            open_traceback.discard(rank)
            match = pattern.match(text) or _EXCEPTION.match(text)
            if match and not match["text"].startswith(_OWN):
                found.append(Raised(rank, match["text"], number))
    return found
