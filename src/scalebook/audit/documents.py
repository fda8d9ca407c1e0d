"""Tables of a document (Markdown, HTML, CSV, TSV) as claims, and lists of ``- name: value``.

``headings.toml`` says what a heading means. What it does not know, or what has two meanings (TFLOPS
of one GPU or of all?), is not guessed: ``Claims.unread`` lists it. Nothing of a document runs.
"""

from __future__ import annotations

import csv
import io
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

from scalebook.audit import fields as vocabulary
from scalebook.audit.claimed_rows import Claims, Row, Table, read_bounded
from scalebook.audit.knowledge import unknown_names
from scalebook.audit.printed import Printed, read_printed
from scalebook.errors import ClaimError
from scalebook.facts import catalog
from scalebook.settings import PARALLEL_SIZES, SETTINGS

SUFFIXES = (".md", ".markdown", ".txt", ".html", ".htm", ".csv", ".tsv")
LARGEST_FILE = 5_000_000  # bytes
MOST_ROWS = 5_000
LONGEST = 120  # characters of a label or a heading that is shown

_SEPARATOR = re.compile(r"\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*")
_MARKS = re.compile(r"[*_`†‡]+|\[\^?\d+\]|✅|\(baseline\)", re.IGNORECASE)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_ITEM = re.compile(r"\s*[-*+] +\*{0,2}(?P<name>[^:*|]{1,40})\*{0,2}:\*{0,2}\s*(?P<value>.*)$")
_UNIT = re.compile(r"^(?P<name>.*?)\s*[(\[](?P<unit>[^()\[\]]*)[)\]]\s*$")
_NUMBER = re.compile(
    r"^(?P<number>(?:~|≈|<=?|>=?|≤|≥|up to |about |at least )?\s*[-+−]?\$?\d[\d,]*(?:\.\d+)?"
    r"(?:e[-+]?\d+)?\s*(?:[KMBT](?![a-z])|million|billion|trillion)?\s*[%×x]?\+?)\s*"
    r"(?P<unit>[a-z$][a-z0-9/ .]*)?(?:\s*[(\[].*)?$",
    re.IGNORECASE,
)
_SIZES = re.compile(r"\b(TP|PP|CP|EP|DP)\s*[=-]?\s*(\d{1,5})\b")
_COUNTS = (
    (
        "gpus",
        re.compile(
            r"(?<![\d.,])(\d{1,6})\s*(?:x\s*)?(?:(?i:GPUs?)\b|[x×]\s*(?:NVIDIA |AMD )?[A-Z]{1,2}\d)"
        ),
    ),
    ("nodes", re.compile(r"\b(\d{1,6})\s*nodes?\b", re.IGNORECASE)),
)
_LONG = {SETTINGS[name].short: name for name in PARALLEL_SIZES} | {"DP": "data_parallel_size"}
# a unit must be written: a bare number may be anything
_UNIT_NEEDED = ("time", "bandwidth", "memory", "power", "energy")


@dataclass(slots=True)
class Sheet:
    """A table as it stands in a document: its heading cells and its rows with their lines."""

    name: str
    head: list[str]
    rows: list[tuple[int, list[str]]] = field(default_factory=list[tuple[int, list[str]]])


def load_document(path: Path, *, follow: bool = False) -> Claims:
    """Return the claims of every table of a document.

    Raises:
        ClaimError: the file cannot be read, is too large, or has no table with a known heading.
    """
    try:
        text = read_bounded(path, LARGEST_FILE, follow=follow).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ClaimError(f"{path} is not UTF-8 text.") from error
    return read_document(text, path.suffix.lower(), str(path))


def read_document(text: str, suffix: str, name: str) -> Claims:
    """Return the claims of the tables in a text of a kind of file, such as ``.md``."""
    lists: list[Sheet] = []
    if suffix in (".csv", ".tsv"):
        sheets = list(_separated(text, "\t" if suffix == ".tsv" else ",", Path(name).name))
    elif suffix in (".html", ".htm"):
        sheets = _html(text)
    else:
        sheets, lists = list(_markdown(text)), list(_lists(text))
    if sum(len(sheet.rows) for sheet in sheets) > MOST_ROWS:
        raise ClaimError(f"{name} has more than {MOST_ROWS:,} rows of tables. Split it.")
    unread: list[str] = []
    tables = [table for sheet in sheets if (table := _table(sheet, unread)) is not None]
    listed = (table for sheet in lists if (table := _table(sheet, [])) is not None)
    tables += [
        table for table in listed if any(len(r.values) + len(r.words) > 2 for r in table.rows)
    ]
    if not tables:
        looked = f" Headings: {'; '.join(unread[:12])}." if unread else ""
        raise ClaimError(
            f"{name} has no table with a known heading and a number below it.{looked} "
            "'scalebook audit --fields' lists the names that a heading may have."
        )
    return Claims(Path(name).name, "", tuple(tables), tuple(dict.fromkeys(unread)))


