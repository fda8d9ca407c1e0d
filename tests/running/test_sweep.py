"""A plan: what is left to do, progress, and what stays when runs break."""

from __future__ import annotations

import io
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from training import small, wait_for

from scalebook import notebooks, ownership, store
from scalebook.cli import main
from scalebook.facts.legality import Problem
from scalebook.notebooks import KernelDeathError, NotebookError
from scalebook.plan import Plan, PlannedRun
from scalebook.running import finish_run, runner, sweep
from scalebook.running.console import Console
from scalebook.running.todo import Entry, label, survey

SCALEBOOK = (sys.executable, "-m", "scalebook")

Execute = Callable[[Path, Path, Mapping[str, Any]], None]


def write_steps(directory: Path, count: int) -> None:
    """Write steps as a trainer does."""
    line = '{"step": %d, "phase": "measured", "step_seconds": 0.5, "tokens": 64}\n'
    (directory / "steps.jsonl").write_text("".join(line % n for n in range(1, count + 1)))


def kernel(broken: str = "", dead: str = "") -> Execute:
    """Return a stand-in for papermill: runs complete but for those of the given repeats."""

    def execute(notebook: Path, output: Path, parameters: Mapping[str, Any]) -> None:
        directory = Path(parameters["run_directory"])
        output.write_text("{}")
        if str(parameters["repeat"]) == dead:
            write_steps(directory, 2)
            raise KernelDeathError("The notebook's kernel ended early: Kernel died")
        bad = str(parameters["repeat"]) == broken
        write_steps(directory, 3 if bad else parameters["steps"])
        finish_run.conclude(directory, finish_run.Ended(1 if bad else 0))
        if bad:
            raise NotebookError("A cell raised")

    return execute


