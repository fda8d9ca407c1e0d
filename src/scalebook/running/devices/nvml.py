"""Readings of NVIDIA GPUs by the driver's own library, NVML, through NVIDIA's binding for it.

``libnvidia-ml.so.1`` comes with the driver and has the energy counter, which nvidia-smi lacks.
Units: NVML API reference, docs.nvidia.com/deploy/nvml-api.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from scalebook.running.devices.sensor import Library, Row, SensorError, chosen, without_missing

SM_CLOCK, MEMORY_CLOCK = 1, 2  # nvmlClockType_t
CORE_TEMPERATURE = 0  # nvmlTemperatureSensors_t

# nvmlClocksEventReasons: why clocks are not at their highest. Idle is no reason to report.
REASONS = {
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}


class NVML(Library):
    """The visible GPUs of an NVIDIA driver.

    Raises:
        SensorError: there is no binding or no driver, or the driver has no device that is visible.
    """

    source = "nvml"

    def __init__(self, environment: Mapping[str, str], count: int | None = None) -> None:
        try:
            self.module = import_module("pynvml")
            self.error = self.module.NVMLError
            self.module.nvmlInit()
        except ImportError as error:
            raise SensorError("nvidia-ml-py is not installed (extra 'run')") from error
        except self.module.NVMLError_LibraryNotFound as error:
            raise SensorError("there is no NVIDIA driver") from error
        except self.error as error:
            raise SensorError(f"NVML does not start ({error})") from error
        found = range(self.ask("nvmlDeviceGetCount") or 0)
        # None where this process may not use the device, as in a container that has some of them.
        handles = [self.ask("nvmlDeviceGetHandleByIndex", index) for index in found]
        names = [self.ask("nvmlDeviceGetUUID", handle) or "" for handle in handles]
        indices = chosen("nvidia", names, environment)[:count]
        self._devices = {i: handles[i] for i in indices if handles[i] is not None}
        if not self._devices:
            self.close()
            raise SensorError("NVML shows no GPU that CUDA_VISIBLE_DEVICES lets this run use")

    def devices(self) -> list[Row]:
        """Return what does not change: index, name, power cap (W), highest SM clock (MHz)."""
        return [
            without_missing(
                gpu=index,
                name=self.ask("nvmlDeviceGetName", handle),
                power_cap_watts=self._scaled("nvmlDeviceGetEnforcedPowerLimit", handle),
                max_clock_mhz=self.ask("nvmlDeviceGetMaxClockInfo", handle, SM_CLOCK),
            )
            for index, handle in self._devices.items()
        ]

    def read(self) -> list[Row]:
        """Return a reading of each GPU, without the quantities that the driver does not have.

        Raises:
            SensorError: the driver has nothing on any of them any more.
        """
        rows = [self._row(index, handle) for index, handle in self._devices.items()]
        if not any(len(row) > 1 for row in rows):
            raise SensorError("NVML answers no question about any GPU of this run")
        return rows

    def _row(self, index: int, handle: Any) -> Row:
        used = self.ask("nvmlDeviceGetUtilizationRates", handle)
        memory = self.ask("nvmlDeviceGetMemoryInfo", handle)
        # The function was renamed in CUDA 12.2.
        mask = self.ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if mask is None:
            mask = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return without_missing(
            gpu=index,
            power_watts=self._scaled("nvmlDeviceGetPowerUsage", handle),
            # Since the driver was loaded; Volta and later.
            energy_joules=self._scaled("nvmlDeviceGetTotalEnergyConsumption", handle),
            temperature_celsius=self.ask("nvmlDeviceGetTemperature", handle, CORE_TEMPERATURE),
            gpu_busy_fraction=used.gpu / 100 if used else None,
            memory_busy_fraction=used.memory / 100 if used else None,
            memory_used_gib=round(memory.used / 2**30, 3) if memory else None,
            clock_mhz=self.ask("nvmlDeviceGetClockInfo", handle, SM_CLOCK),
            memory_clock_mhz=self.ask("nvmlDeviceGetClockInfo", handle, MEMORY_CLOCK),
            throttle_reasons=(
                None if mask is None else [name for bit, name in REASONS.items() if mask & bit]
            ),
        )

    def close(self) -> None:
        self.ask("nvmlShutdown")

    def _scaled(self, name: str, handle: Any) -> float | None:
        """Return watts or joules from thousandths."""
        value = self.ask(name, handle)
        return None if value is None else round(value / 1000, 3)
