"""Read catalog files (TOML) into rows that know their file and line, and check their fields."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, cast

from scalebook import untrusted
from scalebook.errors import CatalogError, unknown

KINDS = ("accelerators", "models", "platforms", "strategies", "published")
PROJECT_FILE = ".scalebook.toml"
METRICS = "metrics"  # of the project's file: programs, which no other catalog may name
REQUIRED = object()

LARGEST = 10**15  # no fact of the catalog is larger

Value = TypeVar("Value")
_LABEL = re.compile(r"[a-z0-9][a-z0-9._-]*")
_HEADER = re.compile(r"^\s*\[\[\s*([A-Za-z]+)\s*\]\]")


def shown(value: object) -> str:
    """Return a value as a message shows it: whole where it is short."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True, slots=True)
class TomlRow:
    """One table of a catalog file. Getters check a field; ``finish`` refuses the rest."""

    kind: str
    values: Mapping[str, Any]
    file: str
    line: int | None  # of the table's header
    lines: Mapping[str, int] = field(default_factory=dict[str, int])  # of each key
    seen: set[str] = field(default_factory=set[str])

    def error(self, message: str, key: str | None = None) -> CatalogError:
        """Return the error that names this row's file, line and name."""
        line = self.lines.get(key, self.line) if key else self.line
        place = f"{self.file} line {line}" if line else self.file
        name = self.values.get("name", self.values.get("id"))
        label = f"{self.kind} {name!r}" if isinstance(name, str) else self.kind
        return CatalogError(f"{place}: {label}: {message}")

    def _get(self, key: str, default: Any) -> Any:
        self.seen.add(key)
        value = self.values.get(key, default)
        if value is REQUIRED:
            raise self.error(f"{key} is missing. Add {key} = ... to this row.")
        return value

    def text(self, key: str, default: Any = REQUIRED) -> str:
        """Return a text that is not empty (a default may be)."""
        value = self._get(key, default)
        if key in self.values and (not isinstance(value, str) or not value.strip()):
            raise self.error(f"{key}={shown(value)} must be a text that is not empty.", key)
        return value

    def label(self, key: str) -> str:
        """Return a name that can be typed: lower case, digits, dots, dashes, underscores."""
        value = self.text(key)
        if not _LABEL.fullmatch(value):
            raise self.error(
                f"{key}={shown(value)} must be lower case: letters, digits, '.', '-' and '_'.", key
            )
        return value

    def choice(self, key: str, allowed: Iterable[str], default: Any = REQUIRED) -> str:
        """Return a text that is one of ``allowed``."""
        value, names = self.text(key, default), tuple(allowed)
        if value not in names:
            raise self.error(f"{key}={shown(value)} must be one of {', '.join(names)}.", key)
        return value

    def flag(self, key: str, default: Any = REQUIRED) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key}={shown(value)} must be true or false.", key)
        return value

    def integer(self, key: str, default: Any = REQUIRED, minimum: int = 1) -> int:
        """Return a whole number of at least ``minimum``."""
        value = self._get(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= LARGEST:
            return value
        raise self.error(f"{key}={shown(value)} must be a whole number of at least {minimum}.", key)

    def number(self, key: str, default: Any = REQUIRED) -> float:
        """Return a finite number above zero."""
        return self._positive(key, key, self._get(key, default))

    def _positive(self, key: str, label: str, value: object) -> float:
        if isinstance(value, int | float) and value is not True and 0 < value <= LARGEST:
            return float(value)
        raise self.error(f"{label}={shown(value)} must be a number above zero.", key)

    def numbers(self, key: str, allowed: Iterable[str]) -> dict[str, float]:
        """Return a table of numbers above zero by name; empty where the row has no such key."""
        table = self.table(key)
        names = tuple(allowed)
        for name in table or {}:
            if name not in names:
                raise self.error(f"{key}: {unknown('precision', name, names)}", key)
        return {n: self._positive(key, f"{key}.{n}", v) for n, v in (table or {}).items()}

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts that are not empty; an empty list where there is no such key."""
        value = self._get(key, [])
        message = f"{key}={shown(value)} must be a list of texts."
        items = cast(list[object], value) if isinstance(value, list) else [None]
        texts = [item for item in items if isinstance(item, str) and item.strip()]
        if len(texts) != len(items):
            raise self.error(message, key)
        return tuple(texts)

    def table(self, key: str) -> dict[str, Any] | None:
        """Return a table, or None where the row has no such key."""
        value: object = self._get(key, None)
        if value is not None and not isinstance(value, dict):
            raise self.error(f"{key}={shown(value)} must be a table.", key)
        return cast(dict[str, Any] | None, value)

    def part(self, key: str) -> TomlRow | None:
        """Return a table as a row of its own that reports this row's line, or None."""
        table = self.table(key)
        if table is None:
            return None
        line = self.lines.get(key, self.line)
        return TomlRow(f"{self.kind} {self.values.get('name')!r} {key}", table, self.file, line)

    def built(self, kind: type[Value], **given: Any) -> Value:
        """Return a dataclass made of this row, which may have no keys but its fields.

        A field that is not given is read by its type; one with a default may be absent. Whole
        numbers are from 1 up, or from 0 where that is the default or None is.
        """
        values = given | {
            item.name: self._field(item)
            for item in fields(cast(Any, kind))
            if item.name not in given
        }
        self.finish()
        return kind(**values)

    def _field(self, item: Field[Any]) -> Any:
        name, kind = item.name, str(item.type)
        default: Any = REQUIRED if item.default is MISSING else item.default
        optional = kind.endswith(" | None")
        if optional and name not in self.values:
            return self._get(name, None)
        if kind.startswith("int"):
            return self.integer(name, default, minimum=0 if optional or default == 0 else 1)
        if kind.startswith("tuple"):
            return self.texts(name)
        getters = {"float": self.number, "str": self.text, "bool": self.flag}
        return getters[kind.removesuffix(" | None")](name, default)

    def finish(self) -> None:
        """Raise CatalogError when the row has a key that nothing asked for."""
        for key in self.values:
            if key not in self.seen:
                raise self.error(unknown("key", key, self.seen), key)

    def over(self, base: TomlRow) -> TomlRow:
        """Return ``base`` with this row's keys instead of its own."""
        values = {**base.values, **self.values}
        return TomlRow(self.kind, values, self.file, self.line, self.lines)


def _positions(text: str) -> dict[str, list[tuple[int, dict[str, int]]]]:
    """Return the header line and the line of each key for every table array, in order."""
    found: dict[str, list[tuple[int, dict[str, int]]]] = {}
    keys: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _HEADER.match(line):
            keys = {}
            found.setdefault(match[1], []).append((number, keys))
        elif match := re.match(r"^\s*(?:\[\s*[A-Za-z]+\.)?([A-Za-z0-9_-]+)[\]\s.]*(?:=|$)", line):
            keys.setdefault(match[1], number)
    return found


def parse(text: str, file: str) -> dict[str, tuple[TomlRow, ...]]:
    """Return the rows of a catalog file's text by kind.

    Raises:
        CatalogError: the TOML is broken or a table is of no known kind.
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5000 digits is a ValueError
        raise CatalogError(f"{file} is not valid TOML: {error}.") from error
    positions = _positions(text)
    rows: dict[str, tuple[TomlRow, ...]] = {}
    for kind, tables in document.items():
        if kind == METRICS and Path(file).name == PROJECT_FILE:
            continue  # read by measure.registered
        if kind == METRICS:
            raise CatalogError(f"{file}: [metrics] counts only in {PROJECT_FILE} of your project.")
        if kind not in KINDS:
            raise CatalogError(f"{file}: {unknown('table', kind, KINDS)}")
        rows[kind] = rows_of(kind, tables, file, positions.get(kind, []))
    return rows


def rows_of(
    kind: str, tables: object, file: str, positions: Sequence[tuple[int, dict[str, int]]] = ()
) -> tuple[TomlRow, ...]:
    """Return the tables of one kind as rows; ``positions``: line of each header and of its keys.

    Raises:
        CatalogError: they are not tables.
    """
    items = cast(list[object], tables) if isinstance(tables, list) else [None]
    if not all(isinstance(item, dict) for item in items):
        raise CatalogError(f"{file}: write each row of {kind} under its own [[{kind}]].")
    # Where the counts differ (inline tables), a line would be a guess: name the file alone.
    places: list[tuple[int | None, dict[str, int]]] = [(None, {}) for _ in items]
    if len(positions) == len(items):
        places = list(positions)
    return tuple(
        TomlRow(kind, cast(dict[str, Any], item), file, line, keys)
        for item, (line, keys) in zip(items, places, strict=True)
    )


def read(path: Path) -> dict[str, tuple[TomlRow, ...]]:
    """Return the rows of a user's catalog file by kind.

    Raises:
        CatalogError: the file cannot be read or its TOML is broken.
    """
    try:
        return parse(untrusted.read_bytes(path, follow=True).decode(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CatalogError(f"Catalog file {path} cannot be read: {reason}.") from error
