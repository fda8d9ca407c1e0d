"""The command line: each module of this package registers the commands of one part."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast

from scalebook import __version__
from scalebook.cli.terminal import LostOutputError, Subparsers, VisibleText
from scalebook.errors import ScalebookError, unknown
from scalebook.settings import SETTINGS

# Each command's module, which has ``register``, in the groups of ``--help``. Only the module of the
# command that is asked for is imported, and it imports what a command needs only when it runs:
# every command starts fast and works where the optional parts are not installed.
GROUPS: Mapping[str, Mapping[str, str]] = {
    "facts": {
        "flops": "facts", "convert": "facts", "accelerators": "facts", "models": "facts",
        "platforms": "facts", "strategies": "facts", "published": "facts", "audit": "claims",
    },
    "before a run": {
        "check": "check", "plan": "check", "predict": "predict", "recommend": "tune",
        "tune": "tune", "feasibility": "facts", "project": "claims", "doctor": "machine",
        "probe": "machine", "image": "machine", "verify": "machine",
    },
    "run": {
        "run": "runs", "status": "scheduler", "serve": "serve", "recover": "runs",
        "drill": "runs",
    },
    "after a run": {
        "list": "show", "columns": "show", "steady": "step_times", "compare": "step_times",
        "gate": "step_times", "diagnose": "show", "reproduce": "show", "report": "reports",
        "demo": "reports", "open": "serve", "publish": "reports",
    },
    "interchange": {"ingest": "interchange", "export": "interchange"},
}  # fmt: skip
COMMANDS = {name: module for group in GROUPS.values() for name, module in group.items()}
# Commands that only show: a reader who goes away has seen enough. The exit code of the others says
# what they did or found, so a lost reader must not turn it into 0.
SHOWING = frozenset(
    {
        *("accelerators", "convert", "diagnose", "feasibility", "flops", "list", "models"),
        *("plan", "platforms", "predict", "project", "published", "reproduce", "status", "steady"),
        *("columns", "compare", "recommend", "strategies"),
    }
)
# What a user's path may be wrong in; with a file's name, so that no defect of ours passes for it.
BAD_PATH = frozenset(
    {errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP}
)
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and to which ``-1%`` and ``-2T`` are values."""

    def _parse_optional(self, arg_string: str) -> Any:
        return None if arg_string[1:2].isdigit() else super()._parse_optional(arg_string)

    def error(self, message: str) -> NoReturn:
        """Print the message with the command's name and exit with code 2."""
        said = message if message.endswith(("?", ".")) else f"{message}."
        self.exit(2, f"{self.prog}: {said} See {self.prog} --help.\n")


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


def build_commands(command: str | None = None) -> tuple[argparse.ArgumentParser, Subparsers]:
    """Return the parser and its commands: the one named if it exists, else all."""
    parser = Parser(
        prog="scalebook",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Measure and report how fast an LLM trains, and why.",
    )
    parser.add_argument("--version", action="version", version=f"scalebook {__version__}")
    parser.add_argument(
        "--catalog", metavar="FILE", help="TOML file that adds to the facts or overrides them"
    )
    commands = Subparsers(parser)
    modules = {COMMANDS[command]} if command in COMMANDS else dict.fromkeys(COMMANDS.values())
    for name in () if command == "--version" else modules:
        import_module(f"scalebook.cli.{name}").register(commands)
    parser.epilog = commands.listing(GROUPS)
    return parser, commands


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code (2 and one line on an error of the user's)."""
    with (
        Path(os.devnull).open("w", encoding="utf-8") as nobody,  # who reads what is closed: >&-
        redirect_stdout(cast("TextIO", VisibleText(sys.stdout or nobody))),
        redirect_stderr(cast("TextIO", VisibleText(sys.stderr or nobody))),
    ):
        try:
            return _run(sys.argv[1:] if arguments is None else arguments)
        except KeyboardInterrupt:
            print("scalebook: Interrupted.", file=sys.stderr)
            return INTERRUPTED


def _run(arguments: Sequence[str]) -> int:
    """Run one command, whose output may hold anything that others wrote."""
    rest = _take_catalog(arguments)
    parser = build_commands(rest[0] if rest else None)[0]
    if rest and not rest[0].startswith("-") and rest[0] not in COMMANDS:
        parser.error(unknown("command", rest[0], COMMANDS))
    options, left = parser.parse_known_args(rest)
    if left:
        parser.prog += f" {options.command}"  # whose help lists what is known
        parser.error(f"unrecognized arguments: {' '.join(left)}{_hint(left, options)}")
    options.arguments = rest  # as given: 'run' repeats them inside a container
    handler: Callable[[argparse.Namespace], int] = options.handler
    code = None  # until the command has done what it does
    try:
        code = handler(options)
        sys.stdout.flush()
    except ScalebookError as error:
        print(f"scalebook: {error}", file=sys.stderr)
        return 2
    except LostOutputError as error:
        shows = options.command in SHOWING or getattr(options, "dry_run", False)
        return _without_output(error, code, shows)
    except OSError as error:
        if error.filename is not None and error.errno in BAD_PATH:
            name = str(error.filename)[:200]
            print(f"scalebook: {error.strerror}: {name}. Check the path.", file=sys.stderr)
            return 2
        if error.errno == errno.ENOSPC:
            advice = "Free some, or choose a folder on another disk"
            print(f"scalebook: {error.strerror}. {advice}.", file=sys.stderr)
            return 2
        raise
    return code


def _hint(left: Sequence[str], options: argparse.Namespace) -> str:
    """Return in brackets how the command takes what it did not recognise; empty if it does not."""
    name = left[0].removeprefix("--").partition("=")[0].replace("-", "_")
    if Path(left[-1]).is_dir() and hasattr(options, "runs"):
        return " (a folder of runs is given with --runs)"
    if left[-1].endswith(".toml") and hasattr(options, "plan"):
        return " (a plan is given with --plan)"
    if name in SETTINGS and hasattr(options, "fields"):
        return f" (a setting without a flag is given with --set {name}=VALUE)"
    return ""


def _without_output(error: LostOutputError, code: int | None, shows: bool) -> int:
    """Return the exit code of a command that could not print to its end.

    ``code`` is its own, None where it was not done.
    """
    # Python would try to write the rest, and complain once more, at its exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:
        return code if code is not None else 0 if shows else 2
    print(f"scalebook: The output cannot be written: {error.strerror}.", file=sys.stderr)
    return 2 if code is None or shows else code
