"""Memory that a training run needs on each rank, predicted only from shapes.

Model states follow Megatron's mixed precision (docs/source/api-guide/dist_optimizer.md).
Activations are counted tensor by tensor (``memory.activations``) and kept for as many microbatches
as the schedule has in flight (arXiv 2205.05198, section 4.2.3). The fullest moment is the output
layer's backward pass, or that of the layer whose gradients hold most. Left out: the context of the
driver, buffers of collectives, temporary buffers of kernels, fragmentation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from scalebook.errors import ConfigError
from scalebook.facts.catalog.types import ModelShape
from scalebook.facts.memory import activations
from scalebook.facts.memory.activations import AttentionKernel, CrossEntropy, Workload
from scalebook.facts.memory.parameters import Count, is_moe, layer_count, stage_count, stage_layers
from scalebook.parallelism import Parallelism, Recomputed
from scalebook.untrusted import html_table

OptimizerKernel = Literal["fused", "unfused"]

__all__ = ["MemoryEstimate", "StageMemory", "estimate"]

GIB = 2**30


@dataclass(frozen=True, slots=True)
class PrecisionBytes:
    """Bytes a parameter of each model state, and of one activation."""

    weights: float
    gradients: float
    optimizer: float
    activation: int
    copies: float = 0.0  # of each linear weight: row-wise and column-wise, kept over microbatches


# bf16 and the formats below it accumulate gradients in fp32; fp16 keeps its gradients in 16 bit and
# makes the fp32 ones for the optimizer. FP8 and FP4 keep bf16 weights. Activations of FP4 count as
# bf16: an upper bound, because linear layers keep their inputs quantised.
PRECISIONS = {
    "fp32": PrecisionBytes(4, 4, 8, 4),
    "fp16": PrecisionBytes(2, 2, 16, 2),
    "bf16": PrecisionBytes(2, 4, 12, 2),
    "fp8": PrecisionBytes(2, 4, 12, 2, copies=2.0),
    "fp4": PrecisionBytes(2, 4, 12, 2, copies=1.125),  # 4 bit and one 8-bit scale for 16 values
}


@dataclass(frozen=True, slots=True)
class StageMemory:
    """GiB on one rank of one pipeline stage, by part."""

    stage: int
    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    gathered: float  # whole layers that FSDP holds for a moment
    backward: float = 0.0  # what gradients hold for a moment beyond the room of the logits
    update: float = 0.0  # what the optimizer's step needs beyond the room that activations leave

    @property
    def total(self) -> float:
        states = self.parameters + self.gradients + self.optimizer
        passing = self.logits + self.gathered + self.backward + self.update
        return states + self.activations + passing


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """GiB per rank on every pipeline stage; the most loaded one decides whether a run fits."""

    stages: tuple[StageMemory, ...]
    host_gib: float = 0.0  # page-locked memory of the host that a rank offloads to

    @property
    def worst(self) -> StageMemory:
        """The most loaded stage, the first of equals."""
        return max(self.stages, key=lambda stage: stage.total)

    @property
    def total_gib(self) -> float:
        """GiB on a rank of the most loaded stage."""
        return self.worst.total

    def parts_gib(self) -> dict[str, float]:
        """Return the most loaded stage's GiB by part, and their ``total``."""
        parts = asdict(self.worst)
        del parts["stage"]
        return parts | {"total": self.worst.total}

    def _repr_html_(self) -> str:
        parts = self.parts_gib().items()
        return html_table({name: f"{gib:,.2f} GiB" for name, gib in parts})


@dataclass(frozen=True, slots=True)
class _Layer:
    """What a layer keeps for one microbatch, and needs while its gradients are made (bytes)."""

    kept: float
    working: float
    backward: float


@dataclass(frozen=True, slots=True)
class _Job:
    shape: ModelShape
    parallelism: Parallelism
    num_microbatches: int
    numbers: PrecisionBytes
    recompute: Recomputed
    work: Workload
    offload_layers: int
    mtp_layers: int
    passing: float  # bytes per parameter that the optimizer's step holds for a moment
    layers: dict[tuple[bool, bool, bool], _Layer] = field(  # of all stages, by kind
        default_factory=dict[tuple[bool, bool, bool], _Layer], compare=False
    )


