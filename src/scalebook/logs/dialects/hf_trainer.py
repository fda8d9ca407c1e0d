"""Trainers built on Hugging Face: dictionaries of metrics, their step numbers and times."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from scalebook.logs.causes import Ending
from scalebook.logs.collect import Collector
from scalebook.logs.dialects.dialect import LineDialect
from scalebook.logs.dialects.rows import Rows
from scalebook.logs.job import Job
from scalebook.logs.numbers import LARGEST, MISSING, clock_seconds, columns, number, rounding, whole
from scalebook.logs.pairs import BAR, bar_seconds, bar_state, seconds_from, tokens_from_totals
from scalebook.logs.source import split_rank

# The bar of loading or of preparing data: it says what it counts.
_NAMED_BAR = re.compile(r"^(?!.*(?i:train|epoch|step|iter))[ \t]*[A-Za-z][^|]*: *\d+%\|")
_MOST_EPOCHS = 1000
_MOST_RECORDS = 1_000_000


@dataclass(slots=True)
class _Record:
    row: dict[str, float]
    step: float
    epoch: float
    bars: list[int] = field(default_factory=list[int])  # the bar before and the one behind
    span: tuple[int, int] | None = None  # the bars around all that were printed at once
    seconds: float = MISSING  # an iteration by the bar


def _step_of(record: _Record, length: float, half_digit: float) -> float:
    """Return the step of an epoch; where its digits leave several, the one that a bar shows."""
    step, error = record.epoch * length, length * half_digit
    if not step < LARGEST:
        return MISSING
    if error > 0.5:
        step = next((bar for bar in record.bars if abs(bar - step) <= error + 0.5), step)
    return float(round(step))


def _even(steps: list[float], error: float) -> list[float]:
    """Return the multiples of the roundest interval that the steps allow, else the steps."""
    if not error > 0.5 or len(steps) < 3 or any(map(math.isnan, steps)):
        return steps
    for interval in (digit * 10**size for size in range(6, 0, -1) for digit in (5, 2, 1)):
        even = [float(round(step / interval) * interval) for step in steps]
        slack = min(error, interval / 4)
        near = all(abs(a - b) <= slack for a, b in zip(even, steps, strict=True))
        if near and all(b - a == interval for a, b in pairwise(even)):
            return even
    return steps


@dataclass(slots=True)
class ProgressBars:
    """Records and the bars around them, in file order."""

    records: list[_Record] = field(default_factory=list[_Record])
    total: int | None = None
    last_bar: int | None = None
    elapsed: dict[float, float] = field(default_factory=dict[float, float])  # seconds by step
    redrawn: bool = False  # whether a record's bar is drawn behind it
    epochs: float = MISSING  # trained in all, as the last line says
    reached: int | None = None  # the step of a last line that is not a record
    resolution: float = 0.1  # s, of the run times that records print
    rates: dict[str, float] = field(default_factory=dict[str, float])  # of the whole run
    runtime: float = MISSING  # s of the whole run
    evaluated: float = 0.0  # s of it

    def bar(self, done: int, total: int, seconds: float, line: str) -> None:
        """Take a state of the progress bar, if it is that of the training."""
        if self.total is None and _NAMED_BAR.search(line):
            return
        if not self.records and total > (self.total or 0) <= (self.last_bar or -1) + 1:
            self.total, self.elapsed = None, {}  # that was another bar, which came to its end
        self.total = self.total or total
        if total != self.total:  # the bar of an evaluation
            return
        self.last_bar = done
        if len(self.elapsed) < _MOST_RECORDS:
            self.elapsed[done] = seconds
        if self.records and len(self.records[-1].bars) < 2:
            self.records[-1].bars.append(done)
            self.records[-1].seconds = bar_seconds(line)

    def hand_out_alone(self, out: Collector) -> None:
        """Give the collector the states of a bar that shows no loss."""
        for step, seconds in sorted(self.elapsed.items()):
            if step and self.total == out.job.settings.get("steps"):
                out.step({"step": float(step), "clock": seconds}, total=self.total)
        seconds_from(out.job, "clock", 1.0, "elapsed times of a progress bar")

    def record(self, row: dict[str, float], step: float, epoch: float, total: int | None) -> None:
        """Take a record; ``step`` and ``epoch`` are NaN where it has none."""
        self.total = total or self.total
        if len(self.records) < _MOST_RECORDS:
            self.redrawn = self.redrawn or (not self.records and self.last_bar is None)
            bars = [] if self.last_bar is None else [self.last_bar]
            self.records.append(_Record(row, step, epoch, bars))

    def _held_back(self) -> None:
        """Note which records were printed at once: between them and the bars before lie many."""
        before = 0
        for _, group in groupby(self.records, key=lambda record: record.bars[:1]):
            at_once = list(group)
            bars = at_once[-1].bars
            known = len(bars) > 1 or bars == [self.total]  # the bar behind them
            for record in at_once if len(at_once) > 1 and known else ():
                record.span = (before, max(bars))
            before = max(bars, default=before)

    def _half_digit(self) -> float:
        """Return half of the last digit of the epochs: 0.1 may be 0.10 without its zero."""
        epochs = [record.epoch for record in self.records if record.epoch > 0]
        return min((epoch * rounding(epoch) for epoch in epochs), default=math.inf)

    def _steps_an_epoch(self, half_digit: float) -> float | None:
        """Return the steps of an epoch that put most records where the bars say they are."""
        if not self.total:
            return None
        best: tuple[int, float] | None = None
        seen = [record for record in self.records if record.bars and record.epoch > 0][:200]
        for epochs in range(1, _MOST_EPOCHS + 1):
            length = self.total / epochs
            slack = 0.5 + length * half_digit
            hits = between = 0
            for record in seen:
                step = record.epoch * length
                low, high = record.span or (record.bars[0], max(record.bars[1:], default=step))
                inside = low - slack <= step <= high + slack
                between += inside
                hits += any(abs(step - bar) <= slack for bar in record.bars)
                hits += inside and record.span is not None
            if hits and 2 * between > len(seen) and (best is None or hits > best[0]):
                best = (hits, length)
        if best is None and self.epochs > 0 and self.last_bar == self.total:
            return self.total / self.epochs
        if best is None and self.redrawn and seen and seen[0].epoch < 1:  # less than one in all
            return seen[0].bars[0] / seen[0].epoch
        return best[1] if best else None

    def _counted(self, steps: list[float]) -> list[float]:
        """Return steps by their order where epochs are too coarse to give each its own."""
        coarse = all(math.isnan(record.step) for record in self.records)
        ordered = all(a.epoch <= b.epoch for a, b in pairwise(self.records))
        if not coarse or not ordered:
            return steps
        each = [float(at + 1) for at in range(len(steps))]
        return each if len(steps) == self.total else [MISSING] * len(steps)

    def hand_out(self, out: Collector) -> None:
        """Give the collector every record with its step, and step times where they follow."""
        half_digit = self._half_digit()
        if not self.redrawn:
            self._held_back()
        length = self._steps_an_epoch(half_digit)
        steps = [record.step for record in self.records]
        for row, record in enumerate(self.records):
            if self.redrawn and row > 0:  # the first record has no bar before it
                record.bars = record.bars[::-1]
            if math.isnan(record.step) and length and record.epoch > 0:
                steps[row] = _step_of(record, length, half_digit)
            elif math.isnan(record.step) and record.bars and not record.span:
                steps[row] = float(record.bars[0])
        if length and length * half_digit > 0.5:
            epochs = (self.total or 0) / length  # each may have a step more, of the last samples
            steps = _even(steps, length * half_digit + 0.5 + epochs)
        back = any(after <= before for before, after in pairwise(steps))
        if back or all(map(math.isnan, steps)):
            steps = self._counted(steps)
        for record, step in zip(self.records, steps, strict=True):
            out.step(record.row | {"step": step}, total=self.total)
        out.job.reached = self.reached
        bars = [record.seconds for record in self.records]
        for job in out.jobs:
            if job.table.has("clock"):
                seconds_from(job, "clock", self.resolution, "printed run times")
            else:
                at = job.table.column("step")
                known = [self.elapsed.get(step, MISSING) for step in at]
                job.table.set_column("clock", known)
                seconds_from(job, "clock", 1.0, "elapsed times of a progress bar")
            _finish(job, bars if len(out.jobs) == 1 else [])


def _by_summary(job: Job, progress: ProgressBars) -> None:
    """Give the rows of a job without times the mean of the whole run, less its evaluations."""
    batch = job.settings.get("global_batch_size")
    samples = progress.rates.get("samples_per_second", MISSING)
    rate = progress.rates.get("steps_per_second", MISSING)
    rate = samples / batch if isinstance(batch, int) and samples > 0 else rate
    steps = job.total_steps or progress.runtime * rate
    seconds = (progress.runtime - progress.evaluated) / steps if steps > 0 else MISSING
    if seconds > 0 and len(job.table) and not job.table.has("seconds"):
        job.table.set_column("seconds", [seconds] * len(job.table))
        job.note("The step time is the mean of the whole run: no other was printed.")


def _finish(job: Job, bars: list[float]) -> None:
    """Give the rows of a job the step times and rates that follow from its other columns."""
    if len(job.table) and not job.table.has("step"):
        job.note("The records carry no step number.")
    if not job.table.has("seconds") and len(bars) == len(job.table) and any(b > 0 for b in bars):
        job.table.set_column("seconds", bars)
        job.note("The step time is the smoothed mean of a progress bar.")
    tokens_from_totals(job)


_PIECES = re.compile(rf"\{{[^{{}}\n]*\}}|{BAR.pattern}")
_LOSS = "loss(?:/policy_avg)?"
_OPEN = re.compile(rf"\{{[^{{}}\n]*['\"]{_LOSS}['\"]: [^{{}}\n]*$")
_LONGEST_DICT = 4000
_ENTRY = re.compile(
    r"['\"]([\w/(). -]{1,60})['\"]: "
    r"['\"]?([-+\d.,:eE]+(?:/\d+)?|\d+[dhms](?: \d+[hms]){0,3}|-?(?:[Nn]a[Nn]|[Ii]nf(?:inity)?))"
    r"['\"]?(?=[,}])"
)
_BLOCK = re.compile(r"^[\s#]*(train_\w+|epoch)\s+=\s+(\S+)\s*$")
_COLUMNS = columns("hf-trainer")


_RECORD = ({"loss", "loss/policy_avg"}, {"learning_rate", "lr", "epoch"})  # one of each
_TIMED = {"current_steps", "elapsed_time"}  # of LLaMA-Factory, which may log no loss
_STEP_OF_TOTAL = ("global_step/max_steps", "iteration")  # ms-swift, with Megatron


class HFTrainer(LineDialect):
    """A record is a whole dict with ``loss``; its step comes from a bar or from the epoch."""

    name = "hf-trainer"
    markers = (
        "'loss': ", '"loss": ', "loss/policy_avg", "train_runtime", "***** train metrics",
        "optimization steps", '"current_steps": ',
    )  # fmt: skip
    signature = re.compile(
        rf"(?:\{{|^(?=['\"]loss))[^{{}}\n]*['\"]{_LOSS}['\"]: [^{{}}]{{0,4000}}?"
        r"['\"](?:learning_rate|lr|epoch)['\"]: "
        r"|\bTotal optimization steps = \d[^\0]{0,4000000}?\| [1-9]\d*/\d+ \[[\d:]+<"
        r"|\*{5} train metrics \*{5}|\{[^{}\n]*['\"]train_runtime['\"]: "
        r"|^\{\"current_steps\": \d+, \"total_steps\": \d+, [^{}\n]*\"elapsed_time\": ",
        re.MULTILINE,
    )

    def __init__(self) -> None:
        super().__init__()
        self._progress = ProgressBars()
        self._open = ""  # a record that the next line goes on with: a terminal wrapped it
        self._last: tuple[int | None, dict[str, str]] = (None, {})  # rank and record
        self._rank: int | None = None
        self._before: list[ProgressBars] = []  # of runs that ended

    def line(self, line: str) -> bool:
        """Take dicts and bars, several of which may stand in one line, and settings."""
        if '"log_history": [' in line:  # behind the records of ms-swift: all of them again
            return True
        taken, own = False, line
        line, self._open = self._open + line, ""
        if line.startswith(("'loss': ", '"loss": ')):  # pasted without its first sign
            line = "{" + line
        if "{" in line and (start := _OPEN.search(line[-_LONGEST_DICT:])):
            self._open = start[0]
        steps = self.out.job.settings.get("steps")
        if self._progress.total is None and isinstance(steps, int):
            self._progress.total = steps
        end = 0
        for found in _PIECES.finditer(line) if "{" in line or "<" in line else ():
            if found[0][0] == "{":
                self._rank = split_rank(own)[0]
                taken = self._entries(dict(_ENTRY.findall(found[0]))) or taken
            elif state := bar_state(found[0]):
                self._progress.bar(*state, line[end : found.end()])
            end = found.end()
        if " = " in line and (block := _BLOCK.match(line)):
            self._whole_run({block[1]: block[2]})
        return taken

    def _entries(self, entries: dict[str, str]) -> bool:
        if "train_runtime" in entries and "loss" not in entries:
            self._whole_run(entries)
            return True
        last = entries.get("current_steps", "") == entries.get("total_steps")
        timed = entries.keys() >= _TIMED and not last and "eval_loss" not in entries
        if not timed and not all(entries.keys() & some for some in _RECORD):
            self.out.held |= "eval_runtime" in entries
            self._progress.evaluated += max(0.0, number(entries.get("eval_runtime", "0")))
            if last and "eval_loss" not in entries:  # LLaMA-Factory's last line has no loss
                self._ended, self._progress.reached = True, whole(entries["total_steps"])
            return False
        before, self._last = self._last, (self._rank, entries)
        if None not in (before[0], self._rank) and before[0] != self._rank and before[1] == entries:
            self.out.job.counts.duplicate_records += 1  # of another rank
            return True
        if self._ended and self._progress.records:  # a page goes on with another run
            self._before.append(self._progress)
            self._progress = ProgressBars()
        self._ended = last
        own = {key: text for key, text in entries.items() if not key.startswith("train_")}
        row = Rows().row(own) | {
            ours: number(entries[key]) * scale
            for key, (ours, scale) in _COLUMNS.items()
            if key in entries
        }
        step = entries.get("current_steps", str(row.pop("step", "")))
        total = whole(entries["total_steps"]) if "total_steps" in entries else None
        of = next((entries[key] for key in _STEP_OF_TOTAL if key in entries), "")
        if "/" in of:  # ms-swift: 5/60
            step, _, every = of.partition("/")
            total = whole(every)
        runtime = entries.get("train_runtime", "")
        each = number(entries.get("train_speed(s/it)", ""))  # of ms-swift
        speed = 1 / each if each > 0 else number(entries.get("train_speed(iter/s)", ""))
        elapsed = clock_seconds(entries.get("elapsed_time", ""))
        if speed > 0 and number(step) > 0:  # the mean since the start, which may be of a resume
            before = number(step) - (elapsed + 0.5) * speed  # by whole seconds
            count = number(step) - (round(before) if before > 1 + speed else 0)
            row["clock"], self._progress.resolution = count / speed, 0.01
        elif elapsed >= 0:
            row["clock"], self._progress.resolution = elapsed, 1.0
        elif runtime:
            row["clock"] = number(runtime)
        self.out.goes_on()
        row["held"], self.out.held = float(self.out.held), False
        self._progress.record(row, number(step), number(entries.get("epoch", "")), total)
        return True

    def _whole_run(self, entries: dict[str, str]) -> None:
        for name, value in entries.items():
            if name.startswith("train_") and name.endswith("_per_second"):
                rate = name.removeprefix("train_")
                self._progress.rates[rate] = number(value)
                self.out.digits(rate, "0.001")  # it rounds so, and drops zeros
        if "epoch" in entries:
            self._progress.epochs = number(entries["epoch"])
        if "train_runtime" in entries:
            self._ended = True
            self._progress.runtime = number(entries["train_runtime"])

    _ended = False

    def finish(self) -> None:
        """Number the records and hand them out."""
        done = Ending("completed", "the trainer printed its metrics of the whole run")
        for progress in self._before:
            progress.hand_out(self.out)
            self.out.job.rates |= progress.rates
            _by_summary(self.out.job, progress)
            self.out.end(done)
        last = self._progress
        (last.hand_out if last.records else last.hand_out_alone)(self.out)
        self.out.job.rates |= last.rates
        _by_summary(self.out.job, last)
        if self._ended:
            self.out.end(done)
