"""Megatron-DeepSpeed and kin: BigScience (times in seconds), Ascend ModelLink, DeepSpeed 2021."""

from __future__ import annotations

import re

from scalebook.logs.iteration_line import IterationDialect


class MegatronDeepSpeed(IterationDialect):
    """Megatron's line with tokens, samples/s of the job, TFLOP/s and tokens/s of a GPU."""

    name = "megatron-deepspeed"
    signature = re.compile(
        r"\biteration\s+\d+\s*/\s*\d+\s*\|[^\n]{0,900}"
        r"(?:consumed tokens:|lm-loss:|samples per second:)"
    )
