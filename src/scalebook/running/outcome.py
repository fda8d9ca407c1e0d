"""What became of a run: its status and one sentence for a person, from how the trainer ended."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from scalebook.record import Status

LOG_TAIL_LINES = 15
DIVERGED_EXIT_CODE = 3  # the trainer's: loss or gradient was not finite

# From here on torchrun speaks of its own traceback; what went wrong stands above it.
_TORCHRUN_REPORT = re.compile(
    r"torch/distributed/elastic/\S+ (failed \(exitcode|Received \d+ death signal)"
    r"|Sending process \d+ closing signal"
)
_ROOT_CAUSE = re.compile(
    r"Root Cause.*?rank\s+: (?P<rank>\d+).*?exitcode\s+: (?P<code>-?\d+)", re.DOTALL
)
_EXCEPTION = re.compile(
    r"^(?:\[rank\d+\]:\s*)?(?P<text>(?:\w+\.)*\w*(?:Error|Exception|Exit)\b.*)$"
)
_RANK_OF_LINE = re.compile(r"\[rank(?P<rank>\d+)\]|\bGPU (?P<gpu>\d+) has a total capacity")


@dataclass(frozen=True, slots=True)
class Rule:
    """Text in a log that says what happened, and how to say it: sentence, details, hint."""

    status: Status
    pattern: re.Pattern[str]
    sentence: str
    hint: str = ""


# First match wins. The texts are those of torch, CUDA, HIP, NCCL, RCCL and Linux.
RULES = (
    Rule("diverged", re.compile(r"^.*\bDIVERGED\b[:\s]*(?P<what>.*)$", re.M), "Training diverged"),
    Rule(
        "out_of_memory",
        re.compile(
            r"(?:CUDA|HIP|XPU) out of memory\. Tried to allocate (?P<size>[\d.]+ \w+)"
            r"(?:.*?total capacity of (?P<total>[\d.]+ \w+))?"
        ),
        "The GPU's memory ran out",
    ),
    Rule(
        "out_of_memory",
        re.compile(
            r"OutOfMemoryError|(?:CUDA|HIP) out of memory|(?:CUDA|HIP) error: out of memory"
            r"|hipErrorOutOfMemory|cudaErrorMemoryAllocation|C[UI]BLAS_STATUS_ALLOC_FAILED"
            r"|HIPBLAS_STATUS_ALLOC_FAILED|(?:NCCL|RCCL|nccl\w*).{0,80}out of memory"
        ),
        "The GPU's memory ran out",
    ),
    Rule(
        "out_of_memory",
        re.compile(
            r"DefaultCPUAllocator: (?:can't|not enough memory)|MemoryError\b|std::bad_alloc"
            r"|Cannot allocate memory|Out of memory: Killed process|oom-kill"
        ),
        "The host's memory ran out",
    ),
    Rule(
        "failed",
        re.compile(
            r"Watchdog caught collective operation timeout(?:[^\n]*?OpType=(?P<op>\w+))?"
            r"(?:[^\n]*?Timeout\(ms\)=(?P<limit>\d+))?[^\n]*"
        ),
        "A collective did not finish in time",
        ": another rank hung, died or took another path",
    ),
    Rule(
        "failed",
        re.compile(
            r"(?:NCCL|RCCL) (?:error|WARN).*(?P<what>unhandled \w+ error|Call to \w+ failed)"
        ),
        "The collective library failed",
    ),
    Rule(
        "failed",
        re.compile(r"No module named '(?P<what>[\w.]+)'"),
        "A Python module is missing",
    ),
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known when the trainer has ended.

    ``stop`` is the status that the launcher gave as it ended the run itself, with its sentence.
    """

    exit_code: int | None  # of the launcher; None where it is not known
    steps_done: int
    steps_asked: int | None
    log: Sequence[str] = ()  # the last lines of train.log, some hundreds
    stop: tuple[Status, str] | None = None
    host_memory_kills: int = 0  # processes that the kernel's OOM killer ended meanwhile


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended; ``reason`` is one line, None when it completed."""

    status: Status
    reason: str | None
    log_tail: tuple[str, ...]


def classify(evidence: Evidence) -> Outcome:
    """Return the status of a run, why in one line, and the last lines of its log that tell."""
    lines = informative(evidence.log)
    tail = tuple(lines[-LOG_TAIL_LINES:])
    done = evidence.steps_done
    if evidence.exit_code == 0 and done >= (evidence.steps_asked or 1):
        return Outcome("completed", None, ())
    status, sentence = _explain(evidence, "\n".join(lines), "\n".join(evidence.log))
    reason = sentence if status == "illegal" else f"{sentence.rstrip('.')} {_where(evidence)}"
    return Outcome(status, reason, tail)


def informative(log: Sequence[str]) -> list[str]:
    """Return the lines of a log that are not torchrun's report about itself, nor empty."""
    kept: list[str] = []
    for line in log:
        if _TORCHRUN_REPORT.search(line):
            break
        if line.strip():
            kept.append(line.rstrip())
    return kept or [line.rstrip() for line in log if line.strip()]


