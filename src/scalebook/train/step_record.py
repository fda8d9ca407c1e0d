"""What the ranks know of a step becomes one StepRecord, written as soon as the step is done."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO, cast

import torch

from scalebook.config import RunConfig
from scalebook.record import Phase, StepRecord
from scalebook.train.experts import routing
from scalebook.train.trainer import Trainer
from scalebook.train.world import distributed, restart_count

GIB = 2**30


@dataclass(frozen=True, slots=True)
class RankStep:
    """What a step came to on one rank. ``loss`` is None on ranks that do not see the loss."""

    loss: float | None
    grad_norm: float | None
    learning_rate: float
    skipped: bool


def phase(step: int, warmup_steps: int, steps: int | None = None) -> Phase:
    """Return the phase of a step, counted from 1; the first step is always start-up.

    Steps after the ``steps`` that were asked for run under the profiler.
    """
    if steps is not None and step > steps:
        return "profiled"
    if step == 1:
        return "startup"
    return "warmup" if step <= warmup_steps else "measured"


def now() -> str:
    """Return the time as it stands in records, with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def gather(trainer: Trainer, number: int, seconds_taken: float, step: RankStep) -> StepRecord:
    """Return the record of a step over all ranks; every rank must call this.

    The loss is the mean over the ranks that see it, which hold equally many tokens each. Counters
    begin anew.
    """
    config, world = trainer.config, trainer.world
    parts_taken, routed_here = trainer.marks.take(), trainer.routing.take()
    allocated = reserved = 0.0
    if world.on_gpu:
        allocated = torch.cuda.max_memory_allocated() / GIB
        reserved = torch.cuda.max_memory_reserved() / GIB
    has_loss = step.loss is not None
    own = [seconds_taken, step.loss or 0.0, float(has_loss), allocated, reserved]
    own += [*parts_taken.values(), *routed_here]
    local = torch.tensor(own, dtype=torch.float64, device=world.device)
    table = [torch.empty_like(local) for _ in range(world.size)]
    distributed.all_gather(table, local)
    columns: list[list[float]] = cast("Any", torch.stack(table).T).tolist()
    seconds, losses, seen, allocated_all, reserved_all, *rest = columns
    parts, routed = rest[: len(parts_taken)], rest[len(parts_taken) :]
    return StepRecord(
        step=number,
        phase=phase(number, config.warmup_steps, config.steps),
        step_seconds=max(seconds),
        tokens=config.tokens_per_step,
        loss=_finite(sum(losses) / sum(seen)),
        grad_norm=_finite(step.grad_norm),
        learning_rate=step.learning_rate,
        allocated_gib=max(allocated_all) if world.on_gpu else None,
        reserved_gib=max(reserved_all) if world.on_gpu else None,
        rank_step_seconds=tuple(seconds),
        part_seconds={
            name: sum(times) / world.size for name, times in zip(parts_taken, parts, strict=True)
        },
        expert_load=routing.load(routed, config.pipeline_parallel_size),
        skipped=step.skipped,
        finished_at=now(),
    )


def progress(record: StepRecord, config: RunConfig) -> str:
    """Return the line that a person watching the log reads."""
    loss = "not finite" if record.loss is None else f"{record.loss:.4f}"
    seconds = max(record.rank_step_seconds)
    return (
        f"step {record.step}/{config.steps} loss {loss} {seconds * 1e3:.1f} ms "
        f"{config.tokens_per_step / seconds:.0f} tokens/s"
    )


def open_steps(output: Path) -> TextIO:
    """Return steps.jsonl of a run directory, opened so that each line is on disk when written.

    A run that was started again after a process died adds to what it has.
    """
    path = output / "steps.jsonl"
    mode = "a" if restart_count() else "w"
    stream = path.open(mode, encoding="utf-8", buffering=1)
    if mode == "a" and path.stat().st_size and not path.read_bytes().endswith(b"\n"):
        stream.write("\n")  # the line that the death cut off
    return stream
