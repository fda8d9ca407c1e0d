"""DeepSpeed's own lines: throughput timer, pipeline engine, step lines, FLOPs profiler's head."""

from __future__ import annotations

import re

from scalebook.logs.dialects.dialect import LineDialect
from scalebook.logs.numbers import integer, number

TIMER = re.compile(
    r"(?:global_step=|\] \d{1,9}/)(\d+), (?:RunningAvg)?SamplesPerSec=([\d.eE+-]+)"
    r"(?:, CurrSamplesPerSec=([\d.eE+-]+))?"
    r"(?:, MemAllocated=([\d.]+)GB, MaxMemAllocated=([\d.]+)GB)?"
)
SKIPPED = re.compile(r"\bstep=(\d+), skipped=(\d+),")
_PIPELINE = re.compile(
    r"\bsteps: (\d+) loss: ([\d.eE+-]+|nan|inf) iter time \(s\): ([\d.]+) samples/sec: ([\d.]+)"
)
_PROFILER = re.compile(
    r"\s*(?:\d+: )?\s*(world size|data parallel size|model parallel size|batch size per GPU)"
    r": +(\d+)\s*$"
)
_OURS = {
    "world size": "world_size",
    "data parallel size": "data_parallel_size",
    "model parallel size": "tensor_parallel_size",
    "batch size per GPU": "micro_batch_size",
}


class DeepSpeed(LineDialect):
    """Pipeline ``steps:`` lines are the records; without them the throughput timer's are.

    ``skipped`` is a running total. Samples/s of the timer are of the job.
    """

    name = "deepspeed"
    markers = ("SamplesPerSec=", "iter time (s):", "DeepSpeed Flops Profiler")
    signature = re.compile(
        r"\d, (?:RunningAvg)?SamplesPerSec=|\bsteps: \d+ loss: [^\n]{0,60}iter time \(s\):"
        r"|DeepSpeed Flops Profiler"
    )

    assignments = True  # the configuration is printed as JSON

    def __init__(self) -> None:
        super().__init__()
        self._pipeline = False
        self._timers: list[dict[str, float]] = []
        self._profiler = False

    def line(self, line: str) -> bool:
        """Take a record, the running total of skipped steps, or the profiler's sizes."""
        if "iter time (s)" in line:
            return self._record(line)
        if "SamplesPerSec=" in line:
            return self._timer(line)
        skipped = SKIPPED.search(line) if "skipped=" in line else None
        if skipped:
            self.out.job.skipped_in_all = integer(skipped[2])
            return True
        if "DeepSpeed Flops Profiler" in line:
            self._profiler = True
            return True
        found = _PROFILER.match(line) if self._profiler else None
        if found:
            self.out.tell(_OURS[found[1]], integer(found[2]))
        return bool(found)

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
            if found[4]:  # what it calls GB is GiB
                row["allocated_gib"] = number(found[5])
            self._timers.append(row)
        return True

    def finish(self) -> None:
        """Take the timer's lines as records where there are no others."""
        if self._pipeline:
            return
        batch = self.out.job.settings.get("global_batch_size")
        for row in self._timers:
            rate = row["samples_per_second"]
            if isinstance(batch, int) and rate > 0:
                row["seconds"] = batch / rate
            self.out.step(row)
        if self._timers and not isinstance(batch, int):
            self.out.job.note(
                "The throughput timer gives samples per second; the batch is not told."
            )
