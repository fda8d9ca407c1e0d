"""rocm-smi and amd-smi: text, CSV and tables; power is of the socket or an average by age."""

from __future__ import annotations

import math
import re
from typing import ClassVar

from scalebook.logs.dialects.device_samples import (
    CSVTelemetry,
    TableTelemetry,
    TelemetryDialect,
    cell,
)
from scalebook.logs.numbers import columns, integer


class RocmSMIText(TelemetryDialect):
    """``GPU[3] : GPU use (%): 18``: the index is the physical one, whatever the job sees."""

    name = "rocm-smi"
    markers = ("GPU[",)
    signature = re.compile(
        r"(?:^|\n)GPU\[\d+\]\s*: (?:[^\n]*Power \(W\)|GPU use \(%\)|Temperature|GPU Memory|VRAM)"
    )
    _ENTRY = re.compile(r"GPU\[(\d+)\]\s*: ([^:\n]+): ([-\d.]+|N/A)")
    _NAMES: ClassVar = columns("rocm-smi")

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[int, dict[str, float]] = {}

    def line(self, line: str) -> bool:
        """Take one figure; a figure that a device already has begins its next sample."""
        found = self._ENTRY.match(line.strip())
        if found is None:
            return False
        gpu = integer(found[1])
        for piece, (column, scale) in self._NAMES.items():
            if piece in found[2]:
                row = self._open.setdefault(gpu, {})
                if column in row and "Sensor edge" not in piece:
                    self._close(gpu)
                    row = self._open.setdefault(gpu, {})
                value = cell(found[3], "", scale)
                if not math.isnan(value):
                    row.setdefault(column, value)
                break
        if len(self._open) > 4096:
            self.finish()
        return True

    def _close(self, gpu: int) -> None:
        row = self._open.pop(gpu, {})
        if row:
            self.sample({"gpu": float(gpu), **row})

    def finish(self) -> None:
        """Record what is still open."""
        for gpu in sorted(self._open):
            self._close(gpu)


class RocmSMICSV(CSVTelemetry):
    """``rocm-smi --csv``: a warning and a blank line may stand before the header."""

    name = "rocm-smi-csv"
    markers = ("device,", "timestamp,device")
    signature = re.compile(r"(?:^|\n)(?:timestamp,)?device,[^\n]*(?:\(W\)|\(%\)|\(C\)|\(B\)|%\))")
    first_cells = ("device",)
    names = columns("rocm-smi-csv")


class AMDSMICSV(CSVTelemetry):
    """``amd-smi metric --csv`` and ``monitor --csv``, with or without a time stamp."""

    name = "amd-smi-csv"
    markers = ("gfx_activity", "socket_power", "power_usage", "gfx_util")
    signature = re.compile(
        r"(?:^|\n)(?:[\w ]+,)*gpu,[^\n]*(?:gfx_activity|socket_power|power_usage|gfx_util)"
    )
    first_cells = ("gpu",)
    names = columns("amd-smi-csv")


class AMDSMIMonitor(TableTelemetry):
    """``amd-smi monitor``: a table whose cells carry their unit behind a blank."""

    name = "amd-smi-monitor"
    markers = ("GFX_UTIL", "GPU_TEMP", "GFX_CLOCK", "GPU_T", "GFX%")
    signature = re.compile(r"(?:^|\n)(?:TIMESTAMP +)?GPU +(?:XCP +)?(?:POWER|GPU_T|GFX)")
    names = columns("amd-smi-monitor")
    _UNITS = re.compile(r"(?<=[\d./]) (?:W|°C|C|%|MHz|MB|GB|Mb/s)(?= |$)")

    def words(self, line: str) -> list[str]:
        """Return the cells of a line."""
        return self._UNITS.sub("", line.rstrip()).split()
