"""``key: value`` pairs that trainers print in one line, and times that they leave to the clock."""

from __future__ import annotations

import math
import re
import statistics

from scalebook.logs.job import Job
from scalebook.logs.numbers import MISSING, clock_seconds, integer, number

BAR = re.compile(
    r"(\d{1,12})/(\d{1,12}) \[((?:\d+ days?, )?[\d:]+)<[^,\]]*,\s*([\d.]+)\s*(s/it|it/s)"
)  # tqdm: done, total, elapsed, rate
# A difference of time stamps is used when it is this many times finer than what it measures.
_FINE_ENOUGH = 20
_SAME_TOKENS = 0.01


def pairs(pattern: re.Pattern[str], text: str, names: dict[str, str]) -> dict[str, float]:
    """Return the columns of the pairs that a pattern (key, value) finds, by a map of keys."""
    row: dict[str, float] = {}
    for key, value in pattern.findall(text):
        column = names.get(key)
        if column is not None and column not in row:
            row[column] = number(value)
    return row


def bar_seconds(text: str) -> float:
    """Return seconds an iteration from a tqdm bar (smoothed and rounded), NaN without one."""
    found = BAR.search(text)
    if found is None:
        return MISSING
    rate = number(found[4])
    if not rate > 0:
        return MISSING
    return rate if found[5] == "s/it" else 1 / rate


def bar_state(text: str) -> tuple[int, int, float] | None:
    """Return done, total and elapsed seconds of a tqdm bar, None without one."""
    found = BAR.search(text)
    return (integer(found[1]), integer(found[2]), clock_seconds(found[3])) if found else None


def differences(job: Job, column: str) -> list[float]:
    """Return what a running total gained a step since the row before; NaN where it cannot tell."""
    totals, steps = job.table.column(column), job.table.column("step")
    gained = [MISSING] * len(totals)
    for row in range(1, len(totals)):
        count = steps[row] - steps[row - 1]
        count = 1.0 if math.isnan(count) else count
        gain = totals[row] - totals[row - 1]
        if gain > 0 and count > 0:
            gained[row] = gain / count
    return gained


def seconds_from(job: Job, column: str, resolution: float, origin: str) -> None:
    """Give rows their step time from a clock or a run time that the records carry.

    Left missing, with a note, where the clock is too coarse for the steps.
    """
    if job.table.has("seconds") or not job.table.has(column) or len(job.table) < 2:
        return
    seconds = differences(job, column)
    spans = sorted(
        (job.table.column(column)[row] - job.table.column(column)[row - 1])
        for row in range(1, len(seconds))
        if seconds[row] > 0
    )
    if not spans or spans[len(spans) // 2] < _FINE_ENOUGH * resolution:
        job.note(f"No step time is printed, and the {origin} are too coarse for one.")
        return
    job.table.set_column("seconds", seconds)
    job.details["seconds_from"] = origin
    job.note(f"No step time is printed: it is the difference of {origin}.")


def tokens_from_totals(job: Job) -> None:
    """Give rows their tokens per second from the running total of tokens that they carry."""
    table = job.table
    if table.has("tokens_per_second") or not table.has("consumed_tokens"):
        return
    tokens, times = differences(job, "consumed_tokens"), table.column("seconds")
    if len(tokens) > 2 and table.column("step")[0] > 0:  # counted from the start, not resumed
        since = table.column("consumed_tokens")[0] / table.column("step")[0]
        usual = statistics.median(tokens[1:])
        tokens[0] = since if abs(since / usual - 1) < _SAME_TOKENS else MISSING
    rates = (n / s if s > 0 else MISSING for n, s in zip(tokens, times, strict=True))
    table.set_column("tokens_per_second", rates)
