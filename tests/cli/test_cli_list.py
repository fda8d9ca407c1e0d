"""``scalebook list``: one row a run, whatever state its directory is in."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scalebook.cli import interchange, main, show
from scalebook.project import runs_folder
from scalebook.record import RunRecord
from scalebook.running import console

FULL = Path("/dev/full")
SETTINGS = {
    "platform": "mi300x",
    "model": "llama3.1-8b",
    "world_size": 8,
    "nodes": 1,
    "engine": "megatron",
    "strategy": "custom",
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "context_parallel_size": 1,
    "expert_parallel_size": 1,
    "micro_batch_size": 2,
    "global_batch_size": 128,
    "sequence_length": 8192,
    "precision": "bf16",
}
RELIED_UPON = """
    run_id status reason source platform accelerator world_size nodes engine model num_layers
    tensor_parallel_size pipeline_parallel_size context_parallel_size expert_parallel_size
    data_parallel_size micro_batch_size global_batch_size sequence_length precision strategy
    measured_steps step_seconds_median tokens_per_second tokens_per_second_per_gpu
    model_tflops_per_second_per_gpu mfu mfu_low mfu_high peak_memory_gib loss_first loss_last
"""


def write_run(runs, run_id, *, status="completed", count=12, directory=None, **record):
    folder = runs / (directory or run_id)
    folder.mkdir(parents=True)
    content = {
        "schema_version": 1,
        "run_id": run_id,
        "config_hash": "0123456789ab",
        "status": status,
        "requested": SETTINGS,
        "environment": {"accelerator": "AMD Instinct MI300X"},
    }
    (folder / "record.json").write_text(json.dumps(content | record))
    lines = [
        {
            "step": step,
            "phase": "warmup" if step <= 2 else "measured",
            "step_seconds": 12.0,
            "tokens": 128 * 8192,
            "loss": 12.0 - step / 10,
            "allocated_gib": 150.5,
        }
        for step in range(1, count + 1)
    ]
    (folder / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture
def listed(tmp_path, capsys, monkeypatch):
    """Return a function that lists a folder as JSON: the rows by run id, and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        assert main(["list", "--runs", str(tmp_path / "runs"), "--json", *arguments]) == 0
        captured = capsys.readouterr()
        return json.loads(captured.out), captured.err

    return call


def test_a_run_has_every_field_that_scripts_rely_on(tmp_path, listed):
    write_run(tmp_path / "runs", "a")
    (row,), err = listed()
    assert err == ""
    assert set(RELIED_UPON.split()) <= set(row)
    assert row["step_seconds_median"] == 12.0
    assert row["tokens_per_second"] == pytest.approx(128 * 8192 / 12)
    assert row["tokens_per_second_per_gpu"] == pytest.approx(128 * 8192 / 96)
    assert row["model_tflops_per_second_per_gpu"] == pytest.approx(
        128 * 8192 / 96 * 51470401536 / 1e12
    )
    assert row["mfu"] == pytest.approx(row["model_tflops_per_second_per_gpu"] / 1307.4)
    assert row["mfu_low"] <= row["mfu"] <= row["mfu_high"]
    assert (row["measured_steps"], row["data_parallel_size"], row["num_layers"]) == (10, 8, 32)
    assert (row["loss_first"], row["loss_last"]) == (11.9, 10.8)
    assert row["peak_memory_gib"] == 150.5
    assert row["source"] == "measured"


def test_rows_are_sorted_by_run_id_not_by_folder(tmp_path, listed):
    write_run(tmp_path / "runs", "b", directory="1")
    write_run(tmp_path / "runs", "a", directory="2")
    write_run(tmp_path / "runs", "c", directory="0")
    assert [row["run_id"] for row in listed()[0]] == ["a", "b", "c"]


def test_a_failed_run_is_a_row_with_its_reason_and_no_rate(tmp_path, listed):
    write_run(tmp_path / "runs", "a", status="out_of_memory", reason="The GPU's memory ran out.")
    (row,), _ = listed()
    assert (row["status"], row["reason"]) == ("out_of_memory", "The GPU's memory ran out.")
    assert row["tokens_per_second"] is None
    assert row["mfu"] is None
    assert row["peak_memory_gib"] == 150.5


def test_a_run_without_steps_has_nulls_not_zeros(tmp_path, listed):
    folder = write_run(tmp_path / "runs", "a", requested={}, environment={})
    (folder / "steps.jsonl").unlink()
    (row,), _ = listed()
    nulls = {name for name in RELIED_UPON.split() if row[name] is None}
    assert nulls == set(RELIED_UPON.split()) - {"run_id", "status", "source", "measured_steps"}
    assert row["measured_steps"] == 0


