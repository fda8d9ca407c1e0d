"""One page for every run, made in the browser: what the page reads, a few dozen runs per file.

``run.html#run-ID`` loads the one file that holds its run, so ten thousand runs cost no more to
open than one. The files are scripts, because a page opened from disk may load nothing else.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from scalebook.measure import registered
from scalebook.measure.diagnosis import Diagnosis
from scalebook.report.base.columns import words_of
from scalebook.report.base.frames import ReportData
from scalebook.report.base.markup import anchor, script_json
from scalebook.report.base.naming import (
    Row,
    convention_title,
    headed,
    model_title,
    parted,
    platform_title,
    sentence,
    setting_words,
    titled,
    work_words,
)
from scalebook.report.base.quantities import duration, interval, number, percent, quantity
from scalebook.report.base.sections import peak
from scalebook.report.pages.throughput_page import costly, diagnoses
from scalebook.report.site import build_cache

PAGE = "run.html"
FOLDER = "data/run"
TOGETHER = 50  # runs in one file; run.js counts with the same number
MOST_POINTS = 150  # of a curve
CURVES = ("loss", "step_seconds", "allocated_gib", "power_watts")
SETTINGS = (
    "engine", "precision", "world_size", "nodes", "tensor_parallel_size", "pipeline_parallel_size",
    "context_parallel_size", "expert_parallel_size", "data_parallel_size", "sequence_length",
    "micro_batch_size", "global_batch_size", "recompute", "strategy", "accelerator", "started_at",
)  # fmt: skip


def write_details(data: ReportData, site: Path, cache: Path) -> None:
    """Write what the page of each run shows to files of TOGETHER runs, in the runs' order.

    Fitting the parts of each step takes a second: they are kept in ``cache`` for the next build.
    """
    if (content := build_cache.kept(cache / "parts.json")) is None:
        content = json.dumps({one.run_id: _parts(one) for one in diagnoses(data)}).encode()
        build_cache.keep(cache / "parts.json", content)
    parts = json.loads(content)
    folder = site / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    telemetry = io.BytesIO(build_cache.telemetry(data, cache))
    power = pl.read_parquet(telemetry, columns=["run_id", "time", "power_watts"])
    of_runs = _drawn(data.steps, power).partition_by("run_id", as_dict=True, include_key=False)
    for first in range(0, data.runs.height, TOGETHER):
        part = [
            _details(data, row, of_runs.get((row["run_id"],)), parts)
            for row in data.runs[first : first + TOGETHER].iter_rows(named=True)
        ]
        number_of_file = first // TOGETHER
        text = f"(window.SCALEBOOK_DETAILS=window.SCALEBOOK_DETAILS||{{}})[{number_of_file}]=\n"
        (folder / f"{number_of_file}.js").write_text(f"{text}{script_json(part)};\n", "utf-8")


def _drawn(steps: pl.DataFrame, telemetry: pl.DataFrame) -> pl.DataFrame:
    """Return what the curves of all runs show, in five digits; null for what is not finite."""
    known, numbers = steps.select("run_id", "step", "phase", *CURVES[:-1]), pl.col(pl.Float64)
    power = power_by_step(steps, telemetry)
    drawn = known.join(power, on=["run_id", "step"], how="left", maintain_order="left")
    rounded = drawn.with_columns(numbers.round_sig_figs(5))
    return rounded.with_columns(pl.when(numbers.is_finite()).then(numbers).name.keep())


def power_by_step(steps: pl.DataFrame, telemetry: pl.DataFrame) -> pl.DataFrame:
    """Return the mean draw of a device (W) during each step that has a reading, by run and step."""
    readings = telemetry.select("run_id", "time", "power_watts").drop_nulls().sort("time")
    ends = steps.select("run_id", "step", "step_seconds", "finished_at").drop_nulls()
    within = readings.join_asof(
        ends.sort("finished_at"), left_on="time", right_on="finished_at", by="run_id",
        strategy="forward", check_sortedness=False,  # by the runs of each: they are sorted
    )  # fmt: skip
    before_end = (pl.col("finished_at") - pl.col("time")).dt.total_microseconds() / 1e6
    during = within.filter(before_end <= pl.col("step_seconds"))
    return during.group_by("run_id", "step").agg(pl.col("power_watts").mean())


def places(site: Path) -> set[str]:
    """Return the ids of the runs that a site's page of one run can show."""
    found: set[str] = set()
    for path in (site / FOLDER).glob("*.js"):
        rows = json.loads(path.read_text("utf-8").partition("\n")[2].rstrip(";\n"))
        found.update(row["id"] for row in rows)
    return found


