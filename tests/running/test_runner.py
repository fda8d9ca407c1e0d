"""One run: started, watched, ended, recorded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from training import small, wait_for, without_torchrun

from scalebook import store
from scalebook.errors import ConfigError, LaunchError
from scalebook.record import RunRecord
from scalebook.running import finish_run, guard, launch, processes, progress, runner
from scalebook.running.kernel import RunOptions


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the fake trainer without torchrun, and be impatient."""
    monkeypatch.setattr(launch, "direct", without_torchrun)
    monkeypatch.setattr(runner, "GRACE_SECONDS", 1.0)
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.05)


def train(runs: Path, mode: str = "", **changes: Any) -> RunRecord:
    """Train a small configuration with a fake trainer that misbehaves as told."""
    os.environ["FAKE_TRAINER"] = mode
    try:
        return runner.train(small(**changes), RunOptions(runs=str(runs)))
    finally:
        del os.environ["FAKE_TRAINER"]


def nothing_is_left(run_id: str) -> bool:
    """Whether no process of the run lives."""
    return not processes.marked(run_id)


def test_a_completed_run_is_published_whole(tmp_path: Path):
    record = train(tmp_path)
    run = store.read_run(tmp_path / record.run_id)
    assert (run.record, run.record.status, run.record.reason) == (record, "completed", None)
    assert [step.step for step in run.steps] == [1, 2, 3, 4, 5]
    assert record.observed == {"world_size": 1}
    assert record.environment["torch"] == "none"
    assert record.environment["git_commit"]
    assert record.started_at <= record.finished_at
    assert not store.partial_directories(tmp_path)


def test_a_run_directory_holds_no_file_of_the_launcher(tmp_path: Path):
    record = train(tmp_path)
    names = {path.name for path in (tmp_path / record.run_id).iterdir()}
    names -= {"telemetry.jsonl"}  # tests/measure/test_telemetry.py
    assert names == {"config.json", "observed.json", "record.json", "steps.jsonl", "train.log"}


def test_what_the_trainer_prints_goes_to_its_log_alone(tmp_path: Path, capfd: Any):
    record = train(tmp_path)
    assert "step 5" in (tmp_path / record.run_id / "train.log").read_text()
    assert capfd.readouterr().out == ""


def test_the_recorded_command_names_the_published_directory(tmp_path: Path):
    record = train(tmp_path)
    assert not any(store.PARTIAL_PREFIX in part for part in record.command)
    assert any(record.run_id in part for part in record.command)


@pytest.mark.parametrize(
    ("mode", "status", "words"),
    [
        ("oom", "out_of_memory", "2.00 GiB more did not fit in the 79.11 GiB"),
        ("diverge", "diverged", "loss of step 3 is not finite"),
        ("kill_last_rank", "failed", "SIGKILL"),
        ("early", "failed", "early"),
        ("raise", "failed", "ValueError"),
    ],
)
def test_a_run_that_breaks_is_recorded_with_its_reason(
    tmp_path: Path, mode: str, status: str, words: str
):
    record = train(tmp_path, mode)
    assert record.status == status
    assert words in record.reason
    assert "(after step 2 of 5)" in record.reason
    assert len(store.read_run(tmp_path / record.run_id).steps) == 2


def test_secrets_and_home_do_not_reach_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOME_TOKEN", "s3cr3t-value")
    monkeypatch.setenv("HOME", str(Path(sys.executable).parents[1]))
    record = train(tmp_path, "raise")
    text = (tmp_path / record.run_id / "record.json").read_text()
    assert "s3cr3t-value" not in text
    assert "token *** is wrong" in record.reason
    assert record.command[0] == "python"


@pytest.mark.parametrize("mode", ["hang", "deaf"])
def test_the_time_limit_ends_the_run_and_every_process_of_it(tmp_path: Path, mode: str):
    record = train(tmp_path, mode, time_limit_seconds=2)
    assert record.status == "timeout"
    assert record.reason == "The time limit of 2 s ran out (after step 2 of 5)."
    assert nothing_is_left(record.run_id)


