"""The files next to the pages: styles, scripts, chart library, data, rows of long tables."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import polars as pl

from scalebook.errors import ReportError
from scalebook.report.base.frames import ReportData, telemetry_frame
from scalebook.report.base.markup import Markup, script_json
from scalebook.report.base.naming import TITLES
from scalebook.report.charts import configs
from scalebook.report.site import rendering
from scalebook.report.site.build_cache import keep, kept, telemetry
from scalebook.report.site.notebook import NotebookCell

STYLES = ("scalebook.css", "preview.css")
# In the order that a page loads them in, behind the chart library.
SCRIPTS = (
    "scalebook-charts.js",
    "scalebook-runs.js",
    "scalebook-filter.js",
    "scalebook.js",
    "cost.js",
    "compare.js",
)
FACETS = ("platform", "model", "strategy", "source")  # what a page is filtered by


def write_assets(folder: Path, library: bytes, runs: pl.DataFrame) -> None:
    """Write the files that all pages share."""
    for name in (*STYLES, *SCRIPTS[2:], "run.js"):
        shutil.copyfile(rendering.ASSETS / name, folder / name)
    themes = json.dumps(configs(), separators=(",", ":"))
    (folder / SCRIPTS[0]).write_text(f"window.SCALEBOOK_CHARTS={themes};\n")
    (folder / SCRIPTS[1]).write_text(f"window.SCALEBOOK_RUNS={run_facts(runs)};\n")
    (folder / "vega-bundle.js").write_bytes(library)


def run_facts(runs: pl.DataFrame) -> str:
    """Return the facets of every run as JSON: lists of values, a run's places, titles of values."""
    values = [runs[facet].unique(maintain_order=True).to_list() for facet in FACETS]
    places = [{value: place for place, value in enumerate(column)} for column in values]
    entries = [
        [run_id, *(places[i][row[i]] for i in range(len(FACETS)))]
        for run_id, *row in runs.select("run_id", *FACETS).iter_rows()
    ]
    titles = {
        value: TITLES[facet](value)
        for facet, column in zip(FACETS, values, strict=True)
        for value in column
        if facet in TITLES and value is not None
    }
    return str(script_json({"values": values, "runs": entries, "titles": titles}))


MAILED = ("runs.csv", "runs.parquet", "steps.parquet")  # what a report of one file holds
TIMES = "%Y-%m-%dT%H:%M:%S%.3fZ"  # of UTC, in CSV


def write_data(data: ReportData, folder: Path, cache: Path) -> None:
    """Write the tables of runs, steps and telemetry; ``cache`` belongs to these runs."""
    content = telemetry(data, cache)
    readings = pl.read_parquet(io.BytesIO(content))
    _write(folder, "parquet", {"runs": data.runs, "steps": data.steps})
    (folder / "telemetry.parquet").write_bytes(content)
    _write(folder, "csv", {"runs": data.runs, "telemetry": readings})


def write_tables(data: ReportData, folder: Path, kind: str) -> tuple[str, ...]:
    """Write runs, steps and telemetry as ``csv`` or ``parquet``; return the files' names."""
    readings = telemetry_frame(data.directories)
    return _write(folder, kind, {"runs": data.runs, "steps": data.steps, "telemetry": readings})


def _write(folder: Path, kind: str, frames: Mapping[str, pl.DataFrame]) -> tuple[str, ...]:
    folder.mkdir(parents=True, exist_ok=True)
    save = write_csv if kind == "csv" else pl.DataFrame.write_parquet
    for name, frame in frames.items():
        save(frame, folder / f"{name}.{kind}")
    return tuple(f"{name}.{kind}" for name in frames)


def write_csv(frame: pl.DataFrame, path: Path) -> None:
    """Write a table as CSV: lists are JSON, times ISO 8601, and no text is a formula."""
    nested = [name for name, kind in frame.schema.items() if isinstance(kind, pl.List)]
    lists = {name: frame[name].to_list() for name in nested}
    flat = frame.with_columns(
        pl.Series(name, [one if one is None else json.dumps(one) for one in values], pl.String)
        for name, values in lists.items()
    )
    text = pl.col(pl.String)
    # a quote before what a spreadsheet would run as a formula
    tame = pl.when(text.str.contains(r"^[=+\-@\t\r]")).then("'" + text).otherwise(text)
    flat.with_columns(tame.name.keep()).write_csv(path, datetime_format=TIMES)


ROWS_FOLDER = "data/rows"
HEAVY = 200_000  # characters of rows that a page holds itself at most
ROWS = re.compile(r'<script type="application/json" class="sb-rows">(.*?)</script>', re.DOTALL)
ROWS_PLACE = Markup(
    '<script type="application/json" class="sb-rows" data-src="{}" data-rows="{}" '
    'data-anchors="{}"></script>'
)
ROWS_SCRIPT = "(window.SCALEBOOK_ROWS=window.SCALEBOOK_ROWS||{{}})[{}]=\n{};\n"


def move_out(cells: tuple[NotebookCell, ...], slug: str, site: Path) -> tuple[NotebookCell, ...]:
    """Return a page's cells with the rows of heavy tables written to files under ``site``."""
    made = 0

    def moved(match: re.Match[str]) -> str:
        nonlocal made
        if len(match[1]) <= HEAVY:
            return match[0]
        made += 1
        name = f"{ROWS_FOLDER}/{slug}-{made}.js"
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(ROWS_SCRIPT.format(json.dumps(name), match[1]), encoding="utf-8")
        rows = json.loads(match[1])
        return ROWS_PLACE.format(name, len(rows), "yes" if any(row[1] for row in rows) else "no")

    return tuple(
        replace(cell, texts=tuple(ROWS.sub(moved, text) for text in cell.texts)) for cell in cells
    )


def anchors_of_rows(path: Path) -> Iterator[str]:
    """Yield the id of each row in such a file that has one."""
    rows = path.read_text(encoding="utf-8").partition("\n")[2].removesuffix(";\n")
    yield from (row[1] for row in json.loads(rows) if row[1])


# Bundling takes seconds of one core and holds Python's lock: another process does it, so that
# the pages are executed meanwhile.
BUNDLE = "import sys, vl_convert; sys.stdout.buffer.write(vl_convert.javascript_bundle().encode())"


def chart_library(cache: Path) -> bytes:
    """Return Vega, Vega-Lite and vega-embed as one script, kept in ``cache`` for the next build.

    The function around the chart_library keeps its own names out of the page; it sets
    ``window.vegaEmbed``.
    """
    path = cache / f"vega-bundle-{version('vl-convert-python')}.kept"
    if (before := kept(path)) is not None:
        return before
    done = subprocess.run([sys.executable, "-c", BUNDLE], capture_output=True, check=False)
    if done.returncode != 0 or b"vegaEmbed" not in done.stdout:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ReportError(f"vl-convert gave no chart library: {' '.join(last) or 'no message'}.")
    script = b"(function(){\n" + done.stdout + b"\n})();\n"
    keep(path, script)
    return script
