"""GPT-NeoX: samples/s before the iteration, FLOP/s with a prefix letter, a dump with origins."""

from __future__ import annotations

import re

from scalebook.logs.iteration_line import IterationDialect


class GPTNeoX(IterationDialect):
    """Micro-step timers (``forward_microstep``) are no records: a step has several of them."""

    name = "gpt-neox"
    markers = ("approx flops per GPU", "samples/sec:", "...default", "...updated", "NeoXArgs")
    signature = re.compile(
        r"samples/sec: [\d.]+ \| iteration|approx flops per GPU: |\bNeoXArgs\."
        r"|(?:^|\n)[^\n,]{0,80}\w \.{3,} \S{1,80}?\.{3,}(?:default|updated)\b"
    )
    assignments = False
