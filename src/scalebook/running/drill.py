"""The recovery drill: a rank is killed, torchrun starts all again, the last checkpoint is loaded.

Two runs of one configuration: one to the end as a reference, and one whose rank is killed. Both
are run directories like any other; the second has drill.json beside its record.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from scalebook import ownership, store
from scalebook.config import RunConfig
from scalebook.errors import ConfigError, LaunchError
from scalebook.measure.reliability import (
    CHECKPOINTS,
    DRILL_FILE,
    UNFINISHED,
    CheckpointRecord,
    DrillRecord,
    read_checkpoints,
)
from scalebook.record import RunRecord, StepRecord
from scalebook.running import finish_run, processes, progress, runner
from scalebook.running.kernel import RunOptions
from scalebook.running.progress import Tail
from scalebook.running.runner import DEFAULTS

POLL_SECONDS = 0.01  # between two looks at a file
SEARCH_SECONDS = 0.05  # between two looks at all processes: how exactly their start is known


@dataclass(frozen=True, slots=True)
class KillOrder:
    """Which rank to kill, and when: after ``step`` is finished, or in the next save after it.

    With ``saved`` it lives until a checkpoint is whole, which a save beside the training may be
    later than the next steps.
    """

    rank: int
    step: int
    during_save: bool = False
    saved: bool = False


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
            if self.order.saved and not read_checkpoints(self.directory)[0]:
                continue
            return self._rank(0)
        return None

    def _rank(self, restarts: int) -> int | None:
        """Return the process of the ordered rank after ``restarts`` restarts."""
        start = finish_run.start_of(self.directory)
        if start is None:
            return None
        return processes.ranks(self.run_id, start, restarts).get(self.order.rank)

    def _saving(self, step: int = 0) -> bool:
        """Return whether a checkpoint of this step or a later one is being saved.

        An earlier one may still be written beside the training, and be the first of all.
        """
        found = (self.directory / CHECKPOINTS).glob(f"{UNFINISHED}*")
        return any(int(path.name.removeprefix(UNFINISHED)[:8]) >= step for path in found)


# torchrun's word that a process is gone; its clock is the local one, without a year.
_NOTICED = re.compile(
    r"^[A-Z](?P<time>\d{4} \d\d:\d\d:\d\d\.\d+) .*(?:closing signal|failed \(exitcode)"
)
# Kernels of GPUs may add in another order each time. A state loaded without its optimizer's
# step counts was off by 1.3 % after one step (tiny-llama in fp32), so such a loss is not passed.
LOSS_TOLERANCE = 0.01

CLOCK_SECONDS = 0.5  # by which a clock may be corrected without harm to the times of a drill


def sentence(drill: DrillRecord) -> str:
    """Return a drill in one sentence, for the notes of its run."""
    what = " while a checkpoint was saved" if drill.kill_during == "save" else ""
    source = f"from the checkpoint of step {drill.resumed_step}"
    if drill.resumed_step is None:
        source = "without a checkpoint"
    return (
        f"Recovery drill: rank {drill.kill_rank} was killed after step {drill.last_step}{what}; "
        f"training continued {source}."
    )


def assess(
    directory: Path, record: RunRecord, killer: Killer, reference: store.Run | None
) -> DrillRecord:
    """Return what the files of a run and the one who killed its rank say about its recovery."""
    order, killed_at = killer.order, killer.killed_at or 0.0
    lines, _ = store.read_step_lines(directory / "steps.jsonl")
    checkpoints, _ = read_checkpoints(directory)
    before = [line for line in lines if not line.restart]
    after = [line for line in lines if line.restart]
    last_step = max((line.step for line in before), default=0)
    load = next((entry for entry in checkpoints if entry.kind == "load" and entry.restart), None)
    saved = [e.step for e in checkpoints if e.kind == "save" and not e.restart]
    noticed = _noticed(directory / "train.log", killed_at)
    compared = _differences(before, after, reference)
    resumed = load.step if load else 0
    drill = DrillRecord(
        kill_rank=order.rank,
        kill_during="save" if killer.in_save else "step",
        killed_at=datetime.fromtimestamp(killed_at, UTC).isoformat(timespec="milliseconds"),
        last_step=last_step,
        resumed_step=load.step if load else None,
        steps_lost=last_step - resumed if after else None,
        reference_run=reference.record.run_id if reference else None,
        compared_steps=len(compared),
        largest_loss_difference=max(compared, default=None),
        identical=not any(compared) if compared else None,
        notes=tuple(_notes(noticed, load, killer)),
    )
    update: dict[str, Any] = {"passed": _passed(record, drill, resumed, saved)}
    if abs(killer.clock_moved_seconds) <= CLOCK_SECONDS:  # else no difference of two times is right
        update |= _timings(killer, noticed, load, after, last_step)
    return drill.model_copy(update=update)


def _passed(record: RunRecord, drill: DrillRecord, resumed: int, saved: list[int]) -> bool:
    """Return whether training came back from the last whole checkpoint with the same losses."""
    exact = record.setting("platform") == "cpu" and record.setting("precision") == "fp32"
    difference = drill.largest_loss_difference
    same = difference is None or difference <= (0 if exact else LOSS_TOLERANCE)
    return record.status == "completed" and resumed == max(saved, default=0) and same


def _timings(
    killer: Killer,
    noticed: float | None,
    load: CheckpointRecord | None,
    after: list[StepRecord],
    last_step: int,
) -> dict[str, float | None]:
    """Return the parts of the time from the kill to the next steps, each None where unknown."""
    killed = killer.killed_at
    loading = _seconds(load.started_at) if load else None
    loaded = _seconds(load.finished_at) if load else None
    regained = next((line for line in after if line.step > last_step), None)
    stepped = _seconds(after[0].finished_at) if after else None
    marks = (killed, noticed, killer.started_at, loading, loaded, stepped)
    parts = zip(("detection", "start", "build", "load", "step"), pairwise(marks), strict=True)
    return {
        **{f"{name}_seconds": _between(*ends) for name, ends in parts},
        "next_step_seconds": _between(killed, stepped),
        "regained_seconds": _between(killed, _seconds(regained.finished_at) if regained else None),
    }


def _seconds(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None


def _between(begin: float | None, end: float | None) -> float | None:
    if begin is None or end is None:
        return None
    return round(max(end - begin, 0.0), 3)


def _noticed(log: Path, killed_at: float) -> float | None:
    """Return when torchrun first says that a process is gone, None where it does not say."""
    year = datetime.fromtimestamp(killed_at, UTC).astimezone().year
    for line in progress.last_lines(log, finish_run.LOG_LINES):
        match = _NOTICED.match(line)
        if match:
            when = datetime.strptime(f"{year}{match['time']}", "%Y%m%d %H:%M:%S.%f").astimezone()
            if when.timestamp() >= killed_at - 1:
                return when.timestamp()
    return None


def _differences(
    before: Iterable[StepRecord], after: Iterable[StepRecord], reference: store.Run | None
) -> list[float]:
    """Return relative differences of losses: after the kill against the reference, or before it.

    A loss that is not finite differs from every other.
    """
    old = {line.step: line.loss for line in before}
    wanted = {line.step: line.loss for line in reference.steps} if reference else {}
    found: list[float] = []
    for line in after:
        others = [known[line.step] for known in (old, wanted) if line.step in known]
        found += [_relative(line.loss, other) for other in others]
    found += [_relative(loss, wanted[step]) for step, loss in old.items() if step in wanted]
    return found


def _relative(loss: float | None, other: float | None) -> float:
    if loss is None or other is None:
        return 0.0 if loss is other else 1.0
    return 0.0 if loss == other else abs(loss - other) / max(abs(loss), abs(other))


def _notes(noticed: float | None, load: CheckpointRecord | None, killer: Killer) -> Iterable[str]:
    if abs(killer.clock_moved_seconds) > CLOCK_SECONDS:
        moved = f"by {abs(killer.clock_moved_seconds):.1f} s"
        yield f"The clock was set {moved} during the drill: no part of the time is known."
    if noticed is None:
        yield "The log does not say when torchrun noticed that the rank was gone."
    if killer.started_at is None:
        yield "No new process of the rank was seen."
    if load is None:
        yield "No checkpoint was loaded after the kill."
    if killer.order.during_save and not killer.in_save:
        yield "The save had ended before the rank was gone."


@dataclass(frozen=True, slots=True)
class Drilled:
    """What became of a drill: the record of the run whose rank was killed, and its timings."""

    record: RunRecord
    drill: DrillRecord
    path: Path


def ordered(config: RunConfig, rank: int | None, step: int | None, during_save: bool) -> KillOrder:
    """Return an order that this configuration can show something by.

    By default the last rank dies in the middle between the first checkpoint and the second, or as
    soon as a checkpoint is whole; for a kill in a save, in the second save.

    Raises:
        ConfigError: there is no such rank or step, or nothing would be loaded or done afterwards.
    """
    interval = config.checkpoint_interval
    if not 0 < interval < config.steps:
        raise ConfigError(
            f"checkpoint_interval={interval} saves nothing that a drill of steps={config.steps} "
            "could continue from. Use a smaller number of steps."
        )
    middle = min(interval + (interval + 1) // 2, config.steps - 1)
    chosen = step if step is not None else interval + 1 if during_save else middle
    victim = rank if rank is not None else config.world_size - 1
    if not 0 <= victim < config.world_size:
        raise ConfigError(
            f"--kill-rank {victim} is not a rank of world_size={config.world_size}. Ranks count "
            f"from 0 to {config.world_size - 1}."
        )
    if not 1 <= chosen < config.steps:
        raise ConfigError(
            f"--kill-step {chosen} leaves no step to continue with. Use 1 to {config.steps - 1}."
        )
    return KillOrder(victim, chosen, during_save, saved=step is None)


def reference(config: RunConfig, runs: Path, options: RunOptions = DEFAULTS) -> store.Run:
    """Train the configuration of a drill without a kill and return the published run.

    Raises:
        ConfigError: the configuration is illegal.
        LaunchError: this machine cannot run it, or it did not complete.
        KeyboardInterrupt: it was interrupted by hand; its record says so.
    """
    same = config.model_copy(update={"strategy": "drill_reference"})
    record = runner.train(same, replace(options, runs=str(runs)))
    path = runs / record.run_id
    if record.status == "interrupted":
        raise KeyboardInterrupt
    if record.status != "completed":
        raise LaunchError(f"The reference run did not complete: {record.reason} See {path}.")
    return store.read_run(path)


def drill(
    config: RunConfig,
    order: KillOrder,
    runs: Path,
    *,
    options: RunOptions = DEFAULTS,
    undisturbed: store.Run | None = None,
) -> Drilled:
    """Train, kill and return what was measured; the run is published under ``runs``.

    Losses are compared with those of ``undisturbed``, and between steps that were done twice.

    Raises:
        ConfigError: the configuration is illegal.
        LaunchError: this machine cannot run it, or has no /proc to find a rank in.
    """
    if not sys.platform.startswith("linux"):
        raise LaunchError("The drill finds the rank to kill in /proc, which only Linux has.")
    runner.check(config, force_platform=options.force_platform)
    config = config.model_copy(update={"strategy": "drill", "max_restarts": 1})
    partial = store.create_partial(runs, config)
    with ownership.owned(partial):
        killer = Killer(partial, finish_run.run_id(partial), order)
        killer.start()
        try:
            record = runner.train(config, replace(options, run_directory=str(partial)))
        finally:
            killer.end()
        if killer.killed_at is None:
            path = store.publish(partial)
            if record.status == "interrupted":
                raise KeyboardInterrupt
            why = record.reason or "Raise steps, or lower --kill-step."
            early = f"The run was {record.status} before rank {order.rank} was killed."
            raise LaunchError(f"{early} {why} See {path}.")
        result = assess(partial, record, killer, undisturbed)
        record = record.model_copy(update={"notes": (*record.notes, sentence(result))})
        store.write_json(partial / DRILL_FILE, result.model_dump(mode="json"))
        store.write_record(partial, record)
        return Drilled(record, result, store.publish(partial))
