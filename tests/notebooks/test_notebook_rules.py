"""The notebooks keep their rules: parameters first, short cells, no outputs, no logic."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from scalebook.report.site.notebook import split_options

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
PARAMETER = re.compile(r"^[a-z0-9_]+: (str|int|float|bool) = [^=#(]+(  # .+)?$")
MAX_LINES = 12

pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)


def cells(path: Path, kind: str = "code") -> list[dict[str, Any]]:
    return [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == kind]


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def test_a_name_is_two_digits_and_a_word(path: Path) -> None:
    assert re.fullmatch(r"[0-9]{2}_[a-z]+(_[a-z]+)*\.ipynb", path.name)


def test_the_first_code_cell_holds_typed_parameters_alone(path: Path) -> None:
    first, *others = cells(path)
    assert first["metadata"]["tags"] == ["parameters"]
    lines = [line for line in source(first).splitlines() if line.strip()]
    assert lines
    for line in lines:
        assert line.startswith("#") or PARAMETER.match(line), line
    assert not any("parameters" in cell["metadata"].get("tags", ()) for cell in others)


def test_no_cell_keeps_an_output_or_a_count(path: Path) -> None:
    for cell in cells(path):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None


def test_every_other_cell_is_short(path: Path) -> None:
    for cell in cells(path)[1:]:
        _, code = split_options(source(cell))
        assert len(code.splitlines()) <= MAX_LINES, code


def test_no_cell_defines_loops_or_parses(path: Path) -> None:
    forbidden = (
        *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.For, ast.While),
        *(ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp),
    )
    for cell in cells(path)[1:]:
        for node in ast.walk(ast.parse(source(cell))):
            assert not isinstance(node, forbidden), source(cell)


def test_no_markdown_has_what_only_quarto_draws(path: Path) -> None:
    for cell in cells(path, "markdown"):
        assert not re.search(r"^:::|\{\{<|\$", source(cell), re.MULTILINE), source(cell)


def test_every_cell_has_an_id(path: Path) -> None:
    ids = [cell["id"] for kind in ("code", "markdown", "raw") for cell in cells(path, kind)]
    assert len(set(ids)) == len(ids)


def test_a_figure_has_caption_and_alternative_text_and_a_table_a_caption(path: Path) -> None:
    labels = []
    for cell in cells(path):
        options = dict(split_options(source(cell))[0])
        label = options.get("label", "")
        labels += [label] if label else []
        if label.startswith("fig-"):
            assert options["fig-cap"] and options["fig-alt"], label
        if label.startswith("tbl-"):
            assert options["tbl-cap"], label
    assert len(set(labels)) == len(labels)
