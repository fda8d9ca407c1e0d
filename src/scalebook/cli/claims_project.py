"""What ``scalebook project`` prints."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from typing import Any

from scalebook.audit.claim_files import read_rows
from scalebook.cli.claims import INPUT_HELP
from scalebook.cli.output import number, print_json, print_table
from scalebook.errors import ClaimError
from scalebook.measure.economics import Answer, Inputs, answers
from scalebook.measure.intervals import Interval, point
from scalebook.measure.scaling import Projection, ScalingPoint, ScalingTable, table
from scalebook.measure.scaling import project as project_to

SERIES = ("model", "accelerator", "platform", "engine", "precision", "sequence_length", "strategy")
SPLIT = (  # the same in one series as well; a run that names none may be of any
    *("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size"),
    *("expert_parallel_size", "micro_batch_size"),
)


def project(options: argparse.Namespace) -> int:
    """Print the scaling table, projections and economics that the arguments allow."""
    points = [*map(_point, options.point), *_result_points(options)]
    stated = {name: value for name in INPUT_HELP if (value := getattr(options, name)) is not None}
    if not points and not stated:
        raise ClaimError("Nothing to project. Give --point or --results, or state --tokens etc.")
    if options.to and not points:
        raise ClaimError("--to needs measured runs. Give --point or --results.")
    series = table(points, options.base) if points else None
    found = [
        project_to(
            points,
            size,
            limit_factor=options.limit_factor,
            kind=options.kind,
            gpus_per_node=options.gpus_per_node,
        )
        for size in options.to
    ]
    replies = answers(Inputs(**_with_projection(stated, found))) if stated else ()
    if options.json:
        _print_json(series, found, replies)
    else:
        _print_people(series, found, replies)
    return 0


def _point(text: str) -> ScalingPoint:
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
    nodes = sizes[1] if len(sizes) > 1 else 1
    batch = sizes[2] if len(sizes) > 2 else None
    return ScalingPoint(sizes[0], rate, nodes, batch)


def _result_points(options: argparse.Namespace) -> list[ScalingPoint]:
    """Return the completed runs of --results, which must be one series."""
    if options.results is None:
        return []
    rows = [row for row in read_rows(options.results) if _wanted(row, options)]
    if not rows:
        raise ClaimError(f"{options.results} contains no completed run that matches.")
    for name in (*SERIES, *SPLIT):
        told = [row.get(name) for row in rows]
        values = sorted({str(value) for value in told if name in SERIES or value is not None})
        if len(values) > 1:
            raise ClaimError(
                f"The runs of {options.results} differ in {name} ({', '.join(values)}), so they "
                "are not one scaling series. Choose with --model or --platform, or use --point."
            )
    return [_from_row(row, str(options.results)) for row in rows]


def _wanted(row: Mapping[str, Any], options: argparse.Namespace) -> bool:
    if row.get("tokens_per_second") is None or row.get("status", "completed") != "completed":
        return False
    return all(
        wanted is None or row.get(name) == wanted
        for name, wanted in (("model", options.model), ("platform", options.platform))
    )


def _from_row(row: Mapping[str, Any], file: str) -> ScalingPoint:
    try:
        batch = row.get("global_batch_size")
        return ScalingPoint(
            int(row["world_size"]),
            float(row["tokens_per_second"]),
            int(row.get("nodes") or 1),
            None if batch is None else int(batch),
            str(row.get("run_id", "")),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ClaimError(f"{file}: a run has no world_size or no number of tokens/s.") from error


def _with_projection(
    stated: Mapping[str, Interval], found: list[Projection]
) -> dict[str, Interval]:
    """Return the inputs, rate and GPUs taken from the one projection where they are not stated.

    Raises:
        ClaimError: the rate would be of one number of GPUs, and another is stated.
    """
    if len(found) != 1 or found[0].low is None or found[0].tokens_per_second is None:
        return dict(stated)
    only = found[0]
    low, high = found[0].low, only.high
    taken = {"gpus": point(float(only.world_size))}
    if high is not None:
        gpus = stated.get("gpus", taken["gpus"])
        if gpus != taken["gpus"] and "tokens_per_second" not in stated:
            raise ClaimError(
                f"--gpus {number(gpus.low)} is not the size of --to {only.world_size}, whose rate "
                "is taken. Leave out --gpus, project --to that size, or state --tokens-per-second."
            )
        taken["tokens_per_second"] = Interval(low, high)
    return {**taken, **stated}


def _print_json(
    series: ScalingTable | None, found: list[Projection], replies: tuple[Answer, ...]
) -> None:
    economics = {
        reply.name: {
            "unit": reply.unit,
            "low": reply.value.low if reply.value else None,
            "high": reply.value.high if reply.value else None,
            "reason": reply.reason,
            "formula": reply.formula,
        }
        for reply in replies
    }
    projections = [
        {
            "world_size": item.world_size,
            "tokens_per_second": item.tokens_per_second,
            "low": item.low,
            "high": item.high,
            "scaling_efficiency": item.scaling_efficiency,
            "interpolated": item.interpolated,
            "limit_world_size": item.limit_world_size,
            "law": dict(item.law.coefficients) if item.law else None,
            "kind": item.law.kind if item.law else None,
            "reason": item.reason,
        }
        for item in found
    ]
    print_json({"scaling": series, "projections": projections, "economics": economics})


def _print_people(
    series: ScalingTable | None, found: list[Projection], replies: tuple[Answer, ...]
) -> None:
    if series is not None:
        print(
            f"Base: {series.base_text}. Scaling: {series.kind or 'unknown'}, {series.kind_reason}."
        )
        headers = ("GPUs", "nodes", "tokens/s", "speed-up", "efficiency", "run")
        rows = [
            (
                str(row.point.world_size),
                str(row.point.nodes),
                number(row.point.tokens_per_second, 6),
                number(row.speedup),
                f"{row.scaling_efficiency:.1%}",
                row.point.label or "-",
            )
            for row in series.rows
        ]
        print_table(headers, rows)
    for item in found:
        print(_projection_text(item))
    if replies:
        print_table(
            ("quantity", "value", "unit", "from"), [_answer_row(reply) for reply in replies]
        )


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


def _answer_row(reply: Answer) -> tuple[str, str, str, str]:
    if reply.value is None:
        return reply.name, "-", reply.unit, reply.reason or ""
    text = number(reply.value.low)
    if not reply.value.exact:
        text = f"{text} to {number(reply.value.high)}"
    return reply.name, text, reply.unit, reply.formula
