"""Tables as they stand in a document: read, turned, and those of devices; and what texts name.

And what is printed of a device that the catalog has by another number.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from itertools import permutations, product

from scalebook.audit import fields as vocabulary
from scalebook.audit.claimed_rows import Row, Sheet
from scalebook.audit.fields import device_of, forms_of, heading_of, named_by, peaks_of, plain
from scalebook.audit.identities import Fact, show
from scalebook.audit.knowledge import accelerator_of, catalog_words
from scalebook.audit.printed import IN_HEAD, Printed, amount, base_amount, read_printed
from scalebook.errors import ClaimError
from scalebook.facts import catalog
from scalebook.facts.catalog.types import TINY
from scalebook.measure.intervals import Interval, point

MOST_ROWS, MOST_COLUMNS = 5_000, 300


def separated(text: str, delimiter: str, name: str) -> Iterator[Sheet]:
    """Yield the table of a file of CSV or TSV."""
    reader, titles = csv.reader(io.StringIO(text), delimiter=delimiter), 0
    try:
        rows = [(reader.line_num, cells) for cells in reader if any(map(str.strip, cells))]
    except csv.Error as error:
        raise ClaimError(f"{name} line {reader.line_num}: {error}.") from error
    filled = [sum(bool(cell.strip()) for cell in cells) for _, cells in rows]
    while titles < len(rows) and filled[titles] == 1 < max(filled):
        titles += 1
    above = " ".join(" ".join(cells) for _, cells in rows[:titles])
    if rows:
        yield Sheet(name, rows[titles][1], rows[titles + 1 :], above=above)


class _Tables(HTMLParser):
    """Collect tables; the last heading or caption names them."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.sheets: list[Sheet] = []
        self.shown = list[str]()  # the text of the page outside of its tables
        self._name, self._row, self._text = "Table", list[str](), list[str]()
        self._sheet: Sheet | None = None
        self._last, self._open = Sheet("", []), False  # above the text; whether in a cell
        self._section, self._hidden = 0, False  # where in the text; whether it is a script
        self._note = False
        self._rows, self._wide, self._high = 0, 1, 1  # so far; columns and rows of a cell
        self._held = dict[int, tuple[int, str]]()  # by column: in how many rows below a cell is too

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden = tag in ("script", "style")
        power = re.search(r"(?<![\d.,])10$", "".join(self._text))
        self._note = tag == "sup" and power is None  # a footnote's mark
        if self._open and tag in ("tr", "td", "th"):  # whose end tag was left out
            self.handle_endtag("td")
        if tag == "tr" and self._row:
            self.handle_endtag("tr")
        self._open = tag in ("td", "th") or (self._open and tag != "table")
        if tag == "table":
            self._sheet = Sheet(self._name, [], above=" ".join(self.shown[self._section :]))
            self._held = {}
        elif tag == "tr":
            self._row, self._rows = [], self._rows + 1
        elif tag in ("td", "th", "caption", "h1", "h2", "h3", "h4"):
            self._last = self._last if self._sheet else Sheet("", [])
            self._text = []
            spans = (dict(attrs).get(name) or "" for name in ("colspan", "rowspan"))
            self._wide, self._high = (
                min(max(int(one), 1), MOST_COLUMNS) if re.fullmatch(r"\d{1,4}", one) else 1
                for one in spans
            )

    def _add(self, *cells: str) -> None:
        """Add cells to the row, then those that reach down to it from the rows above."""
        if max(self._rows - MOST_ROWS, len(self._row) - MOST_COLUMNS) > MOST_COLUMNS:
            return
        self._row.extend(cells)
        while (held := self._held.get(len(self._row), (0, "")))[0]:
            self._held[len(self._row)] = (held[0] - 1, held[1])
            self._row.append(held[1])

    def handle_data(self, data: str) -> None:
        self._text.append("" if self._note else data)
        if self._sheet is None and not self._hidden:
            self.shown.append(data)
            self._last.below += data

    def handle_endtag(self, tag: str) -> None:
        if self._open and tag in ("tr", "table"):
            self.handle_endtag("td")
        if tag == "table" and self._row:
            self.handle_endtag("tr")
        text = " ".join("".join(self._text).split())
        self._note = False
        if tag in ("h1", "h2", "h3", "h4"):
            self._name, self._section = text or self._name, len(self.shown)
        elif tag == "caption" and self._sheet is not None:
            self._sheet.name = text or self._sheet.name
        elif tag in ("td", "th") and self._open:
            self._open = False
            self._add()
            start = len(self._row)
            more = text if self._sheet is not None and not self._sheet.head else ""
            self._add(text, *[more] * (self._wide - 1))
            self._held |= {start + at: (self._high - 1, text) for at in range(self._wide)}
        elif tag == "tr" and self._sheet is not None and self._row:
            if self._sheet.head:
                self._sheet.rows.append((self.getpos()[0], self._row))
            else:
                self._sheet.head = self._row
            self._row = []
        elif tag == "table" and self._sheet is not None:
            self.sheets.append(self._sheet)
            self._last, self._sheet = self._sheet, None


