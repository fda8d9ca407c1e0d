"""Simple medians over the records of a job, and the interval between records."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

from scalebook.logs.collect import LARGEST
from scalebook.logs.ingest.observe import Observation
from scalebook.logs.job import Job

AGREEMENT = 0.05  # a summary that is further from its steps than this does not count


def log_interval(job: Job, known: Observation) -> int | None:
    """Return how many steps a record stands for, None where the log does not show it."""
    told = known.size("log_interval")
    if told is not None:
        return told
    steps = [int(value) for value in job.table.values("step")]
    if len(steps) >= 2 and job.details.get("logs_multiples"):
        return math.gcd(*steps) or None  # the trainer prints at multiples of the interval
    if len(steps) >= 2:
        gaps = [after - before for before, after in itertools.pairwise(steps)]
        if steps[0] == 1 and len(gaps) == 1 and gaps[0] > 1:
            return steps[1]  # the first step is printed beside every n-th
        if steps[0] == 1 and len(gaps) > 1:
            gaps = gaps[1:]
        counted = Counter(gap for gap in gaps if gap > 0)
        return min(counted, key=lambda gap: (-counted[gap], gap)) if counted else None
    return _interval_of_one(job, steps[0]) if steps and job.details.get("logs_multiples") else None


def _interval_of_one(job: Job, step: int) -> int | None:
    """Return the interval that a single record leaves: a divisor of its step number.

    Where a trainer prints a mean beside the last value and the two differ, the record is not the
    first one, so that the interval is smaller than the step.
    """
    divisors = [n for n in range(1, min(step, 100_000) + 1) if step % n == 0]
    if "mean_differs_at" in job.details:
        divisors = [n for n in divisors if n < step]
    return divisors[0] if len(divisors) == 1 else None


def medians(job: Job, known: Observation) -> dict[str, float | None]:
    """Return step time (s), tokens/s of the job and of a GPU, and the TFLOP/s that were printed.

    These describe what the log prints; the run's rate is what ``metrics`` makes of its steps.
    Token rates are tokens of a step over its time, without the first record. Where the log does
    not tell these, they are medians of the printed rates (without the first record if that is the
    run's first step), and without any of them what a summary of the whole run says.
    """
    table = job.table
    every = table.median("seconds")
    later = table.median("seconds", 1) if len(table) > 1 else None
    world = known.size("world_size")
    total, each = _by_steps(job, known, later or every), None
    printed = job.rates.get("tokens_per_second")
    if printed and total and abs(printed / total - 1) <= AGREEMENT:
        # the file's own figure, which its steps bear out
        total, each = printed, job.rates.get("tokens_per_second_per_gpu")
    elif total is None:
        total, each = (
            _printed(job, "tokens_per_second"),
            _printed(job, "tokens_per_second_per_gpu"),
        )
    if total is None and each is None:
        total = job.rates.get("tokens_per_second")
        each = job.rates.get("tokens_per_second_per_gpu")
    if total is not None and world and each is None:
        each = total / world
    if each is not None and world and total is None:
        total = each * world
    return {
        "step_seconds_median": every,
        "step_seconds_median_excluding_first": later,
        "tokens_per_second_median": total,
        "tokens_per_second_per_gpu_median": each,
        "tflops_per_second_per_gpu_logged_median": table.median("tflops_per_gpu"),
    }


def _by_steps(job: Job, known: Observation, seconds: float | None) -> float | None:
    """Return the median of tokens over time, each record with its own batch."""
    batch, length = known.size("global_batch_size"), known.size("sequence_length")
    if not (batch and length and seconds):
        return None
    start = 1 if len(job.table) > 1 else 0
    sizes, times = job.table.column("global_batch_size"), job.table.column("seconds")
    if len(set(job.table.values("global_batch_size"))) < 2:
        return batch * length / seconds
    rates = [
        size * length / time
        for size, time in zip(sizes[start:], times[start:], strict=True)
        if size > 0 and time > 0
    ]
    return statistics.median(rates) if rates else None


def _printed(job: Job, name: str) -> float | None:
    """Return the median of a printed rate; zero means that the trainer has none yet."""
    first = job.first_step
    start = 1 if first is not None and first <= job.first_number and len(job.table) > 1 else 0
    values = [value for value in job.table.values(name, start) if value > 0]
    return statistics.median(values) if values else None


def losses(job: Job) -> tuple[float | None, float | None]:
    """Return the first and the last loss that was printed."""
    values = job.table.values("loss")
    return (values[0], values[-1]) if values else (None, None)


def total_of(job: Job, name: str) -> int | None:
    """Return the sum of a counter of windows, None where no record has it."""
    if name == "skipped" and job.skipped_in_all is not None:
        return job.skipped_in_all if job.skipped_in_all <= LARGEST else None
    values = job.table.values(name)
    return int(sum(values)) if values else None


def finite(value: Any) -> Any:
    """Return a value as files of JSON can hold it, to any depth.

    A number that is not finite is None, and half a character, such as a file's name that is no
    UTF-8 has, is escaped.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {finite(key): finite(item) for key, item in cast(Mapping[str, Any], value).items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in cast(Sequence[Any], value)]
    return value
