"""NeMo 2 (one line per step), NeMo 1 (a tqdm bar that overwrites itself) and NeMo Automodel."""

from __future__ import annotations

import math
import operator
import re
import statistics

from scalebook.logs.dialects.dialect import LineDialect
from scalebook.logs.numbers import columns, integer, number
from scalebook.logs.pairs import bar_seconds, pairs

_ROUNDED = re.compile(r"(consumed_samples|global_step)=[\d.]+e")  # by tqdm: it is shorter
_COLUMNS = columns("nemo")
_SAME = 0.02


def _read(fields: list[str], separator: str) -> dict[str, float]:
    row: dict[str, float] = {}
    for field in fields[:64]:
        key, _, value = field.partition(separator)
        column = _COLUMNS.get(key.strip())
        if column and value.strip():
            row[column[0]] = number(value.strip()) * column[1]
    return row


class _Batches(LineDialect):
    """Lightning numbers and times batches: those of one ``global_step`` are accumulated."""

    def __init__(self) -> None:
        super().__init__()
        self._first: list[tuple[float, int]] = []  # of each step, with its first batch
        self._times: list[float] = []  # of its batches
        self._at, self._past, self._most = -1, 0, 1

    def _batch(self, row: dict[str, float], at: int, total: int | None) -> None:
        """Take a record of a batch, numbered from 0 in its epoch."""
        if at < self._at:
            self._past += total or 0
        again, self._at = at == self._at, at
        same = bool(self._first) and row.get("step") == self._first[-1][0]
        if same and len(self.out.job.table):
            self._times[len(self._times) - again :] = [row.get("seconds", math.nan)]
            self._most = max(self._most, len(self._times))
            for name in ("loss", "grad_norm"):
                self.out.job.table.amend(name, row.get(name, math.nan))
            self.out.job.table.amend("seconds", statistics.fmean(self._times))
            return
        if not same:
            self._first.append((row.get("step", math.nan), self._past + at))
            self._times = [row.get("seconds", math.nan)]
        self.out.step(row, total=total)

    def _each(self) -> int:
        """Return the batches of a step; 1 where the records do not agree on more."""
        steps = [step for step, _ in self._first]
        if len(steps) < 3 or not all(map(operator.lt, steps, steps[1:])):
            return self._most
        (step, at), (last, end) = self._first[1], self._first[-1]
        many = (end - at) / (last - step)
        return round(many) if abs(many / max(round(many), 1) - 1) < _SAME else 1

    def finish(self) -> None:
        """Give steps the time of all their batches."""
        super().finish()
        each = self._each()
        for job in self.out.jobs if each > 1 else ():
            seconds = job.table.column("seconds")
            job.table.set_column("seconds", [one * each for one in seconds])
            job.total_steps = job.total_steps and job.total_steps // each
            job.note(f"A step accumulates {each} batches: its time is theirs.")


class NeMo2(_Batches):
    """Steps count from 0; ``iteration i/N`` has the last number as N; ``val_loss`` is stale."""

    name = "nemo2"
    markers = ("Training epoch",)
    signature = re.compile(r"Training epoch \d+, iteration \d+/\d+ \|")
    first_number = 0
    _RECORD = re.compile(r"Training epoch (\d+), iteration (\d+)/(\d+) \|")

    def line(self, line: str) -> bool:
        """Take a record whose step time, or whose loss where it prints none, is complete."""
        found = self._RECORD.search(line) if "Training epoch" in line else None
        if found is None:
            return False
        fields = line[found.end() :].split("|")
        row = _read(fields[:-1] if self.cut else fields, ":")
        if not row.get("seconds", -1) > 0 and (self.cut or "loss" not in row):
            self.out.job.counts.broken_records += 1
            return True
        if integer(found[1]) == 0:  # later epochs count afresh
            row.setdefault("step", float(found[2]))
        self._batch(row, integer(found[2]), integer(found[3]) + 1)
        return True


class NeMo1(_Batches):
    """``Epoch 0: 1%|..| 795/77225 [..., 41.36s/it, ..., global_step=794.0, ...]``.

    Figures are rounded to three digits; without a step timing the bar's smoothed mean is the
    step time.
    """

    name = "nemo1"
    markers = ("global_step=",)
    signature = re.compile(r"\d{1,12}(?:/\d{1,12}|it) \[[^\[\]\n]{0,400}reduced_train_loss=")
    first_number = 0
    _BAR = re.compile(
        r"(\d{1,12})/(\d{1,12}) (\[[^\[\]\n]{0,400}reduced_train_loss=[^\]\n]{0,400}\])"
        r"|\[[^\[\]\n]{0,400}reduced_train_loss=[^\]\n]{0,400}\]"
    )
    _last, _drawn = math.nan, dict[str, float]()

    def line(self, line: str) -> bool:
        """Take a state of the bar, once a step."""
        found = self._BAR.search(line) if "reduced_train_loss=" in line else None
        if found is None:
            return False
        row = _read((found[3] or found[0]).strip("[]").split(","), "=")
        for name in _ROUNDED.findall(found[0]):
            row.pop(_COLUMNS[name][0], None)
        before, self._drawn = self._drawn, dict(row)
        if "seconds" not in row:
            row["seconds"] = bar_seconds(line)
            self.out.job.note("The step time is the smoothed mean of a progress bar.")
        if found[1] and "step" not in row:
            row["step"] = float(integer(found[1]) - 1)
        elif before == self._drawn:  # drawn again, or drawn with the next number first
            return True
        last, self._last = self._last, row.get("step", math.nan)
        if last == self._last and (not found[1] or "step" not in before):
            return True
        self._batch(row, integer(found[1] or "0") - 1, integer(found[2]) if found[1] else None)
        return True


_RECORD = re.compile(r"\bstep +(\d+) \| (?=[^\n]{0,300}\btps )")
_PAIR = re.compile(r"\b([a-z_]{1,24}) ([-+\d.,eE]+|nan)")
_EACH = re.compile(r"\btps (?:[\d.,]+ ?\()?([\d.,]+)/gpu\b")
_NEMO_AUTOMODEL_COLUMNS = columns("nemo-automodel")


class NeMoAutomodel(LineDialect):
    """``num_label_tokens`` leaves out padding, so that it is not what ``tps`` counts."""

    name = "nemo-automodel"
    markers = ("tps ",)
    signature = re.compile(r"\bstep +\d+ \| epoch \d+ \| [^\n]{0,300}\btps [\d.]+")
    first_number = 0

    def line(self, line: str) -> bool:
        """Take a record."""
        found = _RECORD.search(line) if "| " in line else None
        if found is None:
            return False
        row = pairs(_PAIR, line[found.end() :], _NEMO_AUTOMODEL_COLUMNS)
        each = _EACH.search(line)
        if each:
            row["tokens_per_second_per_gpu"] = float(each[1].replace(",", "") or "nan")
            if "(" not in each[0]:  # the only figure is that of a GPU
                row.pop("tokens_per_second", None)
        row["step"], row["clock"] = float(found[1]), self.clock(line)
        self.out.step(row)
        return True
