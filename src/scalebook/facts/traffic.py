"""What products write, and what element-wise kernels read and write.

The latter are norms, residual sums, rotary embedding and activation, counted for fused kernels: a
norm reads and writes, its backward pass reads two and writes one; a residual sum reads two and
writes one; queries and keys are copied when they are split. Left out: whatever a kernel reads twice
because its cache is too small.
"""

from __future__ import annotations

from scalebook.facts.catalog.types import ModelShape

_HIDDEN, _ROTARY = (10, 12), (4, 4)  # accesses of a value, forward and backward
_GATED, _PLAIN = (3, 5), (2, 3)  # of the MLP's width
# torch.cat of the parts of latent queries, keys and their gradients: 0.94 TB/s there, a quarter
# of what other kernels reach.
_SLOW_COPY = 4
# Of torch, of a bias to values that are not in a row: 1.4 TB/s on an H200, others reach 3.7.
_SLOW_ADD = 2.6
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


def product_values(shape: ModelShape, tensor: int, dense: float) -> tuple[float, float]:
    """Values that a layer's products write per token on one rank, forward and backward.

    ``dense`` is the width of its dense MLP: forward they write results, backward the gradients of
    what they read; those of weights are the same for any number of tokens.
    """
    heads, hidden, mla = shape.num_attention_heads / tensor, shape.hidden_size, shape.mla
    if mla is not None:
        latents, width = mla.q_lora_rank + mla.kv_lora_rank, heads * mla.v_head_dim
        made = heads * (2 * mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim)
        forward = latents + mla.qk_rope_head_dim + made + hidden
        backward = 2 * hidden + latents + width
    else:
        width = heads * shape.head_dim
        forward = width + 2 * shape.num_query_groups / tensor * shape.head_dim + hidden
        backward = hidden + width
    if dense:
        forward += (shape.mlp_matrices - 1) * dense / tensor + hidden
        backward += hidden + dense / tensor
    return forward, backward


def bias_values(
    shape: ModelShape, tensor: int, replicated: float, *, moe: bool, again: float = 0.0
) -> float:
    """Values per token that one rank reads to sum up the gradients of a layer's biases.

    Those of queries, keys and values are added by a kernel of their own, ``again`` times more.
    Biases of products that ranks share by rows are added to the sum, of which each has a share.
    """
    hidden, heads = shape.hidden_size * replicated, shape.num_attention_heads
    made = (heads + 2 * shape.num_query_groups) * shape.head_dim / tensor
    added = 2 * _SLOW_ADD * made * (1 + again)
    values = made + added if shape.attention_bias != "none" else 0.0
    values += hidden if shape.attention_bias == "all" else 0.0
    if shape.mlp_bias and not (moe and shape.moe):
        values += (shape.mlp_matrices - 1) * shape.ffn_hidden_size / tensor + hidden
    return values


def joined_values(shape: ModelShape) -> float:
    """Values per token that joining latent queries, keys and both their gradients counts as."""
    if (mla := shape.mla) is None:
        return 0.0
    key = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    joined = 3 * key + mla.qk_nope_head_dim + mla.v_head_dim
    return _SLOW_COPY * 2 * joined * shape.num_attention_heads
