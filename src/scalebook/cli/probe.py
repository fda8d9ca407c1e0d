"""``probe``: measure what this machine can reach, apart from any training."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from scalebook.cli.arguments import Subparsers, add_json, at_least, positive

if TYPE_CHECKING:
    from scalebook.measure.probes import Probe


def register(subparsers: Subparsers) -> None:
    """Add this module's command."""
    parser = subparsers.add_parser(
        "probe", help="measure what this machine reaches: matrix products, copies, collectives"
    )
    parser.add_argument("--platform", default="", help="platform (default: that of this machine)")
    parser.add_argument(
        "--world-size",
        type=at_least(1),
        default=0,
        metavar="GPUS",
        help="processes (default: all GPUs)",
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help="measure the matrix products of this model's layers; repeatable",
    )
    parser.add_argument(
        "--micro-batch-size",
        type=at_least(1),
        default=1,
        metavar="SAMPLES",
        help="samples per matrix product (default: 1)",
    )
    parser.add_argument(
        "--sequence-length",
        type=at_least(1),
        default=0,
        metavar="TOKENS",
        help="tokens per sample (default: 4096 on GPUs, 128 on a CPU)",
    )
    parser.add_argument(
        "--seconds",
        type=positive,
        default=0.0,
        metavar="S",
        help="measuring time without start-up (default: 60 on GPUs, 4 on a CPU)",
    )
    parser.add_argument(
        "--runs", default="", metavar="DIR", help="folder of run directories (default: runs)"
    )
    parser.add_argument("--module", default="", help=argparse.SUPPRESS)
    add_json(parser)
    parser.set_defaults(handler=probe)


def probe(options: argparse.Namespace) -> int:
    """Probe this machine; 0 if the probe completed."""
    from scalebook.cli.output import print_json
    from scalebook.measure.probes.files import FOLDER
    from scalebook.probe import probing
    from scalebook.project import runs_folder, short
    from scalebook.running.console import Console

    asked = probing.request(
        platform=options.platform,
        world_size=options.world_size,
        models=tuple(options.model),
        seconds=options.seconds,
        micro_batch_size=options.micro_batch_size,
        sequence_length=options.sequence_length,
    )
    console = Console(sys.stderr)
    module = options.module or probing.MODULE
    found = probing.probe(asked, options.runs, console.live, module)
    directory = short(runs_folder(options.runs) / FOLDER / found.probe_id)
    console.say(f"{found.status}: {directory}")
    if options.json:
        print_json(found.model_dump(mode="json"))
    else:
        _print(found)
    return 0 if found.status == "completed" else 1


def _print(found: Probe) -> None:
    """Print the best rates as a table, what was left out, and why a probe did not complete."""
    from scalebook.cli.output import number, print_table
    from scalebook.measure.probes.words import left_out, lines

    if found.reason:
        print("\n".join((f"{found.reason}.", *(f"  | {line}" for line in found.log_tail))))
    rows = [(what, number(rate), unit) for what, rate, unit in lines(found)]
    if rows:
        print_table(("what", "rate", "unit"), rows)
    for sentence in left_out(found):
        print(sentence)
