"""The memory page: what was predicted and measured, and the maps of what fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from statistics import median
from typing import Any

import polars as pl

from scalebook.facts.feasibility import SCOPE
from scalebook.facts.feasibility.known import PARTS
from scalebook.identity import alike
from scalebook.report.base import html_tables as tables
from scalebook.report.base.frames import ReportData, capacity
from scalebook.report.base.markup import (
    Markup,
    bullets,
    join,
    opened,
    paragraphs,
    run_link,
    run_links,
)
from scalebook.report.base.naming import (
    Row,
    group_name,
    model_title,
    platform_title,
    precision_title,
    titled,
    units,
)
from scalebook.report.base.quantities import NONE, count, number, percent, quantity
from scalebook.report.charts import Figure, Figures
from scalebook.report.charts import memory_charts as charts
from scalebook.report.charts.memory_charts import KINDS, feasibility_map


def predicted(data: ReportData) -> Iterator[Row]:
    """Yield each run that memory was predicted for, with the predicted parts and the difference."""
    for row in data.runs.iter_rows(named=True):
        found, peak = data.predictions.get(row["run_id"]), row["peak_memory_gib"]
        if found is not None and found.parts is not None:
            total = found.parts["total"]
            difference = None if peak is None else peak - total
            share = None if difference is None or not total else difference / total
            more = {"difference_gib": difference, "share": share}
            yield {**row, **found.parts, **more, "capacity_gib": capacity(row["accelerator"])}


def compared(data: ReportData, statuses: Sequence[str] = ()) -> pl.DataFrame:
    """Return the runs that have a measured peak and a prediction (GiB of the fullest rank)."""
    names = ("run_id", "label", "platform", "model", "source", "peak_memory_gib", "difference_gib")
    found = [
        {name: row[name] for name in names}
        | {"predicted_gib": row["total"], "ending": tables.status_words(row["status"])}
        for row in predicted(data)
        if row["share"] is not None and (not statuses or row["status"] in statuses)
    ]
    return pl.DataFrame(found, infer_schema_length=None)


def speed_and_memory(data: ReportData) -> Figures | None:
    """Return rate over memory, a chart for each work with three runs or more, largest first."""
    works = data.ranked.filter(pl.col("peak_memory_gib").is_not_null()).group_by(
        *("platform", "model", "sequence_length", "packed_documents", "precision"),
        maintain_order=True,
    )
    several = sorted((runs for _, runs in works), key=lambda runs: -runs.height)
    return Figures.of(
        (group_name(runs.row(0, named=True)), charts.speed_against_memory(runs, unbeaten(runs)))
        for runs in several[:MOST_MAPS]
    )


def unbeaten(runs: pl.DataFrame) -> list[str]:
    """Return the ids of the runs that no other beats in both memory and rate, by memory."""
    rising = runs.sort(
        "peak_memory_gib", "tokens_per_second_per_gpu", descending=[False, True]
    ).with_columns(pl.col("tokens_per_second_per_gpu").cum_max().shift(1).alias("before"))
    better = rising.filter(
        pl.col("before").is_null() | (pl.col("tokens_per_second_per_gpu") > pl.col("before"))
    )
    return better["run_id"].to_list()


def scatter(data: ReportData) -> Figure | None:
    """Return measured over predicted memory; None where no run has both."""
    return charts.predicted_against_measured(compared(data))


def bars(data: ReportData) -> Figures | None:
    """Return the predicted parts of each run's fullest rank, with its measured peak."""
    names = ("run_id", "label", "platform", "source", "peak_memory_gib", "capacity_gib")
    found = [
        {name: row[name] for name in names}
        | {"total_gib": row["total"], "part": part, "gib": row[part], "place": place}
        for row in predicted(data)
        for place, part in enumerate(PARTS)
        if part in row
    ]
    return charts.parts(found)


def parts_table(data: ReportData) -> Markup:
    """Return prediction and measurement of each run in numbers, with the difference."""
    columns = (
        *(tables.RUN, tables.STATUS, tables.RAN),
        tables.plain("total", "Predicted", "GiB"),
        tables.plain("peak_memory_gib", "Measured peak", "GiB"),
        tables.Column("difference_gib", "Difference", _signed, "GiB"),
        tables.share("share", "Of the prediction", digits=2),
        tables.plain("capacity_gib", "Device, as sold", "GB"),
        *(tables.plain(name, name.capitalize(), "GiB") for name in PARTS),
        tables.plain("micro_batch_size", "Micro batch"),
        tables.text("recompute", "Recomputation"),
    )
    return tables.table(predicted(data), columns, "memory")


def _signed(row: Row) -> str:
    value = row["difference_gib"]
    return number(value) if value is None or value <= 0 else f"+{number(value)}"


def findings(data: ReportData) -> Markup:
    """Return how far prediction and measurement are apart, and what ran out of memory."""
    return bullets([*_agreement(data), *_ran_out(data), *_unknown(data)])


