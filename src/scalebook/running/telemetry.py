"""Power, energy, clocks and temperature of the devices, read beside the training processes."""

from __future__ import annotations

import os
from collections.abc import Mapping

from scalebook.running.nvml import NVML
from scalebook.running.sensor import Sensor, SensorError


def temperature_celsius(environment: Mapping[str, str] = os.environ) -> float | None:
    """Return the temperature of the hottest visible GPU in °C, None where nothing tells it."""
    for opened in (NVML,):
        try:
            sensor: Sensor = opened(environment)
        except SensorError:
            continue
        try:
            found = [row.get("temperature_celsius") for row in sensor.read()]
        except SensorError:
            continue
        finally:
            sensor.close()
        there = [float(value) for value in found if value is not None]
        if there:
            return max(there)
    return None
