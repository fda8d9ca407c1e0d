# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# Notebook nodes and papermill's engines carry no types.
"""Execute the pages' notebooks over a folder of runs, by papermill and in this very process.

A kernel costs seconds to start and to import the plotting library, for each page again. Pages
are the project's own notebooks (short cells of plain Python that call the package), so nothing
is lost by running them here one after another; in JupyterLab they run in a kernel as ever.
"""

from __future__ import annotations

import ast
import contextlib
import io
import logging
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import papermill
from altair.utils.schemapi import debug_mode
from nbformat import NotebookNode
from nbformat.v4 import new_output
from papermill.engines import Engine, NotebookExecutionManager, papermill_engines
from papermill.exceptions import PapermillExecutionError

from scalebook.facts.catalog import load as catalog
from scalebook.notebooks import papermill_path, validate
from scalebook.report.base.markup import callout, raw_block
from scalebook.report.site import notebook
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
            # the tests hold every chart against Vega-Lite's schema; again is a tenth of a build
            with debug_mode(arg=False), catalog.held():
                papermill.execute_notebook(
                    papermill_path(source),
                    papermill_path(target),
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
    shown = notebook.NotebookCell("code", "", texts=(raw_block(box),))
    notebook.write(target, (*titles, shown))


NAME = "scalebook-in-process"


class InProcessEngine(Engine):
    """Runs the code cells of a notebook in one fresh namespace, up to the first that raises."""

    @classmethod
    def execute_managed_notebook(
        cls, nb_man: NotebookExecutionManager, kernel_name: str, **_kwargs: Any
    ) -> None:
        """Fill in the outputs of every code cell; a cell that raises gets an error output."""
        namespace: dict[str, Any] = {"__name__": "__page__"}
        for index, cell in enumerate(nb_man.nb.cells):
            if cell.cell_type != "code":
                continue
            nb_man.cell_start(cell, index)
            cell.execution_count = index + 1
            try:
                cell.outputs = run_cell(cell.source, namespace)
            except Exception as error:  # noqa: BLE001  # whatever the cell raised is its output
                cell.outputs = [_failure(error)]
                nb_man.cell_exception(cell, index)
                return
            nb_man.cell_complete(cell, index)


def run_cell(source: str, namespace: dict[str, Any]) -> list[NotebookNode]:
    """Run a cell and return its outputs: what it printed, and the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, warned = io.StringIO(), io.StringIO()
    value: Any = None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(warned):
        exec(compile(tree, "<cell>", "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)
    streams = (("stdout", printed.getvalue()), ("stderr", warned.getvalue()))
    outputs = [new_output("stream", name=name, text=text) for name, text in streams if text]
    return outputs if value is None else [*outputs, _result(value)]


def _result(value: Any) -> NotebookNode:
    """Return a value as an output: Markdown where it has a Markdown form, else its text."""
    data = {"text/plain": f"<{type(value).__name__}>"}
    if hasattr(value, "_repr_markdown_"):
        data["text/markdown"] = value._repr_markdown_()
    else:
        data["text/plain"] = repr(value)
    return new_output("display_data", data=data)


def _failure(error: Exception) -> NotebookNode:
    """Return an error output with the traceback; it names the run that was in hand."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    first = str(error).partition("\n")[0].rstrip(".") or "no message"
    run_id = next(_in_hand(error.__traceback__), "")
    words = f"Run {run_id}: {first}" if run_id else first
    return new_output("error", ename=type(error).__name__, evalue=words, traceback=lines)


def _in_hand(trace: TracebackType | None) -> Iterator[str]:
    """Yield the ids of the runs that the functions of a traceback held, the innermost first."""
    frames = [frame for frame, _ in traceback.walk_tb(trace)]
    for frame in reversed(frames):
        for value in frame.f_locals.values():
            record = getattr(value, "record", value)
            found = record.get("run_id") if isinstance(record, Mapping) else None
            found = found or getattr(record, "run_id", None)
            if isinstance(found, str) and found:
                yield found


def register() -> str:
    """Make the engine known to papermill and return its name."""
    papermill_engines.register(NAME, InProcessEngine)
    return NAME
