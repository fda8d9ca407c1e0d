"""Build the report: execute the pages, render them, check the site, put it in its place."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from scalebook import __version__
from scalebook.errors import IncompleteReportError, ReportError
from scalebook.facts.catalog.load import held
from scalebook.report.base import frames
from scalebook.report.base.quantities import count
from scalebook.report.site import build_cache, notebook, rendering, site_files
from scalebook.report.site.menu import Page, shown
from scalebook.report.site.rendering import ONE_FILE, one_page
from scalebook.report.site.run_details import PAGE as RUN_PAGE
from scalebook.report.site.run_details import write_details
from scalebook.report.site.site_check import check

Renderer = Literal["auto", "quarto", "preview"]
MAIL_BYTES = 5_000_000  # what about every mail server takes
MARKER = "scalebook-report.json"  # tells a site of ours from a folder that must not be replaced

Cells = tuple[notebook.NotebookCell, ...]


@dataclass(frozen=True, slots=True)
class Places:
    """Where a build reads and writes."""

    runs: Path
    output: Path
    project: Path  # the checkout: notebooks/ and reports/
    against: Path | None = None  # a folder of older runs to compare with

    @property
    def menu(self) -> tuple[Page, ...]:
        """The pages of the site, in the order of its menu."""
        return shown(against=self.against is not None)

    @property
    def pages(self) -> Path:
        """The folder of the executed notebooks of this site, which the cache holds."""
        name = hashlib.sha256(str(self.output.resolve()).encode()).hexdigest()[:16]
        return self.cache / "pages" / name

    @property
    def cache(self) -> Path:
        """The folder of what outlives a build."""
        return self.project / "reports" / ".cache"


@held()  # the user's catalog is looked for once, not for every word of a page
def build(
    places: Places,
    renderer: Renderer = "auto",
    say: Callable[[str], None] = print,
    *,
    one_file: bool = False,
) -> Path:
    """Build the site and return the path of its first page, or of the one file of all pages.

    Raises:
        ReportError: there is nothing to report, or the finished site is not as it must be. The
            site of an earlier build stays in place.
        IncompleteReportError: pages failed. The new site is in place; they say what failed.
    """
    data, cache = build_cache.load(places.runs, places.cache, places.against)
    _refuse_foreign(places.output)
    chosen = _choose(renderer, say)
    failed = _execute(places, data, cache, chosen)
    built = _build_facts(data)
    cells = _cells(places, data, say)
    light = {
        page: site_files.move_out(whole, page.slug, places.pages) for page, whole in cells.items()
    }
    site = (
        rendering.render_by_quarto(
            places.project / "reports/_quarto.yml", places.pages, light, cache, built
        )
        if chosen == "quarto"
        else _with_preview(light, places, built)
    )
    _add_shared(places, site, built)
    if one_file:
        (site / ONE_FILE).write_text(
            one_page(cells, places.menu, places.pages, built), encoding="utf-8"
        )
        weigh(site / ONE_FILE, say)
    _finish(
        site, places.output, chosen, {page.html for page in failed} | {ONE_FILE} if failed else ()
    )
    sizes = ((page.slug, (places.output / page.html).stat().st_size) for page in places.menu)
    say(f"Pages in kB: {', '.join(f'{slug} {size / 1e3:.0f}' for slug, size in sizes)}.")
    build_cache.forget_old(places.pages)
    index = places.output / (ONE_FILE if one_file else "index.html")
    if failed:
        words = " ".join(f"{page.title}: {text}" for page, text in failed.items())
        many = f"{len(failed)} of {len(places.menu)} pages could not be built"
        raise IncompleteReportError(f"{many}. {words} The others are in {index}.")
    return index


def _execute(
    places: Places, data: frames.ReportData, cache: Path, renderer: Renderer
) -> dict[Page, str]:
    """Write executed pages and the files next to them to an empty folder; return what failed."""
    stage = places.pages
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    _mark(stage, renderer)
    with ThreadPoolExecutor(1) as pool:
        library = pool.submit(site_files.chart_library, places.cache)
        failed = build_cache.make(places.menu, places.project / "notebooks", data, cache, stage)
    site_files.write_assets(stage, library.result(), data.runs)
    site_files.write_data(data, stage / "data", cache)
    write_details(data, stage, cache)
    return failed


def _cells(
    places: Places, data: frames.ReportData, say: Callable[[str], None]
) -> dict[Page, Cells]:
    """Return the cells of every executed page; say what their code warned of."""
    numbers = {run_id: row for row, run_id in enumerate(data.runs["run_id"], start=1)}
    cells: dict[Page, Cells] = {}
    for page in places.menu:
        executed = notebook.read(places.pages / f"{page.slug}.ipynb")
        for text in (text for cell in executed for text in cell.warned):
            say(f"{page.slug}: {text.strip()}")
        cells[page] = notebook.prepare(executed, numbers)
    return cells


def _add_shared(places: Places, site: Path, built: str) -> None:
    """Add the page of a run, styles, scripts and data, which Quarto does not bring along."""
    stage = places.pages
    (site / RUN_PAGE).write_text(rendering.run_page(places.menu, built), encoding="utf-8")
    for path in stage.iterdir():
        if path.suffix in (".css", ".js"):
            shutil.copyfile(path, site / path.name)
    shutil.copytree(stage / "data", site / "data", dirs_exist_ok=True)


def weigh(path: Path, say: Callable[[str], None], most: int = MAIL_BYTES) -> None:
    """Say where the one file may be too large for what it is made for."""
    if (size := path.stat().st_size) > most:
        say(
            f"{ONE_FILE} has {size / 1e6:.1f} MB, and some mail takes no more than "
            f"{most / 1e6:.0f}: send the folder of the site, or leave out runs."
        )


def _choose(renderer: Renderer, say: Callable[[str], None]) -> Renderer:
    if renderer == "auto":
        # The same pages in a tenth of the time, and they need no server to be read.
        if rendering.find_quarto():
            say("The pages are rendered by the built-in renderer; --renderer quarto uses Quarto.")
        return "preview"
    if renderer == "quarto" and not rendering.find_quarto():
        raise ReportError(f"quarto was not found. {rendering.INSTALL_QUARTO}")
    return renderer


def _build_facts(data: frames.ReportData) -> str:
    """Return one line about this build, for the footer."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    runs = count(data.runs.height, "run")
    folders = sorted(data.runs["folder"].drop_nulls().unique()) or [data.folder.name]
    return f"Built {now} by Scalebook {__version__} from {runs} in {', '.join(folders)}."