@pytest.fixture
def papermill(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put a stand-in in papermill's place."""

    def place(execute: Execute | None = None, **changes: str) -> None:
        monkeypatch.setattr(notebooks, "execute", execute or kernel(**changes))
        monkeypatch.setattr(sweep, "POLL_SECONDS", 0.02)

    return place


def planned(*problems: Problem, **changes: Any) -> PlannedRun:
    """Return one run of a plan."""
    values = {"config": small(**changes), "problems": problems}
    return PlannedRun(**values)


def plan(*runs: PlannedRun) -> Plan:
    """Return a plan of three repeats, or of the given runs."""
    return Plan("test", "", runs or tuple(planned(repeat=number) for number in range(3)))


def run(runs: Path, the_plan: Plan, **settings: Any) -> tuple[tuple[sweep.Result, ...], str, int]:
    """Run a plan and return results, what was said, and the exit code."""
    stream = io.StringIO()
    given = {"budget_seconds": None, **settings}
    options = sweep.Settings(runs=runs, notebook=Path("n.ipynb"), **given)
    with sweep.stop_on_signals(options.budget_seconds) as stop:
        results = sweep.run_plan(survey(the_plan, runs), options, Console(stream), stop)
    return results, stream.getvalue(), sweep.exit_code(results, stop)


def actions(entries: tuple[Entry, ...]) -> list[str]:
    """Return what is to be done about each entry."""
    return [entry.action for entry in entries]


def test_a_plan_runs_to_its_end_and_says_where_each_run_is(tmp_path: Path, papermill: Any):
    papermill()
    results, said, code = run(tmp_path, plan())
    assert (code, [result.ended.status for result in results]) == (0, ["completed"] * 3)
    assert "[1/3]" in said
    assert "[3/3] completed in" in said
    for directory in store.run_directories(tmp_path):
        assert (directory / "run.ipynb").exists()
        assert not (directory / ownership.FILE).exists()


def test_a_failed_run_does_not_stop_the_plan(tmp_path: Path, papermill: Any):
    papermill(broken="1")
    results, said, code = run(tmp_path, plan())
    statuses = [result.ended.status for result in results]
    assert (code, statuses) == (0, ["completed", "failed", "completed"])
    assert "failed" in said


def test_a_dead_kernel_is_recorded_with_the_steps_that_were_written(tmp_path: Path, papermill: Any):
    papermill(dead="1")
    results, _, _ = run(tmp_path, plan())
    record = results[1].ended
    assert record.status == "interrupted"
    assert "kernel ended early: Kernel died (after step 2 of 5)" in record.reason


def test_of_each_run_a_plan_keeps_what_its_summary_says(tmp_path: Path, papermill: Any):
    papermill()
    results, _, _ = run(tmp_path, plan())
    assert max(len(pickle.dumps(result.ended)) for result in results) < 300  # a record has 4 KB


def test_a_defect_of_one_run_does_not_cost_the_others(tmp_path: Path, papermill: Any):
    def execute(notebook: Path, output: Path, parameters: Mapping[str, Any]) -> None:
        if parameters["repeat"] == 0:
            raise KeyError("a defect")
        kernel()(notebook, output, parameters)

    papermill(execute)
    results, _, code = run(tmp_path, plan())
    assert [result.ended.status for result in results] == ["failed", "completed", "completed"]
    assert code == 0


def test_nothing_that_succeeded_is_exit_code_1(tmp_path: Path, papermill: Any):
    papermill(broken="0")
    assert run(tmp_path, plan(planned(repeat=0)))[2] == 1


def test_finished_runs_are_skipped_and_failed_ones_tried_again(tmp_path: Path, papermill: Any):
    papermill(broken="1")
    run(tmp_path, plan())
    assert actions(survey(plan(), tmp_path)) == ["done", "run", "done"]
    papermill()
    run(tmp_path, plan())
    assert actions(survey(plan(), tmp_path)) == ["done"] * 3
    assert actions(survey(plan(), tmp_path, rerun=True)) == ["run"] * 3


def test_the_time_limit_does_not_make_another_run(tmp_path: Path, papermill: Any):
    papermill()
    run(tmp_path, plan(planned()))
    assert actions(survey(plan(planned(time_limit_seconds=60)), tmp_path)) == ["done"]


def test_an_illegal_run_is_recorded_once_and_never_started(tmp_path: Path, papermill: Any):
    def execute(*_: Any) -> None:
        raise AssertionError("an illegal run was started")

    papermill(execute)
    the_plan = plan(planned(Problem("heads", "8 heads do not divide by 3.")))
    results, _, code = run(tmp_path, the_plan)
    assert (results[0].ended.status, results[0].ended.reason, code) == (
        "illegal",
        "8 heads do not divide by 3.",
        1,
    )
    record = store.read_record(tmp_path / results[0].ended.run_id)
    assert record.requested["model"] == "tiny-llama"
    assert actions(survey(the_plan, tmp_path)) == ["known_illegal"]
    run(tmp_path, the_plan)
    assert len(list(store.run_directories(tmp_path))) == 1


def test_what_this_machine_lacks_is_said_but_not_recorded(tmp_path: Path):
    (entry,) = survey(plan(planned(world_size=4)), tmp_path, devices=1)
    limit = "needs 4 GPUs, the limit is 1 (--gpus or this machine's)"
    assert (entry.action, entry.reason) == ("unavailable", limit)
    lacking = planned(Problem("devices", "above the 2 devices available."))
    assert actions(survey(plan(lacking), tmp_path)) == ["unavailable"]


def test_a_run_that_another_process_is_at_is_left_to_it(tmp_path: Path):
    partial = store.create_partial(tmp_path, small(repeat=0), finish_run.datetime.now())
    with ownership.owned(partial):
        assert actions(survey(plan(), tmp_path)) == ["elsewhere", "run", "run"]


def complete(runs: Path, **changes: Any) -> Path:
    """Publish a completed run, as another process does."""
    partial = store.create_partial(runs, small(**changes), finish_run.datetime.now())
    write_steps(partial, 5)
    finish_run.conclude(partial, finish_run.Ended(0))
    return store.publish(partial)


@pytest.mark.parametrize(("rerun", "status"), [(False, "done"), (True, "completed")])
def test_what_another_process_has_done_meanwhile_is_not_done_twice(
    tmp_path: Path, papermill: Any, rerun: bool, status: str
):
    def execute(notebook: Path, output: Path, parameters: Mapping[str, Any]) -> None:
        if parameters["repeat"] == 0:
            complete(tmp_path, repeat=1)
        kernel()(notebook, output, parameters)

    papermill(execute)
    results, said, code = run(tmp_path, plan(), rerun=rerun)
    assert [result.status for result in results] == ["completed", status, "completed"]
    assert ("[2/3] not started: a completed run of it exists now" in said) != rerun
    assert (code, all(result.good for result in results)) == (0, True)


@pytest.mark.parametrize("rerun", [False, True])
def test_what_another_process_is_at_by_now_is_left_to_it(
    tmp_path: Path, papermill: Any, rerun: bool
):
    def execute(notebook: Path, output: Path, parameters: Mapping[str, Any]) -> None:
        if parameters["repeat"] == 0:
            store.create_partial(tmp_path, small(repeat=1), finish_run.datetime.now())
        kernel()(notebook, output, parameters)

    papermill(execute)
    results, said, _ = run(tmp_path, plan(), rerun=rerun)
    assert [result.status for result in results] == ["completed", "elsewhere", "completed"]
    assert "[2/3] not started: another process or job is running it" in said


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)
def test_a_signal_ends_the_run_is_recorded_and_stops_the_plan(
    tmp_path: Path, papermill: Any, number: signal.Signals, code: int
):
    def execute(notebook: Path, output: Path, parameters: Mapping[str, Any]) -> None:
        directory = Path(parameters["run_directory"])
        write_steps(directory, 2)
        os.kill(os.getpid(), number)
        while not (directory / runner.STOP_FILE).exists():
            pass
        request = json.loads((directory / runner.STOP_FILE).read_text())
        finish_run.conclude(
            directory, finish_run.Ended(stop=(request["status"], request["sentence"]))
        )
        raise NotebookError("A cell raised")

    papermill(execute)
    before = signal.getsignal(number)
    results, said, exit_code = run(tmp_path, plan())
    assert exit_code == code
    assert results[0].ended.status == "interrupted"
    assert f"ended by {number.name} (after step 2 of 5)" in results[0].ended.reason
    assert [result.ended for result in results[1:]] == [None, None]
    assert "ending this run" in said
    assert signal.getsignal(number) == before


