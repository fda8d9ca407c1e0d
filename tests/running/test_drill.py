"""The recovery drill: a rank dies, training goes on from its last checkpoint as if none had."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from train_worlds import SMALL
from training import environment, wait_for

from scalebook import cli, store
from scalebook.config import RunConfig
from scalebook.errors import ConfigError, LaunchError
from scalebook.measure.reliability import (
    CheckpointRecord,
    DrillRecord,
    read_checkpoints,
    read_drill,
)
from scalebook.record import RunRecord, StepRecord
from scalebook.running import drill, finish_run, processes
from scalebook.running.drill import Killer, KillOrder

CONFIG = RunConfig(
    **SMALL
    | {
        "world_size": 2,
        "data_parallel_sharding": "optimizer",
        "steps": 8,
        "checkpoint_interval": 3,
    }
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def reference(runs: Path) -> store.Run:
    """The same training, not interrupted and without any checkpoint."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", environment(stand_in=True)["PYTHONPATH"])
        return drill.reference(CONFIG.model_copy(update={"checkpoint_interval": 0}), runs)


@pytest.fixture(scope="module")
def killed(runs: Path, reference: store.Run) -> drill.Drilled:
    """A rank killed between two checkpoints."""
    return drill.drill(CONFIG, KillOrder(rank=1, step=4), runs, undisturbed=reference)


@pytest.mark.slow
def test_a_killed_rank_costs_no_more_than_the_steps_since_the_last_checkpoint(
    killed: drill.Drilled,
):
    found = killed.drill
    assert killed.record.status == "completed"
    assert (found.kill_rank, found.kill_during, found.resumed_step) == (1, "step", 3)
    assert found.last_step >= 4
    assert found.steps_lost == found.last_step - 3
    assert found.passed


@pytest.mark.slow
def test_losses_after_a_recovery_are_those_of_an_uninterrupted_run(
    killed: drill.Drilled, reference: store.Run
):
    run = store.read_run(killed.path)
    assert [step.step for step in run.steps] == list(range(1, 9))
    assert [step.loss for step in run.steps] == [step.loss for step in reference.steps]
    assert killed.drill.identical
    # Every step of both starts against the reference, and those done twice against themselves.
    assert killed.drill.compared_steps == 8 + 2 * killed.drill.steps_lost


@pytest.mark.slow
def test_the_parts_of_a_recovery_add_up_to_its_time(killed: drill.Drilled):
    found = killed.drill
    parts = [
        *(found.detection_seconds, found.start_seconds, found.build_seconds),
        *(found.load_seconds, found.step_seconds),
    ]
    assert sum(parts) == pytest.approx(found.next_step_seconds, abs=0.2)
    assert found.next_step_seconds <= found.regained_seconds
    assert found.notes == ()


@pytest.mark.slow
def test_a_drill_is_a_run_that_says_what_was_done_to_it(killed: drill.Drilled):
    run = store.read_run(killed.path)
    assert (run.record.source, run.record.status) == ("measured", "completed")
    assert any(note.startswith("Recovery drill: rank 1 was killed") for note in run.record.notes)
    assert read_drill(killed.path) == killed.drill
    assert not processes.marked(run.record.run_id)


@pytest.mark.slow
def test_every_save_and_load_is_recorded_and_a_completed_run_leaves_no_checkpoint(
    killed: drill.Drilled,
):
    entries, problems = read_checkpoints(killed.path)
    assert not problems
    # In fp32: the weights, the optimizer's copy of them, and two moments of Adam.
    weights = 4 * killed.record.observed["parameter_count"]
    assert all(4 * weights < entry.size_bytes < 4.2 * weights for entry in entries)
    assert [(e.kind, e.step, e.restart) for e in entries] == [
        ("save", 3, 0), ("load", 3, 1), ("save", 6, 1),
    ]  # fmt: skip
    assert not (killed.path / "checkpoints").exists()


@pytest.mark.slow
def test_the_step_after_a_save_has_the_time_that_training_waited(
    killed: drill.Drilled, reference: store.Run
):
    lines, _ = store.read_step_lines(killed.path / "steps.jsonl")
    waited = {(line.restart, line.step): line.checkpoint_seconds for line in lines}
    assert [step for step, seconds in waited.items() if seconds] == [(0, 4), (1, 7)]
    assert all(line.checkpoint_seconds <= line.step_seconds for line in lines)
    for save in (entry for entry in read_checkpoints(killed.path)[0] if entry.kind == "save"):
        assert save.blocking_seconds == pytest.approx(save.seconds)
        assert waited[save.restart, save.step + 1] >= save.seconds
    assert {step.checkpoint_seconds for step in reference.steps} == {None}


