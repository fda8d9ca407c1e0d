"""Megatron-LM of every era, and forks that print its iteration line (ROCm, FlagScale, epfLLM)."""

from __future__ import annotations

import re

from scalebook.logs.bar_fields import RECORD
from scalebook.logs.clock import clock_of
from scalebook.logs.dialects.dialect import LineDialect
from scalebook.logs.iteration_line import IterationDialect
from scalebook.logs.numbers import integer, number
from scalebook.logs.pairs import seconds_from, tokens_from_totals


class MegatronLM(IterationDialect):
    """``iteration N/M | elapsed time per iteration (ms): ... |``: times are means of a window."""

    name = "megatron-lm"
    signature = RECORD


class Progress(LineDialect):
    """``progress.txt`` (--log-progress): a line per checkpoint, with the totals of all jobs so far.

    The time between checkpoints holds the saving of one.
    """

    name = "megatron-progress"
    markers = ("Job ID:",)
    signature = re.compile(
        r"Job ID: [^\n]{0,80}# GPUs: \d+[^\n]{0,80}(?:Iteration: \d+|Starting job)"
    )
    _RECORD = re.compile(r"Iteration: (\d+)\s+Job throughput: ([\d.]+) TFLOP/s/GPU")
    _GPUS = re.compile(r"# GPUs: (\d+)")
    _TOKENS = re.compile(r"Tokens \(in billions\): ([\d.]+)")

    def line(self, line: str) -> bool:
        """Take the line of a checkpoint, or of a job that starts."""
        gpus = self._GPUS.search(line) if "Job ID:" in line else None
        if gpus is None:
            return False
        self.out.tell("world_size", integer(gpus[1]))
        found = self._RECORD.search(line)
        if found is None:
            return False
        row = {"step": float(found[1]), "tflops_per_gpu": number(found[2]), "clock": clock_of(line)}
        tokens = self._TOKENS.search(line)
        if tokens:
            row["consumed_tokens"] = number(tokens[1]) * 1e9
        self.out.step(row)
        return True

    def finish(self) -> None:
        """Take step times from the clock."""
        for job in self.out.jobs:
            seconds_from(job, "clock", 1.0, "time stamps of checkpoints")
            tokens_from_totals(job)
