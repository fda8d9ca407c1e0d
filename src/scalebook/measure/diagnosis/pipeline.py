"""Rules on uneven work: the pipeline's bubble and stages, experts, and what a step waits for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scalebook.facts.communication import pipeline_bubble
from scalebook.facts.flops import DEFAULT_CONVENTION, flop_parts, flops_per_token
from scalebook.facts.flops.parameters import dense_layers, layer_parameters
from scalebook.measure.diagnosis.evidence import Evidence, Finding, finding, percent
from scalebook.parallelism import Parallelism, balanced_last_stage, stage_shares, stages_wait

SMALLEST = 0.03  # of the step


def bubble_of(found: Evidence) -> float | None:
    """Return the idle fraction of the schedule in theory; 0 without pipeline parallelism."""
    split, batches = found.parallelism, found.num_microbatches
    if split is None or (batches is None and split.pipeline_parallel_size > 1):
        return None
    chunks = split.virtual_pipeline_parallel_size
    return pipeline_bubble(split.pipeline_parallel_size, batches or 1, chunks)


def head_fraction(found: Evidence) -> float | None:
    """Return the output layer's share of the model's FLOPs."""
    if found.shape is None or found.document_length is None:
        return None
    parts = flop_parts(found.shape, found.document_length, DEFAULT_CONVENTION)
    return parts.logits / parts.total


def imbalance_of(found: Evidence) -> float | None:
    """Return the fraction of the step in which stages wait for the last one's output layer.

    The last stage has the output layer on top of its layers, and the slowest stage sets the pace:
    1 - mean over longest. Where every stage has as many layers, that is 1 - (1 / p) / ((1 - h) / p
    + h) with h the layer's share of the FLOPs. Embeddings cost no matrix product. 0 without
    pipeline parallelism.
    """
    split, head = found.parallelism, head_fraction(found)
    if split is None:
        return None
    stages = split.pipeline_parallel_size
    if stages == 1:
        return 0.0
    if head is None or found.shape is None:
        return None
    return stages_wait(stages, split.last_pipeline_stage_layers, found.shape.num_layers, head)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Shares of the step: waits of one kind are counted once.

    A stage that waits for another runs a receiving kernel or nothing at all, so the bubble shows
    as communication or as idle time of a profile. What theory explains is taken from these first.
    """

    bubble: float
    imbalance: float
    stages: float  # beyond both, between stages
    idle: float | None  # beyond both, nothing ran


def waiting_of(found: Evidence) -> Waiting | None:
    """Return what waiting consists of; None where the schedule is not known."""
    bubble, imbalance = bubble_of(found), imbalance_of(found)
    if bubble is None:
        return None
    explained = bubble, (1 - bubble) * (imbalance or 0.0)
    split = found.split
    if split is None:
        return Waiting(*explained, stages=0.0, idle=None)
    if split.source == "marks":
        # The marks are means over ranks, as theory is; idle time hides in other parts.
        rest = max((split.between_stages or 0.0) - sum(explained), 0.0)
        return Waiting(*explained, stages=rest, idle=None)
    between, idle = split.between_stages or 0.0, split.idle or 0.0
    # A profile is of one rank, which may wait less than the mean: never explain more than it saw.
    bubble_seen = min(explained[0], between + idle)
    imbalance_seen = min(explained[1], between + idle - bubble_seen)
    left = bubble_seen + imbalance_seen
    from_between = min(between, left)
    # Or more: rank 0 is in the first stage, which waits for the last one's output layer.
    first = (1 - bubble) * _first_stage_waits(found)
    beyond = max(between - from_between - max(first - imbalance_seen, 0.0), 0.0)
    return Waiting(bubble_seen, imbalance_seen, beyond, max(idle - (left - from_between), 0.0))


def _first_stage_waits(found: Evidence) -> float:
    """Return the fraction of a schedule without bubble in which the first stage waits."""
    split, shape, head = found.parallelism, found.shape, head_fraction(found)
    if split is None or shape is None or head is None or split.pipeline_parallel_size == 1:
        return 0.0
    stages, last = split.pipeline_parallel_size, split.last_pipeline_stage_layers
    shares = stage_shares(stages, last, shape.num_layers, head)
    return 1 - shares[0] / max(shares)


