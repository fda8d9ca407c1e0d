"""Render prepared cells to HTML: page by page here or with Quarto, or all pages as one file."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import mistune
import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from scalebook.errors import ReportError
from scalebook.report.base.markup import (
    Markup,
    anchor,
    escape,
    part,
    raw_block,
    raw_html,
    script_json,
)
from scalebook.report.site.build_cache import keep, kept
from scalebook.report.site.menu import Page, menus
from scalebook.report.site.notebook import NotebookCell, front_matter, write
from scalebook.report.site.site_files import MAILED, SCRIPTS, STYLES

ASSETS = Path(__file__).parent / "assets"
Cells = tuple[NotebookCell, ...]
KINDS = {"fig": "Figure", "tbl": "Table"}

_to_html = mistune.create_markdown(escape=True, plugins=["table"])


@lru_cache
def _template(name: str) -> Template:
    """Return a template; it escapes whatever is not markup already."""
    loader = FileSystemLoader(ASSETS)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template(name)


def render(
    cells: Cells,
    page: Page,
    pages: Sequence[Page],
    built: str,
    *scripts: str,
    body: str = "",
) -> str:
    """Return the HTML of a page; ``built`` is the line of build facts in its footer.

    A page with ``scripts`` of its own makes its title and charts by them. A ``body`` takes the
    place of what the cells show.
    """
    content = _content(page, cells)
    charts = any("sb-chart" in text for cell in cells for text in cell.texts)
    return _template("page.html").render(
        **content | ({"title": ""} if scripts else {}) | ({"blocks": [body]} if body else {}),
        page=page,
        menus=tuple(menus(pages)),
        has_charts=bool(scripts) or charts,
        scripts=scripts,
        built=built,
    )


def _content(page: Page, cells: Cells) -> dict[str, Any]:
    """Return a page's title, its line below that, and what its cells show, made when it is read."""
    numbers, facts = dict(number_labels(cells)), front_matter(cells)
    return {
        "title": facts.get("title", page.title),
        "subtitle": facts.get("subtitle", ""),
        "blocks": (block(cell, numbers) for cell in cells if cell.kind != "raw"),
    }


def run_page(pages: Sequence[Page], built: str) -> str:
    """Return the page that shows the one run that its address names, by its own script."""
    place = Markup('<div id="sb-run"><noscript>This page needs JavaScript.</noscript></div>')
    return render((), Page("", "run", "Run"), pages, built, "run.js", body=place)


def number_labels(cells: Sequence[NotebookCell]) -> Iterator[tuple[str, str]]:
    """Yield each label of a figure or table cell with its name: ``fig-loss``, ``Figure 2``."""
    counts = dict.fromkeys(KINDS, 0)
    for cell in cells:
        label = str(cell.option("label", ""))
        kind = label.partition("-")[0]
        if kind in KINDS:
            counts[kind] += 1
            yield label, f"{KINDS[kind]} {counts[kind]}"


def block(cell: NotebookCell, numbers: Mapping[str, str]) -> Markup:
    """Return what a page shows of a cell."""
    return markdown(cell.source) if cell.kind == "markdown" else code_cell(cell, numbers)


TO_HEADING = "Link to this section"


def markdown(source: str) -> Markup:
    """Return the HTML of a notebook's Markdown, with headings that can be linked to."""
    return Markup(re.sub(r"<h([23])>(.*?)</h\1>", _heading, str(_to_html(source))))


def _heading(match: re.Match[str]) -> str:
    level, text = match[1], match[2]
    slug = _slug(re.sub(r"<.*?>", "", text))
    link = f'<a class="here" href="#{slug}" aria-label="{TO_HEADING}">#</a>'
    return f'<h{level} id="{slug}">{text}{link if level == "2" else ""}</h{level}>'


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def code_cell(cell: NotebookCell, numbers: Mapping[str, str]) -> Markup:
    """Return a code cell's outputs; a figure or table has caption, anchor and its code, folded."""
    body = Markup("\n").join(output_html(text) for text in cell.texts)
    label = str(cell.option("label", ""))
    if not body or label not in numbers:
        return body
    words = cell.option(f"{label.partition('-')[0]}-cap", "")
    return part("figure", label, numbers[label], words, body, cell.source)


def output_html(text: str) -> Markup:
    """Return an output of a cell: its raw HTML block as it is, anything else as text."""
    html = raw_html(text)
    return Markup(html) if html is not None else Markup("<pre>{}</pre>").format(text)


INSTALL_QUARTO = "Install it from quarto.org, or use --renderer preview."
# Stand in Quarto's template of a page: for the line that differs in every build, and for the body.
BUILT, BODY = "scalebook-built", "scalebook-body"
HEADING = re.compile(r"^(###?) (.+)$", re.MULTILINE)


def find_quarto() -> str | None:
    """Return the path of the quarto command; None where there is none."""
    return shutil.which("quarto")


