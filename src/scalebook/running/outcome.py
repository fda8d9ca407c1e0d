"""What became of a run: its status and one sentence for a person, from how the trainer ended.

What torchrun writes into a log about itself, and what the ranks wrote before it, is read line by
line and never joined: a log is untrusted and may hold any text many times.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from scalebook.logs import causes
from scalebook.record import Status

# Why a launcher ended a run: status, sentence, and the cause where the status leaves it open.
EndReason = tuple[Status, str] | tuple[Status, str, str]

LOG_TAIL_LINES = 15
LINE_CHARACTERS = 2000  # of a line are looked at and kept: logs are untrusted
DIVERGED_EXIT_CODE = 3  # the trainer's: loss or gradient was not finite
MESSAGE_LINES = 8  # an exception's message may go on over so many lines
REASON_CHARACTERS = 300  # of what an exception says
SKIPPED_SHARE = 0.5  # above it so few measured steps learnt anything that training has diverged

_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
_WORKER_KILLED = "killed by signal: Killed"  # torch's DataLoader about a worker of it
_OUTSIDE = "death signal, shutting down workers"
_OF_STOP = {
    "timeout": "time_limit",
    "interrupted": "stopped",
    "illegal": "rules",
    "out_of_memory": "inferred",
}
_HINTS: dict[int, str] = {
    signal.SIGKILL: " (by a person, or by the system because memory ran out)",
    signal.SIGBUS: f" (often {causes.SHM_HINT})",
}
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
class EndEvidence:
    """What is known when the trainer has ended.

    ``stop`` is the status that the launcher gave as it ended the run itself, with its sentence.
    """

    exit_code: int | None  # of the launcher; None where it is not known
    steps_done: int
    steps_asked: int | None
    log: Sequence[str] = ()  # the last lines of train.log, some hundreds
    stop: EndReason | None = None
    started: bool = True  # else ``stop`` says all there is
    host_memory_kills: int = 0  # processes that the kernel's OOM killer ended meanwhile
    memory_killed: frozenset[int] = frozenset()  # their process ids, where the kernel's log tells
    loss_lost_at: int | None = None  # the first step whose loss was not finite
    measured_steps: int = 0
    skipped_steps: int = 0  # measured steps that the optimizer refused


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended; ``reason`` is one line and ``cause`` its kind.

    Of a completed run they say what failed after its last step, and are None where nothing did.
    """

    status: Status
    reason: str | None
    log_tail: tuple[str, ...]
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class _Verdict:
    status: Status
    cause: str
    sentence: str
    line: int | None = None  # the line of the log that told it


def classify(evidence: EndEvidence) -> Outcome:
    """Return the status of a run, the reason in one line, and the log lines that explain it."""
    log = [_COLOUR.sub("", line[:LINE_CHARACTERS]) for line in evidence.log]
    lines = informative(log)
    asked, done = evidence.steps_asked, evidence.steps_done
    trained = evidence.started and asked is not None and done >= asked
    whole = evidence.exit_code == 0 and done >= (asked or 1)
    verdict = _unlearnt(evidence) if trained or whole else None
    if verdict is None and whole:
        return Outcome("completed", None, ())
    verdict = verdict or _explain(evidence, lines, log)
    said, tail = verdict.sentence.rstrip("."), _tail(lines, verdict.line)
    if trained and verdict.status != "diverged":
        return Outcome("completed", causes.AFTER_TRAINING.format(said), tail, verdict.cause)
    bare = not evidence.started or verdict.status == "illegal"
    reason = verdict.sentence if bare else f"{said} {_where(evidence)}"
    return Outcome(verdict.status, reason, tail, verdict.cause)


def _tail(lines: list[str], telling: int | None) -> tuple[str, ...]:
    """Return the last lines, preceded by the line that explains the end if it is above them."""
    if telling is None or telling >= len(lines) - LOG_TAIL_LINES:
        return tuple(lines[-LOG_TAIL_LINES:])
    rest = lines[-(LOG_TAIL_LINES - 2) :]
    between = len(lines) - len(rest) - telling - 1
    return (lines[telling], *([f"[{between} lines left out]"] if between else []), *rest)


def _where(evidence: EndEvidence) -> str:
    """Return how far the run came, in brackets."""
    if not evidence.steps_done:
        return "(before the first step)."
    of = f" of {evidence.steps_asked}" if evidence.steps_asked else ""
    return f"(after step {evidence.steps_done}{of})."


def _unlearnt(evidence: EndEvidence) -> _Verdict | None:
    """Return why a run with all its steps has diverged, None where it has not."""
    if evidence.loss_lost_at is not None:
        sentence = f"Training diverged: the loss of step {evidence.loss_lost_at} is not finite"
        return _Verdict("diverged", "not_finite", sentence)
    if evidence.skipped_steps > SKIPPED_SHARE * evidence.measured_steps:
        sentence = (
            f"The optimizer refused {evidence.skipped_steps} of {evidence.measured_steps} measured "
            "steps, whose gradients were not finite"
        )
        return _Verdict("diverged", "skipped_steps", sentence)
    return None