def pipeline_bubble_rule(found: Evidence) -> Iterator[Finding]:
    """Yield the bubble of the schedule."""
    bubble, split, batches = bubble_of(found), found.parallelism, found.num_microbatches
    if not bubble or bubble < SMALLEST or split is None or batches is None:
        return
    stages, chunks = split.pipeline_parallel_size, split.virtual_pipeline_parallel_size
    doubled = pipeline_bubble(stages, 2 * batches, chunks)
    advice = [
        f"Twice the micro batches per step ({2 * batches}, by a larger global or a smaller micro "
        f"batch) leave {percent(doubled)}."
    ]
    layers, last = found.shape.num_layers if found.shape else None, split.last_pipeline_stage_layers
    smallest = min(last, (layers - last) // (stages - 1)) if layers and last else 2 * chunks
    halved = layers and (last or layers % (stages * chunks * 2) == 0) and smallest >= 2 * chunks
    if halved and batches % stages == 0:
        later = pipeline_bubble(stages, batches, 2 * chunks)
        advice.append(
            f"virtual_pipeline_parallel_size={2 * chunks} (interleaved schedule) leaves "
            f"{percent(later)}, for more sends between stages."
        )
    advice.append("Fewer stages have a smaller bubble, where the model then fits.")
    yield finding(
        f"{stages} pipeline stages with {batches} micro batches per step"
        f"{f' and {chunks} chunks per stage' if chunks > 1 else ''} are idle for "
        f"{percent(bubble)} of the step in theory, (p - 1) / (m v + p - 1).",
        *advice,
        computed=bubble,
        evidence={"pipeline_parallel_size": stages, "num_microbatches": batches},
    )


def _uneven_advice(split: Parallelism, layers: int, head: float) -> Iterator[str]:
    """Yield the size of the last stage that balances the pipeline best, 0 being the even split."""
    stages, now = split.pipeline_parallel_size, split.last_pipeline_stage_layers
    best = balanced_last_stage(stages, split.virtual_pipeline_parallel_size, layers, head)
    if best not in (0, now):
        waits = stages_wait(stages, best, layers, head)
        yield (
            f"last_pipeline_stage_layers={best}: the stages then wait for {percent(waits)} "
            "of the schedule."
        )


def pipeline_imbalance_rule(found: Evidence) -> Iterator[Finding]:
    """Yield that the last stage has the output layer on top of its layers."""
    waits, head, split = imbalance_of(found), head_fraction(found), found.parallelism
    if not waits or waits < SMALLEST or head is None or split is None or found.shape is None:
        return
    stages, layers = split.pipeline_parallel_size, found.shape.num_layers
    in_layers = head / ((1 - head) / layers)
    own = split.last_pipeline_stage_layers or layers // stages
    bubble = bubble_of(found) or 0.0
    yield finding(
        f"The last of {stages} stages has the output layer (a vocabulary of "
        f"{found.shape.vocab_size:,}) on top of its {_layers(own)}: as much work as "
        f"{_layers(in_layers)} more, for which the other stages wait.",
        "Fewer stages: the output layer is then a smaller part of the last one.",
        *_uneven_advice(split, layers, head),
        computed=waits * (1 - bubble),
        evidence={"output_layer_flops_fraction": head, "pipeline_parallel_size": stages},
    )


def _layers(count: float) -> str:
    """Return a number of layers in words, fractions in two digits."""
    shown = f"{count:.2g}" if isinstance(count, float) else f"{count}"
    return f"{shown} layer{'s'[: shown != '1']}"


def vocabulary_rule(found: Evidence) -> Iterator[Finding]:
    """Yield that the output layer is a large part of a small model."""
    head, shape = head_fraction(found), found.shape
    if head is None or shape is None or head < 0.15:
        return
    fused = found.record.is_on("fused_cross_entropy") is True
    yield finding(
        f"The output layer over {shape.vocab_size:,} tokens is {percent(head)} of the model's "
        f"FLOPs with {_layers(shape.num_layers)}; its softmax is memory traffic on top.",
        "Do not carry the MFU of a model with few layers over to the whole one.",
        *("A fused cross entropy saves passes over the logits.",) * (not fused),
        evidence={"output_layer_flops_fraction": head},
    )


UNEVEN = 1.1  # tokens of the busiest ranks' experts over the mean


def expert_load_rule(found: Evidence) -> Iterator[Finding]:
    """Yield that some ranks' experts get more tokens than others', which wait for them."""
    load = found.metrics.expert_load
    if load is None or load < UNEVEN:
        return
    yield finding(
        f"The busiest ranks' experts get {load:.3g} times the tokens of the mean rank: the "
        "others wait for them.",
        "Measure after the router has learned to spread tokens: seeded synthetic ones are few.",
        "Try expert_balance='forced' to see the hardware with even experts.",
        computed=_waiting(found, load),
        evidence={"expert_load": load},
    )


def _waiting(found: Evidence, load: float) -> float | None:
    """Return the part of a step that waits, or more: as if products ran at the peak."""
    shape, length, mfu = found.shape, found.document_length, found.metrics.mfu
    if shape is None or shape.moe is None or not length or mfu is None:
        return None
    layers = shape.num_layers - dense_layers(shape)
    met = layers * layer_parameters(shape, dense=False).active_experts
    experts = 6 * met / flops_per_token(shape, length)  # forward and backward
    return mfu * experts * (load - 1)


def forced_balance_rule(found: Evidence) -> Iterator[Finding]:
    """Yield that tokens went to experts by chance, as no training does."""
    if found.record.setting("expert_balance") != "forced":
        return
    yield finding(
        "Tokens went to experts at random: the rate is that of an even router.",
        "Do not compare it with runs whose router learns.",
        evidence={"expert_balance": "forced"},
    )
