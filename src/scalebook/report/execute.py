# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
"""Execute the pages' notebooks over a folder of runs, by papermill."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

import papermill
from papermill.exceptions import PapermillExecutionError

from scalebook.errors import ReportError
from scalebook.notebooks import validate
from scalebook.report.engine import register
from scalebook.report.pages import Page


def execute(pages: Iterable[Page], notebooks: Path, runs: Path, output: Path) -> None:
    """Write an executed copy of each page's notebook to ``output``, named after the page.

    Raises:
        ReportError: a cell raised; the executed copy holds the traceback.
    """
    # papermill logs its own progress; the command line says what matters
    logging.getLogger("papermill").setLevel(logging.ERROR)
    output.mkdir(parents=True, exist_ok=True)
    parameters = {"runs": str(runs.resolve())}
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
            first = str(error.evalue).partition("\n")[0].rstrip(".")
            raise ReportError(
                f"Page {page.notebook}, cell {error.cell_index}: {error.ename}: {first}. "
                f"The traceback is in {target}."
            ) from error
