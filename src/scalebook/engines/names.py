"""What each engine calls a model of the catalog."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any

from scalebook.config import RunConfig
from scalebook.errors import ConfigError, unknown
from scalebook.facts.catalog.types import ModelShape

OVERLAPS = ("overlap_grad_reduce", "overlap_param_gather")  # switches that engines know by our name


@cache
def _table() -> dict[str, dict[str, Any]]:
    text = resources.files("scalebook.engines").joinpath("models.toml").read_text("utf-8")
    return tomllib.loads(text)["models"]


def known(kind: str) -> tuple[str, ...]:
    """Return the catalog models that have a name of this kind (nemo, bridge or primus)."""
    return tuple(name for name, row in _table().items() if kind in row)


def name_of(kind: str, config: RunConfig) -> Any:
    """Return what an engine calls the model of a run; ``NAME@8`` is the same with 8 layers.

    Raises:
        ConfigError: the engine has no configuration of this model.
    """
    base = config.model.partition("@")[0]
    row = _table().get(base, {})
    if kind not in row:
        message = unknown(f"{kind} model", base, known(kind))
        raise ConfigError(f"Engine {config.engine!r} has no configuration of it. {message}")
    return row[kind]


def fewer_layers(config: RunConfig, shape: ModelShape) -> int | None:
    """Return the number of layers where a run names it, None where the model has all of its own."""
    return shape.num_layers if "@" in config.model else None