def test_an_unreadable_run_goes_to_stderr_and_hides_no_other(tmp_path, listed):
    write_run(tmp_path / "runs", "good")
    (write_run(tmp_path / "runs", "bad") / "record.json").write_text('{"run_id": ')
    write_run(tmp_path / "runs", "newer", schema_version=99)
    rows, err = listed()
    assert [row["run_id"] for row in rows] == ["good"]
    assert len(err.splitlines()) == 2
    assert "bad" in err
    assert "schema_version 99" in err


def test_a_broken_step_line_is_said_and_the_others_count(tmp_path, listed):
    folder = write_run(tmp_path / "runs", "a")
    with (folder / "steps.jsonl").open("a") as stream:
        stream.write('{"step": 13, "phase": "measu')
    (row,), err = listed()
    assert row["measured_steps"] == 10
    assert "a: steps.jsonl line 13" in err


def test_runs_that_are_being_written_and_other_folders_are_no_rows(tmp_path, listed):
    write_run(tmp_path / "runs", "a", directory=".partial-a")
    (tmp_path / "runs" / "plans").mkdir()
    assert listed() == ([], "")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999", "-5", "0"])
def test_a_number_that_is_none_never_reaches_the_output(tmp_path, listed, value):
    folder = write_run(tmp_path / "runs", "a")
    text = (folder / "steps.jsonl").read_text()
    for name in ('"step_seconds": 12.0', '"allocated_gib": 150.5'):
        text = text.replace(name, f"{name.split(':')[0]}: {value}")
    (folder / "steps.jsonl").write_text(text)
    (row,), _ = listed()
    assert row["tokens_per_second"] is None
    assert row["mfu"] is None
    assert row["peak_memory_gib"] is None


@pytest.mark.parametrize(
    "wrong",
    [
        '"tokens": 1' + "0" * 400,
        '"tokens": -1',
        '"allocated_gib": Infinity',
        '"part_seconds": {"forward": NaN}',
        '"rank_step_seconds": [1e308]',
        '"step_seconds": -Infinity',
        '"step": 1' + "0" * 5000,
    ],
)
def test_a_step_with_a_number_that_no_step_has_is_said_and_the_others_count(
    tmp_path, listed, wrong
):
    folder = write_run(tmp_path / "runs", "a")
    with (folder / "steps.jsonl").open("a") as stream:
        step = '"step": 13, "phase": "measured", "step_seconds": 12.0, "tokens": 1048576'
        stream.write("{" + step + ", " + wrong + "}\n")
    (row,), err = listed()
    assert row["measured_steps"] == 10
    assert "a: steps.jsonl line 13" in err


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_a_run_whose_files_are_no_files_is_listed_without_them(tmp_path, listed, make):
    folder = write_run(tmp_path / "runs", "a")
    write_run(tmp_path / "runs", "b")
    (folder / "steps.jsonl").unlink()
    make(folder / "steps.jsonl")
    make(folder / "telemetry.jsonl")
    rows, err = listed()
    assert [row["measured_steps"] for row in rows] == [0, 10]
    assert "a: steps.jsonl cannot be read: it is a" in err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_steps_without_permission_are_said_and_hide_no_other_run(tmp_path, listed):
    (write_run(tmp_path / "runs", "a") / "steps.jsonl").chmod(0)
    write_run(tmp_path / "runs", "b")
    rows, err = listed()
    assert [row["measured_steps"] for row in rows] == [0, 10]
    assert "a: steps.jsonl cannot be read: Permission denied" in err


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999", "1" + "0" * 400])
def test_a_loss_that_is_not_finite_is_left_out_and_its_step_counts(tmp_path, listed, value):
    folder = write_run(tmp_path / "runs", "a")
    text = (folder / "steps.jsonl").read_text().replace('"loss": 10.8', f'"loss": {value}')
    (folder / "steps.jsonl").write_text(text)
    (row,), err = listed()
    assert (row["measured_steps"], row["loss_last"], err) == (10, 10.9, "")


def test_numbers_of_a_record_that_are_not_finite_are_none():
    wrong = '{"a": [1, -Infinity], "b": {"c": NaN}, "d": 1e999, "e": 1' + "0" * 400 + ', "f": 2.5}'
    text = '{"run_id": "a", "config_hash": null, "status": "failed", "environment": ' + wrong + "}"
    record = RunRecord.model_validate_json(text)
    expected = {"a": [1, None], "b": {"c": None}, "d": None, "e": None, "f": 2.5}
    assert record.environment == expected


