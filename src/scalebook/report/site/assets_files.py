"""The files that all pages share: styles, scripts, chart themes, what the filter knows of runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl

from scalebook.report.base.markup import script_json
from scalebook.report.charts import configs
from scalebook.report.site import preview

STYLES = ("scalebook.css", "preview.css")
# In the order that a page loads them in, behind the chart library.
SCRIPTS = (
    "scalebook-charts.js",
    "scalebook-runs.js",
    "scalebook-filter.js",
    "scalebook.js",
    "cost.js",
)
FACETS = ("platform", "model", "strategy", "source")  # what a page is filtered by


def write_assets(folder: Path, library: bytes, runs: pl.DataFrame) -> None:
    """Write the files that all pages share."""
    for name in (*STYLES, *SCRIPTS[2:], "run.js"):
        shutil.copyfile(preview.ASSETS / name, folder / name)
    themes = json.dumps(configs(), separators=(",", ":"))
    (folder / SCRIPTS[0]).write_text(f"window.SCALEBOOK_CHARTS={themes};\n")
    (folder / SCRIPTS[1]).write_text(f"window.SCALEBOOK_RUNS={run_facts(runs)};\n")
    (folder / "vega-bundle.js").write_bytes(library)


def run_facts(runs: pl.DataFrame) -> str:
    """Return the facets of every run as JSON: lists of values, and a run's places in them."""
    values: list[list[str | None]] = [
        runs[facet].unique(maintain_order=True).to_list() for facet in FACETS
    ]
    places = [{value: place for place, value in enumerate(column)} for column in values]
    entries = [
        [run_id, *(places[i][row[i]] for i in range(len(FACETS)))]
        for run_id, *row in runs.select("run_id", *FACETS).iter_rows()
    ]
    return str(script_json({"values": values, "runs": entries}))
