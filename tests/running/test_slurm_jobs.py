"""What becomes of a run's directory when its job has ended, whatever Slurm still knows."""

from __future__ import annotations

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
from scalebook.query import CommandAnswer
from scalebook.running import finish_run, todo
from scalebook.running.cluster import jobs, node_logs, slurm, status_table, submit, watch
from scalebook.running.cluster.jobs import JobState
from scalebook.running.cluster.node_logs import ASKED, FOLLOWED
from scalebook.running.console import Console
from scalebook.running.finish_run import Ended
from scalebook.running.sweep import Stop

STEP = '{"step": 2, "phase": "measured", "step_seconds": 0.1, "tokens": 64}\n'


def waiting(
    runs: Path,
    end: Ended | None = None,
    *,
    started: bool = True,
    shared_by: int = 1,
    steps: bool = False,
) -> Path:
    """Return a directory that waits for job 7, with what the job has noted."""
    runs.mkdir(exist_ok=True)
    partial = store.partial_path(runs, "20330102-030405-a")
    partial.mkdir()
    store.write_json(partial / "config.json", small(nodes=2, world_size=2).model_dump())
    jobs.write_job(partial, "7", shared_by)
    if started:
        slurm_ = {"job_id": "7", "requeued": 0}
        finish_run.write_launch(partial, ("python",), {"slurm": slurm_}, "mark")
    if end is not None:
        finish_run.write_exit(partial, end)
    if steps:
        (partial / "steps.jsonl").write_text(STEP)
    return partial


def slurm_says(state: str | None, restarts: int = 0) -> jobs.Ask:
    """Return a Slurm that knows one job in a state, or none."""

    def ask(command: Sequence[str]) -> CommandAnswer:
        if command[0] == "squeue":
            active = state in jobs.ACTIVE
            return CommandAnswer(0, f"7|{state}|Resources\n" if active else "", "")
        if state is None:
            return CommandAnswer(1, "", "slurm_load_jobs error: Invalid job id specified")
        return CommandAnswer(
            0, f"JobId=7 JobState={state} Reason=None Restarts={restarts} Name=a", ""
        )

    return ask


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
        (None, "interrupted", "ended without a message"),
    ],
)
def test_the_state_of_a_job_becomes_the_status_of_its_run(
    state: str | None, status: str, words: str, tmp_path: Path
):
    waiting(tmp_path, Ended(1) if state == "FAILED" else None, steps=True)
    (settled,) = jobs.settle(tmp_path, slurm_says(state))
    assert settled.record is not None
    assert settled.record.status == status
    assert words in str(settled.record.reason)
    assert settled.path.name == "20330102-030405-a"


def test_a_run_that_had_ended_well_is_completed_whatever_became_of_its_job(tmp_path: Path):
    partial = waiting(tmp_path, Ended(0))
    started = store.read_object(partial / finish_run.LAUNCH_FILE)["started_at"]
    submitted = "2033-01-02T03:04:05+00:00"
    job = store.read_object(partial / ownership.JOB_FILE) | {"submitted_at": submitted}
    store.write_json(partial / ownership.JOB_FILE, job)
    lines = [STEP.replace("2", str(number), 1) for number in range(1, 6)]
    (partial / "steps.jsonl").write_text("".join(lines))
    (settled,) = jobs.settle(tmp_path, slurm_says("TIMEOUT"))
    assert settled.record is not None and settled.record.status == "completed"
    assert settled.record.started_at == started
    assert settled.record.environment["slurm"] == {
        "job_id": "7", "submitted_at": submitted, "requeued": 0, "state": "TIMEOUT",
    }  # fmt: skip


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED"])
def test_a_live_job_is_left_alone(state: str, tmp_path: Path):
    partial = waiting(tmp_path)
    assert jobs.settle(tmp_path, slurm_says(state)) == ()
    assert partial.is_dir()


def test_without_an_answer_nothing_is_decided(tmp_path: Path):
    partial = waiting(tmp_path)
    assert jobs.settle(tmp_path, lambda _: CommandAnswer(1, "", "Unable to contact")) == ()
    assert jobs.settle(tmp_path, lambda _: CommandAnswer(None, "", "no scontrol")) == ()
    assert partial.is_dir()


def test_a_forgotten_job_that_was_asked_to_end_says_so(tmp_path: Path):
    waiting(tmp_path, Ended(143, ASKED), steps=True)
    (settled,) = jobs.settle(tmp_path, slurm_says(None))
    assert settled.record is not None
    assert "Slurm has forgotten which" in str(settled.record.reason)


