"""What a run directory stores of a job: steps, device samples and how it ended."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from scalebook.logs.causes import AFTER_TRAINING, ENDED, Ending
from scalebook.logs.ingest.log_config import LogConfig
from scalebook.logs.job import ColumnTable, Job
from scalebook.logs.numbers import alternatives
from scalebook.record import LARGEST, PHASES, Phase, Status, StepRecord

_MEANS = alternatives("telemetry")["means"]
_SLOW_START = 1.2  # times the median: still warming up
_MOST_WARMUP = 10
# A record that takes so many times the median is held up by something else than training, as
# long as few are: a profiler, a checkpoint, an evaluation, a compilation.
_STALL = 3.0
_MOST_STALLS = 0.2
# More of them than this that no line announces recur: they belong to the training (an optimizer
# that does more every 10 steps).
_RECURRING = 0.05
_FEWEST_RECURRING = 10
_FEWEST_IN_TURN = 3  # at one distance of at most 20
_FEWEST = 5  # records by which a median means anything


def _evened(job: Job, known: LogConfig) -> list[float]:
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
    """Return the records that are held up, by the log's words or beyond doubt; none where many.

    What recurs without a word about it is not a stall.
    """
    if usual is None or len(seconds) < _FEWEST:
        return set()
    found = {
        row
        for row in range(warmup, len(seconds))
        if seconds[row] > (_SLOW_START if held[row] > 0 else _STALL) * usual
    }
    silent = {row for row in found if not held[row] > 0}
    apart = {after - before for before, after in itertools.pairwise(sorted(silent))}
    if len(silent) >= _FEWEST_IN_TURN and len(apart) == 1 and apart.pop() <= 1 / _RECURRING:
        return found - silent  # only each n-th step waits for the device
    if len(silent) >= max(_FEWEST_RECURRING, _RECURRING * len(seconds)):
        found -= silent
    return found if len(found) <= _MOST_STALLS * len(seconds) else set()


def _phase(job: Job, row: int, warmup: int, stalls: set[int], recorded: float) -> Phase:
    if recorded in range(len(PHASES)):
        return PHASES[int(recorded)]
    first = job.first_step
    if row == 0 and (first is None or first <= 1) and len(job.table) > 1:
        return "startup"
    if row in stalls:
        return "stalled"
    return "warmup" if row < warmup else "measured"


def _tokens(row: Mapping[str, float], known: LogConfig) -> int | None:
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


def steps_of(job: Job, known: LogConfig) -> Iterator[StepRecord]:
    """Yield the records as lines of steps.jsonl; steps count from 1 there."""
    seconds = _evened(job, known)
    there = [value for value in seconds if not math.isnan(value)]
    usual = median(there) if there else None
    warmup = _warmup(seconds, usual)
    stalls = _stalls(seconds, usual, warmup, job.table.column("held"))
    recorded = job.table.column("phase_code")  # of a run of ours that comes back from a tracker
    shift = 1 if job.first_step == 0 else 1 - job.first_number
    for index in range(len(job.table)):
        row = job.table.row(index)
        number = _whole(row.get("step", math.nan) + shift)
        yield StepRecord(
            step=index + 1 if number is None else number,
            phase=_phase(job, index, warmup, stalls, recorded[index]),
            step_seconds=_plain(row.get("seconds")),
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


def summary(samples: ColumnTable) -> dict[str, Any]:
    """Return how many samples of which devices there are, and the mean of each quantity."""
    gpus = sorted({int(value) for value in samples.values("gpu")})
    times = samples.values("time")
    means = {name: statistics.fmean(samples.values(name)) for name in _MEANS if samples.has(name)}
    return {
        "samples": len(samples),
        "devices": gpus,
        "seconds": max(times) - min(times) if times else None,
        "mean": means,
    }


def lines(samples: ColumnTable) -> Iterator[dict[str, float | int | None]]:
    """Yield one object per sample; a quantity that the tool did not give is left out."""
    for index in range(len(samples)):
        row: dict[str, float | int | None] = {**samples.row(index)}
        if "gpu" in row:
            row["gpu"] = int(row["gpu"] or 0)
        yield row


def diverged(job: Job) -> str | None:
    """Return why training diverged, None where it did not or no record can show it."""
    table = job.table
    if not len(table):
        return None
    skipped, lost = table.column("skipped"), table.column("not_finite")
    if _all_skipped(job):
        return "Every iteration was skipped: nothing was learned."
    if lost[-1] > 0:
        every = "every record" if all(one > 0 for one in lost) else "the last record"
        return f"The loss is not a number in {every}."
    seconds = table.column("seconds")
    counted = table.has("skipped") or table.has("nan")  # else only excerpts of lines are there
    # not the record that the file breaks off in, and none where losses are printed apart from times
    expected = job.details.get("loss_expected") and not job.details.get("cut")
    if not expected or not (table.has("loss") or counted):
        return None
    loss = table.column("loss")
    last = max((row for row in range(len(loss)) if not math.isnan(seconds[row])), default=-1)
    if last >= 0 and math.isnan(loss[last]) and not skipped[last] > 0:
        step = table.column("step")[last]
        where = f"step {int(step)}" if not math.isnan(step) else "the last record"
        return f"The loss is missing or not a number at {where}, the last one."
    return None


def _all_skipped(job: Job) -> bool:
    """Return whether each record counts as many skipped iterations as it stands for.

    That is at most what lies between it and the record before; of the first, its step number.
    """
    steps, skipped = job.table.column("step"), job.table.column("skipped")
    if not all(count > 0 for count in skipped):
        return False
    gaps = [after - before for before, after in itertools.pairwise(steps)]
    first = min([steps[0], *gaps]) if steps[0] > 0 else 1.0
    return all(count >= gap for count, gap in zip(skipped, [first, *gaps], strict=True))


def status_of(job: Job) -> tuple[Status, str | None]:
    """Return the status and its reason; of a completed run, what failed after its last step.

    A log that stops without a word, before the last step or without telling which that is, is
    of a run that was interrupted, as far as anyone can know.
    """
    ending, last = job.ending, job.last_step
    end = None if job.total_steps is None else job.total_steps - 1 + job.first_number
    trained = job.finished or (last is not None and end is not None and last >= end)
    if ending and ending.status in ("out_of_memory", "timeout") and not trained:
        return ending.status, _told(ending)
    lost = diverged(job)
    if lost:
        return "diverged", lost
    if trained:
        memory = ending is not None and ending.status in ("out_of_memory", "timeout")
        after = ending and (ending.sentence or (_told(ending) if memory else None))
        return "completed", AFTER_TRAINING.format(after.rstrip(".")) if after else None
    if ending:
        return ending.status, None if ending.status == "completed" else _told(ending)
    return "interrupted", f"{_where(job)} and does not say how the run ended."


def cause_of(job: Job, status: Status) -> str | None:
    """Return the kind of an ending as records name it; None where the log does not say one."""
    if status == "diverged":
        return "skipped_steps" if _all_skipped(job) else "not_finite"
    ended = job.ending if job.ending and status in (job.ending.status, "completed") else None
    return ended and (ended.cause or ("stopped" if status == "interrupted" else None))


def _told(ending: Ending) -> str:
    if ending.sentence is None:
        return f"{ENDED[ending.status]}: {ending.line}"
    if ending.cause == "python_error":
        return ending.sentence
    return f"{ending.sentence.rstrip('.')}. The log says: {ending.line}"


def _where(job: Job) -> str:
    """Return where a log stops, as the start of a sentence."""
    if not len(job.table):
        return "The log contains no training step"
    if job.last_step is None:
        return f"The log ends after its record {len(job.table)}"
    if beyond := job.counts.records_beyond_limit:
        kept = f"{len(job.table):,} records are kept, up to step {job.last_step}"
        return f"Only the first {kept} ({beyond:,} more were not), so the log continues"
    of = f" of {job.total_steps}" if job.total_steps else ""
    return f"The log ends at step {job.last_step}{of}"
