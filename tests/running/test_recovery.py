"""Run directories whose process died, and those whose process lives."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from training import small, wait_for

from scalebook import ownership, store
from scalebook.cli import main
from scalebook.errors import LaunchError, RecordError
from scalebook.record import RunRecord, Status, StepRecord
from scalebook.running import finish_run, processes


def partial(runs: Path, steps: int = 2, start: str | None = None) -> Path:
    """Return a partial run directory as a killed process leaves it."""
    directory = store.create_partial(runs, small(), datetime.now(UTC))
    finish_run.write_launch(directory, ("torchrun", str(directory)), {"scalebook": "0"}, start)
    line = '{"step": %d, "phase": "measured", "step_seconds": 1, "tokens": 64}\n'
    text = "".join(line % number for number in range(1, steps + 1))
    (directory / "steps.jsonl").write_text(text + '{"step": 3, "pha')
    (directory / "train.log").write_text("step 1\nstep 2\n")
    (directory / ownership.FILE).write_text('{"pid": 999999, "host": "here"}')
    return directory


def test_a_run_of_a_dead_process_becomes_an_interrupted_record_with_its_steps(tmp_path: Path):
    partial(tmp_path)
    (leftover,) = finish_run.recover(tmp_path)
    run = store.read_run(leftover.path)
    assert run.record.status == "interrupted"
    assert "without a message" in run.record.reason
    assert "(after step 2 of 5)" in run.record.reason
    assert len(run.steps) == 2
    assert run.record.notes == ("steps.jsonl line 3 is not a step record",)
    assert run.record.log_tail == ("step 1", "step 2")
    assert run.record.config_hash == small().config_hash()
    assert run.record.started_at is not None
    assert not store.partial_directories(tmp_path)
    assert not (leftover.path / ownership.FILE).exists()


def test_a_recovered_run_keeps_that_the_kernel_killed_it_for_want_of_memory(tmp_path: Path):
    finish_run.write_exit(partial(tmp_path), finish_run.Ended(137, None, memory_kills=1))
    (leftover,) = finish_run.recover(tmp_path)
    record = store.read_record(leftover.path)
    assert (record.status, record.cause) == ("out_of_memory", "host_memory")  # 137: SIGKILL


@pytest.mark.parametrize("name", ["train.log", "train.log.node1"])
def test_a_recovered_run_says_that_the_disk_was_full_where_a_log_does(tmp_path: Path, name: str):
    with (partial(tmp_path) / name).open("a") as log:
        log.write("[rank0]: OSError: [Errno 28] No space left on device\n")
    (leftover,) = finish_run.recover(tmp_path)
    record = store.read_record(leftover.path)
    assert (record.status, record.cause) == ("failed", "no_space")
    assert record.reason == "The file system is full on rank 0 (after step 2 of 5)."
    assert "power was lost" not in record.reason


def test_a_recovered_run_ended_when_it_last_wrote(tmp_path: Path):
    directory = partial(tmp_path)
    for path in (*directory.iterdir(), directory):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    (leftover,) = finish_run.recover(tmp_path)
    # Taking the lock touches owner.json, which is no sign of the run.
    assert leftover.record.finished_at == "2023-11-14T22:13:20+00:00"


def test_a_run_that_only_lacked_its_renaming_keeps_its_record(tmp_path: Path):
    directory = partial(tmp_path)
    record = RunRecord(run_id=finish_run.run_id(directory), config_hash="a", status="completed")
    store.write_record(directory, record)
    (leftover,) = finish_run.recover(tmp_path)
    assert store.read_record(leftover.path) == record


def test_a_run_of_a_live_process_is_left_alone(tmp_path: Path):
    directory = partial(tmp_path)
    with ownership.owned(directory):
        (leftover,) = finish_run.recover(tmp_path)
        assert (leftover.path, leftover.record) == (directory, None)
    assert directory.exists()


def test_a_directory_that_was_just_made_is_left_alone(tmp_path: Path):
    directory = store.create_partial(tmp_path, small(), datetime.now(UTC))
    assert finish_run.recover(tmp_path)[0].record is None
    old = directory.stat().st_mtime - 2 * ownership.NEW_SECONDS
    os.utime(directory, (old, old))
    assert finish_run.recover(tmp_path)[0].record.status == "interrupted"


def test_an_empty_directory_of_a_dead_process_is_removed(tmp_path: Path):
    directory = tmp_path / f"{store.PARTIAL_PREFIX}x"
    directory.mkdir()
    (directory / ownership.FILE).write_text("")
    assert finish_run.recover(tmp_path) == ()
    assert not directory.exists()


def test_the_lock_falls_free_when_its_owner_is_killed(tmp_path: Path):
    directory = partial(tmp_path)
    code = (
        "import sys, time, pathlib, scalebook.ownership as o\n"
        "with o.owned(pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n"
        "    time.sleep(300)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, str(directory)], stdout=subprocess.PIPE)
    assert owner.stdout.readline() == b"held\n"
    assert ownership.is_live(directory)
    assert ownership.owner(directory)["pid"] == owner.pid
    with pytest.raises(LaunchError, match="another process"), ownership.owned(directory):
        pass
    owner.kill()
    owner.wait()
    assert not ownership.is_live(directory)


@pytest.mark.parametrize(
    ("code", "stop", "steps", "status", "words"),
    [
        (0, None, 5, "completed", ""),
        (1, None, 2, "failed", "exit code 1"),
        (143, ("timeout", "The time limit of 3 s ran out"), 2, "timeout", "The time limit of 3 s"),
    ],
)
def test_a_run_whose_trainer_had_ended_gets_the_record_that_it_would_have_had(
    tmp_path: Path,
    code: int,
    stop: tuple[Status, str] | None,
    steps: int,
    status: str,
    words: str,
):
    directory = partial(tmp_path, steps)
    finish_run.write_exit(directory, finish_run.Ended(code, stop))
    (leftover,) = finish_run.recover(tmp_path)
    assert (leftover.record.status, leftover.record.exit_code) == (status, code)
    assert words in (leftover.record.reason or "")
    assert not (leftover.path / finish_run.EXIT_FILE).exists()


ODD_FILES = {
    "an end that is none": (finish_run.EXIT_FILE, '{"exit_code": "x", "stop": 4}'),
    "notes of a schedule": ("schedule.json", '{"notes": 5}'),
    "a start that is no time": (finish_run.LAUNCH_FILE, '{"started_at": 7, "command": 3}'),
    "an environment of a launch": (finish_run.LAUNCH_FILE, '{"environment": [1]}'),
    "an environment of a trainer": ("observed.json", '{"environment": 3, "observed": 4}'),
    "steps that are no number": ("config.json", '{"steps": "many"}'),
    "endless nesting": ("config.json", "[" * 200_000),
}


@pytest.mark.parametrize(("name", "text"), ODD_FILES.values(), ids=ODD_FILES)
def test_an_odd_file_of_a_dead_run_keeps_it_from_no_record(tmp_path: Path, name: str, text: str):
    directory = partial(tmp_path)
    (directory / name).write_text(text)
    (leftover,) = finish_run.recover(tmp_path)
    assert leftover.record.status == "interrupted"
    assert store.read_record(leftover.path) == leftover.record


def test_no_process_counts_as_killed_for_memory_unless_it_is_said(tmp_path: Path):
    for end, cause in (
        (finish_run.Ended(137), "signal"),
        (finish_run.Ended(137, memory_kills=1), "host_memory"),
    ):
        assert finish_run.conclude(partial(tmp_path), end).cause == cause


def test_steps_of_the_warm_up_do_not_count_as_measured(tmp_path: Path):
    """A run whose every measured step the optimizer skipped lost its loss; a warm-up may skip."""
    for skipped, diverged in (("warmup", False), ("measured", True)):
        directory = partial(tmp_path)
        lines = (
            {"step": n, "phase": phase, "step_seconds": 1.0, "tokens": 64, "loss": 2.0,
             "skipped": phase == skipped}
            for n, phase in enumerate(("warmup", "warmup", "measured", "measured", "measured"), 1)
        )  # fmt: skip
        (directory / "steps.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
        record = finish_run.conclude(directory, finish_run.Ended(0))
        assert (record.cause == "skipped_steps") is diverged


def test_a_directory_that_no_record_can_be_made_of_is_one_line_and_keeps_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    odd, _ = partial(tmp_path), partial(tmp_path)
    (odd / "record.json").mkdir()
    assert main(["recover", "--runs", str(tmp_path)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert f"{odd.name} cannot be recovered and stays as it is: IsADirectoryError" in first
    assert second.startswith("Recovered")
    assert store.partial_directories(tmp_path) == (odd,)


def test_a_run_whose_final_name_is_taken_gets_the_next_one(tmp_path: Path):
    directory = partial(tmp_path)
    taken = tmp_path / finish_run.run_id(directory)
    taken.mkdir()
    (taken / "record.json").write_text("{}")
    (leftover,) = finish_run.recover(tmp_path)
    assert leftover.path.name == f"{taken.name}-2"
    assert store.read_record(leftover.path).run_id == leftover.path.name
    assert not (leftover.path / ownership.FILE).exists()
    assert (taken / "record.json").read_text() == "{}"


def test_a_link_that_is_named_as_a_run_is_not_followed(tmp_path: Path):
    outside, runs = tmp_path / "outside", tmp_path / "runs"
    outside.mkdir()
    runs.mkdir()
    (outside / "kept").write_text("")
    (outside / ownership.FILE).write_text("")
    (runs / f"{store.PARTIAL_PREFIX}link").symlink_to(outside)
    assert finish_run.recover(runs) == ()
    assert (outside / "kept").exists()


@contextmanager
def left_running(run_id: str, start: str) -> Generator[subprocess.Popen[bytes]]:
    """Yield a process that carries the marks of a run."""
    marks = {processes.MARK: run_id, processes.START: start}
    rank = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(300)"],
        env={**os.environ, **marks},
        start_new_session=True,
    )
    try:
        wait_for(lambda: processes.marked(run_id, start))
        yield rank
    finally:
        rank.kill()
        rank.wait()


def test_what_still_runs_of_a_dead_run_is_ended(tmp_path: Path):
    directory = partial(tmp_path, start="a")
    run_id = finish_run.run_id(directory)
    with left_running(run_id, "a") as rank:
        finish_run.recover(tmp_path)
        assert rank.wait(5) != 0
        assert not processes.marked(run_id, "a")  # another test may have made this name, too


def test_a_run_of_the_same_name_in_another_folder_is_not_ended(tmp_path: Path):
    directory = partial(tmp_path, start="a")
    with left_running(finish_run.run_id(directory), "b") as rank:
        assert finish_run.recover(tmp_path)[0].record.status == "interrupted"
        assert rank.poll() is None


def test_to_recover_a_copied_folder_does_not_end_the_training_of_the_original(tmp_path: Path):
    original, copied = tmp_path / "original", tmp_path / "copy"
    directory = partial(original, start="a")
    shutil.copytree(original, copied)
    with left_running(finish_run.run_id(directory), "a") as rank:
        assert finish_run.recover(copied)[0].record.status == "interrupted"
        assert rank.poll() is None
        assert finish_run.recover(original)[0].record.status == "interrupted"
        assert rank.wait(5) != 0


def test_looking_at_a_directory_keeps_nobody_from_taking_it(tmp_path: Path):
    directory = partial(tmp_path)
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            ownership.is_live(directory)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(20):
            with ownership.owned(directory):
                pass
    finally:
        ended.set()
        for looker in lookers:
            looker.join()


def test_two_looks_at_the_same_time_both_see_that_nobody_has_it(tmp_path: Path):
    directory = partial(tmp_path)
    with (directory / ownership.FILE).open("r+") as stream:
        ownership.fcntl.flock(stream, ownership.fcntl.LOCK_SH)
        assert not ownership.is_live(directory)


def test_a_directory_that_gets_its_final_name_meanwhile_is_no_leftover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    directory = partial(tmp_path)
    final = store.publish(directory)
    assert ownership.is_live(directory)
    # It goes between the look and the taking.
    monkeypatch.setattr(ownership, "is_live", lambda _: False)
    monkeypatch.setattr(store, "partial_directories", lambda _: (directory,))
    assert finish_run.recover(tmp_path) == ()
    assert final.exists()


def test_a_directory_that_another_process_takes_first_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    directory = partial(tmp_path)
    monkeypatch.setattr(ownership, "is_live", lambda _: False)
    monkeypatch.setattr(ownership, "LOOK_SECONDS", 0.1)
    with ownership.owned(directory):
        assert finish_run.recover(tmp_path) == ()
    assert directory.exists()


def test_without_locks_the_text_of_the_owner_file_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def flock(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(ownership.fcntl, "flock", flock)
    directory = store.create_partial(tmp_path, small(), datetime.now(UTC))
    with ownership.owned(directory):
        assert ownership.is_live(directory)
        with pytest.raises(LaunchError, match="another process"), ownership.owned(directory):
            pass
    host = ownership.socket.gethostname()
    dead = {"pid": 999999, "host": host, "started": "1"}
    (directory / ownership.FILE).write_text(json.dumps(dead))
    assert not ownership.is_live(directory)
    (directory / ownership.FILE).write_text('{"pid": 1, "host": "another", "started": "1"}')
    assert ownership.is_live(directory)


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot be written"):
        store.create_partial(tmp_path / "file", small(), datetime.now(UTC))


def test_the_recover_command_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    partial(tmp_path)
    new = store.create_partial(tmp_path, small(repeat=1), datetime.now(UTC))
    live = store.create_partial(tmp_path, small(repeat=2), datetime.now(UTC))
    os.utime(new, (time.time() - 7, time.time() - 7))
    with ownership.owned(live):
        assert main(["recover", "--runs", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "interrupted. The process in charge ended without a message" in text
    assert f"{live.name} belongs to a running process and stays as it is." in text
    assert f"{new.name} is 7 s old, too new to tell: its run may be starting." in text
    assert new.is_dir()


@pytest.mark.parametrize("command", ["run", "drill", "tune"])
def test_every_command_that_trains_records_what_died_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
):
    def refuse(*_: object, **__: object) -> None:
        raise LaunchError("nothing is started here")

    for name in ("scalebook.running.drill.drill", "scalebook.predict.tuning.tune"):
        monkeypatch.setattr(name, refuse)
    monkeypatch.setattr("scalebook.running.sweep.run_plan", refuse)
    partial(tmp_path)
    options = {
        "run": ("--set", "model=tiny-llama"),
        "drill": ("--no-reference",),
        "tune": ("--model", "tiny-llama", "--gpus", "1", "--budget-seconds", "600"),
    }[command]
    fake = ("--platform", "cpu", "--runs", str(tmp_path), "--trainer", "fake_trainer")
    assert main((command, *options, *fake)) != 0
    assert not store.partial_directories(tmp_path)
    assert [run.record.status for run in store.read_runs(tmp_path)[0]] == ["interrupted"]


def test_a_run_is_concluded_without_an_object_for_each_of_its_steps(tmp_path, monkeypatch):
    directory = store.create_partial(tmp_path, small(steps=3))
    steps = [(1, 0, 2.0), (2, 0, 1.5), (2, 1, 1.5), (3, 1, None)]
    lines = [
        {"step": step, "phase": "measured", "step_seconds": 1.0, "tokens": 8, "loss": loss,
         "restart": restart, "skipped": step == 2}
        for step, restart, loss in steps
    ]  # fmt: skip
    (directory / "steps.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    monkeypatch.setattr(StepRecord, "model_construct", lambda **_: pytest.fail("one was made"))
    record = finish_run.conclude(directory, finish_run.Ended(0))
    assert (record.status, record.cause) == ("diverged", "not_finite")
    assert record.reason is not None and "the loss of step 3" in record.reason
    assert any("refused 1 of 3 measured steps" in note for note in record.notes)
    assert any("after step 2 and all were restarted: 1 step" in note for note in record.notes)
