"""Data frames -> HTML tables that sort, scroll on a phone and give their data as CSV.

Written here rather than with a table library: each cell carries its exact value beside the
rounded one (for sorting and for the CSV), every text is escaped in one place, colours follow
the reader's theme, and a thousand rows take milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl

from scalebook.measure.intervals import Interval
from scalebook.report.base.markup import (
    Markup,
    anchor,
    escape,
    join,
    paragraphs,
    part,
    run_link,
    script_json,
)
from scalebook.report.base.naming import (
    Row,
    convention_title,
    model_title,
    platform_title,
    precision_title,
    setting_words,
    split_name,
    work_words,
)
from scalebook.report.base.quantities import NONE, duration, number, percent

LONG = 300  # a table of more rows comes as its first FIRST rows and data for the others
FIRST = 100
Show = Callable[[Row], Markup | str]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: ``show`` writes the cell; ``key`` is the field whose exact value goes with it."""

    key: str
    label: str
    show: Show
    unit: str = ""
    numeric: bool = True
    hint: str = ""  # what the heading means, shown when pointed at
    wide: bool = False  # its lines wrap
    prose: bool = False  # they are sentences, for which a wide column has room

    @property
    def kind(self) -> str:
        """The classes of its cells."""
        if self.numeric:
            return "num"
        return "txt wide prose" if self.prose else "txt wide" if self.wide else "txt"


def table(
    rows: Iterable[Row],
    columns: Sequence[Column],
    name: str,
    *,
    anchors: bool = False,
    empty: Markup | str = "",
) -> Markup:
    """Return a table, or the sentence ``empty`` where it would have no row.

    ``name`` names its CSV file; with ``anchors`` each row can be linked to.
    """
    given = list(rows)
    if not given:
        return paragraphs(*filter(None, [empty]))
    long = len(given) > LONG
    shown = given[:FIRST] if long else given
    body = Markup("\n").join(_row(row, columns, anchors) for row in shown)
    rest = _as_data(given[FIRST:], columns, anchors) if long else Markup("")
    return part("table", name, columns, body, rest)


def _as_data(rows: Sequence[Row], columns: Sequence[Column], anchors: bool) -> Markup:
    """Return rows as data that the page's script makes rows of, a page at a time.

    A row is [class, id, run, [exact value, html] ...]; a cell whose html is its value has no html.
    """
    data: list[list[Any]] = []
    for row in rows:
        run_id, cells = row.get("run_id"), [_pair(row, column) for column in columns]
        mark = anchor(run_id) if anchors and run_id is not None else ""
        data.append([_classes(row), mark, run_id or "", *cells])
    template = Markup('<script type="application/json" class="sb-rows">{}</script>')
    return template.format(script_json(data))


def _exact(value: Any) -> str:
    """Return what a cell is sorted by and exported as: of a range, its middle."""
    return "" if value is None else str(value.middle if isinstance(value, Interval) else value)


def _pair(row: Row, column: Column) -> list[str]:
    value, shown = row.get(column.key), escape(column.show(row))
    exact = _exact(value)
    return [exact] if shown == exact else [exact, str(shown)]


def _row(row: Row, columns: Sequence[Column], anchors: bool) -> Markup:
    run_id = row.get("run_id")
    mark = Markup(' id="{}"').format(anchor(run_id)) if anchors and run_id is not None else ""
    # what the page's filter knows a row by
    mark += Markup(' data-run="{}"').format(run_id) if run_id is not None else ""
    cells = Markup("").join(_cell(row, column) for column in columns)
    return Markup('<tr{} class="{}">{}</tr>').format(mark, _classes(row), cells)


def _classes(row: Row) -> str:
    return f"is-{row.get('status', '')} from-{row.get('source', '')}"


def _cell(row: Row, column: Column) -> Markup:
    value = row.get(column.key)
    # Markup.format takes three times as long
    exact, shown = escape(_exact(value)), escape(column.show(row))
    return Markup(f'<td class="{column.kind}" data-value="{exact}">{shown}</td>')


def plain(key: str, label: str, unit: str = "", digits: int = 3, hint: str = "") -> Column:
    """Return a column of numbers."""
    return Column(key, label, lambda row: number(row.get(key), digits), unit, hint=hint)


def share(key: str, label: str, hint: str = "", digits: int = 3) -> Column:
    """Return a column of fractions, in percent."""
    return Column(key, label, lambda row: percent(row.get(key), digits), hint=hint)


def time(key: str, label: str, hint: str = "") -> Column:
    """Return a column of seconds, in the unit that reads best."""
    return Column(key, label, lambda row: duration(row.get(key)), hint=hint)


def text(
    key: str,
    label: str,
    hint: str = "",
    *,
    show: Callable[[Any], Markup | str | None] = str,
    wide: bool = False,
    prose: bool = False,
) -> Column:
    """Return a column of words: ``show`` writes a value, if there is one."""

    def write(row: Row) -> Markup | str:
        value = row.get(key)
        shown = None if value is None else show(value)
        return NONE if shown is None else shown

    return Column(key, label, write, numeric=False, hint=hint, wide=wide, prose=prose)


UNDECIDED = ("cannot tell", "no interval")


def verdict_column(key: str, label: str, hint: str = "") -> Column:
    """Return a column of verdicts, those that decide nothing in grey."""
    grey = Markup('<span class="undecided">{}</span>')
    return text(
        key, label, hint, show=lambda word: grey.format(word) if word in UNDECIDED else word
    )


def noted(value: Markup | str, small: Markup | str) -> Markup:
    """Return a value with a note below it in small print."""
    return Markup('{} <span class="range">{}</span>').format(value, small)


