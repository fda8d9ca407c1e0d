"""Tables, lists, blocks of settings and peaks of a document (Markdown, HTML, CSV, TSV) as claims.

``headings.toml`` says what a heading means, and which facts of the text above hold for a table.
What has two meanings (TFLOPS of one GPU or of all?) is not guessed: ``Claims.unread`` lists it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from scalebook.audit import device_tables, knowledge
from scalebook.audit import fields as vocabulary
from scalebook.audit.claimed_rows import Claims, Row, Sheet, Table, read_utf8
from scalebook.audit.device_tables import (
    CONTINUED,
    MOST_COLUMNS,
    MOST_ROWS,
    by_case,
    context,
    device_in,
    devices_in,
    models_by_size,
    named_once,
    near,
    peaks_in,
    separated,
)
from scalebook.audit.fields import RATES, heading_of, named_by, plain
from scalebook.audit.printed import (
    BY_UNIT,
    Heading,
    Printed,
    amount,
    improved,
    read_cell,
    read_printed,
    sizes_in,
)
from scalebook.audit.row_checks import check_row
from scalebook.audit.table_checks import TOTAL, base_of
from scalebook.errors import ClaimError
from scalebook.facts import catalog
from scalebook.settings import PARALLEL_SIZES, SETTINGS

SUFFIXES = (".md", ".markdown", ".txt", ".html", ".htm", ".csv", ".tsv")
LARGEST_FILE = 5_000_000  # bytes
MOST_BELOW = 300  # below a table of a page
MOST_TEXT = 2_000  # characters above a table that are read for facts, or of a line
_MOST_PROSE = 100_000  # characters of a document that must name one model only
# what a heading further up may say, if nothing else is named, or the one list of settings
_OF_DOCUMENT = {"model", "gpus_per_node", "sequence_length", "batch_size_per_replica"}

# what a remark below a table, or its headings, may say, and how many lines of that are read
_BELOW = (
    "device_memory_gb",
    "price_per_gpu_hour",
    "peak_tflops_per_second",
    "sequence_length",
    "grid_kg_per_kwh",
)
_CAPTION = (*_BELOW, "model", "accelerator", "precision")
_UNDER = 3

_SEPARATOR = re.compile(r"\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*")
# a text may name these of something else
_COUNTS = frozenset({"gpus", "gpus_per_node", "batch_size_per_replica", "price_per_gpu_hour"})
_ITEM = re.compile(r"\s*[-*+] +\*{0,2}(?P<name>[^:*|]{1,40})\*{0,2}:\*{0,2}\s*(?P<value>.*)$")
_INTRO = re.compile(r"\*\*(.+?)\*\*:?")
# what settles the same thing: of one stated, the text around a table adds no other
_SHAPE = {"num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "num_experts"}
_ALIKE = ({"model", "parameters", *_SHAPE}, {"gpus", "nodes", "data_parallel_size"})
_PARTS = {"gpus_per_node", "data_parallel_size", *PARALLEL_SIZES}  # of all GPUs
_OF_DEVICE = re.compile("vram|hbm|memory bandwidth")  # what only a list of a device has
_COUNTED = re.compile("model|useful|achieved", re.IGNORECASE)  # says what FLOPs are counted
_GB_AND_GIB = {("memory_gb", "gb"), ("memory_gb", "gib")}
_TFLOPS = re.compile(r"((model|achieved) )?tflops?(/s)?")
_OF_ONE, _AS_PEAK = "model_tflops_per_second_per_gpu", 0.015  # 1,978.9 is printed as 2,000
_SAME_PERCENT = 0.1  # by which an MFU may differ from the one of a rate
_FRACTIONS = ("mfu", "hfu", "memory_fraction", "scaling_efficiency", "scaling_overhead")


def load_document(path: Path, *, follow: bool = False) -> Claims:
    """Return the claims of every table of a document.

    Raises:
        ClaimError: the file cannot be read, is too large, or has no table with a known heading.
    """
    text = read_utf8(path, LARGEST_FILE, follow=follow)
    return read_document(text, path.suffix.lower(), str(path))


def read_document(text: str, suffix: str, name: str) -> Claims:
    """Return the claims of the tables in a text of a kind of file, such as ``.md``."""
    lists, unread, prose = list[Sheet](), list[str](), ""
    if suffix in (".csv", ".tsv"):
        sheets = list(separated(text, "\t" if suffix == ".tsv" else ",", Path(name).name))
    else:
        sheets, prose = device_tables.in_html(text)
    sheets = [device_tables.arranged(one) for one in sheets]
    for sheet in sheets:
        _say(sheet, sheet.above.rpartition("\n#")[2][-MOST_TEXT:])
    sheets = [_remarked(sheet, sheet.below[:MOST_BELOW]) for sheet in sheets]
    if suffix not in (".csv", ".tsv", ".html", ".htm"):
        sheets += map(device_tables.arranged, _markdown(text))
        lists = list(_lists(text, unread))
        prose = "\n".join(line for line in text.splitlines() if "|" not in line)
    lists += [one for sheet in sheets if _turned(sheet) for one in _one_row(sheet)]
    sheets = [sheet for sheet in sheets if not _turned(sheet)]
    wide = [sheet for sheet in sheets if len(sheet.head) > MOST_COLUMNS]
    if wide or sum(len(sheet.rows) for sheet in sheets) > MOST_ROWS:
        what = f"{MOST_COLUMNS} columns in a table" if wide else f"{MOST_ROWS:,} rows of tables"
        raise ClaimError(f"{name} has more than {what}. Split it.")
    _set_up([*sheets, *lists], lists, device_in(prose))
    for sheet in sheets:
        sheet.sized = models_by_size(prose[:_MOST_PROSE])
    sheets = [one for sheet in sheets for one in _by_device(sheet, unread)]
    cases = (part for sheet in sheets for one in by_case(sheet) for part in _parts(one))
    tables = [table for part in cases if (table := _table(part, unread)) is not None]
    parts = (*(part for sheet in lists for part in _parts(sheet)), *peaks_in(text, unread))
    listed = (table for part in parts if (table := _table(part, [])) is not None)
    tables += [
        table for table in listed if any(len(r.values) + len(r.words) > 2 for r in table.rows)
    ]
    counts = set(vocabulary.pattern("gpus").findall(prose))
    single = [table.rows[0].values for table in tables if len(table.rows) == 1]
    counts |= {one["gpus"].text for one in single if "gpus" in one and one["gpus"].value > 1}
    if products := {
        str(int(nodes) * int(each or every))
        for nodes, each, every in vocabulary.pattern("nodes_of").findall(prose)
    }:  # 8 nodes x 8 GPUs
        counts = products
    tables = [_counted(one, *counts) if len(counts) == 1 else one for one in tables]
    if not tables:
        looked = f" Headings: {'; '.join(unread[:12])}." if unread else ""
        raise ClaimError(
            f"{name} has no table with a known heading and a number below it.{looked} "
            "'scalebook audit --fields' lists the names that a heading may have."
        )
    return Claims(Path(name).name, "", tuple(tables), tuple(dict.fromkeys(unread)))


def _markdown(text: str) -> Iterator[Sheet]:
    """Yield the pipe tables of a text; a heading above names them."""
    lines, name = text.splitlines(), "Table"
    whole = context(" ".join(line for line in lines if "|" not in line)[:_MOST_PROSE])
    sheet, outer = None, [""]  # headings, each of more # than the one before, with their text
    for number, (line, below) in enumerate(pairwise([*lines, ""]), start=1):
        if sheet is not None and "|" in line:
            if not _SEPARATOR.fullmatch(line):
                sheet.rows.append((number, _cells(line)))
            continue
        if sheet is not None:
            under = "\n".join(lines[number - 1 : number + _UNDER]).partition("\n#")[0]
            yield _remarked(sheet, under.partition("|")[0])
            sheet = None
        if line.startswith("#"):
            name = plain(line.lstrip("#")) or name
            marks = line[: len(line) - len(line.lstrip("#"))]
            outer = [one for one in outer if not one.startswith(marks)] + [""]
        outer[-1] += f"{line}\n"
        if "|" in line and "|" in below and _SEPARATOR.fullmatch(below):
            said = sizes_in(re.sub(r"(?i)\S+ ?GPUs? ?(/|per).*", "", name))
            counts = {key: one.text for key, one in said if key in ("gpus", "global_batch_size")}
            over = _cells(lines[number - 2]) if number > 1 and "|" in lines[number - 2] else []
            two = device_tables.headed(Sheet(name, over, [(number, _cells(line))]))
            sheet = Sheet(name, _cells(line)) if two.rows or not over else two
            sheet.given = counts | named_once("title", name)
            _say(sheet, outer[-1][-MOST_TEXT:])
            around = context(" ".join(one[:MOST_TEXT] for one in outer))
            only = {key: around[key] for key in _OF_DOCUMENT if around.get(key) and key in whole}
            titles = (plain(one.partition("\n")[0]) for one in outer)
            sheet.far |= only.keys() & _COUNTS | counts.keys() & {"global_batch_size"}
            hint = "; ".join(text for text in titles if knowledge.LORA.search(text))
            hint = hint or ", ".join(knowledge.LORA.findall(outer[-1][-MOST_TEXT:])[:1])
            sheet.given = only | sheet.given | ({"note": hint} if hint else {})
    if sheet is not None:
        yield sheet


def _lists(text: str, unread: list[str]) -> Iterator[Sheet]:
    """Yield lists of ``- name: value`` and blocks of settings as tables; a heading says of what."""
    title = heading = "List"
    items, fence = list[tuple[int, str, str]](), ""
    for number, line in enumerate([*text.splitlines(), "", "#"], start=1):
        inside = fence in ("json", "yaml", "yml", "toml", "python")
        setting = vocabulary.pattern("setting")
        item = setting.fullmatch(line[:MOST_TEXT]) if inside else _ITEM.match(line)
        intro = _INTRO.fullmatch(line.strip())
        if item is not None:
            name, value = plain(item["name"].replace("_", " ")), plain(item["value"].strip("\"'"))
            name = f"global {name}" if re.search(r"\bglobal\b", value) else name
            items.append((number, name, value))
        elif line.startswith("```") or (
            not inside and (not line.strip() or line[0] == "#" or intro)
        ):
            names = [name for _, name, value in items if value]
            if not inside or len(names) == len(set(names)):
                yield from _listed(title, items)
            else:
                unread.append(f"the block above line {number}, which has a name twice")
            items = []
            if line.startswith("```"):
                fence = "" if fence else line[3:].strip().lower() or "text"
            elif line.startswith("#") and not fence:
                title = heading = plain(line.lstrip("#"))
            elif intro and context(intro[1]):
                title = f"{heading}: {plain(intro[1])}"


def _listed(title: str, items: Sequence[tuple[int, str, str]]) -> Iterator[Sheet]:
    """Yield a row of what a list states, and rows of the peaks by precision in it."""
    if any(name == "dim" for _, name, _ in items):  # torchtitan's: beside it, this is the MLP's
        items = [one for one in items if one[1] != "hidden dim"]
    precisions = vocabulary.choices("precision")
    told = [item for item in items if item[2] and item[1].lower() not in precisions]
    devices = devices_in(" ".join([title, *(value for _, _, value in told)]))
    given = context(title) | ({"accelerator": devices[0]} if devices else {})
    if told:
        head = ["", *(name for _, name, _ in told)]
        yield Sheet(title, head, [(told[0][0], [title, *(text for _, _, text in told)])], given)
    names = (re.sub(r" tensor cores?$", "", name.lower()) for _, name, _ in items)
    peaks = [
        (at, name.upper(), re.sub("(?i)(flops)/gpu", r"\1", text))
        for name, (at, _, text) in zip(names, items, strict=True)
        if text and name in precisions
    ]
    said = any("peak" in name.lower() for _, name, value in items if not value)
    if peaks and (said or any(_OF_DEVICE.match(name.lower()) for _, name, _ in items)):
        head = ["", "precision", "peak tflops", "sparse peak tflops"]
        pairs = (("", text) if "spars" in text else (text, "") for _, _, text in peaks)
        rows = [
            (at, [title, name, *pair]) for (at, name, _), pair in zip(peaks, pairs, strict=True)
        ]
        yield Sheet(title, head, rows, given)


def _turned(sheet: Sheet) -> bool:
    """Return whether each row of a table is a quantity of one run: ``Metric | Value``."""
    head = [plain(cell).lower() for cell in sheet.head[:2]]
    known = vocabulary.headings()["turned"]
    return len(head) == 2 and head[0] in known["names"] and head[1] in known["values"]


def _one_row(sheet: Sheet) -> Iterator[Sheet]:
    items = [(line, plain(row[0]), plain(row[1])) for line, row in sheet.rows if len(row) > 1]
    for one in _listed(sheet.name, items):
        yield replace(one, given=sheet.given | one.given)


def _say(sheet: Sheet, text: str) -> None:
    """Give a table what the text above it states, and the rates as doubtful if it scales them."""
    stated = context(f"{sheet.name} {text}")
    scaled = re.search(vocabulary.headings()["loose"]["scales"], text, re.IGNORECASE)
    rates = {name for _, name in RATES} if scaled else set[str]()
    sheet.far = _COUNTS & (stated.keys() - sheet.given.keys()) | rates
    sheet.given = sheet.given | stated


def _remarked(sheet: Sheet, text: str) -> Sheet:
    """Return a table with what the text below it states, which may be of something else."""
    more = context(text)
    more = {key: more[key] for key in _CAPTION if key in more.keys() - sheet.given.keys()}
    return replace(sheet, given=sheet.given | more, far=sheet.far | more.keys())


def _set_up(sheets: Sequence[Sheet], lists: Sequence[Sheet], device: Mapping[str, str]) -> None:
    """Give every table what the one list of hardware and the one of settings state.

    Without a list of hardware, the one ``device`` that the whole document names.
    """
    found = list[dict[str, str]]()
    for pattern in vocabulary.headings()["setup"].values():
        told = [one for one in lists if re.fullmatch(pattern, one.name.lower())]
        pairs = zip(told[0].head, told[0].rows[0][1], strict=True) if len(told) == 1 else ()
        found.append(context("; ".join(f"{name}: {value}" for name, value in pairs)))
    hardware, settings = found
    given = dict(hardware if "accelerator" in hardware else device)
    given |= {key: settings[key] for key in _OF_DOCUMENT if key in settings}
    for sheet in sheets:
        heads = context("; ".join(sheet.head))
        sheet.given = given | sheet.given | {key: heads[key] for key in _BELOW if key in heads}


def _parts(sheet: Sheet) -> Iterator[Sheet]:
    """Yield a table by its cases: a run for each of two times, and for each size of a list."""
    names = [heading_of(head)[0] for head in sheet.head]
    families = {re.split(r"[^a-z]", shape.name)[0] for shape in catalog.models()}
    cells = {cell.lower() for _, row in sheet.rows for cell in row if cell != sheet.name}
    own = set(re.findall(r"\d+b", sheet.given.get("model", "")))  # a file named after its model
    named = (re.findall(r"[a-z]{3,}|\d+b", cell) for cell in cells)
    if any(families & set(one) and not own & set(one) for one in named):  # models of their own
        given = {key: text for key, text in sheet.given.items() if key not in _ALIKE[0]}
        sheet = replace(sheet, given=given)
    cases = {
        key: [at for at, name in enumerate(names) if re.fullmatch(pattern, name)]
        for key, pattern in vocabulary.headings()["cases"].items()
    }
    for at in cases["sizes"]:
        models = ["model" if named_by(name, "") == "model" else "" for name in names]
        sizes = [
            (line, [*cells[:at], size, *cells[at + 1 :]])
            for line, cells in sheet.rows
            for size in (cells[at].split(",") if at < len(cells) else ())
        ]
        yield Sheet(sheet.name, [*models[:at], "tp", *models[at + 1 :]], sizes, sheet.given)
    times = cases["times"] if len(cases["times"]) > 1 and not cases["ratio"] else []
    head = ["" if at in cases["sizes"] else text for at, text in enumerate(sheet.head)]
    for at in times:
        own = ["elapsed time" if i == at else "" if i in times else h for i, h in enumerate(head)]
        rows = [(line, [sheet.head[at], *cells]) for line, cells in sheet.rows]
        yield Sheet(sheet.name, ["", *own], rows, sheet.given)
    if not times:
        yield replace(sheet, head=head)


def _counted(table: Table, count: str) -> Table:
    """Return a table with the one number of GPUs that a text names, where a row fits it."""
    told = {"gpus": read_printed(count, exact=True)}
    every = [
        replace(row, values=told | {**row.values}, given=row.given | {"gpus"}) for row in table.rows
    ]
    for row, tried in zip(table.rows, every, strict=True):
        if {"gpus", "nodes"} & row.values.keys():
            continue
        checks = (
            one for one in check_row(knowledge.know(tried)) if not one.rule.startswith("whole")
        )
        found = {one.verdict for one in checks if re.search(r"\bgpus\b", one.rule + one.arithmetic)}
        if "holds" in found and not found & {"contradicts", "impossible"}:
            return replace(table, rows=tuple(every))
    return table


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|").removesuffix("|")
    return [cell.replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", inner)]


def _columns(sheet: Sheet, unread: list[str]) -> list[Heading]:
    """Return the columns whose heading is known; note the others.

    Two columns of one field and unit are two cases (Linear, 90 %): none of them is the row's.
    """
    found: dict[str, list[Heading]] = {}
    later: list[tuple[int, str, str]] = []
    named = [vocabulary.named(head) for head in sheet.head]
    plainer = [bare for *_, bare in named]
    for index, (name, unit, own_name, bare) in enumerate(named):  # Clean MFU, and no other one
        field_name = own_name or (bare if plainer.count(bare) == 1 else None)
        if field_name is None:
            later.append((index, name, unit))
            continue
        kind = vocabulary.headings()["kinds"].get(field_name)
        own = vocabulary.field(name.replace(" ", "_"))
        kind = None if own and not unit and kind not in BY_UNIT else kind  # the name says it
        if vocabulary.is_other(kind, unit):
            unread.append(f"{_shown(sheet, index)}: in {unit}?")
            continue
        key = f"{field_name} {vocabulary.factor(kind, unit) or ''}"
        found.setdefault(key, []).append(Heading(index, field_name, unit, kind))
    known = {columns[0].field: columns[0] for columns in found.values() if len(columns) == 1}
    single = [columns[0] for columns in found.values() if len(columns) == 1]
    for columns in found.values():
        if {(one.field, one.unit) for one in columns} == _GB_AND_GIB:  # both say the same
            again = {"field": "also_memory_gb", "kind": "gib"}
            single += [replace(one, **(again if one.unit == "gib" else {})) for one in columns]
        elif len(columns) > 1:
            unread += [f"{_shown(sheet, one.index)}, which appears twice" for one in columns]
    if not known.keys() & _of_runs():  # memory of what: used by a run, or of a device in a list?
        bare = ("memory", "mem", "vram")
        single = [one for one in single if heading_of(sheet.head[one.index])[0] not in bare]
    if {"before", "after", "speedup"} <= known.keys():
        single = [replace(one, field="ratio") if one.field == "speedup" else one for one in single]
    for index, name, unit in later:
        settled = _settled(name, known)
        kind = vocabulary.headings()["kinds"].get(settled or "")
        if settled is not None and not vocabulary.is_other(kind, unit):
            single.append(Heading(index, settled, unit, kind))
        elif name and index:  # the first column is what the rows are called
            reasons = vocabulary.headings()["reasons"].items()
            reason = next(
                (f": {why}" for heading, why in reasons if re.fullmatch(heading, name)), ""
            )
            unread.append(f"{_shown(sheet, index)}{reason}")
    return single


def _of_runs() -> set[str]:
    """Return the fields of columns that a table of runs has, and one of devices has not."""
    return {*SETTINGS, *vocabulary.headings()["runs"]["fields"]}


def _by_device(sheet: Sheet, unread: list[str]) -> Iterator[Sheet]:
    """Return a table of runs as it is, any other as ``of_devices`` does."""
    cells = (*sheet.head[1:], *(row[0] for _, row in sheet.rows if row))
    of_runs = _of_runs() & {named_by(*heading_of(cell)) for cell in cells}
    ratio = [
        at
        for at, one in enumerate(sheet.head)
        if re.fullmatch(vocabulary.headings()["compared"]["ratio"], plain(one).lower())
    ]
    known = [row for _, row in sheet.rows if row and named_by(*heading_of(row[0]))]
    named = any(named_by(*heading_of(one)) for one in sheet.head[1:])
    if not of_runs:
        yield from device_tables.of_devices(sheet, unread)
    elif len(known) * 2 < len(sheet.rows) or named:
        yield sheet
    else:  # rows are quantities, columns are runs
        yield from device_tables.turned(sheet, ratio)
    yield from device_tables.ratios_of(sheet, ratio, unread, named)


def _shown(sheet: Sheet, index: int) -> str:
    return f"{plain(sheet.head[index])!r} of {sheet.name!r}"


def _settled(name: str, found: Mapping[str, Heading]) -> str | None:
    for field_name, rule in vocabulary.headings()["settled"].items():
        fits = re.fullmatch(rule["heading"], name) and field_name not in found
        if fits and found.keys() & {*rule["beside"]} and not found.keys() & {*rule["without"]}:
            return field_name
    return None


def _table(sheet: Sheet, unread: list[str]) -> Table | None:
    """Return the claims of a table; None where no row states a number."""
    columns = [_as_filled(sheet, one) for one in _columns(_totalled(sheet), unread)]
    rows, labels = list[Row](), set[str]()
    for line, cells in sheet.rows:
        row = _row(sheet, columns, cells, line, unread)
        if row is not None:
            label = row.label if row.label not in labels else f"{row.label} (line {line})"
            labels.add(label)
            rows.append(replace(row, label=label, words={**row.words, "label": label}))
    if not rows:
        return None
    total = rows[-1].label if TOTAL.match(rows[-1].label) else None
    models = [column.index for column in columns if column.field == "model"]
    named = {cells[at] for _, cells in sheet.rows for at in models if at < len(cells)}
    # rates of two models do not compare, whether the catalog knows them or not
    base = base_of(rows) if len(named) <= 1 else None
    return Table(sheet.name, tuple(rows), base, (), total)


def _as_filled(sheet: Sheet, column: Heading) -> Heading:
    """Return a column as its cells say: ``GPU`` of counts; 41.25 of a fraction is not 4,125 %."""
    cells = [plain(cells[column.index]) for _, cells in sheet.rows if column.index < len(cells)]
    if column.field == "accelerator" and all(cell.isdigit() for cell in cells):
        return replace(column, field="gpus")
    amounts = sorted(one for cell in cells if "%" not in cell and (one := amount(cell)) > 0)
    usual = amounts[len(amounts) // 2] if amounts else 0.0
    percent = not column.unit and column.field in _FRACTIONS and 1.5 < usual <= 100
    return replace(column, unit="%") if percent else column


def _totalled(sheet: Sheet) -> Sheet:
    """Return the table with TFLOPS as those of one GPU, of all or of its peak, as the rows say.

    Bare ones are of one GPU where they are a row's MFU times its BF16 peak, of all where each is
    above twice that. Those of one GPU that are a peak in every row are no rates.
    """
    names = [heading_of(head) for head in sheet.head]
    fields = [named_by(*pair) for pair in names]
    if _OF_ONE in fields and len(sheet.rows) > 1:
        at = fields.index(_OF_ONE)
        if all(_is_peak(cells, at) for _, cells in sheet.rows):
            head = [*sheet.head[:at], f"peak of {sheet.head[at]}", *sheet.head[at + 1 :]]
            return replace(sheet, head=head)
    at = next((i for i, (name, _) in enumerate(names) if _TFLOPS.fullmatch(name)), None)
    if at is None:
        return sheet
    share = fields.index("mfu") if "mfu" in fields else len(names)
    every = True
    for _, cells in sheet.rows:
        name = next(iter(devices_in(" ".join(cells))), sheet.given.get("accelerator", ""))
        rates, text = vocabulary.peaks_of(name), cells[at] if at < len(cells) else ""
        percent = amount(cells[share]) if share < len(cells) else 0.0
        if rates and percent and abs(amount(text) / rates[0] * 100 - percent) < _SAME_PERCENT:
            return replace(sheet, head=[*sheet.head[:at], "tflops per gpu", *sheet.head[at + 1 :]])
        every = every and bool(rates) and not near(text, rates) and amount(text) > 2 * rates[0]
    head = [*sheet.head[:at], "total tflops", *sheet.head[at + 1 :]]
    return replace(sheet, head=head) if every else sheet


def _is_peak(cells: Sequence[str], at: int) -> bool:
    """Whether a cell prints a peak of the device that its row names."""
    rates = vocabulary.peaks_of(next(iter(devices_in(" ".join(cells))), ""))
    printed = amount(cells[at]) if at < len(cells) else 0.0
    return any(abs(printed / rate - 1) < _AS_PEAK for rate in rates)


def _row(
    sheet: Sheet, columns: Sequence[Heading], cells: Sequence[str], line: int, unread: list[str]
) -> Row | None:
    values, words, lines = dict[str, Printed](), dict[str, str](), dict[str, int]()
    shown = [plain(cell) for cell in cells]
    for column in columns:
        cell = shown[column.index] if column.index < len(shown) else ""
        if cell.lower() in ("", "-", "–", "—", "n/a", "na", "tbd", "none"):
            continue
        if column.field in vocabulary.words():
            words |= knowledge.catalog_words(column.field, cell)
        elif (read := read_cell(column, cell)) is not None:
            values[read[0]] = read[1]
            lines |= {read[0]: sheet.lines[column.index]} if sheet.lines.get(column.index) else {}
        else:
            unread.append(f"{cell!r} under {plain(sheet.head[column.index])!r}, line {line}")
    seen = [one for one in columns if one.index < len(shown)]
    doubtful = {one.field for one in seen if _doubtful(sheet.head[one.index], shown[one.index])}
    doubtful |= {one.field for one in seen if cells[one.index].startswith(CONTINUED)}
    parts = {one.index for one in columns if one.field in _PARTS}  # 600 | A100 are not 600 A100s
    for name, value in sizes_in(" | ".join(one for i, one in enumerate(shown) if i not in parts)):
        values.setdefault(name, value)
    at = {column.field: shown[column.index] for column in columns if column.index < len(shown)}
    if values.keys() >= {"before", "after", "increase"}:
        stated, values = len(values), improved(values, at)
        unread += [f"{at['increase']!r} of {at['before']!r}, line {line}"] * (len(values) < stated)
    doubtful |= _sized_model(sheet, at, values, words)
    unread += knowledge.not_in_catalog(at, words)
    own = {} if "accelerator" in at else device_in(" | ".join(shown))
    part = context(" ".join(shown[len(sheet.head) :]))
    own |= named_once("row", " ".join(shown))
    own |= {key: part[key] for key in _OF_DOCUMENT & part.keys()}
    around, text = sheet.given | own, " ".join([sheet.name, *shown])
    around |= {"model": ""} if _made_into_mixture(around.get("model", ""), values, text) else {}
    given = _given(replace(sheet, given=around), columns, values, words)
    doubtful |= (given | {name for _, name in RATES}) & (sheet.far - own.keys())
    doubtful |= vocabulary.unsaid(words, at, text)
    named = ("model", "nodes", "gpus", "sharding")
    taken = {column.index for column in columns if column.field not in named}
    label = next((cell for index, cell in enumerate(shown) if cell and index not in taken), "")
    bare = frozenset(one.field for one in columns if not _COUNTED.search(sheet.head[one.index]))
    if re.match(vocabulary.headings()["loose"]["rows"], label.lower()):
        doubtful |= values.keys()
    row = Row(
        sheet.name, label or f"line {line}", line, values, words, given, bare, frozenset(doubtful),
        lines,
    )  # fmt: skip
    if knowledge.has_memory_of_all(row):
        unread.append(f"{values.pop('memory_gb').text!r}, the memory of all GPUs, line {line}")
    return row if values.keys() - given or "architecture" in words else None


def _made_into_mixture(model: str, values: Mapping[str, Printed], text: str) -> bool:
    """Return whether a dense model that the text names was made into that of a row on experts."""
    spread = values.get("expert_parallel_size")
    experts = spread is not None and spread.value > 1 and knowledge.MIXTURE.search(text)
    return bool(experts and model) and catalog.model(model).moe is None


def _sized_model(
    sheet: Sheet, at: Mapping[str, str], values: dict[str, Printed], words: dict[str, str]
) -> set[str]:
    """Add the model that a row names by its size; return the fields that are not sure by that."""
    for size in (at.get("parameters", ""), at.get("active_parameters", "")):
        if "model" not in words:  # Mixtral of 8x7B (56B)
            name = f"{at.get('model', '')} {size.partition('(')[0]}"
            words |= knowledge.catalog_words("model", name)
    if "model" in words or not (size := vocabulary.bare_size(at.get("model", ""))):
        return set()
    values.setdefault("parameters", read_printed(size))
    words |= {"model": sheet.sized[size.lower()]} if size.lower() in sheet.sized else {}
    return {"model"} & words.keys()


def _doubtful(head: str, cell: str) -> bool:
    """Return whether neither a heading nor its cell says what a number is of: ``Throughput``."""
    rules = vocabulary.headings()["loose"]
    name, unit = heading_of(head)
    return re.fullmatch(rules["headings"], f"{name} {unit}".strip()) is not None and not re.search(
        rules["units"], f"{unit} {cell}".lower()
    )


def _given(
    sheet: Sheet, columns: Sequence[Heading], values: dict[str, Printed], words: dict[str, str]
) -> frozenset[str]:
    """Add to a row what the text around its table says; return the fields of that."""
    stated = {column.field for column in columns} | values.keys() | words.keys()
    alike = _ALIKE if len(sheet.rows) > 1 else _ALIKE[1:]  # a list names its one model
    stated |= {name for names in alike if names & stated for name in names}
    told = {name: text for name, text in sheet.given.items() if text}
    if words.get("sharding") == "none":  # DDP: a whole replica on each GPU
        told |= {"tensor_parallel_size": "1", "pipeline_parallel_size": "1"}
    for name in told.keys() - stated:
        if (own := vocabulary.field(name)) is not None:
            values[name] = read_printed(told[name], exact=own.exact)
        else:
            words[name] = told[name]
    return frozenset(told.keys() - stated)
