"""What a configuration has where nobody said: the one place for plans and for ``check``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalebook.catalog.types import ModelShape, Platform
from scalebook.errors import ConfigError


def world(
    given: Mapping[str, Any], platform: Platform, devices: int | None = None
) -> dict[str, Any]:
    """Return ``world_size`` and ``nodes`` of a configuration, as given or else by default.

    Without a world size a run takes the ``devices`` there are, or else whole nodes; without nodes
    as many as its world size fills. Cores of a CPU are no devices: a node has one process then.

    Raises:
        ConfigError: a size is no whole number of at least 1.
    """
    cpu = platform.vendor == "cpu"
    room = 1 if cpu else platform.gpus_per_node
    nodes = size(given, "nodes")
    world_size = size(given, "world_size") or devices or (nodes or 1) * room
    if nodes is None:
        nodes = 1 if cpu else -(-world_size // room)
    return {"world_size": world_size, "nodes": nodes}


def expert_tensor_parallel_size(given: Mapping[str, Any], shape: ModelShape) -> int | None:
    """Return how many ranks share an expert, as given or else by default; None without experts.

    Experts that expert parallelism does not spread have to be split as the layers are (legality).
    """
    if shape.moe is None:
        return None
    if "expert_tensor_parallel_size" in given:
        return given["expert_tensor_parallel_size"]
    spread = given.get("expert_parallel_size", 1) != 1
    return 1 if spread else given.get("tensor_parallel_size", 1)


def size(given: Mapping[str, Any], name: str) -> int | None:
    """Return a positive size, None where it is not given.

    Raises:
        ConfigError: the value is no whole number of at least 1.
    """
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name}={value!r} must be a whole number of at least 1.")
    return value
