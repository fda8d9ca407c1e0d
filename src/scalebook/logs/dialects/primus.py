"""AMD's Primus on Megatron: pairs of last value and mean, tokens/s of a GPU, rank-k/W prefixes."""

from __future__ import annotations

import re

from scalebook.logs.iteration_line import IterationDialect


class PrimusMegatron(IterationDialect):
    """Of ``92809.9/268751.1`` the first is this iteration's; the mean restarts after warm-up."""

    name = "primus-megatron"
    signature = re.compile(
        r"\biteration\s+\d+\s*/\s*\d+\s*\|[^\n]{0,900}"
        r"(?:\(ms\): *[\d.]{1,12}/[\d.]|tokens per GPU \(tokens/s/GPU\)|inst/harmonic mean"
        r"|rocm mem)"
        r"|rank-\d+/\d+\][^\n]{0,200}\biteration\s+\d+\s*/\s*\d+\s*\|"
    )
