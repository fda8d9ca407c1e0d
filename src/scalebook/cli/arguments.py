"""Types and flags that several commands share."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from scalebook.settings import SETTINGS

LARGEST = 10**15  # nothing that a person asks about is larger; products of such stay finite


class Subparsers(Protocol):
    """What ``register`` of a command module adds its commands to."""

    def add_parser(
        self, name: str, *, help: str, aliases: Sequence[str] = ()
    ) -> argparse.ArgumentParser:
        """Add a command and return its parser."""
        ...


class Flags(Protocol):
    """A parser, or one of its groups (argparse has no public type for both)."""

    def add_argument(self, *flags: str, **details: Any) -> argparse.Action:
        """Add an option."""
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


def step_window(text: str) -> tuple[int, int]:
    """Return first and last step of ``FIRST:LAST``, as an argument type."""
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) < int(last) <= LARGEST):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no FIRST:LAST of steps, like 120:460")
    return int(first), int(last)


def positive(text: str) -> float:
    """Return a finite number above zero, as an argument type."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 1 / LARGEST < value <= LARGEST:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number above zero")
    return value


def add_settings(parser: Flags, names: Iterable[str]) -> None:
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
            choices = row.choices or None
            parser.add_argument(*flags, choices=choices, metavar=row.metavar, help=row.help)


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


def add_set(parser: Flags, help: str) -> None:
    """Add ``--set NAME=VALUE`` for the settings that have no flag."""
    parser.add_argument(
        "--set", dest="fields", action="append", default=[], metavar="NAME=VALUE", help=help
    )


def add_port(parser: Flags) -> None:
    """Add ``--port`` of a server on this machine."""
    parser.add_argument(
        "--port",
        type=int,
        default=0,
        metavar="PORT",
        help="port on 127.0.0.1 (default: a free one)",
    )


def add_runs(parser: argparse.ArgumentParser, what: str = "folder of run directories") -> None:
    """Add ``--runs DIR``; None where it is not given."""
    parser.add_argument("--runs", type=Path, metavar="DIR", help=f"{what} (default: runs)")


def add_json(parser: argparse.ArgumentParser, *, csv: bool = False) -> None:
    """Add ``--json``, and ``--csv`` where the command prints one table.

    Both set ``json``: to ``"json"``, to ``"csv"``, or to None for a table.
    """
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--json", action="store_const", const="json", help="print JSON instead of a table"
    )
    if csv:
        group.add_argument(
            "--csv",
            dest="json",
            action="store_const",
            const="csv",
            help="print CSV with all fields",
        )
