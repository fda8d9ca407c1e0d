"""Command ``reproduce``: the command, commit and variables that make a run again."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from scalebook.cli.arguments import Subparsers, add_json
from scalebook.cli.output import plain, print_json

if TYPE_CHECKING:
    from scalebook.record import RunRecord


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    parser = subparsers.add_parser(
        "reproduce", help="print the command, commit and variables that make a run again"
    )
    parser.add_argument("run", metavar="RUN", help="a run id, or a run directory")
    parser.add_argument("--runs", type=Path, help="folder of run directories; default: runs")
    add_json(parser)
    parser.set_defaults(handler=reproduce)


def reproduce(options: argparse.Namespace) -> int:
    """Print how to make a run again, and what differs between its machine and this one."""
    from scalebook.running import reproduce

    record = _record(options.run, options.runs)
    found = reproduce.recipe(record, reproduce.surroundings(os.environ), os.environ)
    if options.json:
        names = ("name", "recorded", "here")
        differences = [dict(zip(names, one, strict=True)) for one in found.differences]
        print_json({**plain(found), "differences": differences})
        return 0
    for line in reproduce.lines(found):
        print(line)
    return 0


def _record(name: str, folder: Path | None) -> RunRecord:
    """Return the record of a run directory, or of the run with this id in the folder of runs.

    Raises:
        RecordError: there is no such run, or it cannot be read.
    """
    from scalebook import store
    from scalebook.errors import RecordError, unknown
    from scalebook.project import runs_folder

    if (Path(name) / "record.json").is_file():
        return store.read_record(Path(name))
    runs = folder or runs_folder()
    directories = [*store.run_directories(runs), *store.run_directories(runs / "examples")]
    by_name = {directory.name: directory for directory in reversed(directories)}
    if name in by_name:
        return store.read_record(by_name[name])
    if not by_name:
        raise RecordError(f"No run {name!r}: {runs} holds no run. Name its folder with --runs DIR.")
    nearest = unknown("run", name, by_name).rpartition("Did you mean")[2]
    hint = f"Did you mean{nearest}" if nearest.startswith(" ") else "'scalebook list' names them."
    raise RecordError(f"No run {name!r} under {runs}. {hint}")