def _separated(text: str, delimiter: str, name: str) -> Iterator[Sheet]:
    reader = csv.reader(io.StringIO(text), delimiter=delimiter)
    sheet: Sheet | None = None
    try:
        for cells in reader:
            if sheet is None:
                sheet = Sheet(name, cells)
            elif any(cell.strip() for cell in cells):
                sheet.rows.append((reader.line_num, cells))
    except csv.Error as error:
        raise ClaimError(f"{name} line {reader.line_num}: {error}.") from error
    if sheet is not None:
        yield sheet


def _markdown(text: str) -> Iterator[Sheet]:
    """Yield the pipe tables of a text; a heading above names them."""
    lines, name = text.splitlines(), "Table"
    sheet: Sheet | None = None
    for index, line in enumerate(lines):
        if sheet is not None and "|" in line:
            if not _SEPARATOR.fullmatch(line):
                sheet.rows.append((index + 1, _cells(line)))
            continue
        if sheet is not None:
            yield sheet
            sheet = None
        if line.startswith("#"):
            name = _plain(line.lstrip("#")) or name
        below = lines[index + 1] if index + 1 < len(lines) else ""
        if "|" in line and "|" in below and _SEPARATOR.fullmatch(below):
            sheet = Sheet(name, _cells(line))
    if sheet is not None:
        yield sheet


def _lists(text: str) -> Iterator[Sheet]:
    """Yield lists of ``- name: value`` as tables; the heading above says of what."""
    title, items = "List", list[tuple[int, str, str]]()
    for number, line in enumerate([*text.splitlines(), "#"], start=1):
        if (item := _ITEM.match(line)) is not None:
            items.append((number, _plain(item["name"]), _plain(item["value"])))
        elif line.startswith("#") or not line.strip():
            yield from _listed(title, items)
            title, items = (_plain(line.lstrip("#")) if line.strip() else title), []


def _listed(title: str, items: Sequence[tuple[int, str, str]]) -> Iterator[Sheet]:
    """Yield a row of what a list states, and rows of the peaks by precision in it."""
    precisions = vocabulary.choices("precision")
    told = [item for item in items if item[2] and item[1].lower() not in precisions]
    device = _device(" ".join([title, *(value for _, _, value in told)]))
    if len(told) > 1:
        head = ["", *(name for _, name, _ in told), "gpu", "model"]
        cells = [title, *(value for _, _, value in told), device, title]
        yield Sheet(title, head, [(told[0][0], cells)])
    peaks = [item for item in items if item[2] and item[1].lower() in precisions]
    if peaks and any("peak" in name.lower() for _, name, value in items if not value):
        head = ["", "precision", "peak tflops", "sparse peak tflops", "gpu"]
        rows = [
            (at, [title, name, *(("", told) if "spars" in told else (told, "")), device])
            for at, name, told in peaks
        ]
        yield Sheet(title, head, rows)