def in_html(text: str) -> tuple[list[Sheet], str]:
    """Return the tables of a page, and what else it says."""
    parser = _Tables()
    parser.feed(text)
    parser.close()
    return parser.sheets, " ".join(parser.shown)


def otherwise_printed(quantity: str, row: Row) -> Iterator[Fact]:
    """Yield the bounds of what sources print where the catalog has another value of a device.

    They round it, or mean a system of several.
    """
    device, rules = accelerator_of(row), vocabulary.headings()
    if device is None:
        return
    value = getattr(device, "memory_gb" if quantity == "device_memory_gb" else quantity, None)
    own = rules["printed"].get(device.name, {}).get(quantity)
    if value is not None:
        factors = rules["printed"]["factors"].get(quantity, (1.0, 1.0))
        low, high = own or (value * factor for factor in factors)
    elif quantity == "peak_tflops_per_second":  # 2,516.6 is printed as 2.5 PFLOP/s
        value = device.peak_tflops.get(row.words.get("precision", "bf16"), 0.0)
        low, high = vocabulary.in_petaflops(value), value
        low = low if high * 0.99 < low < high else high
    else:
        return
    text = f"{row.label} {row.words['accelerator']}".lower()
    of_several = (count for one, count in rules["systems"].items() if re.search(one, text))
    for count in (*(() if low == high else (1,)), *of_several):
        variant = f"{device.name}, {f'{count} devices' if count > 1 else 'as printed'}"
        ends, whole = Interval(low * count, high * count), value * count
        yield Fact(quantity, ends, whole, show(whole), "catalog", variant=variant, bound=True)


def variant_of(name: str, memory_gb: str | None, watts: str | None) -> str:
    """Return the device of a name, of the variants that it leaves open the one of these numbers."""
    forms = sorted(
        forms_of(name),
        key=lambda one: (f"{one.memory_gb:g}" == memory_gb) + (f"{one.tdp_watts or 0:g}" == watts),
        reverse=True,
    )
    return forms[0].name if forms else name


def turned(sheet: Sheet, without: Sequence[int] = ()) -> Iterator[Sheet]:
    """Yield a table with a row for each of its columns, its first one and ``without`` left out."""
    lines = [(line, row) for line, row in sheet.rows if len(row) == len(sheet.head)]
    if lines:
        columns = zip(sheet.head, *(row for _, row in lines), strict=True)
        head, *rows = (list(one) for at, one in enumerate(columns) if at not in without)
        places = {at: line for at, (line, _) in enumerate(lines, 1)}
        yield replace(sheet, head=head, rows=[(lines[0][0], row) for row in rows], lines=places)


def by_case(sheet: Sheet) -> Iterator[Sheet]:
    """Yield a table for each case that headings name: ``16B MFU | 32B MFU``, ``Cost (A100)``."""
    cases, heads = dict[str, list[int]](), dict[int, str]()
    for at, head in enumerate(map(plain, sheet.head)):
        case, rest = (sheet.cases[at], head) if at in sheet.cases else _case_of(head)
        if case:
            cases.setdefault(case, []).append(at)
            heads[at] = rest.lower()
    if len(cases) < 2 or len({tuple(heads[at] for at in places) for places in cases.values()}) > 1:
        yield sheet
        return
    for case, places in cases.items():
        kept = [at for at in range(len(sheet.head)) if at in places or at not in heads]
        rows = [
            (line, [*(row[at] for at in kept if at < len(row)), case]) for line, row in sheet.rows
        ]
        rows = [(line, row) for line, row in rows if len(row) > len(kept)]
        named = "model" if catalog_words("model", case) or vocabulary.bare_size(case) else ""
        named = "gpu" if catalog_words("accelerator", case) else named
        head = [*(heads.get(at, sheet.head[at]) for at in kept), named]
        yield replace(sheet, name=f"{sheet.name}: {case}", head=head, rows=rows, cases={}, lines={})