def test_a_setting_that_is_text_is_none_where_it_has_another_kind():
    settings = {"recompute": 1.5, "precision": ["bf16"], "fused_norm": True, "steps": 5}
    record = RunRecord(
        run_id="a", config_hash=None, status="completed", requested=settings, observed=settings
    )
    wanted = {"recompute": None, "precision": None, "fused_norm": True, "steps": 5}
    assert record.requested == record.observed == wanted


def test_settings_of_a_wrong_kind_are_null(tmp_path, listed):
    wrong = {"world_size": "8", "nodes": -1, "model": 7, "sequence_length": [1], "precision": {}}
    write_run(tmp_path / "runs", "a", requested=SETTINGS | wrong)
    (row,), _ = listed()
    for name in wrong:
        assert row[name] is None, name
    assert row["tokens_per_second"] is not None
    assert row["tokens_per_second_per_gpu"] is None


def test_fp8_runs_have_an_mfu_when_the_denominator_is_named(tmp_path, listed):
    write_run(tmp_path / "runs", "a", requested=SETTINGS | {"precision": "fp8"})
    (row,), _ = listed()
    assert row["mfu"] is None
    (row,), _ = listed("--peak-precision", "fp8")
    assert row["mfu"] == pytest.approx(row["model_tflops_per_second_per_gpu"] / 2614.9)


