"""The telemetry of a run in numbers: what its devices drew and how they ran in measured steps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, cast

from scalebook.measure.telemetry.energy import Energy, Window, energy_of, windows_of
from scalebook.measure.telemetry.samples import Device, Telemetry
from scalebook.measure.telemetry.trend import Settling, Trend, settling, trend_of
from scalebook.record import LARGEST, RunRecord, StepRecord
from scalebook.step_columns import Steps

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
    mean_memory_clock_mhz: float | None
    max_temperature_celsius: float | None
    temperature_reason: str | None
    gpu_busy_fraction: float | None
    busy_reason: str | None
    max_memory_used_gib: float | None
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
    notes = [note for note in (energy.note,) if note]
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
    windows = windows_of(steps)
    return settling(_inside(telemetry.devices, windows)) if windows else Settling(None)


def _inside(devices: Sequence[Device], windows: Sequence[Window]) -> tuple[Device, ...]:
    """Return the devices with the readings that lie within a window."""
    parts = [[device.within(one.begin, one.end) for one in windows] for device in devices]
    return tuple(
        Device(
            device.name,
            tuple(row for part in each for row in part.rows),
            device.power_cap_watts,
            device.max_clock_mhz,
        )
        for device, each in zip(devices, parts, strict=True)
    )


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
    memory = _values(devices, "memory_clock_mhz")
    clocks = None
    if readings:
        highest = min(possible, default=None)
        each = ((device.name, _values((device,), "clock_mhz")) for device in devices)
        means = tuple((name, fmean(values)) for name, values in each if values)
        clocks = Clocks(fmean(readings), min(readings), highest, _falling(devices), means)
    why = reason or "No device reported its clock while measured steps ran."
    return {
        "clocks": clocks,
        "clock_reason": None if clocks else why,
        "mean_memory_clock_mhz": fmean(memory) if memory else None,
    }


def _falling(devices: Sequence[Device]) -> tuple[str, Trend] | None:
    """Return the device whose clock fell most, None where none fell beyond its noise."""
    trends = ((device.name, trend_of(device.series("clock_mhz"))) for device in devices)
    falling = [(name, one) for name, one in trends if one and one.certain and one.change < 0]
    return min(falling, key=lambda pair: pair[1].change, default=None)


def _rest(devices: Sequence[Device], reason: str | None) -> dict[str, Any]:
    temperatures = _values(devices, "temperature_celsius")
    busy = _values(devices, "gpu_busy_fraction")
    told = [_reasons(row) for device in devices for row in device.rows if "throttle_reasons" in row]
    counted = Counter(name for names in told for name in names)
    nothing = reason or "No device reported it while measured steps ran."
    return {
        "max_temperature_celsius": max(temperatures, default=None),
        "temperature_reason": None if temperatures else nothing,
        "gpu_busy_fraction": fmean(busy) if busy else None,
        "busy_reason": None if busy else nothing,
        "max_memory_used_gib": max(_values(devices, "memory_used_gib"), default=None),
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
