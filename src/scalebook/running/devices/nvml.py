"""Readings of NVIDIA GPUs by the driver's own library, NVML, through ctypes.

``libnvidia-ml.so.1`` comes with the driver: it is wherever nvidia-smi is, also in a container that
has no Python package for it, and it tells the energy counter, which nvidia-smi does not. Names,
units and structures: NVML API reference, docs.nvidia.com/deploy/nvml-api.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, ClassVar

from scalebook.running.devices import visible
from scalebook.running.devices.sensor import Row, SensorError, without_missing

LIBRARY = "libnvidia-ml.so.1"
SM_CLOCK, MEMORY_CLOCK = 1, 2  # nvmlClockType_t
_UUID_BYTES = 96  # NVML_DEVICE_UUID_V2_BUFFER_SIZE
_NAME_BYTES = 96

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


class Utilization(ctypes.Structure):
    """nvmlUtilization_t: percent of the last period in which a kernel ran, or memory was used."""

    _fields_: ClassVar = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Memory(ctypes.Structure):
    """nvmlMemory_t: bytes."""

    _fields_: ClassVar = [
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


def reasons_of(mask: int) -> list[str]:
    """Return the names of the reasons in a mask of NVML or nvidia-smi."""
    return [name for bit, name in REASONS.items() if mask & bit]


class NVML:
    """The visible GPUs of an NVIDIA driver.

    Raises:
        SensorError: there is no driver, or it has no device that is visible.
    """

    source = "nvml"

    def __init__(self, environment: Mapping[str, str], count: int | None = None) -> None:
        try:
            self._library: Any = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise SensorError(f"{LIBRARY} cannot be loaded: no NVIDIA driver") from error
        code = self._library.nvmlInit_v2()
        if code:
            raise SensorError(f"NVML does not start (error {code})")
        handles = [self._handle(index) for index in range(self._count())]
        names = [self._text("nvmlDeviceGetUUID", handle, _UUID_BYTES) or "" for handle in handles]
        indices = visible.chosen("nvidia", names, environment)[:count]
        self._devices = {index: handles[index] for index in indices if handles[index]}
        if not self._devices:
            self.close()
            raise SensorError("NVML shows no GPU that CUDA_VISIBLE_DEVICES lets this run use")

    def devices(self) -> list[Row]:
        """Return what does not change: index, name, power cap (W), highest SM clock (MHz)."""
        return [
            without_missing(
                gpu=index,
                name=self._text("nvmlDeviceGetName", handle, _NAME_BYTES),
                power_cap_watts=self._scaled("nvmlDeviceGetEnforcedPowerLimit", handle, 1e-3),
                max_clock_mhz=self._clock(handle, SM_CLOCK, "nvmlDeviceGetMaxClockInfo"),
            )
            for index, handle in self._devices.items()
        ]

    def read(self) -> list[Row]:
        """Return a reading of each GPU; a quantity that the driver does not tell is left out.

        Raises:
            SensorError: the driver tells nothing of any of them any more.
        """
        rows = [self._row(index, handle) for index, handle in self._devices.items()]
        if not any(len(row) > 1 for row in rows):
            raise SensorError("NVML answers no question about any GPU of this run")
        return rows

    def _row(self, index: int, handle: ctypes.c_void_p) -> Row:
        used = self._get("nvmlDeviceGetUtilizationRates", handle, Utilization)
        memory = self._get("nvmlDeviceGetMemoryInfo", handle, Memory)
        return without_missing(
            gpu=index,
            power_watts=self._scaled("nvmlDeviceGetPowerUsage", handle, 1e-3),
            energy_joules=self._energy(handle),
            temperature_celsius=self._temperature(handle),
            gpu_busy_fraction=used.gpu / 100 if used else None,
            memory_busy_fraction=used.memory / 100 if used else None,
            memory_used_gib=round(memory.used / 2**30, 3) if memory else None,
            clock_mhz=self._clock(handle, SM_CLOCK),
            memory_clock_mhz=self._clock(handle, MEMORY_CLOCK),
            throttle_reasons=self._reasons(handle),
        )

    def once(self) -> list[Row]:
        """Return one reading of each device: nothing has to be waited for."""
        return self.read()

    def close(self) -> None:
        """Let go of the driver."""
        self._library.nvmlShutdown()

    def _count(self) -> int:
        count = ctypes.c_uint()
        self._library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        return count.value

    def _handle(self, index: int) -> ctypes.c_void_p:
        """Return a device's handle, empty where this process may not use the device."""
        handle = ctypes.c_void_p()
        self._library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
        return handle

    def _get(self, name: str, handle: ctypes.c_void_p, kind: Any, *arguments: int) -> Any:
        """Return what a function of the library fills in, None where it is missing or fails."""
        function = getattr(self._library, name, None)
        value = kind()
        if function is None or function(handle, *arguments, ctypes.byref(value)):
            return None
        return value

    def _text(self, name: str, handle: ctypes.c_void_p, size: int) -> str | None:
        buffer = ctypes.create_string_buffer(size)
        code = getattr(self._library, name)(handle, buffer, size)
        return None if code else buffer.value.decode(errors="replace")

    def _scaled(self, name: str, handle: ctypes.c_void_p, scale: float) -> float | None:
        value = self._get(name, handle, ctypes.c_uint)
        return None if value is None else round(value.value * scale, 3)

    def _energy(self, handle: ctypes.c_void_p) -> float | None:
        """Return joules since the driver was loaded (Volta and later)."""
        value = self._get("nvmlDeviceGetTotalEnergyConsumption", handle, ctypes.c_ulonglong)
        return None if value is None else value.value / 1000

    def _temperature(self, handle: ctypes.c_void_p) -> int | None:
        value = self._get("nvmlDeviceGetTemperature", handle, ctypes.c_uint, 0)
        return None if value is None else value.value

    def _clock(
        self, handle: ctypes.c_void_p, kind: int, name: str = "nvmlDeviceGetClockInfo"
    ) -> int | None:
        value = self._get(name, handle, ctypes.c_uint, kind)
        return None if value is None else value.value

    def _reasons(self, handle: ctypes.c_void_p) -> list[str] | None:
        """Return why clocks are lowered; the function was renamed in CUDA 12.2."""
        for word in ("Event", "Throttle"):
            name = f"nvmlDeviceGetCurrentClocks{word}Reasons"
            value = self._get(name, handle, ctypes.c_ulonglong)
            if value is not None:
                return reasons_of(value.value)
        return None