def test_people_get_a_table_with_reasons_below(tmp_path, capsys):
    write_run(tmp_path / "runs", "a")
    write_run(tmp_path / "runs", "b", status="failed", reason="It broke.")
    assert main(["list", "--runs", str(tmp_path / "runs")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("run")
    assert "%" in lines[1]
    assert lines[3] == "b: It broke."


def test_a_completed_run_without_a_rate_has_its_reason_below_the_table(tmp_path, capsys):
    steps = write_run(tmp_path / "runs", "a") / "steps.jsonl"
    every = [json.loads(line) for line in steps.read_text().splitlines()]
    later = [step | {"step_seconds": 20.0} if step["step"] > 7 else step for step in every]
    steps.write_text("".join(json.dumps(step) + "\n" for step in later))
    assert main(["list", "--runs", str(tmp_path / "runs")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[2].startswith("a: The run is not averaged. ")
    assert "takes 67 % more" in lines[2]  # 20 s after 12 s


def test_a_missing_folder_is_one_line_and_exit_code_2(tmp_path, capsys):
    assert main(["list", "--runs", str(tmp_path / "none")]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "--runs DIR" in err


def test_an_empty_folder_is_an_empty_list(tmp_path, listed):
    (tmp_path / "runs").mkdir()
    assert listed() == ([], "")


def listing(runs, stdout):
    command = [sys.executable, "-m", "scalebook", "list", "--runs", str(runs)]
    ended = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
    return ended.returncode, ended.stderr


def test_a_reader_who_goes_away_has_seen_enough(tmp_path):
    write_run(tmp_path, "a")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as stdout:
        assert listing(tmp_path, stdout) == (0, "")


def test_a_comparison_that_a_reader_stops_has_shown_enough(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text("1.0\n" * 4)
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-u", "-m", "scalebook", "compare", tmp_path / "a", tmp_path / "b"]
    with os.fdopen(writer, "wb") as stdout:
        assert subprocess.run(command, stdout=stdout, check=False).returncode == 0


def test_a_check_that_a_reader_stops_has_found_nothing():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-u", "-m", "scalebook", "check", "--model", "tiny-llama"]
    with os.fdopen(writer, "wb") as stdout:
        ended = subprocess.run([*command, "--platform", "cpu"], stdout=stdout, check=False)
    assert ended.returncode == 2


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("count", [1, 120], ids=["at the end", "on the way"])
def test_a_full_disk_is_one_line_and_exit_code_2(tmp_path, count):
    for number in range(count):
        write_run(tmp_path, f"run-{number}", count=3)
    with FULL.open("w") as stdout:
        code, error = listing(tmp_path, stdout)
    line = "scalebook: The output cannot be written: No space left on device.\n"
    assert (code, error) == (2, line)


@pytest.mark.parametrize(
    "command",
    [["list", "--runs"], ["compare", "a" * 8], ["diagnose"], ["reproduce"], ["steady"]],
    ids=lambda given: given[0],
)
def test_a_path_that_no_file_can_have_is_one_line_and_exit_code_2(command, capsys):
    assert main([*command, "x" * 300]) == 2
    error = capsys.readouterr().err
    assert error.startswith("scalebook: ")
    assert error.count("\n") == 1


def test_an_unknown_argument_is_answered_with_the_help_of_its_command(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["list", "--jsn"])
    assert ended.value.code == 2
    said = "scalebook list: unrecognized arguments: --jsn. See scalebook list --help.\n"
    assert capsys.readouterr().err == said


def test_a_folder_without_its_flag_is_answered_with_the_flag(tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["list", str(tmp_path)])
    assert ended.value.code == 2
    assert "a folder of runs is given with --runs" in capsys.readouterr().err


def test_a_closed_output_is_nobody_to_print_for(tmp_path: Path) -> None:
    write_run(tmp_path, "a")
    command = [sys.executable, "-m", "scalebook", "list", "--runs", str(tmp_path)]
    closing = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    done = subprocess.run(closing, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_of_the_runs_is_not_taken_for_that_of_the_output(
    tmp_path: Path, capsys, monkeypatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("scalebook.running.finish_run.recover_all", full)
    assert main(["recover", "--runs", str(tmp_path)]) == 2
    said = "scalebook: No space left on device. Free some, or choose a folder on another disk.\n"
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (["my.toml"], "a plan is given with --plan"),
        (["--world-size", "2"], "--set world_size=VALUE"),
        (["--strategy=tp"], "--set strategy=VALUE"),
    ],
)
def test_an_argument_that_has_another_flag_is_answered_with_it(given, hint, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", *given])
    assert ended.value.code == 2
    assert hint in capsys.readouterr().err


def test_a_long_import_says_how_far_it_is(tmp_path: Path, capsys, monkeypatch) -> None:
    log = Path(__file__).parents[1] / "logs" / "nanogpt.log"
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_bytes(log.read_bytes())
    monkeypatch.setattr(interchange, "SHOW_SECONDS", 0)
    monkeypatch.setattr(console, "PLAIN_SECONDS", 0)
    assert main(["ingest", str(tmp_path), "--runs", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("Files looked at: 1, now ")
    assert said[-1] == f"Runs read: 1, now {tmp_path / 'b.log'}"


def test_a_status_without_rows_says_how_many_runs_have_ended(tmp_path: Path, capsys) -> None:
    write_run(tmp_path, "a")
    assert main(["status", "--runs", str(tmp_path)]) == 0
    assert "; 1 have ended (--all shows them)." in capsys.readouterr().out


def test_every_command_reads_and_writes_the_runs_of_the_project(tmp_path, monkeypatch, capsys):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks/10_train.ipynb").touch()  # by which a project is known
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    log = Path(__file__).parents[1] / "logs/megatron_2024.log"
    assert main(["ingest", str(log)]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert not (tmp_path / "sub/runs").exists()
    capsys.readouterr()
    assert main(["list"]) == 0
    assert run.name in capsys.readouterr().out
    assert main(["reproduce", run.name]) == 2  # found, but a log has no command
    assert "No run" not in capsys.readouterr().err
    assert main(["feasibility"]) == 0
    assert f"under {tmp_path / 'runs'}" in capsys.readouterr().out
    assert main(["gate", "--loss-reference", run.name]) == 0
    assert run.name in capsys.readouterr().out


def test_outside_of_the_project_the_runs_of_the_working_directory_count(
    tmp_path, monkeypatch, capsys
):
    log = Path(__file__).parents[1] / "logs/megatron_2024.log"
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["ingest", str(log)]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    for command in (["list"], ["compare", run.name, run.name], ["steady", run.name]):
        capsys.readouterr()
        main(command)
        assert run.name in capsys.readouterr().out
    (tmp_path / "runs").rename(tmp_path / "others")
    assert runs_folder() == Path(__file__).parents[2] / "runs"


@pytest.mark.parametrize("warmup", [0, 1, 4])
def test_a_steady_state_says_how_many_steps_came_before_it(tmp_path, capsys, warmup):
    phases = ["warmup"] * warmup + ["measured"] * 30
    lines = [
        json.dumps({"step": at, "step_seconds": 1.0 + 0.001 * (at % 2), "phase": phase})
        for at, phase in enumerate(phases, start=1)
    ]
    (tmp_path / "steps.jsonl").write_text("\n".join(lines))
    assert main(["steady", str(tmp_path)]) == 0
    said = {0: "from the start", 1: "after 1 step", 4: "after 4 steps"}[warmup]
    assert f"steady {said} (30 steps): mean 1.0" in capsys.readouterr().out


def test_a_run_against_its_parts_says_which_way_each_number_points():
    parts = {"fraction": -0.49, "low": -0.239, "high": 0.314, "runs": 1, "suspect": "the clock"}
    assert show._against_parts(parts) == (
        "49.0 % faster than the sum of its parts as predicted from 1 other run "
        "(90 % of runs: 23.9 % faster to 31.4 % slower)."
    )
    said = show._against_parts({**parts, "fraction": 0.4, "runs": 2})
    assert said.startswith("40.0 % slower than the sum of its parts as predicted from 2 other runs")
    assert said.endswith("Suspect: the clock.")