def _details(
    data: ReportData, row: Row, steps: pl.DataFrame | None, parts: Mapping[str, Any]
) -> dict[str, Any]:
    run_id = row["run_id"]
    found = data.diagnoses.get(run_id)
    return {
        "id": run_id,
        "anchor": anchor(run_id),
        "title": f"{model_title(row['model'])} on {platform_title(row['platform'])}",
        "subtitle": work_words(row),
        "status": f"{row['status']} · {row['source']}".replace("_", " ").capitalize(),
        "reason": row["reason"] or row["throughput_reason"] or "",
        "results": [list(pair) for pair in _results(row)],
        "settings": [
            [headed(setting_words(name)), titled(_setting(row[name]))]
            for name in SETTINGS
            if row.get(name) is not None
        ],
        "otherwise": [
            [sentence(one)]
            for one in (*data.differences.get(run_id, ()), *data.notes.get(run_id, ()))
        ],
        "causes": [
            [*parted(" ".join([sentence(one.says), *one.advice]))]
            for one in (costly(found) if found else ())
        ],
        "curves": _curves(steps),
        "log": list(data.log_tails.get(run_id, ())),
        "parts": parts.get(run_id, []),
    }


def _parts(found: Diagnosis) -> list[tuple[str, float]]:
    labels = {name: words["label"] for name, words in words_of("waterfall").items()}
    return [
        (labels.get(one.name) or headed(setting_words(one.name)), one.step_fraction)
        for one in (found.waterfall.parts if found.waterfall else ())
        if one.step_fraction
    ]


def _setting(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:%Y-%m-%d %H:%M:%S} UTC" if isinstance(value, datetime) else str(value)


def _results(row: Row) -> Iterator[tuple[str, str]]:
    """Yield what a run reached, in words with units, as far as it is known."""
    if row["rate"] is not None:
        ends = row["rate_low"], row["rate_high"]
        steps = f", {row['measured_steps']:,} measured steps" if row["measured_steps"] else ""
        yield "Throughput", interval(row["rate"], *ends, row["rate_unit"]) + steps
    for name, key, show in _RESULTS:
        if row.get(key) is not None:
            ends = [show(end) for part in ("low", "high") if (end := row.get(f"{key}_{part}"))]
            within = f" ({' to '.join(ends)})" if ends else ""
            yield name, show(row[key]) + within + (f" of the {peak(row)}" if key == "mfu" else "")
    for one in registered.every():
        if (value := row.get(one.name)) is not None:
            yield one.words, _shown(value, one.unit)


def _shown(value: Any, unit: str) -> str:
    """Return the value of a registered metric with its unit."""
    if isinstance(value, bool | str):
        return str(value)
    return percent(value) if unit == "fraction" else quantity(value, unit)


_RESULTS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("MFU", "mfu", percent),
    ("Model rate", "model_tflops_per_second_per_gpu", lambda x: quantity(x, "TFLOP/s per GPU")),
    ("Convention", "flops_convention", convention_title),
    ("Median step", "step_seconds_median", duration),
    ("Peak memory", "peak_memory_gib", lambda x: quantity(x, "GiB")),
    ("Mean power", "mean_power_watts", lambda x: quantity(x, "W per GPU")),
    ("Mean clock", "mean_clock_mhz", lambda x: quantity(x, "MHz", 4)),
    ("Hottest", "max_temperature_celsius", lambda x: quantity(x, "°C")),
    ("Energy", "energy_joules_per_token", lambda x: quantity(1000 * x, "mJ per token")),
    ("Last loss", "loss_last", lambda x: number(x, 4)),
)


def _curves(steps: pl.DataFrame | None) -> dict[str, list[Any]]:
    """Return the columns of a run's steps that have a value, thinned evenly to MOST_POINTS."""
    if steps is None or steps.is_empty():
        return {}
    shown = steps.gather_every(-(-steps.height // MOST_POINTS))
    return {one.name: one.to_list() for one in shown if one.count()}
