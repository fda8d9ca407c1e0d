"""A notebook file as the renderers see it: plain JSON, cells with options and outputs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

import yaml

from scalebook.errors import ReportError
from scalebook.report.base.markup import escape, number_runs, raw_html

# safe like yaml.safe_load; the one in C, where it is built in, takes a tenth of the time
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
HEADING = re.compile(r"#+ .*")  # a cell of one line
OPTION = re.compile(r"^#\|\s?(.*)$")


@dataclass(frozen=True, slots=True)
class NotebookCell:
    """One cell. ``texts`` are its outputs as Markdown or plain text, ``warned`` its stderr."""

    kind: str  # "code", "markdown" or "raw"
    source: str  # without the options
    tags: frozenset[str] = frozenset()
    options: tuple[tuple[str, Any], ...] = ()  # the ``#|`` lines at its top, in order
    texts: tuple[str, ...] = ()
    warned: tuple[str, ...] = ()

    def option(self, name: str, default: Any = None) -> Any:
        """Return an option's value."""
        return dict(self.options).get(name, default)


def read(path: Path) -> tuple[NotebookCell, ...]:
    """Return the cells of a notebook file."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return tuple(_cell(cell) for cell in content["cells"])


def _cell(cell: dict[str, Any]) -> NotebookCell:
    outputs: list[dict[str, Any]] = cell.get("outputs", [])
    settings, source = split_options(_text(cell["source"]))
    shown = [_output(output) for output in outputs if output.get("name") != "stderr"]
    return NotebookCell(
        kind=cell["cell_type"],
        source=source,
        tags=frozenset(cell["metadata"].get("tags", ())),
        options=settings,
        texts=tuple(text for text in shown if text),
        warned=tuple(_text(out["text"]) for out in outputs if out.get("name") == "stderr"),
    )


def _output(output: dict[str, Any]) -> str:
    """Return an output's text: Markdown where there is some, never the HTML."""
    if output["output_type"] == "stream":
        return _text(output["text"])
    data: dict[str, Any] = output.get("data", {})
    return _text(data.get("text/markdown") or data.get("text/plain", ""))


def _text(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "".join(value)


def split_options(source: str) -> tuple[tuple[tuple[str, Any], ...], str]:
    """Return the ``#|`` options at the top of a cell and the code below them."""
    lines = source.splitlines()
    end = next((i for i, line in enumerate(lines) if not OPTION.match(line)), len(lines))
    text = "\n".join(OPTION.sub(r"\1", line) for line in lines[:end])
    return tuple(yaml_mapping(text).items()), "\n".join(lines[end:]).strip()


def yaml_mapping(text: str) -> dict[str, Any]:
    """Return a YAML mapping; an empty one for anything else."""
    try:
        parsed: object = yaml.load(text, LOADER) if text else {}
    except yaml.YAMLError as error:
        raise ReportError(f"The options of a cell are not YAML: {text!r}") from error
    return cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else {}


def front_matter(cells: tuple[NotebookCell, ...]) -> dict[str, Any]:
    """Return the YAML of the first raw cell: title and subtitle."""
    raw = next((cell.source for cell in cells if cell.kind == "raw"), "")
    return yaml_mapping(raw.strip().strip("-"))


def write(path: Path, cells: tuple[NotebookCell, ...]) -> None:
    """Write cells as a notebook file for Quarto, without their options and outputs as printed text.

    Printed text of a cell with the option ``output: asis`` is the one form of output that Quarto
    puts into a page as it is, without adding a script of its own.
    """
    written = [_written(index, cell) for index, cell in enumerate(cells)]
    python = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {
        "cells": written,
        "metadata": {"kernelspec": python},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _written(index: int, cell: NotebookCell) -> dict[str, Any]:
    basic: dict[str, Any] = {"cell_type": cell.kind, "id": f"cell-{index}", "metadata": {}}
    if cell.kind != "code":
        return basic | {"source": _lines(cell.source)}
    streams = [{"output_type": "stream", "name": "stdout", "text": text} for text in cell.texts]
    source = _lines(f"#| echo: false\n#| output: asis\n{cell.source}")
    return basic | {"source": source, "outputs": streams, "execution_count": index + 1}


def _lines(text: str) -> list[str]:
    """Return a text as the lines that a notebook holds: of one text, Quarto drops the line ends."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


HIDDEN_TAGS = frozenset({"parameters", "injected-parameters"})
FIGURE_MARKS = ("sb-chart", "<table")


def prepare(
    cells: tuple[NotebookCell, ...], numbers: Mapping[str, int]
) -> tuple[NotebookCell, ...]:
    """Return the page's cells.

    Parameter cells, empty outputs and headings of nothing else go; a figure or table cell that gave
    only words loses its caption; the alternative text of a cell goes before the one that its chart
    brings; runs are called by their ``numbers``.
    """
    return tuple(_without_empty_sections([*_prepared(cells, numbers)]))


def _without_empty_sections(cells: Sequence[NotebookCell]) -> Iterator[NotebookCell]:
    for place, cell in enumerate(cells):
        below = [*takewhile(lambda one: one.kind == "code", cells[place + 1 :])]
        is_heading = cell.kind == "markdown" and HEADING.fullmatch(cell.source.strip())
        if not (is_heading and below and not any(one.texts for one in below)):
            yield cell


def _prepared(
    cells: tuple[NotebookCell, ...], numbers: Mapping[str, int]
) -> Iterator[NotebookCell]:
    for cell in cells:
        if cell.tags & HIDDEN_TAGS:
            continue
        texts = tuple(
            number_runs(_with_alt(text, cell), numbers)
            for text in cell.texts
            if raw_html(text) != ""
        )
        shown = replace(cell, texts=texts)
        is_figure = any(mark in text for text in texts for mark in FIGURE_MARKS)
        # words in the place of a figure need neither a caption nor their code
        yield shown if is_figure else replace(shown, options=())


def _with_alt(text: str, cell: NotebookCell) -> str:
    alt = cell.option("fig-alt")
    if not alt:
        return text
    return text.replace('role="img" aria-label="', f'role="img" aria-label="{escape(alt)} ')
