"""The columns of the report's data frames, and how a value of any type becomes one of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import polars as pl

from scalebook import settings
from scalebook.facts.feasibility.cells import Cell
from scalebook.measure.row import RunMetrics
from scalebook.settings import SETTINGS

Type = type[pl.DataType]
_TYPES: Mapping[str, Type] = {"str": pl.String, "int": pl.Int64, "float": pl.Float64,
                              "bool": pl.Boolean}  # fmt: skip


def _type(annotation: str) -> Type:
    """Return the column of a field of RunMetrics; a value of several parts is one text of JSON."""
    return _TYPES.get(annotation.partition(" ")[0], pl.String)


def _setting_type(name: str) -> Type:
    row = SETTINGS[name]
    return pl.Boolean if row.yes_no else pl.String if row.minimum is None else pl.Int64


# Settings of a record that tell runs apart in addition to those of RunMetrics.
RUN_SETTINGS = tuple(
    name
    for name in (*settings.names("layout"), "recompute")
    if name not in RunMetrics.__dataclass_fields__
)
# The columns of the run frame: fields of RunMetrics, settings of the record, names.
_NAMES = (
    "started_at", "name", "label", "configuration_name", "configuration", "split", "group", "setup",
    "rate_unit",
)  # fmt: skip
SCHEMA: dict[str, Type] = {
    **{one.name: _type(str(one.type)) for one in fields(RunMetrics)},
    **{name: _setting_type(name) for name in RUN_SETTINGS},
    **dict.fromkeys(_NAMES, pl.String),
    "recorded_steps": pl.Int64,
    **dict.fromkeys(("rate", "rate_low", "rate_high"), pl.Float64),
}
# A model cut to its first layers (``llama3.1-8b@8``): fast because they are few.
PROXY = pl.col("model").str.contains("@", literal=True).fill_null(value=False)
STEP_SCHEMA: dict[str, type[pl.DataType]] = {
    "run_id": pl.String,
    "step": pl.Int64,
    "phase": pl.String,
    "step_seconds": pl.Float64,
    "tokens": pl.Int64,
    "loss": pl.Float64,
    "grad_norm": pl.Float64,
    "learning_rate": pl.Float64,
    "allocated_gib": pl.Float64,
}

# One row per cell of a feasibility map. ``run_ids`` are the runs that a measured cell shows, or the
# one that an inferred cell follows from.
FEASIBILITY_SCHEMA: dict[str, Type | pl.DataType] = {
    **{one.name: _type(str(one.type)) for one in fields(Cell)},
    "run_ids": pl.List(pl.String),
}


def cast(name: str, value: Any) -> tuple[Any, str | None]:
    """Return a value of the column's type; None and a sentence where it has another."""
    convert = _CASTS[SCHEMA[name]]
    if value is None:
        return None, None
    result = convert(value)
    return result, None if result is not None else f"{name}={value!r} is not usable"


def _text(value: Any) -> str | None:
    if isinstance(value, dict | tuple):
        return json.dumps(value)
    return value if isinstance(value, str) else None


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and abs(value) < 2**63 else None


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _boolean(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


_CASTS: Mapping[type[pl.DataType], Callable[[Any], Any]] = {
    pl.Boolean: _boolean,
    pl.String: _text,
    pl.Int64: _integer,
    pl.Float64: _float,
}
