"""The rates of a job, and where its log contradicts itself."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

from scalebook.logs.collect import LARGEST
from scalebook.logs.ingest.log_config import LogConfig, option, rounding_of
from scalebook.logs.job import Job, in_words
from scalebook.measure.metrics import RunMetrics

# Rounded digits and windows that differ by a step stay below this. A summary that is further from
# its steps does not count.
AGREEMENT = 0.05
_HINTS = (
    (2.0, "a wrong sequence length or batch, or both directions counted"),
    (4.0, "micro steps taken for steps"),
    (8.0, "a figure of one GPU taken for the job, or the reverse"),
)


def factor_between(printed: float, expected: float) -> float | None:
    """Return printed over expected where the two disagree, None where they agree."""
    if not (printed > 0 and expected > 0):
        return None
    factor = printed / expected
    return None if abs(factor - 1) <= AGREEMENT else factor


def hint(factor: float, world: int | None) -> str:
    """Return what a factor hints at, empty where it hints at nothing."""
    size = max(factor, 1 / factor) if factor > 0 else math.inf  # 0: beyond the smallest double
    if world and world > 1 and abs(size / world - 1) <= AGREEMENT:
        return "; this is the number of GPUs: a figure of one GPU against one of the job"
    for value, words in _HINTS:
        if abs(size / value - 1) <= AGREEMENT:
            return f"; {value:g} hints at {words}"
    return ""


def _median_factor(job: Job, name: str, numerator: float | None) -> float | None:
    """Return the median of printed rate over ``numerator`` / step time, where they disagree."""
    if not numerator:
        return None
    batches = job.table.column("global_batch_size")
    sizes = job.table.values("global_batch_size")
    usual = statistics.mode(sizes) if _batch_changes(job) else math.nan
    factors = [
        rate * seconds / numerator / (size / usual if size > 0 and usual > 0 else 1.0)
        for rate, seconds, size in zip(
            job.table.column(name), job.table.column("seconds"), batches, strict=True
        )
        if rate > 0 and seconds > 0
    ]
    if not factors:
        return None
    median = statistics.median(factors)
    return None if abs(median - 1) <= AGREEMENT + rounding_of(job, name) else median


def rate_disagreements(job: Job, known: LogConfig) -> dict[str, float]:
    """Return, by printed rate, the factor between it and what batch and step time give."""
    batch, sequence = known.size("global_batch_size"), known.size("sequence_length")
    world = known.size("world_size")
    tokens = batch * sequence if batch and sequence else None
    expected: dict[str, float | None] = {
        "samples_per_second": batch,
        "tokens_per_second": tokens,
        "tokens_per_second_per_gpu": tokens / world if tokens and world else None,
        "samples_per_second_per_gpu": batch / world if batch and world else None,
    }
    found: dict[str, float] = {}
    for name, numerator in expected.items():
        factor = _median_factor(job, name, numerator)
        if factor is not None:
            found[name] = factor
    return found


def _summary_rates(job: Job, numbers: RunMetrics | None) -> list[str]:
    """Remark on a summary of the whole run that the steps contradict."""
    of_steps = {
        "tokens_per_second": numbers and numbers.tokens_per_second,
        "tokens_per_second_per_gpu": numbers and numbers.tokens_per_second_per_gpu,
    }
    found: list[str] = []
    for name, ours in of_steps.items():
        printed = job.rates.get(name)
        factor = factor_between(printed, ours) if printed and ours else None
        if factor is not None:
            found.append(
                f"The file's own summary says {printed:,.0f} {in_words(name)}, {factor:.3g} times "
                f"what its steps give ({ours:,.0f}): the steps count."
            )
    printed, seconds = job.rates.get("steps_per_second", 0.0), job.table.median("seconds") or 0.0
    least = printed - job.finest.get("steps_per_second", 0.0)  # as it was before it was rounded
    if len(job.table) > 1 and least * seconds > 1 + AGREEMENT:  # start-up makes it slower only
        found.append(
            f"The file's own summary says {printed:.3g} steps per second, {printed * seconds:.3g} "
            "times what its steps give: it counts steps of an earlier start."
        )
    return found


def _batch_changes(job: Job) -> bool:
    return len(set(job.table.values("global_batch_size"))) > 1


def _utilisation(job: Job) -> list[str]:
    over = [value for value in job.table.values("mfu") if value > 1.0]
    if not over:
        return []
    return [
        f"MFU of {max(over):.1%} is above what is possible: "
        "a rate of the job over the peak of one GPU, or the peak of another device?"
    ]


def _drift(job: Job) -> list[str]:
    """Warn of step times of two kinds, which one median hides."""
    usual = job.table.median("seconds") or 0.0
    seconds = [value for value in job.table.values("seconds") if 0 < value < 3 * usual][1:]
    if len(seconds) < 6:
        return []
    half = len(seconds) // 2
    before, after = statistics.median(seconds[:half]), statistics.median(seconds[half:])
    ratio = after / before
    if 1 / 1.15 < ratio < 1.15:
        return []
    return [f"The step time drifts: {before:.4g} s in the first half, {after:.4g} s in the second."]


def _unsettled(job: Job, known: LogConfig) -> list[str]:
    """Ask for settings that the file gives several values, of which nothing else gives one."""
    return [
        f"The file gives the {in_words(name)} as {' and as '.join(map(str, values[:5]))}: none is "
        f"used. Say which with {option(name)}."
        for name, values in job.conflicts.items()
        if len(values) > 1 and known.values.get(name) is None
    ]


def _gaps(job: Job) -> list[str]:
    steps = job.table.values("step")
    gaps = [after - before for before, after in itertools.pairwise(steps)]
    if not gaps:
        return []
    usual = statistics.median_low(gaps)
    wide = [gap for gap in gaps[1:] if gap > 1.5 * usual and gap > 1]
    if not wide:
        return []
    return [f"Gaps in the step numbers: {len(wide)}, the widest of {int(max(wide))} steps."]


def _start(job: Job) -> list[str]:
    seconds = job.table.column("seconds")
    later = job.table.median("seconds", 1) if len(job.table) > 1 else None
    if len(job.table) == 1 and job.first_step is not None and job.first_step <= 1:
        return ["The only record is the run's first step, which holds start-up: no steady rate."]
    if later and seconds[0] < later / 2:
        return ["The first record is too fast: it was timed before the device had finished."]
    return []


def warnings_of(job: Job, known: LogConfig, numbers: RunMetrics | None) -> list[str]:
    """Return every warning about a job, the dialect's own first."""
    found = [*job.notes, *_unsettled(job, known), *known.notes, *_start(job), *_gaps(job)]
    found += _utilisation(job)
    found += [] if _batch_changes(job) else _drift(job)
    for name, factor in rate_disagreements(job, known).items():
        found.append(
            f"Printed {in_words(name)} is {factor:.3g} times what batch, sequence length and step "
            f"time give{hint(factor, known.size('world_size'))}."
        )
    found += _summary_rates(job, numbers)
    skipped = total_of(job, "skipped")
    if skipped:
        found.append(f"Iterations that the optimizer skipped: {skipped}.")
    if job.counts.repeated_steps or job.counts.restarts:
        found.append(
            f"Restarts: {job.counts.restarts}. Records that were repeated, of which the last "
            f"attempt is kept: {job.counts.repeated_steps}."
        )
    return found


