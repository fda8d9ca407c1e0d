"""``scalebook ingest``: logs and result files from elsewhere into run directories."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this module's commands."""
    parser = subparsers.add_parser(
        "ingest", help="read logs of other trainers into run directories"
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="files or folders")
    parser.add_argument(
        "--json", action="store_true", help="print what a file holds, write nothing"
    )
    parser.add_argument("--dialect", help="read the files as this dialect")
    parser.set_defaults(handler=run_ingest)


def run_ingest(options: argparse.Namespace) -> int:
    """Print summaries, or write run directories."""
    from scalebook.ingest.observe import observe
    from scalebook.ingest.reader import read_file
    from scalebook.ingest.summary import summarise

    found = []
    for path in options.paths:
        _, jobs = read_file(path, options.dialect)
        found += [summarise(job, observe(job)) for job in jobs]
    print(json.dumps(found[0] if len(found) == 1 else found, indent=1, allow_nan=False))
    return 0
