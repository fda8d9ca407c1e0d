"""The steps of a run that count, and the rates over them.

The recorded phase ``measured`` is where counting may start; the steady state inside it is found
from the data. Where the steps drift or change their level there is no rate. Where they are too few
to say, the rate is total tokens over total time of the recorded window, without an interval; and
none where the halves of that window are plainly unlike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from scalebook.measure.metrics.recorded import LARGEST
from scalebook.measure.metrics.steady import (
    BRIEF_SECONDS,
    Steady,
    find_steady,
    longest_level,
    middle,
)
from scalebook.measure.telemetry.summary import Settling
from scalebook.record import RunRecord, StepRecord, object_of
from scalebook.step_columns import Steps

SAVING = 0.01  # of a step; asking an asynchronous save whether it is done takes less
UNLIKE = 0.1  # halves of a short window that differ by more are no one rate


@dataclass(frozen=True, slots=True)
class Throughput:
    """Rates over the steady state, or over all measured steps where they are too few to judge."""

    steps: Steps  # that the rates are over
    steady: Steady
    step_seconds_median: float
    tokens_per_second: float
    interval: tuple[float, float] | None  # of the steady state's tokens_per_second, 95 %
    seen: tuple[float, float] | None  # the same by the steps of the window only
    note: str | None  # what a short window or an unsettled device means for the interval
    of_one_gpu: bool  # the rates are of one GPU: nobody knows of how many

    def fields(self) -> dict[str, Any]:
        """Return the fields of RunMetrics that describe the steady state."""
        found = self.steady
        low, middle, high = found.quantiles or (None, None, None)
        seen = found.seen or (None, None)
        return {
            "steady": found.accepted,
            "steady_reason": found.reason,
            "steady_steps": found.count,
            "steady_first_step": int(self.steps.numbers("step")[0]) if found.accepted else None,
            "step_seconds_mean": found.mean,
            "window_seconds": sum(self.steps.known("step_seconds")),
            "window_note": self.note,
            "step_seconds_low": seen[0],
            "step_seconds_high": seen[1],
            "step_seconds_p10": low,
            "step_seconds_p90": middle,
            "step_seconds_p99": high,
            "spike_periods": found.periods,
            "steady_change": found.change if found.accepted else None,
            **stragglers(self.steps),
            **expert_load(self.steps),
        }


def measured_steps(steps: Iterable[StepRecord]) -> Steps:
    """Return the steps that may count: start-up, warm-up and profiled ones are left out.

    So are a step of an ingested log that does not tell its time, and one that waited for a
    checkpoint: saving is no training, and what it costs is said separately (reliability).
    """
    found = Steps.of(steps).in_phase("measured")
    seconds, waited = found.numbers("step_seconds"), found.known("checkpoint_seconds")
    if not math.isnan(sum(seconds)) and not any(waited):
        return found
    waits = found.numbers("checkpoint_seconds")
    return found.select(
        [
            at
            for at, (second, wait) in enumerate(zip(seconds, waits, strict=True))
            if not math.isnan(second)
            and not (wait > SAVING * second and wait != 0)  # false for NaN
        ]
    )


def throughput(
    record: RunRecord,
    measured: Iterable[StepRecord],
    devices: Settling | None = None,
    *,
    interval: bool = True,
) -> tuple[Throughput | None, str | None]:
    """Return the rates over measured steps, or None and the reason.

    Where the telemetry says that ``devices`` had not settled, the rate has no interval. Without
    ``interval`` it has none either, and the reason no advice: that takes half of the time.
    """
    steps = chosen_steps(record, Steps.of(measured))
    reason = _no_window(record, steps)
    if reason is not None:
        return None, reason
    seconds, tokens = steps.known("step_seconds"), steps.known("tokens")
    of_one = steps.known("tokens_per_gpu")
    single = not tokens and len(of_one) == len(steps)
    tokens = of_one if single else tokens
    if not seconds or not 1e-9 < min(seconds) <= max(seconds) < 1e9:
        return None, "A measured step has no time above zero."
    if len(tokens) < len(steps) or not 0 < min(tokens) <= max(tokens) <= LARGEST:
        return None, "A measured step has no usable number of tokens."
    devices = devices or Settling(None)
    still = devices.settled is True
    steady = find_steady(_evened(seconds, tokens), settled_devices=still, interval=interval)
    if steady.problem is not None and steady.problem != "too short":
        shifts = interval and steady.problem == "shift"
        offer = offered(steps, seconds, tokens) if shifts else ""
        return None, f"The run is not averaged. {steady.reason}{offer}"
    apart = None if steady.accepted else _apart(_evened(seconds, tokens))
    if apart is not None:
        return None, f"The run is not averaged. {apart} {steady.reason}"
    first, count = steady.start or 0, steady.count or len(steps)
    part = slice(first, first + count)
    rate = sum(tokens[part]) / sum(seconds[part])
    ends = _rate_interval(rate, steady, (steady.low, steady.high))
    seen = _rate_interval(rate, steady, steady.seen or (None, None))
    if devices.settled is False:
        ends = seen = None
    note = _note(sum(seconds[part]), steady, devices)
    if record.window is not None:
        first_step, last_step = record.window
        choice = f"The reader chose steps {first_step} to {last_step} as the window."
        note = f"{choice} {note}" if note else choice
    return Throughput(
        steps[part], steady, middle(seconds[part]), rate, ends, seen, note, single
    ), None


def chosen_steps(record: RunRecord, steps: Steps) -> Steps:
    """Return the steps of the window that a reader chose, else all."""
    if record.window is None:
        return steps
    first, last = record.window
    numbers = steps.numbers("step")
    return steps.select([at for at, number in enumerate(numbers) if first <= number <= last])


def offered(steps: Steps, seconds: Sequence[float], tokens: Sequence[float]) -> str:
    """Return the longest part at one level with its rate, and how to choose it; empty for none."""
    level = longest_level(_evened(seconds, tokens))
    if level is None:
        return ""
    first, last = level
    part = slice(first, last + 1)
    rate = sum(tokens[part]) / sum(seconds[part])
    window = f"{steps[first].step}:{steps[last].step}"
    return (
        f" The longest level is steps {window.replace(':', ' to ')}, at {rate:,.0f} tokens/s; "
        f"--window {window} chooses it."
    )


def _note(seconds: float, steady: Steady, devices: Settling) -> str | None:
    """Return what a reader must know of a short window or of devices; None where nothing."""
    if devices.settled is False or not steady.accepted:
        return devices.reason
    if seconds >= BRIEF_SECONDS:
        return None
    short = f"The window lasts {seconds:.2g} s, less than a minute"
    if devices.settled:
        return f"{short}; the clocks and temperatures of the devices were steady over it."
    return f"{short}: a slow change of the devices may not show in it yet."


def _apart(seconds: Sequence[float]) -> str | None:
    """Return that the later half of the steps is unlike the earlier one, by medians, or None."""
    half = len(seconds) // 2
    if half == 0:
        return None
    change = middle(seconds[half:]) / middle(seconds[:half]) - 1
    if abs(change) <= UNLIKE:
        return None
    more = "more" if change > 0 else "less"
    much = f"{float(f'{100 * abs(change):.2g}'):g} %"
    return f"The later half of the steps takes {much} {more} than the earlier."


def _no_window(record: RunRecord, steps: Steps) -> str | None:
    """Return why the measured steps cannot be averaged; None where they can."""
    withheld = object_of(record.environment.get("ingest")).get("withheld")
    if isinstance(withheld, str) and record.window is None:
        return withheld
    if not record.averaged:
        return f"The run did not complete ({record.status}): its window is not averaged."
    if not steps and record.window is not None:
        first, last = record.window
        return f"No measured step lies in the window that was chosen, steps {first} to {last}."
    if not steps:
        return "No step was measured, or each of them waited for a checkpoint."
    if len(set(steps.numbers("restart"))) > 1:
        return (
            "A process died between measured steps and all were started again: that time is in no "
            "step, so a rate would leave it out."
        )
    return None


def _evened(seconds: Sequence[float], tokens: Sequence[float]) -> Sequence[float]:
    """Return what each step would take with the mean number of tokens."""
    if min(tokens) == max(tokens):
        return seconds
    mean = fmean(tokens)
    return [second * mean / token for second, token in zip(seconds, tokens, strict=True)]


def _rate_interval(
    rate: float, steady: Steady, ends: tuple[float | None, float | None]
) -> tuple[float, float] | None:
    """Return the interval of a rate; a time interval that reaches zero has no upper rate."""
    low, high = ends
    if steady.mean is None or low is None or high is None or low <= 0:
        return None
    # the value itself stays inside where rounding would leave it out
    return min(rate * steady.mean / high, rate), max(rate * steady.mean / low, rate)


def expert_load(steps: Iterable[StepRecord]) -> dict[str, Any]:
    """Return the mean over the steps of what the busiest ranks' experts got over the mean rank."""
    found = Steps.of(steps)
    loads = found.known("expert_load")
    if not loads or len(loads) < len(found) or not 1 - 1e-6 < min(loads) <= max(loads) < 1e6:
        reason = "The steps do not show how many tokens the experts of each rank got."
        return {"expert_load": None, "expert_load_reason": reason}
    return {"expert_load": fmean(loads), "expert_load_reason": None}


def stragglers(steps: Iterable[StepRecord]) -> dict[str, Any]:
    """Return the mean step time of the fastest and slowest rank, and how far they are apart."""
    names = ("rank_seconds_fastest", "rank_seconds_slowest", "slowest_rank", "straggler_spread")
    none: dict[str, Any] = dict.fromkeys(names)
    ranks = Steps.of(steps).rank_means() or []
    if len(ranks) < 2:
        reason = "one rank" if ranks else "not every step has a time of every rank"
        return none | {"straggler_reason": f"No straggler can be named: {reason}."}
    fastest, slowest = min(ranks), max(ranks)
    if not 0 < fastest <= slowest < 1e9:
        return none | {"straggler_reason": "A rank has no time above zero."}
    values = (fastest, slowest, ranks.index(slowest), slowest / fastest - 1)
    return dict(zip(names, values, strict=True)) | {"straggler_reason": None}
