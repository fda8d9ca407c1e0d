"""Why and how a run ended, from what its log says.

A rule looks at one line at a time, and lines are cut before (see ``running.outcome``): a log is
untrusted, and no line of it may cost more than its length.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from scalebook.record import Status

SHM_HINT = "/dev/shm is too small: start the container with --ipc=host or a larger --shm-size"


@dataclass(frozen=True, slots=True)
class Rule:
    """Text in a log that says what happened, and how to say it: sentence, details, hint."""

    status: Status
    cause: str  # what records keep as ``cause``
    pattern: re.Pattern[str]
    sentence: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """The line that a rule recognised."""

    rule: Rule
    match: re.Match[str]
    line: int  # index into the lines that were searched


_TABLE = tomllib.loads((resources.files("scalebook.logs") / "causes.toml").read_text("utf-8"))


def _rules(name: str) -> tuple[Rule, ...]:
    """Return the rules of a table of ``causes.toml``, in its order."""
    return tuple(
        Rule(
            status=row["status"],
            cause=row["cause"],
            pattern=re.compile("|".join(row["texts"])),
            sentence=row["sentence"],
            hint=row.get("hint", "").replace("{shm}", SHM_HINT),
        )
        for row in _TABLE[name]
    )


RULES = _rules("rules")
# For logs from elsewhere, of which nothing else is known: what launchers report of a process.
LOG_RULES = (*RULES, *_rules("launcher_rules"))
PIECES: tuple[str, ...] = tuple(_TABLE["pieces"])
NO_SPACE = tuple(rule for rule in RULES if rule.cause == "no_space")
HOST_MEMORY = tuple(rule for rule in RULES if rule.cause == "host_memory")

# What a rank says when another one has failed: no cause by itself.
CONSEQUENCE = re.compile(
    r"Connection (?:closed|reset) by (?:remote )?peer|Broken pipe|communicator was aborted"
    r"|remote process exited|ncclRemoteError|Failed to recv, got 0 bytes|Socket closed"
    r"|caused pair closure|unhandled \w+ error|DistNetworkError|DistStoreError|ChildFailedError"
    r"|SignalException|RendezvousConnectionError|Tried to allocate (?:more than|\d{7})"
)


def search(lines: Sequence[str], rules: Sequence[Rule] = RULES, first: int = 0) -> Found | None:
    """Return the first rule that recognises a line, with that line; None where none does.

    ``first`` is added to the index of the line.
    """
    for rule in rules:
        for number, line in enumerate(lines):
            match = rule.pattern.search(line)
            if match:
                return Found(rule, match, first + number)
    return None


_RANK = re.compile(r"\[rank(?P<rank>\d+)\]|\bRank (?P<said>\d+)\]")


def sentence(found: Found, rank: int | None) -> str:
    """Return what a rule's line says; ``rank`` is given where the line names none itself."""
    match = found.match
    groups = {name: value for name, value in match.groupdict().items() if value}
    named = _RANK.search(match.string)
    number = (named["rank"] or named["said"]) if named else rank
    parts = [found.rule.sentence]
    parts += [f" on rank {number}"] if number is not None else []
    if "size" in groups:
        total = f" in the {groups['total']}" if "total" in groups else ""
        parts.append(f": {groups['size']} more did not fit{total}")
    inside = [groups["op"]] if "op" in groups else []  # which operation took longer than what
    inside += [f"{int(groups['limit']) / 1000:g} s"] if "limit" in groups else []
    inside += [f"{groups['seconds']} s"] if "seconds" in groups else []
    parts += [f" ({', '.join(inside)})"] if inside else []
    for name in ("what", "error", "status"):
        parts += [f": {groups[name].rstrip('. ')}"] if name in groups else []
    return "".join(parts) + found.rule.hint


# Of a run that completed: its last save, its export or its shutdown failed.
AFTER_TRAINING = "Every step was trained; what came after them failed. {}."
TRACEBACK = "Traceback (most recent call last)"
ONE_PROCESS = "exits successfully"  # DeepSpeed's launcher: another process may have failed
ENDINGS: tuple[tuple[str, Status], ...] = tuple(_TABLE["endings"].items())
HOLDS: tuple[str, ...] = tuple(_TABLE["holds"])
ENDED: dict[Status, str] = _TABLE["ended"]
_WEIGHT: dict[str, int] = _TABLE["weights"]
_OF_A_RULE = 100
_LONGEST = 2000  # characters of a line that are looked at
# An exception whose traceback the log lacks.
_RAISES = ("Error: ", "Exception: ")
_RAISED = re.compile(
    r"(?:\[rank\d+\]:)?\s*((?:[a-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception): .*)"
)
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]{0,200}(?::\s.{0,300})?$")


@dataclass(frozen=True, slots=True)
class Ending:
    """A line that says how a run ended; ``weight`` says how much it explains."""

    status: Status
    line: str
    weight: int = 0
    cause: str | None = None  # the kind, of ``causes``
    sentence: str | None = None


def ending(line: str, rank: int | None = None) -> Ending | None:
    """Return what a line (of a rank) says of the end of the run, None where it says nothing."""
    shown = line.strip()[:300]
    if any(piece in line for piece in PIECES):
        found = search([line[:_LONGEST]], LOG_RULES)
        if found is not None:
            rule = found.rule
            weight = _WEIGHT.get(rule.cause, _OF_A_RULE - LOG_RULES.index(rule))
            return Ending(rule.status, shown, weight, rule.cause, sentence(found, rank))
    for piece, status in ENDINGS:
        if piece in line:
            return Ending(status, shown, _WEIGHT[status])
    raised = _RAISED.match(line[:_LONGEST]) if any(piece in line for piece in _RAISES) else None
    if raised is None:
        return None
    return exception(raised[1]) or Ending("failed", shown, _WEIGHT["failed"])


def exception(text: str) -> Ending | None:
    """Return the exception that ends a traceback, None where the text is not one."""
    text = text.strip()[:300]
    if not _EXCEPTION.match(text) or CONSEQUENCE.search(text):
        return None
    sentence = f"The trainer failed: {text}"
    return Ending("failed", text, _WEIGHT["python_error"], "python_error", sentence)


def mentions_ending(text: str) -> bool:
    """Whether any line of a text may say how a run ended."""
    return any(piece in text for piece in (*dict(ENDINGS), *PIECES, *_RAISES))


def holds_up(text: str) -> bool:
    """Whether a text mentions a checkpoint, an evaluation, a profiler or a compilation."""
    return any(piece in text for piece in HOLDS)


def weightier(first: Ending | None, second: Ending) -> Ending:
    """Return the one that explains more: an exception over the timeout of those that waited."""
    waited = first is not None and first.cause == "python_error" and second.status == "timeout"
    return second if first is None or (second.weight > first.weight and not waited) else first
