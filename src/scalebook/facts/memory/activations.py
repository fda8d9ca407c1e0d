"""Bytes that the forward pass of one microbatch keeps for the backward pass on one rank.

Counted tensor by tensor for a pre-norm layer without dropout, as the fused kernels of Transformer
Engine or torch keep them: a gated MLP keeps gate, up and their product (3 f), a plain one 2 f. For
h = q = kv and f = 4 h it is s b h (34 - 2) of Korthikanti et al. (arXiv 2205.05198) less the two
dropout masks. Of what the backward pass holds for a moment, ``backward_bytes`` and
``head_gradient_bytes`` count what is large; buffers of kernels and collectives are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scalebook.facts.catalog.types import MLAShape, ModelShape, MoEShape
from scalebook.facts.flops import attention_width, padded_vocab_size
from scalebook.parallelism import Parallelism

# "fused" keeps one number a query for the softmax; "unfused" keeps the matrix of scores.
AttentionKernel = Literal["fused", "unfused"]
# "fused" turns the logits into their gradient where they lie; "unfused" keeps an fp32 softmax.
CrossEntropy = Literal["fused", "unfused"]


@dataclass(frozen=True, slots=True)
class Workload:
    """What flows through a rank in one microbatch."""

    tokens: float  # per context-parallel rank
    sequence_length: int  # keys that a query sees
    element_bytes: int
    attention: AttentionKernel
    cross_entropy: CrossEntropy = "unfused"
    fp8_recipe: str | None = None  # None: inputs are kept in 16 bit or more


def layer_bytes(shape: ModelShape, parallelism: Parallelism, work: Workload, *, moe: bool) -> float:
    """Return activation bytes of one layer without recomputation."""
    elements = _attention(shape, parallelism)
    if shape.moe is not None and moe:
        elements += _experts(shape, shape.moe, parallelism)
    else:
        width = (3 if shape.gated_mlp else 2) * shape.ffn_hidden_size
        elements += width / parallelism.tensor_parallel_size
    # Input and output of both norms; sequence parallelism splits what tensor parallelism repeats.
    elements += 4 * shape.hidden_size * replicated_share(parallelism)
    kept = work.tokens * work.element_bytes * elements + softmax_bytes(shape, parallelism, work)
    return kept - _quantised_bytes(shape, parallelism, work, moe=moe)


def _quantised_bytes(
    shape: ModelShape, parallelism: Parallelism, work: Workload, *, moe: bool
) -> float:
    """Return bytes by which FP8 inputs of a layer's products are smaller than those in 16 bit.

    Transformer Engine keeps the outputs of norms and the activation in FP8, with an fp32 scale for
    each block of 128 elements where the recipe has blocks. Before experts the router reads the
    norm's output too. The delayed recipe keeps the attention's output in FP8 next to that in 16
    bit, which the attention needs: one H200 with 8 and 16 layers, 18,508 and 22,528 bytes per token
    and layer of Llama 3.1 8B by the recipe.
    """
    if work.fp8_recipe is None:
        return 0.0
    tensor, hidden = parallelism.tensor_parallel_size, shape.hidden_size
    elements, experts = hidden * replicated_share(parallelism), shape.moe if moe else None
    if experts is None:
        elements += elements + shape.ffn_hidden_size / tensor
    else:
        routed = experts.top_k * replicated_share(parallelism)
        elements += routed * (hidden + experts.ffn_hidden_size)
        elements += experts.shared_ffn_hidden_size / tensor
    each = work.element_bytes - 1 - (4 / 128 if work.fp8_recipe == "blockwise" else 0)
    again = attention_width(shape) / tensor if work.fp8_recipe == "delayed" else 0
    return work.tokens * (each * elements - again)


def softmax_bytes(shape: ModelShape, parallelism: Parallelism, work: Workload) -> float:
    """Return bytes that the softmax of one layer keeps: what selective recomputation saves."""
    heads = shape.num_attention_heads / parallelism.tensor_parallel_size
    if work.attention == "fused":
        return 4 * heads * work.tokens  # one fp32 log-sum-exp a query and head
    # Softmax, dropout mask and their product: 5 a s^2 b in 16 bit (arXiv 2205.05198).
    return 2.5 * work.element_bytes * heads * work.tokens * work.sequence_length


def pointwise_bytes(
    shape: ModelShape, parallelism: Parallelism, work: Workload, *, moe: bool
) -> float:
    """Return bytes that ``pointwise`` recomputation saves: norms' outputs, the MLP's product.

    Before experts, the norm's output is also what the router and the dispatcher keep.
    """
    hidden = shape.hidden_size * replicated_share(parallelism)
    if moe and shape.moe is not None:
        return work.tokens * work.element_bytes * hidden
    product = shape.ffn_hidden_size / parallelism.tensor_parallel_size if shape.gated_mlp else 0.0
    return work.tokens * work.element_bytes * (2 * hidden + product)


def module_bytes(
    shape: ModelShape, parallelism: Parallelism, work: Workload, module: str, *, moe: bool
) -> tuple[float, float]:
    """Return bytes that recomputing a module of a layer saves: of its attention, of its MLP.

    Megatron-Core keeps a module's input and drops the rest: of ``mla_up_proj`` and ``layernorm``
    the outputs, of ``moe_act`` that of the activation, of ``mlp``, ``moe`` and ``shared_experts``
    all that lies inside. Before experts, the router and the dispatcher read the norm's output too.
    """
    tensor, attention, inside, mla = parallelism.tensor_parallel_size, 0.0, 0.0, shape.mla
    experts, factor = shape.moe if moe else None, 3 if shape.gated_mlp else 2
    if module == "core_attn":
        return softmax_bytes(shape, parallelism, work), 0.0
    if module == "layernorm":
        attention = inside = shape.hidden_size * replicated_share(parallelism)
    elif module == "mla_up_proj" and mla:
        width = 2 * (mla.qk_nope_head_dim + mla.qk_rope_head_dim) + mla.v_head_dim
        attention = shape.num_attention_heads / tensor * width
    elif module == "mlp" and not experts:
        inside = factor * shape.ffn_hidden_size / tensor
    elif module == "moe" and experts:
        inside = _experts(shape, experts, parallelism)
    elif module == "moe_act" and experts:
        inside = experts.top_k * experts.ffn_hidden_size * replicated_share(parallelism)
    elif module == "shared_experts" and experts:
        inside = factor * experts.shared_ffn_hidden_size / tensor
    bytes_each = work.tokens * work.element_bytes
    return bytes_each * attention, bytes_each * inside


def gate_and_up_bytes(shape: ModelShape, parallelism: Parallelism, work: Workload) -> float:
    """Return bytes that a gated MLP's first product takes: what offloading sends to the host."""
    width = 2 * shape.ffn_hidden_size / parallelism.tensor_parallel_size
    return work.tokens * work.element_bytes * width


