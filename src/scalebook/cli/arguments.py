"""Types and flags that several commands share."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from typing import Protocol

from scalebook.settings import SETTINGS

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


def add_settings(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """Add a flag for each of these settings, typed and explained by its row of ``settings``.

    A setting that is not given is None in the parsed options.
    """
    for name in names:
        row = SETTINGS[name]
        flags = [f"--{name.replace('_', '-')}"]
        if name == "world_size":
            flags.insert(0, "--gpus")
        if row.yes_no:
            parser.add_argument(*flags, action=argparse.BooleanOptionalAction, help=row.help)
        elif row.minimum is not None:
            count = at_least(row.minimum)
            parser.add_argument(*flags, dest=name, type=count, metavar=row.metavar, help=row.help)
        else:
            parser.add_argument(*flags, choices=row.choices or None, help=row.help)


def add_start_spread(parser: argparse.ArgumentParser) -> None:
    """Add ``--start-spread``."""

    def spread(text: str) -> float:
        from scalebook.errors import ConfigError
        from scalebook.measure.metrics.repeats import read_spread

        try:
            return read_spread(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    parser.add_argument(
        "--start-spread",
        type=spread,
        metavar="FRACTION",
        help="how much one configuration varies from start to start (standard deviation), like "
        "0.01 or 1%%; default: SCALEBOOK_START_SPREAD, else 0.5%% (2%% on a CPU)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
