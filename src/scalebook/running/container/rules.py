"""env.toml: the variables of a run, each with its value, its condition and its reason."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

from scalebook.config import RunConfig
from scalebook.errors import CatalogError, unknown
from scalebook.facts import catalog
from scalebook.facts.catalog.rows import TomlRow, rows_of
from scalebook.running.container.images import document

ANY = "any"
TESTS: Mapping[str, Callable[[Any, Any], bool]] = {"gt": operator.gt, "lt": operator.lt}
ConditionValue = str | int | float | bool | None


def holds(condition: object, values: Mapping[str, ConditionValue], where: str = "when") -> bool:
    """Return whether every entry of a condition is true of the values; each is looked at.

    An entry is a value, a list of values or a table of ``TESTS``; ``any`` holds a list of
    conditions. What is not known (None) passes no test.

    Raises:
        CatalogError: the condition is malformed, or names an unknown field or test.
    """
    if not isinstance(condition, dict):
        raise CatalogError(f"{where}: a condition is a table of fields, not {condition!r}.")
    entries = cast("dict[str, Any]", condition).items()
    found = [_entry(name, test, values, where) for name, test in entries]
    return all(found)


def _entry(name: str, test: Any, values: Mapping[str, ConditionValue], where: str) -> bool:
    options = cast("list[Any]", test) if isinstance(test, list) else [test]
    if name == ANY:
        found = [holds(part, values, where) for part in options]
        return any(found)
    if name not in values:
        raise CatalogError(f"{where}: {unknown('field', name, values)}")
    value = values[name]
    if not isinstance(test, dict):  # true is not 1 here
        return any(
            value == one and isinstance(value, bool) == isinstance(one, bool) for one in options
        )
    bounds = cast("dict[str, Any]", test)
    for key in bounds.keys() - TESTS.keys():
        raise CatalogError(f"{where}: {name}: {unknown('test', key, TESTS)}")
    return value is not None and all(TESTS[key](value, bound) for key, bound in bounds.items())


# What a condition may name beside the fields of RunConfig.
DERIVED = ("data_parallel_size", "vendor", "accelerator", "gpu", "gpu_generation")
FIELDS = (*RunConfig.model_fields, *DERIVED)
_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable: set to ``value`` where ``when`` holds.

    ``replaces`` are values that vendors' images bake in, which nobody chose for a run: they are
    replaced, unless the user asked for the variable by name. Any other value of the environment
    stays, as it is somebody's choice.
    """

    name: str
    value: str
    reason: str
    source: str
    when: Mapping[str, Any] = field(default_factory=dict[str, Any])
    replaces: tuple[str, ...] = ()


def variables(config: RunConfig) -> tuple[Variable, ...]:
    """Return the variables that a run needs on the devices of its platform (env.toml)."""
    values = values_of(config)
    return tuple(one for one in rules(str(values["vendor"])) if holds(one.when, values))


def values_of(config: RunConfig) -> dict[str, ConditionValue]:
    """Return what conditions are compared with: a run's fields and what its platform is."""
    platform, device = catalog.platform(config.platform), catalog.device_of(config.platform)
    gpu = (device and device.compute_capability) or None
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
def rules(vendor: str) -> tuple[Variable, ...]:
    """Return every variable that env.toml of a vendor can set, in its order.

    Raises:
        CatalogError: a row is malformed.
    """
    tables = document(vendor, "env.toml").get("variables", [])
    return tuple(map(parse, rows_of("variables", tables, f"containers/{vendor}/env.toml")))


def parse(row: TomlRow) -> Variable:
    """Return a row of env.toml as a variable.

    Raises:
        CatalogError: the row is malformed.
    """
    name, when = row.text("name"), row.table("when") or {}
    if not _NAME.fullmatch(name):
        raise row.error("a variable's name has capitals, digits and '_' only.")
    holds(when, dict.fromkeys(FIELDS), f"{row.file}: {name}: when")  # else malformed
    return row.built(Variable, when=when)