def checkpoint_bytes(shape: ModelShape, parallelism: Parallelism, work: Workload) -> float:
    """Return bytes that one layer keeps under full recomputation: its input."""
    return work.tokens * work.element_bytes * shape.hidden_size * replicated_share(parallelism)


def head_bytes(shape: ModelShape, parallelism: Parallelism, work: Workload) -> tuple[float, float]:
    """Return bytes of the last norm and of the logits of one microbatch.

    An unfused cross entropy works in fp32: beside an fp32 copy of the logits there is at its worst
    moment one 16-bit copy (the logits before it, or their gradient after it).
    """
    norm = 2 * checkpoint_bytes(shape, parallelism, work)
    vocabulary = padded_vocab_size(shape.vocab_size, parallelism.tensor_parallel_size)
    width = vocabulary / parallelism.tensor_parallel_size
    if work.cross_entropy == "fused" or work.element_bytes == 4:
        return norm, work.tokens * width * work.element_bytes
    per_element = 4 + work.element_bytes
    return norm, work.tokens * width * per_element


def head_gradient_bytes(
    shape: ModelShape, parallelism: Parallelism, work: Workload, weight: float
) -> float:
    """Return bytes next to the logits when their gradient goes back through the output layer.

    They are the gradient of its input, and a tensor of the size of its weight of ``weight`` bytes
    an element: autograd wants one although the gradient was added to the main one.
    """
    inputs = work.tokens * work.element_bytes * shape.hidden_size
    return inputs + weight * head_elements(shape, parallelism)


def head_elements(shape: ModelShape, parallelism: Parallelism) -> float:
    """Return the weights of the output layer on one rank."""
    rows = padded_vocab_size(shape.vocab_size, parallelism.tensor_parallel_size)
    return rows * shape.hidden_size / parallelism.tensor_parallel_size


