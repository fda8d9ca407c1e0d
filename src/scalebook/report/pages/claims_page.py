"""The claims audit as a page: the shipped samples, and the claims files beside the runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scalebook.audit import (
    ORDER,
    SUFFIXES,
    Audit,
    Check,
    audit,
    count_claims,
    load,
    parse_claims,
    sample_text,
    samples,
)
from scalebook.errors import ScalebookError
from scalebook.report.base.html_tables import Column, Row, plain, table, text
from scalebook.report.base.markup import Fragment, Markup, bullets, callout, paragraphs, to_copy
from scalebook.report.base.quantities import NONE, count, number

FOLDER = "claims"  # under the folder of runs
WRONG = ("impossible", "contradicts")
MOST_FILES, MOST_ROWS = 50, 500
VERBS = {
    "impossible": ("is impossible", "are impossible"),
    "contradicts": ("contradicts another number", "contradict another number"),
    "holds": ("holds", "hold"),
    "possible": ("is possible", "are possible"),
    "not checkable": ("cannot be checked", "cannot be checked"),
}
SAMPLE = """\
title = "Slides of a vendor"
source = "slide 12"

[[tables]]
name = "Throughput"
line = 1                             # where the first row stands in the source
given = { gpus = "8", sequence_length = "8192", precision = "bf16" }
columns = ["label", "model", "accelerator", "tokens_per_second", "mfu"]
rows = [["8B on one node", "llama3.1-8b", "h100", "72,000", "23.4%"]]
"""


def audits(runs: Path) -> tuple[tuple[Audit, ...], tuple[str, ...]]:
    """Return the audit of each file under ``claims``, else of the samples; and what failed."""
    kinds = (".toml", *SUFFIXES)
    found_files = (path for path in (runs / FOLDER).glob("*") if path.suffix.lower() in kinds)
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


def overview(runs: Path, found: Sequence[Audit], problems: Sequence[str]) -> Fragment:
    """Return how many claims hold, contradict and cannot be, a sentence a source."""
    own = any(path.is_file() for path in (runs / FOLDER).glob("*"))
    words = (
        "These are the files of the folder claims beside the runs."
        if own
        else "These are the sample claims that come with Scalebook, not figures of these runs. "
        "To audit your own, put the document (.md, .html, .csv, .tsv) or a file of its printed "
        "numbers into the folder claims next to the runs; 'scalebook audit --sample' prints one."
    )
    items = [Markup("{}").format(words), *map(_sentence, found)]
    failed = callout("Not readable", problems).html
    sample = to_copy(f"A file to copy: {FOLDER}/slides.toml", SAMPLE)
    return Fragment(bullets(items).html + failed + sample)


def _sentence(one: Audit) -> Markup:
    counts = one.counts()
    parts = ", ".join(count(counts[name], *VERBS[name]) for name in ORDER if counts[name])
    total = count(sum(counts.values()), "claim")
    return Markup("<strong>{}</strong>: {}: {}.").format(one.claims.title, total, parts)


def verdicts(found: Sequence[Audit]) -> Fragment:
    """Return the claims of each source by verdict."""
    if not found:
        return paragraphs("No file of claims could be read.")
    rows: list[dict[str, Any]] = [{"title": one.claims.title, **one.counts()} for one in found]
    if len(rows) > 1:
        every = count_claims(tuple(check for one in found for check in one.checks))
        rows.append({"title": "all sources", **every})
    columns = (
        Column("title", "Source", lambda row: row["title"], numeric=False, wide=True),
        *(plain(name, name.capitalize()) for name in ORDER),
    )
    return table(rows, columns, "claims")


def contradictions(found: Sequence[Audit]) -> Fragment:
    """Return every claim that contradicts or cannot be, with the computed value."""
    rows = list(_wrong(found))
    if not rows:
        return paragraphs("No claim contradicts another number, the catalog or a limit.")
    columns = (
        Column("label", "Claim", _claim, numeric=False, wide=True),
        *(text("field", "Quantity"), text("stated", "Stated")),
        Column("expected", "Computed", _expected, hint="in the unit of the claim"),
        text("verdict", "Verdict"),
        Column("why", "How", lambda row: row["why"], numeric=False, prose=True),
    )
    cut = f"The first {MOST_ROWS} of {len(rows)} are shown." if len(rows) > MOST_ROWS else ""
    shown = table(rows[:MOST_ROWS], columns, "contradictions")
    return Fragment(shown.html + paragraphs(cut).html) if cut else shown


def _claim(row: Row) -> str:
    """Return what a claim is about and where it stands."""
    line = f", line {row['line']}" if row.get("line") else ""
    return f"{row['label']} ({row['title']}{line})"


def _wrong(found: Sequence[Audit]) -> Iterator[Row]:
    for one in found:
        for check in one.checks:
            if check.verdict in WRONG:
                yield _row(one, check)


def _row(one: Audit, check: Check) -> Row:
    parts = (check.rule, check.arithmetic, check.note, check.remark)
    return {
        "title": one.claims.title, "line": check.line, "label": check.label,
        "field": check.field.replace("_", " "), "stated": check.stated,
        "expected": check.expected, "verdict": check.verdict,
        "why": "; ".join(part for part in parts if part),
    }  # fmt: skip


def _expected(row: Row) -> str:
    """Return the computed value, in percent where the claim is."""
    value = row["expected"]
    if value is None:
        return NONE
    return f"{number(100 * value, 4)} %" if "%" in row["stated"] else number(value, 4)
