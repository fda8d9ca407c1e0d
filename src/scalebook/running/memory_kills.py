"""Whether the kernel's OOM killer ended processes during a run, as far as its log can be read."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
KERNEL_LOG = Path("/dev/kmsg")
_KILLED = re.compile(r"\b[Kk]illed process (\d{1,9})\b")
_LONGEST = 8192  # bytes of a record of the kernel's log
_MOST_RECORDS = 100_000  # more than any kernel's buffer holds


@dataclass(frozen=True, slots=True)
class Before:
    """What was counted before a run: out-of-memory kills, and the kernel's clock."""

    count: int
    seconds: float


def before() -> Before:
    """Return what stands before a run."""
    return Before(count(), time.monotonic())


def since(start: Before) -> tuple[int, frozenset[int]]:
    """Return how many processes of this control group were ended since, and ids if it is known."""
    return max(count() - start.count, 0), killed(start.seconds)


def count(own: Path = OWN_CGROUPS, root: Path = CGROUP) -> int:
    """Return how many processes of this control group the kernel has ended because memory ran out.

    The kernel counts a process in its group whichever limit was reached, the group's or the
    machine's. In a container the group's path may be the host's: the mounted root has it then.
    """
    for path in _counters(own, root):
        try:
            match = re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE)
        except OSError:
            continue
        if match:
            return int(match[1])
    return 0


def _counters(own: Path, root: Path) -> list[Path]:
    """Return the files that may hold the count, the best first: control groups 2, then 1."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    groups = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    second = [path.lstrip("/") for number, names, path in groups if (number, names) == ("0", "")]
    first = [path.lstrip("/") for _, names, path in groups if "memory" in names.split(",")]
    return [
        *(root / path / "memory.events" for path in second),
        root / "memory.events",
        *(root / "memory" / path / "memory.oom_control" for path in first),
        root / "memory" / "memory.oom_control",
    ]


def killed(since_seconds: float, log: Path = KERNEL_LOG) -> frozenset[int]:
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
