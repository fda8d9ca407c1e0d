"""What the names in a trace mean: kinds of kernels and collectives, phases of a step.

Names are those of CUDA (cuBLAS, cuDNN, CUTLASS, NCCL), ROCm (hipBLASLt, Composable Kernel, RCCL,
which keeps NCCL's names), Triton, Transformer Engine, and of torch's own operators on a CPU.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Any, Literal

from scalebook.parallelism import Parallelism

Kind = Literal[
    "gemm", "attention", "norm", "elementwise", "optimizer", "communication", "copy", "other"
]
Phase = Literal["forward", "backward", "optimizer", "data"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer", "data")

_TABLE: Any = tomllib.loads(
    (resources.files("scalebook.measure.anatomy") / "kinds.toml").read_text("utf-8")
)
_KINDS: dict[Kind, re.Pattern[str]] = {
    kind: re.compile("|".join(texts), re.IGNORECASE) for kind, texts in _TABLE["kinds"].items()
}
_COLLECTIVES: dict[str, re.Pattern[str]] = {
    name: re.compile(text, re.IGNORECASE) for name, text in _TABLE["collectives"].items()
}
COLLECTIVES: Mapping[str, str] = _TABLE["words"]
_RANGES: Mapping[str, Phase] = _TABLE["ranges"]
SENDS, EXPERTS, RING = "send_receive", "expert_all_to_all", "context_ring"
STEP = "scalebook.step"
TORCH_STEP = "ProfilerStep#"
PIPELINE = "scalebook.pipeline"  # waits for another stage, on a CPU


@lru_cache(maxsize=20_000)
def kind_of(name: str) -> Kind:
    """Return the kind of work that a kernel or operator of this name does."""
    for kind, pattern in _KINDS.items():
        if pattern.search(name):
            return kind
    return "other"


@lru_cache(maxsize=2_000)
def collective_of(name: str, named: str = "") -> str:
    """Return which collective a communication kernel is: ``all_reduce``, ..., or ``other``.

    ``named`` is torch's name of the collective, where the trace has it. It counts first, because
    NCCL runs an all-to-all as the kernel of a send and a receive.
    """
    texts = (named, name)
    return next(
        (kind for text in texts for kind, one in _COLLECTIVES.items() if one.search(text)), "other"
    )


def of_layout(exposed: Mapping[str, float], layout: Parallelism) -> dict[str, float]:
    """Return seconds by collective, exchanges by what the layout uses them for.

    Without pipeline stages a send and a receive is an all-to-all of experts or a ring of context
    parallelism. With stages it stays what it is: only torch's name of the collective tells more.
    """
    experts, context = layout.expert_parallel_size > 1, layout.context_parallel_size > 1
    only = {(True, False): EXPERTS, (False, True): RING}.get((experts, context))
    names = {"all_to_all": EXPERTS} if only == EXPERTS else {}
    if layout.pipeline_parallel_size == 1:
        names[SENDS] = only or "other"
    found: dict[str, float] = {}
    for name, seconds in exposed.items():
        used_as = names.get(name, name)
        found[used_as] = found.get(used_as, 0.0) + seconds
    return found


@lru_cache(maxsize=20_000)
def phase_of(name: str) -> Phase | None:
    """Return the phase that a range of this name marks; None where it marks none."""
    return next((phase for start, phase in _RANGES.items() if name.startswith(start)), None)
