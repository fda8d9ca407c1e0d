"""PyTorch's own trainers: torchtitan (also under Primus) and torchtune."""

from __future__ import annotations

import re

from scalebook.logs.dialects.dialect import LineDialect
from scalebook.logs.numbers import MISSING, columns, integer
from scalebook.logs.pairs import bar_seconds, bar_state, pairs
from scalebook.logs.setting_lines import SIZES
from scalebook.logs.source import split_rank

_STEP = r"\bstep: +(\d+)(?:/(\d+)(?: = [\d.]+%)?)? +"
_RECORD = re.compile(rf"(?<!validate ){_STEP}(?=[^\n]{{0,300}}\b(?:tps|wps):)")
_PAIR = re.compile(r"\b([a-z_]{1,24}): *([-+\d.,eE]+|-?(?:[Nn]a[Nn]|[Ii]nf(?:inity)?))")
_RANK = re.compile(r"rank-(\d+)/(\d+)\]")
_COLUMNS = columns("torchtitan")
_ENTRY = re.compile(r"'(\w+)': (\d{1,9})\b(?![.])")
_NO_LOSS = -1.0  # of a pipeline stage that is not the last


class TorchTitan(LineDialect):
    """``step: N  loss: ...  memory: ...GiB(..%)  tps: 5,856  tflops: ...  mfu: ...%``."""

    name = "torchtitan"
    markers = ("step:",)
    signature = re.compile(rf"{_STEP}loss: +\S+ [^\n]{{0,200}}\b(?:tps|wps): ")

    def line(self, line: str) -> bool:
        """Take a record, or the line that says what the trainer starts with."""
        found = _RECORD.search(line) if "step:" in line else None
        if found is None:
            self._sizes(line)
            return False
        row = pairs(_PAIR, line[found.end() :], _COLUMNS)
        if "tokens_per_second_per_gpu" not in row:
            self.out.job.counts.broken_records += 1
            return True
        if row.get("loss") == _NO_LOSS:
            del row["loss"]
        row["step"], row["clock"] = float(found[1]), self.clock(line)
        primus = _RANK.search(line)
        named = integer(primus[1]) if primus else split_rank(line)[0]
        rank = self.rank if named is None else named
        total, world = (integer(one) if one else None for one in (found[2], primus and primus[2]))
        job = self.out.job
        again = job.rank not in (None, rank) and job.last_step == row["step"]
        if again and "loss" not in job.table.row(len(job.table) - 1):  # of a stage that has none
            job.table.amend("loss", row.get("loss", MISSING))
        self.out.step(row, total=total, rank=rank, world=world)
        if primus:
            self.out.tell("world_size", integer(primus[2]))
        return True

    def _sizes(self, line: str) -> None:
        if "Running with " in line:  # older ones print a dictionary in one line
            for name, digits in _ENTRY.findall(line.partition("'validation'")[0]):
                if name in SIZES or name == "batch_size":
                    self.out.tell(SIZES.get(name, "micro_batch_size"), integer(digits), weak=True)


_TORCHTUNE_RECORD = re.compile(r"\bStep (\d+) +\| (?=loss:)")
_TORCHTUNE_PAIR = re.compile(r"\b([\w/]{1,40}):([-+\d.eE]+|-?(?:[Nn]a[Nn]|[Ii]nf(?:inity)?))")
_BATCH = re.compile(r"(batch_size|epochs): (\d{1,9})\s*$")
_BAR = re.compile(r"\b(\d+)\|(\d+)\|Loss: ([\d.]+|nan)")
_TORCHTUNE_COLUMNS = columns("torchtune")


class Torchtune(LineDialect):
    """``Step N | loss:x lr:y tokens_per_second_per_gpu:z`` in the file, a bar on the console."""

    name = "torchtune"
    markers = ("loss:", "|Loss: ")
    signature = re.compile(r"\bStep \d+ +\| loss:\S+ |\b\d+\|\d+\|Loss: [\d.]+")
    _rate, _last, _epochs = False, -1, 0

    def line(self, line: str) -> bool:
        """Take a record; one without the rate that the others have was cut off."""
        found = _TORCHTUNE_RECORD.search(line) if "| loss:" in line else None
        if found is None:
            return self._bar(line)
        row = pairs(_TORCHTUNE_PAIR, line[found.end() :], _TORCHTUNE_COLUMNS)
        has_rate = "tokens_per_second_per_gpu" in row
        if (self._rate or self.cut) and not has_rate:
            self.out.job.counts.broken_records += 1
            return True
        self._rate = self._rate or has_rate
        row["step"] = float(found[1])
        self.out.step(row, total=self._total(line))
        return True

    def _total(self, line: str) -> int | None:
        """Return the steps of all epochs, by a bar, which is of one."""
        bar = bar_state(line)
        return bar[1] * self._epochs if bar and self._epochs else None

    def _bar(self, line: str) -> bool:
        if size := _BATCH.match(line):
            if size[1] == "epochs":
                self._epochs = integer(size[2])
            else:
                self.out.tell("micro_batch_size", integer(size[2]))
        found = list(_BAR.finditer(line)) if "|Loss: " in line else []
        for bar in found:
            if not self._rate and integer(bar[2]) != self._last:
                self._last = integer(bar[2])
                row = {"step": float(bar[2]), "loss": float(bar[3])}
                row |= {"seconds": bar_seconds(line)} if len(found) == 1 else {}
                self.out.step(row, total=self._total(line))
        return bool(found)
