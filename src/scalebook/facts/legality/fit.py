"""Whether a configuration fits the device's memory, and what to change when it does not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from scalebook.config import RunConfig
from scalebook.facts import memory
from scalebook.facts.catalog.types import Accelerator, ModelShape
from scalebook.facts.legality import neighbours
from scalebook.facts.legality.problem import Case
from scalebook.facts.legality.untrained import untrained
from scalebook.facts.memory import MemoryEstimate
from scalebook.settings import assigned

# The estimate leaves out the driver's context, buffers of collectives and fragmentation: some GiB.
# Up to this share of the memory a run is said to fit, above the other not to fit. Of 199 GPU runs
# under runs/examples 191 allocated within 5 % of the prediction, one more within 10 % and 7 above
# it (up to 28 %, of older trainers; a tiny model 91 %). The allocator reserved up to 18 % more.
SAFE_SHARE = 0.9
FULL_SHARE = 1.1
MAX_ADVICE = 4
MORE_GPUS = (2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Fit:
    """The verdict: ``fits`` is None where that is unknown; ``reason`` says why in each case."""

    fits: bool | None
    reason: str
    capacity_gib: float | None
    advice: tuple[str, ...] = ()


def estimate(config: RunConfig, shape: ModelShape) -> MemoryEstimate:
    """Return the predicted memory (GiB per rank) of a legal configuration."""
    config = config.unpacked()
    alike = ("micro_batch_size", "num_microbatches", "sequence_length", "precision")
    alike += ("gradient_precision", "offload_layers", "mtp_layers")
    alike += ("fp8_primary_weights", "fp8_recipe")
    return memory.estimate(
        shape,
        config.parallelism,
        **{name: getattr(config, name) for name in alike},
        recompute=config.recomputation,
        # Whether torch can compile is not known before a run: that it can is the usual case.
        **memory.kernels(lambda name: getattr(config, name) == "off", config.platform),
    )


def verdict(needed_gib: float, accelerator: Accelerator | None) -> Fit:
    """Return whether ``needed_gib`` GiB fit on one device.

    Memory sizes of accelerators are sold in GB but are GiB within 1 % (an 80 GB H100 reports
    81,559 MiB, a 192 GB MI300X 196,592 MiB), and are taken so here.
    """
    if accelerator is None:
        return Fit(None, "the memory of this platform's device is not known", None)
    capacity = accelerator.memory_gb
    against = f"{needed_gib:.1f} of {capacity:.0f} GiB predicted on {accelerator.name}"
    if needed_gib > FULL_SHARE * capacity:
        return Fit(False, f"{against}: does not fit", capacity)
    if needed_gib > SAFE_SHARE * capacity:
        return Fit(
            None,
            f"{against}: too close to tell, nearly all measured runs are within "
            f"{1 - SAFE_SHARE:.0%} of the prediction, a few older ones used up to 28 % more",
            capacity,
        )
    return Fit(True, f"{against}: fits", capacity)


def remedies(case: Case, fits: Callable[[RunConfig], bool]) -> list[RunConfig]:
    """Return configurations that fit, mildest first: one change, else two, else more GPUs."""
    config, shape = case.config, case.shape
    single = list(_single_changes(config, shape))
    if config.recompute_modules:  # which another mode of recomputation does not have
        single = [one | {"recompute_modules": ""} if "recompute" in one else one for one in single]
    pairs = (
        one | two for one, two in itertools.combinations(single, 2) if not one.keys() & two.keys()
    )
    for changed in (single, pairs):
        found = [one for change in changed if fits(one := config.model_copy(update=change))]
        if found:
            return found
    for factor in MORE_GPUS:
        change: dict[str, Any] = {"world_size": factor * config.world_size}
        if shape.moe is not None:  # as many expert-parallel ranks as the search finds legal
            change["expert_parallel_size"] = shape.moe.num_experts
        larger = config.model_copy(update=change)
        found = neighbours.search(case.of(larger), fits)
        if found:
            return found[:1]
    return []


def describe(before: RunConfig, after: RunConfig, needed_gib: float) -> str:
    """Return one alternative as a person would type it, with its memory."""
    changes = assigned(neighbours.changes(before, after))
    return f"{', '.join(changes)} ({needed_gib:.1f} GiB)"


def _single_changes(config: RunConfig, shape: ModelShape) -> Iterator[dict[str, Any]]:
    if config.tensor_parallel_size > 1 and not config.sequence_parallel:
        yield {"sequence_parallel": True}
    if config.data_parallel_sharding == "none":
        yield {"data_parallel_sharding": "optimizer"}
    if config.parallelism.gathers_once:
        yield {"parameter_gather": "pass"}
    if config.micro_batch_size > 1:
        yield {"micro_batch_size": config.micro_batch_size // 2}
    if shape.moe is not None:
        for factor in (2, 4, 8, 16, 32, 64):
            yield {"expert_parallel_size": factor * config.expert_parallel_size}
    for factor in (2, 4, 8):
        size = factor * config.tensor_parallel_size
        yield {"tensor_parallel_size": size, "sequence_parallel": True}
    for factor in (2, 4):
        yield {"pipeline_parallel_size": factor * config.pipeline_parallel_size}
        yield {"context_parallel_size": factor * config.context_parallel_size}
    if config.recompute == "none":
        yield {"recompute": "pointwise"}
    if config.recompute != "full":
        yield {"recompute": "full"}
    elif config.recompute_layers:
        yield {"recompute_layers": 0}
    yield from _own_changes(config, shape)
    fsdp = {"data_parallel_sharding": "full"}
    if config.data_parallel_sharding != "full" and _trained(config, shape, fsdp):
        yield fsdp


def _own_changes(config: RunConfig, shape: ModelShape) -> Iterator[dict[str, Any]]:
    """Yield what only Scalebook's own trainer can do."""
    if config.engine != "megatron" or config.layer_spec == "transformer_engine":
        return
    offload = {"recompute": "pointwise", "offload_layers": max(shape.num_layers // 2, 1)}
    if _trained(config, shape, offload):
        yield offload
    if config.gradient_precision == "fp32" and config.precision in ("bf16", "fp8"):
        yield {"gradient_precision": "bf16"}


def _trained(config: RunConfig, shape: ModelShape, changes: dict[str, Any]) -> bool:
    """Return whether Scalebook's own trainer would take a change, where it is the one to train."""
    changed = config.model_copy(update=changes)
    return config.engine != "megatron" or not any(untrained(changed, shape))
