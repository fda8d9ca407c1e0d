"""Conditions as data: a table of fields and tests, compared with a run's values. Nothing is run.

A condition holds when every entry does. An entry is one of::

    vendor = "amd"                                # equal
    gpu = ["gfx942", "gfx950"]                    # one of
    tensor_parallel_size = { gt = 1 }             # gt, ge, lt, le, ne; several: all of them
    any = [{ nodes = { gt = 1 } }, { ... }]       # at least one of these conditions

A value that is not known (a CPU has no ``gpu``) passes no test, ``ne`` included.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from scalebook.errors import CatalogError, unknown

ANY = "any"
TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
    "ne": operator.ne,
}
Value = str | int | float | bool | None


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


def holds(condition: Mapping[str, Any], values: Mapping[str, Value]) -> bool:
    """Return whether every entry of a checked condition is true of the values."""
    return all(_entry(name, test, values) for name, test in condition.items())


def _entry(name: str, test: Any, values: Mapping[str, Value]) -> bool:
    if name == ANY:
        return any(holds(part, values) for part in test)
    value = values.get(name)
    if value is None:
        return False
    if isinstance(test, dict):
        tests = cast("dict[str, Any]", test)
        return all(_ordered(TESTS[key], value, bound) for key, bound in tests.items())
    return value in test if isinstance(test, list) else _equal(value, test)


def _equal(value: Value, wanted: Any) -> bool:
    """Return whether two values are equal and of one kind: true is not 1 here."""
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


def _ordered(test: Callable[[Any, Any], bool], value: Value, bound: Any) -> bool:
    try:
        return test(value, bound)
    except TypeError:  # a text against a number has no order
        return False
