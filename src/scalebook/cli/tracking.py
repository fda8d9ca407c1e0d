"""Command ``export`` and the option ``--log-to`` of ``run``: runs into trackers and tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scalebook.cli.arguments import Flags, Subparsers, add_runs
from scalebook.cli.found import RUN_HELP, run_directory

if TYPE_CHECKING:
    from scalebook.store import Run
    from scalebook.trackers import Target

TABLES = ("csv", "parquet")


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    parser = subparsers.add_parser("export", help="write runs to trackers, or as tables")
    parser.add_argument(
        "names", nargs="+", metavar="RUNS", help=f"{RUN_HELP}, or a folder of run directories"
    )
    parser.add_argument(
        "--to",
        action="append",
        required=True,
        metavar="KIND:PLACE",
        help="mlflow:URI, wandb:DIR (offline), tensorboard:DIR, mlperf:FILE, csv:DIR or "
        "parquet:DIR; repeatable",
    )
    add_runs(parser, "folder in which run ids are looked up")
    parser.set_defaults(handler=export_runs)


def add_log_to(parser: Flags) -> None:
    """Add ``--log-to``."""
    parser.add_argument(
        "--log-to",
        action="append",
        default=[],
        metavar="KIND:PLACE",
        help="also write each run, when it has ended, to mlflow:URI, wandb:DIR (offline), "
        "tensorboard:DIR or mlperf:FILE; repeatable",
    )


def without_log_to(arguments: Sequence[str]) -> list[str]:
    """Return a command line less the options that ``add_log_to`` adds."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_log_to(parser)
    return parser.parse_known_args(list(arguments))[1]


def targets(options: argparse.Namespace) -> tuple[Target, ...]:
    """Return the targets of ``--log-to``, each of which can be written to here.

    Raises:
        TrackerError: one is malformed, its client is missing, or jobs of Slurm would need it.
    """
    from scalebook.errors import TrackerError
    from scalebook.trackers import parse_target

    if options.launcher != "direct":
        raise TrackerError(
            "--log-to needs the runs on this machine. Leave it out, and write them when the jobs "
            "have ended: 'scalebook export runs --to KIND:PLACE'."
        )
    return tuple(map(parse_target, options.log_to))


def after_run(options: argparse.Namespace) -> Callable[[Path], Sequence[str]] | None:
    """Return what to do with each run that has ended; it returns warnings. None without any."""
    if not options.log_to:
        return None
    from scalebook.trackers import log_run

    wanted = targets(options)
    return lambda directory: log_run(directory, wanted)


def log_new(
    after: Callable[[Path], Sequence[str]], directories: Iterable[Path], before: Container[Path]
) -> None:
    """Write the runs that were not there before: a container has no clients of trackers."""
    for directory in directories:
        if directory not in before:
            for problem in after(directory):
                print(f"scalebook: warning: {directory.name}: {problem}", file=sys.stderr)


def export_runs(options: argparse.Namespace) -> int:
    """Write runs to every target; 1 if a target did not take one of them."""
    from scalebook.errors import TrackerError
    from scalebook.trackers import export, parse_target

    tables = [text.partition(":")[::2] for text in options.to if text.partition(":")[0] in TABLES]
    trackers = [parse_target(text) for text in options.to if text.partition(":")[0] not in TABLES]
    if any(not place for _, place in tables):
        raise TrackerError("A table needs a folder. Write csv:DIR or parquet:DIR.")
    runs, failed = _runs(options), 0
    for kind, place in tables:
        _write_tables(runs, kind, Path(place))
    for target in trackers:
        written = 0
        for run in runs:
            try:
                export(run, target)
                written += 1
            except TrackerError as error:
                print(f"scalebook: {error}", file=sys.stderr)
                failed += 1
        print(f"{target}: {written} of {len(runs)} runs written")
    return 1 if failed else 0


def _runs(options: argparse.Namespace) -> list[Run]:
    """Return the runs that the user names, each once; what cannot be read goes to stderr.

    Raises:
        RecordError: a name is of no run, or there is no run at all.
    """
    from scalebook import store
    from scalebook.errors import RecordError

    found: dict[Path, Run] = {}
    for name in options.names:
        path = Path(name)
        if not path.is_dir() or (path / "record.json").is_file():
            directory = run_directory(name, options.runs)
            found[directory.resolve()] = store.read_run(directory)
            continue
        for run in store.each_run(path):
            if isinstance(run, str):
                print(f"scalebook: {run}", file=sys.stderr)
            else:
                found[run.path.resolve()] = run
    if not found:
        raise RecordError(f"No runs under {', '.join(options.names)}. Name a folder of runs.")
    return list(found.values())


def _write_tables(runs: Sequence[Run], kind: str, folder: Path) -> None:
    """Write the tables of runs and of steps as the report writes them."""
    from scalebook.errors import LaunchError, not_installed

    try:
        from scalebook.report.base.frames import collect
        from scalebook.report.site.site_files import write_tables
    except ModuleNotFoundError as error:
        raise LaunchError(not_installed(error.name, "report")) from error
    data = collect(folder, runs, ())
    for problem in data.problems:
        print(f"scalebook: {problem}", file=sys.stderr)
    names = write_tables(data, folder, kind)
    print(f"{kind}:{folder}: {', '.join(names)} of {data.runs.height} runs written")
