"""Commands that build and show the report: report, demo, open."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scalebook import project
from scalebook.cli.arguments import Subparsers
from scalebook.errors import IncompleteReportError, LaunchError, ReportError

RENDERERS = ("auto", "quarto", "preview")


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    report = subparsers.add_parser("report", help="build the report from the runs of a folder")
    report.add_argument(
        "--runs", default="", metavar="DIR", help="folder of run directories (default: runs)"
    )
    report.add_argument(
        "--against",
        default="",
        metavar="OLD",
        help="folder of older runs: adds a page of what changed since (default: none)",
    )
    _add_building(report)
    report.set_defaults(handler=build_report)
    demo = subparsers.add_parser("demo", help="build the report from the example runs")
    _add_building(demo)
    demo.set_defaults(handler=build_report, runs="", against="", demo=True)
    show = subparsers.add_parser(
        "open", help="open the report in a browser, served on this machine only"
    )
    _add_output(show)
    show.add_argument(
        "--port",
        type=int,
        default=0,
        metavar="PORT",
        help="port on 127.0.0.1 (default: a free one)",
    )
    show.add_argument("--no-browser", action="store_true", help="print the address only")
    show.set_defaults(handler=open_report)


def _add_output(parser: argparse.ArgumentParser) -> None:
    text = "folder of the site (default: reports/_site)"
    parser.add_argument("--output", default="", metavar="DIR", help=text)


def _add_building(parser: argparse.ArgumentParser) -> None:
    _add_output(parser)
    parser.add_argument(
        "--renderer",
        choices=RENDERERS,
        default="auto",
        help="preview (built in), quarto (15 s slower), or auto, which is preview (default: auto)",
    )
    parser.add_argument(
        "--one-file",
        action="store_true",
        help="also write the whole report to a single HTML file",
    )
    parser.set_defaults(demo=False)


def build_report(options: argparse.Namespace) -> int:
    """Build the site; print the path of its first page last. Exit code 1 where a page failed."""
    root = project.required_root()
    runs = root / "runs" / "examples" if options.demo else project.runs_folder(options.runs)
    try:
        from scalebook.report import Places, build
    except ModuleNotFoundError as error:
        raise LaunchError(
            f"{error.name} is not installed. Install the extra: pip install 'scalebook[report]'."
        ) from error
    site = _site(options.output)
    try:
        places = Places(runs, site, root, Path(options.against) if options.against else None)
        index = build(places, options.renderer, one_file=options.one_file)
    except IncompleteReportError as error:
        print(f"scalebook: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        problem = f"The report cannot be written to {site}: {error}."
        raise ReportError(f"{problem} Choose another folder with --output.") from error
    print(project.short(index))
    return 0


def _site(output: str) -> Path:
    return Path(output) if output else project.required_root() / "reports" / "_site"


def open_report(options: argparse.Namespace) -> int:
    """Serve the site on this machine only until interrupted, and show it in the browser."""
    import functools
    import http.server
    import webbrowser

    site = _site(options.output)
    if not (site / "index.html").is_file():
        raise ReportError(f"There is no report in {site}. Build it with 'make report'.")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", options.port), handler)
    except (OSError, OverflowError) as error:
        raise ReportError(
            f"Port {options.port} cannot be used: {error}. Leave out --port."
        ) from error
    address = f"http://127.0.0.1:{server.server_port}/"
    print(f"{address} (Ctrl-C stops the server)", flush=True)
    if not options.no_browser:
        webbrowser.open(address)
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0
