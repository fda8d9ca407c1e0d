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
    signature = re.compile(
        r"\biter +\d+(?: \||:)? +step +\d+\b[^\n]{0,200}(?:iter|train) time: +[\d.]+ ?m?s\b"
    )

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[tuple[int, bool, dict[str, float]]] = []  # iteration, whether it stepped

    def line(self, line: str) -> bool:
        """Take the records of a line, of which a copy may hold many."""
        starts = [found.start() for found in _RECORD.finditer(line)] if " time:" in line else []
        taken = False
        for start, end in pairwise([*starts, len(line)]):
            taken = self._record(line[start:end]) or taken
        return taken

    def _record(self, line: str) -> bool:
        """Keep the record of an iteration."""
        found = _RECORD.search(line)
        time = _TIME.search(line) if found else None
        if found is None or time is None:
            return False
        row = {"step": number(found[2]), "seconds": number(time[1]) / (1e3 if time[2] else 1)}
        if loss := _LOSS.search(line):
            row["loss"] = number(loss[1])
        self._rows.append((integer(found[1]), "step)" in line, row))
        self.out.goes_on()
        return True

    def finish(self) -> None:
        """Hand out the steps: all micro batches of each, or the first that is there."""
        every = all(b[0] == a[0] + 1 for a, b in pairwise(self._rows))
        if every and any(stepped for _, stepped, _ in self._rows):
            seconds = 0.0 if self._rows[0][0] == 1 else MISSING  # of the micro batches of a step
            for _, stepped, row in self._rows:
                seconds += row["seconds"]
                if stepped:
                    self.out.step({**row, "seconds": seconds})
                    seconds = 0.0
            return
        last, apart = -1.0, {iteration - row["step"] for iteration, _, row in self._rows}
        single = len(self._rows) > 1 and len(apart) == 1  # steps of one: counted from 0 and from 1
        for iteration, _, row in self._rows:
            if row["step"] == last:
                self.out.job.table.amend("seconds", MISSING)
                self.out.job.note("Lines of the other micro batches of a step were left out.")
                continue
            last = row["step"]
            if iteration != last and not single:
                row["seconds"] = MISSING
                self.out.job.note("The printed time is that of a micro batch, not of a step.")
            self.out.step(row)
