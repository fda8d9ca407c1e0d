"""Bytes that one rank sends in a training step, by kind of parallelism, and the pipeline's bubble.

Ring collectives: an all-reduce of n bytes over r ranks sends 2 (r - 1) / r n from each, an
all-gather or a reduce-scatter (r - 1) / r n. Nothing is said about time: what is hidden behind
computation and what the links can do is measured, not predicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from scalebook.facts.catalog.types import ModelShape
from scalebook.facts.memory import PRECISIONS
from scalebook.facts.memory.parameters import is_moe, stage_count, stage_layers
from scalebook.parallelism import Parallelism, Recomputed

NOTHING_AGAIN = Recomputed()


def pipeline_bubble(stages: int, num_microbatches: int, chunks: int = 1) -> float:
    """Return the idle fraction of a pipelined step (arXiv 2104.04473, section 2.2).

    Idle over all time, (p - 1) / (m v + p - 1). Stages of equal length, communication left out.
    """
    return (stages - 1) / (num_microbatches * chunks + stages - 1)


def tensor_bytes(
    shape: ModelShape,
    ranks: int,
    tokens: float,
    *,
    element_bytes: int = 2,
    sequence_parallel: bool = False,
    again: float = 0.0,
    moe: bool = False,
) -> float:
    """Return bytes that a rank sends in one layer for one microbatch with ``tokens`` tokens.

    Two all-reduces forward and two backward (arXiv 1909.08053), 4 x 2 (t - 1) / t. Sequence
    parallelism moves the same as gathers and scatters, and gathers the two inputs of the linear
    layers once more in the backward pass (arXiv 2205.05198, section 4.2.2): 10 where it was 8.
    A forward pass that runs ``again`` (1: all of it) makes 12 of 8 (arXiv 1910.02054, section 8).
    Half of them are the MLP's, which routed experts (``moe``) do not make: see ``expert_bytes``.
    """
    passes = (10 if sequence_parallel else 8) + 4 * again
    if moe and shape.moe is not None and not shape.moe.shared_ffn_hidden_size:
        passes /= 2
    return passes * (ranks - 1) / ranks * tokens * shape.hidden_size * element_bytes


def pipeline_bytes(
    shape: ModelShape, tokens: float, *, tensor: int = 1, element_bytes: int = 2
) -> float:
    """Return bytes that cross one stage boundary in one direction for one microbatch.

    ``tensor`` above 1 where each tensor-parallel rank sends only its share (sequence parallelism).
    """
    return tokens * shape.hidden_size * element_bytes / tensor


def context_ring_bytes(
    shape: ModelShape, ranks: int, tokens: float, *, element_bytes: int = 2, again: float = 0.0
) -> float:
    """Return bytes that a rank sends in one layer: keys and values around the ring, three times.

    Once forward, once backward, and their gradients; 3 (c - 1) x 2 b (s / c) g d; once more where
    the forward pass of the attention runs ``again``. ``tokens`` are those of the whole sequence.
    """
    width = shape.num_query_groups * shape.head_dim
    return (3 + again) * (ranks - 1) * 2 * tokens / ranks * width * element_bytes


def expert_bytes(
    shape: ModelShape,
    ranks: int,
    tokens: float,
    *,
    tensor: int = 1,
    element_bytes: int = 2,
    again: float = 0.0,
) -> float:
    """Return bytes that a rank sends in one MoE layer: dispatch and combine, forward and backward.

    4 (e - 1) / e s b h k with evenly loaded experts, 6 where the forward pass runs ``again``; a
    token that goes to two experts of one rank is sent twice. Where ``tensor`` ranks share each
    expert, the rows of a rank are then gathered by the others and the parts of their outputs added
    up: 4 (t - 1) s b h k (megatron.core.transformer.moe.token_dispatcher). ``tokens`` are those of
    one rank. 0 without experts.
    """
    if shape.moe is None:
        return 0.0
    rows = tokens * shape.moe.top_k * shape.hidden_size * element_bytes
    return (4 + 2 * again) * ((ranks - 1) / ranks + tensor - 1) * rows


@dataclass(frozen=True, slots=True)
class CommunicationEstimate:
    """Bytes that a rank of the busiest pipeline stage sends in one optimizer step, by kind."""

    tensor: float
    pipeline: float
    context: float
    expert: float
    data: float
    bubble: float  # idle fraction of the step, 0 to 1

    @property
    def total(self) -> float:
        return self.tensor + self.pipeline + self.context + self.expert + self.data


def estimate(
    shape: ModelShape,
    parallelism: Parallelism,
    *,
    micro_batch_size: int,
    num_microbatches: int,
    sequence_length: int,
    precision: str = "bf16",
    gradient_precision: str = "fp32",
    recompute: Recomputed = NOTHING_AGAIN,
) -> CommunicationEstimate:
    """Return what one rank sends in one optimizer step, on the stage that sends most.

    Context parallelism as a ring. The vocabulary's collectives, norms, the gradient of tied
    embeddings and control messages are left out: they are small beside these.
    """
    tokens = micro_batch_size * sequence_length * num_microbatches
    gradient = gradient_bytes(precision, gradient_precision), num_microbatches
    stages = range(parallelism.pipeline_parallel_size)
    given = (tokens, precision, recompute), gradient
    found = (_stage(shape, parallelism, stage, *given) for stage in stages)
    return max(found, key=lambda one: one.total)


def _stage(
    shape: ModelShape,
    parallelism: Parallelism,
    stage: int,
    work: tuple[int, str, Recomputed],
    data: tuple[int, int],
) -> CommunicationEstimate:
    """Bytes of one stage for ``work``'s tokens, those of a step.

    ``data``: bytes of a gradient, and microbatches.
    """
    tokens, precision, recompute = work
    size = exchanged_bytes(precision)
    tensor, context = parallelism.tensor_parallel_size, parallelism.context_parallel_size
    own = tokens / context
    chunks = stage_layers(shape, parallelism, stage)
    layers = [layer for chunk in chunks for layer in chunk]
    moe = sum(is_moe(shape, layer) for layer in layers)
    spread = parallelism.sequence_parallel
    of = parallelism.pipeline_parallel_size, parallelism.virtual_pipeline_parallel_size
    again = partial(recompute.again, *of, shape.num_layers)
    sent = partial(tensor_bytes, shape, tensor, own, element_bytes=size, sequence_parallel=spread)
    boundary = pipeline_bytes(shape, own, tensor=tensor if spread else 1, element_bytes=size)
    routed = own / (tensor if spread else 1)
    return CommunicationEstimate(
        tensor=sum(sent(again=again(), moe=is_moe(shape, layer)) for layer in layers),
        pipeline=_crossings(parallelism, stage) * boundary,
        # Heads are split over tensor-parallel ranks, so each ring carries its share.
        context=len(layers)
        * context_ring_bytes(shape, context, tokens, element_bytes=size, again=again("core_attn"))
        / tensor,
        expert=moe
        * expert_bytes(
            shape,
            parallelism.expert_parallel_size,
            routed,
            tensor=parallelism.expert_tensor_parallel_size,
            element_bytes=size,
            again=again("moe"),
        ),
        data=_sent_bytes(parallelism, size, *data) * _sent(shape, parallelism, stage),
        bubble=pipeline_bubble(of[0], data[1], of[1]),
    )


def _crossings(parallelism: Parallelism, stage: int) -> int:
    """Sends of one rank for one microbatch: activations forward, gradients backward."""
    stages = parallelism.pipeline_parallel_size
    chunks = parallelism.virtual_pipeline_parallel_size
    if stages == 1:
        return 0
    forward = chunks - (stage == stages - 1)  # the last chunk of the last stage sends nothing on
    backward = chunks - (stage == 0)
    return forward + backward


def exchanged_bytes(precision: str) -> int:
    """Return the bytes of an activation or weight that ranks exchange; fp8 layers exchange bf16."""
    return 4 if precision == "fp32" else 2


def gradient_bytes(precision: str, gradient_precision: str) -> int:
    """Return the bytes of a gradient as ranks add it up; fp16 trainers do so in 16 bit."""
    if gradient_precision == "bf16" and precision != "fp32":
        return 2
    return int(PRECISIONS.get(precision, PRECISIONS["bf16"]).gradients)


def _sent_bytes(parallelism: Parallelism, weights: int, gradients: int, times: int) -> int:
    """Bytes that a step sends of a parameter, given those of its weight and gradient."""
    gathers = 1 if parallelism.gathers_once else 2 * times
    return {
        "none": 2 * gradients,
        "optimizer": gradients + weights,
        "full": times * gradients + gathers * weights,
    }[parallelism.data_parallel_sharding]


def _sent(shape: ModelShape, parallelism: Parallelism, stage: int) -> float:
    """Parameters of a rank that data parallelism sends, each once."""
    replicas = parallelism.data_parallel_size * parallelism.context_parallel_size
    holders = parallelism.expert_parallel_size * parallelism.expert_tensor_parallel_size
    copies = max(replicas * parallelism.tensor_parallel_size / holders, 1)
    count = stage_count(shape, parallelism, stage)
    dense = (replicas - 1) / replicas * count.dense
    return dense + (copies - 1) / copies * count.expert