def test_runs_of_one_job_that_had_no_turn_are_still_to_be_run(tmp_path: Path):
    partial = waiting(tmp_path, started=False, shared_by=3)
    (settled,) = jobs.settle(tmp_path, slurm_says("TIMEOUT"))
    assert settled.record is None
    assert not partial.exists()


def test_a_job_that_never_started_is_recorded(tmp_path: Path):
    waiting(tmp_path, started=False)
    (settled,) = jobs.settle(tmp_path, slurm_says("CANCELLED"))
    assert settled.record is not None
    assert (settled.record.status, settled.record.started_at) == ("interrupted", None)


def test_recovery_leaves_the_directories_of_jobs_alone(tmp_path: Path):
    partial = waiting(tmp_path)
    (left,) = finish_run.recover(tmp_path)
    assert left.record is None and partial.is_dir()
    assert todo.live_hashes(tmp_path) == {small(nodes=2, world_size=2).config_hash()}


def test_a_submitter_that_died_before_it_had_a_job_is_recovered(tmp_path: Path):
    partial = waiting(tmp_path, started=False)
    jobs.write_job(partial, None, 1)
    jobs.settle(tmp_path, slurm_says(None))
    assert ownership.is_live(partial)
    os.utime(partial / ownership.JOB_FILE, (0, 0))
    jobs.settle(tmp_path, slurm_says(None))
    assert not (partial / ownership.JOB_FILE).exists()


def test_a_job_that_broke_before_the_run_says_why_from_what_it_printed(tmp_path: Path):
    waiting(tmp_path, started=False)
    (tmp_path / jobs.FOLDER).mkdir()
    printed = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'scalebook'"
    (tmp_path / jobs.FOLDER / "scalebook-tiny-w2-7.out").write_text(printed)
    (settled,) = jobs.settle(tmp_path, slurm_says("FAILED"))
    assert settled.record is not None
    assert (settled.record.status, settled.record.cause) == ("failed", "missing_module")
    assert str(settled.record.reason).startswith("A Python module is missing: scalebook")


def test_a_node_that_another_one_took_along_leaves_the_reason_to_that_one(tmp_path: Path):
    partial = waiting(tmp_path, Ended(143, FOLLOWED), steps=True)
    finish_run.write_exit(partial, Ended(1, None, 0, ()), 1)
    (partial / "train.log").write_text("step 2\n")
    (partial / "train.log.node1").write_text("\n".join(log("ValueError: mine", 1).lines))
    (settled,) = jobs.settle(tmp_path, slurm_says("FAILED"))
    assert settled.record is not None
    assert (settled.record.status, settled.record.exit_code) == ("failed", 1)
    assert "ValueError: mine" in str(settled.record.reason)


def test_a_job_that_started_before_its_submitter_noted_its_id_is_known(tmp_path: Path):
    partial = waiting(tmp_path)
    jobs.write_job(partial, None, 1)
    job = jobs.SlurmJob.read(partial)
    assert job is not None and job.job_id == "7"


@pytest.mark.parametrize("job_id", ["**", "--help", "../../x", "7\0", "٣", "", "7 8", "-1"])
def test_slurm_is_asked_for_nothing_that_is_no_number_of_a_job(job_id: str, tmp_path: Path):
    partial = waiting(tmp_path, started=False)
    store.write_json(partial / ownership.JOB_FILE, {"scheduler": "slurm", "job_id": job_id})
    assert jobs.SlurmJob.read(partial) is None
    assert jobs.settle(tmp_path, slurm_says("TIMEOUT")) == ()
    assert partial.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"scheduler": "slurm", "job_id": []}'])
def test_a_job_that_nobody_can_read_is_let_go_of_after_a_while(text: str, tmp_path: Path):
    file = waiting(tmp_path) / ownership.JOB_FILE
    (file.parent / finish_run.LAUNCH_FILE).unlink()
    file.write_text(text)
    jobs.settle(tmp_path, slurm_says("TIMEOUT"))
    assert file.exists()
    os.utime(file, (0, 0))
    jobs.settle(tmp_path, slurm_says("TIMEOUT"))
    assert not file.exists()


@pytest.mark.parametrize("job_id", ["7", "7_12", "7+1"])
def test_a_job_may_be_one_of_an_array_or_of_a_group(job_id: str, tmp_path: Path):
    partial = waiting(tmp_path, started=False)
    jobs.write_job(partial, job_id, 1)
    job = jobs.SlurmJob.read(partial)
    assert job is not None and job.job_id == job_id


