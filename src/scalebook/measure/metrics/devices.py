"""What the devices of a run drew and how they ran, from the telemetry of its steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scalebook.measure.telemetry import Telemetry, TelemetrySummary, flags, read, summarize
from scalebook.measure.telemetry.summary import within
from scalebook.measure.telemetry.trend import Settling, settling
from scalebook.record import StepRecord
from scalebook.store import Run


def telemetry(
    run: Run, steps: Iterable[StepRecord], readings: Telemetry | None = None
) -> TelemetrySummary:
    """Return the run's telemetry over these steps, the measured ones; ``readings`` spare a read."""
    return summarize(readings or read(run.path), run.record, steps)


def settled(readings: Telemetry, steps: Iterable[StepRecord]) -> Settling:
    """Return whether the devices had settled while these steps ran; unknown without their times."""
    inside = within(readings.devices, steps)
    return settling(inside) if inside else Settling(None)


def device_fields(
    run: Run, steps: Iterable[StepRecord], readings: Telemetry | None = None
) -> dict[str, Any]:
    """Return the fields of RunMetrics that telemetry shows."""
    found = telemetry(run, steps, readings)
    clocks = found.clocks
    return {
        "energy_joules_per_token": found.energy_joules_per_token,
        "energy_method": found.energy_method,
        "energy_reason": found.energy_reason,
        "mean_power_watts": found.mean_power_watts,
        "max_power_watts": found.max_power_watts,
        "power_cap_watts": found.power_cap_watts,
        "power_reason": found.power_reason,
        "mean_clock_mhz": clocks.mean_mhz if clocks else None,
        "min_clock_mhz": clocks.lowest_mhz if clocks else None,
        "clock_reason": found.clock_reason,
        "max_temperature_celsius": found.max_temperature_celsius,
        "temperature_reason": found.temperature_reason,
        "gpu_busy_fraction": found.gpu_busy_fraction,
        "busy_reason": found.busy_reason,
        "throttle_fractions": found.throttle_fractions,
        "throttle_reason": found.throttle_reason,
        "device_notes": flags(found),
    }
