"""What commands share: argument types and flags, finding a named run, and printing."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import math
import re
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO, TypeVar, cast

from scalebook import project, untrusted
from scalebook.errors import LaunchError, RecordError, not_installed, unknown
from scalebook.running.console import width
from scalebook.settings import SETTINGS

if TYPE_CHECKING:
    from http.server import HTTPServer

    from scalebook.facts.catalog.types import Platform

LARGEST = 10**15  # nothing that a person asks about is larger; products of such stay finite
RUN_HELP = "run id or its last six or more characters, or a run directory"
_HINT = "See 'scalebook list'; the last six characters of an id are enough."
_LONGEST_CELL = 500  # a sentence fits; names in records of others may have any length
_NUMBER = re.compile(r"-|(?=\D*\d)[\d,]*\.?[\d,]*(?:e\+\d+)?%*")
Value = TypeVar("Value", int, float)


class Subparsers:
    """What ``register`` of a command module adds its commands to; keeps their help for a list."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
        self._parsers.help = "one of these, each with its own --help:"
        self.help: dict[str, str] = {}

    def add_parser(
        self, name: str, handler: Callable[[argparse.Namespace], int], *, help: str
    ) -> argparse.ArgumentParser:
        """Add a command, done by its handler and described by its help text; return its parser."""
        self.help[name] = help
        described = f"{help[0].upper()}{help[1:].replace('%%', '%')}."
        parser = self._parsers.add_parser(name, description=described)
        parser.set_defaults(handler=handler)
        return parser

    def listing(self, groups: Mapping[str, Iterable[str]]) -> str:
        """Return every command with its help, in groups."""
        width = max(map(len, self.help), default=0)
        lines: list[str] = []
        for group, names in groups.items():
            found = [name for name in names if name in self.help]
            lines += ["", f"{group}:"] if found else []
            lines += [f"  {name:<{width}}  {self.help[name]}" for name in found]
        return "\n".join(lines).strip("\n")


class Flags(Protocol):
    """A parser, or one of its groups (argparse has no public type for both)."""

    def add_argument(self, *flags: str, **details: Any) -> argparse.Action:
        """Add an option."""
        ...


# Argument types -----------------------------------------------------------------------------------


def limited(value: Value, text: str) -> Value:
    """Return the value of an argument, which must not be above the largest of any."""
    if value > LARGEST:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is above {LARGEST:,}, the largest allowed")
    return value


def at_least(minimum: int) -> Callable[[str], int]:
    """Return an argument type: a whole number of at least ``minimum``."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum:
            raise argparse.ArgumentTypeError(
                f"{text[:40]!r} is not a whole number of at least {minimum}"
            )
        return limited(value, text)

    return convert


def step_window(text: str) -> tuple[int, int]:
    """Return first and last step of ``FIRST:LAST``, as an argument type."""
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) < int(last) <= LARGEST):
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} is not a range of steps FIRST:LAST, like 120:460"
        )
    return int(first), int(last)


def positive(text: str) -> float:
    """Return a finite number above zero, as an argument type."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 1 / LARGEST:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number above zero")
    return limited(value, text)


def fraction(text: str) -> float:
    """Return a fraction below one, as an argument type; ``2%`` is 0.02."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a fraction like 0.02 or 2%")
    return value


# Flags --------------------------------------------------------------------------------------------


def add_count(
    parser: Flags, flag: str, unit: str, help: str, *, least: int = 1, **more: Any
) -> None:
    """Add an option that takes a whole number of this unit; None where it is not given."""
    parser.add_argument(flag, type=at_least(least), metavar=unit, help=help, **more)


def add_switch(parser: Flags, flag: str, help: str) -> None:
    """Add an option without a value, which is off unless it is given."""
    parser.add_argument(flag, action="store_true", help=help)


def add_text(parser: Flags, flag: str, form: str, help: str) -> None:
    """Add an option that takes a text; empty where it is not given."""
    parser.add_argument(flag, default="", metavar=form, help=help)


def add_path(parser: Flags, flag: str, form: str, help: str) -> None:
    """Add an option that takes a file or a folder; None where it is not given."""
    parser.add_argument(flag, type=Path, metavar=form, help=help)


def add_repeated(parser: Flags, flag: str, form: str, help: str, **more: Any) -> None:
    """Add an option that may be given several times; its value is the list of all."""
    parser.add_argument(flag, action="append", default=[], metavar=form, help=help, **more)


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


def add_set(parser: Flags, help: str = "any other setting") -> None:
    """Add ``--set NAME=VALUE`` for the settings that have no flag."""
    add_repeated(parser, "--set", "NAME=VALUE", help, dest="fields")


def add_model(parser: Flags) -> None:
    """Add ``--model``, which must be given."""
    parser.add_argument("--model", required=True, help=SETTINGS["model"].help)


def add_processes(
    parser: Flags, help: str, dest: str = "world_size", form: str = "N", **more: Any
) -> None:
    """Add ``--gpus``, also called ``--world-size``: a whole number unless ``type`` is another."""
    more = {"type": at_least(1), **more}
    parser.add_argument("--gpus", "--world-size", dest=dest, metavar=form, help=help, **more)


def add_platform(parser: Flags) -> None:
    """Add ``--platform`` of commands that take this machine's by themselves (``platform_of``)."""
    parser.add_argument("--platform", help="platform (default: that of this machine)")


