"""The legal configurations that change least of an illegal one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from scalebook.config import RunConfig
from scalebook.facts.catalog.types import Accelerator, ModelShape
from scalebook.facts.legality.problem import Case, divisors
from scalebook.facts.legality.rules_model import tensor_sizes
from scalebook.parallelism import last_stage_sizes

Change = dict[str, Any]

# What a change costs: the size of the machine and what is trained weigh more than how it is split.
WEIGHTS = {
    "world_size": 3.0,
    "sequence_length": 2.0,
    "precision": 2.0,
    "global_batch_size": 1.0,
    "micro_batch_size": 1.0,
    "nodes": 0.25,
    "steps": 0.5,
    "sequence_parallel": 0.25,
    "virtual_pipeline_parallel_size": 0.5,
}
DEFAULT_WEIGHT = 1.0
IGNORED = ("strategy",)  # follows from the sizes


def search(case: Case, accepts: Callable[[RunConfig], bool]) -> list[RunConfig]:
    """Return the accepted configurations around an illegal one, the smallest change first."""
    config = case.config
    found: dict[str, RunConfig] = {}
    for world in _worlds(config):
        for change in _splits(config, case.shape, world):
            for candidate in _repaired(case, change):
                if accepts(candidate):
                    found.setdefault(candidate.config_hash(), candidate)
        if found and world == config.world_size:
            break  # another number of GPUs is a last resort
    kept = _without_needless(config, list(found.values()))
    return sorted(kept, key=lambda candidate: distance(config, candidate))


def distance(one: RunConfig, other: RunConfig) -> float:
    """Return how much two configurations differ: a weight a field, more for larger factors."""
    total = 0.0
    for name in RunConfig.model_fields:
        before, after = getattr(one, name), getattr(other, name)
        if before == after or name in IGNORED:
            continue
        factor = 1.0
        if isinstance(before, int) and not isinstance(before, bool) and before and after:
            factor = 1 + abs(math.log2(after / before)) / 2
        total += WEIGHTS.get(name, DEFAULT_WEIGHT) * factor
    return total


def changes(one: RunConfig, other: RunConfig) -> Change:
    """Return the fields of ``other`` that differ from ``one``."""
    return {
        name: getattr(other, name)
        for name in RunConfig.model_fields
        if getattr(one, name) != getattr(other, name) and name not in IGNORED
    }


def _without_needless(config: RunConfig, found: list[RunConfig]) -> list[RunConfig]:
    """Return those that change no more fields than another, which needs only some of them."""
    touched = [frozenset(changes(config, candidate)) for candidate in found]
    return [
        candidate
        for candidate, fields in zip(found, touched, strict=True)
        if not any(other < fields for other in touched)
    ]


def _worlds(config: RunConfig) -> list[int]:
    unit = config.parallelism.model_parallel_size
    below = config.world_size // unit * unit
    return list(dict.fromkeys(size for size in (config.world_size, below, below + unit) if size))


def _splits(config: RunConfig, shape: ModelShape, world: int) -> Iterator[Change]:
    """Yield every split of the world over tensor, pipeline and context that the shape allows."""
    context_now = config.context_parallel_size
    for tensor in tensor_sizes(shape):
        own = config.pipeline_parallel_size if config.last_pipeline_stage_layers else 1
        for stages in {*divisors(shape.num_layers), own}:
            if world % (tensor * stages):
                continue
            rest = world // (tensor * stages)
            for context in {1, context_now, max(context_now // 2, 1), 2 * context_now}:
                if rest % context == 0:
                    yield {
                        "world_size": world,
                        "tensor_parallel_size": tensor,
                        "pipeline_parallel_size": stages,
                        "context_parallel_size": context,
                    }


def _repaired(case: Case, change: Change) -> Iterator[RunConfig]:
    """Yield the configuration with a split and everything that has to follow it."""
    config, shape = case.config, case.shape
    base = config.model_copy(
        update=change
        | _machine(config, change["world_size"], case.gpus_per_node)
        | _pipeline(config, shape, change)
        | _experts(config, shape, change)
        | _format(config, case.accelerator)
        | ({"steps": config.warmup_steps + 10} if config.warmup_steps >= config.steps else {})
        | {"packed_documents": _closest(config.packed_documents, divisors(config.sequence_length))}
    )
    for length in _lengths(base, shape):
        spread = base.tensor_parallel_size > 1 and (shape.moe is not None or base.sequence_parallel)
        for wanted in {spread, spread and shape.moe is not None}:
            sized = base.model_copy(update={"sequence_length": length, "sequence_parallel": wanted})
            for batch in _batches(sized):
                yield _named(config, sized.model_copy(update=batch))


def _machine(config: RunConfig, world: int, gpus_per_node: int | None) -> Change:
    room = gpus_per_node or world
    if world % config.nodes == 0 and world <= config.nodes * room:
        return {}
    return {"nodes": next(n for n in divisors(world) if world <= n * room)}


def _pipeline(config: RunConfig, shape: ModelShape, change: Change) -> Change:
    stages = change["pipeline_parallel_size"]
    wanted = config.last_pipeline_stage_layers
    every = divisors(shape.num_layers // stages) if stages > 1 else [1]
    chunks = _closest(config.virtual_pipeline_parallel_size, every)
    own = wanted and stages > 1
    legal = last_stage_sizes(shape.num_layers, stages, chunks) if own else []
    return {
        "virtual_pipeline_parallel_size": chunks,
        "last_pipeline_stage_layers": min(legal, key=lambda size: abs(size - wanted), default=0),
    }


def _experts(config: RunConfig, shape: ModelShape, change: Change) -> Change:
    names = ("expert_parallel_size", "expert_tensor_parallel_size")
    if shape.moe is None:
        return dict.fromkeys(names, 1)
    ranks = change["world_size"] // change["pipeline_parallel_size"]
    tensor, width = change["tensor_parallel_size"], shape.moe.ffn_hidden_size
    inner_sizes = {config.expert_tensor_parallel_size, 1, tensor}
    pairs = [
        (size, inner)
        for inner in sorted(inner_sizes)
        for size in divisors(shape.moe.num_experts)
        if width % inner == 0 and ranks % (size * inner) == 0 and (size > 1 or inner == tensor)
    ]
    wanted = (config.expert_parallel_size, config.expert_tensor_parallel_size)

    def away(pair: tuple[int, int]) -> float:
        return sum(abs(math.log2(size / now)) for size, now in zip(pair, wanted, strict=True))

    nearest = min(pairs, key=away, default=(1, tensor))
    return dict(zip(names, nearest, strict=True))


def _format(config: RunConfig, accelerator: Accelerator | None) -> Change:
    if accelerator is None:
        lacking = config.platform == "cpu" and config.precision in ("fp8", "fp4")
        return {"precision": "bf16"} if lacking else {}
    if config.precision in accelerator.peak_tflops:
        return {}
    usable = (name for name in ("bf16", "fp16", "fp32") if name in accelerator.peak_tflops)
    return {"precision": next(usable, "fp32")}


def _lengths(config: RunConfig, shape: ModelShape) -> list[int]:
    """The sequence length, and the nearest ones that context and tensor parallelism split."""
    limit = shape.learned_positions
    length = min(config.sequence_length, limit) if limit else config.sequence_length
    unit = math.lcm(2 * config.context_parallel_size, config.tensor_parallel_size)
    if config.context_parallel_size > 1:
        unit = math.lcm(unit, config.context_parallel_size * config.tensor_parallel_size)
    unit *= config.packed_documents
    below = length // unit * unit
    return list(dict.fromkeys(size for size in (length, below, below + unit) if size))


def _batches(config: RunConfig) -> Iterator[Change]:
    """Yield the batch as it is, or the nearest ones that are whole microbatches."""
    data, stages = config.data_parallel_size, config.pipeline_parallel_size
    rounds = stages if config.virtual_pipeline_parallel_size > 1 else 1
    batch, micro = config.global_batch_size, config.micro_batch_size
    unit = micro * data * rounds
    if batch % unit == 0:
        yield {}
        return
    below = batch // unit * unit
    for size in (below, below + unit):
        if size:
            yield {"global_batch_size": size}
    if batch % (data * rounds) == 0:
        fitting = [size for size in divisors(batch // (data * rounds)) if size <= micro]
        yield {"micro_batch_size": max(fitting)}


def _named(config: RunConfig, candidate: RunConfig) -> RunConfig:
    """A strategy's name stays only while its sizes do."""
    kept = changes(config, candidate).keys()
    sizes = (name for name in kept if name.endswith("parallel_size"))
    return candidate.model_copy(update={"strategy": "custom"}) if any(sizes) else candidate


def _closest(wanted: int, allowed: Iterable[int]) -> int:
    return min(allowed, key=lambda size: abs(math.log2(size / wanted)))
