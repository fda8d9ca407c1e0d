"""Read claims from TOML files and from result rows; errors name the file and the line.

A claims file is TOML. Numbers are written as texts, exactly as the source prints them (see
``printed`` for marks and rounding), so that the digits say how much rounding to allow::

    title = "A benchmark report"                 # what is audited
    source = "report.pdf, version 2, page 4"     # where it can be found

    [[tables]]
    name = "Scaling"
    line = 52                                    # of the first row in the source (optional; or
                                                 # a column "line", where rows are not in turn)
    given = { gpus_per_node = "8" }              # holds for every row (optional)
    base = "1 node"                              # the row that speed-ups refer to (optional)
    same = ["price_per_node_hour"]               # quantities that all rows share (optional)
    total = "Total"                              # the row that adds up the others (optional)
    columns = ["label", "nodes", "gpus", "tokens_per_second", "scaling_efficiency"]
    rows = [
      ["1 node", "1", "8", "36,421", "100%"],
      ["2 nodes", "2", "16", "70,234", "96.4%"],
    ]

    [[claims]]                                   # a single row
    label = "Headline"
    line = 12
    model = "llama3.1-8b"
    accelerator = "h100"
    model_tflops_per_second_per_gpu = "450"
    mfu = "22.7%"

An empty cell states nothing. ``scalebook audit --fields`` lists the columns.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from scalebook.audit import fields as vocabulary
from scalebook.audit.claimed_rows import Claims, Row, Table, read_bounded, read_utf8
from scalebook.audit.knowledge import in_catalog
from scalebook.audit.printed import Printed, read_printed, upright
from scalebook.errors import ClaimError, unknown
from scalebook.measure.intervals import Interval, point
from scalebook.settings import PARALLEL_SIZES, named


@dataclass(frozen=True, slots=True)
class Place:
    """A part of a TOML text that starts at line ``start`` (counted from 1)."""

    file: str
    text: str
    start: int = 1
    unread: list[str] = field(default_factory=list[str])  # of the whole text

    def headers(self, name: str, count: int) -> list[Place]:
        """Return the places of every ``[[name]]``, or ``count`` times this one if they differ."""
        pattern = re.compile(rf"^\s*\[\[\s*{name}\s*\]\]")
        found = [i for i, line in enumerate(self.text.splitlines(), 1) if pattern.match(line)]
        if len(found) != count:  # written in another way, or inside a text
            return [self] * count
        return [replace(self, start=line) for line in found]

    def error(self, message: str, near: str | None = None) -> ClaimError:
        """Return the error with file and line: of the first ``near`` from here on, or of here."""
        lines = self.text.splitlines()
        line = self.start
        if near:
            hits = (i for i in range(self.start - 1, len(lines)) if near in lines[i])
            line = next(hits, self.start - 1) + 1
        return ClaimError(f"{self.file} line {line}: {message}")


LARGEST_FILE = 2_000_000  # bytes
MOST_ROWS = 5_000  # some seconds of work
LONGEST_WORD = 300

_TOP = ("title", "source", "tables", "claims")
_TABLE = ("name", "line", "given", "base", "same", "total", "columns", "rows", "note")


def load_claims(path: Path, *, follow: bool = False) -> Claims:
    """Return the claims of a TOML file; ``follow`` is for one that the user named.

    Raises:
        ClaimError: the file cannot be read, is too large, or is malformed; with file and line.
    """
    return parse_claims(read_utf8(path, LARGEST_FILE, follow=follow), str(path))


def parse_claims(text: str, name: str) -> Claims:
    """Return the claims of a TOML text; ``name`` is the file's, for messages."""
    try:
        data = tomllib.loads(text, parse_float=str)
    except (ValueError, RecursionError) as error:  # ValueError: bad TOML, or a huge integer
        reason = " ".join(str(error).split())[:200]
        raise ClaimError(f"{name} is not valid TOML: {reason}.") from error
    place = Place(name, text)
    _known(data, _TOP, "key", place)
    tables: list[Table] = []
    for kind, read in (("tables", _table), ("claims", _single)):
        rows = _tables(data, kind, place)
        places = place.headers(kind, len(rows))
        tables += [read(row, i, at) for i, (row, at) in enumerate(zip(rows, places, strict=True))]
    if not any(table.rows for table in tables):
        raise place.error("no claims in it. Add [[tables]] or [[claims]].")
    if sum(len(table.rows) for table in tables) > MOST_ROWS:
        raise place.error(f"more than {MOST_ROWS:,} rows. Split it.")
    title = _word(data.get("title", name), "title", place)
    source, unread = _word(data.get("source", ""), "source", place), dict.fromkeys(place.unread)
    return Claims(title, source, tuple(tables), tuple(unread))


def _known(data: Mapping[str, Any], allowed: tuple[str, ...], kind: str, place: Place) -> None:
    for key in data:
        if key not in allowed:
            raise place.error(unknown(kind, key[:60], allowed), key)


