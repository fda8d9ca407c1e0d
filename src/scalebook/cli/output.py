"""Print JSON without NaN, CSV for programs, and tables for people."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO, cast

from scalebook import untrusted

_NUMBER = re.compile(r"-|(?=\D*\d)[\d,]*\.?[\d,]*(?:e\+\d+)?%*")


class VisibleText:
    """A text stream whose reader sees what others wrote, and whose terminal does not obey it.

    Everything but ``write`` is the stream's own; ``terminal`` is the stream.
    """

    def __init__(self, stream: TextIO) -> None:
        """Write to a stream."""
        self.terminal = stream

    def __getattr__(self, name: str) -> Any:
        """Return what the stream has under a name."""
        return getattr(self.terminal, name)

    def write(self, text: str) -> int:
        """Write a text; JSON stays the same value."""
        return self.terminal.write(untrusted.visible(text))


def plain(value: Any) -> Any:
    """Return a value made of what JSON knows: dataclasses and mappings become objects."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [item.name for item in dataclasses.fields(value)]
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast(Sequence[Any], value)]
    return value


def print_json(value: Any) -> None:
    """Print a value as JSON; a NaN anywhere is an error, never output."""
    print(json.dumps(plain(value), indent=1, allow_nan=False, ensure_ascii=False))


def print_data(value: Any, form: str) -> None:
    """Print rows of data as ``csv`` or ``json``: what ``--csv`` and ``--json`` ask for.

    CSV has a column for each field of any row; a nested value is JSON.
    """
    if form != "csv":
        return print_json(value)
    found = plain(value)
    rows = cast(list[dict[str, Any]], found if isinstance(found, list) else [found])
    writer = csv.DictWriter(
        sys.stdout, dict.fromkeys(name for row in rows for name in row), lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows({name: _csv_cell(cell) for name, cell in row.items()} for row in rows)
    return None


def _csv_cell(value: Any) -> Any:
    """Return a value for CSV; a text that a spreadsheet would run as a formula gets a quote."""
    if isinstance(value, str):
        return f"'{value}" if value[:1] in tuple("=+-@\t\r") else value
    nested = isinstance(value, bool | dict | list)
    return json.dumps(value, allow_nan=False, ensure_ascii=False) if nested else value


def number(value: float | None, digits: int = 4) -> str:
    """Return a number with ``digits`` significant digits and grouped thousands, or a dash."""
    if value is None:
        return "-"
    if abs(value) >= 10 ** (digits - 1) or value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.{digits}g}"


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print left-aligned columns, numbers to the right."""
    columns = list(zip(headers, *rows, strict=True))
    cells: list[str] = []
    for column in columns:
        side = ">" if all(map(_NUMBER.fullmatch, column[1:])) else "<"
        cells.append(f"{{:{side}{max(map(len, column))}}}")
    write = "  ".join(cells).format
    print("\n".join([write(*row).rstrip() for row in (headers, *rows)]))
