"""What the logs of ingested runs say, beside what is counted here from their configuration."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import polars as pl

from scalebook.facts.flops import DEFAULT_CONVENTION
from scalebook.logs.ingest.job_summary import AGREES
from scalebook.report.base import html_tables as tables
from scalebook.report.base.frames import ReportData
from scalebook.report.base.html_tables import Column, Row
from scalebook.report.base.markup import Fragment, Markup, bullets, run_link
from scalebook.report.base.quantities import NONE, count, number, percent

_LARGEST = 1e15
TITLE = "What the logs say beside our count"


def overview(data: ReportData) -> Fragment:
    """Return the heading and the findings; nothing where no run is ingested."""
    found = rows(data)
    if not found:
        return Fragment(Markup(""))
    heading = Markup('<h2 id="ingested">{}</h2>').format(TITLE)
    return Fragment(heading + bullets(_findings(found)).html)


def table(data: ReportData) -> Fragment:
    """Return a row an ingested run; nothing where there is none."""
    found = rows(data)
    if not found:
        return Fragment(Markup(""))
    unit = "TFLOP/s per GPU"
    columns = (
        *(tables.RUN, tables.STATUS, tables.RAN, tables.text("family", "Log of")),
        tables.plain("logged", "Printed", unit, digits=4, hint="median without the first record"),
        tables.plain(
            "recounted",
            "Our count",
            unit,
            digits=4,
            hint=f"{DEFAULT_CONVENTION} at the median step, without the first record",
        ),
        Column("factor", "Printed over ours", _factor),
        tables.text("fits", "Fits", hint="the convention that gives what is printed"),
        tables.MFU,
        Column("said", "Warnings", _said, numeric=False, wide=True),
    )
    return tables.table(found, columns, "ingested")


def rows(data: ReportData) -> list[dict[str, Any]]:
    """Return a row an ingested run, in the order of the run table."""
    runs = data.runs.filter(pl.col("source") == "ingested")
    return [row | _told(data.ingests.get(row["run_id"])) for row in runs.iter_rows(named=True)]


def _told(ingest: object) -> dict[str, Any]:
    """Return the fields of the table; whatever is not of its type in the record is missing."""
    found = _mapping(ingest)
    tflops = _mapping(found.get("tflops"))
    warnings = found.get("warnings")
    said = [str(item) for item in cast(list[Any], warnings)] if isinstance(warnings, list) else []
    reason = tflops.get("reason")
    said = [*([] if reason is None else [f"No count of ours: {reason}"]), *said]
    return {
        "family": _word(found.get("family")),
        "logged": _amount(tflops.get("logged")),
        "recounted": _amount(_mapping(tflops.get("recounted")).get(DEFAULT_CONVENTION)),
        "factor": _amount(tflops.get("logged_over_recounted")),
        "fits": _word(tflops.get("convention_that_fits")),
        "sentences": said,
        "said": " ".join(said) or None,
    }


def _mapping(value: object) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else {}


def _word(value: object) -> str | None:
    return None if value is None else str(value)


def _amount(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < _LARGEST else None


def _factor(row: Row) -> str:
    return NONE if row["factor"] is None else f"{row['factor']:.3f}×"


def _said(row: Row) -> Markup | str:
    return Markup("<br>").join(row["sentences"]) or NONE


def _findings(found: Sequence[Row]) -> Iterator[Markup]:
    """Yield how many logs agree with our count, and each that does not."""
    compared = [row for row in found if row["factor"] is not None]
    apart = [row for row in compared if abs(row["factor"] - 1) > AGREES]
    yield Markup("{} from logs of other trainers, marked <em>ingested</em>.").format(
        count(len(found), "run comes", "runs come")
    )
    if not compared:
        yield Markup("No log among them tells enough to count its TFLOP/s again.")
        return
    yield Markup(
        "{} TFLOP/s that can be compared with our count by <code>{}</code>: {} within {}, {} not."
    ).format(
        count(len(compared), "of them prints", "of them print"),
        DEFAULT_CONVENTION,
        count(len(compared) - len(apart), "agrees", "agree"),
        percent(AGREES, 2),
        len(apart),
    )
    for row in sorted(apart, key=lambda row: -abs(math.log(row["factor"]))):
        yield _disagreement(row)


def _disagreement(row: Row) -> Markup:
    fits = Markup("that is the count by <code>{}</code>").format(row["fits"])
    return Markup("{} prints {} TFLOP/s per GPU, {} our {}: {}.").format(
        run_link(row["run_id"]),
        number(row["logged"], 4),
        _factor(row),
        number(row["recounted"], 4),
        fits if row["fits"] else "no convention known here gives it",
    )
