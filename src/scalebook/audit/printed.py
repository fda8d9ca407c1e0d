"""The interval that a printed value stands for.

Rounding: ``38.3%`` is anything from 38.25 % to 38.35 %. A value that was cut and not rounded may
also be up to one unit of its last digit higher, and ``314,000`` may have three digits that count;
``claimed`` allows that, ``interval`` does not.
Marks: ``~390`` is within a tenth, ``<30`` and ``up to 47%`` are upper ends, ``>400``, ``175K+`` and
``at least 3`` lower ends, ``85-95%`` and ``85..95%`` ranges; a trailing ``x`` says times. ``=1T``
is exact: a budget or an assumption that somebody chose, which was never rounded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from scalebook.audit import fields as vocabulary
from scalebook.errors import ClaimError
from scalebook.measure.intervals import Interval, Numeral, point, read_numeral
from scalebook.settings import PARALLEL_SIZES, SETTINGS

LONGEST = 60  # characters of a value
APPROXIMATE = 0.1  # what ~ allows, as a fraction

_MARK = re.compile(
    r"(?:(?P<chosen>=)|(?P<about>~|≈|about\s)|(?P<most><=|≤|<|up\sto\s)|(?P<least>>=|≥|>|at\sleast\s))"
    r"\s*",
    re.IGNORECASE,
)
_RANGE = re.compile(
    r"(?P<low>[$€£¥]?\d[\d,.]*\s*[a-z%×]*)\s*(?:\.\.|–|-|\sto\s)\s*(?P<high>[$€£¥]?\d.*)",
    re.IGNORECASE,
)
_EXPONENT = re.compile(r"[\d.]+e-\d+", re.IGNORECASE)  # 3e-4 is no range
_SUFFIX = re.compile(r"[\d.,]+\s*(?P<suffix>[a-z]*\s*%?)$", re.IGNORECASE)


_ROUND = re.compile(r"\W*[1-9]0*\s*([kmbt]|million|billion|trillion)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Printed:
    """A value as printed: what it may stand for, and what it may be claimed for when cut.

    ``value`` is the number as written, without its mark: 5 of ``~5``, and the middle of a range.
    """

    text: str
    value: float
    interval: Interval
    claimed: Interval
    between: bool = False  # a range, which no arithmetic can be done with as it is written

    @property
    def input(self) -> Interval:
        """What it may stand for in arithmetic: ``2T`` is a number that was chosen, never cut."""
        return self.interval if _ROUND.fullmatch(self.text) else self.claimed


def read_printed(text: str, *, exact: bool = False, scale: float = 1.0) -> Printed:
    """Return what ``text`` stands for, times ``scale``.

    ``exact`` values are counts: their digits are all there is, unless a mark, a range or a suffix
    such as K says otherwise. Raises ClaimError when the text is no value.
    """
    if len(text) > LONGEST:
        raise ClaimError(
            f"{text[:20]!r}... is {len(text)} characters long; a value has at most {LONGEST}."
        )
    plain = text.strip()
    mark, between = _MARK.match(plain), None
    kind = (mark and mark.lastgroup) or ("least" if plain.endswith("+") else "")
    number = plain[mark.end() :] if mark else plain.removesuffix("+")
    if kind in ("", "about"):
        between = _range(number)
    ends = [
        read_numeral(re.sub(r"(?<=\d)\s*[x×]$", "", one.strip())) for one in between or (number,)
    ]
    exact = exact and number.lstrip("-").replace(",", "").isdigit()
    interval, claimed = _meant("chosen" if exact and not kind else kind, ends[0], ends[-1])
    return Printed(
        text=plain,
        value=(ends[0].value + ends[-1].value) / 2 * scale,
        interval=interval.scaled(scale),
        claimed=claimed.scaled(scale),
        between=between is not None,
    )


def _meant(kind: str, first: Numeral, last: Numeral) -> tuple[Interval, Interval]:
    """Return what a number, or a range, of a kind of mark stands for, rounded and cut."""
    low, high = first.value - first.unit / 2, last.value + last.unit / 2
    if kind == "chosen":
        rounded = point(first.value)
    elif kind == "most":  # quantities here are never below zero, but changes may be
        rounded = Interval(min(0.0, first.value), high)
    elif kind == "least":
        rounded = Interval(low, math.inf)
    elif kind == "about" and first is last:
        half = max(abs(first.value) * APPROXIMATE, first.unit / 2)
        rounded = Interval(first.value - half, first.value + half)
    elif kind == "about" or first is not last:
        rounded = Interval(low, high).widened(APPROXIMATE if kind else 0.0)
    else:
        return Interval(low, high), _cut(first)
    return rounded, rounded


def _cut(numeral: Numeral) -> Interval:
    """Return the rounded interval, up to one whole unit away from zero."""
    unit, size = numeral.unit, abs(numeral.value)
    while unit >= 1 and size >= 1000 * unit and size % (10 * unit) == 0:  # thousands of 314,000
        unit *= 10
    half, outer = unit / 2, unit * (1 - 1e-9)
    if numeral.value < 0:
        return Interval(numeral.value - outer, numeral.value + half)
    return Interval(numeral.value - half, numeral.value + outer)


def _range(text: str) -> tuple[str, str] | None:
    """Return both ends; ``85-95%`` and ``6-20K`` give the low end the suffix of the high one."""
    match = None if _EXPONENT.fullmatch(text) else _RANGE.fullmatch(text)
    if match is None:
        return None
    low, high = match["low"], match["high"]
    suffix = _SUFFIX.search(re.sub(r"\s*[x×]$", "", high))
    if suffix and re.fullmatch(r"[$\d.,\s]+", low):
        low = f"{low}{suffix['suffix']}"
    return low, high


def upright(values: dict[str, Printed]) -> dict[str, Printed]:
    """Return before, after and their ratio with one of before over after turned: 1.25x less."""
    before, after, ratio = map(values.get, ("before", "after", "ratio"))
    if not (before and after and ratio) or min(after.interval.low, ratio.interval.low) <= 0:
        return values
    if ratio.claimed.meets(after.interval / before.interval) or not ratio.claimed.meets(
        before.interval / after.interval
    ):
        return values
    interval, claimed = (point(1) / one for one in (ratio.interval, ratio.claimed))
    return values | {"ratio": Printed(ratio.text, 1 / ratio.value, interval, claimed)}


def improved(values: dict[str, Printed], at: Mapping[str, str]) -> dict[str, Printed]:
    """Return before, after and an improvement as what it is: ``2.5x``, or less of a time.

    The improvement is left out where it is a difference, or before and after differ in their unit.
    """
    cell, stated = at["increase"], values["increase"]
    units = {re.sub(r"(?i)[\d.,\s~+]+[KMBT]?\b", "", at[name]) for name in ("before", "after")}
    times = re.match(r"\D{0,3}[\d.,]+ ?[x×]", cell) is not None
    fell = values["after"].value < values["before"].value
    found = {name: value for name, value in values.items() if name != "increase"}
    points = values["after"].interval + -values["before"].interval  # of two percentages
    if units == {"%"} and not times and stated.claimed.meets(points):
        return found
    if len(units - {""}) > 1 or not (times or "%" in stated.text or abs(stated.value) < 1):
        return found
    if not times and (not fell or stated.value < 0):
        return values
    found["ratio" if times else "reduction"] = values["increase"]
    if times and fell:  # of a time: before over after
        found |= {"before": values["after"], "after": values["before"]}
    return found


_SIZES = re.compile(r"(?i)(?<![a-z])(TP|PP|CP|EP|DP|FSDP|GBS|SL(?= ?=)) *[=-]? *(\d{1,7})(?![\d.])")
_LONG = {SETTINGS[name].short: name for name in PARALLEL_SIZES} | {
    "DP": "data_parallel_size", "FSDP": "data_parallel_size", "GBS": "global_batch_size",
    "SL": "sequence_length",
}  # fmt: skip


def sizes_in(text: str) -> Iterator[tuple[str, Printed]]:
    """Yield sizes that stand in words: ``TP=4, PP=2``, ``8 GPUs across 2 nodes``, ``8xA100``."""
    ranks = r"(?i)p(?=\W*\d)" if re.search(r"(?i)\d[ -]?chips?\b", text) else "$^"  # of half
    stated = {(_LONG[key.upper()], size) for key, size in _SIZES.findall(re.sub(ranks, "", text))}
    for name, size in sorted(stated):
        if sum(name == other for other, _ in stated) == 1:  # two are of two cases, or HSDP
            yield name, read_printed(size, exact=True)
    if told := vocabulary.pattern("nodes_of").search(text):  # 16 nodes x 4 GPUs
        yield "nodes", read_printed(told[1], exact=True)
        yield "gpus_per_node", read_printed(told[2] or told[3], exact=True)
        return
    for name in ("gpus", "nodes"):
        found = set(vocabulary.pattern(name).findall(text))
        if len(found) == 1:  # of 8x A100 in each of 4 nodes, 32 GPUs: of one node or of all?
            yield name, read_printed(found.pop(), exact=True)


_MIXED_SIZE = re.compile(r"\d+ ?[x×] ?[\d.]+B \(([\d.]+[BT])\)")  # 8x7B (56B)
# a unit must be written: a bare number may be anything
_UNIT_NEEDED = ("time", "bandwidth", "memory", "power", "energy", "intensity")
BY_UNIT = ("size", "flops")


@dataclass(frozen=True, slots=True)
class Heading:
    index: int
    field: str  # of a claim, in its base unit
    unit: str  # as the heading writes it
    kind: str | None


def read_cell(column: Heading, cell: str) -> tuple[str, Printed] | None:
    """Return the field (by its unit) and the value that a cell states; None if it is unreadable."""
    cell = _MIXED_SIZE.sub(r"\1", cell) if "parameters" in column.field else cell
    named = "parameters" in column.field and re.match(r"\d+ ?[x×] ?\d", cell)  # 8x7B, a model
    less = column.field != "increase" and re.match(r"\+|.*\dpp\b", cell.replace(" ", ""))
    if named or less:  # no size; a difference
        return None
    cell = vocabulary.count_gpus(cell) if column.field == "gpus" else cell
    cell = re.sub(r"\s*(±|\+/-)\s*[\d.,]+|(?<=\d)\s(?=\d{3}\b)", "", cell)  # less its spread
    match = vocabulary.pattern("number").match(cell)
    if match is None:
        return _plain_value(column.field, cell) if column.kind not in _UNIT_NEEDED else None
    scaled = re.search("[a-z]$", match["number"].strip(), re.IGNORECASE)
    counted = scaled and vocabulary.factor(column.kind, column.unit) != 1  # 7B of (B)
    unit = (match["unit"] or "").strip() or ("" if counted else column.unit)
    name, kind = column.field, column.kind
    if name == "tokens_per_second":  # the unit says what a throughput is of
        for other, field_name in vocabulary.RATES:
            if vocabulary.is_rate(other, unit):
                name, kind = field_name, other
    factor = vocabulary.factor(kind, unit) if kind else 1.0
    word = unit.lower().partition(" ")[0]  # GB of "140GB / 4"
    odd = vocabulary.is_other(kind, word) if kind in BY_UNIT else match["unit"]
    if factor is None and (kind in _UNIT_NEEDED or odd):
        return None
    number = match["number"].strip().removesuffix("×").removesuffix("x").strip()
    if name == "sequence_length" and unit.lower() in ("k", "ki", "k tokens"):
        number += "K"
    if unit == "%" and not number.endswith("%"):
        number += "%"
    if name == "global_batch_size" and re.fullmatch(r"[\d.]+ ?[MB]", number):
        name, number = "tokens_per_step", f"~{number}"  # tokens; 4M may be 4 x 2^20
    if kind and (number != match["number"].strip() or number.endswith("%")):  # 0.92x: a factor
        return None
    read = _plain_value(name, number, factor := factor or 1.0)
    if (own := vocabulary.field(name)) is None or read is None:
        return None
    key = (own.quantity, own.scale * factor)
    fields = vocabulary.fields().values()
    same = next((one.name for one in fields if (one.quantity, one.scale) == key), None)
    if kind == "gib" or (kind == "tflops" and same is None):
        unit = "GiB" if kind == "gib" else unit.upper()
        read = name, replace(read[1], text=f"{number} {unit}")
    return same or name, read[1]


def _plain_value(name: str, cell: str, factor: float = 1.0) -> tuple[str, Printed] | None:
    if (own := vocabulary.field(name)) is None:
        return None
    try:
        return name, read_printed(cell, exact=own.exact, scale=own.scale * factor)
    except ClaimError:
        return None


_AMOUNT = re.compile(
    r"([~≈]?\s*\d[\d,]*(?:\.\d+)?) ?([TG]i?B|[TG]B/s|k?W|[GTP]FLOP/?S)(?! ?[-–/])\b", re.IGNORECASE
)
_IN_BASE = {"tb": 1e3, "tib": 1e3, "gb/s": 1e-3, "kw": 1e3}
IN_HEAD = re.compile(r" ?[(\[]([TGP]FLOP/?S|[TG]i?B(?:/s)?|k?W)[)\]]$", re.IGNORECASE)


def base_amount(cell: str, head: str = "") -> str:
    """Return an amount in GB, TB/s, W or FLOP/s; empty where a cell has none or several."""
    cell = re.sub(r" ?\([^()]*\)|[❓?*†]", "", cell).strip()
    unit = IN_HEAD.search(vocabulary.plain(head)) or re.search("(?i)()(tflop/?s)", head)
    if unit and re.fullmatch(r"[~≈]?\s*[\d,]*\d(\.\d+)?", cell.strip()):
        cell = f"{cell} {unit[unit.lastindex or 1]}"
    found = _AMOUNT.findall(cell)
    if len(found) != 1 or re.search(r"\d ?[-–] ?\d", cell):
        return ""
    number, unit = found[0][0].replace(",", ""), found[0][1].lower()
    mark, number = ("~" if number[0] in "~≈" else ""), number.lstrip("~≈ ")
    if unit.startswith("gflop"):
        return f"{mark}{float(number) / 1e3:.10g} tflops"
    if "flop" in unit:
        return f"{mark}{number} {unit}"
    return mark + (f"{float(number) * _IN_BASE[unit]:.10g}" if unit in _IN_BASE else number)


def amount(text: str) -> float:
    """Return the first number of a text; 0 without one."""
    text = re.sub(r"(?<![\d,.])0,(?=\d)", "0.", text)
    found = re.search(r"\d+(\.\d+)?", text.replace(",", ""))
    return float(found[0]) if found else 0.0
