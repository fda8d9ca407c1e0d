"""What a drill shows: how long each part of the recovery took, and whether the losses go on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from scalebook import store
from scalebook.measure.reliability import CheckpointRecord, DrillRecord, read_checkpoints
from scalebook.record import RunRecord, StepRecord
from scalebook.running import finish_run, progress
from scalebook.running.drill.kill_rank import Killer

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
    what = "while a checkpoint was saved" if drill.kill_during == "save" else ""
    gone = f"from the checkpoint of step {drill.resumed_step}"
    if drill.resumed_step is None:
        gone = "without a checkpoint"
    return " ".join(
        f"Recovery drill: rank {drill.kill_rank} was killed after step {drill.last_step} {what}; "
        f"training went on {gone}.".replace(" ;", ";").split()
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
    if abs(killer.clock_moved_seconds) > CLOCK_SECONDS:  # no difference of two times is right
        return drill.model_copy(update={"passed": _passed(record, drill, resumed, saved)})
    timings = _timings(killer, noticed, load, after, last_step)
    return drill.model_copy(update={**timings, "passed": _passed(record, drill, resumed, saved)})


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
    killed, started = killer.killed_at, killer.started_at
    loading = _seconds(load.started_at) if load else None
    loaded = _seconds(load.finished_at) if load else None
    first = next((line for line in after), None)
    regained = next((line for line in after if line.step > last_step), None)
    stepped = _seconds(first.finished_at) if first else None
    return {
        "detection_seconds": _between(killed, noticed),
        "start_seconds": _between(noticed, started),
        "build_seconds": _between(started, loading),
        "load_seconds": _between(loading, loaded),
        "step_seconds": _between(loaded, stepped),
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
