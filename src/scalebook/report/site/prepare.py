"""An executed notebook's cells -> those that a renderer gets, the same for both renderers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from scalebook.report.base.markup import escape, number_runs, raw_html
from scalebook.report.site.notebook import Cell

HIDDEN_TAGS = frozenset({"parameters", "injected-parameters"})
FIGURES = ("sb-chart", "<table")


def prepare(cells: tuple[Cell, ...], numbers: Mapping[str, int]) -> tuple[Cell, ...]:
    """Return the page's cells.

    Parameter cells and empty outputs go; a figure or table cell that gave only words loses its
    caption; the alternative text of a cell goes before the one that its chart brings; runs are
    called by their ``numbers``.
    """
    return tuple(_prepared(cells, numbers))


def _prepared(cells: tuple[Cell, ...], numbers: Mapping[str, int]) -> Iterator[Cell]:
    for cell in cells:
        if cell.tags & HIDDEN_TAGS:
            continue
        texts = tuple(
            number_runs(_with_alt(text, cell), numbers)
            for text in cell.texts
            if raw_html(text) != ""
        )
        shown = replace(cell, texts=texts)
        is_figure = any(mark in text for text in texts for mark in FIGURES)
        # words in the place of a figure need no caption, and nobody needs the code of words
        yield shown if is_figure else replace(shown, options=(("echo", False),))


def _with_alt(text: str, cell: Cell) -> str:
    alt = cell.option("fig-alt")
    if not alt:
        return text
    return text.replace('role="img" aria-label="', f'role="img" aria-label="{escape(alt)} ')
