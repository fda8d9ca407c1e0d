"""Why and how a run ended, from what its log says.

A rule looks at one line at a time, and lines are cut before (see ``running.outcome``): a log is
untrusted, and no line of it may cost more than its length.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

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


def _rule(status: Status, cause: str, sentence: str, hint: str, *texts: str) -> Rule:
    return Rule(status, cause, re.compile("|".join(texts)), sentence, hint)


def _behind(start: str, end: str, most: int = 120) -> str:
    """Return a pattern of one text behind another with at most N characters between them.

    Another start ends the way from the one before, so that no character is looked at from each of
    many starts.
    """
    return rf"(?:{start})(?:(?!{start}).){{0,{most}}}?{end}"


# Their own text says what happened; the first rule that finds a line wins.
RULES = (
    _rule(
        "diverged", "not_finite", "Training diverged", "",
        r"\bDIVERGED\b[:\s]*(?P<what>.*)",
    ),
    _rule(  # Megatron-Core: param_and_grad_buffer, rerun_state_machine
        "diverged", "not_finite", "Training diverged: a loss or gradient was not finite", "",
        r"found (?:NaN|Inf) in local (?:grad norm|forward loss)", r"Unexpected result (?:nan|inf)",
    ),
    _rule(
        "out_of_memory", "gpu_memory", "The GPU's memory ran out", "",
        r"(?:CUDA|HIP|XPU) out of memory\. Tried to allocate (?P<size>[\d.]+ \w+)"
        r"(?:.*?total capacity of (?P<total>[\d.]+ \w+))?",
    ),
    _rule(
        "out_of_memory", "gpu_memory", "The GPU's memory ran out", "",
        r"OutOfMemoryError", r"(?:CUDA|HIP) (?:[Ee]rror: )?out of memory",
        r"(?:hip|cuda)Error(?:OutOfMemory|MemoryAllocation)", r"CUDA_ERROR_OUT_OF_MEMORY",
        r"(?:Cuda|CUDA|HIP|Hip) failure (?:\d+ )?'out of memory'",
        r"Failed to (?:CUDA|Cuda|HIP) [cm]alloc", _behind("NCCL|RCCL|nccl", "out of memory"),
    ),
    _rule(
        "out_of_memory", "gpu_memory", "The GPU's memory ran out", " for a library's work space",
        r"(?:CU|HIP)(?:BLAS|SOLVER|SPARSE)_STATUS_ALLOC_FAILED", r"CUDNN_STATUS_ALLOC_FAILED",
        r"CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", r"miopenStatusAllocFailed",
        r"rocblas_status_memory_error",
    ),
    _rule(
        "failed", "collective_error", "The collective library could not pin memory",
        ": raise the limit on locked memory (ulimit -l unlimited)",
        _behind(
            r"ibv_(?:reg_mr|create_)\w{0,40}+ failed", "(?:Cannot allocate memory|error 12)"
        ),
    ),
    _rule(
        "failed", "shared_memory", "Shared memory ran out", f": {SHM_HINT}",
        r"insufficient shared memory", r"creating shared memory segment",
        r"unable to (?:mmap|write to file|allocate shared memory|open shared memory object)\b",
    ),
    _rule(
        "out_of_memory", "host_memory", "The host's memory ran out", "",
        r"DefaultCPUAllocator: (?:can't|not enough memory)", r"\bMemoryError\b",
        r"std::bad_alloc", r"Cannot allocate memory", r"Out of memory: Killed process",
        r"oom[-_]kill", r"\bOOMKilled\b",
        r"DataLoader worker \(pid[^)]{0,20}\) is killed by signal: Killed",
    ),
    _rule(  # before timeouts: the other ranks wait for the one whose GPU failed
        "failed", "gpu_fault", "The GPU reported a fault", "",
        r"(?P<what>Memory access fault by GPU node-\d+|HW Exception by GPU node-\d+|GPU Hang)",
        r"(?P<error>an illegal memory access was encountered|unspecified launch failure"
        r"|uncorrectable (?:ECC|NVLink) error\w*|device-side assert triggered"
        r"|GPU has fallen off the bus|GPU is lost"
        r"|(?:CU|HIP)BLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR))",
        r"(?P<status>HSA_STATUS_ERROR\w*|\bXid \([^)]{0,60}\): ?\d{1,4})",
    ),
    _rule(
        "failed", "no_gpu", "The program found no GPU", "",
        r"No (?:HIP|CUDA) GPUs are available", r"no (?:CUDA|ROCm)-capable device is detected",
        r"(?:hip|cuda)ErrorNoDevice", r"Found no NVIDIA driver",
    ),
    _rule(
        "timeout", "collective_timeout", "A collective did not finish in time",
        ": another rank hung, died or took another path",
        r"Watchdog caught collective operation timeout(?:.{0,200}?OpType=(?P<op>\w+))?"
        r"(?:.{0,200}?Timeout\(ms\)=(?P<limit>\d{1,12}))?",
    ),
    _rule(
        "timeout", "collective_timeout", "A collective did not finish in time",
        ": another rank hung, died or took another path",
        r"Timed out waiting (?P<limit>\d{1,12})ms for (?P<op>\w+) operation to complete",
    ),
    _rule(
        "timeout", "collective_timeout", "A collective did not finish in time",
        ": a rank or a library call hung",
        r"Heartbeat monitor timed out",
        r"watchdog got stuck for (?P<seconds>\d{1,9}) seconds",
        r"Received a dump signal due to a collective timeout", r"ProcessGroupNCCL watchdog hang",
    ),
    _rule(
        "timeout", "rendezvous_timeout", "The processes did not find one another in time", "",
        r"client socket has timed out after", r"seconds waiting for clients", r"Socket Timeout",
        r"wait timeout after (?P<limit>\d{1,12})ms",
    ),
    _rule(
        "failed", "gpu_code", "This build of torch or of a library has no code for this GPU", "",
        r"no kernel image is available", r"hipErrorNoBinaryForGpu", r"invalid device function",
    ),
    _rule(
        "failed", "no_space", "The file system is full", "", r"No space left on device",
    ),
    _rule(
        "failed", "collective_error", "The collective library failed", "",
        _behind(
            "[NR]CCL (?:error|WARN)",
            r"(?P<what>unhandled \w{1,60}+ error|Call to \w{1,60}+ failed)",
            most=300,
        ),
        r"(?P<error>ncclRemoteError|ncclSystemError|ncclInternalError)",
    ),
    _rule(
        "failed", "missing_module", "A Python module is missing", "",
        r"No module named '(?P<what>[\w.]+)'",
    ),
    _rule(
        "failed", "refused", "The trainer refused to start", "",
        r"^scalebook\.train: (?P<what>.+)",
    ),
    _rule(
        "failed", "native_error", "The trainer's native code failed", "",
        r"^(?:\[rank\d+\]:)?\s*what\(\):\s*(?P<what>.{1,300})",
    ),
)  # fmt: skip
# For logs from elsewhere, of which nothing else is known: what launchers report of a process.
LOG_RULES = (
    *RULES,
    _rule(  # torchrun's report
        "failed", "signal", "A process was ended by a signal",
        " (9: by a person, or by the system because memory ran out)",
        r"exit ?code\s*: ?(?P<what>-\d{1,2})\b", r"exit code (?P<error>-\d{1,2})\b",
        r"(?P<status>Signal \d{1,2} \(SIG\w+\) received by PID)",
        r"^\s*Killed\s*$", r": line \d{1,9}: +\d{1,9} Killed\b",
    ),
    _rule(
        "failed", "signal", "A process ended with a bus error", f" (often {SHM_HINT})",
        r"\bBus error\b", r"Signal 7 \(SIGBUS\)",
    ),
)  # fmt: skip
# Every line that a rule recognises holds one of these pieces, which are fast to look for.
PIECES = (
    "DIVERGED", " in local ", "Unexpected result", "ut of memory", "OutOfMemory", "OUT_OF_MEMORY",
    "MemoryAllocation", "ALLOC_FAILED", "ALLOCATION_FAILED", "AllocFailed", "Failed to ",
    "memory_error", "ibv_", "shared memory", "unable to ", "can't allocate", "not enough memory",
    "MemoryError", "bad_alloc", "Cannot allocate", "oom-kill", "oom_kill", "GPU node-", "GPU Hang",
    "OOMKilled", "is killed by signal", "watchdog hang", "BLAS_STATUS_",
    "illegal memory access", "launch failure", "uncorrectable", "device-side assert",
    "fallen off the bus", "GPU is lost", "HSA_STATUS_ERROR", "Xid (", "GPUs are available",
    "-capable device", "ErrorNoDevice", "no NVIDIA driver", "Watchdog caught", "Timed out waiting",
    "Heartbeat monitor", "watchdog got stuck", "dump signal", "timed out after",
    "waiting for clients", "Socket Timeout", "wait timeout", "no kernel image",
    "NoBinaryForGpu", "invalid device function", "No space left", "CCL error", "CCL WARN",
    "ncclRemoteError", "ncclSystemError", "ncclInternalError", "No module named",
    "scalebook.train: ", "what():", "exitcode", "exit code", "received by PID", "Killed",
    "Bus error",
)  # fmt: skip
HOST_MEMORY = tuple(rule for rule in RULES if rule.cause == "host_memory")

# What a rank says when another one has failed: no cause by itself.
CONSEQUENCE = re.compile(
    r"Connection (?:closed|reset) by (?:remote )?peer|Broken pipe|communicator was aborted"
    r"|remote process exited|ncclRemoteError|Failed to recv, got 0 bytes|Socket closed"
    r"|caused pair closure|unhandled \w+ error|DistNetworkError|DistStoreError|ChildFailedError"
    r"|SignalException|RendezvousConnectionError"
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
    parts += _bracket(groups)
    for name in ("what", "error", "status"):
        parts += [f": {groups[name].rstrip('. ')}"] if name in groups else []
    return "".join(parts) + found.rule.hint


def _bracket(groups: dict[str, str]) -> list[str]:
    """Return which operation took longer than what, in brackets."""
    inside = [groups["op"]] if "op" in groups else []
    inside += [f"{int(groups['limit']) / 1000:g} s"] if "limit" in groups else []
    inside += [f"{groups['seconds']} s"] if "seconds" in groups else []
    return [f" ({', '.join(inside)})"] if inside else []


TRACEBACK = "Traceback (most recent call last)"
ONE_PROCESS = "exits successfully"  # DeepSpeed's launcher: another process may have failed
# Literal pieces of further lines that tell an end, in order of weight within one line.
ENDINGS: tuple[tuple[str, Status], ...] = (
    ("RESOURCE_EXHAUSTED", "out_of_memory"),
    ("collective operation timeout", "timeout"),
    ("DUE TO TIME LIMIT", "interrupted"),
    ("KeyboardInterrupt", "interrupted"),
    ("DUE TO PREEMPTION", "interrupted"),
    ("DUE TO NODE FAILURE", "failed"),
    ("CANCELLED AT", "interrupted"),
    ("Received SIGTERM", "interrupted"),
    ("SIGTERM death signal", "interrupted"),
    ("SIGINT death signal", "interrupted"),
    ("got signal: 15", "interrupted"),
    ("signal 15", "interrupted"),
    ("exiting program", "interrupted"),
    ("process received SIGINT", "interrupted"),
    ("job killed: walltime", "interrupted"),  # PBS
    ("TERM_RUNLIMIT", "interrupted"),  # LSF
    ("Exited with exit code", "failed"),
    ("Segmentation fault", "failed"),
    ("ChildFailedError", "failed"),
    (TRACEBACK, "failed"),
    ("Root Cause (first observed failure)", "failed"),
    ("terminate called after throwing", "failed"),
    ("NODE_FAIL", "failed"),
    ("srun: error:", "failed"),
    ("after training is done", "completed"),
    ("torchrun exited with code 0", "completed"),
    ("EXIT_CODE=0", "completed"),
    (ONE_PROCESS, "completed"),
    ("stopping_early: wallclock_cap", "completed"),
    ("Training done", "completed"),
    ("Total training time: ", "completed"),
    ("Successfully completed.", "completed"),  # LSF
    ("Training completed", "completed"),
    ("Training finished", "completed"),
    ("Training time: ", "completed"),  # LitGPT
    ("trainer finished", "completed"),
    ("`Trainer.fit` stopped: `max_steps=", "completed"),
)
# Pieces of lines behind which a step may be held up by something else than training.
HOLDS = (
    "saving checkpoint", "Saving checkpoint", "aving model checkpoint", "saved checkpoint",
    "aving the checkpoint", "validation loss at", "unning Evaluation", "unning evaluation",
    "unning validation", "umping profiler", "rofiler trace", "tarting profil", "topping profil",
    "ecompiling", "ecompilation",
)  # fmt: skip
_WEIGHT = {"out_of_memory": 50, "timeout": 40, "interrupted": 30, "failed": 10, "completed": 0}
_EXCEPTION_WEIGHT = 20  # over the bare header of its traceback
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


def ending(line: str) -> Ending | None:
    """Return what a line says about the end of the run, None where it says nothing."""
    shown = line.strip()[:300]
    if any(piece in line for piece in PIECES):
        found = search([line[:_LONGEST]], LOG_RULES)
        if found is not None:
            weight = _OF_A_RULE - LOG_RULES.index(found.rule)
            rule = found.rule
            return Ending(rule.status, shown, weight, rule.cause, sentence(found, None))
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
    return Ending("failed", text, _EXCEPTION_WEIGHT, "python_error", sentence)


def mentions_ending(text: str) -> bool:
    """Whether any line of a text may say how a run ended."""
    return (
        any(piece in text for piece, _ in ENDINGS)
        or any(piece in text for piece in PIECES)
        or any(piece in text for piece in _RAISES)
    )


def holds_up(text: str) -> bool:
    """Whether a text mentions a checkpoint, an evaluation, a profiler or a compilation."""
    return any(piece in text for piece in HOLDS)


def weightier(first: Ending | None, second: Ending) -> Ending:
    """Return the one that explains more: an out-of-memory error over the traceback it causes."""
    return second if first is None or second.weight > first.weight else first
