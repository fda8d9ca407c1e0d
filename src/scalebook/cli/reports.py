"""Commands that build and publish the report: report, demo, publish."""

from __future__ import annotations

import argparse
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from scalebook import project
from scalebook.cli.terminal import (
    Subparsers,
    add_output,
    add_runs,
    add_switch,
    add_text,
    complain,
    report_needed,
    site_folder,
)
from scalebook.errors import IncompleteReportError, PublicationError, ReportError

RENDERERS = ("auto", "quarto", "preview")


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    text = "build the report from the runs of a folder"
    report = subparsers.add_parser("report", build_report, help=text)
    text = "folders of runs, or publications, merged into one report"
    report.add_argument("folders", nargs="*", type=Path, metavar="DIR", help=text)
    add_runs(report)
    text = "folder of older runs: adds a page of what changed since (default: none)"
    add_text(report, "--against", "OLD", text)
    _add_building(report)
    text = "build the report from the example runs"
    demo = subparsers.add_parser("demo", build_report, help=text)
    _add_building(demo)
    demo.set_defaults(runs=None, against="", demo=True, folders=[])
    _add_publish(subparsers)


def _add_publish(subparsers: Subparsers) -> None:
    text = "write report, cleaned runs and checksums to a folder for any web host"
    parser = subparsers.add_parser("publish", publish_runs, help=text)
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder to write")
    add_runs(parser)
    add_text(parser, "--submitter", "NAME", "who publishes the runs")
    add_text(parser, "--contact", "TEXT", "how to reach the submitter")


def _add_building(parser: argparse.ArgumentParser) -> None:
    add_output(parser)
    text = "preview (built in), quarto (the same, slower), or auto: preview (default: auto)"
    parser.add_argument("--renderer", choices=RENDERERS, default="auto", help=text)
    add_switch(parser, "--one-file", "also write the whole report to a single HTML file")
    parser.set_defaults(demo=False)


def build_report(options: argparse.Namespace) -> int:
    """Build the site; print the path of its first page last. Exit code 1 where a page failed."""
    root = project.required_root()
    if options.folders and options.runs:
        raise ReportError("Give the folders with --runs or without it, not both.")
    with report_needed():
        from scalebook.report import Places, build
        from scalebook.report.merged import one_folder
    site = site_folder(options.output, demo=options.demo)
    runs = root / "runs" / "examples" if options.demo else project.runs_folder(options.runs)
    try:
        against = Path(options.against) if options.against else None
        places = Places(runs, site, root, against)
        if options.folders:
            places = replace(places, runs=one_folder(options.folders, places.cache))
        index = build(places, options.renderer, one_file=options.one_file)
    except IncompleteReportError as error:
        complain(error)
        return 1
    except OSError as error:
        problem = f"The report cannot be written to {site}: {_why(error)}."
        raise ReportError(f"{problem} Choose another folder with --output.") from error
    print(project.short(index))
    return 0


def publish_runs(options: argparse.Namespace) -> int:
    """Publish a folder of runs; exit code 1 where a secret or a failed page prevents it."""
    root = project.required_root()
    with report_needed():
        from scalebook.report.publish import Sender, publish
    sender = Sender(options.submitter, options.contact)
    try:
        made = publish(project.runs_folder(options.runs), options.folder, root, sender)
    except (PublicationError, IncompleteReportError) as error:
        complain(error)
        return 1
    except OSError as error:
        problem = f"The publication cannot be written to {options.folder}: {_why(error)}."
        raise ReportError(f"{problem} Choose another folder.") from error
    print(f"{made.runs} runs; files left out: {made.left_out}", file=sys.stderr)
    print(project.short(made.folder))
    return 0


def _why(error: OSError) -> str:
    """Return why a folder was not written; of a copy of many files, why the first was not."""
    if isinstance(error, shutil.Error):
        return str(error.args[0][0][-1]).partition(": '")[0]
    return str(error)