def _device(text: str) -> str:
    """Return the first platform of the catalog that a text names, empty for none."""
    names = {platform.name for platform in catalog.platforms()}
    return next((word for word in re.findall(r"[a-z]+\d+\w*", text.lower()) if word in names), "")


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|").removesuffix("|")
    return [cell.replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", inner)]


class _Tables(HTMLParser):
    """Collect tables; the last heading or caption names them."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.sheets: list[Sheet] = []
        self._name, self._row, self._text = "Table", list[str](), list[str]()
        self._sheet: Sheet | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._sheet = Sheet(self._name, [])
        elif tag == "tr":
            self._row = []
        elif tag in ("td", "th", "caption", "h1", "h2", "h3", "h4"):
            self._text = []

    def handle_data(self, data: str) -> None:
        self._text.append(data)

    def handle_endtag(self, tag: str) -> None:
        text = " ".join("".join(self._text).split())
        if tag in ("h1", "h2", "h3", "h4"):
            self._name = text or self._name
        elif tag == "caption" and self._sheet is not None:
            self._sheet.name = text or self._sheet.name
        elif tag in ("td", "th"):
            self._row.append(text)
        elif tag == "tr" and self._sheet is not None and self._row:
            if self._sheet.head:
                self._sheet.rows.append((self.getpos()[0], self._row))
            else:
                self._sheet.head = self._row
        elif tag == "table" and self._sheet is not None:
            self.sheets.append(self._sheet)
            self._sheet = None


def _html(text: str) -> list[Sheet]:
    parser = _Tables()
    parser.feed(text)
    parser.close()
    return parser.sheets


def _plain(text: str) -> str:
    """Return a cell without Markdown's marks, links and footnotes."""
    shown = _MARKS.sub(" ", _LINK.sub(r"\1", text))
    return " ".join("".join(c for c in shown if c.isprintable()).split())[:LONGEST]


@cache
def _data() -> dict[str, Any]:
    path = files("scalebook.audit").joinpath("headings.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _factor(kind: str | None, unit: str) -> float | None:
    """Return the factor of a unit of a kind; None where it is not one of them."""
    known: Mapping[str, float] = _data()["units"].get(kind, {})
    return known.get(unit.lower().strip(" ."))


@dataclass(frozen=True, slots=True)
class _Column:
    index: int
    field: str  # of a claim, in its base unit
    unit: str  # as the heading writes it
    kind: str | None


def _heading(text: str) -> tuple[str, str]:
    """Return the name and the unit of a heading: ``Step time (ms)``."""
    plain = _plain(text.replace("_", " ")).lower()
    match = _UNIT.match(plain)
    return (match["name"], match["unit"]) if match and match["name"] else (plain, "")


def _columns(sheet: Sheet, unread: list[str]) -> list[_Column]:
    """Return the columns whose heading is known; note the others.

    Two columns of one field and unit are two cases (Linear, 90 %): none of them is the row's.
    """
    found: dict[str, list[_Column]] = {}
    later: list[tuple[int, str, str]] = []
    for index, head in enumerate(sheet.head):
        name, unit = _heading(head)
        own = vocabulary.field(name.replace(" ", "_"))
        field_name = own.name if own else _named(name, unit)
        if field_name is None:
            later.append((index, name, unit))
            continue
        kind = None if own else _data()["kinds"].get(field_name)
        key = f"{field_name} {_factor(kind, unit) or ''}"
        found.setdefault(key, []).append(_Column(index, field_name, unit, kind))
    known = {columns[0].field: columns[0] for columns in found.values() if len(columns) == 1}
    single = [columns[0] for columns in found.values() if len(columns) == 1]
    for columns in found.values():
        if len(columns) > 1:
            unread += [f"{_shown(sheet, one.index)}, which appears twice" for one in columns]
    if {"before", "after", "speedup"} <= known.keys():
        single = [replace(one, field="ratio") if one.field == "speedup" else one for one in single]
    for index, name, unit in later:
        settled = _settled(name, known)
        if settled is not None:
            single.append(_Column(index, settled, unit, None))
        elif name and index:  # the first column is what the rows are called
            unread.append(_shown(sheet, index))
    return single


def _shown(sheet: Sheet, index: int) -> str:
    return f"{_plain(sheet.head[index])!r} of {sheet.name!r}"


def _named(name: str, unit: str) -> str | None:
    """Return the field that a heading states; its unit may say what a throughput is of."""
    for kind, field_name in (
        ("gpu_token_rate", "tokens_per_second_per_gpu"),
        ("sample_rate", "samples_per_second"),
    ):
        if _factor(kind, unit) and re.fullmatch(r".*(throughput|rate|speed).*", name):
            return field_name
    named = f"{name} {unit}".strip()
    for field_name, patterns in _data()["fields"].items():
        if any(re.fullmatch(pattern, text) for pattern in patterns for text in (name, named)):
            return field_name
    return None


def _settled(name: str, found: Mapping[str, _Column]) -> str | None:
    for field_name, rule in _data()["settled"].items():
        fits = re.fullmatch(rule["heading"], name) and field_name not in found
        missing = [one for one in rule["without"] if one in found]
        if fits and not missing and any(one in found for one in rule["beside"]):
            return field_name
    return None


def _table(sheet: Sheet, unread: list[str]) -> Table | None:
    """Return the claims of a table; None where no row states a number."""
    columns = _columns(sheet, unread)
    rows: list[Row] = []
    labels: set[str] = set()
    for line, cells in sheet.rows:
        row = _row(sheet, columns, cells, line, unread)
        if row is not None:
            label = row.label if row.label not in labels else f"{row.label} (line {line})"
            labels.add(label)
            rows.append(Row(row.table, label, line, row.values, {**row.words, "label": label}))
    if not rows:
        return None
    total = next((row.label for row in rows if row.label.lower() in ("total", "sum")), None)
    models = [column.index for column in columns if column.field == "model"]
    named = {cells[at] for _, cells in sheet.rows for at in models if at < len(cells)}
    # rates of two models do not compare, whether the catalog knows them or not
    base = _base(rows) if len(named) <= 1 else None
    return Table(sheet.name, tuple(rows), base, (), total)


def _row(
    sheet: Sheet, columns: Sequence[_Column], cells: Sequence[str], line: int, unread: list[str]
) -> Row | None:
    values: dict[str, Printed] = {}
    words: dict[str, str] = {}
    plain = [_plain(cell) for cell in cells]
    for column in columns:
        cell = plain[column.index] if column.index < len(plain) else ""
        if cell.lower() in ("", "-", "–", "—", "n/a", "na", "tbd", "none"):
            continue
        if column.field in vocabulary.words():
            words |= _word(column.field, cell)
        elif (read := _value(column, cell)) is not None:
            values[read[0]] = read[1]
        else:
            unread.append(f"{cell!r} under {_plain(sheet.head[column.index])!r}, line {line}")
    for name, value in _sizes(" ".join(plain)):
        values.setdefault(name, value)
    taken = {column.index for column in columns if column.field not in ("model", "nodes", "gpus")}
    label = next((cell for index, cell in enumerate(plain) if cell and index not in taken), "")
    row = Row(sheet.name, label or f"line {line}", line, values, words)
    return _known_names(row) if values or "architecture" in words else None


def _word(name: str, cell: str) -> dict[str, str]:
    """Return a cell of words by the names of the catalog; nothing where it has none."""
    if name == "model":
        return {name: found} if (found := _catalog_name(cell)) else {}
    if name == "accelerator":
        device = re.sub(r"^\d+\s*[x×]\s*", "", cell)
        return {name: re.sub(r"^(nvidia|amd)\s+(instinct\s+)?", "", device, flags=re.IGNORECASE)}
    lowered = re.sub(r"^mixture.of.experts.*", "moe", cell.lower())
    allowed = vocabulary.choices(name)
    return {name: lowered} if not allowed or lowered in allowed else {}


def _catalog_name(text: str) -> str | None:
    """Return the catalog's name of a model as people write it: ``Llama 3.1 8B``."""
    wanted = re.sub(r"[^a-z0-9.]", "", text.lower())
    wanted = re.sub(r"^(nvidia|meta|google|mistralai|microsoft)", "", wanted)
    names = (shape.name for shape in catalog.models())
    return next((name for name in names if re.sub(r"[^a-z0-9.]", "", name) == wanted), None)


def _known_names(row: Row) -> Row:
    """Return the row without a name that the catalog lacks."""
    words = dict(row.words)
    for name in ("accelerator", "model"):
        if unknown_names(Row(row.table, row.label, row.line, row.values, words)) is not None:
            words.pop(name, None)
    return Row(row.table, row.label, row.line, row.values, words)


def _value(column: _Column, cell: str) -> tuple[str, Printed] | None:
    """Return the field (by its unit) and the value that a cell states; None if it is unreadable."""
    match = _NUMBER.match(cell)
    if match is None:
        return _plain_value(column.field, cell) if column.kind not in _UNIT_NEEDED else None
    unit = (match["unit"] or "").strip() or column.unit
    name = column.field
    kind = _data()["kinds"].get(name) if column.kind else None
    if column.field == "tokens_per_second":  # the unit says what a throughput is of
        for other, field_name in (
            ("gpu_token_rate", "tokens_per_second_per_gpu"), ("sample_rate", "samples_per_second"),
            ("gpu_tflops", "model_tflops_per_second_per_gpu"),
        ):  # fmt: skip
            if _factor(other, unit):
                name, kind = field_name, other
    factor = _factor(kind, unit) if kind else 1.0
    if factor is None:
        if kind in _UNIT_NEEDED or match["unit"]:
            return None
        factor = 1.0
    number = match["number"].strip().removesuffix("×").removesuffix("x").strip()
    own = vocabulary.field(name)
    if own is None:
        return None
    try:
        read = read_printed(number, exact=own.exact, scale=own.scale * factor)
    except ClaimError:
        return None
    unit_fields = (one for one in vocabulary.fields().values() if one.quantity == own.quantity)
    typed = next((one.name for one in unit_fields if one.scale == own.scale * factor), name)
    return typed, read


def _plain_value(name: str, cell: str) -> tuple[str, Printed] | None:
    own = vocabulary.field(name)
    try:
        return (name, read_printed(cell, exact=own.exact, scale=own.scale)) if own else None
    except ClaimError:
        return None


def _sizes(text: str) -> Iterator[tuple[str, Printed]]:
    """Yield sizes that stand in words: ``TP=4, PP=2``, ``8 GPUs across 2 nodes``, ``8xA100``."""
    for short, size in _SIZES.findall(text):
        yield _LONG[short], read_printed(size, exact=True)
    for name, pattern in _COUNTS:
        match = pattern.search(text)
        if match:
            yield name, read_printed(match[1], exact=True)


def _base(rows: Sequence[Row]) -> str | None:
    """Return the row that speed-ups refer to: the smallest, if it says 100 % or 1."""
    sized = [row for row in rows if "gpus" in row.values or "nodes" in row.values]
    if len(sized) < 2:
        return None

    def size(row: Row) -> float:
        return (row.values.get("gpus") or row.values["nodes"]).value

    first = min(sized, key=size)
    told = [first.values.get(name) for name in ("speedup", "scaling_efficiency")]
    return first.label if any(value is not None and value.value == 1 for value in told) else None
