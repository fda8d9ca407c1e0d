"""nvidia-smi: the CSV of ``--query-gpu`` and the columns of ``dmon``; ``dcgmi dmon``."""

from __future__ import annotations

import re

from scalebook.logs.dialects.device_samples import CSVTelemetry, TableTelemetry
from scalebook.logs.numbers import columns


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
    names = columns("nvidia-smi")
    # What NVIDIA's manual asks for; a log that is added to has no header.
    _USUAL = (
        "timestamp", "name", "pci.bus_id", "driver_version", "pstate", "pcie.link.gen.max",
        "pcie.link.gen.current", "temperature.gpu", "utilization.gpu", "utilization.memory",
        "memory.total", "memory.free", "memory.used",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self._header = self._columns([*self._USUAL])


class NvidiaDmon(TableTelemetry):
    """``nvidia-smi dmon``: two header lines, which long files repeat; ``-`` is not available."""

    name = "nvidia-smi-dmon"
    markers = ("# gpu", "#gpu", "# Date", "#Date", "#Time", "# Time")
    signature = re.compile(r"(?:^|\n)\s*# ?(?:(?:Date +)?Time +)?gpu +\w+ ")
    names = columns("nvidia-smi-dmon")

    def words(self, line: str) -> list[str]:
        """Return the cells of a line."""
        return line.replace("#", " ", 1).split()


class DcgmiDmon(TableTelemetry):
    """``dcgmi dmon``: multiplexed counters leave N/A holes; values are fractions of one."""

    name = "dcgmi-dmon"
    markers = ("#Entity", "# Entity")
    signature = re.compile(r"(?:^|\n)\s*# ?Entity +\w+")
    names = columns("dcgmi-dmon")

    def words(self, line: str) -> list[str]:
        """Return the cells of a line: ``GPU 0`` is one."""
        _, header, rest = line.partition("Entity")
        if header:
            return ["GPU", *rest.split()]
        kind, *cells = line.split() or [""]
        return cells if kind == "GPU" else []
