"""Numbers as people read them: sensible digits, a thousands separator, always a unit."""

from __future__ import annotations

import math
from collections.abc import Sequence

NONE = "–"  # what a missing number looks like; its reason stands beside it

# A no-break space: a number and its unit stay on one line.
GLUE = "\N{NO-BREAK SPACE}"

MINUS = "\N{MINUS SIGN}"
SMALLEST = 1e-4  # below this a number is written with an exponent


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with about ``digits`` significant digits: 12,346 or 0.0123; all of an int."""
    if value is None:
        return NONE
    if value == 0 or isinstance(value, int):
        return f"{int(value):,}"
    # rounded before its digits are counted: 9.996 is 10.0
    rounded = float(f"{value:.{digits}g}") if abs(value) < 10**digits else value
    if abs(rounded) < SMALLEST:
        return f"{rounded:.{digits - 1}e}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{decimals}f}".replace("-", MINUS)


def quantity(value: float | None, unit: str, digits: int = 3) -> str:
    """Return a number and its unit."""
    return NONE if value is None else f"{number(value, digits)}{GLUE}{unit}"


def duration(seconds: float | None) -> str:
    """Return seconds as ms, s, min or h, whichever reads best."""
    if seconds is None:
        return NONE
    for limit, size, unit in ((1, 1e-3, "ms"), (120, 1, "s"), (7200, 60, "min")):
        if seconds < limit:
            return quantity(seconds / size, unit)
    return quantity(seconds / 3600, "h")


def percent(fraction: float | None, digits: int = 3) -> str:
    """Return a fraction as a percentage."""
    return NONE if fraction is None else quantity(100 * fraction, "%", digits)


def change(fraction: float | None) -> str:
    """Return a change as a signed percentage of one decimal: ``+12.3 %``."""
    if fraction is None:
        return NONE
    rounded = round(100 * fraction, 1)
    return f"{rounded:+.1f}{GLUE}%".replace("-", MINUS) if rounded else f"0.0{GLUE}%"


def interval(value: float | None, low: float | None, high: float | None, unit: str) -> str:
    """Return a number with its interval, rounded alike: ``12,300 tokens/s (12,180 to 12,420)``."""
    if value is None or low is None or high is None or low == value == high:
        return quantity(value, unit)
    half = max(value - low, high - value)
    decimals = max(0, 1 - math.floor(math.log10(half)))
    return f"{value:,.{decimals}f}{GLUE}{unit} ({low:,.{decimals}f} to {high:,.{decimals}f})"


def count(amount: int, singular: str, plural: str | None = None) -> str:
    """Return an amount and its noun: ``1 run``, ``2 runs``."""
    return f"{amount:,}{GLUE}{singular if amount == 1 else plural or singular + 's'}"


def listed(words: Sequence[str]) -> str:
    """Return words as a list in a sentence: ``the model, platform and precision``."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def times(ratio: float) -> str:
    """Return a ratio: ``1.34x``."""
    return f"{number(ratio)}×"