def test_a_second_signal_kills_the_processes_of_this_start_alone(
    tmp_path: Path, papermill: Any, monkeypatch: pytest.MonkeyPatch
):
    ended: list[tuple[str, str | None]] = []
    in_time: list[bool] = []

    def end(run_id: str, _grace: float = 0, *, start: str | None = None) -> bool:
        ended.append((run_id, start))
        return True

    def execute(notebook: Path, output: Path, parameters: Mapping[str, Any]) -> None:
        directory = Path(parameters["run_directory"])
        os.kill(os.getpid(), signal.SIGTERM)
        # Two signals in a row can arrive as one: the second is sent when the first was seen.
        wait_for((directory / runner.STOP_FILE).exists)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.3)
        assert not ended  # nothing is started yet
        finish_run.write_launch(directory, ("python",), {}, "mark")
        begun = time.monotonic()
        while not ended and time.monotonic() - begun < 20:
            time.sleep(0.02)
        in_time.append(bool(ended))  # without the signal the end would come with the clearing up
        finish_run.conclude(directory, finish_run.Ended(137))

    monkeypatch.setattr(sweep.processes, "end", end)
    papermill(execute)
    results, _, _ = run(tmp_path, plan(planned()))
    assert in_time == [True]
    assert ended == [(results[0].ended.run_id, "mark")]


def test_a_closed_terminal_says_so_more_than_once_and_counts_once():
    with sweep.stop_on_signals(None) as stop:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
    assert stop.signals == [signal.SIGHUP]


def test_a_plan_under_nohup_does_not_end_with_its_terminal():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with sweep.stop_on_signals(None) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
        assert stop.sentence() is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_used_up_budget_starts_nothing_more(tmp_path: Path, papermill: Any):
    papermill()
    results, _, code = run(tmp_path, plan(), budget_seconds=0.0)
    assert [result.ended for result in results] == [None] * 3
    assert all("budget" in result.note for result in results)
    assert code == 1


def test_a_budget_does_not_end_a_run_whose_steps_are_all_done(tmp_path: Path, papermill: Any):
    """It ends after the budget but within the extra time; what is left is not started."""

    def execute(notebook: Path, output: Path, parameters: Mapping[str, Any]) -> None:
        kernel()(notebook, output, parameters)
        time.sleep(2.5)

    papermill(execute)
    results, said, code = run(tmp_path, plan(), budget_seconds=2.0)
    assert (code, results[0].ended.status) == (0, "completed")
    assert "ending this run" not in said
    assert all("budget" in result.note for result in results[1:])


def test_every_entry_has_a_line_in_the_summary(tmp_path: Path, papermill: Any):
    papermill(broken="1")
    results, _, _ = run(tmp_path, plan())
    lines = sweep.summary(results)
    assert [line.split()[0] for line in lines] == ["completed", "failed", "completed"]


def test_a_terminal_gets_one_live_line_and_a_file_plain_ones():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        console = Console(stream)
        console.say("start")
        for number in range(3):
            console.live(f"step {number}")
        console.say("end")
    assert file.getvalue() == "start\nend\n"
    assert terminal.getvalue().count("\n") == 2
    assert "step 2" in terminal.getvalue()


