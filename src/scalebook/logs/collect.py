"""Sort step records and settings, as they come along a file, into jobs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import lt

from scalebook.logs.causes import ONE_PROCESS, Ending, weightier
from scalebook.logs.job import COLUMNS, SAME_LOSS, Job
from scalebook.logs.numbers import LARGEST as LARGEST_FIGURE
from scalebook.logs.numbers import MISSING, half_unit
from scalebook.logs.setting_lines import Value
from scalebook.settings import PARALLEL_SIZES, named

MOST_ROWS = 10_000_000  # a row takes about 100 bytes; what lies beyond is counted and said
MOST_JOBS = 1000
_AT_ONCE = 2.0  # s between the records that ranks print of one step
_SAME_FIRST_LOSS = 2e-3  # those of the first: before it, all trainings of a model are close
LARGEST = 10**15  # no size, count or rate of a run is larger; products of such stay finite
# Columns in which a value that is not above zero is none: all but these.
COUNTED = ("step", "skipped", "nan")
POSITIVE = {*COLUMNS} - {*COUNTED, "loss", "grad_norm", "learning_rate", "not_finite", "clock"}
# Settings whose change says that another job began.
IDENTITY = (
    "world_size", "tensor_parallel_size", "pipeline_parallel_size", "sequence_length", "num_layers",
    "hidden_size",
)  # fmt: skip
SIZES = (*named("size"), *PARALLEL_SIZES)


def _possible(column: str, low: float, high: float) -> bool:
    """Return whether values of a column can be what a run had; false for NaN."""
    if column in POSITIVE:
        return low > 0 and high <= LARGEST
    bound = LARGEST if column in COUNTED else LARGEST_FIGURE
    return -bound <= low and high <= bound


class Collector:
    """Receives what a dialect reads, in file order; ``jobs`` holds the outcome after ``close``."""

    def __init__(self, dialect: str, first_number: int = 1) -> None:
        self._dialect = dialect
        self._first_number = first_number
        self._pending: dict[str, Value] = {}  # printed since the last step
        self._hints: dict[str, Value] = {}  # the same, of lines that give way to any other
        self._device: str | None = None  # the same
        self._rows = 0
        self._clock = math.nan
        self._marked = True  # whether anything was printed since the last step
        self.quoted = False  # whether a quoted block ended or began since the last step
        self.held = False  # whether something since the last step may hold up the next one
        self.finest: dict[str, float] = {}  # a trainer prints every record with the same digits
        self.job = Job(dialect, first_number, finest=self.finest)
        self.jobs: list[Job] = [self.job]
        self._details: dict[str, object] = {}
        self._strength: dict[str, bool] = {}  # of a setting before the first step: not weak

    def every_job(self, **details: object) -> None:
        """Give every job these details."""
        self._details = details
        self.job.details.update(details)

    def tell(self, name: str, value: Value, *, weak: bool = False) -> None:
        """Record a setting; a weak one gives way to any other, and an impossible size is none."""
        if isinstance(value, int) and not isinstance(value, bool) and not 1 <= value <= LARGEST:
            return
        if len(self.job.table):  # of this job, or of the next
            target = self._hints if weak else self._pending
            target[name] = target.get(name, value) if weak else value
            return
        self._note_conflict(name, value, weak=weak)
        if not weak or name not in self.job.settings:
            self.job.settings[name] = value

    def device(self, name: str) -> None:
        """Record the device that a line names: of this job, or of the next."""
        if len(self.job.table):
            self._device = self._device or name
        else:
            self.job.details.setdefault("device", name)

    def _note_conflict(self, name: str, value: Value, *, weak: bool) -> None:
        """Note the values that equally strong lines say: if they differ, none is used."""
        strong = self._strength.get(name)
        if strong is False and not weak:
            self.job.conflicts.pop(name, None)
        if strong is not None and strong == (not weak) and name in IDENTITY + SIZES:
            values = self.job.conflicts.setdefault(name, [self.job.settings[name]])
            if value not in values:
                values.append(value)
        self._strength[name] = bool(strong) or not weak

    def digits(self, column: str, text: str, scale: float = 1.0) -> None:
        """Note how finely a column is printed, by one of its texts."""
        half = half_unit(text) * scale
        if half < self.finest.get(column, math.inf):
            self.finest[column] = half

    def mark(self) -> None:
        """Note that the log printed something that is not a record: a start may be in it."""
        self._marked = True

    def end(self, ending: Ending) -> None:
        """Record a line that says how the run ended; the next step makes it void."""
        *_, before, last = 0.0, 0.0, *self.job.table.column("step")[-2:]
        if "after training is done" in ending.line and 2 * last - before < (
            self.job.total_steps or 0
        ):
            where = f"Training ended at step {self.job.last_step} of {self.job.total_steps}"
            ending = Ending("interrupted", ending.line, sentence=where)
        elif ending.status == "completed" and ONE_PROCESS not in ending.line:
            self.job.finished = True
        self.job.ending = weightier(self.job.ending, ending)

    def goes_on(self) -> None:
        """Make void what was said of an end: a record followed that is kept until all are read."""
        self.job.ending, self.job.finished = None, False

    def step(
        self,
        row: Mapping[str, float],
        *,
        total: int | None = None,
        world: int | None = None,
        rank: int | None = None,
    ) -> None:
        """Record one step. ``row`` holds columns of ``table.COLUMNS``."""
        bad = [name for name in row if not _possible(name, row[name], row[name])]
        if bad:
            row = {**row, **dict.fromkeys(bad, MISSING)}
            if "loss" in bad or ("grad_norm" in bad and row.get("loss") == 0):  # as Hugging Face
                row = {**row, "not_finite": 1.0}
        number, clock = row.get("step", math.nan), row.get("clock", math.nan)
        if self._other_rank(rank):
            return
        self._switch(number, total)
        back = bool(len(self.job.table)) and number <= self.job.table.column("step")[-1]
        if back and self._same_as_last(row):
            self.job.counts.duplicate_records += 1
            return
        other_run, marked = back and self._is_other_run(row), self._marked
        self._marked = False
        again = back and number == self.job.last_step and not (marked or self._pending)
        if again and (self._at_once(clock, other_run) or (other_run and len(self.job.table) > 1)):
            self.job.counts.other_rank_records += 1  # of ranks that each print their own loss
            return
        if other_run or (len(self.job.table) and self._another_job(number, total, world, clock)):
            self._start_job()
        elif back:
            self.job.attempts.append(len(self.job.table))
            self.job.counts.restarts += 1
        if self.quoted and len(self.job.table):
            self.job.blocks.append(len(self.job.table))
        self._adopt(total, world)
        self._clock, self.quoted = clock, False
        row, self.held = {**row, "held": 1.0} if self.held else row, False
        if self._rows >= MOST_ROWS:
            self.job.counts.records_beyond_limit += 1
            return
        self._rows += 1
        self.job.table.append(row)

    def _switch(self, number: float, total: int | None) -> None:
        """Return to the run that this step continues, if two runs print into one log."""
        if total is None or self.job.total_steps in (None, total):
            return
        runs = (one for one in reversed(self.jobs) if one.total_steps == total and len(one.table))
        if (run := next(runs, None)) and not run.finished:
            before, last = run.table.column("step")[-2:][0], run.table.column("step")[-1]
            if last <= number <= last + 2 * max(1.0, last - before):
                self.job, self._clock = run, run.table.column("clock")[-1]

    def _at_once(self, clock: float, other_run: bool) -> bool:
        """Whether a rank may have printed what follows the last record: a start takes longer."""
        apart, clocks = abs(clock - self._clock), self.job.table.column("clock")[-2:]
        soon = apart <= _AT_ONCE or apart < (clocks[-1] - clocks[0]) / 2
        return soon or (math.isnan(apart) and not other_run)

    def batch(self, rows: Mapping[str, Sequence[float]], total: int | None) -> bool:
        """Record many steps given as columns; return False, recording none, if they do not follow.

        They follow when their numbers rise and go on from the last step.
        """
        numbers = rows["step"]
        last = self.job.table.column("step")[-1] if len(self.job.table) else -math.inf
        if self.held or self.quoted or any(map(math.isnan, rows.get("loss", ()))):
            return False  # one by one, so that each is noted
        if not all(_possible(name, min(values), max(values)) for name, values in rows.items()):
            return False
        rising = last < numbers[0] and all(map(lt, numbers, numbers[1:]))
        if not rising or self._pending or self._rows + len(numbers) > MOST_ROWS:
            return False
        self._adopt(total, None)
        self._clock, self._marked = math.nan, False
        self._rows += len(numbers)
        self.job.table.extend(rows, len(numbers))
        return True

    def close(self) -> list[Job]:
        """Return the jobs: repeats dropped, settings printed after the last step left out."""
        self._pending = {**self._hints, **self._pending, **self.job.settings}
        self._settle()
        self._merge_ranks()
        self.jobs = [part for job in self.jobs for part in job.apart()]
        for job in self.jobs:
            if job.blocks:
                job.note("Its records stand in several quoted blocks: they may be of other runs.")
            lost = job.table.column("not_finite")
            if len(lost) and any(one > 0 for one in lost) and not lost[-1] > 0:
                count = sum(one > 0 for one in lost)
                job.note(f"The loss is not a number in {count} of {len(lost)} records.")
            job.drop_conflicts()
            job.drop_repeats()
        return self.jobs

    def _merge_ranks(self) -> None:
        """Undo a start at each rank: where each step is printed by all ranks, the first was too."""
        last = self.job
        single = all(len(job.table) == 1 for job in self.jobs[:-1])
        ranks = len(self.jobs)
        if ranks > 1 and single and last.counts.other_rank_records >= len(last.table) - 1 > 0:
            last.counts.other_rank_records += ranks - 1
            last.settings = {**self.jobs[0].settings, **last.settings}
            self.jobs = [last]

    def _is_other_run(self, row: Mapping[str, float]) -> bool:
        """Return whether a step that was there before is of another run: no start is in between.

        A run that was restarted prints something first, and comes to nearly the same loss. One
        that begins afresh with another loss is another run.
        """
        afresh = len(self.job.table) > 1 and row.get("step") == self.job.first_step
        if (self._marked or self._pending) and not (afresh and row["step"] <= 1):
            return False
        steps, losses = self.job.table.column("step"), self.job.table.column("loss")
        known = next(
            (loss for at, loss in zip(reversed(steps), reversed(losses), strict=True)
             if at == row.get("step")),
            math.nan,
        )  # fmt: skip
        same = _SAME_FIRST_LOSS if afresh else SAME_LOSS
        return abs(row.get("loss", math.nan) - known) > same * abs(known)  # false for NaN

    def _other_rank(self, rank: int | None) -> bool:
        if rank is None:
            return False
        if self.job.rank is None or not len(self.job.table):
            self.job.rank = rank
        if rank == self.job.rank:
            return False
        self.job.counts.other_rank_records += 1
        return True

    def _another_job(
        self, number: float, total: int | None, world: int | None, clock: float
    ) -> bool:
        job, settings = self.job, self.job.settings
        if len(self.jobs) >= MOST_JOBS:
            return False
        if world is not None and job.world is not None and world != job.world:
            return True
        afresh = number <= 1 and number == job.first_step
        changed = (
            name in self._pending and settings.get(name, self._pending[name]) != self._pending[name]
            for name in (IDENTITY + SIZES if afresh else IDENTITY)
        )
        if any(changed):
            return True
        last = job.table.column("step")[-1]
        if self.quoted and number <= last:
            return True
        other_total = total is not None and job.total_steps is not None and total != job.total_steps
        if not number <= last:  # a page that quotes one log behind another
            return other_total and clock < self._clock - 1
        first = job.table.column("step")[job.attempts[0]]
        reached = job.total_steps is not None and last >= job.total_steps - 1
        return other_total or reached or job.finished or number < first or clock < self._clock - 1

    def _start_job(self) -> None:
        details = dict(self._details)
        self.job = Job(self._dialect, self._first_number, details=details, finest=self.finest)
        self.jobs.append(self.job)
        self._clock, self._strength = math.nan, {}

    def _same_as_last(self, row: Mapping[str, float]) -> bool:
        previous = self.job.table.row(len(self.job.table) - 1)
        names = ("step", "seconds", "loss", "grad_norm")
        return all(previous.get(name) == row.get(name) for name in names)

    def _settle(self) -> None:
        """Give the job what was printed since the last step."""
        settings = self.job.settings
        settings.update({**self._hints, **settings, **self._pending})
        if self._device:
            self.job.details.setdefault("device", self._device)
        self._pending, self._hints, self._device = {}, {}, None

    def _adopt(self, total: int | None, world: int | None) -> None:
        job = self.job
        self._settle()
        job.total_steps = total if total and total <= LARGEST else job.total_steps
        job.world = world if world and world <= LARGEST else job.world
        self.goes_on()
