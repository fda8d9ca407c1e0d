"""Find and end every process of one run, also those that left its session or lost their parent.

torchrun starts each rank in a session of its own, so ending its process group is not enough: a
killed torchrun leaves its ranks behind, with the GPUs' memory. Every process of a run inherits a
mark in its environment instead, and /proc tells who carries it. Without /proc (macOS) nothing is
found, and ending the launcher's own process group has to do.

Processes that the kernel's OOM killer ended while a run went on are counted here too, as far as
the kernel tells us.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from scalebook.query import said, said_of

MARK = "SCALEBOOK_RUN"  # environment variable that holds the run id
# One that tells this start of a run from another of the same id: two folders of runs may hold the
# same configuration, started in the same second on the same machine.
START = "SCALEBOOK_RUN_START"
PROC = Path("/proc")
LOADING_SECONDS = 1.0  # for the kernel to load a program: a millisecond, 0.1 s under load
KILL_SECONDS = 30.0  # a process that waits for a broken disk or driver dies when that answers
CGROUP = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
KERNEL_LOG = Path("/dev/kmsg")
_KILLED = re.compile(r"\b[Kk]illed process (\d{1,9})\b")
_LONGEST = 8192  # bytes of a record of the kernel's log
_MOST_RECORDS = 100_000  # more than any kernel's buffer holds


STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # what asks a command to end


@contextmanager
def handled(
    handler: Callable[[int, FrameType | None], None], numbers: Iterable[signal.Signals] = STOPPING
) -> Generator[None]:
    """Let a function take signals meanwhile; the handlers from before come back."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def shell_code(code: int) -> int:
    """Return an exit code as a shell gives it: 128 + n for signal n."""
    return 128 - code if code < 0 else code


def marked(run_id: str, start: str | None = None) -> tuple[int, ...]:
    """Return the ids of the processes that carry this run's mark, except the caller.

    Where ``start`` is given, only those of this very start of it.
    """
    needles = {f"{MARK}={run_id}".encode()}
    if start is not None:
        needles.add(f"{START}={start}".encode())
    return tuple(
        int(path.name)
        for path in PROC.glob("[0-9]*")
        if int(path.name) != os.getpid() and needles <= _environment(path)
    )


def _environment(path: Path) -> set[bytes]:
    """Return the NAME=value entries a process was started with; none if it is gone or another's.

    While its program is being loaded it has no arguments and no environment yet: under load a
    tenth of a second after its start. It is waited for, or it would outlive the end of its run.
    """
    deadline = time.monotonic() + LOADING_SECONDS
    try:
        while not (entries := (path / "environ").read_bytes()):
            path.joinpath("exe").readlink()  # a thread of the kernel or a dead process has none
            if (path / "cmdline").read_bytes() or time.monotonic() > deadline:
                entries = (path / "environ").read_bytes()  # both come at once, after the look above
                break
            time.sleep(0.005)
    except OSError:
        return set()
    return set(entries.split(b"\0"))


def ranks(run_id: str, start: str | None = None, restarts: int | None = None) -> dict[int, int]:
    """Return the process ids of a run's ranks on this machine, by rank.

    ``restarts``: only of ranks that were started again this number of times.
    """
    found = ((_rank(process_id, restarts), process_id) for process_id in marked(run_id, start))
    # What a rank forks has its environment: only a process whose parent is no such rank counts.
    return {
        rank: process_id
        for rank, process_id in found
        if rank is not None and rank != _rank(_parent(process_id), restarts)
    }


def _rank(process_id: int | None, restarts: int | None) -> int | None:
    found = variables(process_id, ("RANK", "TORCHELASTIC_RESTART_COUNT"))
    text = found.get("RANK", "")
    other = restarts is not None and found.get("TORCHELASTIC_RESTART_COUNT") != str(restarts)
    return int(text) if text.isdigit() and not other else None


def variables(process_id: int | None, names: Collection[str]) -> dict[str, str]:
    """Return those variables that a process was started with; none where it is gone."""
    if process_id is None:
        return {}
    entries = _environment(PROC / str(process_id))
    pairs = (entry.decode(errors="replace").partition("=") for entry in entries)
    return {name: value for name, _, value in pairs if name in names}


