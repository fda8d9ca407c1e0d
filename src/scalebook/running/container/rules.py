"""env.toml: the variables of a run, each with its value, its condition and its reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from scalebook.config import RunConfig
from scalebook.errors import CatalogError
from scalebook.facts import catalog
from scalebook.running.container import conditions, files

# What a condition may name beside the fields of RunConfig.
DERIVED = ("data_parallel_size", "vendor", "accelerator", "gpu", "gpu_generation")
FIELDS = (*RunConfig.model_fields, *DERIVED)
_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class Rule:
    """One variable: set to ``value`` where ``when`` holds.

    ``replaces`` are values that vendors' images bake in and that this value takes the place of;
    any other value of the environment stays, as it is somebody's choice.
    """

    name: str
    value: str
    reason: str
    source: str
    when: Mapping[str, Any] = field(default_factory=dict[str, Any])
    replaces: tuple[str, ...] = ()

    def applies(self, values: Mapping[str, conditions.Value]) -> bool:
        """Return whether the variable is to be set for a run of these values."""
        return conditions.holds(self.when, values)


def values_of(config: RunConfig) -> dict[str, conditions.Value]:
    """Return what conditions are compared with: a run's fields and what its platform is."""
    platform = catalog.platform(config.platform)
    gpu = None
    if platform.accelerator is not None:
        gpu = catalog.accelerator(platform.accelerator).compute_capability or None
    major = (gpu or "").partition(".")[0]
    return {
        **config.model_dump(),
        "data_parallel_size": config.data_parallel_size,
        "vendor": platform.vendor,
        "accelerator": platform.accelerator,
        "gpu": gpu,  # "9.0" (compute capability) or "gfx942"
        "gpu_generation": int(major) if major.isdigit() else None,  # NVIDIA: 8, 9, 10
    }


@cache
def rules(vendor: str) -> tuple[Rule, ...]:
    """Return every variable that env.toml of a vendor can set, in its order.

    Raises:
        CatalogError: a row is malformed.
    """
    rows = files.tables(files.document(vendor, "env.toml"), "variables")
    return tuple(parse(f"containers/{vendor}/env.toml", row) for row in rows)


def parse(where: str, row: Mapping[str, Any]) -> Rule:
    """Return a row of env.toml as a rule.

    Raises:
        CatalogError: the row is malformed.
    """
    where = f"{where}: {row.get('name', '?')}"
    files.check_keys(where, row, ("name", "value", "reason", "source"), "when replaces")
    if not all(isinstance(row[key], str) for key in ("name", "value", "reason", "source")):
        raise CatalogError(f"{where}: name, value, reason and source are texts.")
    if not _NAME.fullmatch(row["name"]):
        raise CatalogError(f"{where}: a variable's name has capitals, digits and '_' only.")
    when = row.get("when", {})
    conditions.check(f"{where}: when", when, FIELDS)
    replaces = tuple(str(value) for value in row.get("replaces", ()))
    return Rule(row["name"], row["value"], row["reason"], row["source"], when, replaces)


@cache
def left_alone(vendor: str) -> Mapping[str, str]:
    """Return the known variables that no run gets by itself, and why, by name."""
    rows = files.tables(files.document(vendor, "env.toml"), "left_alone")
    for row in rows:
        where = f"containers/{vendor}/env.toml: {row.get('name', '?')}"
        files.check_keys(where, row, ("name", "reason", "source"), "")
    return {row["name"]: row["reason"] for row in rows}
