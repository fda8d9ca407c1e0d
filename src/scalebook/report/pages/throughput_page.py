"""The throughput page: why MFU is what it is, and what logs of ingested runs say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, cast

import polars as pl

from scalebook import predict
from scalebook.facts.flops import DEFAULT_CONVENTION
from scalebook.identity import alike
from scalebook.logs.ingest.job_summary import AGREES
from scalebook.measure.diagnosis import Diagnosis, Finding
from scalebook.record import number_of, object_of, text_of
from scalebook.report.base import html_tables as tables
from scalebook.report.base.columns import words_of
from scalebook.report.base.frames import ReportData
from scalebook.report.base.html_tables import Column, Row
from scalebook.report.base.markup import Markup, bullets, by_cause, paragraphs, run_link, run_links
from scalebook.report.base.naming import convention_title, sentence, typed
from scalebook.report.base.quantities import NONE, count, number, percent

SMALLEST = 1e-4  # shares below are not told apart
MOST_FINDINGS = 4  # of a run; 'scalebook diagnose' prints them all
MOST_FITTED = 1000  # runs of a report whose parts are filled in: each is counted anew for it


def diagnoses(data: ReportData) -> tuple[Diagnosis, ...]:
    """Return the diagnosis of each run that has a throughput, in the order of the tables.

    What a run did not measure of its own step stands at the rates that all runs were fitted to.
    """
    wanted: list[str] = data.completed["run_id"].to_list()
    found = tuple(data.diagnoses[run_id] for run_id in wanted if run_id in data.diagnoses)
    if data.runs.height > MOST_FITTED:
        return found
    rates, probes, _ = predict.evidence(data.folder)
    by_run = {rate.run_id: rate for rate in rates}
    platforms = {rate.config.platform for one in found if (rate := by_run.get(one.run_id))}
    made = {name: predict.predictor(name, rates, probes) for name in platforms}
    return tuple(
        predict.filled(one, rate, made[rate.config.platform])
        if (rate := by_run.get(one.run_id))
        else one
        for one in found
    )


def causes_overview(found: Sequence[Diagnosis]) -> Markup:
    """Return the largest causes, each with its runs, and what more to measure."""
    sized = [one for one in found if one.findings and one.findings[0].step_fraction]
    sized.sort(key=lambda one: -(one.findings[0].step_fraction or 0.0))
    items = [*map(_largest, alike(sized, lambda one: one.findings[0].rule))]
    more = by_cause((text, one.run_id) for one in found for text in one.missing)
    items += [Markup("{} ({})").format(typed(words), run_links(ids)) for words, ids in more]
    return bullets(items, empty="No rule found a cause in what these runs measured.")


def costly(one: Diagnosis) -> list[Finding]:
    """Return the first causes of a run that take a part of its step, or one that nobody knows."""
    return [found for found in one.findings if found.step_fraction != 0][:MOST_FINDINGS]


def _largest(runs: Sequence[Diagnosis]) -> Markup:
    """Return a cause with the runs in which it is the largest, and what it does in the first."""
    first, says = run_link(runs[0].run_id), sentence(runs[0].findings[0].says)
    name = runs[0].findings[0].rule.replace("_", " ").capitalize()
    if len(runs) == 1:
        return Markup("<strong>{}</strong>, the largest cause in {}: {}").format(name, first, says)
    words = "<strong>{}</strong>, the largest cause in {}, most in {}: {} Also in {}."
    others = run_links([one.run_id for one in runs[1:]])
    return Markup(words).format(name, count(len(runs), "run"), first, says, others)


def causes(data: ReportData, found: Sequence[Diagnosis]) -> Markup:
    """Return the table of causes by run, largest first, each with its size and what to try."""
    rows = (
        {**asdict(cause), "run_id": one.run_id, "cause": cause.rule.replace("_", " ")}
        | {"advice": " ".join(cause.advice)}
        for one in found
        for cause in costly(one)
    )
    overlap = "estimated share of the step's time; causes may overlap"
    columns = (
        *(tables.RUN, tables.RAN, tables.text("cause", "Cause")),
        tables.share("step_fraction", "Of the step", overlap),
        tables.text("basis", "Basis", hint="measured in this run, or computed for it"),
        tables.text("says", "What", show=sentence, wide=True),
        tables.text("advice", "What to try", show=typed, wide=True),
    )
    return tables.table(data.with_work(rows), columns, "causes")


def waterfalls(data: ReportData, found: Sequence[Diagnosis]) -> Markup:
    """Return where each run's step goes, as shares that add up to the whole."""
    rows = [_shares(one) for one in found if one.waterfall is not None]
    words = words_of("waterfall").items()
    columns = (tables.RUN, tables.RAN, *(_share_column(name, **one) for name, one in words))
    shown = tables.table(data.with_work(rows), columns, "waterfall")
    silent = [row["run_id"] for row in rows if row["unexplained"] is None]
    if not silent:
        return shown
    words = "{} recorded neither options nor a profile, so the rest of the step is not split: {}."
    said = Markup(words).format(count(len(silent), "run"), run_links(silent))
    return shown + paragraphs(said, style="note")


