"""Which step a Hugging Face record is of: told, read off the bar beside it, or from its epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from scalebook.logs.collect import Collector
from scalebook.logs.job import Job
from scalebook.logs.numbers import LARGEST, MISSING, rounding
from scalebook.logs.pairs import bar_seconds, seconds_from, tokens_from_totals

_MOST_EPOCHS = 1000
_MOST_RECORDS = 1_000_000


@dataclass(slots=True)
class _Record:
    row: dict[str, float]
    step: float
    epoch: float
    bars: list[int] = field(default_factory=list[int])  # the bar before and the one behind
    seconds: float = MISSING  # an iteration by the bar


def _step_of(record: _Record, length: float) -> float:
    """Return the step of an epoch; where its digits leave several, the one that a bar shows."""
    step = record.epoch * length
    if not step < LARGEST:
        return MISSING
    error = step * rounding(record.epoch)
    if error > 0.5:
        step = next((bar for bar in record.bars if abs(bar - step) <= error + 0.5), step)
    return float(round(step))


@dataclass(slots=True)
class Progress:
    """Records and the bars around them, in file order."""

    records: list[_Record] = field(default_factory=list[_Record])
    total: int | None = None
    last_bar: int | None = None

    def bar(self, done: int, total: int, line: str) -> None:
        """Take a state of the progress bar."""
        self.total = self.total or total
        if total != self.total:  # the bar of an evaluation
            return
        self.last_bar = done
        if self.records and len(self.records[-1].bars) < 2:
            self.records[-1].bars.append(done)
            self.records[-1].seconds = bar_seconds(line)

    def record(self, row: dict[str, float], step: float, epoch: float, total: int | None) -> None:
        """Take a record; ``step`` and ``epoch`` are NaN where it tells none."""
        self.total = total or self.total
        if len(self.records) < _MOST_RECORDS:
            bars = [] if self.last_bar is None else [self.last_bar]
            self.records.append(_Record(row, step, epoch, bars))

    def _steps_an_epoch(self) -> float | None:
        """Return the steps of an epoch that put the records where the bars say they are."""
        if not self.total:
            return None
        best: tuple[int, float] | None = None
        seen = [record for record in self.records if record.bars and record.epoch > 0][:200]
        for epochs in range(1, _MOST_EPOCHS + 1):
            length = self.total / epochs
            hits = sum(
                any(
                    abs(record.epoch * length - bar)
                    <= 0.5 + record.epoch * length * rounding(record.epoch)
                    for bar in record.bars
                )
                for record in seen
            )
            if hits and (best is None or hits > best[0]):
                best = (hits, length)
        return best[1] if best else None

    def hand_out(self, out: Collector) -> None:
        """Give the collector every record with its step, and step times where they follow."""
        length = self._steps_an_epoch()
        for record in self.records:
            step = record.step
            if math.isnan(step) and length and record.epoch > 0:
                step = _step_of(record, length)
            elif math.isnan(step) and record.bars and math.isnan(record.epoch):
                step = float(record.bars[-1])
            out.step(record.row | {"step": step}, total=self.total)
        bars = [record.seconds for record in self.records]
        for job in out.jobs:
            _finish(job, bars if len(out.jobs) == 1 else [])


def _finish(job: Job, bars: list[float]) -> None:
    """Give the rows of a job the step times and rates that follow from its other columns."""
    if len(job.table) and not job.table.has("step"):
        job.note("The records carry no step number.")
    seconds_from(job, "clock", 0.1, "printed run times")
    if not job.table.has("seconds") and len(bars) == len(job.table) and any(b > 0 for b in bars):
        job.table.set_column("seconds", bars)
        job.note("The step time is the smoothed mean of a progress bar.")
    tokens_from_totals(job)