@pytest.mark.slow
def test_a_kill_while_a_checkpoint_is_saved_leaves_the_one_before(runs: Path):
    config = CONFIG.model_copy(update={"checkpoint_async": True, "world_size": 1})
    result = drill.drill(config, KillOrder(rank=0, step=5, during_save=True), runs)
    assert (result.drill.kill_during, result.drill.resumed_step) == ("save", 3)
    assert result.drill.compared_steps == result.drill.steps_lost >= 3
    assert result.drill.identical
    assert result.drill.passed
    entries, _ = read_checkpoints(result.path)
    assert all(entry.asynchronous for entry in entries if entry.kind == "save")
    assert not (result.path / "checkpoints").exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no /proc")
def test_the_rank_to_kill_is_one_of_this_start_of_the_run():
    marks = {processes.MARK: "id", processes.START: "a"}
    rank = {"RANK": "1", "TORCHELASTIC_RESTART_COUNT": "0"}
    process = subprocess.Popen(["sleep", "60"], env={**os.environ, **marks, **rank})
    try:
        wait_for(lambda: processes.marked("id", "a"))
        assert processes.ranks("id", "a", 0) == {1: process.pid}
        assert processes.ranks("id", "b", 0) == {}
        assert processes.ranks("id", "a", 1) == {}
    finally:
        process.kill()
        process.wait()


KILLED_AT = datetime(2026, 3, 5, 10, 0, 0, tzinfo=UTC)