def narrow(words: str) -> Markup:
    """Return words that take a second line before their column grows."""
    return Markup('<span class="narrow">{}</span>').format(words)


def ranged(key: str, show: Callable[[float | None], str], low: str = "", high: str = "") -> Show:
    """Return how to write a number with its interval below it in small print."""
    low, high = low or f"{key}_low", high or f"{key}_high"

    def write(row: Row) -> Markup | str:
        value, lower, upper = row.get(key), row.get(low), row.get(high)
        if value is None or lower is None or upper is None or not lower < upper:
            return show(value)
        first, last = escape(show(lower)), escape(show(upper))  # format takes ten times as long
        return Markup(f'{escape(show(value))} <span class="range">{first} to {last}</span>')

    return write


def badge(row: Row) -> Markup:
    """Return the status of a run, and its source where it is not a measurement of our own."""
    status = str(row.get("status"))
    kind, words = escape(status), escape(status_words(status))
    marks = [Markup(f'<span class="badge is-{kind}">{words}</span>')]
    if row.get("source") != "measured":
        marks.append(Markup('<span class="badge source">{}</span>').format(row.get("source")))
    return join(marks, " ")


def status_words(status: str) -> str:
    """Return a status as words: ``out of memory``."""
    return status.replace("_", " ")


def failure_words(status: str) -> str:
    """Return the status of a run that failed as words: one that trained to its end failed then."""
    return "failed after the last step" if status in ("completed", "void") else status_words(status)


def _work(row: Row) -> Markup:
    """Return what a run did in two lines: what must agree before two runs are compared first."""
    named = (model_title(row.get("model")), platform_title(row.get("platform")))
    return noted("{} on {}".format(*named), work_words(row))


RUN = text("run_id", "Run", show=run_link)
OWN_PAGE = text("run_id", "Run", show=partial(run_link, page="run.html"))
STATUS = Column("status", "Status", badge, numeric=False)
SPLIT = Column(
    "name",
    "Configuration",
    lambda row: row.get("name") or split_name(row),
    numeric=False,
    wide=True,
    hint="parallel sizes above 1, and settings that differ from the neighbouring runs",
)
RAN = Column(
    "label",
    "What ran",
    _work,
    numeric=False,
    wide=True,
    hint="model and platform, precision, sequence length and configuration",
)
MODEL, PLATFORM = (
    Column("model", "Model", lambda row: narrow(model_title(row.get("model"))), numeric=False),
    Column("platform", "Platform", lambda row: platform_title(row.get("platform")), numeric=False),
)
STRATEGY = text("strategy", "Strategy", show=setting_words)
PRECISION = text("precision", "Precision", "of the matrix products", show=precision_title)
WORLD = plain("world_size", "GPUs", hint="on a CPU: processes")
SEQUENCE = plain("sequence_length", "Sequence", "tokens", digits=6)
WHAT_RAN = (RUN, MODEL, PLATFORM, PRECISION, SEQUENCE, SPLIT, WORLD)
TOKENS = Column(
    "tokens_per_second",
    "Throughput",
    ranged("tokens_per_second", number),
    "tokens/s",
    hint="all tokens of the measured window over its whole time, with the 95 % interval",
)


def _each(row: Row) -> Markup | str:
    """Return the rate of one device, with the interval of the whole divided by their number."""
    many, names = row.get("world_size"), ("tokens_per_second_low", "tokens_per_second_high")
    ends = {name: value / many if (value := row.get(name)) and many else None for name in names}
    return ranged("tokens_per_second_per_gpu", number, *names)({**row, **ends})


TOKENS_EACH = Column(
    "tokens_per_second_per_gpu", "Per GPU", _each, "tokens/s", hint="on a CPU: per process"
)
STEP = time("step_seconds_median", "Step")
TFLOPS = plain("model_tflops_per_second_per_gpu", "Model rate", "TFLOP/s per GPU")
MFU = Column("mfu", "MFU", ranged("mfu", percent))
MEMORY = plain("peak_memory_gib", "Peak memory", "GiB")
LOSS = Column(
    "loss_last",
    "Loss",
    lambda row: f"{number(row.get('loss_first'))} → {number(row.get('loss_last'))}",
    hint="first and last recorded step",
)


def all_runs(runs: pl.DataFrame) -> Markup:
    """Return the full table, whose rows every mention of a run links to."""
    columns = (
        *(OWN_PAGE, STATUS, *WHAT_RAN[1:]),
        *(TOKENS_EACH, MFU, TOKENS, STEP, MEMORY, TFLOPS, LOSS),
        plain("micro_batch_size", "Micro batch"),
        plain("global_batch_size", "Global batch"),
        *(text("recompute", "Recomputation"), STRATEGY),
        plain("measured_steps", "Steps", hint="steps of the measured window"),
    )
    return table(runs.iter_rows(named=True), columns, "runs", anchors=True)


def utilisation(runs: pl.DataFrame) -> Markup:
    """Return rate and MFU of the runs that have an MFU, with the convention and the peak named."""

    def peak(row: Row) -> Markup:
        value = number(row["peak_tflops_per_second"], 4)
        return noted(f"{value} {str(row['peak_precision']).upper()}", row["accelerator"])

    columns = (
        *(RUN, MODEL, PLATFORM, PRECISION, SEQUENCE, SPLIT, MFU, TFLOPS),
        Column("peak_tflops_per_second", "Dense peak", peak, "TFLOP/s", hint="of the precision"),
        text("flops_convention", "Convention", show=convention_title),
    )
    return table(runs.drop_nulls("mfu").iter_rows(named=True), columns, "mfu")
