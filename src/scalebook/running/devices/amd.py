"""Readings of AMD GPUs through amdsmi, the Python module that ROCm ships.

Names and units: AMD SMI Python API reference, rocm.docs.amd.com/projects/amdsmi. A quantity that a
device lacks comes as "N/A" or as the largest value of its C type.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from statistics import fmean
from typing import Any

from scalebook.record import number_of, text_of
from scalebook.running.devices.sensor import Library, Row, SensorError, chosen, without_missing

ROCM_MODULES = "/opt/rocm/share/amd_smi"  # where ROCm puts it without installing it
_NO_VALUE = {0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF}

# How long each limit was in force, as counters since the driver was loaded: reading them is free,
# while the function that tells the state of the moment waits for a tenth of a second a GPU.
LIMITS = {
    "ppt_residency_acc": "ppt_power",
    "prochot_residency_acc": "prochot_thermal",
    "socket_thm_residency_acc": "socket_thermal",
    "vr_thm_residency_acc": "vr_thermal",
    "hbm_thm_residency_acc": "hbm_thermal",
}


class AMDSMI(Library):
    """The visible GPUs of an AMD driver.

    Raises:
        SensorError: the module or the driver is missing, or no device is visible.
    """

    source = "amdsmi"

    def __init__(self, environment: Mapping[str, str], count: int | None = None) -> None:
        self.module = _module()
        self.error = self.module.AmdSmiException
        try:
            self.module.amdsmi_init()
            handles: list[Any] = list(self.module.amdsmi_get_processor_handles())
        except self.error as error:
            raise SensorError(f"amdsmi does not start: {error}") from error
        found = (self.ask("amdsmi_get_gpu_device_uuid", handle) for handle in handles)
        names = [text_of(name) or "" for name in found]
        indices = chosen("amd", names, environment)[:count]
        if not indices:
            self.close()
            raise SensorError("amdsmi shows no GPU that ROCR_ or HIP_VISIBLE_DEVICES leaves")
        self._devices = {index: handles[index] for index in indices}
        self._limits: dict[int, Mapping[str, Any]] = {}

    def devices(self) -> list[Row]:
        """Return what does not change: index, name, power cap (W), highest clock (MHz)."""
        kinds = getattr(self.module, "AmdSmiClkType", None)
        clock = getattr(kinds, "GFX", 0)
        return [
            without_missing(
                gpu=index,
                name=_text(self._table("amdsmi_get_gpu_asic_info", handle).get("market_name")),
                power_cap_watts=_watts(
                    self._table("amdsmi_get_power_cap_info", handle).get("power_cap")
                ),
                max_clock_mhz=_number(
                    self._table("amdsmi_get_clock_info", handle, clock).get("max_clk")
                ),
            )
            for index, handle in self._devices.items()
        ]

    def read(self) -> list[Row]:
        """Return a reading of each GPU; a quantity that the driver does not report is left out."""
        return [self._row(index, handle) for index, handle in self._devices.items()]

    def _row(self, index: int, handle: Any) -> Row:
        told = self._table("amdsmi_get_gpu_metrics_info", handle)
        used = _number(self._table("amdsmi_get_gpu_vram_usage", handle).get("vram_used"))
        return without_missing(
            gpu=index,
            power_watts=_first(told, "current_socket_power", "average_socket_power"),
            energy_joules=_joules(self._table("amdsmi_get_energy_count", handle)),
            temperature_celsius=_first(told, "temperature_hotspot", "temperature_edge"),
            gpu_busy_fraction=_fraction(told.get("average_gfx_activity")),
            memory_busy_fraction=_fraction(told.get("average_umc_activity")),
            memory_used_gib=None if used is None else round(used / 1024, 3),  # MB there is MiB
            clock_mhz=_clock(told),
            memory_clock_mhz=_first(told, "current_uclk", "average_uclk_frequency"),
            throttle_reasons=self._reasons(index, told),
        )

    def _reasons(self, index: int, told: Mapping[str, Any]) -> list[str] | None:
        """Return the limits whose counters have grown since the last reading."""
        before = self._limits.get(index)
        there = {name: value for name in LIMITS if (value := _number(told.get(name))) is not None}
        self._limits[index] = there
        if before is None or not there:
            return None
        return [LIMITS[name] for name, value in there.items() if value > before.get(name, value)]

    def close(self) -> None:
        self.ask("amdsmi_shut_down")

    def _table(self, name: str, *arguments: Any) -> Mapping[str, Any]:
        value = self.ask(name, *arguments)
        return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _module() -> Any:
    try:
        return import_module("amdsmi")
    except (ImportError, OSError, KeyError):  # its C library may be missing under it
        sys.path.append(ROCM_MODULES)
    try:
        return import_module("amdsmi")
    except (ImportError, OSError, KeyError) as error:
        raise SensorError("The module amdsmi of ROCm cannot be loaded") from error
    finally:
        sys.path.remove(ROCM_MODULES)


def _number(value: Any) -> float | None:
    found = number_of(value)
    return found if found is not None and found >= 0 and value not in _NO_VALUE else None


def _first(told: Mapping[str, Any], *names: str) -> float | None:
    """Return the first of these that the device reports; older devices have only averages."""
    return next((value for name in names if (value := _number(told.get(name))) is not None), None)


def _clock(told: Mapping[str, Any]) -> float | None:
    """Return the clock of the compute dies in MHz, the mean over them where there are several."""
    dies: Any = told.get("current_gfxclks")
    each = [_number(value) for value in dies] if isinstance(dies, list | tuple) else []  # pyright: ignore[reportUnknownVariableType]
    there = [value for value in each if value]  # dies that a device lacks read 0
    if there:
        return round(fmean(there), 1)
    return _first(told, "current_gfxclk", "average_gfxclk_frequency")


def _joules(told: Mapping[str, Any]) -> float | None:
    """Return joules from the counter; its field was named ``power`` before ROCm 6.2.1."""
    count = _first(told, "energy_accumulator", "power")
    step = _number(told.get("counter_resolution"))  # microjoules
    return None if count is None or step is None else count * step / 1e6


def _watts(value: Any) -> float | None:
    """Return a power cap in watts: microwatts in newer versions of the module."""
    cap = _number(value)
    if not cap:
        return None
    return cap / 1e6 if cap > 1e5 else cap


def _fraction(value: Any) -> float | None:
    percent = _number(value)
    return None if percent is None or percent > 100 else percent / 100


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value != "N/A" else None