class Broken(io.StringIO):
    """A standard output whose reader is gone."""

    def write(self, _text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


class BrokenTerminal(Broken):
    """A terminal that was closed."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Broken, BrokenTerminal])
def test_a_plan_trains_on_where_nobody_reads_what_it_says(
    tmp_path: Path, papermill: Any, monkeypatch: pytest.MonkeyPatch, stream: type[Broken]
):
    papermill(broken="0")
    monkeypatch.setattr(io, "StringIO", stream)
    results, _, code = run(tmp_path, plan())
    assert [result.ended.status for result in results] == ["failed", "completed", "completed"]
    assert code == 0


def test_the_exit_code_of_a_plan_is_its_own_where_nobody_reads_what_it_says(tmp_path: Path):
    path = tmp_path / "plan.toml"
    path.write_text(
        "[[runs]]\nmodel = 'tiny-llama'\nworld_size = 3\ntensor_parallel_size = 3\n"
        "global_batch_size = 9\nsequence_length = 128\n"
    )
    command = [*SCALEBOOK, "run", "--platform", "cpu", "--plan", str(path), "--runs"]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as stdout:
        ended = subprocess.run(
            [*command, str(tmp_path / "runs"), "--trainer", "none"],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (1, "")
    (directory,) = store.run_directories(tmp_path / "runs")
    assert store.read_record(directory).status == "illegal"


def test_a_label_names_every_size_above_1_the_options_and_the_batch():
    config = small(world_size=8, tensor_parallel_size=2, pipeline_parallel_size=2, repeat=3)
    batch = f"batch {config.global_batch_size} x {config.sequence_length} tokens"
    split = "TP2 PP2 DP2, micro batch 1, fp32"
    assert label(config) == f"tiny-llama, 8 ranks, {split}, {batch}, repeat 3"
    again = small(recompute="full", fused_norm="off")
    options = "DP1, micro batch 1, full recomputation, fused norm off, fp32"
    assert label(again) == f"tiny-llama, 1 rank, {options}, {batch}"
    assert label(small(strategy="balanced")).startswith("tiny-llama balanced, 1 rank")


def test_a_dry_run_prints_commands_and_touches_nothing(tmp_path: Path, capsys: Any):
    runs = tmp_path / "runs"
    assert main(["run", "--platform", "cpu", "--dry-run", "--runs", str(runs)]) == 0
    text = capsys.readouterr().out
    assert text.count("torch.distributed.run") == 5
    assert "OMP_NUM_THREADS=1" in text
    assert not runs.exists()


def test_a_gpu_plan_is_shown_on_a_machine_without_gpus(tmp_path: Path, capsys: Any):
    command = ["run", "--platform", "h100", "--dry-run", "--gpus", "2", "--runs", str(tmp_path)]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "needs 4 GPUs, the limit is 2 (--gpus or this machine's)" in text


def test_a_platform_that_this_machine_is_not_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: Any
):
    assert main(["run", "--platform", "mi300x", "--runs", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("scalebook: Platform 'mi300x' needs MI300X, and no GPU was found here.")
    assert error.count("\n") == 1


def test_a_plan_that_is_done_says_so_and_does_nothing(tmp_path: Path, papermill: Any, capsys: Any):
    papermill()
    command = ["run", "--platform", "cpu", "--runs", str(tmp_path)]
    assert main(command) == 0
    capsys.readouterr()
    assert main(command) == 0
    assert capsys.readouterr().out == (
        "All 5 runs of plan 'quick' are completed. Use --rerun to repeat.\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--detach"], "--detach is an option of --launcher slurm; the launcher here is direct."),
        (["--sbatch-option", "partition=gpu"], "--sbatch-option is an option of --launcher slurm"),
    ],
)
def test_an_option_of_another_launcher_is_refused_not_ignored(
    options: list[str], message: str, tmp_path: Path, capsys: Any
):
    command = ["run", "--platform", "cpu", "--dry-run", "--runs", str(tmp_path), *options]
    assert main(command) == 2
    assert message in capsys.readouterr().err


def test_what_happens_after_each_run_may_fail_without_a_loss(tmp_path: Path, papermill: Any):
    papermill(broken="1")
    seen: list[Path] = []

    def after(directory: Path) -> list[str]:
        seen.append(directory)
        return ["not written to wandb:x: no room"] if len(seen) == 2 else []

    results, said, code = run(tmp_path, plan(), after=after)
    assert (code, len(results)) == (0, 3)
    assert sorted(seen) == sorted(store.run_directories(tmp_path))
    assert "[2/3] warning: not written to wandb:x: no room" in said


def held() -> tuple[int, int, int]:
    """Return this process's memory in MiB, its open files and its children, dead ones too."""
    children = psutil.Process().children()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    memory_mib = pages * os.sysconf("SC_PAGESIZE") // 2**20
    return memory_mib, len(list(Path("/proc/self/fd").iterdir())), len(children)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_thirty_more_runs_leave_no_descriptor_no_child_and_no_memory(
    tmp_path: Path, papermill: Any
):
    """Each starts and ends a process of its own, as a kernel does."""
    whole = kernel()

    def execute(notebook: Path, output: Path, parameters: Mapping[str, Any]) -> None:
        subprocess.run((sys.executable, "-S", "-c", ""), check=True)
        whole(notebook, output, parameters)

    papermill(execute)
    run(tmp_path, plan(*(planned(repeat=number) for number in range(5))))
    memory_mib, files, children = held()
    run(tmp_path, plan(*(planned(repeat=number) for number in range(5, 35))))
    after_mib, *after = held()
    assert len(list(store.run_directories(tmp_path))) == 35
    assert after == [files, children]
    assert after_mib - memory_mib < 30
