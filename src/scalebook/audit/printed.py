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
from dataclasses import dataclass

from scalebook.audit import fields as vocabulary
from scalebook.errors import ClaimError
from scalebook.measure.intervals import Interval, Numeral, point, read_numeral
from scalebook.settings import PARALLEL_SIZES, SETTINGS

LONGEST = 60  # characters of a value
APPROXIMATE = 0.1  # what ~ allows, as a fraction

_CHOSEN = re.compile("=")
_ABOUT = re.compile(r"(~|≈|about\s)\s*", re.IGNORECASE)
_AT_MOST = re.compile(r"(<=|≤|<|up to\s)\s*", re.IGNORECASE)
_AT_LEAST = re.compile(r"(>=|≥|>|at least\s)\s*", re.IGNORECASE)
_RANGE = re.compile(
    r"(?P<low>[$€£¥]?\d[\d,.]*\s*[a-z%×]*)\s*(?:\.\.|–|-|\sto\s)\s*(?P<high>[$€£¥]?\d.*)",
    re.IGNORECASE,
)
_EXPONENT = re.compile(r"[\d.]+e-\d+", re.IGNORECASE)  # 3e-4 is no range
_SUFFIX = re.compile(r"[\d.,]+\s*(?P<suffix>[a-z]*\s*%?)$", re.IGNORECASE)


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
    interval, claimed = _read(plain, exact)
    ends = _written(plain)
    return Printed(
        text=plain,
        value=sum(ends) / len(ends) * scale,
        interval=interval.scaled(scale),
        claimed=claimed.scaled(scale),
        between=len(ends) > 1,
    )


def _written(text: str) -> tuple[float, ...]:
    """Return the number as written, without its mark and its rounding; both ends of a range."""
    patterns = (_CHOSEN, _ABOUT, _AT_MOST, _AT_LEAST)
    mark = next((found for pattern in patterns if (found := pattern.match(text))), None)
    plain = text[mark.end() :] if mark else text.removesuffix("+")
    return tuple(_numeral(end).value for end in _range(plain) or (plain,))


def _read(text: str, exact: bool) -> tuple[Interval, Interval]:
    if text.startswith("="):
        value = point(_numeral(text[1:]).value)
        return value, value
    for pattern, reader in ((_ABOUT, _about), (_AT_MOST, _at_most), (_AT_LEAST, _at_least)):
        mark = pattern.match(text)
        if mark:
            return reader(text[mark.end() :])
    if text.endswith("+"):
        return _at_least(text[:-1])
    between = _range(text)
    if between:
        return _between(*between)
    numeral = _numeral(text)
    if exact and text.lstrip("-").replace(",", "").isdigit():
        return point(numeral.value), point(numeral.value)
    return _rounded(numeral), _cut(numeral)


def _numeral(text: str) -> Numeral:
    return read_numeral(re.sub(r"(?<=\d)\s*[x×]$", "", text.strip()))


def _rounded(numeral: Numeral) -> Interval:
    return Interval(numeral.value - numeral.unit / 2, numeral.value + numeral.unit / 2)


def _cut(numeral: Numeral) -> Interval:
    """Return the rounded interval, up to one whole unit away from zero."""
    unit = _coarse(numeral)
    half, outer = unit / 2, unit * (1 - 1e-9)
    if numeral.value < 0:
        return Interval(numeral.value - outer, numeral.value + half)
    return Interval(numeral.value - half, numeral.value + outer)


def _coarse(numeral: Numeral) -> float:
    """Return the unit of the last digit that surely counts: thousands of 314,000, tens of 5,000."""
    unit, size = numeral.unit, abs(numeral.value)
    while unit >= 1 and size >= 1000 * unit and size % (10 * unit) == 0:
        unit *= 10
    return unit


def _about(text: str) -> tuple[Interval, Interval]:
    if _RANGE.fullmatch(text):
        inner, _ = _read(text, exact=False)
        wide = inner.widened(APPROXIMATE)
        return wide, wide
    numeral = _numeral(text)
    half = max(abs(numeral.value) * APPROXIMATE, numeral.unit / 2)
    value = Interval(numeral.value - half, numeral.value + half)
    return value, value


def _at_most(text: str) -> tuple[Interval, Interval]:
    # quantities here are never below zero, but changes may be
    value = Interval(min(0.0, _numeral(text).value), _rounded(_numeral(text)).high)
    return value, value


def _at_least(text: str) -> tuple[Interval, Interval]:
    value = Interval(_rounded(_numeral(text)).low, math.inf)
    return value, value


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


def _between(low: str, high: str) -> tuple[Interval, Interval]:
    value = Interval(_rounded(_numeral(low)).low, _rounded(_numeral(high)).high)
    return value, value


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
    if len(units - {""}) > 1 or not (times or "%" in stated.text or abs(stated.value) < 1):
        return found
    if not times and (not fell or stated.value < 0):
        return values
    found["ratio" if times else "reduction"] = values["increase"]
    if times and fell:  # of a time: before over after
        found |= {"before": values["after"], "after": values["before"]}
    return found


_SIZES = re.compile(r"(?i)(?<![a-z])(TP|PP|CP|EP|DP|FSDP)\s*[=-]?\s*(\d{1,5})(?![\d.])")
_LONG = {SETTINGS[name].short: name for name in PARALLEL_SIZES} | dict.fromkeys(
    ("DP", "FSDP"), "data_parallel_size"
)


def sizes_in(text: str) -> Iterator[tuple[str, Printed]]:
    """Yield sizes that stand in words: ``TP=4, PP=2``, ``8 GPUs across 2 nodes``, ``8xA100``."""
    stated = {(_LONG[short.upper()], size) for short, size in _SIZES.findall(text)}
    for name, size in sorted(stated):
        if sum(name == other for other, _ in stated) == 1:  # two are of two cases, or HSDP
            yield name, read_printed(size, exact=True)
    if told := re.search(r"\bSL ?= ?(\d{2,7})\b", text):
        yield "sequence_length", read_printed(told[1], exact=True)
    if told := vocabulary.pattern("nodes_of").search(text):  # 16 nodes x 4 GPUs
        yield "nodes", read_printed(told[1], exact=True)
        yield "gpus_per_node", read_printed(told[2] or told[3], exact=True)
        return
    for name in ("gpus", "nodes"):
        found = set(vocabulary.pattern(name).findall(text))
        if len(found) == 1:  # of 8x A100 in each of 4 nodes, 32 GPUs: of one node or of all?
            yield name, read_printed(found.pop(), exact=True)
