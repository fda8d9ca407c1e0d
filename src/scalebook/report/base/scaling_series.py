"""Runs that differ in size: each against the smallest of its group, and what that says in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from scalebook.measure.scaling import ScalingPoint, scaling_kind
from scalebook.report.base.frames import SCHEMA, ReportData
from scalebook.report.base.markup import Markup, bullets, join, opened, paragraphs, run_link
from scalebook.report.base.naming import Row, series_words, sized, split_name, units
from scalebook.report.base.quantities import count, percent, quantity
from scalebook.report.base.sections import unranked
from scalebook.report.base.versus import Configuration, verdict_on

COMPARISON: dict[str, type[pl.DataType]] = {
    "speedup": pl.Float64,
    "ideal_speedup": pl.Float64,
    "scaling_efficiency": pl.Float64,
    "efficiency_low": pl.Float64,
    "efficiency_high": pl.Float64,
    "ideal_tokens_per_second": pl.Float64,
    "kind": pl.String,
}


@dataclass(frozen=True, slots=True, eq=False)  # of a build each is one: no frames are compared
class ScalingSeries:
    """The runs of one group and setup at two world sizes or more, a row each, the base first.

    The base is the fastest run at the smallest world size. Columns beside those of the run:
    split, speedup, ideal_speedup, scaling_efficiency with its 95 % interval (efficiency_low,
    efficiency_high; None where a run has none), ideal_tokens_per_second, kind.
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
        "ideal_tokens_per_second": base["tokens_per_second"] * ideal,
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
    """Return what the sizes show, one item per group."""
    none = "No group of comparable runs has more than one size."
    return bullets((join(_sentences(item), " ") for item in found), empty=none)


def _sentences(item: ScalingSeries) -> Iterator[Markup]:
    base = item.base
    yield Markup("<strong>{}</strong>: the base is {}, at {} ({}).").format(
        item.group,
        sized(base),
        quantity(base["tokens_per_second"], "tokens/s"),
        run_link(base["run_id"]),
    )
    larger = item.points.filter(pl.col("world_size") > base["world_size"])
    for (size,), runs in larger.group_by("world_size", maintain_order=True):
        best = runs.sort("tokens_per_second", descending=True).row(0, named=True)
        words = (
            "On {} the fastest is {} ({}): {:.2f} times the base where {:g} would be ideal, "
            "an efficiency of {}{}."
        )
        yield Markup(words).format(
            count(int(str(size)), *units(base["platform"])),
            best["split"],
            run_link(best["run_id"]),
            best["speedup"],
            best["ideal_speedup"],
            percent(best["scaling_efficiency"]),
            _certainty(best),
        )
    if base["platform"] == "cpu":
        yield Markup("Processes share one machine's cores: this says nothing about scaling.")


def _certainty(row: Row) -> str:
    """Return the interval of an efficiency and the kind of scaling, as text behind it."""
    low, high = row["efficiency_low"], row["efficiency_high"]
    interval = "no interval" if low is None else f"{percent(low)} to {percent(high)}"
    work = {"weak": ", equal work per GPU", "strong": ", the same total work"}
    return f" ({interval}{work.get(row['kind'], '')})"


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
