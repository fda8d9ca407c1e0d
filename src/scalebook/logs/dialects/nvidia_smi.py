"""nvidia-smi: the CSV of ``--query-gpu`` and the columns of ``dmon``; ``dcgmi dmon``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from scalebook.logs.dialects.device_samples import CSVTelemetry, TelemetryDialect, cell
from scalebook.logs.numbers import clock_of, columns, number


class NvidiaSMI(CSVTelemetry):
    """``nvidia-smi --query-gpu=... --format=csv``: the unit stands in the header and the cells."""

    name = "nvidia-smi"
    markers = ("utilization.gpu", "power.draw", "memory.used", "temperature.gpu", " MiB, ")
    signature = re.compile(
        r"(?:^|\n|, ?)(?:utilization\.gpu|power\.draw|memory\.used|temperature\.gpu)"
        r"(?: \[[%\w]+\])?(?:,|\n|$)"
        r"|^\d{4}/\d\d/\d\d [\d:.]+, [^,\n]+, [\dA-F]+:[\dA-F:.]+, [\d.]+, P\d+,(?: \d+,){3} \d+ %,"
    )
    first_cells = ("index", "timestamp", "uuid", "name", "gpu_uuid", "pci.bus_id")
    names = (
        ("timestamp", "time", 1.0),
        ("index", "gpu", 1.0),
        ("utilization.gpu", "gpu_busy_fraction", 0.01),
        ("utilization.memory", "memory_busy_fraction", 0.01),
        ("memory.used", "memory_used_gib", None),
        ("power.draw", "power_watts", 1.0),
        ("temperature.gpu", "temperature_celsius", 1.0),
        ("clocks.current.sm", "clock_mhz", 1.0),
        ("clocks.sm", "clock_mhz", 1.0),
        ("clocks.current.memory", "memory_clock_mhz", 1.0),
        ("clocks.mem", "memory_clock_mhz", 1.0),
        ("name", "device", 1.0),
    )
    # What NVIDIA's manual asks for; a log that is added to has no header.
    _USUAL = (
        "timestamp", "name", "pci.bus_id", "driver_version", "pstate", "pcie.link.gen.max",
        "pcie.link.gen.current", "temperature.gpu", "utilization.gpu", "utilization.memory",
        "memory.total", "memory.free", "memory.used",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self._header = self._columns([*self._USUAL])


class NvidiaDmon(TelemetryDialect):
    """``nvidia-smi dmon``: two header lines, which long files repeat; ``-`` is not available."""

    name = "nvidia-smi-dmon"
    markers = ("# gpu", "#gpu", "# Date", "#Date", "#Time", "# Time")
    signature = re.compile(r"(?:^|\n)\s*# ?(?:(?:Date +)?Time +)?gpu +\w+ ")
    _NAMES: ClassVar = columns("nvidia-smi-dmon")
    _header: Sequence[str] = ()

    def line(self, line: str) -> bool:
        """Take a header or a row of one device."""
        words = line.split()
        if words and words[0].startswith("#"):
            words = line.replace("#", " ", 1).split()
            if "gpu" in words:
                self._header = words
            return True
        if not self._header or len(words) != len(self._header) or self.cut:
            return False
        named = dict(zip(self._header, words, strict=True))
        row = {"gpu": number(named["gpu"]), "time": clock_of(line)}
        for name, (column, scale) in self._NAMES.items():
            if name in named:
                row[column] = cell(named[name], "", scale)
        self.sample(row)
        return True


class DcgmiDmon(TelemetryDialect):
    """``dcgmi dmon``: multiplexed counters leave N/A holes; values are fractions of one."""

    name = "dcgmi-dmon"
    markers = ("#Entity", "# Entity")
    signature = re.compile(r"(?:^|\n)\s*# ?Entity +\w+")
    _NAMES: ClassVar = columns("dcgmi-dmon")
    _header: Sequence[str] = ()

    def line(self, line: str) -> bool:
        """Take the header or a whole row."""
        words = line.replace("#", "# ", 1).split() if "Entity" in line else line.split()
        if "Entity" in words:
            self._header = words[words.index("Entity") + 1 :]
            return True
        if not self._header or len(words) != len(self._header) + 2 or words[0] != "GPU":
            return False
        row = {"gpu": number(words[1])}
        for name, text in zip(self._header, words[2:], strict=True):
            column = self._NAMES.get(name)
            if column:
                row[column[0]] = cell(text, "", column[1])
        self.sample(row)
        return True
