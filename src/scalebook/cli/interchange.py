"""Commands ``ingest`` and ``export``, and ``--log-to`` of ``run``: other trainers and trackers."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import tomllib
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scalebook.cli.terminal import (
    RUN_HELP,
    Flags,
    Subparsers,
    add_json,
    add_repeated,
    add_runs,
    add_settings,
    complain,
    number,
    print_json,
    print_table,
    report_needed,
    run_directory,
    step_window,
)
from scalebook.project import runs_folder
from scalebook.running.console import Console
from scalebook.settings import PARALLEL_SIZES, SETTINGS, named

if TYPE_CHECKING:
    from scalebook.logs.dialects.dialect import Dialect
    from scalebook.logs.ingest.group import Opener, StoreReader
    from scalebook.logs.ingest.ingestion import Ingested
    from scalebook.store import Run
    from scalebook.trackers import Target

SHOW_SECONDS = 2.0  # an import that takes longer says how far it is, so often
TABLES = ("csv", "parquet")
# Settings that a log may lack and the user may supply, next to the model and the software.
SUPPLIED = (  # that are settings
    *(n for n in named("group") if n != "model" and SETTINGS[n].kind != "software"),
    *("nodes", *named("size"), *PARALLEL_SIZES),
)
KNOWN = ("model", "platform", *SUPPLIED, "trained", "packed_sequences")  # all that may be supplied


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    _register_ingest(subparsers)
    text = "write runs to trackers, or as tables"
    parser = subparsers.add_parser("export", export_runs, help=text)
    parser.add_argument(
        "names", nargs="+", metavar="RUNS", help=f"{RUN_HELP}, or a folder of run directories"
    )
    text = (
        "mlflow:URI, wandb:DIR (offline), tensorboard:DIR, mlperf:FILE, csv:DIR or parquet:DIR; "
        "repeatable"
    )
    parser.add_argument("--to", action="append", required=True, metavar="KIND:PLACE", help=text)
    add_runs(parser, "folder in which to look up run ids")


def _register_ingest(subparsers: Subparsers) -> None:
    text = "import logs of other trainers and runs of trackers"
    parser = subparsers.add_parser("ingest", run_ingest, help=text)
    text = "log files or folders; runs of W&B (offline), MLflow (folder, SQLite) and TensorBoard"
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help=text)
    add_runs(parser, "folder for the new run directories")
    parser.add_argument(
        "--dialect", metavar="NAME", help="read every file as this dialect; 'list' prints them all"
    )
    text = (
        "read any CSV or JSON lines: the column of step_seconds, step, loss, ...; or a TOML file "
        "of such lines; repeatable"
    )
    add_repeated(parser, "--map", "NAME=COLUMN", text)
    said = parser.add_argument_group("values that the files do not contain (marked as supplied)")
    said.add_argument("--model", help="model of the catalog")
    said.add_argument("--platform", help="platform of the catalog")
    add_settings(said, SUPPLIED)
    text = "whether all weights were trained or only a part (such as LoRA)"
    said.add_argument("--trained", choices=("all", "part"), help=text)
    text = "whether several documents share a sample: MFU is then an upper bound"
    said.add_argument("--packed-sequences", action=argparse.BooleanOptionalAction, help=text)
    text = "average over these steps if a series has several levels (marked as chosen)"
    parser.add_argument("--window", type=step_window, metavar="FIRST:LAST", help=text)
    add_json(parser)


def run_ingest(options: argparse.Namespace) -> int:
    """Print what the files hold (``--json``), or write run directories and print a table."""
    from scalebook.errors import IngestError
    from scalebook.facts import catalog
    from scalebook.logs.dialects.registry import dialects
    from scalebook.logs.ingest.group import no_store
    from scalebook.logs.ingest.ingestion import ingest, summaries
    from scalebook.trackers import opener

    if options.dialect == "list":
        print("\n".join(sorted(dialect.name for dialect in dialects())))
        return 0
    if not options.paths:
        raise IngestError("No path was given. Name log files or folders.")
    dialect = _dialect(options)
    opens = no_store if isinstance(dialect, str) else opener(dialect)
    supplied = {name: one for name in KNOWN if (one := getattr(options, name)) is not None}
    how = (supplied, dialect, opens)
    if options.model:
        catalog.model(options.model)
    if options.platform:
        catalog.platform(options.platform)
    if options.json:
        every = (summaries(path, *how, window=options.window) for path in options.paths)
        found = [summary for of_path in every for summary in of_path]
        print_json(found[0] if len(found) == 1 else found)
        return 0
    console, due = Console(sys.stderr), time.monotonic() + SHOW_SECONDS

    def show(text: str) -> None:
        nonlocal due
        if time.monotonic() >= due:
            console.live(text)
            due = time.monotonic() + SHOW_SECONDS

    how = (supplied, dialect, _counting(opens, show))
    try:
        folder = runs_folder(options.runs)
        runs, notes = ingest(options.paths, folder, *how, window=options.window, show=show)
    finally:
        console.clear()
    for note in notes:
        complain(note)
    if not runs:
        raise IngestError("No log was recognised in these paths; nothing was written.")
    for run in runs:
        if run.summary["void"]:
            print(f"warning: {run.path.name}: {run.summary['void']}")
    _print_people(runs)
    return 0


def _counting(opens: Opener, show: Callable[[str], None]) -> Opener:
    """Return an opener that says how many files it has looked at: a folder may hold millions."""
    numbers = itertools.count(1)

    def counted(path: Path) -> StoreReader | None:
        show(f"Files looked at: {next(numbers):,}, now {path}")
        return opens(path)

    return counted


def _dialect(options: argparse.Namespace) -> str | type[Dialect] | None:
    """Return the dialect that the user names, or the one that the columns of --map make."""
    from scalebook import untrusted
    from scalebook.errors import IngestError
    from scalebook.logs.dialects.rows import mapped

    if not options.map:
        return options.dialect
    mapping: dict[str, str] = {}
    for text in options.map:
        name, equals, column = text.partition("=")
        if equals:
            mapping[name.strip()] = column.strip()
            continue
        try:
            found = tomllib.loads(untrusted.read_bytes(Path(text), follow=True).decode())
        except (OSError, ValueError, RecursionError) as error:
            raise IngestError(
                f"--map {text} is neither NAME=COLUMN nor a readable TOML file ({error})."
            ) from error
        mapping |= {key: value for key, value in found.items() if isinstance(value, str)}
    return mapped(mapping)


def _print_people(runs: list[Ingested]) -> None:
    headers = ("run", "file", "", "status", "records", "median step s", "tokens/s/GPU")
    rows = [
        (
            run.path.name,
            run.files[0].name,
            "written" if run.new else "unchanged",
            "void" if run.summary["void"] else str(run.summary["status"]),
            str(run.summary["n_records"]),
            number(run.summary["step_seconds_median_of_rate"]),
            number(run.summary["tokens_per_second_per_gpu"]),
            number(run.summary["tflops_per_second_per_gpu_logged_median"]),
        )
        for run in runs
    ]
    print_table((*headers, "TFLOP/s/GPU logged"), rows)
    for run in runs:
        for warning in run.summary["warnings"]:
            if warning != run.summary["void"]:
                print(f"{run.path.name}: {warning}")
        if run.summary["n_records"] == 0:
            print(f"{run.path.name}: the log has no training step, so the run has no rate.")
        elif run.summary["family"] == "rows" and not run.summary["step_seconds_median_of_rate"]:
            print(f"{run.path.name}: no step time: name its column, --map step_seconds=COLUMN.")
        if missing := run.summary["missing"]:
            what = "MFU" if run.summary["tokens_per_second_per_gpu"] else "a rate and MFU"
            flags = " ".join(f"--{name}".replace("_", "-") for name in missing)
            print(f"{run.path.name}: {what} would need what the log does not say: add {flags}.")


def add_log_to(parser: Flags) -> None:
    """Add ``--log-to``."""
    text = (
        "also write each run, when it has ended, to mlflow:URI, wandb:DIR (offline), "
        "tensorboard:DIR or mlperf:FILE; repeatable"
    )
    add_repeated(parser, "--log-to", "KIND:PLACE", text)


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
                complain(f"warning: {directory.name}: {problem}")


def export_runs(options: argparse.Namespace) -> int:
    """Write runs to every target; 1 if a target did not take one of them."""
    from scalebook.errors import TrackerError
    from scalebook.trackers import export, parse_target

    tables = [text.partition(":")[::2] for text in options.to if text.partition(":")[0] in TABLES]
    trackers = [parse_target(to, TABLES) for to in options.to if to.split(":")[0] not in TABLES]
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
                complain(error)
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
                complain(run)
            else:
                found[run.path.resolve()] = run
    if not found:
        raise RecordError(f"No runs under {', '.join(options.names)}. Name a folder of runs.")
    return list(found.values())


def _write_tables(runs: Sequence[Run], kind: str, folder: Path) -> None:
    """Write the tables of runs and of steps as the report writes them."""
    from scalebook.errors import TrackerError

    with report_needed():
        from scalebook.report.base.frames import collect
        from scalebook.report.site.site_files import write_tables
    data = collect(folder, runs, ())
    for problem in data.problems:
        complain(problem)
    try:
        names = write_tables(data, folder, kind)
    except OSError as error:
        raise TrackerError(
            f"{kind}:{folder} cannot be written: {error.strerror}. Name a folder."
        ) from error
    print(f"{kind}:{folder}: {', '.join(names)} of {data.runs.height} runs written")
