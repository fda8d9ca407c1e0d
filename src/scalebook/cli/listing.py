"""Command ``list``: every run under a folder with its numbers."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebook.cli.arguments import Subparsers, add_json
from scalebook.cli.output import number, print_data, print_table

if TYPE_CHECKING:
    from scalebook.measure.metrics_cache import ListedRun
    from scalebook.measure.row import RunMetrics


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    parser = subparsers.add_parser("list", help="list runs with rate, MFU, memory and loss")
    parser.add_argument(
        "--runs",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="folder of run directories (default: runs)",
    )
    parser.add_argument(
        "--peak-precision",
        choices=("bf16", "fp8"),
        help="precision of the dense peak that the MFU of FP8 runs refers to",
    )
    add_json(parser, csv=True)
    parser.set_defaults(handler=list_runs)


def list_runs(options: argparse.Namespace) -> int:
    """Print one row per run, sorted by run id; what cannot be read goes to stderr."""
    from scalebook.errors import RecordError
    from scalebook.measure.row import NAMES

    gc.set_threshold(100_000)  # rows are many and hold no cycle: a search for one finds nothing
    if not options.runs.is_dir():
        raise RecordError(f"No folder of runs at {options.runs}. Name one with --runs DIR.")
    rows = _readable(options.runs, options.peak_precision)
    found = sorted(((row.metrics, row) for row in rows), key=lambda pair: pair[0].run_id)
    if options.json:
        print_data(
            [
                dict(zip(NAMES, item.values(), strict=True)) | dict(row.of_record)
                for item, row in found
            ],
            options.json,
        )
    elif found:
        for item, _ in found:
            if item.status == "void":
                print(f"warning: {item.run_id}: {item.reason}")
        _print_people([item for item, _ in found])
        for item, row in found:
            _print_differences(item.run_id, row.of_record["differences"])
    else:
        print(f"No runs under {options.runs}.")
    return 0


def _readable(runs: Path, precision: str | None) -> Iterator[ListedRun]:
    """Yield the row of each run; what cannot be read or measured goes to stderr."""
    from scalebook.measure.metrics_cache import listed

    for row in listed(runs, precision):
        if isinstance(row, str):
            print(f"scalebook: {row}", file=sys.stderr)
            continue
        for problem in row.problems:
            print(f"scalebook: {row.metrics.run_id}: {problem}", file=sys.stderr)
        yield row


def _print_differences(run_id: str, differences: list[dict[str, Any]]) -> None:
    if differences:
        from scalebook.measure.provenance import Difference

        sentences = " ".join(Difference(**one).sentence() for one in differences)
        print(f"{run_id}: warning: not what was asked for: {sentences}")


def _sizes(item: RunMetrics) -> str:
    sizes = (
        item.tensor_parallel_size,
        item.pipeline_parallel_size,
        item.context_parallel_size,
        item.expert_parallel_size,
        item.data_parallel_size,
    )
    return "/".join("-" if size is None else str(size) for size in sizes)


def _row(item: RunMetrics) -> list[str]:
    return [
        item.run_id,
        item.status,
        item.source,
        item.platform or "-",
        item.model or "-",
        number(item.world_size),
        _sizes(item),
        number(item.step_seconds_median),
        number(item.tokens_per_second_per_gpu),
        number(item.model_tflops_per_second_per_gpu),
        "-" if item.mfu is None else f"{100 * item.mfu:.1f}%",
        number(item.peak_memory_gib),
        number(item.loss_first),
        number(item.loss_last),
    ]


def _print_people(found: list[RunMetrics]) -> None:
    headers = [
        "run", "status", "source", "platform", "model", "GPUs", "TP/PP/CP/EP/DP", "step s",
        "tokens/s/GPU", "TFLOP/s/GPU", "MFU", "GiB", "first loss", "last loss",
    ]  # fmt: skip
    print_table(headers, [_row(item) for item in found])
    for item in found:
        if item.reason and item.status != "void":
            print(f"{item.run_id}: {item.reason}")
