"""Scaling: laws only where runs differ in size alone, with their base, band and limits named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from simulated import H100, config, write_run, write_sample
from test_report_findings import words

from scalebook.measure.verdicts import compare
from scalebook.report.base.frames import load
from scalebook.report.base.scaling_series import ScalingSeries, scaling_findings, scaling_series
from scalebook.report.base.versus import estimate_of
from scalebook.report.charts import by_size
from scalebook.report.charts.scaling_charts import node_border
from scalebook.report.pages import scaling_page

BIG: dict[str, Any] = {
    "platform": "h100", "model": "llama3.1-8b", "precision": "bf16", "sequence_length": 8192,
}  # fmt: skip


def write(folder: Path, gpus: int, seconds: float, batch: int, **changes: Any) -> None:
    made = config(**(BIG | changes), world_size=gpus, nodes=-(-gpus // 8), global_batch_size=batch)
    name = f"gpus{gpus}-batch{batch}" + "".join(f"-{value}" for value in changes.values())
    write_run(folder, name, made, seconds=seconds, device=H100)


def found(folder: Path) -> tuple[ScalingSeries, ...]:
    return scaling_series(load(folder).completed)


@pytest.fixture
def weak(tmp_path: Path) -> tuple[ScalingSeries, ...]:
    for gpus, seconds in ((8, 16.0), (16, 17.0), (32, 18.5)):
        write(tmp_path, gpus, seconds, 16 * gpus)
    return found(tmp_path)


def test_weak_and_strong_scaling_are_told_apart(tmp_path: Path) -> None:
    for gpus in (8, 16, 32):
        write(tmp_path, gpus, 16.0, 16 * gpus)
        if gpus > 8:
            write(tmp_path, gpus, 16.0 * 8 / gpus, 128)
    arms = scaling_page.arms(found(tmp_path))
    assert {arm.kind: arm.sizes for arm in arms} == {"weak": [8, 16, 32], "strong": [8, 16, 32]}
    by_kind = {arm.kind: arm for arm in arms}
    assert {row["global_batch_size"] for row in by_kind["strong"].runs} == {128}
    assert {r["global_batch_size"] / r["world_size"] for r in by_kind["weak"].runs} == {16}


def test_an_efficiency_has_the_interval_that_compare_gives_the_rates_per_gpu(
    tmp_path: Path, weak: tuple[ScalingSeries, ...]
) -> None:
    base, *larger = weak[0].points.iter_rows(named=True)
    assert (base["efficiency_low"], base["efficiency_high"]) == (None, None)
    for row in larger:
        verdict = compare([estimate_of(row)], [estimate_of(base)])
        assert (row["efficiency_low"], row["efficiency_high"]) == (verdict.low, verdict.high)
        assert row["efficiency_low"] < row["scaling_efficiency"] < row["efficiency_high"]
    said = words(scaling_findings(weak))
    low, high = (100 * row[f"efficiency_{end}"] for end in ("low", "high"))
    assert f"({low:.3g} % to {high:.3g} %, equal work per GPU) with" in said.replace("\u202f", " ")


def test_runs_of_another_layout_or_batch_are_in_no_law(tmp_path: Path) -> None:
    write(tmp_path, 8, 16.0, 128)
    write(tmp_path, 16, 17.0, 128 + 64, tensor_parallel_size=2)
    every = found(tmp_path)
    assert len(every) == 1
    assert scaling_page.arms(every) == ()
    assert "differ with the size, so no law can be fitted" in words(scaling_page.findings(every))


def test_a_size_measured_with_another_switch_is_no_base_of_the_others(tmp_path: Path) -> None:
    for gpus in (8, 16):
        write(tmp_path, gpus, 16.0, 16 * gpus)
        write(tmp_path, gpus, 20.0, 16 * gpus, fused_attention="off")
    write(tmp_path, 8, 8.0, 128, layer_spec="transformer_engine")
    every = found(tmp_path)
    assert [item.points["world_size"].to_list() for item in every] == [[8, 16], [8, 16]]
    for item in every:
        assert item.points["scaling_efficiency"].to_list() == pytest.approx([1, 1], abs=0.02)
    assert sorted("fused attention" in item.group for item in every) == [False, True]


def test_a_law_names_its_base_and_its_projection_is_that_of_the_scaling_module(
    weak: tuple[ScalingSeries, ...],
) -> None:
    (arm,) = scaling_page.arms(weak)
    text = words(scaling_page.findings(weak))
    rate = arm.runs[0]["tokens_per_second"]
    assert f"the base is 8 GPUs on 1 node at {rate:,.0f} tokens/s." in text
    farthest = arm.project(4 * 32)
    assert farthest.limit_world_size == 128
    projected = words(scaling_page.projections(weak))
    assert f"{farthest.tokens_per_second:,.0f}"[:3] in projected
    assert "256 GPUs are 8 times the largest measured run" in projected


def test_what_limits_every_projection_is_said_once(weak: tuple[ScalingSeries, ...]) -> None:
    table = str(scaling_page.projections(weak))
    assert table.count("Measure a larger run.</td>") == 1
    assert "Measure a larger run." not in words(scaling_page.findings(weak))


def test_the_drawn_law_is_the_fitted_one_with_its_band(weak: tuple[ScalingSeries, ...]) -> None:
    (arm,) = scaling_page.arms(weak)
    law = arm.law()
    assert not isinstance(law, str)
    curve = scaling_page.curve(arm, law)
    assert (curve["world_size"].min(), curve["world_size"].max()) == (8, 128)
    for row in curve.iter_rows(named=True):
        assert (row["value"], row["low"], row["high"]) == law.predict(row["world_size"])
        assert row["low"] < row["value"] < (row["high"] or float("inf"))
        assert row["projected"] == (row["world_size"] > 32)
        each = arm.runs[0]["tokens_per_second"] / 8
        assert row["ideal"] == pytest.approx(each * row["world_size"])


def test_two_sizes_are_too_few_and_that_is_said(tmp_path: Path) -> None:
    write(tmp_path, 8, 16.0, 128)
    write(tmp_path, 16, 17.0, 256)
    every = found(tmp_path)
    text = words(scaling_page.findings(every))
    assert "Nothing is fitted or projected for 1 set of runs. A law needs runs at 3 world" in text
    assert "there are 2" in text
    assert scaling_page.figures(every) is None
    assert words(scaling_page.projections(every)) == ""


def test_runs_in_one_node_are_not_projected_across_its_border(tmp_path: Path) -> None:
    for gpus, seconds in ((1, 16.0), (2, 16.2), (4, 16.5)):
        write(tmp_path, gpus, seconds, 16 * gpus)
    every = found(tmp_path)
    (arm,) = scaling_page.arms(every)
    assert arm.project(8).limit_world_size == 8  # a node of H100s
    assert arm.project(8).tokens_per_second is not None
    assert "says nothing about the network" in (arm.project(16).reason or "")
    assert "says nothing about the network" in words(scaling_page.projections(every))


def test_of_a_size_that_ran_twice_the_fastest_counts(tmp_path: Path) -> None:
    for gpus in (8, 16, 32):
        write(tmp_path, gpus, 16.0, 16 * gpus)
    write(tmp_path, 16, 12.0, 256, seed=2)
    (arm,) = scaling_page.arms(found(tmp_path))
    assert [row["run_id"] for row in arm.runs][1] == "gpus16-batch256-2"


def test_processes_of_a_cpu_have_no_law(tmp_path: Path) -> None:
    every = found(write_sample(tmp_path))
    assert {arm.runs[0]["platform"] for arm in scaling_page.arms(every)} == {"h100"}
    assert "cores, so nothing is fitted" in words(scaling_page.findings(every))


def test_the_efficiency_is_drawn_next_to_an_ideal_of_one(
    weak: tuple[ScalingSeries, ...],
) -> None:
    figures = scaling_page.charts(weak)
    assert figures is not None
    figure = figures.parts[0][1]
    layers = figure.spec()["layer"]
    (rule,) = (one for one in layers if "ideal" in one["encoding"].get("y", {}).get("field", ""))
    assert rule["data"]["values"] == [{"ideal": 1}]
    values = next(one["data"]["values"] for one in layers if "color" in one["encoding"])
    (share,) = (value["scaling_efficiency"] for value in values if value["world_size"] == 32)
    told = figures.parts[0][1].description.replace("\N{NO-BREAK SPACE}", " ")
    assert f"the fastest on 32 reaches {100 * share:.1f} % of the ideal" in told


def test_the_border_of_a_node_is_drawn_between_the_sizes_on_its_sides(
    weak: tuple[ScalingSeries, ...],
) -> None:
    figures = scaling_page.charts(weak)
    assert figures is not None
    figure = figures.parts[0][1]
    rules = [layer for layer in figure.spec()["layer"] if layer["mark"]["type"] == "rule"]
    (border,) = (rule for rule in rules if "x" in rule["encoding"])
    (value,) = border["data"]["values"]
    assert value["world_size"] == pytest.approx((8 * 16) ** 0.5)
    assert border["encoding"]["x"]["field"] == "world_size"
    assert figure.description.endswith("right of it runs have more nodes.")
    assert figure.picture().startswith("<svg")


def test_no_border_is_drawn_within_a_node_or_where_its_sides_overlap(tmp_path: Path) -> None:
    for gpus in (2, 4):
        write(tmp_path, gpus, 16.0, 16 * gpus)
    (series,) = found(tmp_path)
    assert node_border(series.points) is None
    figure = by_size(series.points, "GPUs")
    assert "border" not in figure.description
    spread = pl.DataFrame({"world_size": [8, 8, 16], "nodes": [1, 2, 2]})
    assert node_border(spread) is None
    assert node_border(spread[1:]) is None
    unknown = pl.DataFrame({"world_size": [8, 16], "nodes": [None, 2]})  # may be on one or more
    assert node_border(unknown) is None


def test_every_chart_compiles_to_a_picture(weak: tuple[ScalingSeries, ...]) -> None:
    for figures in (scaling_page.figures(weak), scaling_page.charts(weak)):
        assert figures is not None
        assert figures.parts[0][1].picture().startswith("<svg")
    assert "128" in words(scaling_page.projections(weak))


def test_of_many_groups_the_first_are_drawn_and_the_rest_are_counted(
    weak: tuple[ScalingSeries, ...],
) -> None:
    most = scaling_page.MOST_SERIES
    many = weak * (most + 3)
    drawn = scaling_page.charts(many)
    assert drawn is not None
    assert len(drawn.parts) == most
    said = "Drawn are {} of {} groups of runs"
    assert said.format(most, len(many)) in words(scaling_page.findings(many))
    assert "groups of runs;" not in words(scaling_page.findings(many[:most]))


def test_no_run_gives_no_law_and_no_error() -> None:
    assert words(scaling_page.findings(())) == ""
    assert scaling_page.figures(()) is None
    assert scaling_page.charts(()) is None


def test_the_interval_of_an_efficiency_on_a_cpu_is_of_the_rate_per_process(tmp_path: Path) -> None:
    write_run(tmp_path, "one", config(global_batch_size=8), seconds=0.1)
    write_run(tmp_path, "two", config(world_size=2, global_batch_size=8), seconds=0.1)
    points = found(tmp_path)[0].points
    row = points.filter(pl.col("run_id") == "two").row(0, named=True)
    # as fast on two processes as on one: half of each is lost
    assert row["scaling_efficiency"] == pytest.approx(0.5, rel=0.05)
    assert row["efficiency_low"] < row["scaling_efficiency"] < row["efficiency_high"] < 0.6