def estimate(
    shape: ModelShape,
    parallelism: Parallelism,
    *,
    micro_batch_size: int,
    num_microbatches: int,
    sequence_length: int,
    precision: str = "bf16",
    recompute: str | Recomputed = "none",
    gradient_precision: str = "fp32",
    offload_layers: int = 0,
    mtp_layers: int = 0,
    fp8_primary_weights: bool = False,
    fp8_recipe: str = "delayed",
    attention: AttentionKernel = "fused",
    cross_entropy: CrossEntropy = "unfused",
    optimizer: OptimizerKernel = "fused",
) -> MemoryEstimate:
    """Return the memory (GiB) that each pipeline stage needs on one rank.

    Raises:
        ConfigError: the model has layers of several kinds.
    """
    if shape.hybrid is not None:
        kinds = shape.hybrid.words
        raise ConfigError(f"The memory of {shape.name} is not predicted: it has {kinds}.")
    if isinstance(recompute, str):
        recompute = Recomputed(recompute, modules=("core_attn",) * (recompute == "selective"))
    # FSDP keeps fp32 gradients whatever it adds up.
    halved = gradient_precision == "bf16" and parallelism.data_parallel_sharding != "full"
    numbers, passing = _of_a_parameter(precision, optimizer, halved)
    if fp8_primary_weights:  # both copies, and no weights in 16 bit
        numbers = replace(numbers, copies=0.0)
    tokens = sequence_length * micro_batch_size / parallelism.context_parallel_size
    recipe = fp8_recipe if precision == "fp8" else None
    work = Workload(tokens, sequence_length, numbers.activation, attention, cross_entropy, recipe)
    given = shape, parallelism, num_microbatches, numbers, recompute, work
    return _of_job(_Job(*given, offload_layers, mtp_layers, passing))


@lru_cache(maxsize=8192)  # a report asks for those of each repeat, and for changed ones, again
def _of_job(job: _Job) -> MemoryEstimate:
    stages = range(job.parallelism.pipeline_parallel_size)
    each = activations.gate_and_up_bytes(job.shape, job.parallelism, job.work)
    host = job.offload_layers * (1 << (int(each) - 1).bit_length())  # torch locks powers of two
    return MemoryEstimate(tuple(_stage(job, stage) for stage in stages), host / GIB)


def kernels(is_off: Callable[[str], bool], platform: str | None) -> dict[str, Any]:
    """Return the kernels of an estimate as a platform and its ``fused_...`` settings have them."""
    plain = "cross_entropy" if platform == "cpu" else None
    return {
        part: "unfused" if part == plain or is_off(f"fused_{part}") else "fused"
        for part in ("attention", "optimizer", "cross_entropy")
    }


def _of_a_parameter(
    precision: str, optimizer: OptimizerKernel, halved: bool
) -> tuple[PrecisionBytes, float]:
    """Return the bytes of a parameter, and what the optimizer's step holds for a moment more.

    That step starts when activations are gone. Before it, gradients kept in bf16 (``halved``) are
    copied to fp32; an unfused optimizer holds one more fp32 value per parameter. Measured on one
    H100 with 1.49 and 2.79 billion parameters: 20 and 22 bytes per parameter, within 1 %.
    """
    numbers = PRECISIONS[precision]
    passing = 4.0 if optimizer == "unfused" else 0.0
    if halved:
        passing += 4.0 if numbers.gradients == 4 and precision != "fp32" else 0.0
        numbers = replace(numbers, gradients=min(numbers.gradients, 2))
    return numbers, passing


def chunks_in_flight(parallelism: Parallelism, stage: int, num_microbatches: int) -> int:
    """Return how many chunk forward passes a stage holds at its fullest moment.

    1F1B: p - stage microbatches. Interleaved: 2 (p - stage - 1) + (v - 1) p + 1 chunks
    (megatron.core.pipeline_parallel.schedules), never more than there are.
    """
    stages = parallelism.pipeline_parallel_size
    chunks = parallelism.virtual_pipeline_parallel_size
    if chunks == 1:
        return min(stages - stage, num_microbatches)
    warm_up = 2 * (stages - stage - 1) + (chunks - 1) * stages
    return min(warm_up + 1, chunks * num_microbatches)


