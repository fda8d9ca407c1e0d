"""Samples of devices that monitoring tools print: columns, units and clocks."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from scalebook.logs import causes
from scalebook.logs.collect import MOST_ROWS
from scalebook.logs.dialects.dialect import LineDialect
from scalebook.logs.numbers import MISSING, clock_of, number
from scalebook.logs.setting_lines import device_in

_GIB = {"b": 2.0**-30, "kib": 2.0**-20, "mib": 2.0**-10, "mb": 2.0**-10, "gib": 1.0, "gb": 1.0}
_UNIT = re.compile(r"[\[(]([^\])]*)[\])]\s*$")
_EPOCH = re.compile(r"\d{9,}(?:\.\d+)?$")


class TelemetryDialect(LineDialect):
    """A dialect whose records are samples of one device each, with no training step in them.

    Columns of a sample: ``gpu`` (the tool's index), ``time`` (s), ``power_watts``,
    ``temperature_celsius``, ``gpu_busy_fraction``, ``memory_busy_fraction``,
    ``memory_used_gib``, ``clock_mhz``, ``memory_clock_mhz``, ``tensor_active_fraction``,
    ``sm_active_fraction``.
    """

    kind: ClassVar[str] = "telemetry"

    def sample(self, row: Mapping[str, float]) -> None:
        """Record one sample; a column without a value is left out, never zero."""
        if len(self.out.job.samples) < MOST_ROWS:
            there = {name: value for name, value in row.items() if not math.isnan(value)}
            self.out.job.samples.append(there)
        else:
            self.out.job.counts.records_beyond_limit += 1


def cell(text: str, unit: str, scale: float) -> float:
    """Return a cell in our unit: its own unit (``MiB``) goes before that of the header."""
    text = text.strip()
    if not text or not (text[0].isdigit() or text[0] in "-+.") or text == "-":
        return MISSING
    value = number(text)
    if scale:
        return value * scale
    own = text.rpartition(" ")[2].lower() if " " in text else ""
    return value * _GIB.get(own, _GIB.get(unit.lower(), MISSING))


class TableTelemetry(TelemetryDialect):
    """A table of words below a header, which long files repeat; a row is of one device."""

    names: ClassVar[Mapping[str, tuple[str, float]]]
    _header: Sequence[str] = ()

    def words(self, line: str) -> list[str]:
        """Return the cells of a line."""
        return line.split()

    def line(self, line: str) -> bool:
        """Take a header or a row of one device."""
        words = self.words(line)
        if self.signature.search(line):
            self._header = words
            return True
        if not words or len(words) != len(self._header) or self.cut:
            return False
        named = dict(zip(self._header, words, strict=True))
        row = {"gpu": number(named.get("gpu", named.get("GPU", "")))}
        row["time"] = number(named["TIMESTAMP"]) if "TIMESTAMP" in named else clock_of(line)
        for name, (column, scale) in self.names.items():
            if name in named:
                row[column] = cell(named[name], "", scale)
        if not math.isnan(row["gpu"]):  # else the line of the units
            self.sample(row)
        return True


class SMITable(TelemetryDialect):
    """What nvidia-smi or rocm-smi draws without options, in a file that holds only this.

    A log of training often begins with such a table, and is not telemetry.
    """

    name = "smi-table"
    markers = ("NVIDIA-SMI", " SCLK ")
    signature = re.compile(
        r"MiB / +\d+MiB \||(?:^|\n) *(?:GPU|Device) [^\n]{0,80}Temp[^\n]{0,80} SCLK "
    )
    _DRAWN = re.compile(r" *(?:[=+|(]|GPU |Device |Name |\d{1,3} +\S|\w{3} \w{3} +\d|$)")
    _ROWS = (
        re.compile(r"\| +(?P<gpu>\d{1,3}) [^|]*\| +[\dA-F]{8}:"),
        re.compile(
            r"\|[^|]* (?P<temperature_celsius>\d+)C +P\d+ +(?P<power_watts>\d+)W / +\d+W \|"
            r" +(?P<memory_used_mib>\d+)MiB / +\d+MiB \| +(?P<busy>\d+)% "
        ),
        re.compile(
            r" *(?P<gpu>\d{1,3}) .{0,80}? (?P<temperature_celsius>[\d.]+)(?:°C|c) +"
            r"(?P<power_watts>[\d.]+)W .{0,80}?\b(?P<clock_mhz>\d+)Mhz +"
            r"(?P<memory_clock_mhz>\d+)Mhz (?:.{0,80}W +\S+ +(?P<busy>\d+)% *$)?"
        ),
    )
    _gpu = MISSING  # of the row above

    @classmethod
    def recognises(cls, text: str) -> bool:
        """Whether nine tenths of a text's lines are of such a table."""
        alone = super().recognises(text) and not causes.mentions_ending(text)
        lines = text.split("\n") if alone else []
        return bool(lines) and sum(map(bool, map(cls._DRAWN.match, lines))) > 0.9 * len(lines)

    def line(self, line: str) -> bool:
        """Take a row of one device."""
        found = next(filter(None, (row.match(line) for row in self._ROWS)), None)
        texts = found.groupdict() if found else {}
        row = {name: number(text) for name, text in texts.items() if text}
        self._gpu = row.get("gpu", self._gpu)
        if len(row) > 1:
            row["memory_used_gib"] = row.pop("memory_used_mib", MISSING) / 1024
            row["gpu_busy_fraction"] = row.pop("busy", MISSING) / 100
            self.sample({"gpu": self._gpu, **row})
        return bool(row)


class CSVTelemetry(TelemetryDialect):
    """A CSV of samples; ``names`` maps a piece of a header cell to a column and its scale.

    A scale of 0 means an amount of memory, whose unit stands in the cell or the header. The
    first map entry that a header cell contains counts; a column is taken once.
    """

    names: ClassVar[Mapping[str, tuple[str, float]]]
    first_cells: ClassVar[tuple[str, ...]]
    _header: Sequence[tuple[str, float, str] | None] = ()

    def line(self, line: str) -> bool:
        """Take a header or a row."""
        cells = [text.strip() for text in line.split(",")]
        low = [text.lower() for text in cells]
        if len(cells) > 1 and any(text in self.first_cells for text in low):
            self._header = self._columns(low)
            return True
        if len(cells) < 2 or len(cells) != len(self._header):
            return False
        row: dict[str, float] = {}
        for column, text in zip(self._header, cells, strict=True):
            if column is None:
                continue
            name, scale, unit = column
            if name == "time":
                row[name] = number(text) if _EPOCH.match(text) else clock_of(text)
            elif name == "gpu":
                row[name] = number(text.removeprefix("card"))
            elif name == "device":
                self.out.job.details.setdefault("device", device_in(text) or text[:80])
            else:
                row[name] = cell(text, unit, scale)
        self.sample(row)
        return True

    def _columns(self, header: list[str]) -> list[tuple[str, float, str] | None]:
        columns: list[tuple[str, float, str] | None] = []
        taken: set[str] = set()
        for text in header:
            unit = _UNIT.search(text)
            found = next(
                (
                    (column, scale, unit[1] if unit else "")
                    for piece, (column, scale) in self.names.items()
                    if piece in text and column not in taken
                ),
                None,
            )
            if found:
                taken.add(found[0])
            columns.append(found)
        return columns