def root_cause(log: str) -> tuple[int, int] | None:
    """Return the rank that failed first and its exit code (-n for signal n), as torchrun says."""
    matches = list(_ROOT_CAUSE.finditer(log))
    return (int(matches[-1]["rank"]), int(matches[-1]["code"])) if matches else None


def _where(evidence: Evidence) -> str:
    """Return how far the run came, in brackets."""
    if not evidence.steps_done:
        return "(before the first step)."
    of = f" of {evidence.steps_asked}" if evidence.steps_asked else ""
    return f"(after step {evidence.steps_done}{of})."


def _explain(evidence: Evidence, text: str, whole_log: str) -> tuple[Status, str]:
    """Return status and sentence of a run that did not complete."""
    if evidence.stop is not None:
        return evidence.stop
    cause = root_cause(whole_log)
    if evidence.host_memory_kills:
        killed = f"rank {cause[0]}" if cause and cause[1] == -signal.SIGKILL else "a process"
        return "out_of_memory", f"The host's memory ran out: the kernel's OOM killer ended {killed}"
    for rule in RULES:
        match = rule.pattern.search(text)
        if match:
            return rule.status, rule.sentence + _details(match, text, cause) + rule.hint
    if evidence.exit_code == DIVERGED_EXIT_CODE or (cause and cause[1] == DIVERGED_EXIT_CODE):
        return "diverged", "Training diverged: loss or gradient was not finite"
    if "death signal, shutting down workers" in whole_log or evidence.exit_code in {130, 143}:
        return "interrupted", "The run was asked to end from outside (SIGTERM or SIGINT)"
    return "failed", _failure(evidence, text, cause)


def _details(match: re.Match[str], text: str, cause: tuple[int, int] | None) -> str:
    """Return rank and figures that a matching line holds, as the rest of a sentence."""
    groups = {name: value for name, value in match.groupdict().items() if value}
    start = text.rfind("\n", 0, match.start()) + 1
    rank = _RANK_OF_LINE.search(text[start : text.find("\n", match.end())])
    parts: list[str] = []
    if rank and rank["rank"]:
        parts.append(f" on rank {rank['rank']}")
    elif cause and cause[1] > 0:
        parts.append(f" on rank {cause[0]}")
    if "size" in groups:
        total = f" of {groups['total']}" if "total" in groups else ""
        parts.append(f": {groups['size']} more did not fit{total}")
    if "op" in groups:
        limit = f", {int(groups['limit']) / 1000:g} s" if "limit" in groups else ""
        parts.append(f" ({groups['op']}{limit})")
    if "what" in groups:
        parts.append(f": {groups['what'].rstrip('.')}")
    return "".join(parts)


def _failure(evidence: Evidence, text: str, cause: tuple[int, int] | None) -> str:
    """Return the sentence for an end that no rule explains."""
    if cause and cause[1] < 0:
        return f"Rank {cause[0]} was ended by {signal_name(-cause[1])}{_hint(-cause[1])}"
    if evidence.exit_code is not None and evidence.exit_code > 128 and not cause:
        number = evidence.exit_code - 128
        return f"The launcher (torchrun) was ended by {signal_name(number)}{_hint(number)}"
    rank = f" on rank {cause[0]}" if cause else ""
    exceptions = [m["text"] for line in text.splitlines() if (m := _EXCEPTION.match(line))]
    if exceptions:
        return f"The trainer failed{rank}: {exceptions[-1][:300].rstrip('.: ')}"
    if evidence.exit_code == 0:
        return "The trainer ended without an error, but early"
    code = cause[1] if cause else evidence.exit_code
    return f"The trainer ended with exit code {code}{rank}, without a message"


def _hint(number: int) -> str:
    """Return what a signal usually means, for those that surprise."""
    if number == signal.SIGKILL:
        return " (by a person, or by the system for want of memory)"
    return ""


def signal_name(number: int) -> str:
    """Return the name of a signal, or its number where it has none here."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
