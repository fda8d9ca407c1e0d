"""What ran, read from a record that may lack anything or hold a wrong type."""

from __future__ import annotations

import math
from typing import Any

from scalebook.errors import CatalogError
from scalebook.facts import catalog
from scalebook.facts.catalog.types import ModelShape
from scalebook.measure.row import RunMetrics
from scalebook.parallelism import RECOMPUTE, Parallelism, Recomputed
from scalebook.record import RunRecord, text_of
from scalebook.settings import RECOMPUTE_MODULES, SETTINGS, named_modules

_REPLICA = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")
_ROWS = tuple(SETTINGS[name] for name in RunMetrics.__dataclass_fields__ if name in SETTINGS)
_NEEDED = ("world_size", *_REPLICA)
_SIZES: dict[str, int] = {
    name: field.default
    for name, field in Parallelism.__dataclass_fields__.items()
    if name.endswith(("_size", "_layers"))
}
_MOST = 2**20  # of ranks, stages or chunks: what is counted one by one must end
LARGEST = 2**53  # whole numbers up to here are exact as floats


def count(record: RunRecord, name: str) -> int | None:
    """Return a setting that is a whole number of at least 1; None for anything else."""
    value = record.setting(name)
    return value if type(value) is int and 1 <= value <= LARGEST else None


def document_length(record: RunRecord) -> float | None:
    """Return the tokens that attend to one another: of a sample, or of a document packed in it."""
    length, packed = count(record, "sequence_length"), count(record, "packed_documents") or 1
    return length if length is None or packed == 1 else length / packed


def recomputed(record: RunRecord) -> Recomputed | None:
    """Return what the backward pass recomputed; None where the record does not say it in full."""
    mode, modules = record.setting("recompute"), text_of(record.setting("recompute_modules")) or ""
    if mode not in RECOMPUTE or not {*named_modules(modules)} <= {*RECOMPUTE_MODULES}:
        return None
    method, layers = text_of(record.setting("recompute_method")), count(record, "recompute_layers")
    return Recomputed.of(mode, method or "block", layers or 0, named_modules(modules))


def _data_parallel_size(record: RunRecord) -> int | None:
    given = count(record, "data_parallel_size")
    sizes = [count(record, name) for name in _REPLICA]
    world = count(record, "world_size")
    if given is not None or world is None or None in sizes:
        return given
    replica = math.prod(size for size in sizes if size is not None)
    return world // replica if world % replica == 0 else None


def parallelism_of(record: RunRecord) -> Parallelism | None:
    """Return how a run was split, None where a size is unknown, or no machine has so much.

    None too where the sizes do not fit together. Those that were added later stand at what runs
    before them had.
    """
    values: dict[str, Any] = {name: count(record, name) for name in _SIZES}
    if None in (values[name] for name in _NEEDED):
        return None
    values = {name: size or _SIZES[name] for name, size in values.items()}
    if max(values.values()) > _MOST:
        return None
    values["sequence_parallel"] = record.is_on("sequence_parallel") is True
    for name in ("data_parallel_sharding", "parameter_gather"):
        if (chosen := record.setting(name)) in SETTINGS[name].choices:
            values[name] = chosen
    split = Parallelism(**values)
    return split if split.world_size % split.model_parallel_size == 0 else None


def run_shape(record: RunRecord) -> tuple[ModelShape | None, str | None]:
    """Return the shape of the model that ran, with the layers that it had, or the reason."""
    name, layers = text_of(record.setting("model")), count(record, "num_layers")
    if name is None:
        return None, "The run names no model."
    try:
        shape = catalog.model(name)
        if layers is not None and layers != shape.num_layers:
            shape = catalog.model(f"{name.partition('@')[0]}@{layers}")
    except CatalogError as error:
        return None, str(error)
    for field in ("hidden_size", "num_attention_heads"):
        ran, known = count(record, field), getattr(shape, field)
        if ran is not None and ran != known:
            return None, f"The run had {field}={ran}, but {shape.name} has {known}: another model."
    return shape, None


def settings(record: RunRecord) -> dict[str, Any]:
    """Return the settings of RunMetrics by name, None where the record has none."""
    found: dict[str, Any] = {
        row.name: count(record, row.name) if row.minimum else text_of(record.setting(row.name))
        for row in _ROWS
    }
    found["data_parallel_size"] = _data_parallel_size(record)
    return found
