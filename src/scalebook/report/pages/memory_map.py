"""The feasibility maps of the memory page: which splits and micro batches fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from scalebook.facts.feasibility import SCOPE
from scalebook.report.base.frames import ReportData
from scalebook.report.base.html_tables import MODEL, PLATFORM, Column, plain, table, text
from scalebook.report.base.markup import Fragment, Markup, bullets, join, paragraphs, run_link
from scalebook.report.base.naming import units
from scalebook.report.base.quantities import NONE, count, number
from scalebook.report.charts import Figures
from scalebook.report.charts.memory_charts import KINDS, MAP, feasibility_map

Row = Mapping[str, Any]
MOST_MAPS = 12  # drawn; the table has every cell
MOST_ROWS = 1_000  # of the table
_WORDS = {"fits": "fits", "out_of_memory": "out of memory", None: "cannot tell"}


def maps(data: ReportData) -> Iterator[tuple[Row, pl.DataFrame]]:
    """Yield each map, the largest first: its first row, and its places (columns of MAP)."""
    grouped = data.feasibility.group_by(*SCOPE, maintain_order=True)
    drawn = [(cells.row(0, named=True), _places(cells)) for _, cells in grouped]
    yield from sorted(drawn, key=lambda item: -item[1].height)


def _places(cells: pl.DataFrame) -> pl.DataFrame:
    """Return one row a place of the map; several configurations may stand in one."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in cells.iter_rows(named=True):
        found.setdefault((_row_name(row), row["micro_batch_size"]), []).append(row)
    made = (_place(name, micro, same) for (name, micro), same in found.items())
    return pl.DataFrame(list(made), schema=MAP)


def _row_name(cell: Row) -> str:
    """Return the name of a map's row: ``TP2 SP · PP2 x 2 · recompute full``."""
    tensor = f"TP{cell['tensor_parallel_size']}" + (" SP" if cell["sequence_parallel"] else "")
    chunks = cell["virtual_pipeline_parallel_size"]
    pipeline = f"PP{cell['pipeline_parallel_size']}" + (f" x {chunks}" if chunks > 1 else "")
    return f"{tensor} · {pipeline} · recompute {cell['recompute']}"


def _place(name: str, micro: int, same: list[Row]) -> dict[str, Any]:
    """Return what is known of a place: what a run shows goes before what follows from others."""
    ranked = {"inferred": 1, "predicted": 2}
    best = min(ranked.get(cell["evidence"], 0) for cell in same)
    heard = [cell for cell in same if ranked.get(cell["evidence"], 0) == best]
    verdicts = {_WORDS[cell["verdict"]] for cell in heard}
    verdict = verdicts.pop() if len(verdicts) == 1 else "both"
    peaks = [c["peak_memory_gib"] for c in heard if c["peak_memory_gib"] is not None]
    fullest = max(heard, key=lambda cell: cell["predicted_gib"] or 0.0)
    peak, needed = max(peaks, default=None), fullest["predicted_gib"]
    run_ids = [run_id for cell in heard for run_id in cell["run_ids"]]
    reason = fullest["reason"] if len(heard) == 1 else f"{len(heard)} configurations stand here"
    return {
        "row": name,
        "micro": str(micro),
        "verdict": verdict,
        "kind": KINDS[best],
        "shown": _shown(verdict, best, peak, needed),
        "run_ids": ", ".join(run_ids) or NONE,
        "reason": reason,
        "recompute": fullest["recompute"],
        "evidence": fullest["evidence"],
        "peak_memory_gib": peak,
        "predicted_gib": needed,
        "runs": len(heard),
    }


def _shown(verdict: str, kind: int, peak: float | None, needed: float | None) -> str:
    """Return what is written in a cell: the peak, with ``~`` the prediction."""
    word = {"out of memory": "out", "both": "fits or out", "fits": "fits"}.get(verdict, "?")
    if kind == 0:
        return word if peak is None or verdict != "fits" else f"fits {number(peak)}"
    if kind == 1:
        return f"({word})"
    return f"{word if verdict == 'cannot tell' else word + '?'} ~{number(needed)}"


def frontier(places: pl.DataFrame) -> pl.DataFrame:
    """Return row and micro batch of the first place of each row at which memory runs out."""
    out = places.filter(pl.col("verdict").is_in(["out of memory", "both"]))
    first = out.sort(pl.col("micro").cast(pl.Int64)).unique("row", keep="first")
    return first.select("row", "micro")


