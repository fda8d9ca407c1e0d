"""The few numbers that a reader looks for first, each with its unit and its run."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from scalebook.report.base.columns import PROXY
from scalebook.report.base.frames import ReportData
from scalebook.report.base.markup import Fragment, Markup, run_link
from scalebook.report.base.naming import in_words
from scalebook.report.base.quantities import NONE, count, number, times


def tiles(data: ReportData) -> Fragment:
    """Return a row of tiles: runs, highest throughput, highest per GPU, highest MFU."""
    parts = Markup("").join(
        Markup(
            '<div class="sb-tile"><dt>{}</dt><dd class="value">{} <span class="unit">{}</span></dd>'
            '<dd class="about">{}</dd></div>'
        ).format(*tile)
        for tile in _tiles(data)
    )
    return Fragment(Markup('<dl class="sb-tiles">{}</dl>').format(parts))


Tile = tuple[str, str, str, Markup]  # what, number, unit, about


def _tiles(data: ReportData) -> Iterator[Tile]:
    completed = data.runs.filter(pl.col("status") == "completed").height
    failed, void = data.unfinished.height, data.runs.height - completed - data.unfinished.height
    about = f"{failed} did not" if failed else "none failed"
    about += f", {void} void" if void else ""
    yield "Runs completed", str(completed), f"of {data.runs.height}", Markup("{}").format(about)
    # A number that was not measured here wins no tile from one that was.
    own = data.ranked.filter(pl.col("source") == "measured")
    runs, of = whole_models(data.ranked if own.is_empty() else own)
    yield _best(runs, "tokens_per_second", f"Highest throughput{of}", "tokens/s")
    on_gpus = runs.filter(pl.col("platform") != "cpu")
    if on_gpus.is_empty():
        yield _widest(runs)
    else:
        yield _best(on_gpus, "rate", f"Highest per GPU{of}", "tokens/s per GPU")
    yield _best(runs, "mfu", f"Highest MFU{of}", "% of dense peak", scale=100)


def whole_models(runs: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Return the runs of whole models where accelerators ran both, and words that say so.

    The first layers of a model are fast because they are few.
    """
    whole = runs.filter(~PROXY, pl.col("platform") != "cpu")
    mixed = not whole.is_empty() and not runs.filter(PROXY).is_empty()
    return (whole, " of a whole model") if mixed else (runs, "")


def _widest(runs: pl.DataFrame) -> Tile:
    """Return the tile of the group whose runs differ most."""
    spread = pl.col("rate").max() / pl.col("rate").min()
    groups = runs.group_by("group", maintain_order=True).agg(spread, runs=pl.len())
    groups = groups.filter(pl.col("runs") > 1).sort("rate", descending=True)
    if groups.is_empty():
        return "Widest spread", NONE, "", Markup("no two comparable runs")
    widest = groups.row(0, named=True)
    about = Markup("{} of {}").format(count(widest["runs"], "run"), widest["group"])
    return "Widest spread", times(widest["rate"]), "fastest over slowest", about


def _best(runs: pl.DataFrame, key: str, title: str, unit: str, scale: float = 1) -> Tile:
    """Return the tile of the highest value; a dash and a reason where there is none."""
    known = runs.filter(pl.col(key).is_not_null()).sort(key, descending=True)
    if known.is_empty():
        reasons = runs["mfu_reason"].drop_nulls().unique() if key == "mfu" else pl.Series([])
        text = reasons[0] if len(reasons) == 1 else "no measured run has one"
        return title, NONE, "", Markup("{}").format(text)
    best = known.row(0, named=True)
    source = "" if best["source"] == "measured" else f" [{best['source']}]"
    about = Markup("{}, {}, {}{}, {}").format(
        best["model"], best["precision"].upper(), in_words(best), source, run_link(best["run_id"])
    )
    return title, number(scale * best[key]), unit, about
