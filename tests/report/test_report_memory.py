"""The memory page: prediction beside measurement, and maps that say what they rest on."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from simulated import H100, config, write_run, write_sample
from test_report_findings import words

from scalebook.report.base import frames
from scalebook.report.base.frames import ReportData, load
from scalebook.report.pages import memory_page

BIG: dict[str, Any] = {
    "platform": "h100", "model": "llama3.1-8b", "precision": "bf16", "sequence_length": 4096,
    "world_size": 8, "tensor_parallel_size": 2, "global_batch_size": 32,
}  # fmt: skip


def empty(folder: Path) -> ReportData:
    return frames.collect(folder, (), ())


def write(folder: Path, name: str, gib: float | None, status: str = "completed", **changes: Any):
    """Write a run whose every step had this peak."""
    steps = 30 if status == "completed" else 0
    run = write_run(
        folder, name, config(**(BIG | changes)), device=H100, status=status, steps=steps,
        reason=None if status == "completed" else "The GPU's memory ran out.",
    )  # fmt: skip
    path = run / "steps.jsonl"
    lines = [json.loads(line) | {"allocated_gib": gib} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def data(tmp_path: Path) -> ReportData:
    for micro, gib in ((1, 50.0), (2, 60.0)):
        write(tmp_path, f"micro{micro}", gib, micro_batch_size=micro)
    write(tmp_path, "micro8", None, "out_of_memory", micro_batch_size=8)
    return load(tmp_path)


def test_the_difference_is_measured_less_predicted(data: ReportData) -> None:
    compared = memory_page.compared(data)
    assert set(compared["run_id"]) == {"micro1", "micro2"}
    for row in compared.iter_rows(named=True):
        parts = data.predictions[row["run_id"]].parts
        assert parts is not None
        assert parts["total"] == pytest.approx(sum(v for k, v in parts.items() if k != "total"))
        assert row["difference_gib"] == pytest.approx(row["peak_memory_gib"] - parts["total"])


def test_a_sentence_has_the_extremes_of_the_table(data: ReportData) -> None:
    shares = [
        100 * row["peak_memory_gib"] / row["predicted_gib"]
        for row in memory_page.compared(data).iter_rows(named=True)
    ]
    text = words(memory_page.findings(data))
    assert f"The peak is {min(shares):.3g} % to {max(shares):.3g} % of the prediction" in text
    assert "2 completed runs with a prediction and a measured peak" in text
    assert "(simulated)" in text


def test_parts_of_a_bar_add_up_to_the_prediction(data: ReportData) -> None:
    figures = memory_page.bars(data)
    assert figures is not None
    layers = figures.parts[0][1].spec()["layer"]
    values = layers[0]["data"]["values"]
    for run_id in ("micro1", "micro2", "micro8"):
        parts = data.predictions[run_id].parts
        assert parts is not None
        total = sum(value["gib"] for value in values if value["run_id"] == run_id)
        assert total == pytest.approx(parts["total"], rel=1e-4)
    assert layers[-1]["data"]["values"] == [{"gib": 80.0}]  # the memory of an H100
    peaks = {value["run_id"] for value in layers[1]["data"]["values"]}
    assert peaks == {"micro1", "micro2"}


def test_model_states_are_those_that_one_can_count_by_hand(data: ReportData) -> None:
    # Llama 3.1 8B has 8,030,261,248 parameters, all but the norms halved by TP2; DP4 shares out
    # fp32 master weights and two moments (12 bytes); bf16 weights take 2, fp32 gradients 4.
    parts = data.predictions["micro1"].parts
    assert parts is not None
    half = 8_030_261_248 / 2 / 2**30
    assert parts["parameters"] == pytest.approx(2 * half, rel=1e-3)
    assert parts["gradients"] == pytest.approx(4 * half, rel=1e-3)
    assert parts["optimizer"] == pytest.approx(12 * half / 4, rel=1e-3)


def test_a_run_that_ran_out_is_held_against_the_prediction(data: ReportData) -> None:
    parts = data.predictions["micro8"].parts
    assert parts is not None
    verdict = "as predicted" if parts["total"] > 80 else "although less"
    text = words(memory_page.findings(data))
    head = rf"1 run ran out of memory,? {verdict}"
    told = rf"{head}.*: micro8 \(.*, {parts['total']:.3g} of 80.0 GiB predicted\)"
    assert re.search(told, text)


def test_a_map_tells_shown_inferred_and_predicted_apart(data: ReportData) -> None:
    ((_, places),) = memory_page.maps(data)
    kinds = {row["micro"]: (row["kind"], row["verdict"]) for row in places.iter_rows(named=True)}
    assert kinds["1"] == ("shown by a run", "fits")
    assert kinds["8"] == ("shown by a run", "out of memory")
    assert kinds["4"][0] == "predicted"
    assert "memory runs out at" in words(memory_page.map_findings(data))
    assert "In 0 of 1 map no cell runs out of memory" in words(memory_page.map_findings(data))
    figures = memory_page.figures(data)
    assert figures is not None
    scale = figures.parts[0][1].spec()["layer"][0]["encoding"]["fillOpacity"]["scale"]
    alphas = dict(zip(scale["domain"], scale["range"], strict=True))
    assert alphas["shown by a run"] > alphas["predicted"]


def test_the_frontier_is_before_the_first_place_that_ran_out(data: ReportData) -> None:
    ((_, places),) = memory_page.maps(data)
    out = [
        int(row["micro"]) for row in places.iter_rows(named=True)
        if row["verdict"] == "out of memory"
    ]  # fmt: skip
    frontier = memory_page.frontier(places).to_dicts()
    assert [int(row["micro"]) for row in frontier] == [min(out)]


def test_configurations_that_disagree_in_one_place_are_not_averaged(tmp_path: Path) -> None:
    write(tmp_path, "small", 50.0)
    write(tmp_path, "large", None, "out_of_memory", global_batch_size=64)
    ((_, places),) = memory_page.maps(load(tmp_path))
    assert places.row(0, named=True)["verdict"] == "both"
    assert places.row(0, named=True)["runs"] == 2


def test_a_run_without_a_known_model_has_no_prediction_and_a_reason(tmp_path: Path) -> None:
    made = config().model_dump() | {"model": "<b>no such model"}
    write_run(tmp_path, "odd", config(), requested=made)
    data = load(tmp_path)
    found = data.predictions["odd"]
    assert found.parts is None
    assert "is not known" in (found.reason or "")
    html = str(memory_page.findings(data))
    assert "without a prediction" in html
    assert "<b>no such" not in html


def test_no_run_is_a_sentence_and_not_an_error(tmp_path: Path) -> None:
    data = empty(tmp_path)
    assert "No completed run has both" in words(memory_page.findings(data))
    assert "there is no map" in words(memory_page.map_findings(data))
    assert memory_page.scatter(data) is None
    assert memory_page.bars(data) is None
    assert memory_page.figures(data) is None
    assert words(memory_page.parts_table(data)) == words(memory_page.cells_table(data)) == ""


def test_every_chart_compiles_to_a_picture_and_says_what_it_shows(tmp_path: Path) -> None:
    data = load(write_sample(tmp_path))
    write(tmp_path, "micro2", 60.0, micro_batch_size=2)
    scatter, bars, maps = (
        memory_page.scatter(data), memory_page.bars(data), memory_page.figures(data)
    )  # fmt: skip
    assert scatter is not None
    assert bars is not None
    assert maps is not None
    for figure in (scatter, bars.parts[0][1], maps.parts[0][1]):
        assert figure.picture().startswith("<svg")
        assert figure.description.endswith(".")


def test_a_run_that_another_beats_in_memory_and_rate_is_not_on_the_line() -> None:
    runs = pl.DataFrame(
        {
            "run_id": ["least", "beaten", "middle", "as_large", "most"],
            "peak_memory_gib": [40.0, 50.0, 50.0, 60.0, 70.0],
            "tokens_per_second_per_gpu": [900.0, 880.0, 1000.0, 1000.0, 1100.0],
            "source": ["measured"] * 5,
            "label": list("abcde"),
        }
    )
    assert memory_page.unbeaten(runs) == ["least", "middle", "most"]
    figure = memory_page.speed_against_memory(runs, memory_page.unbeaten(runs))
    assert figure is not None
    assert "3 of them are the fastest for their memory, from 40.0\xa0GiB" in figure.description
    assert memory_page.speed_against_memory(runs[:2], ["least"]) is None