def _tables(data: Mapping[str, Any], key: str, place: Place) -> list[dict[str, Any]]:
    value = _list(data.get(key, []))
    if value is None or not all(isinstance(item, dict) for item in value):
        raise place.error(f"{key} must be written as [[{key}]].", key)
    return cast(list[dict[str, Any]], value)


def _list(value: Any) -> list[Any] | None:
    return cast(list[Any], value) if isinstance(value, list) else None


def _single(data: Mapping[str, Any], number: int, place: Place) -> Table:
    line = _line(data.get("line"), place)
    cells = {key: value for key, value in data.items() if key != "line"}
    label = _word(cells.get("label", f"claim {number + 1}"), "label", place)
    return Table(label, (_row(label, cells, line, place),))


def _table(data: Mapping[str, Any], number: int, place: Place) -> Table:
    _known(data, _TABLE, "table key", place)
    name = _word(data.get("name", f"table {number + 1}"), "name", place)
    columns = _columns(data, name, place)
    given = data.get("given", {})
    if not isinstance(given, dict):
        raise place.error('given must be written as { field = "value" }.', "given")
    shared = {"note": data["note"]} if "note" in data else {}
    first = _line(data.get("line"), place)
    rows: list[Row] = []
    for index, cells in enumerate(_list(data.get("rows")) or []):
        named = _named(cells, columns, f"row {index + 1} of table {name!r}", place)
        line = _line(named.pop("line", None if first is None else first + index), place)
        rows.append(_row(name, named, line, place, {**shared, **cast(dict[str, Any], given)}))
    base, total = (_optional_label(data, key, rows, place) for key in ("base", "total"))
    return Table(name, tuple(rows), base, _same(data.get("same", []), place), total)


def _columns(data: Mapping[str, Any], name: str, place: Place) -> list[str]:
    columns = _list(data.get("columns"))
    if columns is None or _list(data.get("rows")) is None:
        raise place.error(f"table {name!r} needs columns = [...] and rows = [[...], ...].")
    for column in columns:
        if column != "line":
            _field(column, place)
    if len(set(columns)) != len(columns):
        raise place.error(f"table {name!r} has two columns of the same name.", "columns")
    return columns


def _named(cells: Any, columns: list[str], what: str, place: Place) -> dict[str, Any]:
    """Return the cells that state something, by column."""
    row = _list(cells)
    if row is None or len(row) != len(columns):
        count = 0 if row is None else len(row)
        raise place.error(f"{what} has {count} cells; its columns are {len(columns)}.", "rows")
    return {name: cell for name, cell in zip(columns, row, strict=True) if cell != ""}


def _same(value: Any, place: Place) -> tuple[str, ...]:
    names = _list(value)
    if names is None:
        raise place.error("same must be a list of fields.", "same")
    found = [_field(name, place) for name in names]
    return tuple(item.quantity for item in found if item)


def _optional_label(data: Mapping[str, Any], key: str, rows: list[Row], place: Place) -> str | None:
    if key not in data:
        return None
    label = _word(data[key], key, place)
    if label not in {row.label for row in rows}:
        raise place.error(f"{key}={label!r} is not the label of any row of this table.", key)
    return label


def _row(
    table: str,
    cells: Mapping[str, Any],
    line: int | None,
    place: Place,
    given: Mapping[str, Any] | None = None,
) -> Row:
    shared = {key: cell for key, cell in (given or {}).items() if key not in cells}
    words: dict[str, str] = {}
    values: dict[str, Printed] = {}
    for key, cell in {**shared, **cells}.items():
        item = _field(key, place)
        if item is None:
            words[key] = _choice(_word(cell, key, place), key, place)
        else:
            values[key] = _value(item, cell, place)
    words, unknown = in_catalog(words)
    place.unread.extend(unknown)
    label = words.get("label", table)
    return Row(table, label, line, upright(values), words, frozenset(shared))


def _choice(value: str, key: str, place: Place) -> str:
    allowed = vocabulary.choices(key)
    if allowed and value not in allowed:
        raise place.error(f"{key}={value!r} must be one of {', '.join(allowed)}.", value)
    return value


def _value(item: vocabulary.Field, cell: Any, place: Place) -> Printed:
    if isinstance(cell, bool) or not isinstance(cell, str | int):
        raise place.error(f'{item.name} must be a text such as "87,933".', item.name)
    try:
        return read_printed(str(cell), exact=item.exact, scale=item.scale)
    except ClaimError as error:
        raise place.error(f"{item.name}: {error}", str(cell)) from error


def _field(name: Any, place: Place) -> vocabulary.Field | None:
    """Return the number field of a name, None for a field of words."""
    item = vocabulary.field(name) if isinstance(name, str) else None
    if item is None and (not isinstance(name, str) or name not in vocabulary.words()):
        raise place.error(vocabulary.unknown_field(str(name)[:60]), str(name))
    return item