def _agreement(data: ReportData) -> Iterator[Markup]:
    """Yield, by platform and source, the spread of the differences of completed runs."""
    # a rate that is void leaves the peak of the memory true
    done = compared(data, ("completed", "void"))
    if done.is_empty():
        yield Markup("No completed run has both a measured peak and a prediction.")
        return
    for (platform, source), runs in done.group_by("platform", "source", maintain_order=True):
        shares = (runs["difference_gib"] / runs["predicted_gib"]).to_list()
        above = sum(share > 0 for share in shares)
        far = runs.sort(pl.col("difference_gib").abs()).row(-1, named=True)
        words = (
            "<strong>{}</strong> ({}): {} with a prediction and a measured peak. The peak is {} to "
            "{} of the prediction, at the median {}, and above it in {}. The largest difference "
            "is {} ({})."
        )
        yield Markup(words).format(
            platform_title(platform),
            source,
            count(runs.height, "completed run"),
            percent(1 + min(shares)),
            percent(1 + max(shares)),
            percent(1 + median(shares)),
            f"{above} of {runs.height}",
            quantity(far["difference_gib"], "GiB"),
            run_link(far["run_id"]),
        )


def _ran_out(data: ReportData) -> Iterator[Markup]:
    """Yield what the prediction said of runs that ran out of memory, one sentence per verdict."""
    broke = data.runs.filter(pl.col("status") == "out_of_memory", pl.col("source") != "inferred")
    verdicts: dict[bool | None, str] = {  # whether the prediction was above the device's memory
        False: "ran out of memory although the prediction was below the device's memory. It "
        "leaves out collectives, fragmentation and what older versions of the trainer held",
        True: "ran out of memory, as predicted",
        None: "ran out of memory without a prediction",
    }
    found: dict[bool | None, list[Markup]] = {verdict: [] for verdict in verdicts}
    for row in broke.iter_rows(named=True):
        one = data.predictions.get(row["run_id"])
        predicted = (one.parts or {}).get("total") if one else None
        room = capacity(row["accelerator"])
        batch = f", micro batch {number(row['micro_batch_size'])}"
        named = f"{row['label']}{'' if 'micro batch' in row['label'] else batch}"
        told = f", {quantity(predicted, 'GiB')} predicted" if predicted is not None else ""
        has = f" of {quantity(room, 'GB')}" if told and room is not None else ""
        said = Markup("{} ({}{}{})").format(run_link(row["run_id"]), named, told, has)
        found[None if predicted is None or room is None else predicted > room].append(said)
    for verdict, runs in found.items():
        if runs:
            more = f"; and {len(runs) - MOST_NAMED} more" if len(runs) > MOST_NAMED else ""
            words, named = "<strong>{}</strong> {}: {}{}.", join(runs[:MOST_NAMED], "; ")
            yield Markup(words).format(count(len(runs), "run"), verdicts[verdict], named, more)


def _unknown(data: ReportData) -> Iterator[Markup]:
    """Yield the runs without a prediction or without a measured peak, with the reason."""
    known = ((run_id, data.predictions.get(run_id)) for run_id in data.runs["run_id"])
    without = [(one.reason or "no reason", i) for i, one in known if one and one.parts is None]
    for same in alike(without, lambda pair: pair[0]):
        ids = [run_id for _, run_id in same]
        words = "{} without a prediction ({}): {}."
        yield Markup(words).format(count(len(ids), "run"), same[0][0], run_links(ids))
    silent = data.completed.filter(pl.col("peak_memory_gib").is_null())
    if silent.height:
        yield Markup("{} recorded no memory: {}.").format(
            count(silent.height, "completed run"), run_links(silent["run_id"])
        )


def empty_note(data: ReportData) -> Markup:
    """Return a sentence where there is no run at all."""
    return paragraphs("No run could be read.") if data.runs.is_empty() else Markup("")


_SHARDED = {"none": "no sharding", "optimizer": "sharded optimizer", "full": "fully sharded"}
MOST_NAMED = 4  # runs in a sentence
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
    rows = cells.iter_rows(named=True)
    places = alike(rows, lambda row: (_row_name(row), row["micro_batch_size"]))
    return pl.DataFrame([_place(same) for same in places], infer_schema_length=None)


def _row_name(cell: Row) -> str:
    """Return the name of a map's row: ``TP2 SP · PP2 x 2 · full recomputation``."""
    tensor = f"TP{cell['tensor_parallel_size']}" + (" SP" if cell["sequence_parallel"] else "")
    chunks = cell["virtual_pipeline_parallel_size"]
    pipeline = f"PP{cell['pipeline_parallel_size']}" + (f" x {chunks}" if chunks > 1 else "")
    mode = cell["recompute"]
    return f"{tensor} · {pipeline} · {'no' if mode == 'none' else mode} recomputation"


