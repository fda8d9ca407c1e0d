"""Command ``reproduce``: the command, commit and variables that reproduce a run."""

from __future__ import annotations

import argparse
import os

from scalebook.cli.arguments import Subparsers, add_json, add_runs
from scalebook.cli.found import RUN_HELP, run_directory
from scalebook.cli.output import plain, print_json


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    parser = subparsers.add_parser(
        "reproduce", help="print command, commit and variables that reproduce a run"
    )
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    add_runs(parser)
    add_json(parser)
    parser.set_defaults(handler=reproduce)


def reproduce(options: argparse.Namespace) -> int:
    """Print how to reproduce a run, and how its machine differs from this one."""
    from scalebook.running import reproduce
    from scalebook.store import read_record

    record = read_record(run_directory(options.run, options.runs))
    found = reproduce.recipe(record, reproduce.surroundings(os.environ), os.environ)
    if options.json:
        names = ("name", "recorded", "here")
        differences = [dict(zip(names, one, strict=True)) for one in found.differences]
        print_json({**plain(found), "differences": differences})
        return 0
    for line in reproduce.lines(found):
        print(line)
    return 0
