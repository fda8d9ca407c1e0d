"""The page that compares platforms, runs or sets of runs: sentences, chart and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from scalebook.report.base import comparisons
from scalebook.report.base.comparisons import (
    Member,
    Pair,
    members,
    named_pair,
    platform_pairs,
    side_name,
    sides,
)
from scalebook.report.base.frames import ReportData, records
from scalebook.report.base.html_tables import RAN, Column, Row, table, text
from scalebook.report.base.markup import (
    Fragment,
    Markup,
    bullets,
    join,
    paragraphs,
    run_link,
    run_links,
)
from scalebook.report.base.naming import in_words, split_name, units
from scalebook.report.base.quantities import change, count, percent
from scalebook.report.base.versus import configurations, unnumbered, verdict_on
from scalebook.report.charts.comparison import RATIO_SCHEMA, ratios
from scalebook.report.charts.figure import Figures
from scalebook.report.pages.ablation_page import ratio_row

MOST_DIFFERENCES = 400  # rows of the table


def runs_of(data: ReportData) -> tuple[Member, ...]:
    """Return every run with a rate, and its record."""
    return members(data, records(data))


def pairs(items: Sequence[Member], a: str = "", b: str = "") -> tuple[Pair, ...]:
    """Return the named pair, else every pair of platforms."""
    if a or b:
        found = named_pair(items, a, b)
        return (found,) if found else ()
    return tuple(platform_pairs(items))


def overview(items: Sequence[Member], found: Sequence[Pair], a: str = "", b: str = "") -> Fragment:
    """Return the verdict on each pair in words, or why nothing can be compared."""
    if found:
        return bullets(map(sentence, found))
    if a or b:
        return paragraphs(
            f"No run with a throughput is of {a or 'no name'} or of {b or 'no name'}."
        )
    known = sorted({side_name(item.row) for item in items})
    if not known:
        return paragraphs("No run has a throughput, so there is nothing to compare.")
    if len(known) == 1:
        words = f"All runs with a throughput are of {known[0]}: there is no second side."
        return paragraphs(words)
    words = "share no model, sequence length, precision and number of GPUs: nothing compares them."
    return paragraphs(f"The runs of {', '.join(known)} {words}")


def sentence(pair: Pair) -> Markup:
    """Return what was compared and the verdict with its interval."""
    head = Markup("<strong>{}</strong> ({} against {}), {}: {}").format(
        title(pair), _runs(pair.a), _runs(pair.b), pair.kind, _verdict(pair)
    )
    several = len({item.row["platform"] for item in (*pair.a, *pair.b)}) > 1
    known = len(pair.beside_the_gpu)
    many = count(known, "setting or version differs", "settings and versions differ")
    many = many if known else "nothing that was recorded differs"
    return head + (f" Beside the GPU, {many}." if several else f" {many.capitalize()}.")


def title(pair: Pair) -> str:
    """Return the pair in words; of one rank, its number is no split and said once."""
    told, split = comparisons.title(pair), split_name(pair.a[0].row)
    return told.removesuffix(f", {split}") if split[0].isdigit() else told


def _verdict(pair: Pair) -> str:
    verdict = pair.verdict
    if verdict is None:
        reasons = [item.row["interval_reason"] for item in (*pair.a, *pair.b) if not item.estimate]
        return f"no verdict. {reasons[0] if reasons and reasons[0] else 'A side has no interval.'}"
    low, high = verdict.low - 1, verdict.high - 1
    words = {
        "faster": f"the first is faster by {percent(low, 2)} to {percent(high, 2)}.",
        "slower": f"the first is slower by {percent(-high, 2)} to {percent(-low, 2)}.",
        "cannot tell": (
            f"cannot tell: the first is between {percent(-low, 2)} slower and "
            f"{percent(high, 2)} faster."
        ),
    }[verdict.word]
    return f"{words} {verdict.advice}" if verdict.advice else words


def _runs(side: Sequence[Member]) -> Markup:
    names = join(run_link(item.row["run_id"]) for item in side)
    return Markup("{}, {}").format(in_words(_shared(side)), names)


def _shared(side: Sequence[Member]) -> Row:
    """Return the first run of a side, of several under the name that they share."""
    return unnumbered(side[0].row) if len(side) > 1 else side[0].row


def chart(found: Sequence[Pair]) -> Figures | None:
    """Return the ratio of each pair with its interval, a chart for every two sides."""
    groups: dict[str, list[Pair]] = {}
    for pair in found:
        groups.setdefault(sides(pair), []).append(pair)
    axis = "first over second, throughput per rank"
    return Figures.of(
        (name, ratios(_ratio_rows(group), axis, "comparison")) for name, group in groups.items()
    )


def _ratio_rows(group: Sequence[Pair]) -> pl.DataFrame:
    rows = map(ratio_row, _labels(group), group)
    return pl.DataFrame([row for row in rows if row], schema=RATIO_SCHEMA)


def _labels(group: Sequence[Pair]) -> Iterator[str]:
    """Yield what each pair is called in a chart: its work, its configurations, how it was chosen.

    The parts of the work that all pairs share are left out. A narrow chart shows the end alone.
    """
    works = [_work(pair.a[0].row) for pair in group]
    vary = [len(set(values)) > 1 for values in zip(*works, strict=True)]
    for pair, parts in zip(group, works, strict=True):
        names = dict.fromkeys(_name(_shared(side)) for side in (pair.a, pair.b))
        how = {"matched configuration": "matched", "best against best": "best"}.get(pair.kind, "")
        work = [text for text, differs in zip(parts, vary, strict=True) if differs]
        yield " · ".join(part for part in (*work, " / ".join(names), how) if part)


def _work(row: Row) -> tuple[str, ...]:
    ranks = count(row["world_size"] or 0, *units(row["platform"]))
    length = f"seq {row['sequence_length'] or 0:,}"
    return str(row["model"]), str(row["precision"]), length, ranks


def _name(row: Row) -> str:
    """Return the configuration of a run without the mark of its source, which the chart shows."""
    return str(row["name"]).partition(" [")[0]


def differing(found: Sequence[Pair]) -> Fragment:
    """Return what is not equal between the sides of each pair, beside the GPU itself."""
    rows = [
        {"what": title(pair), "kind": pair.kind, "name": one.name, "a": one.a, "b": one.b}
        for pair in found
        for one in pair.beside_the_gpu
    ]
    if not found:
        return paragraphs("There are no two sides, so there is nothing that differs.")
    if not rows:
        return paragraphs("Nothing that the runs recorded differs between the sides.")
    columns = (
        Column("what", "Comparison", lambda row: row["what"], numeric=False, wide=True),
        text("kind", "Kind"),
        text("name", "Setting or version"),
        Column("a", "First", lambda row: row["a"] or "none", numeric=False, wide=True),
        Column("b", "Second", lambda row: row["b"] or "none", numeric=False, wide=True),
    )
    return table(rows[:MOST_DIFFERENCES], columns, "differences")


def against_best(data: ReportData) -> Fragment:
    """Return every configuration beside the fastest of its group, with the verdict on the two."""
    rows: list[dict[str, Any]] = []
    for _, runs in data.ranked.group_by("group", maintain_order=True):
        ranked = configurations(runs.drop_nulls("rate").iter_rows(named=True))
        for one in ranked[1:]:
            best, verdict = ranked[0], verdict_on(one, ranked[0])
            rows.append({
                **one.row,
                "runs": [row["run_id"] for row in one.runs],
                "best": [row["run_id"] for row in best.runs],
                "best_name": best.row["name"],
                "word": verdict.word if verdict else "no interval",
                "change": one.rate / best.rate - 1,
                "low": verdict.low - 1 if verdict else None,
                "high": verdict.high - 1 if verdict else None,
            })  # fmt: skip
    if not rows:
        return paragraphs("No group of comparable runs has two configurations.")
    columns = (
        Column("run_id", "Run", lambda row: run_links(row["runs"]), numeric=False),
        RAN,
        Column("change", "Change", _behind, hint="rate over that of the fastest, less 1"),
        text("word", "Verdict", hint="on the configuration, against the fastest"),
        Column("best", "Fastest", lambda row: run_links(row["best"]), numeric=False),
        Column("best_name", "Its configuration", lambda row: row["best_name"], numeric=False),
    )
    return table(rows[:MOST_DIFFERENCES], columns, "against-fastest")


def _behind(row: Row) -> Markup | str:
    if row["low"] is None:
        return change(row["change"])
    return Markup('{} <span class="range">{} to {}</span>').format(
        change(row["change"]), change(row["low"]), change(row["high"])
    )
