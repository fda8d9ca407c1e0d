"""Commands ``audit`` (claims against identities) and ``project`` (scaling and economics)."""

from __future__ import annotations

import argparse
from pathlib import Path

from scalebook.cli.arguments import Subparsers, add_json, at_least, positive


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    _register_audit(subparsers)
    _register_project(subparsers)


def _register_audit(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("audit", help="check claims, or result rows, for consistency")
    parser.description = (
        "Check every identity that the given numbers allow. FILE is a document with tables (.md, "
        ".html, .csv, .tsv; headings that are not understood are listed), a TOML file of claims "
        "(see --sample), result rows as 'scalebook list --json' prints them (.json), or the name "
        "of a claims file that the package ships. The exit code is 0 when no "
        "claim is wrong, 1 when a claim contradicts or is impossible, 2 when the file cannot be "
        "read."
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="a document, claims or result rows")
    parser.add_argument("--problems", action="store_true", help="only what does not hold")
    parser.add_argument("--sample", action="store_true", help="print a claims file to start from")
    parser.add_argument("--samples", action="store_true", help="list the claims files shipped")
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
    parser = subparsers.add_parser("project", help="project throughput, time, cost and energy")
    parser.description = (
        "Scaling: give measured runs (--point, or --results) and sizes to project --to. "
        "Economics: state what you know; every answer names what it lacks. A value may be a range: "
        "2.1..2.6. Nothing is assumed that was not stated."
    )
    scaling = parser.add_argument_group("scaling")
    scaling.add_argument(
        "--point",
        action="append",
        default=[],
        metavar="GPUS:TOKENS_PER_SECOND[:NODES[:GLOBAL_BATCH_SIZE]]",
        help="a measured run; may be repeated",
    )
    scaling.add_argument("--results", type=Path, help="runs as 'scalebook list --json' prints them")
    scaling.add_argument("--model", help="of --results only the runs of this model")
    scaling.add_argument("--platform", help="of --results only the runs of this platform")
    scaling.add_argument(
        "--to", type=at_least(1), action="append", default=[], metavar="GPUS", help="a size"
    )
    scaling.add_argument(
        "--base",
        choices=("smallest", "node"),
        default="smallest",
        help="what efficiency is measured against: the smallest run, or the largest on one node",
    )
    scaling.add_argument("--kind", choices=("weak", "strong"), help="where the batches do not tell")
    scaling.add_argument(
        "--limit-factor",
        type=positive,
        default=4.0,
        help="how far past the largest run a projection may go (default: %(default)s times)",
    )
    scaling.add_argument(
        "--gpus-per-node", type=at_least(1), help="lets runs inside one node reach all of it"
    )
    _add_economics(parser)
    add_json(parser)
    parser.set_defaults(handler=project)


def _add_economics(parser: argparse.ArgumentParser) -> None:
    from scalebook.cli.claims_values import INPUT_HELP, stated_range

    group = parser.add_argument_group("economics")
    for name, text in INPUT_HELP.items():
        flag = f"--{name.replace('_', '-')}"
        group.add_argument(flag, type=stated_range, metavar="VALUE", help=text)


def project(options: argparse.Namespace) -> int:
    """Print the scaling table, the projections, and the economics of what was stated."""
    from scalebook.cli import claims_project

    return claims_project.project(options)
