"""Read the TOML files of containers/, which is also a folder of the package (a link)."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, cast

from scalebook.errors import CatalogError, unknown

VENDORS = ("nvidia", "amd", "cpu")


@cache
def document(vendor: str, name: str) -> Mapping[str, Any]:
    """Return a file such as ``image.toml`` of a vendor.

    Raises:
        CatalogError: the file is missing or its TOML is broken.
    """
    if vendor not in VENDORS:
        raise CatalogError(unknown("vendor", vendor, VENDORS))
    path = files("scalebook.running.container") / "facts" / vendor / name
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CatalogError(f"containers/{vendor}/{name} cannot be read: {error}.") from error


def tables(document: Mapping[str, Any], key: str) -> tuple[Mapping[str, Any], ...]:
    """Return the rows of a table array; none where the key is absent.

    Raises:
        CatalogError: the key holds something else.
    """
    value: object = document.get(key, [])
    items = cast("list[object]", value) if isinstance(value, list) else [None]
    if not all(isinstance(item, dict) for item in items):
        raise CatalogError(f"{key} must be rows, each under its own [[{key}]].")
    return tuple(cast("dict[str, Any]", item) for item in items)


def check_keys(where: str, row: Mapping[str, Any], required: Iterable[str], optional: str) -> None:
    """Refuse a row that lacks a key or has one that nothing reads; ``optional``: names, spaced.

    Raises:
        CatalogError: a key is missing, empty or unknown.
    """
    needed = tuple(required)
    for key in needed:
        if row.get(key) in (None, ""):
            raise CatalogError(f"{where}: {key} is missing. Every row needs {', '.join(needed)}.")
    for key in row:
        if key not in needed and key not in optional.split():
            raise CatalogError(f"{where}: {unknown('key', key, (*needed, *optional.split()))}")
