"""Render prepared cells to a page without Quarto: the project's own template and style."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import mistune
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from scalebook.report.base.markup import Markup, raw_block, raw_html
from scalebook.report.site.menu import Page, menus
from scalebook.report.site.notebook import Cell, front_matter

ASSETS = Path(__file__).parent / "assets"
KINDS = {"fig": "Figure", "tbl": "Table"}

_to_html = mistune.create_markdown(escape=True, plugins=["table"])


@lru_cache(maxsize=1)
def _template() -> Template:
    """Return the page template; it escapes whatever is not markup already."""
    loader = FileSystemLoader(ASSETS)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template(
        "page.html"
    )


def render(
    cells: tuple[Cell, ...], page: Page, pages: Sequence[Page], built: str, *scripts: str
) -> str:
    """Return the HTML of a page; ``built`` is the line of build facts in its footer.

    A page with ``scripts`` of its own makes its title and charts by them.
    """
    numbers = dict(number_labels(cells))
    facts = front_matter(cells)
    return _template().render(
        page=page,
        menus=tuple(menus(pages)),
        title="" if scripts else facts.get("title", page.title),
        subtitle=facts.get("subtitle", ""),
        has_charts=bool(scripts)
        or any("sb-chart" in text for cell in cells for text in cell.texts),
        scripts=scripts,
        blocks=[block(cell, numbers) for cell in cells if cell.kind != "raw"],
        built=built,
    )


def run_page(pages: Sequence[Page], built: str) -> str:
    """Return the page that shows the one run that its address names, by its own script."""
    place = '<div id="sb-run"><noscript>This page needs JavaScript.</noscript></div>'
    cell = Cell("code", "", options=(("echo", False),), texts=(raw_block(place),))
    return render((cell,), Page("", "run", "Run"), pages, built, "run.js")


def number_labels(cells: Sequence[Cell]) -> Iterator[tuple[str, str]]:
    """Yield each label of a figure or table cell with its name: ``fig-loss``, ``Figure 2``."""
    counts = dict.fromkeys(KINDS, 0)
    for cell in cells:
        label = str(cell.option("label", ""))
        kind = label.partition("-")[0]
        if kind in KINDS:
            counts[kind] += 1
            yield label, f"{KINDS[kind]} {counts[kind]}"


def block(cell: Cell, numbers: Mapping[str, str]) -> Markup:
    """Return what a page shows of a cell."""
    if cell.kind == "markdown":
        return Markup(markdown(cell.source, numbers))
    return code_cell(cell, numbers)


def markdown(source: str, numbers: Mapping[str, str]) -> str:
    """Return the HTML of a notebook's Markdown, references resolved and headings linkable."""
    html = str(_to_html(source))
    html = re.sub(r"@((?:fig|tbl)-[a-z0-9-]+)", lambda match: _reference(match[1], numbers), html)
    return re.sub(r"<h([23])>(.*?)</h\1>", _heading, html)


def _reference(label: str, numbers: Mapping[str, str]) -> str:
    """Return a link to a figure; the words alone where its cell had nothing to draw."""
    name = numbers.get(label)
    return f'<a href="#{label}">{name}</a>' if name else KINDS[label[:3]].lower()


def _heading(match: re.Match[str]) -> str:
    level, text = match[1], match[2]
    slug = re.sub(r"[^a-z0-9]+", "-", re.sub(r"<.*?>", "", text).lower()).strip("-")
    link = f'<a class="here" href="#{slug}" aria-label="Link to this section">#</a>'
    return f'<h{level} id="{slug}">{text}{link if level == "2" else ""}</h{level}>'


def code_cell(cell: Cell, numbers: Mapping[str, str]) -> Markup:
    """Return a code cell's outputs, with caption and anchor where it is a figure or a table."""
    body = Markup("\n").join(output_html(text) for text in cell.texts)
    label = str(cell.option("label", ""))
    if label in numbers:
        body = _captioned(body, label, numbers[label], cell)
    return body + _source(cell) if body else Markup("")


def output_html(text: str) -> Markup:
    """Return an output of a cell: its raw HTML block as it is, anything else as text."""
    html = raw_html(text)
    return Markup(html) if html is not None else Markup("<pre>{}</pre>").format(text)


def _captioned(body: Markup, label: str, name: str, cell: Cell) -> Markup:
    """Return a figure element; a table has its caption above, a chart below."""
    kind = label.partition("-")[0]
    words = cell.option(f"{kind}-cap", "")
    caption = Markup("<figcaption><b>{}</b> {}</figcaption>").format(name, words)
    parts = (caption, body) if kind == "tbl" else (body, caption)
    return Markup('<figure id="{}" class="{}">{}{}</figure>').format(label, kind, *parts)


def _source(cell: Cell) -> Markup:
    """Return the code of a cell, folded away; nothing where it asks not to be shown."""
    if cell.option("echo") is False:
        return Markup("")
    template = Markup('<details class="code"><summary>Code</summary><pre>{}</pre></details>')
    return template.format(cell.source)
