"""Command ``ingest``: logs and result files of other trainers into run directories."""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebook.cli.arguments import Subparsers, add_json, at_least, step_window
from scalebook.cli.output import number, print_json, print_table

if TYPE_CHECKING:
    from scalebook.logs.dialects.dialect import Dialect
    from scalebook.logs.ingest.ingestion import Ingested

_SIZES = (
    ("--gpus", "world_size", "GPUs of the job"),
    ("--nodes", "nodes", "nodes of the job"),
    ("--sequence-length", "sequence_length", "tokens per sample"),
    ("--global-batch-size", "global_batch_size", "samples per optimizer step"),
    ("--micro-batch-size", "micro_batch_size", "samples per forward pass"),
    ("--tensor-parallel-size", "tensor_parallel_size", "tensor-parallel ranks"),
    ("--pipeline-parallel-size", "pipeline_parallel_size", "pipeline stages"),
    ("--context-parallel-size", "context_parallel_size", "context-parallel ranks"),
    ("--expert-parallel-size", "expert_parallel_size", "expert-parallel ranks"),
)


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    parser = subparsers.add_parser("ingest", help="import logs of other trainers, runs of trackers")
    parser.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="log files or folders; runs of W&B (offline), MLflow (folder, SQLite) and TensorBoard",
    )
    parser.add_argument(
        "--runs",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="folder for the new run directories (default: runs)",
    )
    parser.add_argument(
        "--dialect", metavar="NAME", help="read every file as this dialect; 'list' names them all"
    )
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="NAME=COLUMN",
        help="read any CSV or JSON lines: the column of step_seconds, step, loss, ...; or a TOML "
        "file of such lines; repeatable",
    )
    said = parser.add_argument_group("values that the files do not contain (marked as supplied)")
    said.add_argument("--model", help="model of the catalog")
    said.add_argument("--platform", help="platform of the catalog")
    said.add_argument(
        "--precision",
        choices=("bf16", "fp16", "fp8", "fp32"),
        help="number format of the matrix products",
    )
    said.add_argument(
        "--trained",
        choices=("all", "part"),
        help="whether all weights were trained or only a part (such as LoRA)",
    )
    for flag, name, text in _SIZES:
        said.add_argument(flag, dest=name, type=at_least(1), metavar="N", help=text)
    parser.add_argument(
        "--window",
        type=step_window,
        metavar="FIRST:LAST",
        help="average over these steps, where a series has several levels (marked as chosen)",
    )
    add_json(parser)
    parser.set_defaults(handler=run_ingest)


def run_ingest(options: argparse.Namespace) -> int:
    """Print what the files hold (``--json``), or write run directories and print a table."""
    from scalebook.errors import IngestError
    from scalebook.facts import catalog
    from scalebook.logs.ingest.group import no_store
    from scalebook.logs.ingest.ingestion import ingest, summaries
    from scalebook.trackers import opener

    dialect = _dialect(options)
    opens = no_store if isinstance(dialect, str) else opener(dialect)
    names = ("model", "platform", "precision", "trained", *(name for _, name, _ in _SIZES))
    given = ((name, getattr(options, name)) for name in names)
    supplied = {name: value for name, value in given if value is not None}
    if options.model:
        catalog.model(options.model)
    if options.platform:
        catalog.platform(options.platform)
    if options.json:
        found = [
            summary
            for path in options.paths
            for summary in summaries(path, supplied, dialect, opens, window=options.window)
        ]
        print_json(found[0] if len(found) == 1 else found)
        return 0
    runs, notes = ingest(
        options.paths, options.runs, supplied, dialect, opens, window=options.window
    )
    for note in notes:
        print(f"scalebook: {note}", file=sys.stderr)
    if not runs:
        raise IngestError("No log was recognised in these paths; nothing was written.")
    for run in runs:
        if run.summary["void"]:
            print(f"warning: {run.path.name}: {run.summary['void']}")
    _print_people(runs)
    return 0


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
            found: dict[str, object] = tomllib.loads(
                untrusted.read_bytes(Path(text), follow=True).decode()
            )
        except (OSError, ValueError, RecursionError) as error:
            raise IngestError(
                f"--map {text} is neither NAME=COLUMN nor a readable TOML file ({error})."
            ) from error
        mapping |= {key: value for key, value in found.items() if isinstance(value, str)}
    return mapped(mapping)


def _print_people(runs: list[Ingested]) -> None:
    headers = (
        "run",
        "file",
        "",
        "status",
        "records",
        "step s",
        "tokens/s/GPU",
        "TFLOP/s/GPU logged",
    )
    rows = [
        (
            run.path.name,
            run.files[0].name,
            "written" if run.new else "unchanged",
            "void" if run.summary["void"] else str(run.summary["status"]),
            str(run.summary["n_records"]),
            number(_step_seconds(run.summary)),
            number(_tokens_per_gpu(run.summary)),
            number(run.summary["tflops_per_second_per_gpu_logged_median"]),
        )
        for run in runs
    ]
    print_table(headers, rows)
    for run in runs:
        for warning in run.summary["warnings"]:
            if warning != run.summary["void"]:
                print(f"{run.path.name}: {warning}")


def _tokens_per_gpu(summary: Mapping[str, Any]) -> float | None:
    """Return the rate of the steps; where they give none and it is not void, what was printed."""
    rate = summary["tokens_per_second_per_gpu"]
    if rate is not None or summary["void"] or summary["tokens_per_second"] is not None:
        return rate
    return summary["tokens_per_second_per_gpu_median"]


def _step_seconds(summary: Mapping[str, Any]) -> float | None:
    later = summary["step_seconds_median_excluding_first"]
    return summary["step_seconds_median"] if later is None else later
