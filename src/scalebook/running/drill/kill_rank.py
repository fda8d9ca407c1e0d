"""Find one rank of a running training, kill it at a chosen moment, and see when it is there again.

A rank is the process that torchrun started for it; what that process forks has the same
environment, so a parent of the same rank tells a child from the rank itself. Children that outlive
a killed rank are of an earlier start.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from scalebook.measure.reliability import CHECKPOINTS, UNFINISHED
from scalebook.running import finish_run, processes
from scalebook.running.progress import Tail

POLL_SECONDS = 0.01  # between two looks at a file
SEARCH_SECONDS = 0.05  # between two looks at all processes: how exactly their start is known


@dataclass(frozen=True, slots=True)
class KillOrder:
    """Which rank to kill, and when: after ``step`` is finished, or in the next save after it."""

    rank: int
    step: int
    during_save: bool = False


class Killer(threading.Thread):
    """Carries out an order on the run in a directory. Times are seconds since the epoch.

    ``killed_at`` is None until the rank is killed, ``started_at`` until its next process is there.
    """

    def __init__(self, directory: Path, run_id: str, order: KillOrder) -> None:
        super().__init__(daemon=True)
        self.directory, self.run_id, self.order = directory, run_id, order
        self.killed_at: float | None = None
        self.started_at: float | None = None
        self.in_save = False  # whether a checkpoint was being saved when the rank died
        self.clock_moved_seconds = 0.0  # by which the clock was set meanwhile
        self._clock = time.time() - finish_run.boot_seconds()
        self._ended = threading.Event()

    def run(self) -> None:
        """Wait for the moment, kill, and wait for the next process of the rank."""
        victim = self._wait()
        if victim is None:
            return
        os.kill(victim, signal.SIGKILL)
        self.killed_at = time.time()
        self.in_save = self._saving()
        while not self._ended.wait(SEARCH_SECONDS):
            if self._rank(1) is not None:
                self.started_at = time.time()
                return

    def end(self) -> None:
        """Give up what is not done yet: the run is over."""
        self._ended.set()
        self.join()
        self.clock_moved_seconds = time.time() - finish_run.boot_seconds() - self._clock

    def _wait(self) -> int | None:
        """Return the process to kill when it is time; None if the run ends before."""
        tail = Tail(self.directory / "steps.jsonl")
        while not self._ended.wait(POLL_SECONDS):
            last = tail.read()
            if last is None or last.step < self.order.step:
                continue
            if self.order.during_save and not self._saving(self.order.step):
                continue
            return self._rank(0)
        return None

    def _rank(self, restarts: int) -> int | None:
        """Return the process of the ordered rank after so many restarts."""
        start = finish_run.start_of(self.directory)
        if start is None:
            return None
        return processes.rank_process(self.run_id, self.order.rank, restarts, start)

    def _saving(self, step: int = 0) -> bool:
        """Return whether a checkpoint of this step or a later one is being saved.

        An earlier one may still be written beside the training, and be the first of all.
        """
        found = (self.directory / CHECKPOINTS).glob(f"{UNFINISHED}*")
        return any(int(path.name.removeprefix(UNFINISHED)[:8]) >= step for path in found)
