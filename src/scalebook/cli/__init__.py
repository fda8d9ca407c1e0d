"""The command line: each module of this package registers the commands of one part."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from scalebook import __version__
from scalebook.errors import ScalebookError

# Modules with ``register(subparsers)``; they import what a command needs only when it runs,
# so that every command starts fast and works where the optional parts are not installed.
COMMAND_MODULES = ("facts", "check", "claims", "runs", "reports")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser with every command registered."""
    parser = argparse.ArgumentParser(prog="scalebook", description=__doc__)
    parser.description = "Measure and report how fast an LLM trains, and why."
    parser.add_argument("--version", action="version", version=f"scalebook {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMAND_MODULES:
        import_module(f"scalebook.cli.{name}").register(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code (2 and one line on an error of the user's)."""
    options = build_parser().parse_args(arguments)
    handler: Callable[[argparse.Namespace], int] = options.handler
    try:
        return handler(options)
    except ScalebookError as error:
        print(f"scalebook: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 0
