"""env.toml: the variables of a run, each with its value, its condition and its reason."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

from scalebook.config import RunConfig
from scalebook.errors import CatalogError, unknown
from scalebook.facts import catalog
from scalebook.facts.catalog.rows import TomlRow, rows_of
from scalebook.running.container.images import document

ANY = "any"
TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
    "ne": operator.ne,
}
ConditionValue = str | int | float | bool | None


def check(where: str, condition: object, fields: Iterable[str]) -> None:
    """Refuse a condition that names an unknown field or test, or compares what has no order.

    Raises:
        CatalogError: the condition is malformed.
    """
    names = tuple(fields)
    if not isinstance(condition, dict):
        raise CatalogError(f"{where}: a condition is a table of fields, not {condition!r}.")
    for name, test in cast("dict[str, object]", condition).items():
        if name == ANY:
            for part in cast("list[object]", test) if isinstance(test, list) else [test]:
                check(where, part, names)
        elif name not in names:
            raise CatalogError(f"{where}: {unknown('field', name, names)}")
        else:
            _check_test(f"{where}: {name}", test)


def _check_test(where: str, test: object) -> None:
    if not isinstance(test, dict):
        values = cast("list[object]", test) if isinstance(test, list) else [test]
        if not values or not all(isinstance(value, str | int | float | bool) for value in values):
            raise CatalogError(f"{where} = {test!r} must be a value or a list of values.")
        return
    for name, bound in cast("dict[str, object]", test).items():
        if name not in TESTS:
            raise CatalogError(f"{where}: {unknown('test', name, TESTS)}")
        plain = isinstance(bound, int | float) and not isinstance(bound, bool)
        if name != "ne" and not plain:
            raise CatalogError(f"{where}: {name} = {bound!r} must be a number.")


def holds(condition: Mapping[str, Any], values: Mapping[str, ConditionValue]) -> bool:
    """Return whether every entry of a checked condition is true of the values."""
    return all(_entry(name, test, values) for name, test in condition.items())


def _entry(name: str, test: Any, values: Mapping[str, ConditionValue]) -> bool:
    if name == ANY:
        return any(holds(part, values) for part in test)
    value = values.get(name)
    if value is None:
        return False
    if isinstance(test, dict):
        tests = cast("dict[str, Any]", test)
        return all(_ordered(TESTS[key], value, bound) for key, bound in tests.items())
    return value in test if isinstance(test, list) else _equal(value, test)


def _equal(value: ConditionValue, wanted: Any) -> bool:
    """Return whether two values are equal and of one kind: true is not 1 here."""
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


def _ordered(test: Callable[[Any, Any], bool], value: ConditionValue, bound: Any) -> bool:
    try:
        return test(value, bound)
    except TypeError:  # a text against a number has no order
        return False


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
    check(f"{row.file}: {name}: when", when, FIELDS)
    value, reason, source = row.text("value"), row.text("reason"), row.text("source")
    found = Variable(name, value, reason, source, when, row.texts("replaces"))
    row.finish()
    return found