def _stage(job: _Job, stage: int) -> StageMemory:
    count = stage_count(job.shape, job.parallelism, stage, mtp_layers=job.mtp_layers)
    numbers = job.numbers
    sharding = job.parallelism.data_parallel_sharding
    everything = sharding == "full"
    if everything:  # torch's keeps the optimizer's fp32 weights, and casts what it gathers
        numbers = replace(numbers, weights=4.0, optimizer=8.0)
    kept, logits = _activation_bytes(job, stage)
    gathered = _gathered_bytes(job, stage, count.total, logits > 0) if everything else 0.0
    backward = _backward_bytes(job, stage, logits, gathered)
    copies = count.linear * numbers.copies
    shared = _shared_out(count, job.parallelism, shared=everything)
    own = _shared_out(count, job.parallelism, shared=sharding != "none")
    parts = {
        "parameters": numbers.weights * shared + copies,
        "gradients": numbers.gradients * shared,
        "optimizer": numbers.optimizer * own,
        "activations": kept,
        "logits": logits,
        "gathered": gathered,
        "backward": backward,
        "update": max(0.0, job.passing * own - kept - logits - gathered - backward),
    }
    return StageMemory(stage, **{name: size / GIB for name, size in parts.items()})


def _shared_out(count: Count, parallelism: Parallelism, *, shared: bool) -> float:
    """Parameters of one rank, divided over the ranks that share them out."""
    if not shared:
        return count.total
    replicas = max(parallelism.data_parallel_size, 1) * parallelism.context_parallel_size
    stage_ranks = replicas * parallelism.tensor_parallel_size
    holders = parallelism.expert_parallel_size * parallelism.expert_tensor_parallel_size
    return count.dense / replicas + count.expert / max(stage_ranks / holders, 1)


def _largest_layer(job: _Job, stage: int) -> float:
    """Return the parameters of the stage's largest layer."""
    chunks = stage_layers(job.shape, job.parallelism, stage)
    kinds = {is_moe(job.shape, layer) for chunk in chunks for layer in chunk}
    return max(
        (layer_count(job.shape, job.parallelism, moe=kind).total for kind in kinds), default=0.0
    )


def _gathered_bytes(job: _Job, stage: int, every: float, head: bool) -> float:
    """FSDP: the output layer and a prefetched one, of a stage without a ``head`` two layers.

    If gathered once per step, all ``every`` weights of the stage.
    """
    two = _largest_layer(job, stage)
    two += activations.head_elements(job.shape, job.parallelism) if head else two
    return job.numbers.weights * (every if job.parallelism.gathers_once else two)


def _activation_bytes(job: _Job, stage: int) -> tuple[float, float]:
    """Bytes of kept activations and of logits at the stage's fullest moment."""
    shape, parallelism, work = job.shape, job.parallelism, job.work
    chunks = stage_layers(shape, parallelism, stage)
    placed = [list(enumerate(chunk)) for chunk in chunks]
    sizes = [sum(_layer(job, layer, at).kept for at, layer in chunk) for chunk in placed]
    kept = _most_in_flight(job, stage, sizes)
    # One of them is on its way back while the layer above is computed.
    away = max(min(job.offload_layers, sum(map(len, chunks))) - 1, 0)
    kept -= away * activations.gate_and_up_bytes(shape, parallelism, work)
    if stage != parallelism.pipeline_parallel_size - 1:
        return kept, 0.0
    norm, logits = activations.head_bytes(shape, parallelism, work)
    # Each module for a further token has logits of its own, kept beside the others.
    module = _layer(job, shape.num_layers - 1).kept
    module += activations.further_token_bytes(shape, parallelism, work)
    return kept + norm + job.mtp_layers * module, (1 + job.mtp_layers) * logits


