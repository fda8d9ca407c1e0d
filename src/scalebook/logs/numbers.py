"""Numbers, time stamps and names as logs print them."""

from __future__ import annotations

import math
import re
import tomllib
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any

MISSING = math.nan  # in a column: the log has no usable value here
_SUFFIX = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_NUMBER = re.compile(  # 1,234.5 and 1.234,5 and 0,123 and 1234.5
    r"\s*['\"]?([-+]?(?:[1-9]\d{0,2}(?:,\d{3})+(?!\d)(?:\.\d*)?|\d{1,3}(?:\.\d{3})+,\d+|\d+,\d+"
    r"|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([KMGBT]?)"
)
_GROUPED = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?![\d,])")  # thousands, not a decimal comma
_CLOCK = re.compile(r"(?:(\d+) days?, )?(\d+):(\d\d):(\d\d(?:\.\d+)?)")
_SHORT_CLOCK = re.compile(r"(\d+):(\d\d(?:\.\d+)?)$")
_IN_WORDS = re.compile(r"(\d+) ?([dhms])\b")
_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_MOST_DIGITS = 18  # more than any size, count or rank has
LARGEST = 1e300  # beyond it a product could overflow; such a figure is not a measurement


def number(text: str) -> float:
    """Return the number that a text starts with (units behind it ignored), NaN where none is."""
    try:
        value = float(text)
    except ValueError:
        found = _NUMBER.match(text)
        if found is None:
            return MISSING
        value = float(_plain(found[1]))
    return value if abs(value) < LARGEST else MISSING


def _plain(figure: str) -> str:
    """Return a figure with a decimal point and no thousands separators."""
    if "," in figure and not _GROUPED.match(figure):
        figure = figure.replace(".", "").replace(",", ".")
    return figure.replace(",", "")


def scaled(text: str) -> float:
    """Return a number with an SI suffix (``11.5K`` is 11500), NaN where the text has none."""
    found = _NUMBER.match(text)
    if found is None:
        return MISSING
    value = float(_plain(found[1])) * _SUFFIX[found[2]]
    return value if abs(value) < LARGEST else MISSING


def integer(digits: str) -> int:
    """Return the whole number that digits make; one of more digits than any run has is 10^18.

    Python refuses to read thousands of digits, and no bound on a size lets either value pass.
    """
    known = digits.lstrip("0")
    return int(known or "0") if len(known) <= _MOST_DIGITS else 10**_MOST_DIGITS


def whole(text: str) -> int | None:
    """Return a non-negative whole number, None where the text is anything else."""
    value = number(text)
    return int(value) if value >= 0 and value == math.floor(value) else None


def clock_seconds(text: str) -> float:
    """Return the seconds of ``H:MM:SS``, ``MM:SS`` (with days or fractions) or ``2h 7m 3s``."""
    found = _CLOCK.match(text)
    if found:
        days, hours, minutes, seconds = found.groups()
        whole_minutes = integer(days or "0") * 1440 + integer(hours) * 60 + integer(minutes)
        return whole_minutes * 60.0 + number(seconds)
    if short := _SHORT_CLOCK.match(text):
        return integer(short[1]) * 60 + number(short[2])
    return float(sum(integer(n) * _UNITS[unit] for n, unit in _IN_WORDS.findall(text))) or MISSING


def half_unit(text: str) -> float:
    """Return half a unit of the last digit that a text shows, NaN where it shows no number."""
    found = _NUMBER.match(text)
    if found is None:
        return MISSING
    mantissa, _, exponent = _plain(found[1]).lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 0.5 * 10.0 ** (min(number(exponent or "0"), 300) - decimals)


def rounding(value: float) -> float:
    """Return half a unit of the last digit that ``value`` shows, as a fraction of it."""
    if not math.isfinite(value) or value == 0:
        return math.inf
    mantissa, _, exponent = f"{value:.9e}".partition("e")
    digits = mantissa.rstrip("0").partition(".")[2]
    return 0.5 * 10.0 ** (int(exponent) - len(digits)) / abs(value)


_STAMP = re.compile(
    r"(?P<y>20\d\d)[-/]?(?P<m>[01]\d)[-/]?(?P<d>[0-3]\d)[ T](?P<H>[0-2]\d):(?P<M>\d\d):(?P<S>\d\d)"
    r"(?P<f>[.,]\d{1,6})?"
    r"|(?P<m2>[01]\d)/(?P<d2>[0-3]\d)/(?P<y2>20\d\d) (?P<H2>[0-2]\d):(?P<M2>\d\d):(?P<S2>\d\d)"
    r"|(?<![\d:.])(?P<H3>[0-2]\d):(?P<M3>[0-5]\d):(?P<S3>[0-5]\d)(?P<f3>[.,]\d{1,6})?(?![\d:])"
)


def clock_of(line: str) -> float:
    """Return the time of the first stamp in a line in seconds, NaN without one.

    A stamp with a date counts from 1970 as if it were UTC, one without from midnight: only
    differences within a file mean anything.
    """
    found = _STAMP.search(line)
    if found is None:
        return MISSING
    part = found.groupdict()
    fraction = float((part["f"] or part["f3"] or ".0").replace(",", "."))
    if part["H3"]:
        return int(part["H3"]) * 3600 + int(part["M3"]) * 60 + int(part["S3"]) + fraction
    end = "" if part["y"] else "2"
    names = ("y", "m", "d", "H", "M", "S")
    try:
        year, month, day, hour, minute, second = (int(part[name + end] or 0) for name in names)
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return MISSING
    return moment.timestamp() + fraction


def has_fraction(line: str) -> bool:
    """Whether the first stamp in a line is finer than a second."""
    found = _STAMP.search(line)
    return found is not None and bool(found["f"] or found["f3"])


@cache
def _tables() -> dict[str, dict[str, Any]]:
    return tomllib.loads((resources.files("scalebook.logs") / "names.toml").read_text("utf-8"))


def names(table: str) -> dict[str, str]:
    """Return what a trainer calls a setting or a column -> ours."""
    return dict(_tables()[table])


def columns(table: str) -> dict[str, tuple[str, float]]:
    """Return what a trainer calls a column -> ours and what its figures are multiplied by."""
    pairs = {n: (of, 1.0) if isinstance(of, str) else of for n, of in _tables()[table].items()}
    return {name: (column, scale) for name, (column, scale) in pairs.items()}


def alternatives(table: str) -> dict[str, tuple[str, ...]]:
    """Return our name -> those of trackers and trainers, of which the first in a file counts."""
    return {ours: tuple(theirs) for ours, theirs in _tables()[table].items()}
