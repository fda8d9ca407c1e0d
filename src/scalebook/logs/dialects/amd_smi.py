"""rocm-smi and amd-smi: text, CSV and tables; power is of the socket or an average by age."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import ClassVar

from scalebook.logs.dialects.device_samples import CSVTelemetry, TelemetryDialect, cell
from scalebook.logs.numbers import columns, integer, number


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
    names = (
        ("timestamp", "time", 1.0),
        ("device", "gpu", 1.0),
        ("power (w)", "power_watts", 1.0),
        ("gpu use (%)", "gpu_busy_fraction", 0.01),
        ("vram total used memory (b)", "memory_used_gib", 2.0**-30),
        ("gpu memory allocated (vram%)", "memory_used_fraction", 0.01),
        ("gpu memory use (%)", "memory_used_fraction", 0.01),
        ("temperature (sensor junction)", "temperature_celsius", 1.0),
        ("temperature (sensor edge)", "temperature_celsius", 1.0),
    )


class AMDSMICSV(CSVTelemetry):
    """``amd-smi metric --csv`` and ``monitor --csv``, with or without a time stamp."""

    name = "amd-smi-csv"
    markers = ("gfx_activity", "socket_power", "power_usage", "gfx_util")
    signature = re.compile(
        r"(?:^|\n)(?:[\w ]+,)*gpu,[^\n]*(?:gfx_activity|socket_power|power_usage|gfx_util)"
    )
    first_cells = ("gpu",)
    names = (
        ("timestamp", "time", 1.0),
        ("utc_epoch_s", "time", 1.0),
        ("gfx_activity", "gpu_busy_fraction", 0.01),
        ("gfx_util", "gpu_busy_fraction", 0.01),
        ("umc_activity", "memory_busy_fraction", 0.01),
        ("mem_util", "memory_busy_fraction", 0.01),
        ("socket_power", "power_watts", 1.0),
        ("power_usage", "power_watts", 1.0),
        ("hotspot", "temperature_celsius", 1.0),
        ("edge", "temperature_celsius", 1.0),
        ("used_vram", "memory_used_gib", 2.0**-10),
        ("vram_used", "memory_used_gib", 2.0**-10),
        ("gfx_0_clk", "clock_mhz", 1.0),
        ("gfx_clk", "clock_mhz", 1.0),
        ("gfx_clock", "clock_mhz", 1.0),
        ("mem_0_clk", "memory_clock_mhz", 1.0),
        ("gpu", "gpu", 1.0),
    )


class AMDSMIMonitor(TelemetryDialect):
    """``amd-smi monitor``: a table whose cells carry their unit behind a blank."""

    name = "amd-smi-monitor"
    markers = ("GFX_UTIL", "GPU_TEMP", "GFX_CLOCK", "GPU_T", "GFX%")
    signature = re.compile(r"(?:^|\n)(?:TIMESTAMP +)?GPU +(?:XCP +)?(?:POWER|GPU_T|GFX)")
    _UNITS = re.compile(r"(?<=[\d./]) (?:W|°C|C|%|MHz|MB|GB|Mb/s)(?= |$)")
    _NAMES: ClassVar = columns("amd-smi-monitor")
    _header: Sequence[str] = ()

    def line(self, line: str) -> bool:
        """Take a header or a row of one device."""
        if "GPU " in line and self.signature.search(line):
            self._header = line.split()
            return True
        words = self._UNITS.sub("", line.rstrip()).split()
        if not self._header or len(words) != len(self._header) or self.cut:
            return False
        named = dict(zip(self._header, words, strict=True))
        row = {"gpu": number(named["GPU"])}
        if "TIMESTAMP" in named:
            row["time"] = number(named["TIMESTAMP"])
        for name, (column, scale) in self._NAMES.items():
            if name in named:
                row[column] = cell(named[name], "", scale)
        if not math.isnan(row["gpu"]):
            self.sample(row)
        return True