def _most_in_flight(job: _Job, stage: int, sizes: Sequence[float]) -> float:
    """Bytes of the chunks whose activations a stage keeps at its fullest, of the given sizes.

    Each chunk takes p microbatches in turn; after the warm-up a chunk's backward pass, the last
    chunk first, follows each forward pass.
    """
    stages = job.parallelism.pipeline_parallel_size
    before = chunks_in_flight(job.parallelism, stage, job.num_microbatches) - 1
    held, most, count = 0.0, 0.0, len(sizes)
    for k in range(count * min(job.num_microbatches, 4 * stages)):  # beyond it they repeat
        held += sizes[k // stages % count]
        most = max(most, held)
        if k >= before:
            held -= sizes[-1 - (k - before) // stages % count]
    return most


def _backward_bytes(job: _Job, stage: int, logits: float, gathered: float) -> float:
    """Bytes that gradients hold beyond the logits, which are gone when those of layers come.

    So are the activations of the layers above one. FSDP has gathered two layers then. It reduces a
    gradient from a copy in fp32: 8 bytes per weight with the gathered weight and the gradient in
    16 bit, or with the sum over micro batches in fp32 where weights are gathered once.
    """
    given, weight = (job.shape, job.parallelism, job.work), job.numbers.weights
    head = activations.head_gradient_bytes(*given, weight) if logits else 0.0
    full, once = job.parallelism.data_parallel_sharding == "full", job.parallelism.gathers_once
    freed = 0.0 if once or not full else gathered
    if full and logits:
        reduced = 8 * activations.head_elements(job.shape, job.parallelism)
        head = max(head, reduced - logits - freed)
    largest = _largest_layer(job, stage) if full else 0.0
    room = logits + freed - (2 * weight * largest if freed else 0.0)
    reduced = largest * (8 if once else 8 - weight)  # the weight is one of the two layers
    most = 0.0
    for chunk in stage_layers(job.shape, job.parallelism, stage):
        released = 0.0
        for at, layer in reversed(list(enumerate(chunk))):
            one = _layer(job, layer, at)
            most = max(most, one.working + (one.backward - released))
            released += one.kept
            most = max(most, reduced - released)
    return max(head, most - room)


def _recomputed(job: _Job, at: int) -> bool:
    """Whether the layer at a place of its chunk is recomputed as a whole."""
    layers = job.recompute.layers
    return job.recompute.mode == "full" and (not layers or at < layers)


def _saved(job: _Job, moe: bool) -> tuple[float, float]:
    """What recomputing parts of a layer saves: of its attention, of its MLP."""
    given = job.shape, job.parallelism, job.work
    if job.recompute.mode == "pointwise":
        return 0.0, activations.pointwise_bytes(*given, moe=moe)
    names = set(job.recompute.modules)
    if "moe" in names:  # which holds the other two
        names -= {"moe_act", "shared_experts"}
    parts = [activations.module_bytes(*given, name, moe=moe) for name in names]
    return sum(part[0] for part in parts), sum(part[1] for part in parts)


def _layer(job: _Job, layer: int, at: int = 0) -> _Layer:
    """What a layer at a place of its chunk takes under the recomputation mode."""
    key = is_moe(job.shape, layer), _recomputed(job, at), at % job.recompute.group == 0
    if key not in job.layers:
        job.layers[key] = _layer_of(job, *key)
    return job.layers[key]


def _layer_of(job: _Job, moe: bool, recomputed: bool, first: bool) -> _Layer:
    """What a kind of layer takes. The layers of a group that is recomputed keep one input.

    Recomputed parts come back while gradients are made, of parts of a layer the greater: those of
    the MLP are gone when those of the attention come.
    """
    given = job.shape, job.parallelism, job.work
    whole = activations.layer_bytes(*given, moe=moe)
    backward = activations.backward_bytes(*given, job.numbers.weights, moe=moe)
    if recomputed:
        kept = activations.checkpoint_bytes(*given)
        return _Layer(first * kept, job.recompute.group * whole - kept, backward)
    saved = _saved(job, moe)
    return _Layer(whole - sum(saved), max(saved), backward)
