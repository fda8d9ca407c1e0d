"""What was asked for against what ran, field by field, as the trainer read it back itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

from scalebook.config import RunConfig
from scalebook.errors import CatalogError, ConfigError
from scalebook.facts import catalog
from scalebook.facts.catalog.types import ModelShape
from scalebook.record import RunRecord
from scalebook.settings import is_on

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Deviation:
    """One setting that ran differently than requested."""

    name: str
    asked: Any
    ran: Any

    def sentence(self) -> str:
        """Return the difference as notes of records hold it."""
        name = self.name if self.name.isidentifier() else repr(self.name)
        asked, ran = (shorten(repr(value), 100) for value in (self.asked, self.ran))
        return f"{name}: asked for {asked}, ran with {ran}."


def differences(
    requested: Values, observed: Values, environment: Values | None = None
) -> tuple[Deviation, ...]:
    """Return every setting that ran differently than requested.

    Beside the fields of the configuration these are what follows from them (replicas,
    microbatches), the shape that the model's name stands for, and the platform's device.
    """
    expected = {**_shape(requested), **_derived(requested), **requested}
    return (*_unlike(expected, observed), *_device(requested, environment or {}))


def of(record: RunRecord) -> tuple[Deviation, ...]:
    """Return the differences that a record holds; computed where it is older than they are."""
    if record.differences is None:
        return _unlike(record.requested, record.observed)
    return tuple(
        Deviation(str(value.get("name")), value.get("asked"), value.get("ran"))
        for value in record.differences
    )


def _unlike(expected: Values, observed: Values) -> tuple[Deviation, ...]:
    return tuple(
        Deviation(name, value, observed[name])
        for name, value in expected.items()
        if observed.get(name) is not None and not _equal(value, observed[name])
    )


def _equal(asked: Any, ran: Any) -> bool:
    """Return whether a setting ran as requested; ``auto`` leaves the choice to the trainer."""
    if asked == "auto":
        return True
    if is_on(asked) is not None and is_on(ran) is not None:
        return is_on(asked) == is_on(ran)
    if isinstance(asked, float) and isinstance(ran, int | float):
        return math.isclose(asked, ran, rel_tol=1e-9)
    return bool(asked == ran)


def _derived(requested: Values) -> dict[str, Any]:
    """Return what follows from the configuration; empty where it is not whole."""
    try:
        config = RunConfig.from_parameters(requested)
    except ConfigError:
        return {}
    names = ("data_parallel_size", "num_microbatches")
    return {name: getattr(config, name) for name in names}


def _shape(requested: Values) -> dict[str, Any]:
    """Return the sizes that the model's name stands for, by the names of ``observed``."""
    try:
        shape: ModelShape = catalog.model(str(requested.get("model")))
    except CatalogError:
        return {}
    names = ("num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "head_dim")
    sizes: dict[str, Any] = {name: getattr(shape, name) for name in names}
    if shape.moe is not None:
        return sizes | {"num_experts": shape.moe.num_experts, "expert_top_k": shape.moe.top_k}
    return sizes | {"ffn_hidden_size": shape.ffn_hidden_size}


def _device(requested: Values, environment: Values) -> Iterator[Deviation]:
    """Yield the device where it is another than the platform's."""
    name, asked = environment.get("accelerator"), catalog.device_of(str(requested.get("platform")))
    if isinstance(name, str) and asked and catalog.accelerator_for_device(name) != asked:
        yield Deviation("accelerator", asked.name, name)