def _case_of(head: str) -> tuple[str, str]:
    """Return the case that a heading names, a size or a device, and the rest; or neither."""
    case, _, rest = head.partition(" ")
    tried = [(case, rest)]
    if within := re.fullmatch(r"(.*) \((.*)\)", head):
        tried.append((within[2], within[1]))
    if device := _DEVICE.search(head.lower()):  # tokens/s/GPU A100 80GB, 128 GPUs
        tried.append((head[device.start() :], head[: device.start()].strip()))
    for case, rest in tried:
        if (vocabulary.bare_size(case) or devices_in(case)) and named_by(*heading_of(rest)):
            return case, rest
    return "", ""


def arranged(sheet: Sheet) -> Sheet:
    """Return a table with one row of headings, and each row with the cells that it continues.

    A row with one cell only says what the rows below it are of; they get its text as a cell more.
    """
    if len(sheet.head) > 2 and re.fullmatch("units?", plain(sheet.head[1]).lower()):
        rows = [(line, [f"{row[0]} ({row[1]})", *row[2:]]) for line, row in sheet.rows if row[1:]]
        sheet = replace(sheet, head=[sheet.head[0], *sheet.head[2:]], rows=rows)
    sheet = headed(sheet)
    wide, part = len(sheet.head), ""
    above: list[str] = []
    rows: list[tuple[int, list[str]]] = []
    for line, row in sheet.rows:
        filled = [at for at, cell in enumerate(row) if plain(cell)]
        if wide > 2 and filled == [0] and not re.match(r"\W*[\d.]+\W*$", row[0]):
            part = plain(row[0])
            continue
        first = filled[0] if filled else 0
        cells: list[str] = [
            f"{CONTINUED}{above[at]}"
            if at < len(above) and (_DITTO.fullmatch(cell.strip()) if cell.strip() else at < first)
            else cell
            for at, cell in enumerate(row)
        ]
        above = [cell.removeprefix(CONTINUED) for cell in cells]
        more = [""] * (wide - len(row)) + [part] if part else []
        rows.append((line, [*cells, *more]))
    return replace(sheet, rows=rows)


CONTINUED = "\u2060"  # before a cell that stands in a row above: not printable
_DITTO = re.compile("[\"″〃]|''|\\^\\^|ditto|same( as above)?|同上", re.IGNORECASE)


def headed(sheet: Sheet) -> Sheet:
    """Return a table whose second row holds headings too with one heading for each column.

    Headings that stand under several others are cases: the MFU of each of two devices.
    """
    below = [plain(cell) for cell in sheet.rows[0][1]] if sheet.rows else []
    heads = [plain(cell) for cell in sheet.head]
    if len(below) != len(heads) or any(re.match(r"[~≈<>$]?\d", cell) for cell in below):
        return sheet
    if len({*heads}) == 1:  # a title above the headings
        return replace(sheet, head=below, rows=sheet.rows[1:], above=f"{sheet.above} {heads[0]}")
    over = list[str]()
    for head, cell in zip(heads, below, strict=True):
        over.append(head or (over[-1] if over and cell else ""))
    joined = [_joined(*pair) for pair in zip(over, below, strict=True)]
    other = vocabulary.headings()["cases"]["other"]
    named = [
        at
        for at, cell in enumerate(below)
        if cell not in ("", heads[at]) and not re.search(other, over[at].lower())
    ]
    pairs = ((joined[at], below[at]) for at in named)
    if sum(any(named_by(*heading_of(one)) for one in pair) for pair in pairs) < max(
        2, len(named) / 2
    ):
        return sheet
    under = dict[str, set[str]]()
    for at in named:
        under.setdefault(below[at].lower(), set()).add(over[at])
    cases = {at: over[at] for at in named if len(under[below[at].lower()]) > 1}
    head = [below[at] if at in cases else text for at, text in enumerate(joined)]
    return replace(sheet, head=head, rows=sheet.rows[1:], cases=cases)


