"""Build the report: execute the pages, render them, check the site, put it in its place."""

from __future__ import annotations

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
from scalebook.report.base import frames
from scalebook.report.base.quantities import count
from scalebook.report.site import notebook, page_cache, preview, quarto, vega
from scalebook.report.site.assets_files import write_assets
from scalebook.report.site.data_files import write_data
from scalebook.report.site.menu import PAGES, Page
from scalebook.report.site.one_file import NAME, one_page
from scalebook.report.site.prepare import prepare
from scalebook.report.site.row_files import move_out
from scalebook.report.site.run_details import PAGE as RUN_PAGE
from scalebook.report.site.run_details import write_details
from scalebook.report.site.site_check import check

Renderer = Literal["auto", "quarto", "preview"]
MAIL_BYTES = 5_000_000  # what about every mail server takes
MARKER = "scalebook-report.json"  # tells a site of ours from a folder that must not be replaced


@dataclass(frozen=True, slots=True)
class Places:
    """Where a build reads and writes."""

    runs: Path
    output: Path
    project: Path  # the checkout: notebooks/ and reports/

    @property
    def pages(self) -> Path:
        """The folder of the executed notebooks, beside the site."""
        return self.output.parent / "_pages"

    @property
    def cache(self) -> Path:
        """The folder of what outlives a build."""
        return self.project / "reports" / ".cache"


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
    data, cache = page_cache.load(places.runs, places.cache)
    _refuse_foreign(places.output)
    _refuse_foreign(places.pages)
    chosen = _choose(renderer, say)
    stage = places.pages
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    _mark(stage, chosen)
    with ThreadPoolExecutor(1) as pool:
        library = pool.submit(vega.bundle, places.cache)
        failed = page_cache.make(PAGES, places.project / "notebooks", data, cache, stage)
    write_assets(stage, library.result(), data.runs)
    numbers = {run_id: row for row, run_id in enumerate(data.runs["run_id"], start=1)}
    cells = {page: _prepared(stage / f"{page.slug}.ipynb", numbers, say) for page in PAGES}
    for page, shown in cells.items():
        notebook.write(stage / f"{page.slug}.ipynb", move_out(shown, page.slug, stage))
    built = _build_facts(data)
    write_data(data, stage / "data")
    write_details(data, stage)
    site = _with_quarto(places, built) if chosen == "quarto" else _with_preview(stage, built)
    (site / RUN_PAGE).write_text(preview.run_page(PAGES, built), encoding="utf-8")
    # Quarto brings along what its pages name; the page of a run is not one of them
    for path in stage.iterdir():
        if path.suffix in (".css", ".js"):
            shutil.copyfile(path, site / path.name)
    shutil.copytree(stage / "data", site / "data", dirs_exist_ok=True)
    if one_file:
        (site / NAME).write_text(one_page(cells, PAGES, stage, built), encoding="utf-8")
        weigh(site / NAME, say)
    _finish(
        site,
        places.output,
        chosen,
        {page.html for page in failed} | {NAME} if failed else (),
    )
    index = places.output / (NAME if one_file else "index.html")
    if failed:
        raise IncompleteReportError(_told(failed, index))
    return index


def _told(failed: Mapping[Page, str], index: Path) -> str:
    """Return in a line which pages failed and where the others are."""
    words = " ".join(f"{page.title}: {text}" for page, text in failed.items())
    many = f"{len(failed)} of {len(PAGES)} pages could not be built"
    return f"{many}. {words} The others are in {index}."


def weigh(path: Path, say: Callable[[str], None], most: int = MAIL_BYTES) -> None:
    """Say where the one file may be too large for what it is made for."""
    size = path.stat().st_size
    if size > most:
        say(
            f"{NAME} has {size / 1e6:.1f} MB, and some mail takes no more than "
            f"{most / 1e6:.0f}: send the folder of the site, or report on fewer runs."
        )


def _choose(renderer: Renderer, say: Callable[[str], None]) -> Renderer:
    if renderer == "auto":
        # The same pages in a tenth of the time, and they need no server to be read.
        if quarto.find():
            say("The pages are rendered by the built-in renderer; --renderer quarto uses Quarto.")
        return "preview"
    if renderer == "quarto" and not quarto.find():
        raise ReportError(f"quarto was not found. {quarto.INSTALL}")
    return renderer


def _prepared(
    path: Path, numbers: Mapping[str, int], say: Callable[[str], None]
) -> tuple[notebook.Cell, ...]:
    """Return an executed notebook as the renderers want it; say what its code warned of."""
    cells = notebook.read(path)
    for cell in cells:
        for text in cell.warned:
            say(f"{path.stem}: {text.strip()}")
    return prepare(cells, numbers)


def _build_facts(data: frames.ReportData) -> str:
    """Return one line about this build, for the footer."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    runs = count(data.runs.height, "run")
    return f"Built {now} by Scalebook {__version__} from {runs} in {data.folder.name}."


def _with_preview(stage: Path, built: str) -> Path:
    """Render by the built-in renderer and return the folder of the site."""
    site = stage / "_site"
    site.mkdir()
    for page in PAGES:
        cells = notebook.read(stage / f"{page.slug}.ipynb")
        html = preview.render(cells, page, PAGES, built)
        (site / page.html).write_text(html, encoding="utf-8")
    return site


def _with_quarto(places: Places, built: str) -> Path:
    """Render by Quarto and return the folder of the site."""
    reports = places.project / "reports"
    quarto.write_project(reports / "_quarto.yml", reports / "theme", places.pages, built)
    return quarto.render(places.pages)


def _finish(site: Path, output: Path, renderer: str, failed: Collection[str]) -> None:
    """Check the site, then put it in the place of the one before."""
    problems = check(site, failed)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        first = next(iter(problems))
        raise ReportError(f"The report is not fit to publish: {first}{more}. See {site}.")
    _mark(site, renderer)
    if output.exists():
        shutil.rmtree(output)
    site.rename(output)


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