def at(seconds: float) -> str:
    return (KILLED_AT + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def line(step: int, loss: float | None, restart: int = 0, seconds: float = 0.0) -> StepRecord:
    return StepRecord(
        step=step, phase="measured", step_seconds=1.0, tokens=1, loss=loss, restart=restart,
        finished_at=at(seconds),
    )  # fmt: skip


def by_hand(directory: Path, lines: list[StepRecord], **changes: Any) -> tuple[RunRecord, Killer]:
    """Write the files of a drill whose times are known: killed at 0, saved at step 2."""
    (directory / "steps.jsonl").write_text("".join(f"{x.model_dump_json()}\n" for x in lines))
    save = CheckpointRecord(
        kind="save", step=2, seconds=1, blocking_seconds=1, size_bytes=5, started_at=at(-9),
        finished_at=at(-8),
    )  # fmt: skip
    load = save.model_copy(
        update={"kind": "load", "restart": 1, "started_at": at(10), "finished_at": at(14)}
    )
    told = f"{save.model_dump_json()}\n{load.model_dump_json()}\n"
    (directory / "checkpoints.jsonl").write_text(told)
    local = (KILLED_AT + timedelta(seconds=0.5)).astimezone().strftime("%m%d %H:%M:%S.%f")
    log = f"E{local} 99 torch/distributed/elastic/api.py:1] failed (exitcode: -9) local_rank: 1\n"
    (directory / "train.log").write_text(log)
    killer = Killer(directory, "id", KillOrder(1, 3))
    killer.killed_at, killer.started_at = KILLED_AT.timestamp(), KILLED_AT.timestamp() + 2
    record = RunRecord(
        run_id="id", config_hash=None, status="completed",
        requested={"platform": "cpu", "precision": "fp32"} | changes,
    )  # fmt: skip
    return record, killer


GOOD = [
    *(line(1, 9.0), line(2, 8.0), line(3, 7.0)),
    *(line(3, 7.0, 1, 20.0), line(4, 6.0, 1, 23.0)),
]


def test_timings_are_differences_of_what_the_files_say(tmp_path: Path):
    record, killer = by_hand(tmp_path, GOOD)
    found = drill.assess(tmp_path, record, killer, None)
    assert found.detection_seconds == 0.5
    assert found.start_seconds == 1.5
    assert found.build_seconds == 8
    assert found.load_seconds == 4
    assert found.step_seconds == 6
    assert found.next_step_seconds == 20
    assert found.regained_seconds == 23
    assert (found.last_step, found.resumed_step, found.steps_lost) == (3, 2, 1)
    assert (found.compared_steps, found.identical, found.passed) == (1, True, True)


def test_a_loss_that_differs_in_fp32_on_a_cpu_fails_the_drill(tmp_path: Path):
    lines = [*GOOD[:3], line(3, 7.001, 1, 20.0), GOOD[4]]
    record, killer = by_hand(tmp_path, lines)
    found = drill.assess(tmp_path, record, killer, None)
    assert found.identical is False
    assert found.largest_loss_difference == pytest.approx(0.001 / 7.001)
    assert not found.passed


def test_kernels_of_a_gpu_may_differ_a_little_but_not_as_a_lost_state_does(tmp_path: Path):
    for loss, passed in ((7.001, True), (7.2, False), (None, False)):
        lines = [*GOOD[:3], line(3, loss, 1, 20.0), GOOD[4]]
        record, killer = by_hand(tmp_path, lines, platform="h100", precision="bf16")
        assert drill.assess(tmp_path, record, killer, None).passed is passed


def test_what_no_file_tells_is_null_with_a_note(tmp_path: Path):
    record, killer = by_hand(tmp_path, GOOD[:3])
    (tmp_path / "train.log").write_text("")
    (tmp_path / "checkpoints.jsonl").unlink()
    killer.started_at = None
    found = drill.assess(tmp_path, record, killer, None)
    assert found.detection_seconds is found.load_seconds is found.next_step_seconds is None
    assert found.identical is None
    assert len(found.notes) == 3


def test_a_drill_that_loads_an_older_checkpoint_than_the_last_is_not_passed(tmp_path: Path):
    record, killer = by_hand(tmp_path, GOOD)
    path = tmp_path / "checkpoints.jsonl"
    save = CheckpointRecord.model_validate_json(path.read_text().splitlines()[0])
    newer = save.model_copy(update={"step": 3}).model_dump_json()
    path.write_text(f"{newer}\n{path.read_text()}")
    assert not drill.assess(tmp_path, record, killer, None).passed


@pytest.mark.parametrize(
    ("rank", "step", "changes", "words"),
    [
        (2, None, {}, "--kill-rank 2 is not a rank of world_size=2"),
        (None, 8, {}, "--kill-step 8 leaves no step to continue with"),
        (None, None, {"checkpoint_interval": 8}, "checkpoint_interval=8 saves nothing"),
        (None, None, {"checkpoint_interval": 0}, "checkpoint_interval=0 saves nothing"),
    ],
)
def test_an_order_that_shows_nothing_is_refused(
    rank: int | None, step: int | None, changes: dict[str, Any], words: str
):
    with pytest.raises(ConfigError, match=words):
        drill.ordered(CONFIG.model_copy(update=changes), rank, step, during_save=False)


def test_the_default_kill_is_of_the_last_rank_between_two_checkpoints():
    assert drill.ordered(CONFIG, None, None, during_save=False) == KillOrder(1, 5, saved=True)
    assert drill.ordered(CONFIG, None, None, during_save=True) == KillOrder(1, 4, True, saved=True)
    assert drill.ordered(CONFIG, None, 2, during_save=False) == KillOrder(1, 2)


def test_a_rank_lives_until_a_save_beside_the_training_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _, killer = by_hand(tmp_path, GOOD)
    killer.order = KillOrder(1, 3, saved=True)
    monkeypatch.setattr(killer, "_rank", lambda _: 99)
    told = (tmp_path / "checkpoints.jsonl").read_text()
    (tmp_path / "checkpoints.jsonl").unlink()
    threading.Timer(0.3, killer._ended.set).start()
    assert killer._wait() is None
    killer._ended.clear()
    (tmp_path / "checkpoints.jsonl").write_text(told)
    assert killer._wait() == 99


def test_a_run_that_ends_before_the_kill_is_published_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def train(config: RunConfig, options: Any) -> RunRecord:
        return finish_run.conclude(Path(options.run_directory), finish_run.Ended(1))

    monkeypatch.setattr(drill.runner, "train", train)
    with pytest.raises(LaunchError, match="was failed before rank 1 was killed"):
        drill.drill(CONFIG, KillOrder(1, 4), tmp_path)
    assert len(list(store.run_directories(tmp_path))) == 1
    assert not store.partial_directories(tmp_path)


@pytest.mark.parametrize("flags", [["--no-reference"], []])
def test_a_drill_that_is_interrupted_keeps_its_record_and_ends_with_130(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    def train(config: RunConfig, options: Any) -> RunRecord:
        by_hand = finish_run.Ended(1, ("interrupted", "The run was interrupted by hand"))
        if options.run_directory:
            return finish_run.conclude(Path(options.run_directory), by_hand)
        partial = store.create_partial(Path(options.runs), config)
        record = finish_run.conclude(partial, by_hand)
        store.publish(partial)
        return record

    monkeypatch.setattr(drill.runner, "train", train)
    assert cli.main(["drill", "--platform", "cpu", "--runs", str(tmp_path), *flags]) == 130
    assert capsys.readouterr().err.endswith("scalebook: Interrupted.\n")
    assert len(list(store.run_directories(tmp_path))) == 1


@pytest.mark.parametrize("passed", [True, False])
def test_the_command_prints_json_and_its_exit_code_is_the_verdict(
    passed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    asked: list[RunConfig] = []

    def drilled(config: RunConfig, order: KillOrder, runs: Path, **_: Any) -> drill.Drilled:
        asked.append(config)
        record = RunRecord(run_id="id", config_hash=None, status="completed")
        found = DrillRecord(
            kill_rank=order.rank, kill_during="step", killed_at=at(0), last_step=4, passed=passed
        )
        return drill.Drilled(record, found, runs)

    monkeypatch.setattr(drill, "drill", drilled)
    flags = ["--platform", "cpu", "--no-reference", "--json", "--runs", str(tmp_path)]
    assert cli.main(["drill", *flags, "--set", "seed=7"]) == (0 if passed else 1)
    told = json.loads(capsys.readouterr().out)
    assert (told["run"], told["passed"], told["load_seconds"]) == ("id", passed, None)
    assert (asked[0].seed, asked[0].checkpoint_async) == (7, True)