def test_facts_of_a_job_that_have_another_kind_are_none(tmp_path: Path):
    (tmp_path / ownership.JOB_FILE).write_text('{"job_id": "7", "submitted_at": 3, "runs": "1"}')
    assert jobs.SlurmJob.read(tmp_path) == jobs.SlurmJob("7", None, 1)
    (tmp_path / ownership.JOB_FILE).write_text('{"job_id": 7}')
    (tmp_path / finish_run.LAUNCH_FILE).write_text('{"environment": {"slurm": [1]}}')
    assert jobs.SlurmJob.read(tmp_path) is None


def test_status_shows_what_waits_trains_and_has_ended(tmp_path: Path):
    partial = waiting(tmp_path, steps=True)
    (row,) = status_table.rows(tmp_path, ask=slurm_says("RUNNING"))
    assert (row.job_id, row.state, row.steps_done, row.steps_asked) == ("7", "training", 2, 5)
    (row,) = status_table.rows(tmp_path, ask=slurm_says("PENDING"))
    assert (row.state, row.detail) == ("queued", "Resources")
    (row,) = status_table.rows(tmp_path, ask=lambda _: CommandAnswer(None, "", ""))
    assert (row.state, row.detail) == ("unknown", "Slurm does not answer here")
    jobs.settle(tmp_path, slurm_says("CANCELLED"))
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
        finish_run.log_file(tmp_path, number).write_text(f"line of {number}\n")
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


ORDER = submit.Order(Plan("p", "", ()), [entry()])


def test_a_refused_job_leaves_nothing_and_says_what_slurm_said(tmp_path: Path):
    ask = lambda _: CommandAnswer(1, "", "sbatch: error: invalid partition specified: x")  # noqa: E731
    with pytest.raises(LaunchError, match="Slurm refused the job: sbatch: error: invalid"):
        submit.submit([entry()], tmp_path, slurm.Options(), ORDER, ask)
    assert store.partial_directories(tmp_path) == ()


def test_a_submitted_run_has_its_script_and_its_job(tmp_path: Path):
    seen: list[Sequence[str]] = []

    def ask(command: Sequence[str]) -> CommandAnswer:
        seen.append(command)
        return CommandAnswer(0, "7;cluster\n", "")

    (submitted,) = submit.submit([entry()], tmp_path / "a b", slurm.Options(), ORDER, ask)
    assert submitted.job_id == "7"
    assert jobs.SlurmJob.read(submitted.directory) is not None
    assert seen[0][:2] == ("sbatch", "--parsable")
    assert str(submitted.directory) in Path(seen[0][2]).read_text()


def test_following_ends_when_the_job_has_and_returns_its_record(tmp_path: Path):
    partial = waiting(tmp_path, steps=True)
    states = iter(["PENDING", "RUNNING", "TIMEOUT", "TIMEOUT"])
    current = [slurm_says(next(states))]

    def ask(command: Sequence[str]) -> CommandAnswer:
        if command[0] == "squeue":
            current[0] = slurm_says(next(states))
        return current[0](command)

    shown = StringIO()
    submitted = [submit.Submitted(entry(), partial, "7")]
    results, why = watch.follow(submitted, Console(shown), Stop(), ask, 0.0)
    assert why is None
    assert results[0].ended is not None and results[0].ended.status == "timeout"
    assert "running" in shown.getvalue()


def test_a_slurm_that_does_not_answer_is_not_followed_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(watch, "SILENT_SECONDS", -1.0)
    partial = waiting(tmp_path)
    silent = lambda _: CommandAnswer(None, "", "")  # noqa: E731
    submitted = [submit.Submitted(entry(), partial, "7")]
    results, why = watch.follow(submitted, Console(StringIO()), Stop(), silent, 0.0)
    assert why is not None and "Slurm has not answered" in why
    assert partial.is_dir() and results[0].ended is None


def test_a_plan_of_other_machines_is_not_held_against_this_one(tmp_path: Path):
    plan = Plan("p", "", (PlannedRun(small(nodes=2, world_size=2), ()),))
    (here,) = todo.survey(plan, tmp_path)
    (there,) = todo.survey(plan, tmp_path, here=False)
    assert (here.action, there.action) == ("unavailable", "run")


def test_a_machine_without_slurm_is_told_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(LaunchError, match="sbatch, squeue, scontrol not found"):
        submit.require_slurm()


def test_states_are_read_from_scontrol_as_it_prints_them():
    text = "JobId=7 JobName=a JobState=RUNNING Reason=None Dependency=(null) Restarts=2 Comment=x=y"
    assert jobs.state_of("7", lambda _: CommandAnswer(0, text, "")) == JobState("RUNNING", "", 2)
