"""The page of the step's anatomy: bars, tables and sentences from one set of numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from simulated import H100, config, write_run
from traces import host, kernel, launch, write

from scalebook.measure.anatomy import Breakdown, Parts, TopKernel
from scalebook.measure.anatomy.breakdown import reduce_file
from scalebook.report.base import frames
from scalebook.report.base.frames import ReportData, load
from scalebook.report.pages import anatomy_page

SPLIT = {"world_size": 4, "pipeline_parallel_size": 4}


def keep(directory: Path, found: Breakdown, name: str = "breakdown.json") -> None:
    (directory / "profile").mkdir(exist_ok=True)
    (directory / "profile" / name).write_text(found.model_dump_json())


def example(**changes: Any) -> Breakdown:
    """A profiled step of 2 s: shares of 30, 40, 5, 15, 2.5 and 7.5 %."""
    parts = Parts(
        forward_seconds=0.6,
        backward_seconds=0.8,
        optimizer_seconds=0.1,
        exposed_communication_seconds=0.3,
        data_seconds=0.05,
        idle_seconds=0.15,
    )
    values: dict[str, Any] = {
        "rank": 0,
        "device": "gpu",
        "steps": 2,
        "step_seconds": 2.0,
        "parts": parts,
        "communication_seconds": 0.4,
        "overlapped_communication_seconds": 0.1,
        "exposed_by_collective": {"send_receive": 0.25, "all_reduce": 0.05},
        "kernel_seconds": 1.5,
        "launch_gap_seconds": 0.12,
        "kinds": {"gemm": 1.2, "communication": 0.4, "copy": 0.1},
        "top_kernels": (TopKernel(name="nvjet<script>", seconds=1.0, calls=64.0, kind="gemm"),),
        "kernels_per_step": 1000.0,
    }
    return Breakdown(**(values | changes))


def marks(directory: Path, **parts: float) -> None:
    """Add time marks to the steps of a run."""
    path = directory / "steps.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["part_seconds"] = {name: share * line["step_seconds"] for name, share in parts.items()}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """A run with four stages and eight micro batches."""
    big = config(platform="h100", model="llama3.1-8b", precision="bf16", **SPLIT)
    return write_run(tmp_path, "pp4", big, seconds=1.6, device=H100)


def said(data: ReportData) -> str:
    return str(anatomy_page.findings(data))


def spec_values(figures: Any, number: int = 0) -> list[dict[str, Any]]:
    return figures.parts[number][1].spec()["data"]["values"]


def test_bars_and_sentences_are_the_shares_of_the_breakdown(pipeline: Path):
    keep(pipeline, example())
    data = load(pipeline.parent)
    shares = {
        value["part"]: value["share"] for value in spec_values(anatomy_page.profile_bars(data))
    }
    assert shares == pytest.approx(
        {"forward": 0.3, "backward": 0.4, "optimizer": 0.05, "exposed communication": 0.15,
         "data": 0.025, "idle": 0.075}
    )  # fmt: skip
    assert sum(shares.values()) == pytest.approx(1)
    words = said(data).replace("\N{NO-BREAK SPACE}", " ")
    assert "a profiled step of 2.00 s is 40 % backward, 30 % forward, 15 % exposed" in words
    assert "25 % of its communication is hidden behind compute" in words
    assert "most of the rest is sends and receives between stages" in words
    assert "For 6.00 % of the step the device waited for the host" in words


def test_a_replayed_graph_is_no_forward_pass(pipeline: Path):
    parts = example().parts
    keep(pipeline, example(parts=parts.model_copy(update={
        "forward_seconds": 1.4, "backward_seconds": 0.0})))  # fmt: skip
    data = load(pipeline.parent)
    values = spec_values(anatomy_page.profile_bars(data))
    shares = {value["part"]: value["share"] for value in values}
    assert shares["forward and backward"] == pytest.approx(0.7)
    assert not {"forward", "backward"} & shares.keys()
    assert "70 % forward and backward" in said(data).replace("\N{NO-BREAK SPACE}", " ")
    assert 'data-key="schedule_seconds"' in str(anatomy_page.parts_table(data))


def test_a_kernel_stands_next_to_the_configuration_that_ran_it(pipeline: Path):
    keep(pipeline, example())
    table = str(anatomy_page.kernels_table(load(pipeline.parent)))
    (what,) = re.findall(r'<span class="range">(.*?)</span>', table)
    assert "· PP4" in what
    assert "<code>nvjet&lt;script&gt;</code>" in table


def test_the_bubble_of_theory_stands_beside_what_was_measured(pipeline: Path):
    keep(pipeline, example())
    data = load(pipeline.parent)
    # (p - 1) / (m + p - 1) with p = 4 stages and m = 8 micro batches of 1
    words = said(data).replace("\N{NO-BREAK SPACE}", " ")
    assert "equal stages would be idle for 27 % of the step" in words
    assert "take 12 % of the profiled one" in words  # 0.25 s of 2 s, to two digits
    table = str(anatomy_page.communication_table(data))
    assert f'data-value="{3 / 11}"' in table
    assert 'data-value="0.15"' in table  # exposed
    assert 'data-value="0.25"' in table  # hidden


def test_what_profiling_costs_is_said(pipeline: Path):
    keep(pipeline, example())
    assert "The profiler slows its own steps down" in said(load(pipeline.parent))
    keep(pipeline, example(step_seconds=1.6))
    assert "slows its own steps" not in said(load(pipeline.parent))


def test_time_marks_are_drawn_apart_and_add_up_with_what_is_outside(pipeline: Path):
    marks(pipeline, data=0.01, forward=0.3, backward=0.4, pipeline=0.2, optimizer=0.05, gradients=0)
    data = load(pipeline.parent)
    assert anatomy_page.profile_bars(data) is None
    values = spec_values(anatomy_page.mark_bars(data))
    shares = {value["part"]: value["share"] for value in values}
    assert shares["waiting for a stage"] == pytest.approx(0.2)
    assert shares["outside"] == pytest.approx(0.04)
    assert sum(shares.values()) == pytest.approx(1)
    assert "gradients" not in shares
    words = said(data).replace("\N{NO-BREAK SPACE}", " ")
    assert "spends most on a wait: 20.0 % of its step waiting for another pipeline stage" in words


def test_a_run_without_a_profile_is_told_how_to_get_one(pipeline: Path):
    words = said(load(pipeline.parent))
    assert "1\N{NO-BREAK SPACE}run with a throughput has no profile" in words
    assert "scalebook run --profile" in words.replace("&#39;", "'")
    assert anatomy_page.profile_bars(load(pipeline.parent)) is None
    assert str(anatomy_page.parts_table(load(pipeline.parent))) == ""


def test_every_rank_that_was_profiled_has_its_bar(pipeline: Path):
    keep(pipeline, example())
    keep(pipeline, example(rank=3), "breakdown-rank3.json")
    values = spec_values(anatomy_page.profile_bars(load(pipeline.parent)))
    assert {value["label"].rpartition(" · ")[2] for value in values} == {"rank 0", "rank 3"}


def test_a_breakdown_that_is_broken_or_empty_is_a_sentence_and_stops_nothing(pipeline: Path):
    keep(pipeline, Breakdown(rank=0, reason="The trace ends early: it is cut off."))
    (pipeline / "profile" / "breakdown-rank1.json").write_text('{"parts": 7}')
    data = load(pipeline.parent)
    assert "The profile of rank 0 has no numbers. The trace ends early" in said(data)
    assert "contains no breakdown" in said(data)
    assert str(pipeline.parent) not in said(data)
    assert anatomy_page.profile_bars(data) is None


def test_names_of_kernels_are_text(pipeline: Path):
    keep(pipeline, example())
    data = load(pipeline.parent)
    table = str(anatomy_page.kernels_table(data))
    assert "nvjet&lt;script&gt;" in table
    assert "<script" not in table


def test_a_new_profile_is_seen_without_any_other_change(pipeline: Path):
    assert not load(pipeline.parent).anatomies["pp4"].profiles
    keep(pipeline, example())
    assert load(pipeline.parent).anatomies["pp4"].profiles


def test_kinds_of_kernels_are_shares_of_their_own_sum(pipeline: Path):
    keep(pipeline, example())
    values = spec_values(anatomy_page.kind_bars(load(pipeline.parent)))
    shares = {value["part"]: value["share"] for value in values}
    assert shares == pytest.approx(
        {"matrix products": 12 / 17, "communication": 4 / 17, "copy": 1 / 17}
    )


def test_every_chart_compiles_to_a_picture_and_says_what_it_shows(pipeline: Path):
    keep(pipeline, example())
    marks(pipeline, forward=0.5, backward=0.4)
    data = load(pipeline.parent)
    for figures in (
        anatomy_page.profile_bars(data), anatomy_page.mark_bars(data), anatomy_page.kind_bars(data)
    ):  # fmt: skip
        assert figures is not None
        (name, figure), *rest = figures.parts
        assert (name, rest) == ("H100", [])
        assert figure.picture().startswith("<svg")
        assert "the largest part of all is" in figure.description


def test_a_trace_made_by_hand_reaches_the_page(tmp_path: Path):
    run = write_run(tmp_path, "one", config())
    trace = write(
        tmp_path / "trace.json",
        host("scalebook.step", 0, 100),
        host("scalebook.backward", 0, 50),
        launch(1, 10),
        kernel("gemm", 20, 80, 1),
    )
    keep(run, reduce_file(trace))
    values = spec_values(anatomy_page.profile_bars(load(tmp_path)))
    shares = {value["part"]: value["share"] for value in values}
    assert shares["backward"] == pytest.approx(0.6)
    assert shares["idle"] == pytest.approx(0.4)


@pytest.mark.parametrize(
    "changes",
    [
        {"pipeline_parallel_size": 2**52}, {"tensor_parallel_size": -1}, {"world_size": "four"},
        {"model": "no such model"}, {"global_batch_size": 0}, {"data_parallel_sharding": 7},
    ],
)  # fmt: skip
def test_a_record_with_senseless_sizes_has_no_theory_and_stops_nothing(
    changes: dict[str, Any], tmp_path: Path
):
    made = config(**{"world_size": 4, "pipeline_parallel_size": 4}).model_dump() | changes
    run = write_run(tmp_path, "odd", config(), requested=made)
    keep(run, example())
    data = frames.load(tmp_path)
    assert said(data)
    assert anatomy_page.communication_table(data) is not None
