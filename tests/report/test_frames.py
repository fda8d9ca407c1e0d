"""Run directories become frames whatever is in them."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from simulated import H100, config, write_run, write_sample

from scalebook.cli import main
from scalebook.errors import ReportError
from scalebook.record import StepRecord
from scalebook.report.base import columns
from scalebook.report.base.frames import (
    MOST_READINGS,
    SCHEMA,
    STEP_SCHEMA,
    TELEMETRY_SCHEMA,
    _floats,
    load,
    records,
    run_frame,
    telemetry_frame,
)
from scalebook.report.base.naming import group_name, sized, split_name
from scalebook.settings import SETTINGS


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
    assert group_name(own) == "m on H100 (BF16, sequence 4,096)"
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


# What the columns are ----------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["runs", "steps", "telemetry"])
def test_every_column_has_words_and_no_words_are_of_another(file: columns.DataFile) -> None:
    found = columns.columns(file, own=False)
    assert all(one.meaning for one in found)
    assert {*columns.words_of(file)} <= {one.name for one in found}
    schema = {"runs": SCHEMA, "steps": STEP_SCHEMA, "telemetry": TELEMETRY_SCHEMA}[file]
    assert [one.name for one in found] == [*schema]


def test_a_column_without_words_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMA, "new_column", pl.Int64)
    with pytest.raises(KeyError, match="new_column"):
        columns.columns("runs")


def test_the_page_of_columns_is_what_the_command_prints(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["columns", "--markdown"]) == 0
    assert capsys.readouterr().out == (root / "src/scalebook/report/COLUMNS.md").read_text()


def test_reasons_explain_columns_that_exist() -> None:
    reasons = columns.words_of("reasons")
    assert {*reasons, *reasons.values()} <= {*SCHEMA}


def test_the_columns_command_prints_rows_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["columns", "steps", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert [*rows] == [*STEP_SCHEMA]
    assert rows["step_seconds"]["unit"] == "s"
    assert main(["columns", "telemetry", "--csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(TELEMETRY_SCHEMA)


def test_every_setting_and_every_field_of_a_step_is_a_column() -> None:
    assert {*SETTINGS} <= {*SCHEMA}
    assert {*StepRecord.model_fields} <= {*STEP_SCHEMA}


def test_settings_versions_and_times_of_a_record_are_in_its_row(tmp_path: Path) -> None:
    path = write_run(tmp_path, "a", config(seed=7, learning_rate=0.002)) / "record.json"
    record = json.loads(path.read_text())
    record |= {"started_at": "2026-01-02T03:04:05.678+01:00", "finished_at": "yesterday"}
    record["observed"] |= {"fused_norm": True, "cuda_graph": "off"}
    record["environment"] |= {"git_commit": "c" * 40, "torch": "2.9.1", "cuda": 12.8}
    path.write_text(json.dumps(record))
    row = row_of(tmp_path, "a")
    assert (row["seed"], row["learning_rate"]) == (7, 0.002)
    assert (row["fused_norm"], row["cuda_graph"]) == ("on", "off")
    assert (row["git_commit"], row["torch"], row["cuda"]) == ("c" * 40, "2.9.1", "12.8")
    assert row["started_at"] == datetime(2026, 1, 2, 2, 4, 5, 678_000, tzinfo=UTC)
    assert row["finished_at"] is None
    assert load(tmp_path).problems == ("Run a: finished_at='yesterday' is not usable",)


def test_a_reason_in_the_words_of_an_older_version_is_shown_in_todays(tmp_path: Path) -> None:
    old = "Memory ran out: 64.00 MiB more did not fit of 79.18 GiB."
    write_run(tmp_path, "a", config(), status="out_of_memory", steps=0, reason=old)
    assert row_of(tmp_path, "a")["reason"] == (
        "Memory ran out: 64.00 MiB more did not fit in the 79.18 GiB."
    )


def test_steps_hold_times_by_rank_parts_and_when_they_ended(tmp_path: Path) -> None:
    path = write_run(tmp_path, "a", config()) / "steps.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0] |= {
        "rank_step_seconds": [0.5, 0.25],
        "part_seconds": {"forward": 0.125, "backward": 0.25},
        "finished_at": "2026-01-02T03:04:05.5+00:00",
        "skipped": True,
        "reserved_gib": 61.5,
    }
    lines[1] |= {"rank_step_seconds": [], "part_seconds": {}, "finished_at": None}
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    first, second = load(tmp_path).steps.head(2).iter_rows(named=True)
    assert first["rank_step_seconds"] == [0.5, 0.25]
    parts = [(one["part"], one["seconds"]) for one in first["part_seconds"]]
    assert parts == [("forward", 0.125), ("backward", 0.25)]
    assert first["finished_at"] == datetime(2026, 1, 2, 3, 4, 5, 500_000, tzinfo=UTC)
    assert (first["skipped"], first["reserved_gib"]) == (True, 61.5)
    assert (second["rank_step_seconds"], second["part_seconds"]) == (None, None)
    assert (second["finished_at"], second["skipped"]) == (None, False)


def sampled(folder: Path, devices: int, samples: int) -> None:
    """Write telemetry of some GPUs, sample ``n`` of GPU ``g`` at 1000 + n s with 100 g + n W."""
    rows = [
        {"time": 1000 + n, "gpu": g, "power_watts": 100 * g + n, "throttle_reasons": ["power"]}
        for n in range(samples)
        for g in range(devices)
    ]
    (folder / "telemetry.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_telemetry_is_a_row_per_reading(tmp_path: Path) -> None:
    sampled(write_run(tmp_path, "a", config()), devices=2, samples=3)
    write_run(tmp_path, "b", config(micro_batch_size=2))
    found = telemetry_frame(load(tmp_path).directories)
    assert found.schema == pl.Schema(TELEMETRY_SCHEMA)
    assert found["run_id"].to_list() == ["a"] * 6
    assert found["device"].to_list() == ["GPU 0"] * 3 + ["GPU 1"] * 3
    assert found["power_watts"].to_list() == [0, 1, 2, 100, 101, 102]
    assert found["time"][1] == datetime(1970, 1, 1, 0, 16, 41, tzinfo=UTC)
    assert found["clock_mhz"].null_count() == 6
    assert (found["throttle_reasons"][0], found["kept_of"][0]) == ("power", 1)


@pytest.mark.parametrize("devices", [1, 7, MOST_READINGS - 1, MOST_READINGS, MOST_READINGS + 9])
def test_a_run_has_no_more_readings_than_is_said(tmp_path: Path, devices: int) -> None:
    sampled(write_run(tmp_path, "a", config()), devices, samples=8000 // devices + 1)
    found = telemetry_frame(load(tmp_path).directories)
    assert min(devices, MOST_READINGS) <= found.height <= MOST_READINGS
    if devices == 1:
        assert found["kept_of"].unique().to_list() == [5]
        assert found["power_watts"].to_list()[:3] == [0, 5, 10]


def test_tables_hold_lists_and_times_in_either_form(tmp_path: Path) -> None:
    runs, target = tmp_path / "runs", tmp_path / "out"
    path = write_run(runs, "a", config())
    sampled(path, devices=1, samples=2)
    record = json.loads((path / "record.json").read_text())
    (path / "record.json").write_text(json.dumps(record | {"started_at": "2026-01-02T03:04:05Z"}))
    lines = [json.loads(line) for line in (path / "steps.jsonl").read_text().splitlines()]
    rows = [line | {"rank_step_seconds": [0.5, 0.25]} for line in lines]
    (path / "steps.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for kind in ("csv", "parquet"):
        assert main(["export", str(runs), "--to", f"{kind}:{target}"]) == 0
    steps, of_csv = pl.read_parquet(target / "steps.parquet"), pl.read_csv(target / "steps.csv")
    assert steps["rank_step_seconds"][0].to_list() == [0.5, 0.25]
    assert of_csv["rank_step_seconds"][0] == "[0.5, 0.25]"
    frame = pl.read_parquet(target / "runs.parquet")
    assert frame.schema["started_at"] == pl.Datetime("us", "UTC")
    assert pl.read_csv(target / "runs.csv")["started_at"][0] == "2026-01-02T03:04:05.000Z"
    assert pl.read_parquet(target / "telemetry.parquet").height == 2
    assert pl.read_csv(target / "telemetry.csv")["time"][0] == "1970-01-01T00:16:40.000Z"


def test_readings_that_are_no_number_are_missing_whatever_else_a_column_holds() -> None:
    plain = [1.5, None, math.nan, math.inf, -2.0]
    assert _floats(plain).to_list() == [1.5, None, None, None, -2.0]
    assert _floats([*plain, 3, "4", 10**400]).to_list() == [
        *(1.5, None, None, None, -2.0),
        *(3.0, None, None),
    ]


def test_records_are_read_once_for_all_pages_of_a_build(tmp_path: Path) -> None:
    run = write_run(tmp_path, "one", config(), run_id="one")
    data = load(tmp_path)
    first = records(data)["one"]
    (run / "record.json").write_text("{}")
    assert records(data)["one"] is first
