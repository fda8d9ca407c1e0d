"""NeMo Automodel: ``tps`` of the job with the rate of a GPU in brackets behind it."""

from __future__ import annotations

import math
import re

from scalebook.logs.clock import clock_of, has_fraction
from scalebook.logs.dialects.dialect import LineDialect
from scalebook.logs.pairs import pairs, seconds_from

_RECORD = re.compile(r"\bstep (\d+) \| (?=[^\n]{0,300}\btps )")
_PAIR = re.compile(r"\b([a-z_]{1,24}) ([-+\d.,eE]+|nan)")
_EACH = re.compile(r"\btps [\d.,]+ ?\(([\d.,]+)/gpu\)")
_COLUMNS = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "lr": "learning_rate",
    "mem": "allocated_gib",
    "tps": "tokens_per_second",
}


class NeMoAutomodel(LineDialect):
    """``num_label_tokens`` leaves out padding, so that it is not what ``tps`` counts."""

    name = "nemo-automodel"
    markers = ("tps ",)
    signature = re.compile(r"\bstep \d+ \| epoch \d+ \| [^\n]{0,300}\btps [\d.]+")
    first_number = 0
    assignments = True

    def __init__(self) -> None:
        super().__init__()
        self._fine = True

    def line(self, line: str) -> bool:
        """Take a record."""
        found = _RECORD.search(line) if "| " in line else None
        if found is None:
            return False
        row = pairs(_PAIR, line[found.end() :], _COLUMNS)
        each = _EACH.search(line)
        if each:
            row["tokens_per_second_per_gpu"] = float(each[1].replace(",", "") or "nan")
        row["step"], row["clock"] = float(found[1]), clock_of(line)
        self._fine = self._fine and (has_fraction(line) or math.isnan(row["clock"]))
        self.out.step(row)
        return True

    def finish(self) -> None:
        """Take step times from the clock where it is fine enough."""
        for job in self.out.jobs:
            seconds_from(job, "clock", 1e-3 if self._fine else 1.0, "time stamps")
