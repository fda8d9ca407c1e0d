"""The pages Published results and Claims audit: numbers of others next to our own, and checked."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl

from scalebook.audit import (
    ORDER,
    SUFFIXES,
    Audit,
    Check,
    against_published,
    audit,
    count_claims,
    load,
    parse_claims,
    sample_text,
    samples,
)
from scalebook.errors import ScalebookError
from scalebook.facts import catalog
from scalebook.facts.catalog.results import PublishedResult, number_width
from scalebook.facts.catalog.types import TINY
from scalebook.facts.flops import DEFAULT_CONVENTION, published_tflops
from scalebook.report.base.frames import ReportData
from scalebook.report.base.html_tables import MODEL, PRECISION, Column, Row, plain, table, text
from scalebook.report.base.markup import (
    Markup,
    bullets,
    paragraphs,
    run_link,
    run_links,
    to_copy,
    unreadable,
)
from scalebook.report.base.naming import convention_title, is_whole, model_title, titled
from scalebook.report.base.quantities import NONE, count, listed, number, percent, quantity, times
from scalebook.report.base.stated import CLAIMS
from scalebook.report.charts.figure import Figure
from scalebook.report.charts.rate_charts import published_field

_PEAKS = {"BF16": "bf16", "BF16/FP16": "bf16", "FP16": "fp16", "FP16/BF16": "fp16"}
_DRAWN = (
    "run_id", "source", "model", "accelerator", "world_size", "sequence_length", "precision",
    "family", "tflops", "where",
)  # fmt: skip


def utilisation(row: PublishedResult, tflops: float | None) -> tuple[float | None, str | None]:
    """Return MFU over the dense peak of the precision, or why it is undefined."""
    if tflops is None or row.accelerator is None:
        return None, "no rate or no accelerator of the catalog"
    name = _PEAKS.get(row.precision or "")
    if name is None:
        return None, f"{row.precision or 'an unknown precision'} has no single dense peak"
    try:
        peak = catalog.accelerator(row.accelerator).peak_tflops.get(name)
    except ScalebookError as error:
        return None, str(error)
    return (tflops / peak, None) if peak else (None, f"no dense {name} peak is known")


def results() -> tuple[dict[str, Any], ...]:
    """Return one row per published result: what it states, our count, and the reasons for nulls."""
    return tuple(map(_result, catalog.published()))


def _result(row: PublishedResult) -> dict[str, Any]:
    tflops, how = published_tflops(row)
    mfu, why = utilisation(row, tflops)
    claimed = row.claimed_tflops_per_second_per_gpu
    return {
        "id": row.id, "run_id": f"published {row.id}", "source": "published",
        "model": row.model or row.model_label or "unknown", "hardware": row.hardware,
        "accelerator": row.accelerator or row.hardware or "unknown",
        "world_size": row.world_size, "sequence_length": row.sequence_length,
        "precision": row.precision, "family": number_width(row.precision),
        "rate": row.tokens_per_second_per_gpu, "claimed": claimed,
        "convention": row.flops_convention, "tflops": tflops, "how": how,
        "factor": claimed / tflops if claimed and tflops else None,
        "mfu": mfu, "mfu_reason": why, "where": row.source, "url": row.url, "date": row.date,
        "framework": row.framework,
    }  # fmt: skip


def own(data: ReportData) -> tuple[dict[str, Any], ...]:
    """Return our runs with a counted rate, as rows of the same shape."""
    toy = pl.col("model").str.starts_with(TINY)  # made for a CPU
    runs = data.completed.filter(pl.col("model_tflops_per_second_per_gpu").is_not_null(), ~toy)
    return tuple(
        {
            "run_id": row["run_id"], "source": row["source"], "model": row["model"],
            "accelerator": _device(row), "world_size": row["world_size"],
            "sequence_length": row["sequence_length"], "precision": row["precision"],
            "family": number_width(row["precision"]), "rate": row["tokens_per_second_per_gpu"],
            "tflops": row["model_tflops_per_second_per_gpu"], "mfu": row["mfu"],
            "where": "this report",
        }
        for row in runs.filter(pl.col("platform").ne_missing("cpu")).iter_rows(named=True)
    )  # fmt: skip


def _device(row: Row) -> str:
    known = catalog.accelerator_for_device(row["accelerator"] or "")
    return known.name if known else str(row["accelerator"] or row["platform"])


def overview(ours: tuple[Row, ...], others: tuple[Row, ...]) -> Markup:
    """Return how many results are comparable, where our best runs stand, and why others are out."""
    known = [row for row in others if row["tflops"] is not None]
    words = "{} of {} can be put on one axis: TFLOP/s per GPU by {}."
    many = count(len(others), "published result")
    items = [Markup(words).format(f"{len(known):,}", many, convention_title(DEFAULT_CONVENTION))]
    items += list(_standing(whole(ours), known))
    if not ours:
        items.append(Markup("No run here is on a device of the catalog."))
    kept = {row["run_id"] for row in whole(ours)}
    if cut := [row["run_id"] for row in ours if row["run_id"] not in kept]:
        words = (
            "{} with fewer layers than the model {} only in the table: published "
            "results are of whole models ({})."
        )
        verb = "is" if len(cut) == 1 else "are"
        items.append(Markup(words).format(count(len(cut), "run"), verb, run_links(cut)))
    missing = Counter(row["how"] for row in others if row["tflops"] is None)
    items += [
        Markup("{} left out: {}.").format(count(n, "result is", "results are"), reason)
        for reason, n in missing.most_common(6)
    ]
    return bullets(items)


def whole(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Return the rows of whole models, without those of the first layers of one."""
    return tuple(filter(is_whole, rows))


