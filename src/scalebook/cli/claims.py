"""Commands ``audit`` (claims against identities) and ``project`` (scaling and economics)."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebook.cli.predict import (
    INPUT_HELP,
    add_economics,
    answer_values,
    print_answers,
    stated_inputs,
)
from scalebook.cli.terminal import (
    Subparsers,
    add_count,
    add_json,
    add_path,
    add_repeated,
    add_switch,
    at_least,
    number,
    plain,
    positive,
    print_json,
    print_table,
    show,
)
from scalebook.errors import ClaimError, ConfigError, near_path
from scalebook.settings import PARALLEL_SIZES, named

if TYPE_CHECKING:
    from scalebook.audit import Audit, Check, Claims
    from scalebook.audit import Row as AuditRow
    from scalebook.facts.flops import AgainstBest
    from scalebook.measure.economics import Answer
    from scalebook.measure.intervals import Interval
    from scalebook.measure.scaling import Projection, ScalingPoint, ScalingTable

WRONG = ("contradicts", "impossible")  # verdicts
_CHOSEN = ("model", "platform", "precision")  # by a flag, of the runs in --results
SERIES = (*(name for name in named("group") if name != "world_size"), "accelerator", "strategy")
# The same in one series as well; a run that names none may be of any.
SPLIT = (*PARALLEL_SIZES, "micro_batch_size", "packed_documents")


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    _register_audit(subparsers)
    _register_project(subparsers)


def _register_audit(subparsers: Subparsers) -> None:
    text = "check published claims or result rows for consistency"
    parser = subparsers.add_parser("audit", audit, help=text)
    parser.description = (
        "Check every identity that the given numbers allow. FILE is a document with tables or "
        "lists (.md, .txt, .html, .csv, .tsv; unknown headings are listed), a TOML file of claims "
        "(see --sample), result rows from 'scalebook list --json' (.json), or the name of a claims "
        "file that the package ships. The exit code is 0 when no claim is wrong, 1 when a claim "
        "contradicts another or is impossible, 2 when the file cannot be read."
    )
    parser.add_argument(
        "file", nargs="?", metavar="FILE", help="document, claims file or result rows"
    )
    add_switch(parser, "--problems", "show only claims that fail")
    add_switch(parser, "--sample", "print an example of a claims file")
    add_switch(parser, "--samples", "list the claims files of the package")
    add_switch(parser, "--fields", "list the fields of a claims file")
    add_json(parser)


def audit(options: argparse.Namespace) -> int:
    """Audit a file, or print what helps to write one; see the command's help for the exit code."""
    from scalebook.audit import against_published, parse_claims, sample_text, samples
    from scalebook.audit import audit as audited
    from scalebook.audit.fields import fields, words

    if options.sample:
        if options.json:
            raise ConfigError("--sample prints a TOML file to start from. Leave out --json.")
        print(sample_text("example"), end="")
        return 0
    if options.samples:
        shipped = [(name, parse_claims(sample_text(name), name)) for name in samples()]
        titles = [{"name": name, "title": claims.title} for name, claims in shipped]
        rows = ((name, str(len(claims.rows)), claims.title) for name, claims in shipped)
        return show(options, titles, ("name", "rows", "title"), rows)
    if options.fields:
        meanings = {**words(), **{name: item.meaning for name, item in fields().items()}}
        return show(options, meanings, ("field", "meaning"), meanings.items())
    if options.file is None:
        raise ClaimError("No FILE to audit. Name one, or see --sample, --samples and --fields.")
    result = audited(_load(options.file))
    checks = [c for c in result.checks if not options.problems or c.verdict in WRONG]
    claims = result.claims
    beside = () if options.problems else against_published(claims)
    if options.json:
        head = {"title": claims.title, "source": claims.source, "counts": result.counts()}
        published = [{"label": row.label, "line": row.line, **plain(one)} for row, one in beside]
        print_json({**head, "unread": claims.unread, "checks": checks, "published": published})
    else:
        _print_audit(result, checks)
        _print_against(beside)
    return int(any(check.verdict in WRONG for check in result.checks))


def _load(name: str) -> Claims:
    from scalebook.audit import load, parse_claims, sample_text, samples

    path = Path(name)
    if not path.exists() and name in samples():
        return parse_claims(sample_text(name), f"{name}.toml")
    if not path.exists():
        known = ", ".join(samples())
        near = near_path(path)
        raise ClaimError(f"No file {name[:200]!r}.{near} Name a file, or a shipped one: {known}.")
    return load(path, follow=True)


def _print_audit(result: Audit, checks: Sequence[Check]) -> None:
    print(result.claims.title)
    if result.claims.source:
        print(f"from {result.claims.source}")
    for table, group in groupby(checks, key=lambda check: check.table):
        print(f"\n{table}")
        for check in group:
            _print_check(check)
    if result.claims.unread:
        print("\nNot read:")
        for text in result.claims.unread:
            print(f"  {text}")
    counts = ", ".join(f"{name} {many}" for name, many in result.counts().items())
    print(f"\nClaims, each by its first verdict in this order: {counts}.")


