"""The whole report as one HTML file for mail: every page, styles, scripts and data inside it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from scalebook.report.base.markup import Markup, anchor, script_json
from scalebook.report.site import preview
from scalebook.report.site.assets_files import SCRIPTS, STYLES
from scalebook.report.site.data_files import DATA_FILES
from scalebook.report.site.menu import Page, menus
from scalebook.report.site.notebook import Cell, front_matter

NAME = "scalebook-report.html"
MAX_DATA = 1_000_000  # bytes of one data file inside the page; a larger one stays with the site
SCRIPT = re.compile(r"(<script.*?</script>)", re.DOTALL)
ADDRESS = re.compile(r'(?<=\s)(id|href)="([^"]*)"')


def one_page(
    cells: Mapping[Page, tuple[Cell, ...]], pages: Sequence[Page], folder: Path, built: str
) -> str:
    """Return the HTML of all pages in one; ``folder`` has the assets and the data."""
    loader = FileSystemLoader(preview.ASSETS)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    return environment.get_template("one_file.html").render(
        menus=tuple(menus(pages)),
        sections=[_section(page, cells[page]) for page in pages],
        styles=[_inside(folder / name) for name in STYLES],
        scripts=[_inside(folder / name) for name in ("vega-bundle.js", *SCRIPTS)],
        data=[_data(folder / "data" / name) for name in DATA_FILES],
        built=built,
    )


def _inside(path: Path) -> Markup:
    """Return a style or script of ours as it is; none of them holds the end of its element."""
    return Markup(path.read_text(encoding="utf-8"))


def _section(page: Page, cells: tuple[Cell, ...]) -> dict[str, object]:
    """Return a page's title and blocks, its addresses made those of the one file."""
    numbers = dict(preview.number_labels(cells))
    facts = front_matter(cells)
    blocks = (preview.block(cell, numbers) for cell in cells if cell.kind != "raw")
    return {
        "slug": page.slug,
        "title": facts.get("title", page.title),
        "subtitle": facts.get("subtitle", ""),
        "blocks": [Markup(local_addresses(str(block), page.slug)) for block in blocks],
    }


def local_addresses(html: str, slug: str) -> str:
    """Return a page's HTML with ids and links that stay apart from those of other pages."""

    def local(match: re.Match[str]) -> str:
        name, value = match[1], match[2]
        if name == "id":
            return f'id="{slug}--{value}"'
        page, _, fragment = value.partition("#")
        if page and not re.fullmatch(r"[a-z_-]+\.html", page):
            return match[0]
        target = page.removesuffix(".html") or slug
        if target == "run":  # a run has no page of its own in the one file
            target, fragment = "throughput", anchor(unquote(fragment))
        return f'href="#{target}--{fragment}"' if fragment else f'href="#page-{target}"'

    # in a specification an address is no attribute; in the rows of a long table it is
    parts = SCRIPT.split(html)
    for i, part in enumerate(parts):
        if part.startswith('<script type="application/json" class="sb-rows">'):
            parts[i] = _local_rows(part, slug)
        elif not part.startswith("<script"):
            parts[i] = ADDRESS.sub(local, part)
    return "".join(parts)


def _local_rows(script: str, slug: str) -> str:
    opening, _, rest = script.partition(">")
    rows = json.loads(rest.removesuffix("</script>"))
    for row in rows:
        row[1] = f"{slug}--{row[1]}" if row[1] else ""
        row[3:] = [
            [cell[0], *(local_addresses(html, slug) for html in cell[1:])] for cell in row[3:]
        ]
    return f"{opening}>{script_json(rows)}</script>"


def _data(path: Path) -> dict[str, str]:
    """Return a data file's name and its address inside the page; none where it is too large."""
    content = path.read_bytes()
    if len(content) > MAX_DATA:
        return {"name": path.name, "address": ""}
    kind = "text/csv" if path.suffix == ".csv" else "application/octet-stream"
    coded = base64.b64encode(content).decode("ascii")
    return {"name": path.name, "address": f"data:{kind};base64,{coded}"}
