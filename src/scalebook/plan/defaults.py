"""Defaults of a configuration that depend on others: for plans and for ``check`` alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scalebook.config import RunConfig
from scalebook.facts.catalog.types import ModelShape, Platform
from scalebook.facts.flops import flop_parts
from scalebook.parallelism import balanced_last_stage
from scalebook.plan.schedule import whole


def world(
    given: Mapping[str, Any], platform: Platform, devices: int | None = None
) -> dict[str, Any]:
    """Return ``world_size`` and ``nodes`` of a configuration, as given or else by default.

    Without a world size a run takes the ``devices`` there are, or else whole nodes; without nodes
    as many as its world size fills. CPU cores are not devices: a node has one process then.

    Raises:
        ConfigError: a size is not a whole number of at least 1.
    """
    cpu = platform.vendor == "cpu"
    room = 1 if cpu else platform.gpus_per_node
    nodes = whole(given, "nodes")
    world_size = whole(given, "world_size") or devices or (nodes or 1) * room
    if nodes is None:
        nodes = 1 if cpu else -(-world_size // room)
    return {"world_size": world_size, "nodes": nodes}


def following(given: Mapping[str, Any], shape: ModelShape) -> dict[str, Any]:
    """Return what a configuration leaves out and its model and parallelism decide."""
    left_out = {name: find for name, find in FOLLOWING.items() if name not in given}
    found = {name: find(given, shape) for name, find in left_out.items()}
    return {name: value for name, value in found.items() if value}


def _expert_tensor_parallel_size(given: Mapping[str, Any], shape: ModelShape) -> int | None:
    """Return how many ranks share an expert; None without experts.

    Experts that expert parallelism does not spread have to be split as the layers are (legality).
    """
    if shape.moe is None:
        return None
    spread = given.get("expert_parallel_size", 1) != 1
    return 1 if spread else given.get("tensor_parallel_size", 1)


def _last_pipeline_stage_layers(given: Mapping[str, Any], shape: ModelShape) -> int | None:
    """Return the layers of the last stage that balance the pipeline best.

    The output layer is as much work as several layers, so the last stage gets fewer. None without
    pipeline stages, and for engines whose stages are even.
    """
    names = ("pipeline_parallel_size", "virtual_pipeline_parallel_size", "packed_documents")
    sizes = [given.get(name, 1) for name in names]
    length = given.get("sequence_length")
    if given.get("engine", "megatron") != "megatron" or sizes[0] == 1:
        return None
    if not all(isinstance(value, int) and value > 0 for value in (*sizes, length)):
        return None  # refused elsewhere, as any other wrong value
    parts = flop_parts(shape, float(length or 0) / sizes[2])
    head = parts.logits / parts.total
    return balanced_last_stage(sizes[0], sizes[1], shape.num_layers, head)


def given(config: RunConfig) -> dict[str, Any]:
    """Return the settings that rebuild a configuration: those that differ from their defaults.

    Those that depend on others where they are left out are always there.
    """
    changed = config.model_dump(exclude_defaults=True)
    named = {name: getattr(config, name) for name in ("nodes", "precision", *FOLLOWING)} | changed
    return {name: named[name] for name in RunConfig.model_fields if name in named}


FOLLOWING: Mapping[str, Callable[[Mapping[str, Any], ModelShape], int | None]] = {
    "expert_tensor_parallel_size": _expert_tensor_parallel_size,
    "last_pipeline_stage_layers": _last_pipeline_stage_layers,
}