def render_by_quarto(
    settings: Path, project: Path, cells: Mapping[Page, Cells], cache: Path, built: str
) -> Path:
    """Write every page as a notebook for Quarto, render those that changed, return the site.

    Raises:
        ReportError: quarto is missing or failed; its last line is in the message.
    """
    config = _project_settings(settings)
    written = {page: write_page(project, page, cells[page], tuple(cells)) for page in cells}
    version = _quarto(project, "--version")
    places: dict[Page, Path] = {}
    for page, texts in written.items():
        digest = sha256("\0".join((version, repr(config), *texts)).encode()).hexdigest()[:16]
        places[page] = cache / f"quarto-{page.slug}-{digest}.html"
    missing = [page for page, place in places.items() if kept(place) is None]
    site = project / "_site"
    site.mkdir(exist_ok=True)
    if missing:
        config["project"]["render"] = [f"{page.slug}.ipynb" for page in missing]
        text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
        (project / "_quarto.yml").write_text(text, encoding="utf-8")
        _quarto(project, "render", str(project), "--no-execute", "--no-clean")
    for page in missing:
        if not (site / page.html).is_file():
            raise ReportError(f"quarto did not write {page.html}. {INSTALL_QUARTO}")
        keep(places[page], (site / page.html).read_bytes())
    for page, place in places.items():
        html = (kept(place) or b"").decode().replace(BUILT, escape(built))
        (site / page.html).write_text(html, encoding="utf-8")
    return site


def _project_settings(settings: Path) -> dict[str, Any]:
    """Return Quarto's settings of the report as `quarto render` needs them here."""
    try:
        config = yaml.safe_load(settings.read_text(encoding="utf-8"))
        del config["project"]["pre-render"]  # which is for a call by hand
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise ReportError(f"{settings} is not the Quarto project of the report: {error}") from error
    return config


def write_page(project: Path, page: Page, cells: Cells, pages: Sequence[Page]) -> tuple[str, str]:
    """Write a page as a notebook for Quarto with a template of its own; return their texts.

    The template is the page of the built-in renderer without its body, and a code cell prints what
    that renderer shows of it: of a printed figure Quarto itself loses the caption.
    """
    around = render(cells, page, pages, BUILT, body=BODY)
    template = around.replace("$", "$$").replace(BODY, "$body$")
    name = f"{page.slug}.template"
    (project / name).write_text(template, encoding="utf-8")
    numbers = dict(number_labels(cells))
    path = project / f"{page.slug}.ipynb"
    write(path, tuple(_for_quarto(cell, numbers, name) for cell in cells))
    return template, path.read_text(encoding="utf-8")


def _for_quarto(cell: NotebookCell, numbers: Mapping[str, str], template: str) -> NotebookCell:
    if cell.kind == "raw":
        front = re.sub(r"\n---\s*$", f"\ntemplate: {template}\n---", cell.source)
        return replace(cell, source=front)
    if cell.kind == "markdown":
        return replace(cell, source=HEADING.sub(_heading_for_quarto, cell.source))
    html = code_cell(cell, numbers)
    return replace(cell, texts=(raw_block(html),) if html else ())


def _heading_for_quarto(match: re.Match[str]) -> str:
    level, text = match[1], match[2]
    slug = _slug(text)
    link = f'[#](#{slug}){{.here aria-label="{TO_HEADING}"}}' if level == "##" else ""
    return f"{level} {text}{link} {{#{slug}}}"


def _quarto(folder: Path, *arguments: str) -> str:
    """Call quarto and return what it printed."""
    command = find_quarto()
    if command is None:
        raise ReportError(f"quarto was not found. {INSTALL_QUARTO}")
    done = subprocess.run(
        [command, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )
    if done.returncode != 0:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        first = next((i for i, line in enumerate(lines) if line.startswith("ERROR")), -1)
        about = takewhile(lambda line: not line.startswith("Stack"), lines[first:][:3])
        said = " ".join(about) or "it printed nothing"
        raise ReportError(f"quarto failed (exit {done.returncode}): {said}. {INSTALL_QUARTO}")
    return done.stdout


ONE_FILE = "scalebook-report.html"
MAX_DATA = 1_000_000  # bytes of one data file inside the page; a larger one stays with the site
SCRIPT = re.compile(r"(<script.*?</script>)", re.DOTALL)
ADDRESS = re.compile(r'(?<=\s)(id|href)="([^"]*)"')


def one_page(cells: Mapping[Page, Cells], pages: Sequence[Page], folder: Path, built: str) -> str:
    """Return the HTML of all pages in one; ``folder`` has the assets and the data."""
    return _template("one_file.html").render(
        menus=tuple(menus(pages)),
        sections=[_section(page, cells[page]) for page in pages],
        styles=[_inside(folder / name) for name in STYLES],
        scripts=[_inside(folder / name) for name in ("vega-bundle.js", *SCRIPTS)],
        script_hash=_script_hash,
        data=[_data(folder / "data" / name) for name in MAILED],
        built=built,
    )


def _inside(path: Path) -> Markup:
    """Return a style or script of ours as it is; none of them holds the end of its element."""
    return Markup(path.read_text(encoding="utf-8"))


def _script_hash(script: str) -> str:
    """Return the name under which a policy of the browser lets this script run, and no other."""
    return f"sha256-{base64.b64encode(sha256(script.encode()).digest()).decode()}"


def _section(page: Page, cells: Cells) -> dict[str, object]:
    """Return a page's title and blocks, its addresses made those of the one file."""
    content = _content(page, cells)
    blocks = [Markup(local_addresses(str(one), page.slug)) for one in content["blocks"]]
    return {**content, "slug": page.slug, "blocks": blocks}


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
    for i, piece in enumerate(parts):
        if piece.startswith('<script type="application/json" class="sb-rows">'):
            parts[i] = _local_rows(piece, slug)
        elif not piece.startswith("<script"):
            parts[i] = ADDRESS.sub(local, piece)
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
