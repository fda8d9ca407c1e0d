"""Time stamps as log lines carry them, in seconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from scalebook.logs.numbers import MISSING

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
