"""Megatron-LM of every era and its kin: DeepSpeed's and GPT-NeoX's forks, Bridge, Primus."""

from __future__ import annotations

import itertools
import math
import re

from scalebook.logs.dialects.dialect import LineDialect
from scalebook.logs.iteration_line import RECORD, STEP_TFLOPS, STEP_TIME, IterationDialect
from scalebook.logs.numbers import MISSING, clock_of, half_unit, integer, number
from scalebook.logs.pairs import seconds_from, tokens_from_totals


class MegatronLM(IterationDialect):
    """``iteration N/M | elapsed time per iteration (ms): ... |``: times are means of a window."""

    name = "megatron-lm"
    signature = RECORD


class Progress(LineDialect):
    """``progress.txt`` (--log-progress): a line per checkpoint, with the totals of all jobs so far.

    The time between checkpoints holds the saving of one. The throughput is the mean since the job
    started: here it is that since its first checkpoint, which leaves the start out.
    """

    name = "megatron-progress"
    markers = ("Job ID:",)
    signature = re.compile(
        r"Job ID: [^\n]{0,80}# GPUs: \d+[^\n]{0,80}(?:Iteration: \d+|Starting job)"
    )
    _RECORD = re.compile(r"Iteration: (\d+)\s+Job throughput: ([\d.]+) TFLOP/s/GPU")
    _GPUS = re.compile(r"# GPUs: (\d+)")
    _TOKENS = re.compile(r"Tokens \(in billions\): ([\d.]+)")

    _coarse = 0.0  # tokens that a difference of two totals may be off by
    _MOST_OFF = 0.02
    _began, _first = MISSING, (MISSING, MISSING)  # of this start; seconds and work by then

    def line(self, line: str) -> bool:
        """Take the line of a checkpoint, or of a job that starts."""
        gpus = self._GPUS.search(line) if "Job ID:" in line else None
        if gpus is None:
            return False
        self.out.tell("world_size", integer(gpus[1]))
        found, clock = self._RECORD.search(line), clock_of(line)
        if found is None:
            self._began, self._first = clock, (MISSING, MISSING)
            return False
        spent, work = clock - self._began, number(found[2]) * (clock - self._began)
        row = {"step": float(found[1]), "clock": clock}
        if spent > self._first[0]:
            row["tflops_per_gpu"] = (work - self._first[1]) / (spent - self._first[0])
        elif math.isnan(self._first[0]):
            self._first = (spent, work)
            self.out.job.note(
                "TFLOP/s are since a job's first checkpoint: its mean holds the start."
            )
        tokens = self._TOKENS.search(line)
        if tokens:
            row["consumed_tokens"] = number(tokens[1]) * 1e9
            self._coarse = max(self._coarse, 2e9 * half_unit(tokens[1]))
        self.out.step(row)
        return True

    def finish(self) -> None:
        """Take step times from the clock."""
        for job in self.out.jobs:
            seconds_from(job, "clock", 1.0, "time stamps of checkpoints")
            totals = job.table.column("consumed_tokens")
            gained = sorted(b - a for a, b in itertools.pairwise(totals) if b > a)
            if gained and self._coarse > self._MOST_OFF * gained[len(gained) // 2]:
                job.note("The totals of tokens are printed too coarsely for a rate.")
                continue
            tokens_from_totals(job)


class MegatronDeepSpeed(IterationDialect):
    """Megatron's line with tokens, samples/s of the job, TFLOP/s and tokens/s of a GPU."""

    name = "megatron-deepspeed"
    signature = re.compile(
        r"\biteration=?\s+\d+\s*/\s*\d+\s*\|[^\n]{0,900}"
        r"(?:consumed[ _]tokens[:=]|lm-loss:|samples per second:)"
    )


class GPTNeoX(IterationDialect):
    """Micro-step timers (``forward_microstep``) are not records: a step has several of them."""

    name = "gpt-neox"
    markers = ("approx flops per GPU", "samples/sec:", "...default", "...updated", "NeoXArgs")
    signature = re.compile(
        r"samples/sec: [\d.]+ \| iteration|approx flops per GPU: |\bNeoXArgs\."
        r"|(?:^|\n)[^\n,]{0,80}\w \.{3,} \S{1,80}?\.{3,}(?:default|updated)\b"
    )
    assignments = False


class MegatronBridge(IterationDialect):
    """The two lines are one step; only ``Step Time`` lines are the records."""

    name = "megatron-bridge"
    markers = ("Step Time",)
    signature = re.compile(r"Step Time ?: ?[\d.]+ ?s[^\n]{0,200}TFLOP/s/GPU")
    _TOKENS = re.compile(r"([\d.]{1,12}) tok/s/gpu", re.IGNORECASE)

    def __init__(self) -> None:
        super().__init__()
        self._alone: list[dict[str, float]] = []

    def line(self, line: str) -> bool:
        """Take a line; keep ``Step Time`` lines for a log that has no iteration lines."""
        if "Step Time" in line and not len(self.out.job.table) and len(self._alone) < 1_000_000:
            time, tflops = STEP_TIME.search(line), STEP_TFLOPS.search(line)
            if time and tflops:
                row = {"seconds": number(time[1]), "tflops_per_gpu": number(tflops[1])}
                tokens = self._TOKENS.search(line)
                if tokens:
                    row["tokens_per_second_per_gpu"] = number(tokens[1])
                self._alone.append(row)
                self.out.goes_on()
        return super().line(line)

    def finish(self) -> None:
        """Take the ``Step Time`` lines as records if there were no others."""
        super().finish()
        if not len(self.out.job.table):
            self.out.every_job(loss_expected=False)
            for row in self._alone:
                self.out.step(row)
            if self._alone:
                self.out.job.note("The records carry no step number.")


class PrimusMegatron(IterationDialect):
    """Of ``92809.9/268751.1`` the first is this iteration's; the mean restarts after warm-up."""

    name = "primus-megatron"
    signature = re.compile(
        r"\biteration\s+\d+\s*/\s*\d+\s*\|[^\n]{0,900}"
        r"(?:\(ms\): *[\d.]{1,12}/[\d.]|tokens per GPU \(tokens/s/GPU\)|inst/harmonic mean"
        r"|rocm mem)"
        r"|rank-\d+/\d+\][^\n]{0,200}\biteration\s+\d+\s*/\s*\d+\s*\|"
    )
