"""What the names in a trace mean: kinds of kernels and collectives, phases of a step.

Names are those of CUDA (cuBLAS, cuDNN, CUTLASS, NCCL), ROCm (hipBLASLt, Composable Kernel, RCCL,
which keeps NCCL's names), Triton, Transformer Engine, and of torch's own operators on a CPU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

from scalebook.parallelism import Parallelism

Kind = Literal[
    "gemm", "attention", "norm", "elementwise", "optimizer", "communication", "copy", "other"
]
Phase = Literal["forward", "backward", "optimizer", "data"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer", "data")

# First match wins: flash attention is built from CUTLASS, and a fused Adam is elementwise.
_PATTERNS: dict[Kind, str] = {
    "communication": (
        r"nccl|rccl|msccl|gloo:|^c10d::|^mpi:|nvshmem|userbuffers|multimem_|cross_device_reduce"
        r"|one_shot_all|two_shot_all|deep_ep::|allreduce_kernel|^memcpy ptop"
    ),
    "optimizer": r"adam|multi_tensor_apply|multi_tensor_l2norm|_foreach_|fusedlamb",
    "attention": r"flash|fmha|attention|sdpa|attn_(?:fwd|bwd)|bwd_kernel_d[kq]|_dot_product_",
    "norm": r"layer_?norm|rms_?norm|rmsnorm|ln_(?:fwd|bwd)|batch_norm|GammaBeta",
    "gemm": (
        r"gemm|nvjet|cijk_|cutlass|cublas|xmma|splitk|gemv|matmul|wgrad|triton_tem|triton_mm"
        r"|^aten::(?:mm|addmm|bmm|baddbmm|linear|mv|dot|addmv|convolution|mkldnn)\b"
        r"|^aten::_grouped_mm|^mkldnn::|::mm_out"
    ),
    "copy": (
        r"^memcpy|^memset|^copy(?:host|device|buffer)|direct_copy|catarray|copyBuffer"
        r"|fillBuffer|^aten::(?:copy_|cat|_cat|clone|contiguous|_to_copy|fill_|zero_)\b"
    ),
    "elementwise": (
        r"elementwise|vectorized|unrolled|triton_|reduce_kernel|softmax|embedding|indexing"
        r"|index|gather|scatter|silu|gelu|swiglu|rope|rotary|cross_entropy|nll|dropout"
        r"|_cast|transpose|permute|topk|sort|cumsum|distribution|random|philox"
        r"|^aten::(?:add|sub|mul|div|pow|exp|log|sum|mean|max|min|neg|sqrt|rsqrt|sigmoid"
        r"|where|masked|eq|ne|lt|le|gt|ge|normal|uniform|tril|triu|arange|square|abs|erf"
        r"|tanh|relu|threshold|_local_scalar|bitwise|logical)\w*"
    ),
}
_KINDS: dict[Kind, re.Pattern[str]] = {
    kind: re.compile(text, re.IGNORECASE) for kind, text in _PATTERNS.items()
}

_COLLECTIVES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("reduce_scatter", re.compile(r"reduce_?scatter", re.IGNORECASE)),
    ("all_reduce", re.compile(r"all_?reduce|cross_device_reduce|_allred", re.IGNORECASE)),
    ("all_gather", re.compile(r"all_?gather", re.IGNORECASE)),
    ("all_to_all", re.compile(r"all_?to_?all|deep_ep", re.IGNORECASE)),
    ("send_receive", re.compile(r"send|recv|receive|pipeline", re.IGNORECASE)),
    ("broadcast", re.compile(r"broadcast|\bbcast", re.IGNORECASE)),
    ("peer_copy", re.compile(r"^memcpy ptop", re.IGNORECASE)),
    ("other", re.compile(r"^(?:gather|scatter)$")),  # torch's names; NCCL runs them as sends
)
SENDS, EXPERTS, RING = "send_receive", "expert_all_to_all", "context_ring"
COLLECTIVES = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    SENDS: "sends and receives between stages",
    EXPERTS: "the all-to-all of experts",
    RING: "the ring of context parallelism",
    "peer_copy": "copies from device to device",
    "other": "collectives that their kernel's name does not show",
}

# What the trainer marks, and what torch marks by itself in any program. All that is not marked
# otherwise counts as forward: programs of others mark their forward pass seldom.
STEP = "scalebook.step"
TORCH_STEP = "ProfilerStep#"
PIPELINE = "scalebook.pipeline"  # waits for another stage, on a CPU
_RANGES: tuple[tuple[str, Phase], ...] = (
    ("scalebook.forward", "forward"),
    ("scalebook.backward", "backward"),
    ("scalebook.gradients", "backward"),
    ("scalebook.optimizer", "optimizer"),
    ("scalebook.data", "data"),
    ("autograd::engine::evaluate_function", "backward"),
    ("Optimizer.step#", "optimizer"),
    ("Optimizer.zero_grad#", "optimizer"),
    ("enumerate(DataLoader)#", "data"),
)


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
    return next((kind for text in texts for kind, one in _COLLECTIVES if one.search(text)), "other")


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
    return next((phase for start, phase in _RANGES if name.startswith(start)), None)
