"""Readings of NVIDIA GPUs by nvidia-smi, where NVML itself cannot be loaded."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime

from scalebook.running.devices import visible
from scalebook.running.devices.nvml import reasons_of
from scalebook.running.devices.sensor import Row, SensorError, without_missing
from scalebook.running.devices.tools import Stream, ask, cells, near

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


def value_of(cell: str) -> float | None:
    """Return the number of a cell; None for [N/A], [Not Supported] and the like."""
    try:
        return float(cell)
    except ValueError:
        return None


def time_of(stamp: str, arrived: float) -> float:
    """Return the time of a sample in seconds since 1970: its own stamp, else when it arrived."""
    try:
        own = datetime.strptime(stamp, "%Y/%m/%d %H:%M:%S.%f").astimezone().timestamp()
    except ValueError:
        return arrived
    return near(own, arrived)


class NvidiaSMI:
    """The visible GPUs as nvidia-smi shows them.

    Raises:
        SensorError: the tool is missing or fails, or no device is visible.
    """

    source = "nvidia-smi"

    def __init__(
        self, environment: Mapping[str, str], count: int | None = None, period: float = 1.0
    ) -> None:
        text = ask("nvidia-smi", f"--query-gpu={','.join(_STATIC)}", *_FORMAT)
        if text is None:
            raise SensorError("nvidia-smi is missing or fails")
        self._known = [row for row in cells(text) if len(row) == len(_STATIC)]
        names = [row[1] for row in self._known]
        self._shown = visible.chosen("nvidia", names, environment)[:count]
        if not self._shown:
            raise SensorError("nvidia-smi shows no GPU that CUDA_VISIBLE_DEVICES lets this run use")
        self._reasons = next((name for name in _REASONS if self._knows(name)), None)
        self._stream: Stream | None = None
        self._period = period

    def _knows(self, column: str) -> bool:
        return ask("nvidia-smi", f"--query-gpu={column}", *_FORMAT) is not None

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
                power_cap_watts=value_of(row[3]),
                max_clock_mhz=value_of(row[4]),
            )
            for row in rows
        ]

    def once(self) -> list[Row]:
        """Return one reading of each GPU."""
        return self._rows(ask(*self._query()) or "")

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
        """End the tool."""
        if self._stream is not None:
            self._stream.close()


def _row(texts: Sequence[str], arrived: float) -> Row:
    stamp, *rest = texts
    row: Row = {"time": time_of(stamp, arrived)}
    for (_, column, scale), cell in zip(_COLUMNS, rest, strict=False):
        value = value_of(cell)
        if value is not None:
            row[column] = int(value) if column == "gpu" else round(value * scale, 4)
    if len(rest) > len(_COLUMNS) and rest[-1].startswith("0x"):
        row["throttle_reasons"] = reasons_of(int(rest[-1], 16))
    return row
