"""Records of a job as the lines of steps.jsonl."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from scalebook.logs.ingest.observe import Observation
from scalebook.logs.job import Job
from scalebook.record import LARGEST, Phase, StepRecord

_SLOW_START = 1.2  # times the median: still warming up
_MOST_WARMUP = 10
# A record that takes so many times the median is held up by something else than training, as
# long as few are: a profiler, a checkpoint, an evaluation, a compilation.
_STALL = 3.0
_MOST_STALLS = 0.2
_FEWEST = 5  # records by which a median means anything


def _evened(job: Job, known: Observation) -> list[float]:
    """Return what each record's step would take with the usual number of tokens (seconds)."""
    seconds = list(job.table.column("seconds"))
    tokens = [_tokens(job.table.row(index), known) for index in range(len(seconds))]
    usual = median([one for one in tokens if one] or [1])
    return [s * usual / (n or usual) for s, n in zip(seconds, tokens, strict=True)]


def _warmup(seconds: Sequence[float], usual: float | None) -> int:
    """Return how many records at the start are slower, or faster, than the rest."""
    most = min(_MOST_WARMUP, len(seconds) // 2)
    count = 0
    while usual and count < most and not usual / 2 <= seconds[count] <= usual * _SLOW_START:
        count += 1  # the comparison is false for a missing time too
    return count


def _stalls(
    seconds: Sequence[float], usual: float | None, warmup: int, held: Sequence[float]
) -> set[int]:
    """Return the records that are held up, by the log's words or beyond doubt; none where many."""
    if usual is None or len(seconds) < _FEWEST:
        return set()
    found = {
        row
        for row in range(warmup, len(seconds))
        if seconds[row] > (_SLOW_START if held[row] > 0 else _STALL) * usual
    }
    return found if len(found) <= _MOST_STALLS * len(seconds) else set()


def _phase(job: Job, row: int, warmup: int, stalls: set[int]) -> Phase:
    first = job.first_step
    if row == 0 and (first is None or first <= 1) and len(job.table) > 1:
        return "startup"
    if row in stalls:
        return "stalled"
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
    return _over_step(rate, row)


def _over_step(rate: float | None, row: Mapping[str, float]) -> int | None:
    """Return the tokens of a step at a rate, None without a rate or a time."""
    seconds = row.get("seconds")
    return _whole(round(rate * seconds)) if rate and seconds else None


def steps_of(job: Job, known: Observation) -> Iterator[StepRecord]:
    """Yield the records as lines of steps.jsonl; steps count from 1 there."""
    seconds = _evened(job, known)
    there = [value for value in seconds if not math.isnan(value)]
    usual = median(there) if there else None
    warmup = _warmup(seconds, usual)
    stalls = _stalls(seconds, usual, warmup, job.table.column("held"))
    shift = 1 if job.first_step == 0 else 1 - job.first_number
    for index in range(len(job.table)):
        row = job.table.row(index)
        number = _whole(row.get("step", math.nan) + shift)
        yield StepRecord(
            step=index + 1 if number is None else number,
            phase=_phase(job, index, warmup, stalls),
            step_seconds=row.get("seconds"),
            tokens=_tokens(row, known),
            tokens_per_gpu=None
            if known.size("world_size")
            else _over_step(row.get("tokens_per_second_per_gpu"), row),
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
