"""What element-wise kernels read and write: norms, residual sums, rotary embedding, activation.

Counted for fused kernels: a norm reads and writes, its backward pass reads two and writes one; a
residual sum reads two and writes one; queries and keys are copied when they are split. Left out:
whatever a kernel reads twice because its cache is too small.
"""

from __future__ import annotations

from scalebook.facts.catalog.types import ModelShape

_HIDDEN, _ROTARY = (10, 12), (4, 4)  # accesses of a value, forward and backward
_GATED, _PLAIN = (3, 5), (2, 3)  # of the MLP's width
LOGIT_BYTES = 8.0  # of one logit: read twice, its gradient written where it lies and read


def layer_values(
    shape: ModelShape, *, tensor: int, replicated: float, moe: bool
) -> tuple[float, float]:
    """Values that one rank reads or writes per token in a layer, forward and backward.

    ``replicated`` is the share of the hidden state that a tensor-parallel rank works on.
    """
    hidden, wide = shape.hidden_size * replicated, mlp_width(shape, tensor, replicated, moe=moe)
    rotary = (shape.num_attention_heads + shape.num_query_groups) * shape.head_dim / tensor
    passes = zip(_HIDDEN, _ROTARY, _GATED if shape.gated_mlp else _PLAIN, strict=True)
    forward, backward = (a * hidden + b * rotary + c * wide for a, b, c in passes)
    return forward, backward


def mlp_width(shape: ModelShape, tensor: int, replicated: float, *, moe: bool) -> float:
    """Values per token between the matrices of the MLP on one rank; of all experts it goes to."""
    if not moe or shape.moe is None:
        return shape.ffn_hidden_size / tensor
    routed = shape.moe.top_k * shape.moe.ffn_hidden_size * replicated
    return routed + shape.moe.shared_ffn_hidden_size / tensor