def _print_against(found: Sequence[tuple[AuditRow, AgainstBest]]) -> None:
    if found:
        print("\nTFLOP/s per GPU next to the best published of the same model, device and width.")
        print("Other lengths, batches and numbers of GPUs are not corrected.")
        headers = ("line", "claim", "claimed", "best", "ratio", "the best one")
        print_table(headers, [
            (*(str(row.line or "-"), row.label, number(one.tflops), number(one.best_tflops)),
             *(f"{one.tflops / one.best_tflops:.2f}", one.where))
            for row, one in found
        ])  # fmt: skip


def _print_check(check: Check) -> None:
    place = f"line {check.line}  " if check.line else ""
    name = "" if check.label == check.table else f"{check.label}: "
    head = f"  {check.verdict:<13}  {place}{name}{check.field} = {check.stated}"
    if check.verdict not in WRONG:
        reason = "; ".join(part for part in (check.rule, check.note) if part)
        print(f"{head}  ({reason})")
        return
    print(f"{head}{_right_value(check)}")
    details = check.arithmetic.split("; ") if check.arithmetic else [check.rule]
    remark = f"({check.remark})" if check.remark else ""
    for line in (*details, check.note, remark):
        if line:
            print(f"{'':17}{line}")


def _right_value(check: Check) -> str:
    """Return what it should be, in percent where the claim is."""
    from scalebook.audit.identities import show as written

    if check.expected is None:
        return ""
    if "%" in check.stated:
        return f", should be {written(check.expected * 100)} %"
    return f", should be {written(check.expected)}"


def _register_project(subparsers: Subparsers) -> None:
    text = "project throughput, time, cost and energy to other sizes"
    parser = subparsers.add_parser("project", project, help=text)
    parser.description = (
        "Scaling: name measured runs (--point or --results) and the sizes to project --to. "
        "Economics: state what you know; a missing answer names the inputs that it needs. A value "
        "may be a range, such as 2.1..2.6. There are no default prices or powers."
    )
    _add_scaling(parser)
    add_economics(parser, tuple(INPUT_HELP))
    add_json(parser)


def _add_scaling(parser: argparse.ArgumentParser) -> None:
    scaling = parser.add_argument_group("scaling")
    form = "GPUS:TOKENS_PER_SECOND[:NODES[:GLOBAL_BATCH_SIZE]]"
    add_repeated(scaling, "--point", form, "measured run; repeatable")
    add_path(scaling, "--results", "FILE", "output of 'scalebook list --json'")
    for name in _CHOSEN:
        node = "; the size of its nodes, for --point" if name == "platform" else ""
        scaling.add_argument(f"--{name}", help=f"only the runs of this {name} in --results{node}")
    add_repeated(scaling, "--to", "GPUS", "size to project to", type=at_least(1))
    text = "reference of the efficiency: the smallest run (default) or the largest on one node"
    scaling.add_argument("--base", choices=("smallest", "node"), default="smallest", help=text)
    text = "kind of scaling if the batch sizes are unknown"
    scaling.add_argument("--kind", choices=("weak", "strong"), help=text)
    text = "largest projection as a multiple of the largest run (default: 4)"
    scaling.add_argument("--limit-factor", type=positive, default=4.0, metavar="TIMES", help=text)
    text = "GPUs of a full node: size of a --point without nodes, and end of runs within one node"
    add_count(scaling, "--gpus-per-node", "GPUS", text)


def project(options: argparse.Namespace) -> int:
    """Print the scaling table, projections and economics that the arguments allow."""
    from scalebook.facts import catalog
    from scalebook.measure.economics import Inputs, answers
    from scalebook.measure.scaling import project as project_to
    from scalebook.measure.scaling import table

    per_node = options.gpus_per_node
    if options.point and options.platform:
        per_node = per_node or catalog.platform(options.platform).gpus_per_node
    points = [*(_point(text, per_node) for text in options.point), *_result_points(options)]
    stated = stated_inputs(options, tuple(INPUT_HELP))
    if not points and not stated:
        raise ClaimError("Nothing to project. Give --point or --results, or state --tokens etc.")
    if options.to and not points:
        raise ClaimError("--to needs measured runs. Give --point or --results.")
    series = table(points, options.base) if points else None
    limits: dict[str, Any] = {"kind": options.kind, "gpus_per_node": per_node}
    limits["limit_factor"] = options.limit_factor
    found = [project_to(points, size, **limits) for size in options.to]
    replies = answers(Inputs(**_with_projection(stated, found))) if stated else ()
    if options.json:
        values = {"projections": [*map(_projection_value, found)]}
        print_json({"scaling": series, **values, "economics": answer_values(replies)})
    else:
        _print_project(series, found, replies)
    return 0


