"""The training curves: windows that rates rest on, and runs that broke off, are visible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from simulated import H100, config, write_run, write_sample
from test_report_findings import words

from scalebook.report.base import frames
from scalebook.report.base.frames import load
from scalebook.report.charts.step_charts import MAX_RUNS, common_window
from scalebook.report.pages import curves_page
from scalebook.report.pages.curves_page import TITLES


def layers(figures: Any, number: int = 0) -> list[dict[str, Any]]:
    return figures.parts[number][1].spec()["layer"]


def values(layer: dict[str, Any]) -> list[dict[str, Any]]:
    return layer["data"]["values"]


def write_diverged(folder: Path, name: str = "diverged") -> Path:
    """Write a run whose loss is not finite from step 13 on, where it ends."""
    run = write_run(
        folder, name, config(), steps=14, status="diverged",
        reason="The loss was not finite in step 13.",
    )  # fmt: skip
    path = run / "steps.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines[12:]:
        line["loss"] = None
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_each_of_the_six_panels_is_there_and_compiles(tmp_path: Path) -> None:
    data = load(write_sample(tmp_path))
    panels = [curves_page.curves(data, field) for field in TITLES]
    panels += [curves_page.throughput(data), curves_page.memory(data)]
    assert len(panels) == 6
    for figures in panels:
        assert figures is not None
        for _, figure in figures.parts:
            assert figure.picture().startswith("<svg")
            assert figure.description.endswith(".")


def test_a_thick_line_is_the_window_that_the_rate_is_over(tmp_path: Path) -> None:
    write_run(tmp_path, "one", config(), steps=40)
    data = load(tmp_path)
    row = data.runs.row(0, named=True)
    figures = curves_page.curves(data, "step_seconds")
    points = values(figures.parts[0][1].spec())  # type: ignore[union-attr]
    steady = [point for point in points if point["steady"]]
    assert len(steady) == row["steady_steps"]
    assert steady[0]["step"] == row["steady_first_step"]
    tokens = config().tokens_per_step * len(steady)
    rate = tokens / sum(point["value"] for point in steady)
    assert rate == pytest.approx(row["tokens_per_second"], rel=1e-4)  # drawn to five digits


def test_the_shade_is_steady_in_every_run_that_has_a_steady_state(tmp_path: Path) -> None:
    for steps in (30, 40):
        write_run(tmp_path, f"steps{steps}", config(), steps=steps)
    data = load(tmp_path)
    windows = curves_page.steady_windows(data, data.runs)
    drawn = layers(curves_page.curves(data, "loss"))
    assert values(drawn[0]) == [{"first": windows["first"].max(), "last": windows["last"].min()}]


def test_no_shade_where_no_step_is_steady_in_all(tmp_path: Path) -> None:
    write_run(tmp_path, "short", config(), steps=8)
    data = load(tmp_path)
    figures = curves_page.curves(data, "loss")
    assert "shaded" not in figures.parts[0][1].description  # type: ignore[union-attr]
    assert common_window(data.steps.head(0).with_columns(steady=True)) is None


def test_a_run_that_broke_has_a_cross_at_its_last_step_with_its_reason(tmp_path: Path) -> None:
    write_run(tmp_path, "whole", config())
    write_diverged(tmp_path)
    data = load(tmp_path)
    (cross,) = values(layers(curves_page.curves(data, "step_seconds"))[-1])
    assert (cross["run_id"], cross["status"], cross["step"]) == ("diverged", "diverged", 14)
    (cross,) = values(layers(curves_page.curves(data, "loss"))[-1])
    assert cross["step"] == 12  # the last one with a finite loss


def test_runs_that_broke_keep_a_place_among_many(tmp_path: Path) -> None:
    for number in range(MAX_RUNS + 3):
        write_run(tmp_path, f"run{number:02}", config(), steps=12)
    write_diverged(tmp_path, "broken")
    data = load(tmp_path)
    shown = curves_page.chosen(data.runs)
    assert shown.height == MAX_RUNS
    assert "broken" in set(shown["run_id"])
    spec = curves_page.curves(data, "loss").parts[0][1].spec()  # type: ignore[union-attr]
    assert spec["title"] == f"{MAX_RUNS} of {data.runs.height} runs"


def test_memory_that_still_rises_is_a_sentence(tmp_path: Path) -> None:
    run = write_run(tmp_path, "leak", config())
    assert "In none of 1 run did the peak memory rise" in words(
        curves_page.findings(load(tmp_path))
    )
    path = run / "steps.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["allocated_gib"] = 1 + line["step"] / 10
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    # the first measured step is 6 and the last 30
    said = "still rose after the warm-up in leak (from 1.60 to 4.00 GiB)"
    assert said in words(curves_page.findings(load(tmp_path)))


def test_bars_show_what_a_run_held_that_did_not_complete(tmp_path: Path) -> None:
    write_run(tmp_path, "whole", config())
    write_diverged(tmp_path)
    figures = curves_page.memory(load(tmp_path))
    assert figures is not None
    shown = {v["run_id"]: v["ending"] for v in figures.parts[0][1].spec()["data"]["values"]}
    assert shown == {"whole": "completed", "diverged": "did not complete"}


def test_a_gpu_is_shown_by_its_flop_rate(tmp_path: Path) -> None:
    big = config(platform="h100", model="llama3.1-8b", precision="bf16", world_size=8)
    write_run(tmp_path, "gpu", big, device=H100)
    data = load(tmp_path)
    figures = curves_page.throughput(data)
    assert figures is not None
    (bar,) = figures.parts[0][1].spec()["data"]["values"]
    rate = data.runs["model_tflops_per_second_per_gpu"][0]
    assert bar["value"] == pytest.approx(rate, rel=1e-5)  # charts hold six digits
    assert bar["reason"] == "completed"


def test_no_run_is_a_sentence_and_not_an_error(tmp_path: Path) -> None:
    data = frames.collect(tmp_path, (), ())
    assert "there is no curve" in words(curves_page.findings(data))
    assert [curves_page.curves(data, field) for field in TITLES] == [None] * 4
    assert curves_page.throughput(data) is None
    assert curves_page.memory(data) is None
    assert words(curves_page.left_out(data)) == ""
