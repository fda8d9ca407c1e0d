"""kill -9 of anything in the middle of a plan: no finished run is lost, the broken one is told.

Everything is real here (the command line, papermill, kernel, guard, torchrun, ranks) but the
trainer, which writes the same files without torch. A stand-in starts the ranks of the runs that
nothing happens to, and of all where a test says so: most of the time of such a run is torchrun's
import.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from training import environment, wait_for

from scalebook import ownership, store
from scalebook.running import finish_run, processes

pytestmark = pytest.mark.slow

REAL_PLAN = """
[plan]
name = "real"
[defaults]
model = "tiny-llama@2"
global_batch_size = 2
sequence_length = 32
world_size = 2
tensor_parallel_size = 2
[[runs]]
steps = 500
"""
PLAN = """
[plan]
name = "kill"
[defaults]
model = "tiny-llama"
global_batch_size = 8
sequence_length = 128
steps = 4
warmup_steps = 1
world_size = 2
[[runs]]
repeat = [0, 1, 2]
"""
BROKEN = 1  # the repeat in which the trainer hangs or dies, so that it can be killed


class Plan:
    """A plan of three runs, of which the second misbehaves."""

    def __init__(self, folder: Path) -> None:
        self.runs = folder / "runs"
        self.path = folder / "plan.toml"
        self.path.write_text(PLAN)
        self.process: subprocess.Popen[str] | None = None

    def leave_out_the_first(self) -> None:
        """Begin with the run that misbehaves, where none before it has to be kept."""
        self.path.write_text(PLAN.replace("repeat = [0, ", "repeat = ["))

    def start(self, mode: str = "hang", *, stand_in: bool = False) -> subprocess.Popen[str]:
        """Start the plan; its second run misbehaves after two steps."""
        command = (sys.executable, "-m", "scalebook", "run", "--platform", "cpu", "--plan")
        rest = (str(self.path), "--runs", str(self.runs), "--trainer", "fake_trainer")
        self.process = subprocess.Popen(
            (*command, *rest),
            env=environment(
                stand_in=True,
                REAL_REPEAT="" if stand_in else str(BROKEN),
                FAKE_TRAINER=mode,
                FAKE_REPEAT=str(BROKEN),
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return self.process

    def finish(self) -> tuple[int, str]:
        """Return exit code and output of the plan."""
        output, _ = self.process.communicate(timeout=300)
        return self.process.returncode, output

    def broken(self) -> Path:
        """Return the partial directory of the second run once it has written two steps."""

        def found() -> Path | None:
            for partial in store.partial_directories(self.runs):
                repeat = store.read_object(partial / "config.json").get("repeat")
                if repeat == BROKEN and len(store.read_steps(partial / "steps.jsonl")[0]) == 2:
                    return partial
            return None

        return wait_for(found, 90)

    def by_repeat(self) -> dict[int, list[store.Run]]:
        """Return the runs of each repeat, oldest first."""
        found, problems = store.read_runs(self.runs)
        assert problems == ()
        runs: dict[int, list[store.Run]] = {0: [], 1: [], 2: []}
        for run in found:
            runs[run.record.requested["repeat"]].append(run)
        return runs

    def statuses(self) -> list[list[str]]:
        """Return the statuses of each repeat."""
        return [[run.record.status for run in runs] for runs in self.by_repeat().values()]


@pytest.fixture
def plan(tmp_path: Path) -> Iterator[Plan]:
    """A plan that is not left running."""
    plan = Plan(tmp_path)
    yield plan
    if plan.process is not None and plan.process.poll() is None:
        plan.process.kill()
        plan.process.wait()
    for partial in store.partial_directories(plan.runs):
        processes.end(finish_run.run_id(partial))


def command_line(process_id: int) -> str:
    """Return the command of a process; empty where it is gone."""
    try:
        return Path(f"/proc/{process_id}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def left(run_id: str) -> list[str]:
    """Return what still runs of a run: state and command of each process."""
    return [f"{one} {processes.state(one)} {command_line(one)}" for one in processes.marked(run_id)]


def kernel_of(process: subprocess.Popen[str]) -> int:
    """Return the process id of the notebook kernel of a plan."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        fields = path.read_text().rpartition(")")[2].split()
        if int(fields[1]) == process.pid and "ipykernel" in command_line(int(path.parent.name)):
            return int(path.parent.name)
    raise AssertionError("no kernel is running")


def resumes(plan: Plan) -> None:
    """Start the plan again, without misbehaviour: only what broke is run, the rest is untouched."""
    kept = {
        run.path: (run.path / "record.json").read_bytes() for run in store.read_runs(plan.runs)[0]
    }
    plan.start(mode="", stand_in=True)
    code, output = plan.finish()
    assert code == 0, output
    assert [runs[-1].record.status for runs in plan.by_repeat().values()] == ["completed"] * 3
    for path, content in kept.items():
        assert (path / "record.json").read_bytes() == content
    assert not store.partial_directories(plan.runs)
    plan.start(mode="", stand_in=True)
    code, output = plan.finish()
    assert (code, "All 3 runs of plan 'kill' are completed" in output) == (0, True)


