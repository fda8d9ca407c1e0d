"""The command line: each module of this package registers the commands of one part."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from scalebook import __version__
from scalebook.errors import ScalebookError

# The commands of each module with ``register(subparsers)``. Only the module of the command that is
# asked for is imported, and it imports what a command needs only when it runs: every command
# starts fast and works where the optional parts are not installed.
COMMANDS = {
    "facts": "flops convert accelerators models platforms strategies published",
    "listing": "list",
    "steady": "steady compare",
    "gate": "gate",
    "check": "check plan",
    "predict": "predict",
    "tune": "tune",
    "claims": "audit project",
    "runs": "run resume recover",
    "drill": "drill",
    "cluster": "status",
    "feasibility": "feasibility",
    "reproduce": "reproduce",
    "diagnose": "diagnose",
    "probe": "probe",
    "reports": "report demo open",
    "ingest": "ingest",
    "image": "image verify",
    "doctor": "doctor",
}
# Commands that only show: a reader who goes away has seen enough. Of the others the exit code says
# what they did or found, so that 0 must be earned.
SHOWING = frozenset(
    {
        *("accelerators", "convert", "diagnose", "feasibility", "flops", "list", "models"),
        *("plan", "platforms", "predict", "project", "published", "reproduce", "status", "steady"),
        "strategies",
    }
)
# What a user's path may be wrong in; with a file's name, so that no defect of ours passes for it.
BAD_PATH = frozenset(
    {errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP}
)
LOST_OUTPUT = frozenset({errno.EPIPE, errno.ENOSPC, errno.EIO})  # no reader, full, no terminal


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as every error of the command line."""

    def error(self, message: str) -> NoReturn:
        """Print the message with the command's name and exit with code 2."""
        self.exit(2, f"{self.prog}: {message.rstrip('.')}. See {self.prog} --help.\n")


def _take_catalog(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without ``--catalog FILE``, which may stand anywhere.

    The file goes into the environment, so that the processes that a command starts see it too.
    """
    parser = Parser(prog="scalebook", add_help=False, allow_abbrev=False)
    parser.add_argument("--catalog", action="append", default=[], type=Path)
    options, rest = parser.parse_known_args(arguments)
    if options.catalog:
        paths = [str(path.absolute()) for path in options.catalog]
        os.environ["SCALEBOOK_CATALOG"] = os.pathsep.join(paths)
    return rest


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the parser; with every command registered unless one is named that exists."""
    parser = Parser(prog="scalebook", allow_abbrev=False)
    parser.description = "Measure and report how fast an LLM trains, and why."
    parser.add_argument("--version", action="version", version=f"scalebook {__version__}")
    parser.add_argument(
        "--catalog", metavar="FILE", help="a TOML file that adds to the facts or overrides them"
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    named = [name for name, commands in COMMANDS.items() if command in commands.split()]
    for name in () if command == "--version" else named or COMMANDS:
        import_module(f"scalebook.cli.{name}").register(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code (2 and one line on an error of the user's)."""
    rest = _take_catalog(sys.argv[1:] if arguments is None else arguments)
    options = build_parser(rest[0] if rest else None).parse_args(rest)
    options.arguments = rest  # as given: 'run' repeats them inside a container
    handler: Callable[[argparse.Namespace], int] = options.handler
    code = None  # until the command has done what it does
    try:
        code = handler(options)
        sys.stdout.flush()
    except ScalebookError as error:
        print(f"scalebook: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.filename is not None and error.errno in BAD_PATH:
            print(f"scalebook: {error.strerror}: {str(error.filename)[:200]}", file=sys.stderr)
            return 2
        if error.errno not in LOST_OUTPUT:
            raise
        shows = options.command in SHOWING or getattr(options, "dry_run", False)
        return _without_output(error, code, shows)
    return code


def _without_output(error: OSError, code: int | None, shows: bool) -> int:
    """Return the exit code of a command that could not print to its end.

    ``code`` is its own, None where it was not done.
    """
    # Python would try to write the rest, and complain once more, at its exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        unfinished = 0 if shows else 1
        return unfinished if code is None else code
    print(f"scalebook: The output cannot be written: {error.strerror}.", file=sys.stderr)
    return 2 if code is None or shows else code