def _joined(over: str, cell: str) -> str:
    """Return the heading that two rows give a column: of both, or the lower one's if that names."""
    if not over or not cell or over == cell:
        return cell or over
    neutral = re.fullmatch(vocabulary.headings()["cases"]["neutral"], over.lower())
    tried = [f"{over} ({cell.strip('()[]')})", f"{over} {cell}", f"{cell} {over}"]
    tried = [cell, *tried] if neutral else tried
    return next((one for one in tried if named_by(*heading_of(one))), f"{over} {cell}")


_NUMBER = re.compile(
    r"(?<![A-Za-z\d.,])(?:\d{1,3}(?:,\d{3})+|\d{1,24})(?!,?\d)(?:\.\d{1,17})?(?:[KMBT]\b)?"
)
_RATIO = re.compile(r"[~≈]?(?P<ratio>\d+(\.\d+)?) ?[x×]|(?P<share>[-+−]?\d+(\.\d+)? ?%)")
_KINDS, _MOST_PAIRED = ("ratio", "increase", "reduction"), 24  # columns whose pairs are tried
# how many rows, their share and digits settle a ratio: of the two before it, of rows, of any
_ENOUGH = {"beside": (1, 0, 0), "rows": (1, 0.6, 3), "any": (4, 0.8, 10)}
_COARSE, _ONE = 0.05, re.compile(r"1(\.0+)? ?[x×]?|100(\.0+)? ?%")

_Number = tuple[Printed, str] | None
_Told = tuple[int, str, re.Match[str], _Number, _Number]  # line, label, ratio, and what it is of


def ratios_of(
    sheet: Sheet, compared: Sequence[int], unread: list[str], named: bool = False
) -> Iterator[Sheet]:
    """Yield rows of two values and their ratio, their share or the increase.

    A column that says that it compares is of the two before it (unless headings are ``named``) or
    of rows, if some rows fit. Any other column is of two columns or of rows, if nearly all fit.
    """
    for at, head in enumerate(sheet.head):
        cells = [row[at] if at < len(row) else CONTINUED for _, row in sheet.rows]
        stated = [None if one[:1] == CONTINUED else _RATIO.match(plain(one)) for one in cells]
        tried = (
            _related(told, kind, how)
            for how, told in (_sides(sheet, stated, at, at in compared) if any(stated) else ())
            if not (named and how == "beside")
            for kind in _KINDS
        )
        if found := next(filter(None, tried), None):
            yield replace(found, name=sheet.name)
        elif at in compared and any(stated) and not named:
            unread.append(f"{plain(head)!r} of {sheet.name!r}: of which values?")


def _sides(
    sheet: Sheet, stated: Sequence[re.Match[str] | None], at: int, compares: bool
) -> Iterator[tuple[str, list[_Told]]]:
    """Yield what ratios may be of: two values of a row, or one and that of its base, or above."""
    wide, every = len(sheet.head), range(len(stated))
    numbers = [[*map(_single, row), *[None] * wide] for _, row in sheet.rows]
    ones = [i for i, one in enumerate(stated) if one and _ONE.fullmatch(one[0].strip())]
    bases = ones or [index for index, one in enumerate(stated) if one is None]

    def told(one: int, other: int, over: Sequence[int]) -> list[_Told]:
        rows = zip(sheet.rows, stated, over, numbers, strict=True)
        return [
            (line, row[0], match, numbers[base][one], own[other])
            for index, ((line, row), match, base, own) in enumerate(rows)
            if match and base >= 0 and (over is every or index not in ones)
        ]

    yield from [("beside", told(at - 2, at - 1, every))] * (at > 1 and compares)
    columns = [one for one in range(1, wide) if one != at and wide <= _MOST_PAIRED]
    pairs = permutations(columns, 2) if sum(map(bool, stated)) >= _ENOUGH["any"][0] else ()
    yield from (("any", told(*pair, every)) for pair in pairs)
    based = [max((b for b in bases if b < i), default=min(bases, default=-1)) for i in every]
    for over, one in product((based, range(-1, len(stated) - 1)), columns):
        yield "rows" if compares else "any", told(one, one, over)


