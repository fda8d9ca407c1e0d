"""The memory page: what was predicted and measured, and the maps of what fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, starmap
from statistics import median
from typing import Any

import altair as alt
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
from scalebook.report.charts.figure import (
    AnyChart,
    Figure,
    Figures,
    by,
    by_platform,
    by_source,
    drawn,
    first,
    names,
    rows,
    stacked,
    tooltips,
)
from scalebook.report.charts.theme import GREY, PALETTE

# Two runs of one place in a map may disagree; so there are four verdicts.
VERDICTS = ("fits", "out of memory", "both", "cannot tell")
KINDS = ("shown by a run", "inferred", "predicted")
SOLID = (1.0, 0.25, 0.0)  # how solid the place of each kind is
_BESIDE_ZERO = alt.Scale(zero=False, padding=12)
_RUN = tooltips("run_id", "label", "source")
_MEASURED = ("peak_memory_gib", "measured peak, GiB", ".2f")


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
        (group_name(runs.row(0, named=True)), speed_against_memory(runs, unbeaten(runs)))
        for runs in several[:MOST_MAPS]
    )


def speed_against_memory(runs: pl.DataFrame, frontier: Sequence[str]) -> Figure | None:
    """Return one point per run of one work, rate over peak GiB, with the line of the best ones.

    ``frontier`` has the ids of the runs that no other run beats in both.
    """
    if runs.height < 3:  # of two runs there is nothing to choose
        return None
    data = runs.select(
        *("run_id", "label", "source", "peak_memory_gib", "tokens_per_second_per_gpu"),
        best=pl.col("run_id").is_in(list(frontier)),
    )
    rate = ("tokens_per_second_per_gpu", "tokens/s per GPU", ",.0f")
    base = alt.Chart(rows(data)).encode(
        x=alt.X("peak_memory_gib:Q", title="measured peak, GiB per GPU", scale=_BESIDE_ZERO),
        y=alt.Y("tokens_per_second_per_gpu:Q", title="tokens/s per GPU", scale=_BESIDE_ZERO),
        shape=by_source(data["source"]),
        tooltip=[*_RUN, *tooltips(_MEASURED, rate)],
    )
    best = base.transform_filter("datum.best")
    chart = (
        best.mark_line(interpolate="step-after", strokeDash=[5, 4], color=GREY)
        + base.transform_filter("!datum.best").mark_point(filled=False, size=80, strokeWidth=1.5)
        + best.mark_point(filled=True, size=100, opacity=0.9)
    )
    least = min(data.filter("best")["peak_memory_gib"].to_list())
    words = (
        f"Rate over measured memory of {count(data.height, 'run')}; {len(frontier)} of them "
        f"are the fastest for their memory, from {quantity(least, 'GiB')} on."
    )
    return drawn(chart, words, 260)


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
    """Return measured over predicted memory (GiB) with the line where both agree; None for no run.

    A run that did not complete is a hollow point.
    """
    shown = compared(data)
    if shown.is_empty():
        return None
    values = [*shown["predicted_gib"], *shown["peak_memory_gib"]]
    low, high = 0.9 * min(values), 1.06 * max(values)
    ends = [low if 10 * low > high else 0.0, high]
    scale = alt.Scale(domain=ends, nice=False, zero=False)
    line = alt.Chart(alt.Data(values=[{"gib": end} for end in ends])).mark_line(
        strokeDash=[5, 4], strokeWidth=1.5, color=GREY
    )
    numbers = tooltips(
        ("ending", "ended as"), ("predicted_gib", "predicted, GiB", ".2f"), _MEASURED,
        ("difference_gib", "difference, GiB", "+.2f"),
    )  # fmt: skip
    base = alt.Chart(rows(shown)).encode(
        x=alt.X("predicted_gib:Q", title="predicted, GiB", scale=scale),
        y=alt.Y("peak_memory_gib:Q", title="measured peak, GiB", scale=scale),
        color=by("platform", shown),
        shape=by_source(shown["source"]),
        tooltip=[*_RUN, *numbers],
    )
    whole = base.transform_filter("datum.ending == 'completed'")
    broken = base.transform_filter("datum.ending != 'completed'")
    chart = (
        line.encode(x="gib:Q", y="gib:Q")
        + whole.mark_point(filled=True, size=90, opacity=0.8)
        + broken.mark_point(filled=False, size=110, strokeWidth=2, opacity=1)
    )
    far = shown.sort(pl.col("difference_gib").abs()).row(-1, named=True)
    sign = "above" if far["difference_gib"] >= 0 else "below"
    words = (
        f"Measured peak memory over the prediction for {count(shown.height, 'run')}; the "
        f"farthest from the line is {quantity(abs(far['difference_gib']), 'GiB')} {sign} it."
    )
    return drawn(chart, words, 340)


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
    return Figures.of((name, _parts(members)) for name, members in by_platform(found))


def _parts(bars: pl.DataFrame) -> Figure:
    labels, data, cut = first(bars.filter(pl.col("gib") > 0).drop("platform"))
    numbers = (("gib", "predicted, GiB", ".2f"), ("total_gib", "in all, GiB", ".2f"), _MEASURED)
    tips = [*_RUN, *tooltips("part", *numbers)]
    x = alt.X("gib:Q", title="GiB on the fullest rank", stack="zero")
    chart: AnyChart = stacked(data, labels, x, PARTS, tips) + _ticks(data, names("label", labels))
    for size in data["capacity_gib"].drop_nulls().unique().to_list():
        rule = alt.Chart(alt.Data(values=[{"gib": size}]))
        chart += rule.mark_rule(strokeDash=[5, 4]).encode(x="gib:Q")
    largest = data.sort("gib", descending=True).row(0, named=True)
    words = (
        f"{count(len(labels), 'bar')}; the largest part of all is {largest['part']} of "
        f"{largest['label']}, {quantity(largest['gib'], 'GiB')}."
    )
    return drawn(chart, words, 30 * len(labels) + 10, cut)


def _ticks(data: pl.DataFrame, y: alt.Y) -> AnyChart:
    """Return the measured peak of each bar as a line that shows on every colour."""
    peaks = data.drop_nulls("peak_memory_gib").unique("run_id", keep="first", maintain_order=True)
    base = alt.Chart(rows(peaks)).encode(y=y, x="peak_memory_gib:Q", tooltip=_RUN)
    wide = base.mark_tick(thickness=6, size=22, style="halo")
    return wide + base.mark_tick(thickness=2.5, size=22, style="ink")


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
        has = f" of {number(room)}" if room is not None else ""
        told = f", {number(predicted)}{has} GiB predicted" if predicted is not None else ""
        said = Markup("{} ({}{})").format(run_link(row["run_id"]), named, told)
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


def _place(same: Sequence[Row]) -> dict[str, Any]:
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
    several = (one for one in maps(data) if one[1].height > 1)
    return Figures.of(
        (_title(cell), feasibility_map(places, frontier(places)))
        for cell, places in islice(several, MOST_MAPS)
    )


def feasibility_map(cells: pl.DataFrame, edges: pl.DataFrame) -> Figure:
    """Return one map: one row per split and recomputation, one column per micro batch.

    ``cells`` are those of ``maps``, in the order of the rows; ``edges`` has row and micro of the
    first cell of a row at which memory runs out.
    """
    order = cells["row"].unique(maintain_order=True).to_list()
    micros = sorted(cells["micro"].unique().to_list(), key=int)
    axis = alt.Axis(orient="top", labelAngle=0)
    base = alt.Chart(rows(cells)).encode(
        x=alt.X("micro:O", sort=micros, title="micro batch", axis=axis), y=names("row", order)
    )
    # blue, orange, violet, grey of the theme's own hues
    hues = [PALETTE["light"][place] for place in (0, 1, 3, 6)]
    verdict = alt.Scale(domain=list(VERDICTS), range=hues)
    square = alt.Legend(symbolType="square", symbolFillColor=GREY, symbolStrokeColor=GREY)
    solid = alt.Scale(type="ordinal", domain=list(KINDS), range=list(SOLID))
    tiles = base.mark_rect(cornerRadius=3, strokeWidth=2).encode(
        color=alt.Color("verdict:N", title=None, scale=verdict),
        stroke=alt.Stroke("verdict:N", title=None, scale=verdict),
        fillOpacity=alt.FillOpacity("kind:O", title=None, scale=solid, legend=square),
        tooltip=tooltips(
            *(("row", "split"), ("micro", "micro batch"), ("verdict", ""), ("evidence", "")),
            *(_MEASURED, ("predicted_gib", "predicted, GiB", ".2f")),
            *(("reason", "why"), ("run_ids", "run")),
        ),
    )
    shown = base.encode(text="shown:N")
    measured = shown.transform_filter(f"datum.kind == '{KINDS[0]}'")
    others = shown.transform_filter(f"datum.kind != '{KINDS[0]}'")
    edge = alt.Chart(rows(edges)).mark_rule(strokeWidth=5, strokeCap="butt").encode(
        x=alt.X("micro:O", sort=micros, bandPosition=0),
        y=alt.Y("row:N", sort=order, bandPosition=0),
        y2=alt.Y2("row:N", bandPosition=1),
    )  # fmt: skip
    chart = alt.layer(
        tiles, measured.mark_text(style="on-bar", fontSize=12), others.mark_text(), edge
    )
    words = (
        f"{count(cells.height, 'cell')}, {cells.filter(kind=KINDS[0]).height} of them shown by "
        f"runs; memory runs out in {count(edges.height, 'row')}."
    )
    return drawn(chart, words, 34 * len(order) + 10)


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
    return ", ".join(parts) + (f"; {number(room)} GiB per device" if room else "")


def map_findings(data: ReportData) -> Markup:
    """Return where memory runs out, one sentence per map, and in how many it does not."""
    every = list(maps(data))
    short = [
        (cell, out)
        for cell, places in every
        if (out := places.filter(pl.col("verdict").is_in(["out of memory", "both"]))).height
    ]
    words = "In {} of {} no cell runs out of memory; the table says what each rests on."
    whole = Markup(words).format(len(every) - len(short), count(len(every), "map"))
    none = "No run shows whether its configuration fits, so there is no map."
    return bullets([*starmap(_out, short), *([whole] if every else [])], empty=none)


def _out(cell: Row, out: pl.DataFrame) -> Markup:
    cells = out.head(MOST_NAMED).iter_rows(named=True)
    named = (f"{row['row']} at micro batch {row['micro']}" for row in cells)
    more = f" and {out.height - MOST_NAMED} more" if out.height > MOST_NAMED else ""
    words = "<strong>{}</strong>: memory runs out at {}{}."
    return Markup(words).format(_title(cell), join(named, "; "), more)


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
