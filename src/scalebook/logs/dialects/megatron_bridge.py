"""NVIDIA Megatron-Bridge: a ``Step Time`` line before Megatron's line of the same step."""

from __future__ import annotations

import re

from scalebook.logs.iteration_line import IterationDialect
from scalebook.logs.numbers import number


class MegatronBridge(IterationDialect):
    """The two lines are one step; ``Step Time`` lines alone are the records."""

    name = "megatron-bridge"
    markers = ("Step Time",)
    signature = re.compile(r"Step Time ?: ?[\d.]+ ?s[^\n]{0,200}TFLOP/s/GPU")
    assignments = True  # the configuration is printed as YAML
    _TIME = re.compile(r"Step Time ?: ?([\d.]+) ?s")
    _TFLOPS = re.compile(r"([\d.]{1,12}) ?(?:MODEL_)?TFLOP/s/GPU")
    _TOKENS = re.compile(r"([\d.]{1,12}) tok/s/gpu", re.IGNORECASE)

    def __init__(self) -> None:
        super().__init__()
        self._alone: list[dict[str, float]] = []

    def line(self, line: str) -> bool:
        """Take a line; keep ``Step Time`` lines for a log that has no iteration lines."""
        if "Step Time" in line and not len(self.out.job.table) and len(self._alone) < 1_000_000:
            time, tflops = self._TIME.search(line), self._TFLOPS.search(line)
            if time and tflops:
                row = {"seconds": number(time[1]), "tflops_per_gpu": number(tflops[1])}
                tokens = self._TOKENS.search(line)
                if tokens:
                    row["tokens_per_second_per_gpu"] = number(tokens[1])
                self._alone.append(row)
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