def _with_preview(cells: Mapping[Page, Cells], places: Places, built: str) -> Path:
    """Render by the built-in renderer and return the folder of the site."""
    site = places.pages / "_site"
    site.mkdir()
    for page, whole in cells.items():
        html = rendering.render(whole, page, places.menu, built)
        (site / page.html).write_text(html, encoding="utf-8")
    return site


def _finish(site: Path, output: Path, renderer: str, failed: Collection[str]) -> None:
    """Check the site, then put it in the place of the one before."""
    problems = check(site, failed)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        first = next(iter(problems))
        raise ReportError(f"The report cannot be published: {first}{more}. See {site}.")
    _mark(site, renderer)
    if output.exists():
        shutil.rmtree(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(site, output)  # which may be on another disk than the cache


def _mark(folder: Path, renderer: str) -> None:
    """Mark a folder as made here, so that a later build may replace it."""
    text = json.dumps({"scalebook": __version__, "renderer": renderer})
    (folder / MARKER).write_text(text + "\n")


def _refuse_foreign(output: Path) -> None:
    """Refuse to replace a folder that holds something else than a report."""
    if (
        output.is_file()
        or output.is_symlink()
        or (output.is_dir() and any(output.iterdir()) and not (output / MARKER).exists())
    ):
        raise ReportError(
            f"{output} is not a report of Scalebook and would be replaced. "
            "Choose another folder with --output."
        )
