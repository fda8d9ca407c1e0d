"""Runs that differ in size: each against the smallest of its group, and what that says in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import polars as pl

from scalebook.measure.scaling import ScalingPoint, scaling_kind
from scalebook.report.base.frames import SCHEMA, ReportData
from scalebook.report.base.markup import Markup, bullets, join, opened, paragraphs, run_link
from scalebook.report.base.naming import Row, series_words, sized, split_name, units
from scalebook.report.base.quantities import count, percent
from scalebook.report.base.sections import unranked
from scalebook.report.base.versus import Configuration, verdict_on

COMPARISON: dict[str, type[pl.DataType]] = {
    "speedup": pl.Float64,
    "ideal_speedup": pl.Float64,
    "scaling_efficiency": pl.Float64,
    "efficiency_low": pl.Float64,
    "efficiency_high": pl.Float64,
    "kind": pl.String,
}


@dataclass(frozen=True, slots=True, eq=False)  # of a build each is one: no frames are compared
class ScalingSeries:
    """The runs of one group and setup at two world sizes or more, a row each, the base first.

    The base is the fastest run at the smallest world size. Columns beside those of the run:
    split, speedup, ideal_speedup, scaling_efficiency with its 95 % interval (efficiency_low,
    efficiency_high; None where a run has none), kind.
    """

    group: str
    base: Row
    points: pl.DataFrame


def scaling_series(runs: pl.DataFrame) -> tuple[ScalingSeries, ...]:
    """Return a series for each group and setup of measured runs at two world sizes or more."""
    usable = runs.filter(pl.col("world_size") > 0, pl.col("tokens_per_second") > 0)
    found: list[ScalingSeries] = []
    usable = usable.with_columns(pl.col("setup").fill_null(""))
    for (group,), members in usable.group_by("group", maintain_order=True):
        # A size measured with another setting or version says nothing about scaling.
        parts = members.partition_by("setup", maintain_order=True)
        parts = [part for part in parts if part["world_size"].n_unique() > 1]
        others = series_words([str(part["setup"][0]) for part in parts])
        for part, other in zip(parts, others, strict=True):
            found.append(_one_series(f"{group} · {other}" if other else str(group), part))
    return tuple(found)


def _one_series(group: str, runs: pl.DataFrame) -> ScalingSeries:
    down = [False, True]
    ordered = runs.sort("world_size", "tokens_per_second", descending=down, nulls_last=True)
    base = ordered.row(0, named=True)
    rows = [_against(base, row) for row in (base, *ordered[1:].iter_rows(named=True))]
    return ScalingSeries(group, base, pl.DataFrame(rows, schema=SCHEMA | COMPARISON))


def _against(base: Row, row: Row) -> dict[str, Any]:
    """Return a run's row with its comparison to the base."""
    ideal = row["world_size"] / base["world_size"]
    speedup = row["tokens_per_second"] / base["tokens_per_second"]
    return {
        **row,
        "split": split_name(row),
        "speedup": speedup,
        "ideal_speedup": ideal,
        "scaling_efficiency": speedup / ideal,
        **_efficiency_interval(base, row),
        "kind": "base" if row is base else scaling_kind([point(base), point(row)])[0],
    }


def _efficiency_interval(base: Row, row: Row) -> dict[str, float | None]:
    """Return the interval of the ratio of both rates per rank, as every comparison has it."""
    verdict = None if row is base else verdict_on(Configuration((row,)), Configuration((base,)))
    if verdict is None:
        return {"efficiency_low": None, "efficiency_high": None}
    # runs on a CPU are ranked, and so compared, by the rate of all processes
    each = row["world_size"] / base["world_size"] if row["platform"] == "cpu" else 1
    return {"efficiency_low": verdict.low / each, "efficiency_high": verdict.high / each}


def point(row: Row) -> ScalingPoint:
    """Return a run as laws of scaling take it."""
    nodes, world_size = row["nodes"], row["world_size"]
    batch = row["global_batch_size"]
    return ScalingPoint(
        world_size,
        row["tokens_per_second"],
        nodes=min(max(nodes, 1), world_size) if nodes else None,
        global_batch_size=batch if batch is not None and batch >= 1 else None,
        label=row["run_id"],
    )


def scaling_findings(found: Sequence[ScalingSeries]) -> Markup:
    """Return what the largest size of each group keeps of the rate per GPU, the least first."""
    ends = [(one, one.points.sort("world_size", "tokens_per_second").row(-1, named=True))
            for one in found]  # fmt: skip
    ends.sort(key=lambda pair: pair[1]["scaling_efficiency"])
    words = "At its largest size, a group keeps {} of the base's rate per GPU at the median."
    middle = percent(median(row["scaling_efficiency"] for _, row in ends)) if ends else ""
    head = [Markup(words).format(middle)] if len(ends) > 1 else []
    none = "No group of comparable runs has more than one size."
    return bullets([*head, *(_sentence(one, row) for one, row in ends)], empty=none)


def _sentence(item: ScalingSeries, row: Row) -> Markup:
    base, low, high = item.base, row["efficiency_low"], row["efficiency_high"]
    certain = "no interval" if low is None else f"{percent(low)} to {percent(high)}"
    work = {"weak": ", equal work per GPU", "strong": ", the same total work"}
    shared = "" if base["platform"] != "cpu" else " Processes share one machine's cores."
    words = "<strong>{}</strong>: {} ({}{}) with {} on {} ({}), {:.2f} times {} ({}).{}"
    return Markup(words).format(
        item.group, percent(row["scaling_efficiency"]), certain, work.get(row["kind"], ""),
        row["split"], count(row["world_size"], *units(base["platform"])), run_link(row["run_id"]),
        row["speedup"], sized(base), run_link(base["run_id"]), shared,
    )  # fmt: skip


def not_enough(data: ReportData, found: Sequence[ScalingSeries]) -> Markup:
    """Return, in words, which runs say nothing about scaling: groups of one size, unknown work."""
    shown = {item.base["group"] for item in found}
    groups = data.ranked["group"].unique(maintain_order=True)
    lonely = [group for group in groups if group not in shown]
    unknown = list(unranked(data))
    if not lonely:
        return paragraphs(*unknown, style="note")
    words = (
        "Not enough sizes: {} runs at one world size only. Scaling needs the same model, "
        "platform, precision, sequence length and settings at two sizes or more."
    )
    many = count(len(lonely), "group has", "groups have")
    said = paragraphs(words.format(many), *unknown, style="note")
    return said + opened("These groups", join(lonely, "; "), "sb-more")
