"""Command ``list``: every run under a folder with its numbers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebook.cli.arguments import Subparsers, add_json
from scalebook.cli.output import number, print_data, print_table

if TYPE_CHECKING:
    from scalebook.measure.metrics import RunMetrics
    from scalebook.record import RunRecord


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
    from scalebook.measure.metrics.repeats import with_repeats

    if not options.runs.is_dir():
        raise RecordError(f"No folder of runs at {options.runs}. Name one with --runs DIR.")
    records: list[RunRecord] = []
    items: list[RunMetrics] = []
    for record, item in _measured(options.runs, options.peak_precision):
        records.append(record)
        items.append(item)
    pooled = with_repeats(zip(records, items, strict=True))
    found = sorted(zip(pooled, records, strict=True), key=lambda pair: pair[0].run_id)
    if options.json:
        rows = [{**asdict(item), **_of_record(record)} for item, record in found]
        print_data(rows, options.json)
    elif found:
        for item, _ in found:
            if item.status == "void":
                print(f"warning: {item.run_id}: {item.reason}")
        _print_people([item for item, _ in found])
        _print_differences([record for _, record in found])
    else:
        print(f"No runs under {options.runs}.")
    return 0


def _measured(runs: Path, precision: str | None) -> Iterator[tuple[RunRecord, RunMetrics]]:
    """Yield record and numbers of each run; its steps are let go before the next is read.

    What cannot be read or measured goes to stderr.
    """
    from scalebook.measure.measured import ODD
    from scalebook.measure.metrics import measure
    from scalebook.store import each_run

    for run in each_run(runs):
        if isinstance(run, str):
            print(f"scalebook: {run}", file=sys.stderr)
            continue
        for problem in run.problems:
            print(f"scalebook: {run.record.run_id}: {problem}", file=sys.stderr)
        try:
            yield run.record, measure(run, peak_precision=precision)
        except ODD as error:
            print(f"scalebook: {run.path} cannot be measured: {error}", file=sys.stderr)


def _of_record(record: RunRecord) -> dict[str, Any]:
    """Return what a record says of a run beside its numbers."""
    from scalebook.measure import provenance

    differences = provenance.of(record) if record.source == "measured" else ()
    return {
        "repeat": record.setting("repeat"),
        "cause": record.cause,
        "inferred_from": record.inferred_from,
        "differences": [one.value() for one in differences],
    }


def _print_differences(records: list[RunRecord]) -> None:
    from scalebook.measure import provenance

    for record in records:
        if record.source == "measured" and (found := provenance.of(record)):
            sentences = " ".join(one.sentence() for one in found)
            print(f"{record.run_id}: warning: not what was asked for: {sentences}")


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
