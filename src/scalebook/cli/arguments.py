"""Types and flags that several commands share."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Protocol

LARGEST = 10**15  # nothing that a person asks about is larger; products of such stay finite


class Subparsers(Protocol):
    """What ``register`` of a command module is given (argparse's own class is private)."""

    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser:
        """Add a command and return its parser."""
        ...


def at_least(minimum: int) -> Callable[[str], int]:
    """Return an argument type: a whole number of at least ``minimum``."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if not minimum <= value <= LARGEST:
            raise argparse.ArgumentTypeError(
                f"{text[:40]!r} is not a whole number of at least {minimum}"
            )
        return value

    return convert


def positive(text: str) -> float:
    """Return a finite number above zero, as an argument type."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 1 / LARGEST < value <= LARGEST:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number above zero")
    return value


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