def _single(cell: str) -> _Number:
    """Return the one number of a cell and its unit; of 9000 / 10000: which?"""
    text = plain(re.sub(r"\([^()]*\)", "", cell))
    found, unit = _NUMBER.findall(text), re.sub(r"[^a-z/%]", "", _NUMBER.sub("", text.lower()))
    return (read_printed(found[0]), unit) if len(found) == 1 and amount(found[0]) else None


def _related(told: Sequence[_Told], kind: str, how: str) -> Sheet | None:
    """Return the rows of two values of which a third is the ratio, where enough rows say so."""
    rows, fits = list[tuple[int, list[str]]](), list[str]()
    for line, label, match, one, other in told:
        factor, share = match["ratio"] or "", match["share"] or ""
        if not (one and other) or len({one[1], other[1], ""}) > 2 or (factor and kind != "ratio"):
            continue
        if how != "any" and share and (kind != "increase" or share[0].isdigit()):
            continue
        first, second, ratio = one[0], other[0], read_printed((factor or share).replace("−", "-"))
        if factor and (second.value < first.value) != (ratio.value < 1):
            first, second = second, first
        over = second.interval / first.interval
        right = {"ratio": over, "increase": over + point(-1), "reduction": point(1) + -over}[kind]
        points = one[1] == "%" and share and (second.interval + -first.interval).scaled(0.01)
        coarse = how != "beside" and right.high - right.low > _COARSE  # 1 over 1 may be anything
        if coarse or (points and ratio.claimed.meets(points)):  # 92 % is 22 points above 70 %
            continue
        fits += [ratio.text] if ratio.claimed.meets(right) else []
        rows.append((line, [plain(label), first.text, second.text, ratio.text]))
    least, most, fewest = _ENOUGH[how]
    digits = sum(len(re.sub(r"\D", "", text).lstrip("0")) for text in {*fits})
    enough = len(fits) >= max(least, most * len(rows), how == "rows" and len(rows) - 1)
    return Sheet("", ["", "before", "after", kind], rows) if enough and digits >= fewest else None


def of_devices(sheet: Sheet, unread: list[str]) -> Iterator[Sheet]:
    """Yield a table; one of devices, by row or by column, as their memory and each peak."""
    heads, rules = [plain(head) for head in sheet.head], vocabulary.headings()["devices"]
    if sum(bool(catalog_words("accelerator", head)) for head in heads[1:]) * 2 > len(heads[1:]):
        sheet = next(turned(replace(sheet, head=heads)), sheet)
        heads = [plain(one) for one in sheet.head]
    known = [row for row in sheet.rows if catalog_words("accelerator", plain(row[1][0]))]
    plain_heads = [IN_HEAD.sub("", one.lower()) for one in heads]  # without units
    fitting = {
        name: [at for at, one in enumerate(plain_heads) if at and re.fullmatch(rule, one)]
        for name, rule in rules.items()
    }
    peaks, bare = fitting.pop("peak"), fitting.pop("bare bandwidth")
    fitting["memory bandwidth tb per second"] = fitting["memory bandwidth tb per second"] or [
        at for at in bare if _mostly_fit(known, heads, at, "memory_bandwidth_tb_per_second")
    ]
    fitting["interconnect gb per second"] = [
        at
        for at in fitting["interconnect gb per second"]
        if _mostly_fit(known, heads, at, "interconnect_gb_per_second")
    ]
    parts = {name: places[0] for name, places in fitting.items() if len(places) == 1}
    if len(known) * 2 < len(sheet.rows) or not (parts or peaks):
        yield sheet
        return
    known = [(line, row) for line, row in known if len(row) == len(heads)]
    others = set(range(1, len(heads))) - {*parts.values(), *peaks}
    unread += [f"{heads[at]!r} of {sheet.name!r}" for at in sorted(others)]
    rows = [
        (line, [*row[:1] * 2, *(_part(row, heads, name, at) for name, at in parts.items())])
        for line, row in known
    ]
    for _, row in rows:
        told = dict(zip(parts, row[2:], strict=True))
        name = catalog_words("accelerator", plain(row[1]))["accelerator"]
        row[1] = variant_of(name, *map(told.get, ("device memory gb", "tdp watts")))
    lines = {new: sheet.lines[at] for new, at in enumerate(parts.values(), 2) if at in sheet.lines}
    yield Sheet(sheet.name, ["", "gpu", *parts], rows, lines=lines)
    for at in peaks:
        yield _peaks_of(sheet, known, at, _PRECISIONS.findall(heads[at].lower())[0])


