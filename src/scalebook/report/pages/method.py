"""The method page: formulas as MathML, conventions and peaks from the package's own facts."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from scalebook.facts import catalog
from scalebook.facts.flops.conventions import CONVENTIONS, DEFAULT_CONVENTION
from scalebook.report.base.frames import ReportData
from scalebook.report.base.html_tables import Column, Row, Show, table, text
from scalebook.report.base.markup import Fragment, Markup, escape, join, run_links
from scalebook.report.base.quantities import count, number

PRECISIONS = ("bf16", "fp16", "fp8", "fp32")


def _words(content: str) -> Markup:
    return Markup("<mtext>{}</mtext>").format(content)


def _symbol(content: str) -> Markup:
    return Markup("<mi>{}</mi>").format(content)


def _sub(name: str, index: str) -> Markup:
    return Markup("<msub><mi>{}</mi><mi>{}</mi></msub>").format(name, index)


def _row(*parts: Markup | str) -> Markup:
    """Return parts in a row; a plain string is an operator, or a number where it has digits."""
    marked = (
        part
        if isinstance(part, Markup)
        else Markup("<{0}>{1}</{0}>").format("mn" if part[0].isdigit() else "mo", part)
        for part in parts
    )
    return Markup("<mrow>{}</mrow>").format(Markup("").join(marked))


def _fraction(top: Markup, bottom: Markup) -> Markup:
    return Markup("<mfrac>{}{}</mfrac>").format(top, bottom)


def _sum(body: Markup) -> Markup:
    return _row(Markup("<munder><mo>∑</mo><mi>i</mi></munder>"), body)


def _formulas() -> dict[str, Markup]:
    tokens, seconds = _sub("tokens", "i"), _sub("step_seconds", "i")
    throughput, world, flops = _symbol("T"), _symbol("n"), _symbol("F")
    rate, peak = _symbol("R"), _symbol("P")
    million_million = Markup("<msup><mn>10</mn><mn>12</mn></msup>")
    hidden = _symbol("h")
    layer = _row(
        "6", hidden, "(", _symbol("k"), _symbol("f"), "+", _symbol("q"), "+", "2", _symbol("v"),
        "+", _symbol("q"), ")", "+", "6", _symbol("q"), _symbol("s"),
    )  # fmt: skip
    reached, base = _row(_sub("T", "n"), "/", world), _row(_sub("T", "b"), "/", _symbol("b"))
    return {
        "throughput": _row(throughput, "=", _fraction(_sum(tokens), _sum(seconds))),
        "rate": _row(
            rate, "=", _fraction(_row(throughput, flops), _row(world, "·", million_million))
        ),
        "mfu": _row(_words("MFU"), "=", _fraction(rate, peak)),
        "flops": _row(flops, "=", _symbol("L"), "(", layer, ")", "+", "6", hidden, _symbol("V")),
        "efficiency": _row(_words("efficiency"), "=", _fraction(reached, base)),
    }


def formula(name: str) -> Fragment:
    """Return a formula as MathML, which browsers draw without any script."""
    opening = Markup('<div class="formula"><math display="block">')
    return Fragment(opening + _formulas()[name] + Markup("</math></div>"))


def conventions() -> Fragment:
    """Return what each FLOPs convention counts, the default first."""
    ordered = sorted(CONVENTIONS.items(), key=lambda item: item[0] != DEFAULT_CONVENTION)
    terms = Markup("").join(
        Markup("<dt><code>{}</code>{}</dt><dd>{}.</dd>").format(
            name, " (used in this report)" if name == DEFAULT_CONVENTION else "", words
        )
        for name, words in ordered
    )
    return Fragment(Markup('<dl class="terms">{}</dl>').format(terms))


def peaks(data: ReportData) -> Fragment:
    """Return the dense peaks of the catalog with their sources, those of these runs marked."""
    used = set(data.runs["accelerator"].drop_nulls())
    rows = [_peak_row(device, used) for device in catalog.accelerators()]
    rows.sort(key=lambda row: (row["used"] == "", row["vendor"], row["name"]))
    columns = (
        text("name", "Accelerator"),
        text("used", "In this report"),
        *(Column(name, name, _shower(name), "TFLOP/s") for name in PRECISIONS),
        Column("source", "Source", _source, numeric=False, wide=True),
    )
    return table(rows, columns, "peaks")


def _peak_row(device: catalog.Accelerator, used: set[str]) -> dict[str, str | float | None]:
    names = sorted(used & set(device.device_names))
    values = {name: device.peak_tflops.get(name) for name in PRECISIONS}
    facts = {"name": device.name, "vendor": device.vendor, "source": device.source}
    return facts | values | {"used": ", ".join(names)}


def _shower(name: str) -> Show:
    return lambda row: number(row[name], 4)


def _source(row: Row) -> Markup:
    return Markup("<details><summary>source</summary>{}</details>").format(escape(row["source"]))


def windows(data: ReportData) -> Fragment:
    """Return how many steps the runs of this report are averaged over."""
    judged = pl.col("steady").fill_null(value=False)
    steady, short = data.completed.filter(judged), data.completed.filter(~judged)
    sentences: list[Markup] = []
    if steady.height:
        low, high = steady["steady_steps"].min(), steady["steady_steps"].max()
        span = f"{low}" if low == high else f"{low} to {high}"
        words = "{} of this report {} averaged over a steady state of {} steps."
        runs, are = count(steady.height, "run"), "is" if steady.height == 1 else "are"
        sentences.append(Markup(words).format(runs, are, span))
    if short.height:
        words = "{} {} too few steps to say, and a rate without an interval: {}."
        runs, have = count(short.height, "run"), "has" if short.height == 1 else "have"
        sentences.append(Markup(words).format(runs, have, run_links(short["run_id"])))
    if not sentences:
        return Fragment(Markup(""))
    return Fragment(Markup("<p>{}</p>").format(Markup(" ").join(sentences)))


def used_conventions(data: ReportData) -> Fragment:
    """Return which convention the rates of this report follow."""
    names: Iterable[str] = data.runs.filter(
        pl.col("model_tflops_per_second_per_gpu").is_not_null()
    )["flops_convention"].unique()
    known = [Markup("<code>{}</code>").format(name) for name in names]
    sentence = Markup("<p>Rates of this report follow {}.</p>").format(join(known))
    return Fragment(sentence if known else Markup(""))
