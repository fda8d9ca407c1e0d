"""Readings of NVIDIA GPUs by the driver's own library, NVML, through NVIDIA's binding for it.

``libnvidia-ml.so.1`` comes with the driver and has the energy counter, which nvidia-smi lacks. The
binding (nvidia-ml-py) is one pure Python file; where it is not installed, nvidia-smi is read.
Units: NVML API reference, docs.nvidia.com/deploy/nvml-api.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import import_module
from typing import Any

from scalebook.query import cells, number, printed
from scalebook.running.devices.sensor import (
    Library,
    Row,
    Sensor,
    SensorError,
    Stream,
    chosen,
    near,
    without_missing,
)

_STATIC = ("index", "uuid", "name", "enforced.power.limit", "clocks.max.sm")
_COLUMNS = (
    ("index", "gpu", 1.0),
    ("power.draw", "power_watts", 1.0),
    ("temperature.gpu", "temperature_celsius", 1.0),
    ("utilization.gpu", "gpu_busy_fraction", 0.01),
    ("utilization.memory", "memory_busy_fraction", 0.01),
    ("memory.used", "memory_used_gib", 2.0**-10),
    ("clocks.current.sm", "clock_mhz", 1.0),
    ("clocks.current.memory", "memory_clock_mhz", 1.0),
)
# The column was renamed in driver 535; a name that a driver does not know is an error of the tool.
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
_FORMAT = ("--format=csv,noheader,nounits",)


def time_of(stamp: str, arrived: float) -> float:
    """Return the time of a sample in seconds since 1970: its own stamp, else when it arrived."""
    try:
        own = datetime.strptime(stamp, "%Y/%m/%d %H:%M:%S.%f").astimezone().timestamp()
    except ValueError:
        return arrived
    return near(own, arrived)


class NvidiaSMITool(Sensor):
    """The visible GPUs as nvidia-smi shows them.

    Raises:
        SensorError: the tool is missing or fails, or no device is visible.
    """

    source = "nvidia-smi"

    def __init__(
        self, environment: Mapping[str, str], count: int | None = None, period: float = 1.0
    ) -> None:
        text = _asked(*_STATIC)
        if text is None:
            raise SensorError("nvidia-smi is missing or fails")
        self._known = [row for row in cells(text) if len(row) == len(_STATIC)]
        names = [row[1] for row in self._known]
        self._shown = chosen("nvidia", names, environment)[:count]
        if not self._shown:
            raise SensorError("nvidia-smi shows no GPU that CUDA_VISIBLE_DEVICES lets this run use")
        self._reasons = next((name for name in _REASONS if _asked(name) is not None), None)
        self._stream: Stream | None = None
        self._period = period

    def _query(self) -> tuple[str, ...]:
        columns = ["timestamp", *(name for name, _, _ in _COLUMNS)]
        columns += [self._reasons] if self._reasons else []
        devices = ",".join(self._known[index][0] for index in self._shown)
        return ("nvidia-smi", "-i", devices, f"--query-gpu={','.join(columns)}", *_FORMAT)

    def devices(self) -> list[Row]:
        """Return what does not change: index, name, power cap (W), highest SM clock (MHz)."""
        rows = (self._known[index] for index in self._shown)
        return [
            without_missing(
                gpu=int(row[0]),
                name=row[2],
                power_cap_watts=number(row[3]),
                max_clock_mhz=number(row[4]),
            )
            for row in rows
        ]

    def once(self) -> list[Row]:
        return self._rows(printed(self._query()) or "")

    def read(self) -> list[Row]:
        """Return the readings that have come since the last call."""
        if self._stream is None:
            self._stream = Stream((*self._query(), f"--loop-ms={round(self._period * 1000)}"))
        return self._rows("\n".join(self._stream.lines()))

    def _rows(self, text: str) -> list[Row]:
        width = 1 + len(_COLUMNS) + (self._reasons is not None)
        arrived = time.time()
        return [_row(row, arrived) for row in cells(text) if len(row) == width]

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()


def _asked(*columns: str) -> str | None:
    return printed(("nvidia-smi", f"--query-gpu={','.join(columns)}", *_FORMAT))


def _row(texts: Sequence[str], arrived: float) -> Row:
    stamp, *rest = texts
    row: Row = {"time": time_of(stamp, arrived)}
    for (_, column, scale), cell in zip(_COLUMNS, rest, strict=False):
        value = number(cell)
        if value is not None:
            row[column] = int(value) if column == "gpu" else round(value * scale, 4)
    if len(rest) > len(_COLUMNS) and rest[-1].startswith("0x"):
        row["throttle_reasons"] = reasons_of(int(rest[-1], 16))
    return row


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


def reasons_of(mask: int) -> list[str]:
    """Return the names of the reasons in a mask of NVML or nvidia-smi."""
    return [name for bit, name in REASONS.items() if mask & bit]


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
            throttle_reasons=None if mask is None else reasons_of(mask),
        )

    def close(self) -> None:
        self.ask("nvmlShutdown")

    def _scaled(self, name: str, handle: Any) -> float | None:
        """Return watts or joules from thousandths."""
        value = self.ask(name, handle)
        return None if value is None else round(value / 1000, 3)
