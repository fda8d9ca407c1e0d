"""Telemetry of devices beside a run: a summary, and lines for telemetry.jsonl."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from scalebook.logs.job import Table

_MEANS = (
    "power_watts",
    "temperature_celsius",
    "gpu_busy_fraction",
    "memory_busy_fraction",
    "memory_used_gib",
    "memory_used_fraction",
    "clock_mhz",
    "memory_clock_mhz",
    "sm_active_fraction",
    "tensor_active_fraction",
)


def summary(samples: Table) -> dict[str, Any]:
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


def lines(samples: Table) -> Iterator[dict[str, float | int | None]]:
    """Yield one object a sample; a quantity that the tool did not give is left out."""
    for index in range(len(samples)):
        row: dict[str, float | int | None] = {**samples.row(index)}
        if "gpu" in row:
            row["gpu"] = int(row["gpu"] or 0)
        yield row
