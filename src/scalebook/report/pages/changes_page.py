"""What changed since an older folder of runs: new against old, as ``scalebook gate`` decides."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import Any

from scalebook.errors import ReportError
from scalebook.measure.verdicts import Verdict
from scalebook.measure.verdicts.gate import GateCheck
from scalebook.report.base import html_tables as tables
from scalebook.report.base.against import KINDS, Against, kind_of, sentence, version_differences
from scalebook.report.base.frames import ReportData
from scalebook.report.base.html_tables import Column, Row
from scalebook.report.base.markup import Markup, bullets, callout, paragraphs, run_links, short_id
from scalebook.report.base.naming import fact_words, titled
from scalebook.report.base.quantities import GLUE, NONE, change, count
from scalebook.report.charts import rate_charts
from scalebook.report.charts.figure import Figures

_COMMIT = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28}\b")


def of(data: ReportData) -> Against:
    """Return what the data was compared with.

    Raises:
        ReportError: the report was built without an older folder.
    """
    if data.against is None:
        raise ReportError("There is nothing to compare with. Use 'scalebook report --against OLD'.")
    return data.against


def summary(found: Against) -> Markup:
    """Return the sentence on top, and how sure it is."""
    if found.apart:
        head = paragraphs(sentence(found), style="sb-headline") + paragraphs(found.apart)
        return head + callout("Not read", found.unread)
    judged = sum(one.verdict is not None for one in found.checks)
    note = Markup(
        "The new runs are compared with those of <code>{}</code>. The {} hold together at "
        "95\N{NO-BREAK SPACE}% (Bonferroni). <code>scalebook gate</code> with its defaults decides "
        "the same."
    ).format(found.name, count(judged, "interval"))
    head = paragraphs(sentence(found), style="sb-headline") + paragraphs(note)
    return head + callout("Not read", found.unread)


def change_words(verdict: Verdict) -> str:
    """Return new against old in percent: ``1.4 % faster (−1.4 to +4.2 %)``."""
    size = round(100 * (verdict.ratio - 1), 1)
    word = f"{abs(size):.1f} % {'faster' if size > 0 else 'slower'}" if size else "as fast"
    low, high = (change(end - 1).partition(GLUE)[0].replace("-", "\N{MINUS SIGN}")
                 for end in (verdict.low, verdict.high))  # fmt: skip
    return f"new is {word} ({low} to {high} %)"


def changes(found: Against, data: ReportData) -> Markup:
    """Return one row per configuration, those that differ for sure first."""
    order = list(KINDS)
    runs = {row["run_id"]: row for row in data.runs.to_dicts()}
    rows = sorted(found.checks, key=lambda one: (order.index(kind_of(one)), one.name))
    columns = (
        tables.text("kind", "Outcome"),
        replace(tables.RAN, show=_what),
        Column(
            "ratio",
            "New against old",
            numeric=False,
            hint="tokens/s of all GPUs",
            show=lambda row: change_words(row["verdict"]) if row["verdict"] else NONE,
        ),
        Column("new", "New runs", lambda row: row["links"], numeric=False),
        Column("old", "Old runs", lambda row: row["olds"], numeric=False),
        tables.text("detail", "Why", show=titled, wide=True),
    )
    return tables.table((_row(one, runs) for one in rows), columns, "changes")


def _what(row: Row) -> Markup | str:
    """Return what a configuration runs; of one that only older runs have, its name."""
    return tables.RAN.show(row) if "run_id" in row else row["label"]


def _row(one: GateCheck, runs: Mapping[str, Row]) -> dict[str, Any]:
    old = ", ".join(map(short_id, one.baseline_runs)) or NONE
    words = KINDS[kind_of(one)]
    known = one.verdict.ratio if one.verdict and isfinite(one.verdict.ratio) else None
    first = next(iter(one.current_runs), "")
    own: dict[str, Any] = dict(runs[first]) if first in runs else {}
    return {
        "label": _title(one), **own, "kind": words, "ratio": known, "verdict": one.verdict,
        "new": " ".join(one.current_runs) or None, "old": old, "detail": one.detail,
        "olds": count(len(one.baseline_runs), "run") if one.baseline_runs else NONE,
        "links": run_links(one.current_runs) if one.current_runs else NONE,
    }  # fmt: skip


def _title(one: GateCheck) -> str:
    """Return the gate's name of a configuration without its hash: ``Llama 3.1 8B on 2 x h200``."""
    return titled(one.name.partition(" [")[0])


def versions(found: Against) -> Markup:
    """Return the versions that differ between new and old runs of one configuration."""
    rows = [
        {"name": fact_words(item.name), "old": item.b, "new": item.a, "many": many}
        for item, many in version_differences(found.checks)
    ]
    shown = partial(_COMMIT.sub, r"\1")
    columns = (
        *(tables.text("name", "Version"), tables.text("old", "Old", show=shown, wide=True)),
        tables.text("new", "New", show=shown, wide=True),
        tables.plain("many", "Configurations"),
    )
    return tables.table(rows, columns, "versions", empty="No recorded version differs.")


def history(found: Against) -> Figures | Markup:
    """Return one chart per configuration of the rate over commits, or why there is none."""
    drawn = rate_charts.over_commits(found.history)
    return drawn or paragraphs("No configuration has rates with an interval at two commits.")


def others(found: Against) -> Markup:
    """Return what else differs where a configuration is faster, slower or failed."""
    return bullets(_others(found))


def _others(found: Against) -> Iterator[Markup]:
    for one in found.checks:
        if one.failed and one.differences:
            words = "; ".join(f"{fact_words(d.name)}: new {d.a or 'none'}, old {d.b or 'none'}"
                              for d in one.differences)  # fmt: skip
            yield Markup("<strong>{}</strong>: {}.").format(_title(one), _COMMIT.sub(r"\1", words))
    if not any(one.failed and one.differences for one in found.checks):
        yield Markup("Nothing else differs where a configuration is faster, slower or failed.")