def log_interval(job: Job, known: LogConfig) -> int | None:
    """Return how many steps a record stands for, None where the log does not show it."""
    told = known.size("log_interval")
    if told is not None:
        return told
    steps = [int(value) for value in job.table.values("step")]
    if len(steps) >= 2 and job.details.get("logs_multiples"):
        later = math.gcd(*steps[1:])  # the trainer prints at multiples of the interval,
        gaps = [after - before for before, after in itertools.pairwise(steps[1:])]
        first = steps[0] == 1 and later == min(gaps, default=0)  # and since 2026 the first step
        return (later if first else math.gcd(*steps)) or None
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


def medians(job: Job, known: LogConfig) -> dict[str, float | None]:
    """Return step time (s), tokens/s of the job and of a GPU, printed TFLOP/s and MFU.

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
    if world and "seconds_from" in job.details and table.has("tokens_per_second_per_gpu"):
        total = None  # the clock runs on while a trainer evaluates and saves
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
    if total is not None and each is None:
        each = total / world if world else _printed(job, "tokens_per_second_per_gpu")
    if each is not None and world and total is None:
        total = each * world
    return {
        "step_seconds_median": every,
        "step_seconds_median_excluding_first": later,
        "tokens_per_second_median": total,
        "tokens_per_second_per_gpu_median": each,
        "tflops_per_second_per_gpu_logged_median": table.median("tflops_per_gpu"),
        "mfu_logged_median": table.median("mfu"),
    }


def _by_steps(job: Job, known: LogConfig, seconds: float | None) -> float | None:
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
    start = 1 if first is not None and first <= 1 and len(job.table) > 1 else 0
    values = [value for value in job.table.values(name, start) if value > 0]
    return statistics.median(values) if values else None


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
