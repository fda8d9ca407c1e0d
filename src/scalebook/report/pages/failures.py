"""The table of runs that gave no result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from scalebook.report.base import html_tables as tables
from scalebook.report.base.markup import Fragment, Markup
from scalebook.report.base.quantities import NONE

Row = Mapping[str, Any]


def failures(runs: pl.DataFrame, log_tails: Mapping[str, Sequence[str]]) -> Fragment:
    """Return the runs that gave no result, each with its reason and the end of its log."""

    def tail(row: Row) -> Markup:
        lines = log_tails.get(row["run_id"], ())
        if not lines:
            return Markup(NONE)
        shown = Markup("<details><summary>{} lines</summary><pre>{}</pre></details>")
        return shown.format(len(lines), "\n".join(lines))

    columns = (
        *(tables.RUN, tables.STATUS, tables.RAN),
        tables.Column("reason", "Reason", _reason, numeric=False, prose=True),
        tables.Column("", "End of the log", tail, numeric=False, wide=True),
    )
    return tables.table(runs.iter_rows(named=True), columns, "failed")


def _reason(row: Row) -> str:
    """Return why a run has no result: its own reason, else why it has no throughput."""
    return row.get("reason") or row.get("throughput_reason") or NONE