def _word(value: Any, key: str, place: Place) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_WORD or not value.isprintable():
        raise place.error(
            f"{key} must be a printable text of at most {LONGEST_WORD} characters.", key
        )
    return value


def _line(value: Any, place: Place) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 10**9:
        raise place.error(f"line={str(value)[:20]} must be a line number.", "line")
    return value


LARGEST_RESULTS = 20_000_000  # bytes
COMPUTED = 1e-6  # rounding of a number that was computed rather than printed
LARGEST = 1e30

# Column of a result row -> field of a claim. The median of the steps is left out: tokens per
# second are all tokens over all time, which follows the mean. GiB are taken as the GB by which
# makers name the memory of a device: an "80 GB" device has about 80 GiB.
_SAME = (
    "nodes", *PARALLEL_SIZES, "data_parallel_size", *named("size"), "sequence_length", "num_layers",
    "tokens_per_second", "tokens_per_second_per_gpu", "model_tflops_per_second_per_gpu",
    "peak_tflops_per_second", "mfu",
)  # fmt: skip
NUMBERS = {"world_size": "gpus", **{n: n for n in _SAME}, "peak_memory_gib": "memory_gb"}
PEAK_FIELDS = ("mfu", "peak_tflops_per_second")
WORDS = ("model", "accelerator", "precision")


def load_results(path: Path, *, follow: bool = False) -> Claims:
    """Return the claims of a JSON array of result rows; raises ClaimError as ``read_rows``."""
    return parse_results(read_rows(path, follow=follow), str(path))


def read_rows(path: Path, *, follow: bool = True) -> list[dict[str, Any]]:
    """Return the objects of a JSON array.

    Raises:
        ClaimError: the file cannot be read, is too large, or is no JSON array of objects.
    """
    data = read_bounded(path, LARGEST_RESULTS, follow=follow)
    try:
        rows = json.loads(data)
    except (ValueError, RecursionError) as error:  # ValueError: bad JSON, UTF-8 or a huge integer
        reason = " ".join(str(error).split())[:200]
        raise ClaimError(f"{path} is not valid JSON: {reason}.") from error
    items = cast(list[Any], rows) if isinstance(rows, list) else []
    if not items or not all(isinstance(row, dict) for row in items):
        raise ClaimError(f"{path} contains no result rows: a JSON array of objects is expected.")
    if len(items) > MOST_ROWS:
        raise ClaimError(f"{path} has more than {MOST_ROWS:,} rows. Split it.")
    return cast(list[dict[str, Any]], items)


def parse_results(rows: Sequence[Mapping[str, Any]], name: str) -> Claims:
    """Return the claims of the completed runs; ``name`` is the file's, for messages.

    Raises:
        ClaimError: no run completed, a number is none, or a name is no short printable text.
    """
    unread: list[str] = []
    found = tuple(
        _result(row, f"{name} row {number}", unread)
        for number, row in enumerate(rows, 1)
        if row.get("status", "completed") == "completed"
    )
    if not found:
        raise ClaimError(f"{name} contains no completed run to audit.")
    return Claims("Result rows", name, (Table("Results", found),), tuple(dict.fromkeys(unread)))


def _result(data: Mapping[str, Any], place: str, unread: list[str]) -> Row:
    label = _text(data.get("run_id"), place) or place
    words = {key: text for key in WORDS if (text := _text(data.get(key), place))}
    values = {
        field: _number(data[column], f"{place}: {column}")
        for column, field in NUMBERS.items()
        if data.get(column) is not None
    }
    if data.get("packed_documents") not in (None, 1):
        words["packed_sequences"] = "yes"
    over = _text(data.get("peak_precision"), place)
    if over and over != words.get("precision"):  # an fp8 run whose MFU is over the bf16 peak
        values = {key: value for key, value in values.items() if key not in PEAK_FIELDS}
        words["note"] = f"MFU over the {over} peak: left out"
    words, unknown = in_catalog(words)
    unread += unknown
    return Row("Results", label, None, values, words)


def _text(value: Any, place: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > 300 or not value.isprintable():
        raise ClaimError(f"{place}: a name must be a printable text of at most 300 characters.")
    return value


def _number(value: Any, place: str) -> Printed:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ClaimError(f"{place}={str(value)[:40]!r} must be a number or null.")
    if not abs(value) <= LARGEST or math.isnan(value):
        raise ClaimError(f"{place} must be a finite number below {LARGEST:g}.")
    number = float(value)
    if isinstance(value, int):
        return Printed(str(value), number, point(number), point(number))
    # a number that somebody rounded has few digits; a computed one has its own rounding
    exponent = Decimal(repr(value)).as_tuple().exponent
    unit = 10.0**exponent if isinstance(exponent, int) else 0.0
    slack = abs(number) * COMPUTED
    low, ends = number - max(unit / 2, slack), (unit / 2, unit)
    interval, claimed = (Interval(low, number + max(end, slack)) for end in ends)
    return Printed(f"{value:.10g}", number, interval, claimed)