def figures(data: ReportData) -> Figures | None:
    """Return the maps that have two places or more; None where there is none."""
    several = [(first, places) for first, places in maps(data) if places.height > 1]
    return Figures.of(
        (_title(first), feasibility_map(places, frontier(places)))
        for first, places in several[:MOST_MAPS]
    )


def _title(cell: Row) -> str:
    """Return what the runs of a map have in common."""
    one, many = units(cell["platform"])
    unit = one if cell["world_size"] == 1 else many
    device = cell["accelerator"] or cell["platform"]
    parts = [
        f"{cell['model']} on {cell['world_size']} {unit} ({device})",
        f"sequence {cell['sequence_length']:,}",
        cell["precision"],
        f"sharding {cell['data_parallel_sharding']}",
    ]
    more = (("context_parallel_size", "CP"), ("expert_parallel_size", "EP"))
    parts += [f"{short} {cell[name]}" for name, short in more if (cell[name] or 1) > 1]
    capacity = cell["capacity_gib"]
    return ", ".join(parts) + (f"; {number(capacity)} GB a device" if capacity else "")


def findings(data: ReportData) -> Fragment:
    """Return what the maps know, and from where, a sentence a map with a verdict that differs."""
    if data.feasibility.is_empty():
        return paragraphs("No run shows whether its configuration fits, so there is no map.")
    return bullets(_sentences(data))


def _sentences(data: ReportData) -> Iterator[Markup]:
    several = [(first, places) for first, places in maps(data) if places.height > 1]
    alone = sum(places.height == 1 for _, places in maps(data))
    for first, places in several[:MOST_MAPS]:
        kinds = [places.filter(pl.col("kind") == kind).height for kind in KINDS]
        out = places.filter(pl.col("verdict").is_in(["out of memory", "both"]))
        words = "<strong>{}</strong>: {}, {} shown by runs, {} inferred from them, {} predicted."
        told = Markup(words).format(_title(first), count(places.height, "place"), *kinds)
        yield told + _out(out)
    if alone:
        words = "{} one place alone, which makes no map: the table has {}."
        verb = "map has" if alone == 1 else "maps have"
        yield Markup(words).format(f"{alone} {verb}", "it" if alone == 1 else "them")


def _out(out: pl.DataFrame) -> Markup:
    if out.is_empty():
        return Markup(" Memory runs out in none of them.")
    named = (f"{row['row']} at micro batch {row['micro']}" for row in out.iter_rows(named=True))
    some, more = list(named), ""
    if len(some) > 4:
        some, more = some[:4], f" and {len(some) - 4} more"
    return Markup(" Memory runs out at {}{}.").format(join(some, "; "), more)


def _why(row: Row) -> Markup | str:
    if not row["reason"]:
        return NONE
    return Markup("<details><summary>show</summary>{}</details>").format(row["reason"])


def cells_table(data: ReportData) -> Fragment:
    """Return every cell of every map, with what it rests on."""
    cells = data.feasibility
    if cells.is_empty():
        return Fragment(Markup(""))
    columns = (
        *(MODEL, PLATFORM, plain("world_size", "Ranks")),
        plain("sequence_length", "Sequence", "tokens", digits=6),
        plain("tensor_parallel_size", "TP"),
        plain("pipeline_parallel_size", "PP"),
        plain("micro_batch_size", "Micro batch"),
        text("recompute", "Recompute"),
        text("data_parallel_sharding", "Sharding"),
        Column("verdict", "Verdict", lambda row: _WORDS[row["verdict"]], numeric=False),
        text("evidence", "Evidence", hint="measured, inferred from a run, or predicted alone"),
        plain("peak_memory_gib", "Measured peak", "GiB"),
        plain("predicted_gib", "Predicted", "GiB"),
        plain("capacity_gib", "Device, as sold", "GB"),
        Column("", "Runs", lambda row: join(map(run_link, row["run_ids"])), numeric=False),
        Column("reason", "Why", _why, numeric=False),
    )
    shown = table(cells.head(MOST_ROWS).iter_rows(named=True), columns, "feasibility")
    if cells.height <= MOST_ROWS:
        return shown
    words = f"The first {MOST_ROWS:,} of {cells.height:,} cells; 'scalebook feasibility' has all."
    return Fragment(paragraphs(words, style="note").html + shown.html)
