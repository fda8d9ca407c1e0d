"""torchtune: rates of a GPU; tokens vary from step to step, so that there is no step time."""

from __future__ import annotations

import re

from scalebook.logs.dialects.dialect import LineDialect
from scalebook.logs.numbers import integer
from scalebook.logs.pairs import bar_seconds, pairs

_RECORD = re.compile(r"\bStep (\d+) \| (?=loss:)")
_PAIR = re.compile(r"\b([\w/]{1,40}):([-+\d.eE]+|-?(?:[Nn]a[Nn]|[Ii]nf(?:inity)?))")
_BAR = re.compile(r"\b(\d+)\|(\d+)\|Loss: ([\d.]+|nan)")
_COLUMNS = {
    "loss": "loss",
    "lr": "learning_rate",
    "tokens_per_second_per_gpu": "tokens_per_second_per_gpu",
    "grad_norm": "grad_norm",
    "peak_memory_alloc": "allocated_gib",
    "peak_memory_reserved": "reserved_gib",
}


class Torchtune(LineDialect):
    """``Step N | loss:x lr:y tokens_per_second_per_gpu:z`` in the file, a bar on the console."""

    name = "torchtune"
    markers = ("loss:", "|Loss: ")
    signature = re.compile(r"\bStep \d+ \| loss:\S+ |\b\d+\|\d+\|Loss: [\d.]+")
    assignments = True

    def __init__(self) -> None:
        super().__init__()
        self._rate = False
        self._last = -1

    def line(self, line: str) -> bool:
        """Take a record; one without the rate that the others have was cut off."""
        found = _RECORD.search(line) if "| loss:" in line else None
        if found is None:
            return self._bar(line)
        row = pairs(_PAIR, line[found.end() :], _COLUMNS)
        has_rate = "tokens_per_second_per_gpu" in row
        if (self._rate or self.cut) and not has_rate:
            self.out.job.counts.broken_records += 1
            return True
        self._rate = self._rate or has_rate
        row["step"] = float(found[1])
        self.out.step(row)
        return True

    def _bar(self, line: str) -> bool:
        found = _BAR.search(line) if "|Loss: " in line else None
        if found is None:
            return False
        if not self._rate and integer(found[2]) != self._last:
            self._last = integer(found[2])
            row = {"step": float(found[2]), "loss": float(found[3]), "seconds": bar_seconds(line)}
            self.out.step(row)
        return True