def _point(text: str, per_node: int | None) -> ScalingPoint:
    from scalebook.measure.scaling import ScalingPoint

    parts = text.split(":")
    try:
        sizes = [int(part) for part in (parts[0], *parts[2:])]
        rate = float(parts[1])
    except (ValueError, IndexError) as error:
        raise ClaimError(
            f"--point {text[:60]!r} must be GPUS:TOKENS_PER_SECOND[:NODES[:GLOBAL_BATCH_SIZE]], "
            "for example 8:87933:1:128."
        ) from error
    if len(parts) > 4 or max(sizes) > 10**12 or not math.isfinite(rate):
        raise ClaimError(f"--point {text[:60]!r} has too many parts or a number out of range.")
    nodes = sizes[1] if len(sizes) > 1 else per_node and math.ceil(sizes[0] / per_node)
    batch = sizes[2] if len(sizes) > 2 else None
    return ScalingPoint(sizes[0], rate, nodes, batch)


def _result_points(options: argparse.Namespace) -> list[ScalingPoint]:
    """Return the completed runs of --results, which must be one series."""
    from scalebook.audit.claim_files import read_rows

    if options.results is None:
        return []
    wanted = {name: one for name in _CHOSEN if (one := getattr(options, name)) is not None}
    rows = [
        row
        for row in read_rows(options.results)
        if row.get("tokens_per_second") is not None
        and row.get("status", "completed") == "completed"
        and all(row.get(name) == value for name, value in wanted.items())
    ]
    if not rows:
        raise ClaimError(f"{options.results} contains no completed run that matches.")
    for name in (*SERIES, *SPLIT):
        told = [row.get(name) for row in rows]
        values = sorted({str(value) for value in told if name in SERIES or value is not None})
        if len(values) > 1:
            raise ClaimError(
                f"The runs of {options.results} differ in {name} ({', '.join(values)}), so they "
                "are not one scaling series. Choose with --model, --platform or --precision, or "
                "use --point."
            )
    return [_from_row(row, str(options.results)) for row in rows]


def _from_row(row: Mapping[str, Any], file: str) -> ScalingPoint:
    from scalebook.measure.scaling import ScalingPoint

    try:
        batch = row.get("global_batch_size")
        return ScalingPoint(
            int(row["world_size"]),
            float(row["tokens_per_second"]),
            None if row.get("nodes") is None else int(row["nodes"]),
            None if batch is None else int(batch),
            str(row.get("run_id", "")),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ClaimError(f"{file}: a run has no world_size or tokens/s.") from error


def _with_projection(
    stated: Mapping[str, Interval], found: list[Projection]
) -> dict[str, Interval]:
    """Return the inputs, rate and GPUs taken from the one projection where they are not stated.

    Raises:
        ClaimError: the rate would be of one number of GPUs, and another is stated.
    """
    from scalebook.measure.intervals import Interval, point

    if len(found) != 1:
        return dict(stated)
    (only,) = found
    low, high = only.low, only.high
    if low is None or only.tokens_per_second is None:
        return dict(stated)
    taken = {"gpus": point(float(only.world_size))}
    if high is not None:
        gpus = stated.get("gpus", taken["gpus"])
        if gpus != taken["gpus"] and "tokens_per_second" not in stated:
            raise ClaimError(
                f"--gpus {number(gpus.low)} is not the size of --to {only.world_size}, whose rate "
                "is taken. Leave out --gpus, project --to that size, or state --tokens-per-second."
            )
        taken["tokens_per_second"] = Interval(low, high, only.tokens_per_second)
    return {**taken, **stated}


def _projection_value(item: Projection) -> dict[str, Any]:
    shown = ("world_size", "tokens_per_second", "low", "high", "scaling_efficiency")
    return {
        **{name: getattr(item, name) for name in (*shown, "interpolated", "limit_world_size")},
        "law": dict(item.law.coefficients) if item.law else None,
        "kind": item.law.kind if item.law else None,
        "reason": item.reason,
    }


def _print_project(
    series: ScalingTable | None, found: list[Projection], replies: tuple[Answer, ...]
) -> None:
    if series is not None:
        print(
            f"Base: {series.base_text}. Scaling: {series.kind or 'unknown'}, {series.kind_reason}."
        )
        headers = ("GPUs", "nodes", "tokens/s", "speed-up", "efficiency", "run")
        rows = [
            (
                *map(str, (row.point.world_size, row.point.nodes or "unknown")),
                *(number(row.point.tokens_per_second, 6), number(row.speedup)),
                *(f"{row.scaling_efficiency:.1%}", row.point.label or "-"),
            )
            for row in series.rows
        ]
        print_table(headers, rows)
    for item in found:
        print(_projection_text(item))
    if replies:
        print_answers(replies)


def _projection_text(item: Projection) -> str:
    if item.tokens_per_second is None or item.low is None:
        return f"{item.world_size} GPUs: no projection. {item.reason}"
    high = "no upper bound" if item.high is None else f"to {number(item.high, 6)}"
    where = "inside" if item.interpolated else "beyond"
    return (
        f"{item.world_size} GPUs: {number(item.tokens_per_second, 6)} tokens/s (95 % interval "
        f"{number(item.low, 6)} {high}), {item.scaling_efficiency:.1%} of the base's rate per GPU, "
        f"{where} the measured range."
    )
