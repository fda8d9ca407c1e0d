"""Sentences that open the sections of the throughput page, made from the tables' own frame."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from scalebook.frames import ReportData
from scalebook.markup import Fragment, Markup, bullets, join, paragraphs, run_link
from scalebook.naming import split_name, unit_name
from scalebook.quantities import count, number, percent, times


def throughput(data: ReportData) -> Fragment:
    """Return how wide the field is in each group, from its slowest to its fastest run."""
    if data.completed.is_empty():
        return paragraphs("No run completed with a throughput.")
    groups = data.completed.group_by("group", maintain_order=True)
    return bullets(_span(str(group), runs) for (group,), runs in groups)


def _span(group: str, runs: pl.DataFrame) -> Markup:
    ordered = runs.sort("tokens_per_second_per_gpu")
    low, high = ordered.row(0, named=True), ordered.row(-1, named=True)
    unit = f"tokens/s per {unit_name(high['platform'])}"
    if runs.height == 1:
        return Markup("<strong>{}</strong>: one run, {} {} ({}).").format(
            group, number(high["tokens_per_second_per_gpu"]), unit, run_link(high["run_id"])
        )
    return Markup("<strong>{}</strong>: {}, from {} ({}) to {} {} ({}), a factor of {}.").format(
        group,
        count(runs.height, "run"),
        number(low["tokens_per_second_per_gpu"]),
        run_link(low["run_id"]),
        number(high["tokens_per_second_per_gpu"]),
        unit,
        run_link(high["run_id"]),
        times(high["tokens_per_second_per_gpu"] / low["tokens_per_second_per_gpu"]),
    )


def mfu(data: ReportData) -> Fragment:
    """Return which run uses its device best, under which convention and peak, or why none does."""
    runs = data.completed
    sentences = [_best_mfu(runs)] if runs["mfu"].drop_nulls().len() else []
    return bullets([*sentences, *missing_mfu(runs)])


def _best_mfu(runs: pl.DataFrame) -> Markup:
    best = runs.sort("mfu", descending=True, nulls_last=True).row(0, named=True)
    return Markup(
        "The highest MFU is {} by {} of {} ({}): {} TFLOP/s of model work per GPU by "
        "<code>{}</code>, over {} TFLOP/s, the dense {} peak of {}."
    ).format(
        percent(best["mfu"]),
        split_name(best),
        best["model"],
        run_link(best["run_id"]),
        number(best["model_tflops_per_second_per_gpu"]),
        best["flops_convention"],
        number(best["peak_tflops_per_second"], 4),
        best["peak_precision"],
        best["accelerator"],
    )


def missing_mfu(runs: pl.DataFrame) -> Iterator[Markup]:
    """Yield why runs have no MFU, or one that can't be, a sentence a reason."""
    impossible = runs.filter(pl.col("mfu") > 1)
    for row in impossible.iter_rows(named=True):
        yield Markup("{}: {}").format(run_link(row["run_id"]), row["mfu_reason"])
    missing = runs.filter(pl.col("mfu").is_null())
    for (reason,), rows in missing.group_by("mfu_reason", maintain_order=True):
        text = str(reason or "no reason recorded").rstrip(".")
        yield Markup("{} no MFU. {}.").format(count(rows.height, "run has", "runs have"), text)


def loss(data: ReportData) -> Fragment:
    """Return whether each completed run learnt: a run that does not is no valid throughput."""
    return bullets(loss_findings(data.completed))


def loss_findings(runs: pl.DataFrame) -> Iterator[Markup]:
    """Yield that the losses fell, and each run whose loss did not."""
    both = runs.filter(pl.col("loss_first").is_not_null(), pl.col("loss_last").is_not_null())
    if both.is_empty():
        yield Markup("No completed run recorded a loss.")
        return
    rising = both.filter(pl.col("loss_last") >= pl.col("loss_first"))
    falling = both.height - rising.height
    if falling:
        yield Markup("The loss fell in {} of {} that recorded one.").format(
            falling, count(both.height, "completed run")
        )
    for row in rising.iter_rows(named=True):
        yield Markup(
            "The loss of {} did not fall ({} to {}): its throughput may be of a broken run."
        ).format(run_link(row["run_id"]), number(row["loss_first"]), number(row["loss_last"]))
    without = runs.height - both.height
    if without:
        ids = runs.filter(pl.col("loss_last").is_null())["run_id"]
        yield Markup("No loss was recorded by {}.").format(join(map(run_link, ids)))
