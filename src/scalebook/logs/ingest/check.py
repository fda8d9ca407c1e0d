"""What a log says against itself."""

from __future__ import annotations

import itertools
import math
import statistics

from scalebook.logs.ingest.observe import Observation
from scalebook.logs.ingest.ratios import rounding_of
from scalebook.logs.job import Job
from scalebook.measure.metrics import RunMetrics

# Rounded digits and windows that differ by a step stay below this.
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
    size = max(factor, 1 / factor)
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
    usual = _usual_batch(job)
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


def rate_disagreements(job: Job, known: Observation) -> dict[str, float]:
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
                f"The file's own summary says {printed:,.0f} {name}, {factor:.3g} times what its "
                f"steps give ({ours:,.0f}): the steps count."
            )
    return found


def _usual_batch(job: Job) -> float:
    """Return the batch that the job's one size is (the most common); NaN where it never changes."""
    values = job.table.values("global_batch_size")
    return statistics.mode(values) if _batch_changes(job) else math.nan


def _batch_changes(job: Job) -> bool:
    return len(set(job.table.values("global_batch_size"))) > 1


def _utilisation(job: Job) -> list[str]:
    over = [value for value in job.table.values("mfu") if value > 1.0]
    if not over:
        return []
    return [
        f"MFU of {max(over):.1%} is above what is possible: "
        "a rate of the job over the peak of one GPU?"
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


def _gaps(job: Job) -> list[str]:
    steps = job.table.values("step")
    gaps = [after - before for before, after in itertools.pairwise(steps)]
    if not gaps:
        return []
    usual = statistics.median_low(gaps)
    wide = [gap for gap in gaps[1:] if gap > 1.5 * usual and gap > 1]
    if not wide:
        return []
    return [f"{len(wide)} gap(s) in the step numbers, the widest of {int(max(wide))} steps."]


def _start(job: Job) -> list[str]:
    seconds = job.table.column("seconds")
    later = job.table.median("seconds", 1) if len(job.table) > 1 else None
    if len(job.table) == 1 and job.first_step is not None and job.first_step <= 1:
        return ["The only record is the run's first step, which holds start-up: no steady rate."]
    if later and seconds[0] < later / 2:
        return ["The first record is too fast: it was timed before the device had finished."]
    return []


def warnings_of(job: Job, known: Observation, numbers: RunMetrics | None) -> list[str]:
    """Return every warning about a job, the dialect's own first."""
    found = [*job.notes, *known.notes, *_start(job), *_gaps(job), *_utilisation(job)]
    found += [] if _batch_changes(job) else _drift(job)
    for name, factor in rate_disagreements(job, known).items():
        found.append(
            f"Printed {name} is {factor:.3g} times what batch, sequence length and step time "
            f"give{hint(factor, known.size('world_size'))}."
        )
    found += _summary_rates(job, numbers)
    skipped = sum(job.table.values("skipped"))
    if skipped:
        found.append(f"{int(skipped)} iteration(s) were skipped by the optimizer.")
    if job.counts.repeated_steps or job.counts.restarts:
        found.append(
            f"{job.counts.restarts} restart(s); {job.counts.repeated_steps} record(s) were "
            "repeated and the last attempt was kept."
        )
    return found
