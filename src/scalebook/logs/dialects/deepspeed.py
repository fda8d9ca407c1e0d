"""DeepSpeed's own lines, and SwissArmyTransformer, which prints them in addition to its own."""

from __future__ import annotations

import re

from scalebook.logs.dialects.dialect import LineDialect
from scalebook.logs.iteration_line import IterationDialect
from scalebook.logs.numbers import MISSING, integer, number
from scalebook.logs.pairs import pairs_of

TIMER = re.compile(
    r"(?:global_step=|\] \d{1,9}/)(\d+), (?:RunningAvg)?SamplesPerSec=([\d.eE+-]+)"
    r"(?:, CurrSamplesPerSec=([\d.eE+-]+))?"
    r"(?:, MemAllocated=([\d.]+)GB, MaxMemAllocated=([\d.]+)GB)?"
)
SKIPPED = re.compile(r"\bstep=(\d+), skipped=(\d+),(?: lr=\[([\d.eE+-]+))?")
_PIPELINE = re.compile(
    r"\bsteps: (\d+) loss: ([\d.eE+-]+|nan|inf)(?: \w{1,40}: \S{1,20}){0,20}"
    r" iter time \(s\): ([\d.]+) samples/sec: ([\d.]+)"
)
# A step that a loss scale has to shrink for, as each optimizer of DeepSpeed words it.
_OVERFLOW = re.compile(r"OVERFLOW! Rank 0 Skipping step|loss scale overflow! Skipping step")
_START = "DeepSpeed info: version="  # of an engine; several may start before the first step
_LATENCY = re.compile(r"\bE2E latency=([\d.]+)s")  # DeepSpeed-Chat


