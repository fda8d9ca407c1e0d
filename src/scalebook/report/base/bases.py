"""A comparison per GPU, node, watt, dollar and peak FLOP, with the reason where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from scalebook.report.base.markup import Fragment, Markup
from scalebook.report.base.naming import split_name, units
from scalebook.report.base.quantities import NONE, count, number
from scalebook.report.base.sides import Member, Pair, mean_rate
from scalebook.report.base.stated import Stated
from scalebook.report.base.tables import Column, Row, table, text


def title(pair: Pair) -> str:
    """Return the pair in words."""
    row = pair.a[0].row
    split = split_name(row)
    # A split of one rank is only its number, which the work has already.
    told = pair.kind == "matched configuration" and not split[:1].isdigit()
    how = f", {split}" if told else ""
    return f"{sides(pair)}, {row['model']} on {work(row)}{how}"


def sides(pair: Pair) -> str:
    """Return the names of both sides."""
    return f"{pair.name_a} against {pair.name_b}"


def work(row: Row) -> str:
    """Return the work of a run in words."""
    known = row["sequence_length"]
    length = f"sequence {known:,}" if known else "sequence unknown"
    ranks = count(row["world_size"] or 0, *units(row["platform"]))
    return f"{ranks}, {row['precision']}, {length}"


Basis = tuple[str, str, Callable[[Member], float | None], str]


def _bases(stated: Stated) -> tuple[Basis, ...]:
    """Return what a rate is shown per: its name, unit, divisor of the rate per rank, and reason.

    The divisor is in units a rank: nodes, watts, currency per hour, TFLOP/s.
    """
    return (
        ("GPU", "tokens/s per GPU", _whole, ""),
        ("node", "tokens/s per node", _nodes, "the number of nodes is not recorded"),
        ("watt", "tokens/J", lambda item: item.row["mean_power_watts"], "power was not measured"),
        (
            "dollar",
            "tokens per unit of currency",
            lambda item: _price(item, stated),
            "no price is stated",
        ),
        (
            "peak FLOP",
            "tokens per dense peak TFLOP",
            lambda item: item.row["peak_tflops_per_second"],
            "no dense peak is known for the device and precision",
        ),
    )


def _whole(_: Member) -> float:
    return 1.0


def _nodes(item: Member) -> float | None:
    nodes, ranks = item.row["nodes"], item.row["world_size"]
    return nodes / ranks if nodes and ranks else None


def _price(item: Member, stated: Stated) -> float | None:
    price = stated.of(item.row["platform"], "price_per_gpu_hour")
    return price.middle / 3600 if price else None


def per_basis(found: Sequence[Pair], stated: Stated) -> Fragment:
    """Return every pair per GPU, node, watt, dollar and peak FLOP, with reasons for the nulls."""
    rows = [row for pair in found for row in basis_rows(pair, stated)]
    if not rows:
        return Fragment(Markup(""))
    columns = (
        Column("what", "Comparison", lambda row: row["what"], numeric=False, wide=True),
        text("kind", "Kind"),
        text("per", "Per"),
        Column("a", "First", lambda row: number(row["a"])),
        Column("b", "Second", lambda row: number(row["b"])),
        text("unit", "Unit"),
        Column("ratio", "First over second", _ratio, hint="with the interval of the throughput"),
        Column("reason", "Why not", lambda row: row["reason"] or NONE, numeric=False, wide=True),
    )
    return table(rows, columns, "comparison")


def basis_rows(pair: Pair, stated: Stated) -> Iterator[dict[str, Any]]:
    """Yield a row a basis. Only the throughput has an interval: a price or a peak is one number."""
    a, b = pair.a[0], pair.b[0]
    verdict = pair.verdict
    for per, unit, divisor, missing in _bases(stated):
        under_a, under_b = divisor(a), divisor(b)
        names = [n for n, x in ((pair.name_a, under_a), (pair.name_b, under_b)) if not x]
        on_cpu = "cpu" in (a.row["platform"], b.row["platform"])
        reason = f"{missing}: {', '.join(names)}" if names else None
        left = mean_rate(pair.a) / under_a if under_a else None
        right = mean_rate(pair.b) / under_b if under_b else None
        if on_cpu:
            left = right = None
            reason = "processes of a CPU share its cores, so a rate has no such basis"
        known = left is not None and right is not None and verdict is not None
        factor = under_b / under_a if known and under_a and under_b else None
        yield {
            "what": title(pair), "kind": pair.kind, "per": per, "unit": unit,
            "a": left, "b": right, "reason": reason,
            "source": next((i.row["source"] for i in (a, b) if i.row["source"] != "measured"), ""),
            "ratio": left / right if left and right else None,
            "low": verdict.low * factor if verdict and factor else None,
            "high": verdict.high * factor if verdict and factor else None,
        }  # fmt: skip


def _ratio(row: Row) -> Markup | str:
    if row["ratio"] is None:
        return NONE
    if row["low"] is None:
        return f"{row['ratio']:.3f}"
    return Markup('{:.3f} <span class="range">{:.3f} to {:.3f}</span>').format(
        row["ratio"], row["low"], row["high"]
    )