def platform_of(options: argparse.Namespace) -> Platform:
    """Return the platform that ``--platform`` names, else that of this machine."""
    from scalebook.facts import catalog
    from scalebook.running.devices import detect

    if options.platform:
        return catalog.platform(options.platform)
    return detect.platform_of(detect.detect())


def add_start(parser: Flags) -> None:
    """Add the options that say how a training is started here."""
    add_switch(parser, "--force-platform", "run even if the device differs")
    parser.add_argument("--trainer", default="", help=argparse.SUPPRESS)


def add_start_spread(parser: Flags) -> None:
    """Add ``--start-spread``."""
    text = (
        "how much one configuration varies from start to start (standard deviation), like 0.01 "
        "or 1%%; default: SCALEBOOK_START_SPREAD, else 0.5%% (2%% on a CPU)"
    )
    parser.add_argument("--start-spread", type=fraction, metavar="FRACTION", help=text)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add ``--output``, the folder of a site."""
    text = "folder of the site (default: reports/_site; of demo: reports/_demo)"
    add_text(parser, "--output", "DIR", text)


def site_folder(output: str, *, demo: bool = False) -> Path:
    """Return the folder of the site that ``--output`` names, that of the project without it."""
    name = "_demo" if demo else "_site"
    return Path(output) if output else project.required_root() / "reports" / name


def add_port(parser: Flags) -> None:
    """Add ``--port`` of a server on this machine."""
    text = "port on 127.0.0.1 (default: a free one)"
    parser.add_argument("--port", type=at_least(0), default=0, metavar="PORT", help=text)


def add_runs(parser: Flags, what: str = "folder of run directories") -> None:
    """Add ``--runs DIR``."""
    text = f"{what} (default: runs)"
    parser.add_argument("--runs", type=Path, metavar="DIR", help=text)


def add_json(parser: argparse.ArgumentParser, *, csv: bool = False) -> None:
    """Add ``--json``, and ``--csv`` where the command prints one table.

    Both set ``json``: to ``"json"``, to ``"csv"``, or to None for a table.
    """
    group = parser.add_mutually_exclusive_group()
    text = "print JSON instead of a table"
    group.add_argument("--json", action="store_const", const="json", help=text)
    if csv:
        text = "print CSV with all fields"
        group.add_argument("--csv", dest="json", action="store_const", const="csv", help=text)


def without(
    arguments: Sequence[str], *added: Callable[[argparse.ArgumentParser], None]
) -> list[str]:
    """Return a command line less the options that these functions add to a parser."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for add in added:
        add(parser)
    return parser.parse_known_args(list(arguments))[1]


