"""PRIME-RL trainers: one line per step, with a throughput that is a moving mean of the job."""

from __future__ import annotations

import re

from scalebook.logs.dialects.dialect import LineDialect
from scalebook.logs.numbers import MISSING, clock_of, names
from scalebook.logs.pairs import pairs

_BAR_RECORD = re.compile(r"\bStep (\d+) \| (?=[^\n]{0,200}\bTime: )")
_COMMA_RECORD = re.compile(r"\bstep: (\d+), (?=[^\n]{0,200}\btokens_per_second: )")
_BAR_PAIR = re.compile(r"\b([A-Z][\w. ]{0,24}?): *([-+\d.,eE]+|nan|inf)")
_COMMA_PAIR = re.compile(r"\b([a-z_]{1,24}): *([-+\d.eE]+|nan|inf)")
_COLUMNS = names("prime-rl")


class PrimeRL(LineDialect):
    """``Step N | Time: 0.36s | Loss: ...`` now, ``step: N, loss: ..., mfu: ...`` before."""

    name = "prime-rl"
    markers = ("tokens_per_second:", "tokens/s")
    signature = re.compile(
        r"\bStep \d+ \| (?:Step )?Time: [\d.]+s?[^\n]{0,300}Throughput:"
        r"|\bstep: \d+, [^\n]{0,100}tokens_per_second:"
    )
    first_number = 0

    def line(self, line: str) -> bool:
        """Take a record."""
        bars = _BAR_RECORD.search(line)
        found = bars or _COMMA_RECORD.search(line)
        if found is None:
            return False
        row = pairs(_BAR_PAIR if bars else _COMMA_PAIR, line[found.end() :], _COLUMNS)
        if self.cut and "tokens_per_second" not in row:
            self.out.job.counts.broken_records += 1
            return True
        if "mfu" in row:
            row["mfu"] /= 100
        if not row.get("tokens_per_second", 1) > 0:  # zero: not measured yet
            row["tokens_per_second"] = MISSING
            row["mfu"] = MISSING
        row["step"], row["clock"] = float(found[1]), clock_of(line)
        self.out.step(row)
        return True