def _parent(process_id: int) -> int | None:
    fields = _status_fields(process_id)
    return int(fields[1]) if fields else None


def state(process_id: int) -> str | None:
    """Return the letter of a process's state (R, S, D, T, Z, ...), None where it is gone."""
    fields = _status_fields(process_id)
    return fields[0] if fields else None


def _status_fields(process_id: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, which may hold anything."""
    return said(PROC / str(process_id) / "stat").rpartition(")")[2].split()


def catches(process_id: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler for a signal."""
    mask = said_of(PROC / str(process_id) / "status", r"^SigCgt:\s*([0-9a-f]+)$")
    return bool(int(mask or "0", 16) >> (number - 1) & 1)


def send(run_id: str, number: signal.Signals, start: str | None = None) -> int:
    """Send a signal to every process of a run; return to how many."""
    reached = 0
    for process_id in marked(run_id, start):
        with suppress(ProcessLookupError):
            os.kill(process_id, number)
            reached += 1
    return reached


def end(run_id: str, grace_seconds: float = 0, *, start: str | None = None) -> bool:
    """End every process of a run (SIGTERM, after the grace SIGKILL); return if any was there.

    One that the kernel does not let die within ``KILL_SECONDS`` is left to it.
    """
    found = bool(marked(run_id, start))
    if found and grace_seconds > 0:
        send(run_id, signal.SIGTERM, start)
        _wait_until_gone(run_id, grace_seconds, start)
    deadline = time.monotonic() + KILL_SECONDS
    # Again: one may have started another meanwhile.
    while send(run_id, signal.SIGKILL, start) and time.monotonic() < deadline:
        _wait_until_gone(run_id, 1, start)
    return found


def _wait_until_gone(run_id: str, seconds: float, start: str | None) -> None:
    """Return when no process of the run is left, or after ``seconds`` seconds."""
    deadline = time.monotonic() + seconds
    while marked(run_id, start) and time.monotonic() < deadline:
        time.sleep(0.1)


def memory_kills(own: Path = OWN_CGROUPS, root: Path = CGROUP) -> int:
    """Return how many processes of this control group the kernel has ended because memory ran out.

    The kernel counts a process in its group whichever limit was reached, the group's or the
    machine's. In a container the group's path may be the host's: the mounted root has it then.
    """
    counts = (said_of(path, r"^oom_kill (\d+)$") for path in _counters(own, root))
    return int(next((count for count in counts if count is not None), 0))


def _counters(own: Path, root: Path) -> list[Path]:
    """Return the files that may hold the count, the best first: control groups 2, then 1."""
    groups = [line.split(":", 2) for line in said(own).splitlines() if line.count(":") >= 2]
    second = [path.lstrip("/") for number, names, path in groups if (number, names) == ("0", "")]
    first = [path.lstrip("/") for _, names, path in groups if "memory" in names.split(",")]
    return [
        *(root / path / "memory.events" for path in second),
        root / "memory.events",
        *(root / "memory" / path / "memory.oom_control" for path in first),
        root / "memory" / "memory.oom_control",
    ]


def killed_for_memory(since_seconds: float, log: Path = KERNEL_LOG) -> frozenset[int]:
    """Return the ids of processes that the kernel's log says it ended since a time of its clock.

    Empty where the log may not be read, as for most users. Ids are those of the machine: in a
    container with ids of its own none of them fits.
    """
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return frozenset()
    found: set[int] = set()
    try:
        for _ in range(_MOST_RECORDS):
            record = os.read(descriptor, _LONGEST)
            if not record:
                break
            found |= _ids(record.decode(errors="replace"), since_seconds)
    except OSError:  # nothing more to read, or the oldest records were dropped meanwhile
        pass
    finally:
        os.close(descriptor)
    return frozenset(found)


def _ids(text: str, since_seconds: float) -> set[int]:
    """Return the killed processes of records ``priority,number,microseconds,flags;message``."""
    found: set[int] = set()
    for line in text.splitlines():
        head, _, message = line.partition(";")
        fields = head.split(",")
        match = _KILLED.search(message)
        if match is None or len(fields) < 3 or not fields[2].isdigit():
            continue
        if int(fields[2]) / 1e6 >= since_seconds - 1:  # the clocks differ by milliseconds
            found.add(int(match[1]))
    return found
