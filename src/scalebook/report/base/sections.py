"""Sentences that open the sections of the throughput page, made from the tables' own frame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from scalebook.report.base.frames import ReportData
from scalebook.report.base.markup import Markup, bullets, join, opened, run_link, run_links
from scalebook.report.base.naming import (
    WORK,
    Row,
    convention_title,
    model_title,
    precision_title,
    sized,
    typed,
)
from scalebook.report.base.quantities import count, listed, number, percent

SAME_LOSS = 1e-3  # below this relative difference two losses print alike
# A loss jumps where one step raises it by more than half of what it had fallen by until then; it
# must have fallen by a tenth, for a loss that has just begun to fall is noise.
JUMP, LEAST_FALL = 0.5, 0.1
MOST_JUMPS = 3  # with their losses
JUMP_LOSSES = ("before", "loss", "last")


def unranked(data: ReportData) -> Iterator[Markup]:
    """Yield the completed runs that no page ranks or scales, a sentence for what is unknown."""
    missing: dict[tuple[str, ...], list[str]] = {}
    for row in data.completed.iter_rows(named=True):
        unknown = tuple(words for name, words in WORK.items() if row[name] is None)
        if unknown:
            missing.setdefault(unknown, []).append(row["run_id"])
    for unknown, ids in missing.items():
        words = "{} not compared with any other: {} unknown ({})."
        what = f"the {listed(unknown)} {'is' if len(unknown) == 1 else 'are'}"
        runs = count(len(ids), "run is", "runs are")
        yield Markup(words).format(runs, what, run_links(ids))


# A log from elsewhere that just stops: whether its run failed is not known.
_SAYS_NO_END = (pl.col("source") == "ingested") & (pl.col("status") == "interrupted")
_OPEN = _SAYS_NO_END & pl.col("cause").is_null()


def failed(data: ReportData) -> pl.DataFrame:
    """Return the runs that failed, some of them after their last step."""
    done = pl.col("status").is_in(("completed", "void"))
    return data.runs.filter((pl.col("cause").is_not_null() | ~done) & ~_OPEN)


def open_ended(data: ReportData) -> str:
    """Return how many logs from elsewhere do not say how their run ended; empty without one."""
    words = ("log does not say how its run ended", "logs do not say how their runs ended")
    return count(found, *words) if (found := data.runs.filter(_OPEN).height) else ""


def peak(row: Row) -> str:
    """Return what the MFU of a run is a share of: ``dense BF16 peak, 989.4 TFLOP/s``."""
    rate = number(row["peak_tflops_per_second"], 4)
    return f"dense {precision_title(row['peak_precision'])} peak, {rate} TFLOP/s"


def mfu(data: ReportData) -> Markup:
    """Return which run uses its device best, under which convention and peak, or why none does."""
    runs = data.completed
    known = runs.drop_nulls("mfu").partition_by("peak_precision", maintain_order=True)
    known.sort(key=lambda same: -same.height)  # the precision of most runs first
    return bullets([*(_best_mfu(same, len(known) > 1) for same in known), *missing_mfu(runs)])


def _best_mfu(runs: pl.DataFrame, several: bool) -> Markup:
    best = runs.sort("mfu", descending=True, nulls_last=True).row(0, named=True)
    split = sized(best)
    return Markup(
        "The highest MFU{} is {}, by {} {} ({}): {} TFLOP/s per GPU by {}, of the {}, of {}."
    ).format(
        several * f" in {precision_title(best['peak_precision'])}",
        percent(best["mfu"]),
        model_title(best["model"]),
        f"on {split}" if split[0].isdigit() else f"with {split}",
        run_link(best["run_id"]),
        number(best["model_tflops_per_second_per_gpu"]),
        convention_title(best["flops_convention"]),
        peak(best),
        best["accelerator"],
    )


def missing_mfu(runs: pl.DataFrame) -> Iterator[Markup]:
    """Yield why runs have no MFU, one sentence per reason."""
    missing = runs.filter(pl.col("mfu").is_null())
    for (reason,), rows in missing.group_by("mfu_reason", maintain_order=True):
        text = str(reason or "no reason recorded").rstrip(".")
        yield Markup("{} no MFU. {}.").format(
            count(rows.height, "run has", "runs have"), typed(text)
        )


def loss_agreement(runs: pl.DataFrame) -> Iterator[Markup]:
    """Yield how close the last losses of a group are: layouts of one training should agree."""
    work = ["group", "global_batch_size", "recorded_steps"]
    ends = (
        runs.filter(pl.col("loss_last") > 0)
        .group_by(work, maintain_order=True)
        .agg(pl.len(), low=pl.col("loss_last").min(), high=pl.col("loss_last").max())
        .filter(pl.col("len") > 1)
        .with_columns(apart=pl.col("high") / pl.col("low") - 1)
        .sort("apart", descending=True, maintain_order=True)
    )
    apart = ends.filter(pl.col("apart") >= SAME_LOSS)
    if ends.height:
        words = "Runs of the same work and number of steps end at losses within {} in {} of {}."
        groups = count(ends.height, "group")
        yield Markup(words).format(percent(SAME_LOSS, 2), ends.height - apart.height, groups)
    words = "<strong>{}</strong>, {} of a global batch of {}: {} to {}, {} ({})"
    told = [
        Markup(words).format(
            row["group"], count(row["recorded_steps"], "step"), row["global_batch_size"],
            *(number(row[end], 5) for end in ("low", "high")), percent(row["apart"]),
            count(row["len"], "run"),
        )
        for row in apart.iter_rows(named=True)
    ]  # fmt: skip
    if told:
        most, others = join(told[:MOST_JUMPS], "; "), told[MOST_JUMPS:]
        rest = opened(f"{len(others)} more", join(others, "; ")) if others else ""
        yield Markup("The last losses are furthest apart in {}. {}").format(most, rest)


def loss_findings(runs: pl.DataFrame) -> Iterator[Markup]:
    """Yield that the losses fell, and each run whose loss did not."""
    both = runs.drop_nulls("loss_fell")
    if both.is_empty() and runs["loss_last"].is_null().all():
        yield Markup("No run with a throughput recorded a loss.")
        return
    falling = both.filter("loss_fell").height
    if falling:
        above = both.filter("loss_fell", pl.col("loss_last") > pl.col("loss_first"))["run_id"]
        ends = "ends" if len(above) == 1 else "end"
        words = "; {} of them {} above the first loss, after falling on average ({})"
        said = Markup(words).format(len(above), ends, run_links(above)) if len(above) else ""
        yield Markup("The loss fell in {} of {} that recorded one{}.").format(
            falling, count(both.height, "run with a throughput", "runs with a throughput"), said
        )
    yield from rising_losses(runs)
    ids = runs.filter(pl.col("loss_last").is_null())["run_id"]
    if len(ids):
        yield Markup("No loss was recorded by {}.").format(run_links(ids))


def rising_losses(runs: pl.DataFrame) -> Iterator[Markup]:
    """Yield each run that did not learn: its throughput is not valid."""
    for row in runs.filter(~pl.col("loss_fell")).iter_rows(named=True):
        yield Markup(
            "The loss of {} did not fall ({} to {}): the run may be broken, and its throughput "
            "with it."
        ).format(run_link(row["run_id"]), number(row["loss_first"]), number(row["loss_last"]))


def loss_jumps(data: ReportData, run_ids: Sequence[str] | None = None) -> dict[str, Row]:
    """Return the largest jump of each loss that jumps, the largest first: of all or some runs.

    A jump is its ``step``, the loss ``before`` and after it (``loss``), and the ``last`` one.
    """
    steps = data.steps.select("run_id", "step", "loss").drop_nulls("loss").sort("step")
    if run_ids is not None:
        steps = steps.filter(pl.col("run_id").is_in(run_ids))
    before, first = pl.col("loss").shift().over("run_id"), pl.col("loss").first().over("run_id")
    known = steps.with_columns(
        before=before, fall=first - before, rise=pl.col("loss") - before, begin=first,
        last=pl.col("loss").last().over("run_id"),
    )  # fmt: skip
    jumps = known.filter(
        pl.col("fall") >= LEAST_FALL * pl.col("begin"), pl.col("rise") > JUMP * pl.col("fall")
    ).sort("rise", descending=True)
    rows = jumps.unique("run_id", keep="first", maintain_order=True)
    return {row["run_id"]: row for row in rows.iter_rows(named=True)}


def jump_findings(data: ReportData) -> Iterator[Markup]:
    """Yield which losses jump, by the rule, those with the largest jump by name."""
    jumps = loss_jumps(data)
    if jumps:
        named = (
            Markup("{} at step {} ({} to {}, at the end {})").format(
                run_link(run_id), one["step"], *(number(one[name]) for name in JUMP_LOSSES)
            )
            for run_id, one in [*jumps.items()][:MOST_JUMPS]
        )
        rest = [*jumps][MOST_JUMPS:]
        words = (
            "The loss jumps in {}: one step raises it by more than half of what it had fallen by "
            "until then. Most in {}"
        )
        told = Markup(words).format(count(len(jumps), "run"), join(named))
        yield told + (Markup("; also in {}.").format(run_links(rest)) if rest else ".")


def foot(data: ReportData) -> Markup:
    """Return in one line how many runs there are and how MFU is counted."""
    known = data.completed.drop_nulls("mfu")
    said = [
        f"MFU: FLOPs by {convention_title(row['flops_convention'])} over the {peak(row)}"
        for row in known.head(1).iter_rows(named=True)
    ]
    platforms = data.runs["platform"].drop_nulls().n_unique()
    runs = f"{count(data.runs.height, 'run')} on {count(platforms, 'platform')}"
    more = f"{' · '.join([runs, *said])} · "
    return Markup('<p class="foot">{}<a href="method.html">Method</a></p>').format(more)
