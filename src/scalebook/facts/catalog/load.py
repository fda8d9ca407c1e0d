"""Which catalog files count, and the merged rows of them.

The package's own files come first; then ``.scalebook.toml`` of the project's root (the nearest
one at or above the working directory); then the files that ``--catalog`` or the environment
variable SCALEBOOK_CATALOG name. A later row of the same name replaces the keys that it gives.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, wraps
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from scalebook.errors import CatalogError
from scalebook.facts.catalog import results
from scalebook.facts.catalog.rows import PROJECT_FILE, TomlRow, parse, read

ENVIRONMENT_VARIABLE = "SCALEBOOK_CATALOG"

Value = TypeVar("Value")
Signature = tuple[tuple[str, int], ...]
_HELD: ContextVar[tuple[Path | None, Signature] | None] = ContextVar("_HELD", default=None)


def project_file(directory: Path) -> Path | None:
    """Return the nearest ``.scalebook.toml`` at or above a directory, not above its repository."""
    for folder in (directory, *directory.parents):
        if (folder / PROJECT_FILE).is_file():
            return folder / PROJECT_FILE
        if (folder / ".git").exists():
            return None
    return None


def own_file() -> Path | None:
    """Return the ``.scalebook.toml`` of the project that this process works in."""
    if (known := _HELD.get()) is not None:
        return known[0]
    try:
        return project_file(Path.cwd())
    except FileNotFoundError:  # the working directory was removed
        return None


def user_files() -> tuple[Path, ...]:
    """Return the user's catalog files in the order in which they override one another."""
    project = own_file()
    named = os.environ.get(ENVIRONMENT_VARIABLE, "")
    paths = [Path(part) for part in named.split(os.pathsep) if part]
    return (*([project] if project else []), *paths)


@contextmanager
def held(known: Signature | None = None) -> Generator[Signature]:
    """Look for the user's files once, or take what is known of them, for all that is asked inside.

    Raises:
        CatalogError: a file cannot be read.
    """
    before = _HELD.set((own_file(), signature() if known is None else known))
    try:
        yield signature()
    finally:
        _HELD.reset(before)


def kept(find: Callable[[], Value]) -> Callable[[], Value]:
    """Return a function that keeps what it found for each state of the user's files."""

    @lru_cache(maxsize=8)
    def of(user: Signature) -> Value:
        with held(user):
            return find()

    return wraps(find)(lambda: of(signature()))


def signature() -> Signature:
    """Return what the cached catalog depends on: the user's files and when they changed."""
    if (known := _HELD.get()) is not None:
        return known[1]
    found: list[tuple[str, int]] = []
    for path in user_files():
        try:
            found.append((str(path.absolute()), path.stat().st_mtime_ns))
        except OSError as error:
            message = f"Catalog file {path} cannot be read: {error.strerror}."
            raise CatalogError(message) from error
    return tuple(found)


@lru_cache(maxsize=8)
def _package_rows(kind: str) -> tuple[TomlRow, ...]:
    if kind == "published":
        return results.package_rows()
    text = files("scalebook.facts.catalog").joinpath(f"{kind}.toml").read_text(encoding="utf-8")
    return parse(text, f"catalog/{kind}.toml").get(kind, ())


@lru_cache(maxsize=8)
def _user_rows(path: str, modified: int) -> dict[str, tuple[TomlRow, ...]]:
    del modified  # only part of the cache's key
    return read(Path(path))


def _key(row: TomlRow) -> tuple[str, ...]:
    if row.kind == "strategies":
        return row.text("name"), row.text("platform", "*"), row.text("model", "*")
    return (row.text("id") if row.kind == "published" else row.text("name").lower(),)


def rows(kind: str) -> tuple[TomlRow, ...]:
    """Return the merged rows of one kind, the package's order first.

    Raises:
        CatalogError: a file cannot be read, is not valid TOML, or gives one name twice.
    """
    merged = {_key(row): row for row in _package_rows(kind)}
    for path, modified in signature():
        named: set[tuple[str, ...]] = set()
        for row in _user_rows(path, modified).get(kind, ()):
            key = _key(row)
            if key in named:
                raise row.error("this name appears twice in the file.")
            if "source" not in row.values:
                raise row.error('source is missing. Add source = "..." to this row.')
            named.add(key)
            merged[key] = row.over(merged[key]) if key in merged else row
    return tuple(merged.values())