@contextmanager
def report_needed() -> Generator[None]:
    """Import a part of the report, or say what to install for it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise LaunchError(not_installed(error.name, "report")) from error


# Runs ---------------------------------------------------------------------------------------------


def require_folder(folder: Path, flag: str = "--runs DIR") -> None:
    """Refuse a folder of runs that does not exist.

    Raises:
        RecordError: it does not; ``flag`` names another.
    """
    if not folder.is_dir():
        raise RecordError(f"No folder of runs at {folder}. Name one with {flag}.")


def existing_runs(name: Path | None) -> Path:
    """Return the folder of runs to read, which must be there if it is named."""
    if name is not None:
        require_folder(name)
    return project.runs_folder(name)


def run_directory(name: str, folder: Path | None) -> Path:
    """Return the directory of a run; ids are looked for in the folder of runs and its examples.

    Raises:
        RecordError: there is no such run, or several are named.
    """
    from scalebook import store

    if (Path(name) / "record.json").is_file():
        return Path(name)
    runs = project.runs_folder(folder)
    found = store.find_run(name, runs)
    if found is not None:
        return found
    folders = (runs, runs / "examples")
    names = {path.name for one in folders for path in store.run_directories(one)}
    if not names:
        raise RecordError(
            f"No run {name!r}: {runs} contains no runs. Name a folder with --runs DIR."
        )
    nearest = unknown("run", name, names).rpartition("Did you mean")[2]
    hint = f"Did you mean{nearest}" if nearest.startswith(" ") else _HINT
    raise RecordError(f"No run {name!r} under {runs}. {hint}")


# Printing -----------------------------------------------------------------------------------------


def complain(problem: object) -> None:
    """Print a problem to stderr, with our name as every line there."""
    print(f"scalebook: {problem}", file=sys.stderr)


class LostOutputError(OSError):
    """What a command prints cannot be written: no reader, a full disk, no terminal."""


class VisibleText:
    """A text stream whose reader sees what others wrote, and whose terminal does not obey it.

    Everything else is the stream's own; ``terminal`` is the stream.

    Raises:
        LostOutputError: the stream cannot be written.
    """

    def __init__(self, stream: TextIO) -> None:
        self.terminal = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.terminal, name)

    def write(self, text: str) -> int:
        """Write a text; JSON stays the same value."""
        with _lost_output():
            return self.terminal.write(untrusted.visible(text))

    def flush(self) -> None:
        """Hand on what was written."""
        with _lost_output():
            self.terminal.flush()


@contextmanager
def _lost_output() -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise LostOutputError(error.errno, error.strerror) from None


def plain(value: Any) -> Any:
    """Return a value made of what JSON knows: dataclasses and mappings become objects."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [item.name for item in dataclasses.fields(value)]
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast(Sequence[Any], value)]
    return value


def print_json(value: Any) -> None:
    """Print a value as JSON; a NaN anywhere is an error, never output."""
    print(json.dumps(plain(value), indent=1, allow_nan=False, ensure_ascii=False))


def print_data(value: Any, form: str) -> None:
    """Print rows of data as ``csv`` or ``json``: what ``--csv`` and ``--json`` ask for.

    CSV has a column for each field of any row; a nested value is JSON.
    """
    if form != "csv":
        return print_json(value)
    found = plain(value)
    rows = cast(list[dict[str, Any]], found if isinstance(found, list) else [found])
    writer = csv.DictWriter(
        sys.stdout, dict.fromkeys(name for row in rows for name in row), lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows({name: _csv_cell(cell) for name, cell in row.items()} for row in rows)
    return None


def _csv_cell(value: Any) -> Any:
    """Return a value for CSV; a text that a spreadsheet would run as a formula gets a quote."""
    if isinstance(value, str):
        return f"'{value}" if value[:1] in tuple("=+-@\t\r") else value
    nested = isinstance(value, bool | dict | list)
    return json.dumps(value, allow_nan=False, ensure_ascii=False) if nested else value


def number(value: float | None, digits: int = 4) -> str:
    """Return a number with ``digits`` significant digits and grouped thousands, or a dash."""
    if value is None:
        return "-"
    if abs(value) >= 10 ** (digits - 1) or value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.{digits}g}"


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print left-aligned columns, numbers to the right; a text without end is cut."""
    cut = (
        tuple(text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]}..." for text in row)
        for row in rows
    )
    lines = (headers, *cut)
    columns: list[list[str]] = []
    for column in zip(*lines, strict=True):
        right = all(map(_NUMBER.fullmatch, column[1:]))
        widths = list(map(len if all(map(str.isascii, column)) else width, column))
        blanks = map(" ".__mul__, map(max(widths).__sub__, widths))
        pairs = zip(column, blanks, strict=True)
        columns.append([blank + cell if right else cell + blank for cell, blank in pairs])
    print("\n".join("  ".join(row).rstrip() for row in zip(*columns, strict=True)))


def show(
    options: argparse.Namespace,
    data: Any,
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *notes: str,
) -> int:
    """Print data as ``--json`` or ``--csv`` asks, else a table and the notes; return 0."""
    if options.json:
        print_data(data, options.json)
        return 0
    print_table(headers, rows)
    for note in notes:
        print(note)
    return 0


def serve_until_interrupted(server: HTTPServer, opened: Callable[[str], object] = str) -> int:
    """Serve on 127.0.0.1 until Ctrl-C; ``opened`` is called with the printed address."""
    address = f"http://127.0.0.1:{server.server_port}/"
    with server:
        try:
            print(f"{address} (Ctrl-C stops the server)", flush=True)
            opened(address)
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0
