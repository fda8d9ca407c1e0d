"""Megatron-LM of every era, and forks that print its iteration line (ROCm, FlagScale, epfLLM)."""

from __future__ import annotations

from scalebook.logs.bar_fields import RECORD
from scalebook.logs.iteration_line import IterationDialect


class MegatronLM(IterationDialect):
    """``iteration N/M | elapsed time per iteration (ms): ... |``: times are means of a window."""

    name = "megatron-lm"
    signature = RECORD
