"""What becomes of a run's directory when its job has ended, whatever Slurm still knows."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import pytest
from training import small

from scalebook import ownership, store
from scalebook.errors import LaunchError
from scalebook.plan import Plan, PlannedRun
from scalebook.query import Answer
from scalebook.running import recovery, todo
from scalebook.running.cluster import (
    job_files,
    node_logs,
    slurm,
    slurm_follow,
    slurm_jobs,
    slurm_state,
    slurm_submit,
    status_table,
)  # fmt: skip
from scalebook.running.cluster.slurm_state import JobState
from scalebook.running.console import Console
from scalebook.running.sweep import Stop

STEP = '{"step": 2, "phase": "measured", "step_seconds": 0.1, "tokens": 64}\n'


def waiting(runs: Path, *events: dict[str, object], jobs: int = 1, steps: bool = False) -> Path:
    """Return a directory that waits for job 7, with what the job has noted."""
    runs.mkdir(exist_ok=True)
    partial = store.partial_path(runs, "20330102-030405-a")
    partial.mkdir()
    store.write_json(partial / "config.json", small(nodes=2, world_size=2).model_dump())
    job_files.write_job(partial, "7", jobs)
    lines = [json.dumps({"job_id": "7", "restart": 0, "code": 0, **event}) for event in events]
    if lines:
        (partial / job_files.EVENTS).write_text("\n".join(lines) + "\n")
    if steps:
        (partial / "steps.jsonl").write_text(STEP)
    return partial


def slurm_says(state: str | None, restarts: int = 0) -> slurm_state.Ask:
    """Return a Slurm that knows one job in a state, or none."""

    def ask(command: Sequence[str]) -> Answer:
        if command[0] == "squeue":
            active = state in slurm_state.ACTIVE
            return Answer(0, f"7|{state}|Resources\n" if active else "", "")
        if state is None:
            return Answer(1, "", "slurm_load_jobs error: Invalid job id specified")
        return Answer(0, f"JobId=7 JobState={state} Reason=None Restarts={restarts} Name=a", "")

    return ask


START = {"event": "start", "at": "2033-01-02T03:04:05+00:00", "asked_to_end": False}
END = {"event": "end", "at": "2033-01-02T03:05:05+00:00", "asked_to_end": False}


@pytest.mark.parametrize(
    ("state", "status", "words"),
    [
        ("TIMEOUT", "timeout", "time limit in Slurm ran out"),
        ("NODE_FAIL", "interrupted", "A node of the job failed"),
        ("PREEMPTED", "interrupted", "preempted by another one"),
        ("CANCELLED", "interrupted", "cancelled (scancel)"),
        ("OUT_OF_MEMORY", "out_of_memory", "the job's limit in Slurm"),
        ("DEADLINE", "timeout", "deadline in Slurm passed"),
        ("BOOT_FAIL", "interrupted", "did not boot"),
        ("FAILED", "failed", "exit code 1"),
        (None, "interrupted", "ended without a word"),
    ],
)
def test_the_state_of_a_job_becomes_the_status_of_its_run(
    state: str | None, status: str, words: str, tmp_path: Path
):
    ended = ({**END, "code": 1},) if state == "FAILED" else ()
    waiting(tmp_path, START, *ended, steps=True)
    (settled,) = slurm_jobs.settle(tmp_path, slurm_says(state))
    assert settled.record is not None
    assert settled.record.status == status
    assert words in str(settled.record.reason)
    assert settled.path.name == "20330102-030405-a"


def test_a_run_that_had_ended_well_is_completed_whatever_became_of_its_job(tmp_path: Path):
    partial = waiting(tmp_path, START, END)
    lines = [STEP.replace("2", str(number), 1) for number in range(1, 6)]
    (partial / "steps.jsonl").write_text("".join(lines))
    (settled,) = slurm_jobs.settle(tmp_path, slurm_says("TIMEOUT"))
    assert settled.record is not None and settled.record.status == "completed"
    assert settled.record.started_at == START["at"]
    assert settled.record.finished_at == END["at"]


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED"])
def test_a_live_job_is_left_alone(state: str, tmp_path: Path):
    partial = waiting(tmp_path, START)
    assert slurm_jobs.settle(tmp_path, slurm_says(state)) == ()
    assert partial.is_dir()


def test_without_an_answer_nothing_is_decided(tmp_path: Path):
    partial = waiting(tmp_path, START)
    assert slurm_jobs.settle(tmp_path, lambda _: Answer(1, "", "Unable to contact")) == ()
    assert slurm_jobs.settle(tmp_path, lambda _: Answer(None, "", "no scontrol")) == ()
    assert partial.is_dir()


def test_a_forgotten_job_that_was_asked_to_end_says_so(tmp_path: Path):
    waiting(tmp_path, START, {**END, "code": 143, "asked_to_end": True}, steps=True)
    (settled,) = slurm_jobs.settle(tmp_path, slurm_says(None))
    assert settled.record is not None
    assert "asked to end after 60 s" in str(settled.record.reason)


def test_runs_of_one_job_that_had_no_turn_are_still_to_be_run(tmp_path: Path):
    partial = waiting(tmp_path, jobs=3)
    (settled,) = slurm_jobs.settle(tmp_path, slurm_says("TIMEOUT"))
    assert settled.record is None
    assert not partial.exists()


def test_a_job_that_never_started_is_recorded(tmp_path: Path):
    waiting(tmp_path)
    (settled,) = slurm_jobs.settle(tmp_path, slurm_says("CANCELLED"))
    assert settled.record is not None
    assert (settled.record.status, settled.record.started_at) == ("interrupted", None)


def test_recovery_leaves_the_directories_of_jobs_alone(tmp_path: Path):
    partial = waiting(tmp_path, START)
    (left,) = recovery.recover(tmp_path)
    assert left.record is None and partial.is_dir()
    assert todo.live_hashes(tmp_path) == {small(nodes=2, world_size=2).config_hash()}


def test_a_submitter_that_died_before_it_had_a_job_is_recovered(tmp_path: Path):
    partial = waiting(tmp_path)
    job_files.write_job(partial, None, 1)
    slurm_jobs.settle(tmp_path, slurm_says(None))
    assert ownership.is_live(partial)
    os.utime(partial / ownership.JOB_FILE, (0, 0))
    slurm_jobs.settle(tmp_path, slurm_says(None))
    assert not (partial / ownership.JOB_FILE).exists()


def test_lines_that_a_dying_job_cut_off_are_left_out(tmp_path: Path):
    partial = waiting(tmp_path, START)
    with (partial / job_files.EVENTS).open("a") as stream:
        stream.write('{"event": "end", "co')
    (attempt,) = job_files.attempts(partial)
    assert (attempt.exit_code, attempt.ended_at, attempt.seconds) == (None, None, None)


def test_facts_of_a_job_that_have_another_kind_are_none(tmp_path: Path):
    odd = ['{"event": "start", "at": 5, "restart": "x"}', '{"event": "end", "at": [], "code": "0"}']
    (tmp_path / job_files.EVENTS).write_text("\n".join([*odd, "[" * 100_000]) + "\n")
    (tmp_path / job_files.JOB_FILE).write_text('{"job_id": "7", "submitted_at": 3, "runs": 1}')
    assert job_files.attempts(tmp_path) == [job_files.Attempt(None, None, None, False, 0)]
    job = job_files.Job.read(tmp_path)
    assert job is not None and job.submitted_at is None


def test_times_of_which_one_names_no_zone_make_no_duration():
    begin, end = "2026-01-01T00:00:00", "2026-01-01T00:00:05+00:00"
    assert job_files.Attempt(begin, end, 0, False, 0).seconds is None
    assert job_files.Attempt(end, end, 0, False, 0).seconds == 0


def test_status_shows_what_waits_trains_and_has_ended(tmp_path: Path):
    partial = waiting(tmp_path, START, steps=True)
    (row,) = status_table.rows(tmp_path, ask=slurm_says("RUNNING"))
    assert (row.job_id, row.state, row.steps_done, row.steps_asked) == ("7", "training", 2, 5)
    (row,) = status_table.rows(tmp_path, ask=slurm_says("PENDING"))
    assert (row.state, row.detail) == ("queued", "Resources")
    (row,) = status_table.rows(tmp_path, ask=lambda _: Answer(None, "", ""))
    assert (row.state, row.detail) == ("unknown", "Slurm does not answer here")
    slurm_jobs.settle(tmp_path, slurm_says("CANCELLED"))
    (row,) = status_table.rows(tmp_path, everything=True, ask=slurm_says(None))
    assert (row.job_id, row.state, row.run_id) == ("7", "interrupted", partial.name[9:])


# Which node tells what happened.

TORCHRUN = (
    "E torch/distributed/elastic/multiprocessing/api.py failed (exitcode: {code}) local_rank: 0"
)


def log(text: str, code: int) -> node_logs.NodeLog:
    """Return a node's log that ends with torchrun's report."""
    return node_logs.NodeLog((*text.splitlines(), TORCHRUN.format(code=code)), code)


@pytest.mark.parametrize(
    ("culprit", "follower"),
    [
        (("ValueError: mine", 1), ("RuntimeError: Connection closed by peer [10.0.0.2]:1", 1)),
        (("RuntimeError: CUDA out of memory. Tried to allocate 1 GiB", 1), ("ValueError: x", 1)),
        (("ValueError: mine", 1), ("", 143)),
        (("DIVERGED: the loss of step 3 is not finite", 3), ("RuntimeError: Broken pipe", 1)),
    ],
)
def test_the_node_that_failed_first_tells_what_happened(
    culprit: tuple[str, int], follower: tuple[str, int]
):
    first, second = log(*culprit), log(*follower)
    assert node_logs.telling([first, second]) is first
    assert node_logs.telling([second, first]) is first


def test_the_logs_of_all_nodes_become_one(tmp_path: Path):
    for number in (10, 2, 0):
        (tmp_path / f"train.log.node{number}").write_text(f"line of {number}\n")
    node_logs.merge(tmp_path)
    text = (tmp_path / "train.log").read_text()
    assert [text.index(f"line of {number}") for number in (0, 2, 10)] == sorted(
        text.index(f"line of {number}") for number in (0, 2, 10)
    )
    assert {path.name for path in tmp_path.iterdir()} == {"train.log"}


# Submitting and following.


def entry() -> todo.Entry:
    """Return a run of a plan that is to be run."""
    return todo.Entry(small(nodes=2, world_size=2), "run")


def test_a_refused_job_leaves_nothing_and_says_what_slurm_said(tmp_path: Path):
    ask = lambda _: Answer(1, "", "sbatch: error: invalid partition specified: x")  # noqa: E731
    with pytest.raises(LaunchError, match="Slurm refused the job: sbatch: error: invalid"):
        slurm_submit.submit([entry()], tmp_path, slurm.Options(), ask=ask)
    assert store.partial_directories(tmp_path) == ()


def test_a_submitted_run_has_its_script_and_its_job(tmp_path: Path):
    seen: list[Sequence[str]] = []

    def ask(command: Sequence[str]) -> Answer:
        seen.append(command)
        return Answer(0, "7;cluster\n", "")

    (submitted,) = slurm_submit.submit([entry()], tmp_path / "a b", slurm.Options(), ask=ask)
    assert submitted.job_id == "7"
    assert job_files.Job.read(submitted.directory) is not None
    assert seen[0][:2] == ("sbatch", "--parsable")
    assert str(submitted.directory) in Path(seen[0][2]).read_text()


def test_following_ends_when_the_job_has_and_returns_its_record(tmp_path: Path):
    partial = waiting(tmp_path, START, steps=True)
    states = iter(["PENDING", "RUNNING", "TIMEOUT", "TIMEOUT"])
    current = [slurm_says(next(states))]

    def ask(command: Sequence[str]) -> Answer:
        if command[0] == "squeue":
            current[0] = slurm_says(next(states))
        return current[0](command)

    shown = StringIO()
    follower = slurm_follow.Follower(Console(shown), Stop(), ask, 0.0, lambda _: None)
    results, why = follower.follow([slurm_submit.Submitted(entry(), partial, "7")])
    assert why is None
    assert results[0].record is not None and results[0].record.status == "timeout"
    assert "running" in shown.getvalue()


def test_a_slurm_that_does_not_answer_is_not_followed_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(slurm_follow, "SILENT_SECONDS", -1.0)
    partial = waiting(tmp_path, START)
    silent = lambda _: Answer(None, "", "")  # noqa: E731
    follower = slurm_follow.Follower(Console(StringIO()), Stop(), silent, 0.0, lambda _: None)
    results, why = follower.follow([slurm_submit.Submitted(entry(), partial, "7")])
    assert why is not None and "Slurm has not answered" in why
    assert partial.is_dir() and results[0].record is None


def test_a_plan_of_other_machines_is_not_held_against_this_one(tmp_path: Path):
    plan = Plan("p", "", (PlannedRun(small(nodes=2, world_size=2), ()),))
    (here,) = todo.survey(plan, tmp_path)
    (there,) = todo.survey(plan, tmp_path, here=False)
    assert (here.action, there.action) == ("unavailable", "run")


def test_a_machine_without_slurm_is_told_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(LaunchError, match="sbatch, squeue, scontrol not found"):
        slurm_submit.require_slurm()


def test_states_are_read_from_scontrol_as_it_prints_them():
    text = "JobId=7 JobName=a JobState=RUNNING Reason=None Dependency=(null) Restarts=2 Comment=x=y"
    assert slurm_state.state_of("7", lambda _: Answer(0, text, "")) == JobState("RUNNING", "", 2)
