"""The rows of very long tables in files beside the pages, read when a table comes into sight.

A page of ten thousand runs would weigh tens of megabytes with them. The files are scripts, because
a page that is opened from the file system may load scripts and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from scalebook.report.base.markup import Markup
from scalebook.report.site.notebook import Cell

FOLDER = "data/rows"
HEAVY = 200_000  # characters of rows that a page holds itself at most
ROWS = re.compile(r'<script type="application/json" class="sb-rows">(.*?)</script>', re.DOTALL)
PLACE = Markup(
    '<script type="application/json" class="sb-rows" data-src="{}" data-rows="{}" '
    'data-anchors="{}"></script>'
)
TEXT = "(window.SCALEBOOK_ROWS=window.SCALEBOOK_ROWS||{{}})[{}]=\n{};\n"


def move_out(cells: tuple[Cell, ...], slug: str, site: Path) -> tuple[Cell, ...]:
    """Return a page's cells with the rows of heavy tables written to files under ``site``."""
    made = 0

    def moved(match: re.Match[str]) -> str:
        nonlocal made
        if len(match[1]) <= HEAVY:
            return match[0]
        made += 1
        name = f"{FOLDER}/{slug}-{made}.js"
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TEXT.format(json.dumps(name), match[1]), encoding="utf-8")
        rows = json.loads(match[1])
        return PLACE.format(name, len(rows), "yes" if any(row[1] for row in rows) else "no")

    return tuple(
        replace(cell, texts=tuple(ROWS.sub(moved, text) for text in cell.texts)) for cell in cells
    )


def anchors(path: Path) -> Iterator[str]:
    """Yield the id of each row in such a file that has one."""
    rows = path.read_text(encoding="utf-8").partition("\n")[2].removesuffix(";\n")
    yield from (row[1] for row in json.loads(rows) if row[1])
