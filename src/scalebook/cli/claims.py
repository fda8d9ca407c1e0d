"""Commands ``audit`` (claims against identities) and ``project`` (scaling and economics)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from scalebook.cli.arguments import Subparsers, add_json, at_least, positive

if TYPE_CHECKING:
    from scalebook.measure.intervals import Interval

INPUT_HELP = {
    "tokens": "tokens to train on, such as 1T",
    "tokens_per_second": "tokens/s of all GPUs (default: the projection to --to)",
    "sequence_length": "tokens per sample",
    "gpus": "GPUs of the job (default: --to)",
    "price_per_gpu_hour": "on-demand price per GPU-hour",
    "spot_price_per_gpu_hour": "spot price per GPU-hour",
    "reserved_price_per_gpu_hour": "reserved price per GPU-hour",
    "storage_tb": "TB held while training runs: data, checkpoints",
    "price_per_tb_month": "price of storage per TB and month",
    "transferred_tb": "TB sent over a network that is charged for",
    "price_per_transferred_tb": "price per TB sent",
    "preemption_overhead": "extra time lost to preemptions, such as 5%%",
    "watts_per_gpu": "mean watts per GPU, with its share of the node",
    "pue": "power usage effectiveness of the site",
    "grid_kg_per_kwh": "kg CO2e per kWh",
    "other_tokens_per_second": "tokens/s of a second platform, for the break-even price",
    "other_gpus": "GPUs of the second platform",
}


def stated_range(text: str) -> Interval:
    """Return a number or a range, as an argument type."""
    from scalebook.errors import ClaimError
    from scalebook.measure.economics import read_range

    try:
        return read_range(text)
    except ClaimError as error:
        raise argparse.ArgumentTypeError(str(error).rstrip(".")) from error


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    _register_audit(subparsers)
    _register_project(subparsers)


def _register_audit(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "audit", help="check published claims or result rows for consistency"
    )
    parser.description = (
        "Check every identity that the given numbers allow. FILE is a document with tables (.md, "
        ".html, .csv, .tsv; unknown headings are listed), a TOML file of claims (see --sample), "
        "result rows from 'scalebook list --json' (.json), or the name of a claims file that the "
        "package ships. The exit code is 0 when no claim is wrong, 1 when a claim contradicts "
        "another or is impossible, 2 when the file cannot be read."
    )
    parser.add_argument(
        "file", nargs="?", metavar="FILE", help="document, claims file or result rows"
    )
    parser.add_argument("--problems", action="store_true", help="show only claims that fail")
    parser.add_argument("--sample", action="store_true", help="print an example of a claims file")
    parser.add_argument(
        "--samples", action="store_true", help="list the claims files of the package"
    )
    parser.add_argument("--fields", action="store_true", help="list the fields of a claims file")
    add_json(parser)
    parser.set_defaults(handler=audit)


def audit(options: argparse.Namespace) -> int:
    """Audit a file, or print what helps to write one."""
    from scalebook.cli import claims_audit
    from scalebook.errors import ConfigError

    if options.sample and options.json:
        raise ConfigError("--sample prints a TOML file to start from. Leave out --json.")
    if options.sample:
        return claims_audit.print_sample()
    if options.samples:
        return claims_audit.print_samples(as_json=options.json)
    if options.fields:
        return claims_audit.print_fields(as_json=options.json)
    return claims_audit.audit_file(options)


def _register_project(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "project", help="project throughput, time, cost and energy to other sizes"
    )
    parser.description = (
        "Scaling: name measured runs (--point or --results) and the sizes to project --to. "
        "Economics: state what you know; a missing answer names the inputs that it needs. A value "
        "may be a range, such as 2.1..2.6. There are no default prices or powers."
    )
    _add_scaling(parser)
    _add_economics(parser)
    add_json(parser)
    parser.set_defaults(handler=project)


def _add_scaling(parser: argparse.ArgumentParser) -> None:
    scaling = parser.add_argument_group("scaling")
    scaling.add_argument(
        "--point",
        action="append",
        default=[],
        metavar="GPUS:TOKENS_PER_SECOND[:NODES[:GLOBAL_BATCH_SIZE]]",
        help="measured run; repeatable",
    )
    scaling.add_argument(
        "--results", type=Path, metavar="FILE", help="output of 'scalebook list --json'"
    )
    scaling.add_argument("--model", help="only the runs of this model in --results")
    scaling.add_argument("--platform", help="only the runs of this platform in --results")
    scaling.add_argument(
        "--to",
        type=at_least(1),
        action="append",
        default=[],
        metavar="GPUS",
        help="size to project to",
    )
    scaling.add_argument(
        "--base",
        choices=("smallest", "node"),
        default="smallest",
        help="reference of the efficiency: the smallest run (default) or the largest on one node",
    )
    scaling.add_argument(
        "--kind", choices=("weak", "strong"), help="kind of scaling if the batch sizes are unknown"
    )
    scaling.add_argument(
        "--limit-factor",
        type=positive,
        default=4.0,
        metavar="TIMES",
        help="largest projection as a multiple of the largest run (default: 4)",
    )
    scaling.add_argument(
        "--gpus-per-node",
        type=at_least(1),
        metavar="GPUS",
        help="project runs within one node up to this size",
    )


def _add_economics(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("economics")
    for name, text in INPUT_HELP.items():
        flag = f"--{name.replace('_', '-')}"
        group.add_argument(flag, type=stated_range, metavar="VALUE", help=text)


def project(options: argparse.Namespace) -> int:
    """Print the scaling table, the projections, and the economics of what was stated."""
    from scalebook.cli import claims_project

    return claims_project.project(options)
