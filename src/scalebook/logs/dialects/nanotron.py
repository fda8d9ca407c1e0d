"""nanotron: text with SI suffixes, and its CSV; every figure has three significant digits."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scalebook.logs.dialects.dialect import LineDialect
from scalebook.logs.numbers import MISSING, columns, integer, names, number, scaled

ROUNDED = 5e-3  # relative error of three digits
_MIB_A_GIB = 1024.0
_RECORD = re.compile(r"iteration: (\d+) / (\d+) \|")
_PAIR = re.compile(r"\b([a-z_]{1,40}): ([-+\d.,eE]+[KMGBT]?|nan|inf)")
_MEMORY = re.compile(r"Peak allocated:? ([\d.]+)MiB\. Peak reserved:? ([\d.]+)MiB")
_ARGUMENT = re.compile(
    r"\b(?P<name>dp|pp|tp|(?:expert|context)_parallel_size|sequence_length|micro_batch_size"
    r"|train_steps|batch_accumulation_per_replica)=(?P<value>\d+)\b"
    r"|\b(?P<named>mbs|grad_accum|cp|sequence_length|global_batch_size): (?P<of>\d+) \|"
)
_OURS = names("nanotron-arguments")
_COLUMNS = columns("nanotron")


def _columns(cells: dict[str, float]) -> dict[str, float]:
    row = {of: cells[name] * scale for name, (of, scale) in _COLUMNS.items() if name in cells}
    if row.get("global_batch_size", 0) >= 1000:  # rounded: not the batch
        row["global_batch_size"] = MISSING
    return row


class Nanotron(LineDialect):
    """DP, PP and TP in the prefix are ranks, not sizes."""

    name = "nanotron"
    markers = ("time_per_iteration_ms:",)
    signature = re.compile(r"iteration: \d+ / \d+ \| [^\n]{0,100}time_per_iteration_ms:\s")

    def line(self, line: str) -> bool:
        """Take a record, a memory line, or arguments of the configuration."""
        found = _RECORD.search(line) if "iteration: " in line else None
        if found is None:
            self._beside(line)
            return False
        row = _columns({key: scaled(value) for key, value in _PAIR.findall(line, found.end())})
        if not row.get("seconds", -1) > 0:
            self.out.job.counts.broken_records += 1
            return True
        row["step"] = float(found[1])
        self.out.step(row, total=integer(found[2]))
        self.out.job.rounded = ROUNDED
        return True

    def _beside(self, line: str) -> None:
        memory = _MEMORY.search(line) if "Peak allocated" in line else None
        if memory:
            details = self.out.job.details
            details["peak_allocated_gib"] = number(memory[1]) / _MIB_A_GIB
            details["peak_reserved_gib"] = number(memory[2]) / _MIB_A_GIB
        elif "Args(" in line or "mbs: " in line or line.startswith("   ") or "]:   " in line:
            for found in _ARGUMENT.finditer(line):
                name, value = (one for one in found.groups() if one)
                if integer(value) > 0:
                    self.out.tell(_OURS.get(name, name), integer(value), weak=True)


class NanotronCSV(LineDialect):
    """``log_metrics.csv``: an empty cell is missing, not zero."""

    name = "nanotron-csv"
    markers = ("time_per_iteration_ms,",)
    signature = re.compile(r"(?:^|\n)iteration,[^\n]*time_per_iteration_ms,")
    _header: Sequence[str] = ()

    def line(self, line: str) -> bool:
        """Take the header or a row."""
        cells = line.split(",")
        if cells[0] == "iteration":
            self._header = cells
            return True
        if not self._header or (self.cut and len(cells) < len(self._header)):
            return False
        named = {
            name: number(cell) for name, cell in zip(self._header, cells, strict=False) if cell
        }
        row = _columns(named)
        if not row.get("seconds", -1) > 0 or "iteration" not in named:
            self.out.job.counts.broken_records += 1
            return True
        row["step"] = named["iteration"]
        self.out.step(row)
        self.out.job.rounded = ROUNDED
        return True
