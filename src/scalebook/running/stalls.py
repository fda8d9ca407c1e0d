"""A run that makes no progress: when that is so, and which of its ranks stopped.

In a hang every rank but one waits for that one in a collective. A suspended or dead process is
seen in /proc; for the others the trainer prints its Python stack on SIGUSR1, and the only rank
that is not in a wait is the one that stopped. Where that is not clear, no rank is named.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scalebook import untrusted
from scalebook.measure.reliability import CHECKPOINTS, UNFINISHED
from scalebook.running import processes
from scalebook.running.progress import SLOW_STEPS, Tail

ANSWER_SECONDS = 2.0  # for a process to print its stack
_STATES = {"T": "it is suspended", "t": "it is being traced", "Z": "its process has died"}
_STACK = re.compile(r"most recent call first\):\n((?:  File .*\n)+)")
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')
# Where a healthy rank waits for the others; .item() of the loss waits in train_step itself.
_WAITS = re.compile(r"torch/(distributed|cuda)/|megatron/core/.*p2p|train/loop\.py.* train_step$")


@dataclass(slots=True)
class ProgressLimit:
    """Whether a run has made no progress for its limit: no step, no output and no checkpoint."""

    directory: Path
    seconds: int  # 0: no limit
    tail: Tail
    clock: Callable[[], float] = time.monotonic
    _seen: tuple[int, ...] = ()
    _since: float = field(default=0.0)

    def reached(self) -> bool:
        """Return whether the limit, or 5 median steps where those last longer, has passed."""
        seen = self._signs()
        if seen != self._seen:
            self._seen, self._since = seen, self.clock()
        if not self.seconds or self.clock() - self._since <= self._allowed():
            return False
        return not self._saving()

    def _allowed(self) -> float:
        median = self.tail.median_seconds()
        return max(float(self.seconds), SLOW_STEPS * median if median else 0.0)

    def _signs(self) -> tuple[int, ...]:
        step = self.tail.read()
        try:
            logs = self.directory.glob("train.log*")  # of all nodes: what one prints is progress
            output = sum(path.stat().st_size for path in logs)
        except OSError:
            output = 0
        return (step.step, step.restart, output) if step else (0, 0, output)

    def _saving(self) -> bool:
        """Return whether a checkpoint grew within the limit: a large one outlasts it."""
        files = (self.directory / CHECKPOINTS).glob(f"{UNFINISHED}*/**/*")
        return any(abs(time.time() - path.stat().st_mtime) < self.seconds for path in files)


def sentence(log: Path, run_id: str, start: str, seconds: int) -> str:
    """Return why a run without progress is ended, with the rank that stopped where it is clear.

    ``start`` is the mark of this machine's ranks (``processes.START``), which print into ``log``.
    """
    where = stopped_rank(processes.ranks(run_id, start), log)
    return f"No step for {seconds} s{f': {where}' if where else ''}"


def stopped_rank(ranks: Mapping[int, int], log: Path) -> str | None:
    """Return in words which rank (of process ids by rank) stopped and where; None: not clear."""
    for rank, process_id in sorted(ranks.items()):
        state = processes.state(process_id)
        if state in _STATES:
            return f"rank {rank} stopped, {_STATES[state]}"
    stacks = {rank: stack(process_id, log) for rank, process_id in sorted(ranks.items())}
    if len(stacks) < 2 or not all(stacks.values()):
        return None
    busy = [rank for rank, frames in stacks.items() if not any(map(_WAITS.search, frames))]
    if len(busy) != 1:
        return None
    return f"rank {busy[0]} stopped in {stacks[busy[0]][0]}, and the others wait for it"


def stack(process_id: int, log: Path) -> tuple[str, ...]:
    """Return the frames that a trainer prints into its log on request, the innermost first."""
    if not processes.catches(process_id, signal.SIGUSR1):  # it would end there
        return ()
    begin = log.stat().st_size
    deadline = time.monotonic() + ANSWER_SECONDS
    os.kill(process_id, signal.SIGUSR1)
    while time.monotonic() < deadline:
        time.sleep(0.1)  # long enough for the whole of it, which is written at once
        with untrusted.opened(log) as stream:
            stream.seek(begin)
            found = _STACK.search(stream.read(untrusted.MIB).decode(errors="replace"))
        if found:
            frames = _FRAME.finditer(found[1])
            return tuple(f"{one['file']}:{one['line']} {one['function']}" for one in frames)
    return ()