def backward_bytes(
    shape: ModelShape, parallelism: Parallelism, work: Workload, weight: float, *, moe: bool
) -> float:
    """Return bytes that the gradients of a layer's MLP hold at the most, less what they release.

    Its last product, activation and first product: each needs the gradients of its output and
    input, and products that of their weight (see above), of all experts of a rank at once. Before
    experts, a token's gradient is copied to each of them.
    """
    wide, hidden = 2 if shape.gated_mlp else 1, shape.hidden_size
    size, copied = shape.ffn_hidden_size / parallelism.tensor_parallel_size, 0.0
    elements = size * hidden
    if moe and shape.moe is not None:
        ranks = parallelism.expert_parallel_size * parallelism.expert_tensor_parallel_size
        elements = shape.moe.num_experts * shape.moe.ffn_hidden_size * hidden / ranks
        share = shape.moe.top_k * replicated_share(parallelism)
        size, copied = share * shape.moe.ffn_hidden_size, share * hidden
    each = work.tokens * work.element_bytes
    return max(
        each * (hidden + copied + size) + weight * elements,
        each * (hidden + wide * size),
        each * (hidden + (copied or hidden) - size) + weight * wide * elements,
    )


def further_token_bytes(shape: ModelShape, parallelism: Parallelism, work: Workload) -> float:
    """Return bytes that a multi-token prediction module keeps in addition to its layer.

    The embedding of the next token, it and the hidden state joined (2 h), and the last norm's input
    and output (megatron.core.transformer.multi_token_prediction).
    """
    return 5 * checkpoint_bytes(shape, parallelism, work)


def replicated_share(parallelism: Parallelism) -> float:
    """Return the share of a token's hidden state that one tensor-parallel rank keeps."""
    return 1 / parallelism.tensor_parallel_size if parallelism.sequence_parallel else 1.0


def _attention(shape: ModelShape, parallelism: Parallelism) -> float:
    """Elements a token of queries, keys, values and output.

    Context-parallel ranks keep the keys and values of all (a ring of them would keep its own). A
    norm of queries and keys keeps its inputs: a copy of the queries, and of the keys a view of the
    product that holds all three. Without a rotary embedding, which makes new ones, the keys are
    such a view as well, next to a copy of the values and, in groups, of the queries.
    """
    tensor = parallelism.tensor_parallel_size
    if shape.mla is not None:
        return _latent_attention(shape, shape.mla, parallelism)
    queries = shape.num_attention_heads * shape.head_dim / tensor
    # More ranks than key-value groups repeat them: never less than one group a rank.
    keys = max(shape.num_query_groups / tensor, 1) * shape.head_dim
    before = 2 * queries + 2 * keys if shape.qk_norm else 0.0
    if shape.learned_positions:
        before += keys + (queries if shape.num_query_groups < shape.num_attention_heads else 0.0)
    return 2 * queries + 2 * keys * parallelism.context_parallel_size + before


def _latent_attention(shape: ModelShape, mla: MLAShape, parallelism: Parallelism) -> float:
    heads = shape.num_attention_heads / parallelism.tensor_parallel_size
    width = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    every = parallelism.context_parallel_size
    core = heads * (width + mla.v_head_dim) * (1 + every)
    # The latents before and after their norms.
    latents = 2 * mla.q_lora_rank + 2 * mla.kv_lora_rank + mla.qk_rope_head_dim
    return core + latents * replicated_share(parallelism)


def _experts(shape: ModelShape, moe: MoEShape, parallelism: Parallelism) -> float:
    """Elements a token of the router, the routed experts (evenly loaded) and the shared ones.

    A token's weight is applied before an expert's last product, whose output nothing needs then.
    """
    inner = parallelism.expert_tensor_parallel_size
    factor = 3 if shape.gated_mlp else 2
    # A routed token is copied to each of its experts, and gathered over expert-tensor ranks.
    routed = shape.hidden_size * inner + factor * moe.ffn_hidden_size
    routed = moe.top_k * routed * replicated_share(parallelism)
    shared = factor * moe.shared_ffn_hidden_size / parallelism.tensor_parallel_size
    router = 2 * moe.num_experts * replicated_share(parallelism)
    return routed + shared + router