class DeepSpeed(LineDialect):
    """Pipeline ``steps:`` lines are the records; without them the throughput timer's are.

    ``skipped`` is a running total. Samples/s of the timer are of the job. A script that prints its
    own line with the loss of a step adds it, and its steps where the timer leaves some out.
    """

    name = "deepspeed"
    markers = ("SamplesPerSec=", "iter time (s):", "DeepSpeed Flops Profiler")
    signature = re.compile(
        r"\d, (?:RunningAvg)?SamplesPerSec=|\bsteps: \d+ loss: [^\n]{0,600}iter time \(s\):"
        r"|DeepSpeed Flops Profiler"
    )

    def __init__(self) -> None:
        super().__init__()
        self._pipeline = self._mean = False
        self._timers: list[dict[str, float]] = []
        self._rates: dict[float, float] = {}  # learning rates by step
        self._own: dict[float, dict[str, float]] = {}  # what the script printed, by step
        self._latency, self._overflows = MISSING, 0
        self._skipped: int | None = None

    def line(self, line: str) -> bool:
        """Take a record, the running total of skipped steps, or the profiler's sizes."""
        if "iter time (s)" in line:
            return self._record(line)
        if latency := _LATENCY.search(line) if "E2E latency=" in line else None:
            self._latency = number(latency[1])
            return True
        if "SamplesPerSec=" in line:
            return self._timer(line)
        skipped = SKIPPED.search(line) if "skipped=" in line else None
        if skipped:
            self._skipped = integer(skipped[2])
            self._rates[float(integer(skipped[1]))] = number(skipped[3] or "nan")
            return True
        self._overflows += "kipping step" in line and _OVERFLOW.search(line) is not None
        if _START in line and self._timers:
            self._hand_out()
        return self._printed(line)

    def _printed(self, line: str) -> bool:
        """Take a line of the script itself with a step and its loss; False if it is not one."""
        row, total = pairs_of(line)
        if not {"step", "loss"} <= row.keys() or self.cut or len(self._own) >= 1_000_000:
            return False
        self.out.job.total_steps = total or self.out.job.total_steps
        if self._latency > 0:
            row.setdefault("seconds", self._latency)
        self._latency = MISSING
        if row["step"] in self._own:  # of another rank: no rate of the job
            self._own[row["step"]].pop("tokens_per_second", None)
        else:
            self._own[row["step"]] = row
        return True

    def _joined(self) -> list[dict[str, float]]:
        """Return the records of the timer and of the script as one list, by step."""
        first = 1 - min(self._own, default=1.0)  # a script may count from 0
        if not self._own or max(self._own) + first < self._timers[-1]["step"]:
            return self._timers
        for row in self._timers:
            own = self._own.setdefault(row["step"] - first, {})
            own |= {name: row[name] for name in row if name not in ("step", *own)}
        return [{**row, "step": step} for step, row in sorted(self._own.items())]

    def _record(self, line: str) -> bool:
        found = _PIPELINE.search(line)
        if found is None:
            self.out.job.counts.broken_records += 1
            return True
        names = ("step", "loss", "seconds", "samples_per_second")
        self._pipeline = True
        self.out.step({name: number(found[i + 1]) for i, name in enumerate(names)})
        return True

    def _timer(self, line: str) -> bool:
        found = TIMER.search(line)
        if found and not self._pipeline and len(self._timers) < 1_000_000:
            row = {"step": number(found[1]), "samples_per_second": number(found[3] or found[2])}
            row["clock"] = self.clock(line[: found.start()])
            self._mean = not found[3]
            if found[4]:  # what it calls GB is GiB
                row["allocated_gib"] = number(found[5])
            if self._timers and row["step"] < self._timers[-1]["step"]:
                self._hand_out()
            self._timers.append(row)
            self.out.goes_on()
        return True

    def _hand_out(self) -> None:
        """Take the timer's lines of one start as records where there are no others."""
        self._timers = [] if self._pipeline else self._timers
        batch = self.out.job.settings.get("global_batch_size")
        for row in self._timers:
            row["learning_rate"] = self._rates.get(row["step"], MISSING)
            rate = row["samples_per_second"]
            if isinstance(batch, int) and rate > 0:
                row["seconds"] = batch / rate
            elif self._mean:  # since the start: with the time of a step it gives no batch
                row["samples_per_second"] = MISSING
        total = self.out.job.total_steps
        for row in self._joined() if self._timers else ():
            self.out.step(row, total=total)
        if self._timers and not isinstance(batch, int):
            self.out.job.note(
                "The throughput timer gives samples per second; the batch size is not printed."
            )
        counted = self._overflows or None  # the running total is not printed at every step
        self.out.job.skipped_in_all = counted if self._skipped is None else self._skipped
        self._timers, self._rates, self._own = [], {}, {}
        self._overflows, self._skipped = 0, None

    def finish(self) -> None:
        """Take what the last start printed, and step times by the clock."""
        self._hand_out()
        if not self._pipeline:
            super().finish()


_SPEED = re.compile(r"\|\s*speed ([\d.]+) samples/\(min\*GPU\)")


class SwissArmy(IterationDialect):
    """``iteration N/M | ... | total loss x | ... |speed y samples/(min*GPU)``."""

    name = "swissarmytransformer"
    markers = ("samples/(min*GPU)",)
    signature = re.compile(r"iteration +\d+/ *\d+ \|[^\n]{0,400}samples/\(min\*GPU\)")
    text = LineDialect.text  # line by line: the lines between the records count

    def __init__(self) -> None:
        super().__init__()
        self._job_rate: dict[float, float] = {}  # by the last step that the timer names

    def line(self, line: str) -> bool:
        """Take a record; DeepSpeed's timer line of the same step gives the rate of the job."""
        if "SamplesPerSec=" in line and (timer := TIMER.search(line)):
            self._flush()
            self._job_rate = {number(timer[1]): number(timer[3] or timer[2])}
            return True
        if "skipped=" in line and (skipped := SKIPPED.search(line)):
            self.out.job.skipped_in_all = integer(skipped[2])
            return True
        return super().line(_SPEED.sub(r"| samples/(min*GPU): \1", line))

    def _emit(self, row: dict[str, float], total: int | None, world: int | None = None) -> None:
        rate = self._job_rate.get(row["step"], MISSING)
        super()._emit({"samples_per_second": rate, **row}, total, world)
