"""Records of a job as the lines of steps.jsonl."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from scalebook.ingest.observe import Observation
from scalebook.logs.job import Job
from scalebook.record import LARGEST, Phase, StepRecord

_SLOW_START = 1.2  # times the median: still warming up
_MOST_WARMUP = 10


def _warmup(job: Job) -> int:
    """Return how many records at the start are slower, or faster, than the rest."""
    seconds, median = job.table.column("seconds"), job.table.median("seconds")
    most = min(_MOST_WARMUP, len(seconds) // 2)
    count = 0
    while median and count < most and not median / 2 <= seconds[count] <= median * _SLOW_START:
        count += 1  # the comparison is false for a missing time too
    return count


def _phase(job: Job, row: int, warmup: int) -> Phase:
    first = job.first_step
    if row == 0 and first is not None and first <= 1 and len(job.table) > 1:
        return "startup"
    return "warmup" if row < warmup else "measured"


def _tokens(row: Mapping[str, float], known: Observation) -> int | None:
    """Return the tokens of a step: from batch and sequence, else from the printed rate."""
    batch = row.get("global_batch_size", known.size("global_batch_size"))
    length = row.get("sequence_length", known.size("sequence_length"))
    if batch and length:
        return _whole(batch * length)
    rate = row.get("tokens_per_second")
    world = known.size("world_size")
    if rate is None and world and "tokens_per_second_per_gpu" in row:
        rate = row["tokens_per_second_per_gpu"] * world
    seconds = row.get("seconds")
    return _whole(round(rate * seconds)) if rate and seconds else None


def steps_of(job: Job, known: Observation) -> Iterator[StepRecord]:
    """Yield the records as lines of steps.jsonl; steps count from 1 there."""
    warmup = _warmup(job)
    shift = 1 if job.first_step == 0 else 1 - job.first_number
    for index in range(len(job.table)):
        row = job.table.row(index)
        number = _whole(row.get("step", math.nan) + shift)
        yield StepRecord(
            step=index + 1 if number is None else number,
            phase=_phase(job, index, warmup),
            step_seconds=row.get("seconds"),
            tokens=_tokens(row, known),
            loss=row.get("loss"),
            grad_norm=row.get("grad_norm"),
            learning_rate=row.get("learning_rate"),
            allocated_gib=_plain(row.get("allocated_gib", job.details.get("peak_allocated_gib"))),
            reserved_gib=_plain(row.get("reserved_gib", job.details.get("peak_reserved_gib"))),
            skipped=row.get("skipped", 0) > 0,
        )


def _whole(value: float) -> int | None:
    """Return a whole number that a record can hold, None for any other."""
    return int(value) if 0 <= value <= LARGEST else None


def _plain(value: object) -> float | None:
    return value if isinstance(value, float) and abs(value) <= LARGEST else None
