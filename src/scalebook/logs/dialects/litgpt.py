"""LitGPT: an iteration is a micro-batch, of which a step has several."""

from __future__ import annotations

import re
from itertools import pairwise

from scalebook.logs.dialects.dialect import LineDialect
from scalebook.logs.numbers import MISSING, integer, number

_RECORD = re.compile(r"\biter +(\d+)(?: \||:)? +step +(\d+)\b", re.IGNORECASE)
_LOSS = re.compile(r"\bloss(?: train)?(?: \([^)]{0,20}\))?:? *([\d.]+|nan|inf)", re.IGNORECASE)
_TIME = re.compile(r"(?:iter|train) time: +([\d.]+) ?(m?)s\b")


class LitGPT(LineDialect):
    """``iter a step b | loss train: x, val: y | iter time: z ms (step)``; the val loss is stale.

    The time printed is of one micro-batch; it is a step's where each step has one.
    """

    name = "litgpt"
    markers = ("iter time:", "train time:")
    assignments = True
    signature = re.compile(
        r"\biter +\d+(?: \||:)? +step +\d+\b[^\n]{0,200}(?:iter|train) time: +[\d.]+ ?m?s\b"
    )
    _last = -1

    def line(self, line: str) -> bool:
        """Take the records of a line, of which a copy may hold many."""
        starts = [found.start() for found in _RECORD.finditer(line)] if " time:" in line else []
        taken = False
        for start, end in pairwise([*starts, len(line)]):
            taken = self._record(line[start:end]) or taken
        return taken

    def _record(self, line: str) -> bool:
        """Take the first record of a step."""
        found = _RECORD.search(line)
        time = _TIME.search(line) if found else None
        if found is None or time is None:
            return False
        iteration, step = integer(found[1]), integer(found[2])
        if step == self._last:
            self.out.job.table.amend("seconds", MISSING)
            self.out.job.note("Lines of the other micro batches of a step were left out.")
            return True
        self._last = step
        row = {"step": float(step), "seconds": number(time[1]) / (1e3 if time[2] else 1)}
        if iteration != step:
            row["seconds"] = MISSING
            self.out.job.note("The printed time is that of a micro batch, not of a step.")
        if loss := _LOSS.search(line):
            row["loss"] = number(loss[1])
        self.out.step(row)
        return True
