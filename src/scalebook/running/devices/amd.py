"""Readings of AMD GPUs through amdsmi, the Python module that ROCm ships.

Names and units: AMD SMI Python API reference, rocm.docs.amd.com/projects/amdsmi. A quantity that a
device lacks comes as "N/A" or as the largest value of its C type.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from statistics import fmean
from typing import Any

from scalebook.logs.dialects.amd_smi import AMDSMICSV
from scalebook.query import cells, printed
from scalebook.record import number_of, text_of
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

FIRST_SECONDS = 10.0  # amd-smi takes seconds to start on a node of eight


class _Rows(AMDSMICSV):
    """The reader of amd-smi's CSV, which hands out its samples as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []

    def sample(self, row: Mapping[str, float]) -> None:
        self.rows.append({name: value for name, value in row.items() if not math.isnan(value)})


class AMDSMITool(Sensor):
    """The visible GPUs as ``amd-smi monitor`` shows them, once a second at the most.

    Raises:
        SensorError: the tool is missing.
    """

    source = "amd-smi"

    def __init__(
        self, environment: Mapping[str, str], count: int | None = None, period: float = 1.0
    ) -> None:
        listed = printed(("amd-smi", "list", "--csv"))
        if listed is None:
            raise SensorError("amd-smi is missing or fails")
        numbers = [row[0] for row in cells(listed) if row[0].isdigit()]
        self._shown = chosen("amd", [""] * len(numbers), environment)[:count]
        if not self._shown:
            raise SensorError("amd-smi shows no GPU that ROCR_ or HIP_VISIBLE_DEVICES leaves")
        # -p power, -t temperatures, -u and -m busy and clocks, -v memory
        options = ("-p", "-t", "-u", "-m", "-v", "--csv", "-w", str(max(1, round(period))))
        self._stream = Stream(("amd-smi", "monitor", *options))
        self._reader = _Rows()

    def devices(self) -> list[Row]:
        """Return the index of each GPU."""
        return [{"gpu": index} for index in self._shown]

    def read(self) -> list[Row]:
        """Return the readings that have come since the last call."""
        for line in self._stream.lines():
            self._reader.line(line)
        rows, self._reader.rows = self._reader.rows, []
        arrived = time.time()
        kept = [row for row in rows if row.get("gpu") in self._shown]
        return [
            {**row, "gpu": int(row["gpu"]), "time": near(row.get("time", arrived), arrived)}
            for row in kept
        ]

    def once(self) -> list[Row]:
        """Return the first reading of each GPU, waiting a few seconds for it."""
        deadline = time.monotonic() + FIRST_SECONDS
        while not (rows := self.read()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return rows

    def close(self) -> None:
        self._stream.close()


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
