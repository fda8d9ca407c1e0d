"""ModelShape -> the matrix products of its layers, as a tensor-parallel rank computes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scalebook.facts.catalog.types import ModelShape
from scalebook.facts.flops import padded_vocab_size

TENSOR_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class LayerProduct:
    """A layer's forward product: ``rows`` tokens x ``inputs`` features -> ``outputs`` features.

    ``count`` is how many a micro batch has over the whole model.
    """

    layer: str
    rows: int
    outputs: int
    inputs: int
    count: int


def tensor_sizes(shape: ModelShape) -> tuple[int, ...]:
    """Return the tensor-parallel sizes up to 8 that divide heads, groups and MLP width."""
    widths = (shape.num_attention_heads, shape.ffn_hidden_size)
    groups = () if shape.mla else (shape.num_query_groups,)
    return tuple(
        size for size in TENSOR_SIZES if all(width % size == 0 for width in (*widths, *groups))
    )


def products(shape: ModelShape, tokens: int, tensor_size: int) -> tuple[LayerProduct, ...]:
    """Return the forward products of a micro batch of ``tokens`` tokens on one rank.

    Experts are whole on a rank (expert tensor-parallel size 1) and equally loaded. The router,
    which is small, and attention itself are left out.
    """
    padded = padded_vocab_size(shape.vocab_size, tensor_size)
    return (
        *_attention(shape, tokens, tensor_size),
        *_mlp(shape, tokens, tensor_size),
        LayerProduct("logits", tokens, padded // tensor_size, shape.hidden_size, 1),
    )


def _attention(shape: ModelShape, tokens: int, split: int) -> Iterator[LayerProduct]:
    hidden, layers, heads = shape.hidden_size, shape.num_layers, shape.num_attention_heads // split
    if shape.mla is None:
        wide = (shape.num_attention_heads + 2 * shape.num_query_groups) * shape.head_dim // split
        yield LayerProduct("qkv", tokens, wide, hidden, layers)
        yield LayerProduct("proj", tokens, hidden, heads * shape.head_dim, layers)
        return
    mla = shape.mla
    query = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    if mla.q_lora_rank:
        yield LayerProduct("q_down", tokens, mla.q_lora_rank, hidden, layers)
        yield LayerProduct("q_up", tokens, query, mla.q_lora_rank, layers)
    else:
        yield LayerProduct("q", tokens, query, hidden, layers)
    yield LayerProduct("kv_down", tokens, mla.kv_lora_rank + mla.qk_rope_head_dim, hidden, layers)
    wide = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    yield LayerProduct("kv_up", tokens, wide, mla.kv_lora_rank, layers)
    yield LayerProduct("proj", tokens, hidden, heads * mla.v_head_dim, layers)


def _mlp(shape: ModelShape, tokens: int, split: int) -> Iterator[LayerProduct]:
    moe = shape.moe
    dense = moe.first_dense_layers if moe else shape.num_layers
    if dense:
        yield from _pair(shape, "fc", tokens, shape.ffn_hidden_size // split, dense)
    if moe is None:
        return
    sparse = shape.num_layers - dense
    rows = max(tokens * moe.top_k // moe.num_experts, 1)
    yield from _pair(shape, "expert_fc", rows, moe.ffn_hidden_size, sparse * moe.num_experts)
    if moe.shared_ffn_hidden_size:
        yield from _pair(shape, "shared_fc", tokens, moe.shared_ffn_hidden_size // split, sparse)


def _pair(
    shape: ModelShape, name: str, rows: int, width: int, count: int
) -> Iterator[LayerProduct]:
    gate = 2 if shape.gated_mlp else 1
    yield LayerProduct(f"{name}1", rows, gate * width, shape.hidden_size, count)
    yield LayerProduct(f"{name}2", rows, shape.hidden_size, width, count)