def test_a_run_whose_steps_are_all_done_may_close_beyond_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    record = train(tmp_path, "close_slowly", time_limit_seconds=3)
    assert record.status == "completed"
    monkeypatch.setattr(progress, "CLOSING_SECONDS", 1.0)
    record = train(tmp_path, "never_close", time_limit_seconds=3)
    after = "Every step was trained; what came after them failed."
    assert (record.status, record.reason) == (
        "completed",
        f"{after} The time limit of 3 s ran out.",
    )
    assert nothing_is_left(record.run_id)


def test_a_run_without_progress_ends_as_a_timeout_with_its_own_cause(tmp_path: Path):
    record = train(tmp_path, "hang", progress_limit_seconds=2)
    assert (record.status, record.cause) == ("timeout", "no_progress")
    assert record.reason == "No step for 2 s (after step 2 of 5)."
    assert nothing_is_left(record.run_id)


def test_a_request_to_stop_interrupts_the_run(tmp_path: Path):
    def ask() -> None:
        partial = wait_for(lambda: store.partial_directories(tmp_path))[0]
        wait_for((partial / "steps.jsonl").exists)
        asked = {"status": "interrupted", "sentence": "Somebody asked"}
        store.write_json(partial / runner.STOP_FILE, asked)

    thread = threading.Thread(target=ask)
    thread.start()
    record = train(tmp_path, "hang")
    thread.join()
    assert record.status == "interrupted"
    assert record.reason.startswith("Somebody asked (after step")
    assert nothing_is_left(record.run_id)


def test_a_keyboard_interrupt_interrupts_the_run_and_is_recorded(tmp_path: Path):
    def interrupt() -> None:
        partial = wait_for(lambda: store.partial_directories(tmp_path))[0]
        wait_for((partial / "steps.jsonl").exists)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    record = train(tmp_path, "hang")
    thread.join()
    assert record.status == "interrupted"
    assert nothing_is_left(record.run_id)


def test_an_illegal_configuration_is_refused_and_leaves_nothing(tmp_path: Path):
    with pytest.raises(ConfigError, match="world_size"):
        train(tmp_path, world_size=3, tensor_parallel_size=2)
    assert not list(tmp_path.iterdir())


def test_a_platform_of_another_machine_is_refused(tmp_path: Path):
    with pytest.raises(LaunchError, match="force-platform"):
        train(tmp_path, platform="mi300x", precision="bf16")


def test_two_runs_of_one_second_get_two_directories(tmp_path: Path):
    assert train(tmp_path).run_id != train(tmp_path).run_id
    assert len(list(store.run_directories(tmp_path))) == 2


def test_the_processes_of_a_run_are_found_by_what_its_directory_says_of_their_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    found: list[tuple[int, ...]] = []
    watch = runner._watch

    def look(process: Any, directory: Path, *rest: Any, **named: Any) -> Any:
        start = finish_run.start_of(directory)
        found.append(wait_for(lambda: processes.marked(finish_run.run_id(directory), start)))
        return watch(process, directory, *rest, **named)

    monkeypatch.setattr(runner, "_watch", look)
    assert train(tmp_path).status == "completed"
    assert found


def test_how_the_trainer_ended_is_kept_before_anything_else_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kept: list[dict[str, Any]] = []
    end = processes.end

    def look(run_id: str, *rest: Any, **named: Any) -> bool:
        (directory,) = store.partial_directories(tmp_path)
        kept.append(store.read_object(directory / finish_run.EXIT_FILE))
        return end(run_id, *rest, **named)

    monkeypatch.setattr(processes, "end", look)
    record = train(tmp_path)
    ended = {"exit_code": 0, "stop": None, "memory_kills": 0, "memory_killed": []}
    assert kept == [ended]
    assert not (tmp_path / record.run_id / finish_run.EXIT_FILE).exists()


def test_the_death_of_the_owner_ends_the_run(tmp_path: Path):
    code = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-m', 'scalebook.running.guard', 'run-x', '1',"
        " 'sleep', '300'], stdin=subprocess.PIPE, start_new_session=True)\n"
        "time.sleep(300)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code])
    wait_for(lambda: processes.marked("run-x"))
    owner.kill()
    owner.wait()
    wait_for(lambda: not processes.marked("run-x"), 10)