def _standing(ours: tuple[Row, ...], known: list[Row]) -> Iterator[Markup]:
    """Yield our best run of each model, device and width, those with published results first."""
    best: dict[tuple[str, str, str], Row] = {}
    for row in sorted(ours, key=lambda row: row["tflops"]):
        best[row["model"], row["accelerator"], row["family"]] = row
    there: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for item in known:
        there[item["model"], item["accelerator"], item["family"]].append(item)
    alone: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (model, device, width), row in best.items():
        same = there.get((model, device, width), [])
        if not same:
            alone[device, width].append(model_title(model))
            continue
        words = (
            "<strong>{} on {}</strong>, {}: {} ({}), {} times the best published ({}). {} from {} "
            "to {}, median {}: {} above ours."
        )
        rates, top = [one["tflops"] for one in same], max(same, key=lambda one: one["tflops"])
        yield Markup(words).format(
            model_title(model), device, width, quantity(row["tflops"], "TFLOP/s per GPU"),
            run_link(row["run_id"]), f"{row['tflops'] / top['tflops']:.2f}", _source(top),
            count(len(same), "published result"),
            *map(number, (min(rates), max(rates), median(rates))),
            sum(value > row["tflops"] for value in rates) or "none",
        )  # fmt: skip
    for where, models in alone.items():
        words = "The catalog has no published result on {} in {} of {}."
        yield Markup(words).format(*where, listed(sorted(models)))


def best_by_precision(row: Row) -> dict[str, float]:
    """Return the best published rates of a run's model, length and architecture, by width."""
    device = catalog.accelerator_for_device(row["accelerator"] or "")
    if device is None:
        return {}
    alike = [one.name for one in catalog.accelerators() if one.architecture == device.architecture]
    found: dict[str, tuple[float, str]] = {}
    for one in results():
        same = one["model"] == row["model"] and one["sequence_length"] == row["sequence_length"]
        width = {"16 bit": "BF16", "8 bit": "FP8"}.get(number_width(one["precision"]))
        # without a count of its work (LoRA, or tokens of unknown length) a rate says nothing here
        if same and width and one["rate"] and one["tflops"] and one["accelerator"] in alike:
            best = (one["rate"], one["hardware"] or "")
            found[width] = max(found.get(width, (0.0, "")), best)
    named = {f"best published {width} ({place})": value for width, (value, place) in found.items()}
    return dict(sorted(named.items(), key=lambda item: item[1]))


def chart(ours: tuple[Row, ...], others: tuple[Row, ...]) -> Figure | None:
    """Return every result of a whole model on one axis, one row per accelerator."""
    rows = [
        {name: row[name] for name in _DRAWN} | {"ours": row["source"] != "published"}
        for row in (*others, *whole(ours))
        if row["tflops"] is not None
    ]
    data = pl.DataFrame(rows, infer_schema_length=None, strict=False)
    return published_field(data, DEFAULT_CONVENTION)


def listing(ours: tuple[Row, ...], others: tuple[Row, ...]) -> Markup:
    """Return the table of all comparable results, ours first and of these whole models."""

    def mfu(row: Row) -> Markup:
        why = Markup('<span title="{}">{}</span>')
        return why.format(row.get("mfu_reason") or "", percent(row["mfu"]))

    rows = [row for row in (*ours, *others) if row["tflops"] is not None]
    rows.sort(
        key=lambda row: (
            row["source"] == "published", not is_whole(row),
            str(row["model"]), str(row["accelerator"]), -row["tflops"],
        )
    )  # fmt: skip
    columns = (
        *(Column("run_id", "Result", _name, numeric=False), MODEL),
        *(text("accelerator", "Accelerator"), plain("world_size", "GPUs")),
        *(plain("sequence_length", "Sequence"), PRECISION),
        plain("rate", "Throughput", "tokens/s per GPU"),
        plain("claimed", "Claimed", "TFLOP/s per GPU"),
        text("convention", "By", show=convention_title),
        plain("tflops", "One convention", "TFLOP/s per GPU"),
        plain("factor", "Claimed over it"),
        Column("mfu", "MFU", mfu, hint="over the dense peak; hover for the reason if empty"),
        Column("where", "Source", _source, numeric=False, wide=True),
    )
    return table(rows, columns, "published", empty="No result has a rate under one convention.")


def _name(row: Row) -> Markup:
    if row["source"] == "published":
        return Markup('<span class="badge source">published</span> {}').format(row["id"])
    mark = "ours" if row["source"] == "measured" else f"ours, {row['source']}"
    return Markup("<strong>{}</strong> {}").format(mark, run_link(row["run_id"]))