def _explain(evidence: EndEvidence, lines: list[str], log: list[str]) -> _Verdict:
    """Return status and sentence of a run that did not complete: the first witness that knows."""
    if evidence.stop is not None:
        status, sentence, *cause = evidence.stop
        return _Verdict(status, cause[0] if cause else _OF_STOP.get(status, "stopped"), sentence)
    cause = root_cause(log)
    verdict = _killed_for_memory(evidence, lines, cause) or _told(evidence, lines, cause)
    if verdict is not None:
        return verdict
    if DIVERGED_EXIT_CODE in {evidence.exit_code, cause.code if cause else None}:
        sentence = "Training diverged: loss or gradient was not finite"
        return _Verdict("diverged", "not_finite", sentence)
    if any(_OUTSIDE in line for line in log) or evidence.exit_code in {130, 143}:
        sentence = "The run was asked to end from outside (SIGTERM or SIGINT)"
        return _Verdict("interrupted", "stopped", sentence)
    return _unexplained(evidence, cause)


def _killed_for_memory(
    evidence: EndEvidence, lines: list[str], cause: RootCause | None
) -> _Verdict | None:
    """Return that the kernel's OOM killer ended a rank: a SIGKILL, and the kernel's word for it.

    Without a SIGKILL a process that was ended meanwhile was none that this run needed.
    """
    rank = cause if cause and cause.code == -signal.SIGKILL else None
    worker = any(_WORKER_KILLED in line for line in lines)
    known = evidence.host_memory_kills > 0 or (
        rank is not None and rank.process_id in evidence.memory_killed
    )
    if not known or not (rank or worker or evidence.exit_code == 128 + signal.SIGKILL):
        return None
    killed = f"rank {rank.rank}" if rank else "a process"
    sentence = f"The host's memory ran out: the kernel's OOM killer ended {killed}"
    return _Verdict("out_of_memory", "host_memory", sentence)


def _told(evidence: EndEvidence, lines: list[str], cause: RootCause | None) -> _Verdict | None:
    """Return what the log itself says; after a kill only that the host's memory was short."""
    diverged = causes.search(lines, causes.RULES[:1])
    if diverged is not None:
        return _of(diverged, cause)
    number = -cause.code if cause and cause.code < 0 else (evidence.exit_code or 0) - 128
    if number in {signal.SIGKILL, signal.SIGTERM, signal.SIGINT}:
        found = causes.search(lines, causes.HOST_MEMORY)
        return _of(found, cause) if found else None
    found = exceptions(lines)
    # That which ended the run, not one that another rank's end caused.
    own = [one for one in found if not causes.CONSEQUENCE.search(one.text)]
    of_rank = [one for one in own if cause and one.rank == cause.rank]
    raised = next((chosen[-1] for chosen in (of_rank, own, found) if chosen), None)
    if raised is not None:
        message = lines[raised.line : raised.line + MESSAGE_LINES]
        found = causes.search(message[:1], first=raised.line) or causes.search(
            message[1:], first=raised.line + 1
        )
        consequence = causes.CONSEQUENCE.search(lines[raised.line])
        if found is not None and not (consequence and found.rule.status == "failed"):
            return _of(found, cause, raised.rank)
        if not consequence:
            return _of_exception(raised, cause)
    found = causes.search(lines)
    if found is not None:
        return _of(found, cause)
    return _of_exception(raised, cause) if raised is not None else None


def _of(found: causes.Found, cause: RootCause | None, rank: int | None = None) -> _Verdict:
    if rank is None and cause and cause.code > 0:
        rank = cause.rank
    text = causes.sentence(found, rank)
    return _Verdict(found.rule.status, found.rule.cause, text, found.line)


def _of_exception(raised: Raised, cause: RootCause | None) -> _Verdict:
    rank = cause.rank if raised.rank is None and cause else raised.rank
    where = "" if rank is None else f" on rank {rank}"
    text = raised.text[:REASON_CHARACTERS].rstrip(".: ")
    return _Verdict("failed", "python_error", f"The trainer failed{where}: {text}", raised.line)


def _unexplained(evidence: EndEvidence, cause: RootCause | None) -> _Verdict:
    """Return the verdict on an end of which the log says nothing."""
    if cause and cause.code < 0:
        number = -cause.code
        sentence = f"Rank {cause.rank} was ended by {signal_name(number)}{_HINTS.get(number, '')}"
        return _Verdict("failed", "signal", sentence)
    code = evidence.exit_code
    if code is not None and code > 128 and not cause:
        name, hint = signal_name(code - 128), _HINTS.get(code - 128, "")
        return _Verdict("failed", "signal", f"The launcher (torchrun) was ended by {name}{hint}")
    if code == 0:
        return _Verdict("failed", "ended_early", "The trainer ended without an error, but early")
    rank = f" on rank {cause.rank}" if cause else ""
    code = cause.code if cause else code
    sentence = f"The trainer ended with exit code {code}{rank}, without a message"
    return _Verdict("failed", "exit_code", sentence)


def signal_name(number: int) -> str:
    """Return the name of a signal, or its number where it has none here."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


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
