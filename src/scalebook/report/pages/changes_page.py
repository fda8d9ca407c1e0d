"""What changed since an older folder of runs: new against old, as ``scalebook gate`` decides."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

from scalebook.errors import ReportError
from scalebook.measure.verdicts import Verdict
from scalebook.measure.verdicts.gate import MUST_SEE, GateCheck
from scalebook.report.base import html_tables as tables
from scalebook.report.base.against import KINDS, Against, kind_of, version_differences
from scalebook.report.base.frames import ReportData
from scalebook.report.base.html_tables import Column, Row
from scalebook.report.base.markup import (
    Fragment,
    Markup,
    bullets,
    callout,
    paragraphs,
    run_links,
    short_id,
)
from scalebook.report.base.quantities import GLUE, NONE, change, count
from scalebook.report.charts import rate_charts
from scalebook.report.charts.figure import Figures

_COUNTED = ("failure", "new", "gone")


def of(data: ReportData) -> Against:
    """Return what the data was compared with.

    Raises:
        ReportError: the report was built without an older folder.
    """
    if data.against is None:
        raise ReportError("There is nothing to compare with. Use 'scalebook report --against OLD'.")
    return data.against


def sentence(found: Against) -> str:
    """Return in at most 25 words how many configurations came out how, new against old."""
    amounts = {kind: len(found.of(kind)) for kind in KINDS}
    told = [f"{amounts[kind]} {KINDS[kind]}" for kind in ("faster", "slower", "cannot tell")]
    told += [f"{amounts['unchanged']} unchanged within {100 * MUST_SEE:.2g}\N{NO-BREAK SPACE}%"]
    told += [f"{amounts[kind]} {words}" for kind, words in KINDS.items()
             if kind in _COUNTED and amounts[kind]]  # fmt: skip
    return f"New runs against the old ones: {', '.join(told)}."


def summary(found: Against) -> Fragment:
    """Return the sentence on top, and how sure it is."""
    judged = sum(one.verdict is not None for one in found.checks)
    note = Markup(
        "The new runs are compared with those of <code>{}</code>. The {} hold together at 95 % "
        "(Bonferroni). <code>scalebook gate</code> with its defaults decides the same."
    ).format(found.name, count(judged, "interval"))
    return Fragment(
        paragraphs(sentence(found), style="sb-headline").html + paragraphs(note).html
        + callout("Not read", found.unread).html
    )  # fmt: skip


def change_words(verdict: Verdict) -> str:
    """Return new against old in percent: ``1.4 % faster (−1.4 to +4.2 %)``."""
    size = round(100 * (verdict.ratio - 1), 1)
    word = f"{abs(size):.1f} % {'faster' if size > 0 else 'slower'}" if size else "as fast"
    low, high = (change(end - 1).partition(GLUE)[0].replace("-", "\N{MINUS SIGN}")
                 for end in (verdict.low, verdict.high))  # fmt: skip
    return f"new is {word} ({low} to {high} %)"


def changes(found: Against) -> Fragment:
    """Return one row per configuration, those that differ for sure first."""
    order = list(KINDS)
    rows = sorted(found.checks, key=lambda one: (order.index(kind_of(one)), one.name))
    columns = (
        tables.text("kind", "Outcome"),
        Column("name", "Configuration", lambda row: row["name"], numeric=False, wide=True),
        Column("ratio", "New against old", _change, numeric=False, hint="tokens/s of all GPUs"),
        Column("new", "New runs", lambda row: row["links"], numeric=False),
        Column("old", "Old runs", lambda row: row["old"], numeric=False, wide=True),
        Column("detail", "Why", lambda row: row["detail"], numeric=False, wide=True, prose=True),
    )
    return tables.table(map(_row, rows), columns, "changes")


def _row(one: GateCheck) -> dict[str, Any]:
    old = ", ".join(map(short_id, one.baseline_runs)) or NONE
    words = KINDS[kind_of(one)]
    known = one.verdict.ratio if one.verdict and isfinite(one.verdict.ratio) else None
    return {
        "kind": words, "name": one.name, "ratio": known, "verdict": one.verdict,
        "new": " ".join(one.current_runs) or None, "old": old, "detail": one.detail,
        "links": run_links(one.current_runs) if one.current_runs else NONE,
    }  # fmt: skip


def _change(row: Row) -> str:
    return change_words(row["verdict"]) if row["verdict"] is not None else NONE


def versions(found: Against) -> Fragment:
    """Return the versions that differ between new and old runs of one configuration."""
    rows = [
        {"name": item.name, "old": item.b, "new": item.a, "many": many}
        for item, many in version_differences(found.checks)
    ]
    if not rows:
        return paragraphs("No recorded version differs.")
    columns = (
        tables.text("name", "Version"),
        *(Column(key, label, _whole(key), numeric=False, wide=True)
          for key, label in (("old", "Old"), ("new", "New"))),
        tables.plain("many", "Configurations"),
    )  # fmt: skip
    return tables.table(rows, columns, "versions")


def _whole(key: str) -> tables.Show:
    return lambda row: row[key] or NONE


def history(found: Against) -> Figures | Fragment:
    """Return one chart per configuration of the rate over commits, or why there is none."""
    drawn = rate_charts.over_commits(found.history)
    return drawn or paragraphs("No configuration has rates with an interval at two commits.")


def others(found: Against) -> Fragment:
    """Return what else differs where a configuration is faster, slower or failed."""
    return bullets(_others(found))


def _others(found: Against) -> Iterator[Markup]:
    for one in found.checks:
        if one.failed and one.differences:
            words = "; ".join(f"{d.name}: new {d.a or 'none'}, old {d.b or 'none'}"
                              for d in one.differences)  # fmt: skip
            yield Markup("<strong>{}</strong>: {}.").format(one.name, words)
    if not any(one.failed and one.differences for one in found.checks):
        yield Markup("Nothing else differs where a configuration is faster, slower or failed.")