def _source(row: Row) -> Markup:
    """Return the source, a link where its address is one of the web."""
    url = str(row.get("url") or "")
    if not url.startswith(("https://", "http://")):
        return Markup("{}").format(row["where"])
    return Markup('<a href="{}" rel="noopener">{}</a>').format(url, row["where"])


WRONG = ("impossible", "contradicts")
_CLAIMED = {"tflops": "Claimed", "best": "Published"}
MOST_FILES, MOST_ROWS = 50, 500


def audits(runs: Path) -> tuple[tuple[Audit, ...], tuple[str, ...]]:
    """Return the audit of each file under ``claims``, else of the samples; and what failed."""
    kinds = (".toml", *SUFFIXES)
    found_files = (path for path in (runs / CLAIMS).glob("*") if path.suffix.lower() in kinds)
    paths = sorted(found_files)[:MOST_FILES]
    found: list[Audit] = []
    problems: list[str] = []
    for path in paths:
        try:
            found.append(audit(load(path)))
        except ScalebookError as error:
            problems.append(f"{path.name}: {str(error).replace(f'{path.parent}/', '')}")
    if not paths:
        found = [audit(parse_claims(sample_text(name), f"{name}.toml")) for name in samples()]
    return tuple(found), tuple(problems)


def claims_overview(runs: Path, found: Sequence[Audit], problems: Sequence[str]) -> Markup:
    """Return where the claims come from, what could not be read, and a file to copy."""
    own = any(path.is_file() for path in (runs / CLAIMS).glob("*"))
    words = (
        "These are the files of the folder claims next to the runs."
        if own
        else "These are the sample claims that come with Scalebook, not figures of these runs. "
        "To audit your own, put the document (.md, .html, .csv, .tsv) or a file of its printed "
        "numbers into the folder claims next to the runs; 'scalebook audit --sample' prints one."
    )
    sample = to_copy(f"{CLAIMS}/slides.toml", sample_text("example"))
    return (paragraphs(words) if found else Markup("")) + unreadable(problems) + sample


def verdicts(found: Sequence[Audit]) -> Markup:
    """Return the claims of each source by verdict."""
    rows: list[dict[str, Any]] = [{"title": one.claims.title, **one.counts()} for one in found]
    if len(rows) > 1:
        every = count_claims(tuple(check for one in found for check in one.checks))
        rows.append({"title": "all sources", **every})
    columns = (
        text("title", "Source", wide=True),
        *(plain(name, name.capitalize()) for name in ORDER),
    )
    return table(rows, columns, "claims", empty="No file of claims could be read.")


def contradictions(found: Sequence[Audit]) -> Markup:
    """Return every claim that contradicts or cannot be, with the computed value."""
    rows = [_row(one, check) for one in found for check in one.checks if check.verdict in WRONG]
    columns = (
        text("claim", "Claim", wide=True),
        *(text("field", "Quantity"), text("stated", "Stated")),
        Column("expected", "Computed", _expected, hint="in the unit of the claim"),
        text("verdict", "Verdict"),
        text("why", "How", prose=True),
    )
    none = "No claim contradicts another number, the catalog or a limit."
    cut = [f"The first {MOST_ROWS} of {len(rows)} are shown."] if len(rows) > MOST_ROWS else []
    return table(rows[:MOST_ROWS], columns, "contradictions", empty=none) + paragraphs(*cut)


def next_to_published(found: Sequence[Audit]) -> Markup:
    """Return each claimed rate next to the best published one of its kind, the boldest first."""
    rows: list[dict[str, Any]] = [
        {
            "claim": f"{row.label} ({audited.claims.title}{_line(row.line)})",
            "tflops": one.tflops, "best": one.best_tflops,
            "ratio": one.tflops / one.best_tflops, "where": one.where, "url": one.best.url,
        }
        for audited in found
        for row, one in against_published(audited.claims)
    ]  # fmt: skip
    rows.sort(key=lambda row: -row["ratio"])
    columns = (
        text("claim", "Claim", wide=True),
        *(plain(name, words, "TFLOP/s per GPU") for name, words in _CLAIMED.items()),
        Column("ratio", "Ratio", lambda row: times(row["ratio"]), hint="claimed over published"),
        Column("where", "The best published", _source, numeric=False, wide=True),
    )
    none = "No claim states a rate of a model, device and precision that others published."
    return table(rows, columns, "standings", empty=none)


def _line(line: int | None) -> str:
    return f", line {line}" if line else ""


def _row(one: Audit, check: Check) -> Row:
    parts = (check.rule, check.arithmetic, check.note, check.remark)
    return {
        "claim": f"{check.label} ({one.claims.title}{_line(check.line)})",
        "field": check.field.replace("_", " "), "stated": check.stated,
        "expected": check.expected, "verdict": check.verdict,
        "why": titled("; ".join(part for part in parts if part)),
    }  # fmt: skip


def _expected(row: Row) -> str:
    """Return the computed value, in percent where the claim is."""
    value = row["expected"]
    if value is None:
        return NONE
    return f"{number(100 * value, 4)} %" if "%" in row["stated"] else number(value, 4)
