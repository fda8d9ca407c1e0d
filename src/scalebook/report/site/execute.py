# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
"""Execute the pages' notebooks over a folder of runs, by papermill."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

import papermill
from papermill.exceptions import PapermillExecutionError

from scalebook.notebooks import validate
from scalebook.report.base.markup import callout, raw_block
from scalebook.report.site import notebook
from scalebook.report.site.engine import register
from scalebook.report.site.menu import Page


def execute(pages: Iterable[Page], notebooks: Path, runs: Path, output: Path) -> dict[Page, str]:
    """Write an executed copy of each page's notebook to ``output``; say of each page what failed.

    A page of which a cell raised holds that in a sentence, and ``_failed-<page>.ipynb`` holds
    what was executed of it with the traceback. The other pages are as they would be without it.
    """
    # papermill logs its own progress; the command line says what matters
    logging.getLogger("papermill").setLevel(logging.ERROR)
    output.mkdir(parents=True, exist_ok=True)
    parameters = {"runs": str(runs.resolve())}
    failed: dict[Page, str] = {}
    for page in pages:
        source, target = notebooks / page.notebook, output / f"{page.slug}.ipynb"
        validate(source, parameters)
        try:
            papermill.execute_notebook(
                str(source),
                str(target),
                parameters,
                engine_name=register(),
                request_save_on_cell_execute=False,
                progress_bar=False,
            )
        except PapermillExecutionError as error:
            # Quarto leaves out what begins with an underscore
            target.rename(output / f"_failed-{target.name}")
            failed[page] = f"cell {error.cell_index} of {page.notebook}: {error.evalue}"
            failed[page] += f" ({error.ename})."
            _write_failure(target, source, failed[page])
    return failed


def _write_failure(target: Path, source: Path, words: str) -> None:
    """Write the page that stands for one that failed: its own title, and why it is missing."""
    titles = [cell for cell in notebook.read(source) if cell.kind == "raw"][:1]
    box = callout("This page could not be built", [words])
    shown = notebook.Cell("code", "", texts=(raw_block(str(box.html)),))
    notebook.write(target, (*titles, shown))
