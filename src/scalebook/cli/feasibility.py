"""Command ``feasibility``: which layouts and micro batches fit, as far as runs show it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from scalebook.cli.arguments import Subparsers, add_json
from scalebook.cli.output import number, print_data, print_table

if TYPE_CHECKING:
    from scalebook.facts.feasibility import Cell

LEGEND = (
    "fits, out: measured. (fits), (out): inferred from a run. fits?, out?: predicted; ?: too close "
    "to tell. Numbers are peaks in GiB: measured, or predicted with '~'."
)


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    parser = subparsers.add_parser(
        "feasibility", help="map which layouts and micro batches fit in memory"
    )
    parser.add_argument(
        "--runs",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="folder of run directories (default: runs)",
    )
    parser.add_argument("--model", help="only runs of this model")
    add_json(parser, csv=True)
    parser.set_defaults(handler=feasibility)


def feasibility(options: argparse.Namespace) -> int:
    """Print the maps of a folder's runs."""
    from scalebook.errors import RecordError
    from scalebook.facts.feasibility import feasibility, scope_of
    from scalebook.store import read_runs

    if not options.runs.is_dir():
        raise RecordError(f"No folder of runs at {options.runs}. Name one with --runs DIR.")
    cells = feasibility(read_runs(options.runs)[0], options.model)
    if options.json:
        print_data(cells, options.json)
        return 0
    if not cells:
        of = f" of {options.model}" if options.model else ""
        print(f"No run{of} under {options.runs} shows whether a configuration fits.")
        return 0
    for _, same in groupby(cells, key=scope_of):
        _print_map(list(same))
    print(LEGEND)
    return 0


def _print_map(cells: Sequence[Cell]) -> None:
    first = cells[0]
    device = first.accelerator or first.platform
    print(
        f"{first.model} on {first.world_size} x {device}, sequence {first.sequence_length:,}, "
        f"{first.precision}, sharding {first.data_parallel_sharding}"
        + (f", CP {first.context_parallel_size}" if first.context_parallel_size > 1 else "")
        + (f", EP {first.expert_parallel_size}" if first.expert_parallel_size > 1 else "")
    )
    sizes = sorted({cell.micro_batch_size for cell in cells})
    rows: dict[tuple[str, ...], dict[int, Cell]] = {}
    for cell in cells:
        row = rows.setdefault(_row(cell), {})
        row[cell.micro_batch_size] = _heavier(row.get(cell.micro_batch_size), cell)
    table = [
        (*name, *(_shown(row.get(size)) for size in sizes)) for name, row in sorted(rows.items())
    ]
    print_table(("TP", "PP", "recompute", *(f"micro {size}" for size in sizes)), table)
    print()


def _row(cell: Cell) -> tuple[str, ...]:
    chunks = cell.virtual_pipeline_parallel_size
    pipeline = f"{cell.pipeline_parallel_size}" + (f" x {chunks}" if chunks > 1 else "")
    sp = " SP" if cell.sequence_parallel else ""
    return f"{cell.tensor_parallel_size}{sp}", pipeline, cell.recompute


def _heavier(one: Cell | None, other: Cell) -> Cell:
    """Return of two cells in one place the one with the larger batch, which needs more."""
    return other if one is None or other.global_batch_size > one.global_batch_size else one


def _shown(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    word = {"fits": "fits", "out_of_memory": "out", None: ""}[cell.verdict]
    if cell.evidence == "predicted":
        return f"{word}? ~{number(cell.predicted_gib, 3)}"
    if cell.evidence == "inferred":
        return f"({word})"
    peak = f" {number(cell.peak_memory_gib, 3)}" if cell.peak_memory_gib is not None else ""
    mark = "" if cell.evidence == "measured" else f" [{cell.evidence}]"
    return f"{word}{peak}{mark}"
