"""Sentences, charts and table of the switches of one platform against each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from scalebook.report.base.comparisons import Pair, mean_rate
from scalebook.report.base.html_tables import Column, Row, table, text
from scalebook.report.base.markup import Fragment, Markup, bullets, join, paragraphs, run_link
from scalebook.report.base.quantities import change, count, times
from scalebook.report.charts.comparison import BAR_SCHEMA, RATIO_SCHEMA, against_baseline, ratios
from scalebook.report.charts.figure import Figures
from scalebook.report.pages.ablation import Ablation, Repeats, Switch

NOTHING = (
    "No two runs differ in one switch alone. The plan ablation.toml runs one model with "
    "everything on, everything off, and each switch alone changed."
)


def overview(found: Sequence[Ablation]) -> Fragment:
    """Return what the optimised configuration gains, and its largest and its useless switches."""
    if not found:
        return paragraphs(NOTHING)
    return bullets(join(_sentences(item), " ") for item in found)


def _sentences(item: Ablation) -> Iterator[Markup]:
    name = Markup("<strong>{}</strong>").format(item.name)
    many = count(len(item.switches), "switch was changed", "switches were changed")
    yield Markup("{}: {} one at a time from {}.").format(name, many, _runs(item.optimised))
    verdict = item.plain.verdict if item.plain else None
    if item.plain and verdict:
        yield Markup("With {} changed at once ({}) the optimised one is {} as fast.").format(
            count(len(item.plain_changes), "switch", "switches"),
            _runs(item.plain.b),
            f"{times(verdict.ratio)} ({times(verdict.low)} to {times(verdict.high)})",
        )
    sure = [one for one in item.switches if one.verdict and one.verdict.word == "faster"]
    if sure:
        yield Markup("Surely worth having: {}.").format(join(map(_gain, sure)))
    lost = [one for one in item.switches if one.verdict and one.verdict.word == "slower"]
    if lost:
        yield Markup("Faster the other way: {}.").format(join(map(_gain, lost)))
    open_ones = [one for one in item.switches if one.verdict and one.verdict.word == "cannot tell"]
    if open_ones:
        yield Markup("These runs do not tell what is better in: {}.").format(
            join(one.choice for one in open_ones)
        )


def _gain(item: Switch) -> Markup:
    verdict = item.verdict
    low, high = (verdict.low - 1, verdict.high - 1) if verdict else (None, None)
    return Markup("{} ({} to {})").format(item.label, change(low), change(high))


def _runs(side: Repeats) -> Markup:
    return join(run_link(item.row["run_id"]) for item in side)


def worth(found: Sequence[Ablation]) -> Figures | None:
    """Return a chart of each switch's worth for each optimised configuration."""
    return Figures.of(
        (item.name, ratios(_ratio_rows(item), "optimised over changed, throughput", "switch"))
        for item in found
    )


def _ratio_rows(item: Ablation) -> pl.DataFrame:
    found = (ratio_row(one.label, one.pair) for one in item.switches)
    return pl.DataFrame([row for row in found if row], schema=RATIO_SCHEMA)


def ratio_row(label: str, pair: Pair) -> dict[str, Any] | None:
    """Return the verdict on a pair as a row of a chart of ratios; None where there is none."""
    verdict = pair.verdict
    if verdict is None:
        return None
    ids = (", ".join(item.row["run_id"] for item in side) for side in (pair.a, pair.b))
    sources = {item.row["source"] for item in (*pair.a, *pair.b)} - {"measured"}
    return {
        "label": label,
        **dict(zip(("run_id", "other_run_id"), ids, strict=True)),
        "kind": pair.kind,
        "source": min(sources, default="measured"),
        "change": verdict.ratio - 1,
        "change_low": verdict.low - 1,
        "change_high": verdict.high - 1,
        "word": verdict.word,
    }


def bars(found: Sequence[Ablation]) -> Figures | None:
    """Return baseline against optimised, with every single change between them."""
    return Figures.of((item.name, against_baseline(_bar_rows(item))) for item in found)


def _bar_rows(item: Ablation) -> pl.DataFrame:
    changes = sorted(item.switches, key=lambda one: mean_rate(one.pair.b))
    rows = [_bar(item.plain.b, "baseline: several changed", "baseline")] if item.plain else []
    rows += [_bar(one.pair.b, f"{one.words}: {one.other}", "one switch changed") for one in changes]
    rows.append(_bar(item.optimised, "optimised", "optimised"))
    return pl.DataFrame(rows, schema=BAR_SCHEMA)


def _bar(side: Repeats, label: str, step: str) -> dict[str, Any]:
    row, several = side[0].row, len(side) > 1
    return {
        "label": label,
        "run_id": ", ".join(item.row["run_id"] for item in side),
        "source": row["source"],
        "step": step,
        "rate": mean_rate(side),
        # repeats have an interval of their own, which the chart of ratios holds
        "rate_low": None if several else row["rate_low"],
        "rate_high": None if several else row["rate_high"],
        "unit": row["rate_unit"],
    }


def switches(found: Sequence[Ablation]) -> Fragment:
    """Return the table of all switches with their intervals."""
    rows = [
        {
            **(ratio_row(one.label, one.pair) or {}),
            **{"what": item.name, "name": one.words, "value": one.value, "other": one.other},
            "run_id": one.pair.b[0].row["run_id"],
        }
        for item in found
        for one in item.switches
    ]
    if not rows:
        return Fragment(Markup(""))
    columns = (
        text("name", "Switch"),
        text("value", "Optimised"),
        text("other", "Changed to"),
        Column("change", "Worth", _change, hint="optimised over changed, with its 95 % interval"),
        text("word", "Verdict", hint="on the optimised value"),
        Column("what", "Of", lambda row: row["what"], numeric=False, wide=True),
        Column("run_id", "Run with the change", lambda row: run_link(row["run_id"]), numeric=False),
    )
    return table(rows, columns, "switches")


def _change(row: Row) -> Markup:
    return Markup('{} <span class="range">{} to {}</span>').format(
        change(row["change"]), change(row["change_low"]), change(row["change_high"])
    )
