"""The telemetry of a run in numbers: power, clocks and joules of its devices in measured steps.

Also whether a series of readings rises or falls by more than its noise (``Trend``).
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from statistics import fmean
from typing import Any, cast

from scalebook.measure.telemetry.readings import Device, Reading, Telemetry
from scalebook.record import LARGEST, RunRecord, StepRecord
from scalebook.step_columns import Steps

FEWEST_IN_TREND = 12
_DEVIATIONS = 4.0  # of the slope's standard error; each of a node's GPUs is asked
_SMALLEST = 0.01  # a change below 1 % of the mean explains no step time


@dataclass(frozen=True, slots=True)
class Trend:
    """A straight line through readings: its first and last value, and if it is beyond noise."""

    first: float
    last: float
    certain: bool

    @property
    def change(self) -> float:
        """Return the change over the readings as a fraction of the first value."""
        return self.last / self.first - 1 if self.first else 0.0


@dataclass(frozen=True, slots=True)
class Settling:
    """Whether the devices had settled; None where their telemetry is too little to say."""

    settled: bool | None
    reason: str | None = None  # what still changed, in a sentence


def settling(devices: Sequence[Device]) -> Settling:
    """Return whether clocks and temperatures were steady over these readings.

    A clock that falls says that the steps still get slower. A temperature that rises while the
    clock holds says that it may, so that nothing is known.
    """
    clocks = [(one.name, trend_of(one.series("clock_mhz"))) for one in devices]
    falling = [(n, t) for n, t in clocks if t and t.certain and t.change < -_SMALLEST]
    if falling:
        name, trend = min(falling, key=lambda pair: pair[1].change)
        return Settling(
            False,
            f"The devices had not settled: the clock of {name} fell by {-trend.change:.1%} over "
            "the window. Warm up longer, or measure for longer.",
        )
    heat = [trend_of(one.series("temperature_celsius")) for one in devices]
    trends = [*(trend for _, trend in clocks), *heat]
    known = bool(trends) and all(trend is not None for trend in trends)
    steady = known and not any(trend.certain for trend in trends if trend)
    return Settling(True if steady else None)


def trend_of(readings: Sequence[Reading]) -> Trend | None:
    """Return the least-squares line of the readings; None for fewer than ``FEWEST_IN_TREND``.

    Neighbours are correlated: the slope's error is widened by (1 + r) / (1 - r) with r the
    residuals' correlation at lag 1 (an autoregressive noise of order 1).
    """
    count = len(readings)
    if count < FEWEST_IN_TREND:
        return None
    start = readings[0].time
    times = [one.time - start for one in readings]
    values = [one.value for one in readings]
    middle, mean = sum(times) / count, sum(values) / count
    spread = sum((time - middle) ** 2 for time in times)
    if spread == 0:
        return None
    pairs = list(zip(times, values, strict=True))
    slope = sum((time - middle) * (value - mean) for time, value in pairs) / spread
    rest = [value - mean - slope * (time - middle) for time, value in pairs]
    first, last = mean + slope * (times[0] - middle), mean + slope * (times[-1] - middle)
    error = _error(rest, spread)
    moves = abs(last - first) >= _SMALLEST * abs(mean)
    return Trend(first, last, moves and abs(slope) > _DEVIATIONS * error)


def _error(rest: Sequence[float], spread: float) -> float:
    """Return the standard error of the slope from the residuals."""
    squares = sum(value**2 for value in rest)
    if squares == 0:
        return 0.0
    lagged = sum(left * right for left, right in itertools.pairwise(rest))
    correlation = min(max(lagged / squares, 0.0), 0.95)
    widened = squares / (len(rest) - 2) * (1 + correlation) / (1 - correlation)
    return math.sqrt(widened / spread)


NO_CLOCK = (
    "The steps of the run have no time of day, so that no sample can be matched to them: means and "
    "extremes are over all samples."
)
SET_BACK = (
    "The clock was set back while steps ran, so that a sample may belong to two steps: means and "
    "extremes are over all samples."
)


@dataclass(frozen=True, slots=True)
class Clocks:
    """SM (or compute die) clocks of all devices while measured steps ran, in MHz."""

    mean_mhz: float
    lowest_mhz: float
    highest_possible_mhz: float | None
    falling: tuple[str, Trend] | None  # the device whose clock fell most, beyond noise
    by_device: tuple[tuple[str, float], ...] = ()  # mean clock of each


@dataclass(frozen=True, slots=True)
class TelemetrySummary:
    """Readings over the measured steps; each null has its reason.

    Power is of one device: the mean over devices and time, and the highest single reading. Energy
    is of all devices that the run used (GPU boards, or CPU packages), not of the node around them.
    """

    source: str | None
    period_seconds: float | None
    devices: int
    samples: int  # within the measured steps
    reason: str | None  # why there is no telemetry, or why it ended early
    energy_joules: float | None
    energy_joules_per_token: float | None
    energy_method: str | None
    energy_reason: str | None
    mean_power_watts: float | None
    max_power_watts: float | None
    power_cap_watts: float | None
    power_reason: str | None
    clocks: Clocks | None
    clock_reason: str | None
    max_temperature_celsius: float | None
    temperature_reason: str | None
    gpu_busy_fraction: float | None
    busy_reason: str | None
    throttle_fractions: dict[str, float] | None  # share of samples by reason
    throttle_reason: str | None
    notes: tuple[str, ...]


def summarize(
    telemetry: Telemetry, record: RunRecord, measured: Iterable[StepRecord]
) -> TelemetrySummary:
    """Return the telemetry of a run over its measured steps."""
    steps = Steps.of(measured)
    windows = windows_of(steps) if telemetry.devices else ()
    inside = _inside(telemetry.devices, windows) if windows else telemetry.devices
    energy = _energy(telemetry, record, windows, steps)
    tokens = _tokens(steps)
    per_token = energy.joules / tokens if energy.joules and tokens else None
    no_tokens = None if tokens else "The measured steps do not record their tokens."
    power = _power(inside, windows, energy, telemetry.reason)
    notes = [energy.note] if energy.note else []
    if telemetry.devices and not windows:
        notes.append(_unmatched(steps))
    return TelemetrySummary(
        source=telemetry.source,
        period_seconds=telemetry.period_seconds,
        devices=len(telemetry.devices),
        samples=sum(len(device.rows) for device in inside),
        reason=telemetry.reason,
        energy_joules=energy.joules,
        energy_joules_per_token=per_token,
        energy_method=energy.method,
        energy_reason=energy.reason if energy.joules is None else no_tokens,
        **power,
        **_clocks(inside, telemetry.reason),
        **_rest(inside, telemetry.reason),
        notes=tuple(notes),
    )


def settled(telemetry: Telemetry, steps: Iterable[StepRecord]) -> Settling:
    """Return whether the devices had settled while these steps ran; unknown without their times."""
    windows = windows_of(steps) if telemetry.devices else ()
    return settling(_inside(telemetry.devices, windows)) if windows else Settling(None)


def _inside(devices: Sequence[Device], windows: Sequence[Window]) -> tuple[Device, ...]:
    """Return the devices with the readings that lie within a window."""
    found: list[Device] = []
    for device in devices:
        parts = [device.within(window.begin, window.end).rows for window in windows]
        found.append(replace(device, rows=tuple(itertools.chain.from_iterable(parts))))
    return tuple(found)


def _unmatched(steps: Steps) -> str:
    """Return why no sample can be matched to these steps."""
    return SET_BACK if not any(math.isnan(end) for end in steps.ends()) else NO_CLOCK


def _tokens(steps: Steps) -> int | None:
    counts = steps.known("tokens")
    known = counts and len(counts) == len(steps) and 0 < min(counts) <= max(counts) <= LARGEST
    return int(sum(counts)) if known else None


def _energy(
    telemetry: Telemetry, record: RunRecord, windows: Sequence[Window], steps: Steps
) -> Energy:
    """Return the energy of all devices of the run, or why it is not known."""
    devices, world = telemetry.devices, record.setting("world_size")
    if not devices:
        return Energy(None, reason=telemetry.reason)
    if not windows:
        return Energy(None, reason=_unmatched(steps) if steps else "No step was measured.")
    on_gpus = devices[0].name.rpartition(" ")[0].endswith("GPU")
    if on_gpus and isinstance(world, int) and len(devices) < world:
        return Energy(
            None, reason=f"There are samples of only {len(devices)} of the run's {world} GPUs."
        )
    if telemetry.period_seconds is None:
        return Energy(None, reason="The samples do not show how often they were taken.")
    each = [energy_of(device, windows, telemetry.period_seconds) for device in devices]
    missing = [one for one in each if one.joules is None]
    if missing:
        return missing[0]
    methods = sorted({one.method for one in each if one.method})
    notes = [one.note for one in each if one.note]
    joules = sum(one.joules for one in each if one.joules is not None)
    return Energy(joules, " and ".join(methods), None, notes[0] if notes else None)


def _values(devices: Sequence[Device], column: str) -> list[float]:
    return [value for device in devices for value in device.values(column)]


def _power(
    devices: Sequence[Device], windows: Sequence[Window], energy: Energy, reason: str | None
) -> dict[str, Any]:
    readings = _values(devices, "power_watts")
    seconds = sum(window.seconds for window in windows)
    mean = fmean(readings) if readings else None
    if energy.joules is not None and seconds > 0:
        mean = energy.joules / seconds / len(devices)
    caps = [device.power_cap_watts for device in devices if device.power_cap_watts]
    why = reason or "No device reported its power while measured steps ran."
    return {
        "mean_power_watts": mean,
        "max_power_watts": max(readings, default=None),
        "power_cap_watts": min(caps, default=None),
        "power_reason": why if mean is None else None,
    }


def _clocks(devices: Sequence[Device], reason: str | None) -> dict[str, Any]:
    readings = _values(devices, "clock_mhz")
    possible = [device.max_clock_mhz for device in devices if device.max_clock_mhz]
    clocks = None
    if readings:
        highest = min(possible, default=None)
        each = ((device.name, _values((device,), "clock_mhz")) for device in devices)
        means = tuple((name, fmean(values)) for name, values in each if values)
        clocks = Clocks(fmean(readings), min(readings), highest, _falling(devices), means)
    why = reason or "No device reported its clock while measured steps ran."
    return {"clocks": clocks, "clock_reason": None if clocks else why}


def _falling(devices: Sequence[Device]) -> tuple[str, Trend] | None:
    """Return the device whose clock fell most, None where none fell beyond its noise."""
    trends = ((device.name, trend_of(device.series("clock_mhz"))) for device in devices)
    falling = [(name, one) for name, one in trends if one and one.certain and one.change < 0]
    return min(falling, key=lambda pair: pair[1].change, default=None)


def _rest(devices: Sequence[Device], reason: str | None) -> dict[str, Any]:
    temperatures = _values(devices, "temperature_celsius")
    busy = _values(devices, "gpu_busy_fraction")
    told = [row for device in devices for row in device.rows if "throttle_reasons" in row]
    counted = Counter(name for row in told if row["throttle_reasons"] for name in _reasons(row))
    nothing = reason or "No device reported it while measured steps ran."
    return {
        "max_temperature_celsius": max(temperatures, default=None),
        "temperature_reason": None if temperatures else nothing,
        "gpu_busy_fraction": fmean(busy) if busy else None,
        "busy_reason": None if busy else nothing,
        "throttle_fractions": (
            {name: counted[name] / len(told) for name in sorted(counted)} if told else None
        ),
        "throttle_reason": None if told else nothing,
    }


def _reasons(row: Any) -> set[str]:
    """Return the reasons of a sample: each once, only short texts."""
    value = row["throttle_reasons"]
    names = cast("list[Any]", value) if isinstance(value, list) else []
    return {name for name in names if isinstance(name, str) and 0 < len(name) <= 64}


SLACK_SECONDS = 1.0  # between two steps, for what no step counts; longer where steps are
COUNTER, POWER = "energy counter", "integrated power"
FEWEST = 3  # readings within the windows
_EDGE_PERIODS = 2.5  # a window may stick out of the readings by so much
_GAP_PERIODS = 5.0
_GAP_SHARE = 0.1  # of the windows, without a reading of the power
# Some drivers' counters are known to be wrong by a factor; readings of the power are then right.
_AGREEMENT = (0.7, 1.4)


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of steps without a gap, in seconds since 1970."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin


def windows_of(steps: Iterable[StepRecord]) -> tuple[Window, ...]:
    """Return the stretches that these steps cover; none where the steps have no time of day.

    Steps that follow one another are one stretch: a step lasts from the end of the one before.
    Where the clock says that much more or less than a step has passed, another stretch begins.
    None too where the clock was set back into an earlier stretch: a sample would belong to both.
    """
    found: list[list[float]] = []  # begin and end of each
    before = math.nan
    rows = Steps.of(steps)
    columns = rows.ends(), rows.numbers("step_seconds"), rows.numbers("step")
    for end, seconds, step in zip(*columns, strict=True):
        if math.isnan(end + seconds):
            return ()
        if step == before + 1 and 0 <= end - found[-1][1] <= seconds + max(seconds, SLACK_SECONDS):
            found[-1][1] = end
        else:
            found.append([end - seconds, end])
        before = step
    # Two may share no more time than clocks and rounding are apart.
    neighbours = itertools.pairwise(sorted(found, key=itemgetter(0)))
    if any(before[1] - after[0] > SLACK_SECONDS for before, after in neighbours):
        return ()
    return tuple(Window(begin, end) for begin, end in found)


@dataclass(frozen=True, slots=True)
class Energy:
    """Joules over all windows and how they were found; None with the reason."""

    joules: float | None
    method: str | None = None
    reason: str | None = None
    note: str | None = None


def energy_of(device: Device, windows: Sequence[Window], period: float) -> Energy:
    """Return the energy of a device over the windows: by its counter, else by its power."""
    counter = _usable(_counter_joules, device, "energy_joules", windows, period)
    power = _usable(_power_joules, device, "power_watts", windows, period)
    if counter.joules is None:
        has_counter = bool(device.series("energy_joules"))
        return counter if has_counter and power.joules is None else power
    if power.joules:
        ratio = counter.joules / power.joules
        if not _AGREEMENT[0] <= ratio <= _AGREEMENT[1]:
            note = (
                f"The energy counter of {device.name} says {ratio:.2g} times what its power "
                "readings add up to: the readings count."
            )
            return Energy(power.joules, POWER, None, note)
    return counter


def _usable(
    measure: Callable[[Sequence[Reading], Sequence[Window], float], Energy],
    device: Device,
    column: str,
    windows: Sequence[Window],
    period: float,
) -> Energy:
    readings = device.series(column)
    if not readings:
        return Energy(None, reason=f"{device.name} reports neither its energy nor its power.")
    inside = sum(window.begin <= one.time <= window.end for one in readings for window in windows)
    if inside < FEWEST:
        total = sum(window.seconds for window in windows)
        return Energy(
            None,
            reason=f"Only {inside} samples of {device.name} lie in the {total:.3g} s measured: "
            f"at least {FEWEST} are needed. Run more steps, or sample more often.",
        )
    slack = _EDGE_PERIODS * period
    first, last = readings[0].time - slack, readings[-1].time + slack
    if any(window.begin < first or window.end > last for window in windows):
        return Energy(None, reason=f"The samples of {device.name} do not cover the measured steps.")
    return measure(readings, windows, period)


def _counter_joules(
    readings: Sequence[Reading], windows: Sequence[Window], period: float
) -> Energy:
    pairs = itertools.pairwise(readings)
    if any(after.value < before.value for before, after in pairs):
        return Energy(None, reason="The energy counter was reset during the run.")
    joules = sum(_at(readings, window.end) - _at(readings, window.begin) for window in windows)
    if joules <= 0:
        return Energy(None, reason="The energy counter did not move while steps ran.")
    return Energy(joules, COUNTER)


def _power_joules(readings: Sequence[Reading], windows: Sequence[Window], period: float) -> Energy:
    """Integrate by the trapezoidal rule; the ends of a window are interpolated."""
    total = sum(window.seconds for window in windows)
    most = max(_GAP_PERIODS * period, _GAP_SHARE * total)
    joules = 0.0
    first, last = readings[0].time, readings[-1].time  # outside them the nearest counts
    for window in windows:
        inner = [one for one in readings if window.begin < one.time < window.end]
        ends = [
            Reading(time, _at(readings, min(max(time, first), last)))
            for time in (window.begin, window.end)
        ]
        points = [ends[0], *inner, ends[1]]
        for before, after in itertools.pairwise(points):
            width = after.time - before.time
            if width > most:
                return Energy(None, reason=f"The samples have a gap of {width:.3g} s.")
            joules += width * (before.value + after.value) / 2
    return Energy(joules, POWER)


def _at(readings: Sequence[Reading], time: float) -> float:
    """Return the value at a time on the line through the two nearest readings."""
    place = bisect_left(readings, time, key=lambda one: one.time)
    place = min(max(place, 1), len(readings) - 1)
    before, after = readings[place - 1], readings[place]
    width = after.time - before.time
    if width <= 0:
        return after.value
    return before.value + (after.value - before.value) * (time - before.time) / width