def _place(same: list[Row]) -> dict[str, Any]:
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
    shared = f"{len(heard)} configurations share this cell"
    reason = titled(fullest["reason"] or "") if len(heard) == 1 else shared
    return {
        "row": _row_name(same[0]),
        "micro": str(same[0]["micro_batch_size"]),
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
        return word if peak is None or verdict != "fits" else number(peak)
    if kind == 1:
        return f"({word})"
    return f"{word if verdict == 'cannot tell' else word + '?'} ~{number(needed)}"


def frontier(places: pl.DataFrame) -> pl.DataFrame:
    """Return row and micro batch of the first place of each row at which memory runs out."""
    out = places.filter(pl.col("verdict").is_in(["out of memory", "both"]))
    ordered = out.sort(pl.col("micro").cast(pl.Int64)).select("row", "micro")
    return ordered.unique("row", keep="first", maintain_order=True)


def figures(data: ReportData) -> Figures | None:
    """Return the maps that have two places or more; None where there is none."""
    several = ((first, places) for first, places in maps(data) if places.height > 1)
    return Figures.of(
        (_title(first), feasibility_map(places, frontier(places)))
        for first, places in islice(several, MOST_MAPS)
    )


def _title(cell: Row) -> str:
    """Return what the runs of a map have in common."""
    one, many = units(cell["platform"])
    unit = one if cell["world_size"] == 1 else many
    device = cell["accelerator"] or cell["platform"]
    parts = [
        f"{model_title(cell['model'])} on {cell['world_size']} {unit} ({device})",
        f"sequence {cell['sequence_length']:,}",
        precision_title(cell["precision"]) or "unknown precision",
        _SHARDED.get(cell["data_parallel_sharding"], "sharding unknown"),
    ]
    more = (("context_parallel_size", "CP"), ("expert_parallel_size", "EP"))
    parts += [f"{short} {cell[name]}" for name, short in more if (cell[name] or 1) > 1]
    room = cell["capacity_gib"]
    return ", ".join(parts) + (f"; {number(room)} GB per device" if room else "")


def map_findings(data: ReportData) -> Markup:
    """Return what the maps know and from where, one sentence per map whose verdicts differ."""
    none = "No run shows whether its configuration fits, so there is no map."
    return bullets(_sentences(data), empty=none)


def _sentences(data: ReportData) -> Iterator[Markup]:
    several = [(first, places) for first, places in maps(data) if places.height > 1]
    alone = sum(places.height == 1 for _, places in maps(data))
    for first, places in several[:MOST_MAPS]:
        kinds = [places.filter(pl.col("kind") == kind).height for kind in KINDS]
        out = places.filter(pl.col("verdict").is_in(["out of memory", "both"]))
        words = "<strong>{}</strong>: {}. {} measured, {} inferred, {} predicted."
        told = Markup(words).format(_title(first), count(places.height, "cell"), *kinds)
        yield told + _out(out)
    if alone:
        verb = "map has" if alone == 1 else "maps have"
        yield Markup("{} only one cell, which the table shows.").format(f"{alone} {verb}")


def _out(out: pl.DataFrame) -> Markup:
    if out.is_empty():
        return Markup(" None runs out of memory.")
    cells = out.head(MOST_NAMED).iter_rows(named=True)
    named = (f"{row['row']} at micro batch {row['micro']}" for row in cells)
    more = f" and {out.height - MOST_NAMED} more" if out.height > MOST_NAMED else ""
    return Markup(" Memory runs out at {}{}.").format(join(named, "; "), more)


def cells_table(data: ReportData) -> Markup:
    """Return every cell of every map, with what it rests on."""
    cells = data.feasibility
    columns = (
        *(tables.MODEL, tables.PLATFORM, tables.PRECISION, tables.WORLD),
        tables.plain("sequence_length", "Sequence", "tokens", digits=6),
        tables.plain("tensor_parallel_size", "TP"),
        tables.plain("pipeline_parallel_size", "PP"),
        tables.plain("micro_batch_size", "Micro batch"),
        tables.text("recompute", "Recomputation"),
        tables.verdict_column("word", "Verdict"),
        tables.text("evidence", "Evidence", hint="measured, inferred from a run, or predicted"),
        tables.text("data_parallel_sharding", "Sharding"),
        tables.plain("peak_memory_gib", "Measured peak", "GiB"),
        tables.plain("predicted_gib", "Predicted", "GiB"),
        tables.plain("capacity_gib", "Device, as sold", "GB"),
        tables.Column("", "Runs", lambda row: join(map(run_link, row["run_ids"])), numeric=False),
        tables.text("reason", "Why", show=lambda why: opened("show", titled(why)) if why else None),
    )
    rows = (
        {**row, "word": _WORDS[row["verdict"]]}
        for row in cells.head(MOST_ROWS).iter_rows(named=True)
    )
    shown = tables.table(rows, columns, "feasibility")
    if cells.height <= MOST_ROWS:
        return shown
    words = f"The first {MOST_ROWS:,} of {cells.height:,} cells; 'scalebook feasibility' has all."
    return paragraphs(words, style="note") + shown