def test_a_killed_guard_leaves_nothing_running(tmp_path: Path):
    def kill_guard() -> None:
        partial = wait_for(lambda: store.partial_directories(tmp_path))[0]
        wait_for((partial / "steps.jsonl").exists)
        (trainer,) = processes.marked(finish_run.run_id(partial))
        stat = Path(f"/proc/{trainer}/stat").read_text()
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)

    thread = threading.Thread(target=kill_guard)
    thread.start()
    record = train(tmp_path, "hang")
    thread.join()
    assert (record.status, record.cause, record.exit_code) == ("interrupted", "stopped", 137)
    assert record.reason.startswith("The process that guards the run was ended by SIGKILL (after")
    assert nothing_is_left(record.run_id)


def test_the_guard_answers_with_the_exit_code_or_the_signal():
    def code(*command: str) -> int:
        guard = (sys.executable, "-m", "scalebook.running.guard", "run-y", "1", *command)
        with subprocess.Popen(guard, stdin=subprocess.PIPE) as process:
            return process.wait()  # the pipe stays open: the owner lives

    assert code("sh", "-c", "exit 7") == 7
    assert code("sh", "-c", "kill -9 $$") == 137


def test_a_process_that_the_kernel_does_not_let_die_is_waited_for_no_longer_than_so(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(processes.os, "kill", lambda *_: None)
    monkeypatch.setattr(processes, "KILL_SECONDS", 0.3)
    monkeypatch.setattr(guard, "DYING_SECONDS", 0.3)
    child = subprocess.Popen(["sleep", "60"], env={**os.environ, processes.MARK: "run-z"})
    try:
        wait_for(lambda: processes.marked("run-z"))
        assert processes.end("run-z")
        assert guard.exit_code(child) == 137
    finally:
        monkeypatch.undo()
        child.kill()
        child.wait()


def test_a_process_whose_program_is_still_being_loaded_is_found():
    for _ in range(30):  # an environment that is read too early is empty, in every second try
        child = subprocess.Popen(["sleep", "60"], env={processes.MARK: "run-x"})
        try:
            assert processes.variables(child.pid, (processes.MARK,)) == {processes.MARK: "run-x"}
        finally:
            child.kill()
            child.wait()
    assert not processes.marked("run-x")


def test_only_new_lines_of_the_steps_are_read(tmp_path: Path):
    path = tmp_path / "steps.jsonl"
    tail = progress.Tail(path)
    assert tail.read() is None
    record = {"step": 1, "phase": "startup", "step_seconds": 0.5, "tokens": 100}
    first, second = json.dumps(record), json.dumps({**record, "step": 2})
    path.write_text(f"{first}\n{second[:10]}")
    assert tail.read().step == 1
    with path.open("a") as stream:
        stream.write(f"{second[10:]}\nnot json\n")
    assert tail.read().step == 2
    assert progress.line(tail.last, 10) == "step 2/10, 200 tokens/s, 4 s left"


def test_a_live_line_needs_no_more_than_two_looks_a_second():
    assert progress.POLL_SECONDS >= 0.5


def test_the_runner_waits_without_using_the_processor(tmp_path: Path):
    before, wall = time.process_time(), time.monotonic()
    train(tmp_path, "hang", time_limit_seconds=2)
    assert time.process_time() - before < 0.5 * (time.monotonic() - wall)


def test_a_run_of_the_same_name_in_another_folder_is_left_alone():
    """Two folders may hold the same configuration, started in the same second."""
    guard = (sys.executable, "-m", "scalebook.running.guard", "run-y", "1")
    first, second = (
        subprocess.Popen(
            (*guard, "sleep", seconds),
            stdin=subprocess.PIPE,
            env={**os.environ, processes.START: seconds},
        )
        for seconds in ("0.5", "300")
    )
    try:
        wait_for(lambda: processes.marked("run-y", "300"))
        assert first.wait(60) == 0
        assert second.poll() is None
        assert processes.marked("run-y", "300")
        assert not processes.marked("run-y", "0.5")
    finally:
        second.terminate()
        second.wait(60)
    assert not processes.marked("run-y")
