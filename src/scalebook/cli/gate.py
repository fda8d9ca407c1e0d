"""Command ``gate``: runs against a stored baseline, for a CI."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from scalebook.cli.arguments import Subparsers, add_json, add_start_spread
from scalebook.cli.output import print_json

if TYPE_CHECKING:
    from scalebook.store import Run


def _fraction(text: str) -> float:
    """Return a fraction below one, as an argument type; ``2%`` is 0.02."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no fraction like 0.02 or 2%")
    return value


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    parser = subparsers.add_parser("gate", help="fail where runs differ from a stored baseline")
    parser.add_argument("--baseline", type=Path, required=True, help="folder of baseline runs")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the new runs")
    parser.add_argument("--junit", type=Path, help="write JUnit XML to this file")
    parser.add_argument("--markdown", type=Path, help="write a Markdown table to this file")
    parser.add_argument(
        "--tolerance",
        type=_fraction,
        default=0.0,
        help="a change that never fails, like 0.02 or 2%%; default: what the noise hides",
    )
    parser.add_argument(
        "--must-see",
        type=_fraction,
        metavar="FRACTION",
        help="exit with 2 where a change as large as this, like 0.05 or 5%%, could hide in the "
        "noise; default: such a configuration is shown as 'cannot tell'",
    )
    add_start_spread(parser)
    add_json(parser)
    parser.set_defaults(handler=gate)


def gate(options: argparse.Namespace) -> int:
    """Print how each configuration came out; 1 where one is slower or faster for sure, else 0.

    2 where a run could not be read, or a change that must be seen would not be.
    """
    from scalebook.measure.verdicts.gate import MUST_SEE, check
    from scalebook.measure.verdicts.gate_report import junit, markdown, summary

    (baseline, unread), (current, more) = map(_read, (options.baseline, options.runs))
    must_see = options.must_see or max(MUST_SEE, 2 * options.tolerance)
    checks = check(baseline, current, options.tolerance, must_see, options.start_spread)
    for path, write in ((options.junit, junit), (options.markdown, markdown)):
        if path is not None:
            _write(path, write(checks))
    if options.json:
        print_json(checks)
    else:
        for one in checks:
            print(f"{one.outcome}: {one.name}. {one.detail}")
            for item in one.differences if one.failed else ():
                print(f"  differs: {item}")
        print(summary(checks))
    if any(one.failed for one in checks):
        return 1
    unseen = options.must_see and any(one.outcome == "cannot tell" for one in checks)
    return 2 if unread or more or unseen else 0


def _read(folder: Path) -> tuple[tuple[Run, ...], tuple[str, ...]]:
    """Return the runs of a folder and what cannot be read, which goes to stderr."""
    from scalebook.errors import RecordError
    from scalebook.store import read_runs

    if not folder.is_dir():
        raise RecordError(f"No folder of runs at {folder}. Name one with --baseline and --runs.")
    runs, problems = read_runs(folder)
    for problem in problems:
        print(f"scalebook: {problem}", file=sys.stderr)
    if not runs:
        raise RecordError(f"{folder} holds no run. Name a folder with --baseline and --runs.")
    return runs, problems


def _write(path: Path, text: str) -> None:
    from scalebook.errors import RecordError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RecordError(f"{path} cannot be written: {error.strerror}.") from error