def test_a_killed_rank_is_recorded_and_the_plan_goes_on_and_resumes(plan: Plan):
    plan.start(mode="kill_last_rank")
    code, output = plan.finish()
    assert (code, plan.statuses()) == (0, [["completed"], ["failed"], ["completed"]]), output
    record = plan.by_repeat()[BROKEN][0].record
    assert "Rank 1 was ended by SIGKILL" in record.reason
    assert not left(record.run_id)
    resumes(plan)


def test_a_killed_trainer_leaves_no_rank_behind(plan: Plan):
    plan.leave_out_the_first()
    plan.start()
    run_id = finish_run.run_id(plan.broken())
    launcher = [p for p in processes.marked(run_id) if "torch.distributed.run" in command_line(p)]
    assert len(processes.marked(run_id)) == 3
    os.kill(launcher[0], signal.SIGKILL)
    code, output = plan.finish()
    assert (code, plan.statuses()) == (0, [[], ["failed"], ["completed"]]), output
    record = plan.by_repeat()[BROKEN][0].record
    assert "launcher (torchrun) was ended by SIGKILL" in record.reason
    assert "(after step 2 of 4)" in record.reason
    assert not left(run_id)


def test_a_killed_kernel_is_recorded_its_ranks_ended_and_the_plan_goes_on(plan: Plan):
    plan.leave_out_the_first()
    process = plan.start(stand_in=True)
    run_id = finish_run.run_id(plan.broken())
    os.kill(kernel_of(process), signal.SIGKILL)
    code, output = plan.finish()
    assert (code, plan.statuses()) == (0, [[], ["interrupted"], ["completed"]]), output
    run = plan.by_repeat()[BROKEN][0]
    assert run.record.cause == "stopped"
    assert "kernel ended early" in run.record.reason
    assert "(after step 2 of 4)" in run.record.reason
    assert len(run.steps) == 2
    assert (run.path / "run.ipynb").exists()
    assert not left(run_id)


def test_a_killed_plan_leaves_nothing_running_and_is_recovered(plan: Plan):
    process = plan.start()
    partial = plan.broken()
    process.kill()
    process.wait()
    wait_for(lambda: not processes.marked(finish_run.run_id(partial)))
    assert not ownership.is_live(partial)
    assert plan.statuses() == [["completed"], [], []]
    plan.start(mode="", stand_in=True)
    code, output = plan.finish()
    assert (code, "Recovered" in output) == (0, True), output
    broken, again = plan.by_repeat()[BROKEN]
    assert (broken.record.status, again.record.status) == ("interrupted", "completed"), output
    assert len(broken.steps) == 2
    assert "(after step 2 of 4)" in broken.record.reason


@pytest.mark.parametrize(
    ("number", "expected"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)
def test_a_signal_to_the_plan_records_the_run_and_ends_with_a_summary(
    plan: Plan, number: signal.Signals, expected: int
):
    plan.leave_out_the_first()
    # Whatever the plan is sent, the launcher is asked to end in the same way: once it is torchrun.
    process = plan.start(stand_in=number != signal.SIGINT)
    run_id = finish_run.run_id(plan.broken())
    process.send_signal(number)
    code, output = plan.finish()
    assert (code, plan.statuses()) == (expected, [[], ["interrupted"], []]), output
    assert number.name in plan.by_repeat()[BROKEN][0].record.reason
    assert "not started" in output
    assert output.endswith("The same command continues here: it skips completed runs.\n")
    assert "Traceback" not in output
    assert not left(run_id)


def test_a_killed_rank_of_the_real_trainer_is_recorded(plan: Plan):
    plan.path.write_text(REAL_PLAN)
    command = (sys.executable, "-m", "scalebook", "run", "--platform", "cpu")
    plan.process = subprocess.Popen(
        (*command, "--plan", str(plan.path), "--runs", str(plan.runs)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    def two_steps() -> Path | None:
        for partial in store.partial_directories(plan.runs):
            if len(store.read_steps(partial / "steps.jsonl")[0]) >= 2:
                return partial
        return None

    run_id = finish_run.run_id(wait_for(two_steps, 120))
    ranks = [p for p in processes.marked(run_id) if "torch.distributed.run" not in command_line(p)]
    os.kill(ranks[-1], signal.SIGKILL)
    code, output = plan.finish()
    (broken,) = (run.record for run in store.read_runs(plan.runs)[0])
    assert (code, broken.status) == (1, "failed"), output
    assert "was ended by SIGKILL" in broken.reason
    assert broken.observed["tensor_parallel_size"] == 2
    assert not left(run_id)