def _part(row: Sequence[str], heads: Sequence[str], name: str, at: int) -> str:
    """Return the amount of a device's part, a link's in GB/s."""
    stated = base_amount(plain(row[at]), heads[at]) if at < len(row) else ""
    return f"{amount(stated) * 1e3:.10g}" if stated and name.startswith("inter") else stated


def _mostly_fit(
    rows: Sequence[tuple[int, list[str]]], heads: Sequence[str], at: int, name: str
) -> bool:
    """Return whether most of the numbers in a column are those of the catalog's devices."""
    fits = list[bool]()
    for _, row in rows:
        stated = _part(row, heads, name, at)
        device = device_of(catalog_words("accelerator", plain(row[0])).get("accelerator", ""))
        if stated and device is not None:
            known = getattr(device, name) or 0.0
            fits.append(abs(amount(stated) - known) < _SAME_BANDWIDTH * known)
    return sum(fits) * 2 > len(fits)


_SAME_BANDWIDTH = 0.05
_PRECISIONS = re.compile(r"bf16|fp16|fp8|fp4")


def _peaks_of(sheet: Sheet, rows: list[tuple[int, list[str]]], at: int, precision: str) -> Sheet:
    """Return the peaks in a column of a table of devices; those of game cards have two meanings."""
    found: list[tuple[int, list[str]]] = []
    for line, row in rows:
        words = (cell for cell in row if not plain(cell)[:1].isdigit())  # Mode: Sparse (2:4)
        sparse = "spars" in " ".join([sheet.head[at], row[at], *words]).lower()
        rate = base_amount(plain(row[at]), sheet.head[at])
        pair = ("", rate) if sparse else (rate, "")
        if precision == "bf16" or "RTX" not in row[0]:
            found.append((line, [row[0], row[0], precision, *pair]))
    head = ["", "gpu", "precision", "peak tflops", "sparse peak tflops"]
    return Sheet(sheet.name, head, found, lines=dict.fromkeys((3, 4), sheet.lines.get(at, 0)))


_DEVICE = re.compile(
    r"(?:\b|(?<=\d[x×]))(?:tpu[ -])?((?:(?:rtx|gaudi|trainium)[ -]?|[a-z]+)\d+\w*)\b"
    r"((?:[- ](?:\d+ ?gb?|pcie|nvl|sxm\d?)\b)*)"
)


def devices_in(text: str) -> list[str]:
    """Return the devices of the catalog that a text names, in its order, by their platforms."""
    return devices_and_rest(text)[0]


def devices_and_rest(text: str) -> tuple[list[str], str]:
    """Return the devices that ``devices_in`` does, and the text without their names."""
    every = tuple(device.name for device in catalog.accelerators())
    names = _names(every, tuple(platform.name for platform in catalog.platforms()))
    found = list[str]()

    def take(match: re.Match[str]) -> str:
        word = re.sub("[ -]", "", match[1])
        forms = re.findall(r"pcie|nvl|\d+ ?g(?=b?\b)", match[2])
        sized = [f"{word}-{one.replace(' ', '')}".replace("g", "gb") for one in forms]
        cards = [one for one in every if "pcie" in forms and one.lower().startswith(f"{word}-pcie")]
        tried = (*cards[-1:], *map(names.get, (*sized, word, word.removesuffix("s"))))
        name = next(filter(None, tried), "")
        found.extend([name] if name else [])
        return " " if name else match[0]

    rest = _DEVICE.sub(take, text.lower())
    return list(dict.fromkeys(found)), rest


@cache
def _names(devices: tuple[str, ...], platforms: tuple[str, ...]) -> dict[str, str]:
    """Return the platforms, and the devices of one form, by what people write in one word."""
    single = {re.sub("tpu-|-", "", one.lower()): one for one in devices if _SINGLE.fullmatch(one)}
    return single | dict(zip(platforms, platforms, strict=True))


