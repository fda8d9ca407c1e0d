"""Run directories become frames whatever is in them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from simulated import H100, config, write_run, write_sample

from scalebook.errors import ReportError
from scalebook.report.base.frames import SCHEMA, load, run_frame
from scalebook.report.base.naming import group_name, sized, split_name


def row_of(runs: Path, run_id: str) -> dict[str, Any]:
    return load(runs).runs.row(by_predicate=pl.col("run_id") == run_id, named=True)


def test_every_run_has_a_row_with_every_column(tmp_path: Path) -> None:
    data = load(write_sample(tmp_path))
    assert data.runs.schema == pl.Schema(SCHEMA)
    assert data.runs.height == 9
    assert data.completed.height == 8
    assert data.unfinished["run_id"].to_list() == ["h100-oom"]
    assert data.problems == ()


def test_throughput_is_all_tokens_over_all_time_with_its_interval_around_it(tmp_path: Path) -> None:
    write_run(tmp_path, "a", config(), seconds=0.2)
    row = row_of(tmp_path, "a")
    steps = load(tmp_path).measured_steps
    expected = steps["tokens"].sum() / steps["step_seconds"].sum()
    assert row["tokens_per_second"] == pytest.approx(expected)
    assert row["tokens_per_second_low"] < expected < row["tokens_per_second_high"]


def test_own_measurements_stand_before_simulated_ones_and_gpus_before_cpus(tmp_path: Path) -> None:
    write_sample(tmp_path)
    write_run(tmp_path, "z-own", config(), source="measured")
    runs = load(tmp_path).runs
    assert runs["run_id"][0] == "z-own"
    assert runs["platform"].to_list()[1:5] == ["h100"] * 4


def test_the_fastest_of_a_group_is_first_and_a_failed_run_last(tmp_path: Path) -> None:
    runs = load(write_sample(tmp_path)).runs.filter(pl.col("platform") == "h100")
    assert runs["run_id"].to_list() == ["h100-tp2-8", "h100-tp2-16", "h100-tp2-32", "h100-oom"]


def test_a_record_that_is_no_json_is_a_problem_and_the_others_stay(tmp_path: Path) -> None:
    write_run(tmp_path, "good", config())
    write_run(tmp_path, "bad", config())
    (tmp_path / "bad" / "record.json").write_text("{")
    data = load(tmp_path)
    assert data.runs["run_id"].to_list() == ["good"]
    assert len(data.problems) == 1
    assert "bad/record.json" in data.problems[0]
    assert str(tmp_path) not in data.problems[0]


def test_a_directory_that_has_steps_but_no_record_is_a_problem(tmp_path: Path) -> None:
    write_run(tmp_path, "good", config())
    write_run(tmp_path, "torn", config())
    (tmp_path / "torn" / "record.json").unlink()
    (tmp_path / "plans").mkdir()
    assert load(tmp_path).problems == ("torn has no record.json: the run in it is not shown",)


def test_an_unreadable_step_line_is_a_problem_of_its_run(tmp_path: Path) -> None:
    path = write_run(tmp_path, "a", config()) / "steps.jsonl"
    path.write_text(path.read_text() + '{"step": 31, "pha')
    data = load(tmp_path)
    assert data.steps.height == 30
    assert data.problems == ("a: steps.jsonl line 31 is not a step record",)


def test_two_directories_with_one_run_id_show_the_first_alone(tmp_path: Path) -> None:
    write_run(tmp_path, "a", config())
    write_run(tmp_path, "b", config(), run_id="a")
    data = load(tmp_path)
    assert data.runs.height == 1
    assert data.problems == ("b repeats run a of a: not shown",)


@pytest.mark.parametrize(
    "changes",
    [
        {"world_size": "eight"},
        {"world_size": 10**30},
        {"model": ["a", "list"]},
        {"platform": None, "model": None},
        {"sequence_length": -1, "precision": 7},
        {"sequence_parallel": "yes", "virtual_pipeline_parallel_size": [2]},
        {"strategy": {"a": 1}, "engine": False},
    ],
)
def test_settings_of_any_type_give_a_row(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = write_run(tmp_path, "odd", config()) / "record.json"
    record = json.loads(path.read_text())
    record["requested"] |= changes
    path.write_text(json.dumps(record))
    assert load(tmp_path).runs["run_id"].to_list() == ["odd"]


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    path = write_run(tmp_path, "a", config()) / "steps.jsonl"
    path.write_text(path.read_text().replace('"loss": ', '"loss": NaN, "x": '))
    steps = load(tmp_path).steps
    assert steps["loss"].null_count() == steps.height
    frame, problems = run_frame([{"run_id": "a", "mfu": math.nan, "nodes": 1.5}])
    assert frame["mfu"][0] is None
    assert frame["nodes"][0] is None
    assert problems == (
        "Run a: nodes=1.5 is not usable",
        "Run a: mfu=nan is not usable",
    )


def test_runs_with_one_label_are_told_apart(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_run(tmp_path, name, config())
    labels = load(tmp_path).runs["label"].to_list()
    assert len(set(labels)) == 3


def test_a_folder_without_runs_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"contains no run\. 'make run' trains some"):
        load(tmp_path)
    with pytest.raises(ReportError, match="nowhere is not a folder"):
        load(tmp_path / "nowhere")


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    write_run(tmp_path, "a", config())
    assert load(tmp_path) is load(tmp_path)
    write_run(tmp_path, "b", config())
    assert load(tmp_path).runs.height == 2


def test_a_split_names_the_sizes_above_one_and_the_unit_of_the_platform() -> None:
    sizes = {"tensor_parallel_size": 2, "data_parallel_size": 4, "world_size": 8}
    assert split_name(sizes) == "TP2 DP4"
    assert split_name({"world_size": 1, "platform": "cpu"}) == "1 process"
    assert split_name({"world_size": 1, "platform": "h100"}) == "1 GPU"
    assert split_name({"world_size": 8, "platform": "h100"}) == "8 GPUs"
    assert split_name({}) == "split unknown"
    assert split_name({"tensor_parallel_size": 2, "sequence_parallel": True}) == "TP2 SP"
    assert sized(sizes | {"platform": "h100"}) == "TP2 DP4 on 8 GPUs"


def test_runs_of_another_engine_or_source_are_another_group() -> None:
    own = {"model": "m", "platform": "h100", "engine": "megatron", "source": "measured"}
    own |= {"precision": "bf16", "sequence_length": 4096}
    assert group_name(own) == "m on h100 (bf16, sequence 4,096)"
    assert group_name(own | {"engine": "nemo"}) != group_name(own)
    assert group_name(own | {"source": "ingested"}) != group_name(own)
    assert group_name(own | {"precision": "fp8"}) != group_name(own | {"precision": "bf16"})


@pytest.mark.parametrize("unknown", ["model", "platform", "precision", "sequence_length"])
def test_two_runs_of_unknown_work_are_never_one_group(unknown: str) -> None:
    work = {"model": "m", "platform": "h100", "precision": "bf16", "sequence_length": 4096}
    first, second = {**work, "run_id": "a"}, {**work, "run_id": "b"}
    assert group_name(first) == group_name(second)
    assert group_name(first | {unknown: None}) != group_name(second | {unknown: None})


def test_a_label_says_where_a_run_comes_from(tmp_path: Path) -> None:
    write_run(tmp_path, "a", config(), device=H100)
    assert row_of(tmp_path, "a")["label"] == "tiny-llama · 1 process [simulated]"