def _share_column(name: str, label: str, how: str = "") -> tables.Column:
    def show(row: Row) -> str:
        share = row.get(name)
        if share is None:
            return NONE
        return f"< {percent(SMALLEST)}" if 0 < share < SMALLEST else percent(share)

    return tables.Column(name, label, show, hint=f"share of the step's time{how}")


def _shares(one: Diagnosis) -> Row:
    """Return the shares of a run; small kinds of waiting are counted with communication."""
    parts = one.waterfall.parts if one.waterfall else ()
    shares = {part.name: part.step_fraction for part in parts}

    def total(*names: str) -> float | None:
        known = [share for name in names if (share := shares.get(name)) is not None]
        return sum(known) if known else None

    exposed = total("exposed_communication", "waits_between_stages")
    idle = total("data", "idle_device")
    return shares | {"exposed_communication": exposed, "data_and_idle": idle, "run_id": one.run_id}


_LARGEST = 1e15
TITLE = "What the logs print next to our count"


def ingested_overview(data: ReportData) -> Markup:
    """Return the heading and the findings; nothing where no run is ingested."""
    found = ingested_rows(data)
    if not found:
        return Markup("")
    return Markup('<h2 id="ingested">{}</h2>').format(TITLE) + bullets(_findings(found))


def ingested_table(data: ReportData) -> Markup:
    """Return one row per ingested run; nothing where there is none."""
    unit, median = "TFLOP/s per GPU", "at the median step, without the first record"
    fits = "the convention that gives what is printed"

    def said(row: Row) -> Markup | str:
        return Markup("<br>").join(row["sentences"]) or NONE

    columns = (
        *(tables.RUN, tables.STATUS, tables.RAN, tables.text("family", "Log of")),
        tables.plain("logged", "Printed", unit, digits=4, hint="median without the first record"),
        tables.plain("recounted", "Our count", unit, digits=4, hint=median),
        Column("factor", "Printed over ours", _factor),
        tables.text("fits", "Fits", fits, show=convention_title),
        tables.MFU,
        Column("said", "Warnings", said, numeric=False, wide=True),
    )
    return tables.table(ingested_rows(data), columns, "ingested")


def ingested_rows(data: ReportData) -> list[dict[str, Any]]:
    """Return one row per ingested run, in the order of the run table."""
    runs = data.runs.filter(pl.col("source") == "ingested")
    return [row | _told(data.ingests.get(row["run_id"])) for row in runs.iter_rows(named=True)]


def _told(ingest: object) -> dict[str, Any]:
    """Return the fields of the table; whatever is not of its type in the record is missing."""
    found = object_of(ingest)
    tflops = object_of(found.get("tflops"))
    warnings = found.get("warnings")
    said = [str(item) for item in cast(list[Any], warnings)] if isinstance(warnings, list) else []
    if (reason := tflops.get("reason")) is not None:
        said.insert(0, f"No count of ours: {reason}")
    return {
        "family": text_of(found.get("family")),
        "logged": _amount(tflops.get("logged")),
        "recounted": _amount(object_of(tflops.get("recounted")).get(DEFAULT_CONVENTION)),
        "factor": _amount(tflops.get("logged_over_recounted")),
        "fits": text_of(tflops.get("convention_that_fits")),
        "sentences": said,
        "said": " ".join(said) or None,
    }


def _amount(value: object) -> float | None:
    found = number_of(value)
    return found if found is not None and 0 < found < _LARGEST else None


def _factor(row: Row) -> str:
    return NONE if row["factor"] is None else f"{row['factor']:.3f}×"


def _findings(found: Sequence[Row]) -> Iterator[Markup]:
    """Yield how many logs agree with our count, and each that does not."""
    compared = [row for row in found if row["factor"] is not None]
    apart = [row for row in compared if abs(row["factor"] - 1) > AGREES]
    yield Markup("{} from logs of other trainers, marked <em>ingested</em>.").format(
        count(len(found), "run comes", "runs come")
    )
    if not compared:
        yield Markup("None of these logs has enough to recompute its TFLOP/s.")
        return
    yield Markup(
        "{} TFLOP/s that can be compared with our count by {}: {} within {}, {} not."
    ).format(
        count(len(compared), "of them prints", "of them print"),
        convention_title(DEFAULT_CONVENTION),
        count(len(compared) - len(apart), "agrees", "agree"),
        percent(AGREES, 2),
        len(apart),
    )
    for row in sorted(apart, key=lambda row: -abs(math.log(row["factor"]))):
        fits = f"that is the count by {convention_title(row['fits'])}"
        yield Markup("{} prints {} TFLOP/s per GPU, {} our {}: {}.").format(
            run_link(row["run_id"]),
            number(row["logged"], 4),
            _factor(row),
            number(row["recounted"], 4),
            fits if row["fits"] else "no known convention gives it",
        )