_SINGLE = re.compile(r"[A-Z]+-?\d{2,}[A-Z]?|(?:Gaudi|Trainium)\d|TPU-v\d[ep]")  # of one form: L40S


def context(text: str) -> dict[str, str]:
    """Return what a text says of all that stands below it: fields of which it names one value."""
    text = re.sub(vocabulary.headings()["patterns"]["others"], " ", text)
    found: dict[str, set[str]] = {"accelerator": set(devices_in(text)[:2])}
    found["model"] = _models_in(text)
    once = {name: texts.pop() for name, texts in found.items() if len(texts) == 1}
    return once | named_once("context", text)


def _models_in(text: str) -> set[str]:
    """Return the catalog's models that a text names."""
    names = {
        re.sub(r"-|(?<=[a-z])(?=[0-9])", "[ -]?", name): shape
        for name, shape in catalog.model_names().items()
        if not shape.startswith(TINY)
    }
    bounded = {rf"(?<![\w.]){pattern}(?!\.?\w)": shape for pattern, shape in names.items()}
    return {one for pattern, one in bounded.items() if re.search(pattern, text.lower())}


def named_once(rules: str, text: str) -> dict[str, str]:
    """Return the fields of which a text names one value by patterns of ``headings.toml``."""
    found = {
        name: {value.lower() for value in re.findall(pattern, text, re.IGNORECASE)}
        for name, pattern in vocabulary.headings()[rules].items()
    }
    lengths = found.get("sequence_length", set())
    lengths -= {
        one for one in lengths if one[:-1].isdigit() and f"{int(one[:-1]) * 1024}" in lengths
    }
    return {name: texts.pop() for name, texts in found.items() if len(texts) == 1}


def models_by_size(text: str) -> dict[str, str]:
    """Return the models that a text names by their sizes; none of a size that two of them have."""
    found: dict[str, set[str]] = {}
    for name in _models_in(text):
        for size in re.findall(r"(?<=-)\d+(?:\.\d+)?b\b", name):
            found.setdefault(size, set()).add(name)
    return {size: names.pop() for size, names in found.items() if len(names) == 1}


def device_in(text: str) -> dict[str, str]:
    """Return the device that a text names; an empty name where it names another, known or not."""
    text = re.sub(vocabulary.headings()["patterns"]["others"], " ", text)
    found, rest = devices_and_rest(text)
    other = vocabulary.pattern("devices").search(rest)
    return {"accelerator": "" if other or len(found) > 1 else found[0]} if found or other else {}


def near(text: str, rates: Sequence[float]) -> bool:
    """Whether a text prints one of these rates, to less than 1."""
    return any(abs(rate - amount(text)) < 1 for rate in rates)


_MOST_LINE = 300  # characters of a line with a peak


def peaks_in(text: str, unread: list[str]) -> Iterator[Sheet]:
    """Yield the peaks that a text gives to devices: ``H100: 450 / 1,979 = 22.7%``.

    Without a precision they are of BF16 if one of the same block is a BF16 peak.
    """
    block = Sheet("Peaks", ["", "gpu", "peak tflops", "precision", "tflops per gpu", "mfu"])
    for number, line in enumerate([*text.splitlines(), "#"], start=1):
        match = vocabulary.pattern("peak").fullmatch(line[:_MOST_LINE])
        name = next(iter(devices_in(match["name"] if match else "")), "")
        if match and near(match["peak"], peaks_of(name)):
            told = (match[key] or "" for key in ("peak", "precision", "rate", "mfu"))
            block.rows.append((number, [plain(match["name"]), name, *told]))
        elif not line.strip() or line[0] in "#`":
            bare = [cells for _, cells in block.rows if not cells[3]]
            usual = any(near(cells[2], peaks_of(cells[1])[:1]) for cells in bare)
            for cells in bare:
                cells[3] = "bf16" if usual else ""
            peaks = [f"'{one[2]}' of {one[0]!r}, a peak without its precision" for one in bare]
            unread += [] if usual else peaks
            yield replace(block, rows=[row for row in block.rows if row[1][3]])
            block.rows = []
            block.name = plain(line.lstrip("#")) if line.startswith("#") else block.name
