"""A notebook's kernel that hangs costs its own run at most, and never the plan."""

from __future__ import annotations

import gc
import io
import json
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from training import FAKES, small, wait_for

from scalebook import notebooks, store
from scalebook.plan import Plan, PlannedRun
from scalebook.running import finish_run, processes, sweep
from scalebook.running.console import Console
from scalebook.running.kernel import RunOptions
from scalebook.running.sweep import CLOSING_SECONDS, START_SECONDS, Patience, Stop
from scalebook.running.todo import survey

TRAIN = Path(__file__).parents[2] / "notebooks" / "10_train.ipynb"


def run(runs: Path, stop: Stop, notebook: Path = TRAIN) -> tuple[tuple[sweep.Result, ...], str]:
    """Run a plan of two repeats with the fake trainer; return results and what was said."""
    planned = tuple(PlannedRun(config=small(repeat=number), problems=()) for number in range(2))
    settings = sweep.Settings(runs=runs, notebook=notebook, trainer="fake_trainer")
    stream = io.StringIO()
    entries = survey(Plan("test", "", planned), runs)
    return sweep.run_plan(entries, settings, Console(stream), stop), stream.getvalue()


def kernels() -> list[psutil.Process]:
    """Return the notebook kernels that this process runs."""
    children = psutil.Process().children()
    return [child for child in children if "ipykernel_launcher" in child.cmdline()]


def training(runs: Path) -> Path | None:
    """Return the partial directory of a run that has made two steps."""
    for partial in store.partial_directories(runs):
        if len(store.read_steps(partial / "steps.jsonl")[0]) == 2:
            return partial
    return None


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lose patience with what should end after 2 seconds."""
    monkeypatch.setattr(sweep, "CLOSING_SECONDS", 2.0)


@pytest.mark.parametrize(
    ("files", "asked", "awaited", "seconds"),
    [
        ([], False, "start the run", START_SECONDS),
        ([finish_run.LAUNCH_FILE], True, "end the run", CLOSING_SECONDS),
        ([], True, "end the run", CLOSING_SECONDS),
        (["record.json"], False, "end", CLOSING_SECONDS),
        (["record.json"], True, "end", CLOSING_SECONDS),
    ],
)
def test_a_kernel_has_so_long_for_each_thing_and_no_longer(
    tmp_path: Path, files: list[str], asked: bool, awaited: str, seconds: float
):
    now = [100.0]
    patience = Patience(tmp_path, lambda: now[0])
    for name in files:
        (tmp_path / name).write_text("{}")
    assert patience.lost(asked=asked) is None
    now[0] += seconds
    assert patience.lost(asked=asked) is None
    now[0] += 1
    assert f"kernel did not {awaited} within {seconds:.0f} s" in patience.lost(asked=asked)


def test_training_may_take_as_long_as_it_likes_and_what_follows_has_its_own_time(tmp_path: Path):
    now = [100.0]
    patience = Patience(tmp_path, lambda: now[0])
    assert patience.lost(asked=False) is None
    (tmp_path / finish_run.LAUNCH_FILE).write_text("{}")
    for _ in range(3):
        assert patience.lost(asked=False) is None
        now[0] += 10 * START_SECONDS
    assert patience.lost(asked=True) is None
    now[0] += CLOSING_SECONDS + 1
    (tmp_path / "record.json").write_text("{}")
    assert patience.lost(asked=True) is None


def test_a_run_leaves_no_descriptor_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(notebooks, "validate", lambda *_: None)
    notebook = tmp_path / "empty.ipynb"
    kernel = {"name": "python3", "display_name": "Python", "language": "python"}
    nbformat.write(nbformat.v4.new_notebook(metadata={"kernelspec": kernel}), notebook)
    open_files: list[int] = []
    gc.collect()
    gc.disable()  # which would close some of them, sooner or later
    try:
        for number in range(3):  # the first loads modules, which may keep files
            work = sweep.Execution(notebook, small(repeat=number), tmp_path, RunOptions())
            work.join()
            assert work.error is None
            open_files.append(len(list(Path("/proc/self/fd").iterdir())))
    finally:
        gc.enable()
    assert open_files[2] <= open_files[0]


def test_a_kernel_that_does_not_answer_cannot_keep_a_plan_that_must_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatient: None
):
    monkeypatch.setenv("PYTHONPATH", str(FAKES))
    monkeypatch.setenv("FAKE_TRAINER", "hang")
    stop, seen = Stop(), []

    def freeze_and_stop() -> None:
        seen.append(wait_for(lambda: training(tmp_path)))
        kernels()[0].send_signal(signal.SIGSTOP)
        stop(signal.SIGTERM, None)

    thread = threading.Thread(target=freeze_and_stop)
    thread.start()
    (first, second), said = run(tmp_path, stop)
    thread.join()
    assert (first.status, second.status) == ("interrupted", "run")
    assert "ended by SIGTERM (after step 2 of 5)" in first.ended.reason
    assert "[1/2] The notebook's kernel did not end the run within 2 s and was ended" in said
    assert not kernels()
    assert not processes.marked(finish_run.run_id(seen[0]))


def test_a_kernel_that_never_starts_its_run_fails_it_and_the_plan_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", str(FAKES))
    monkeypatch.setattr(sweep, "START_SECONDS", 8.0)
    notebook = tmp_path / "idle.ipynb"
    content = json.loads(TRAIN.read_text())
    for cell in content["cells"]:
        if "runner.train" in "".join(cell["source"]):
            cell["source"] = ["import time\n", "repeat or time.sleep(600)\n", *cell["source"]]
    notebook.write_text(json.dumps(content))
    results, _ = run(tmp_path / "runs", Stop(), notebook)
    assert [result.status for result in results] == ["failed", "completed"]
    assert "did not start the run within 8 s" in results[0].ended.reason
    assert not kernels()


def test_a_run_that_is_recorded_stays_so_when_its_notebook_never_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatient: None
):
    """Also where papermill itself hangs: the plan goes on without it."""
    release = threading.Event()

    def execute(_notebook: Path, output: Path, parameters: Mapping[str, Any]) -> None:
        directory = Path(parameters["run_directory"])
        output.write_text("{}")
        line = '{"step": %d, "phase": "measured", "step_seconds": 0.5, "tokens": 64}\n'
        (directory / "steps.jsonl").write_text("".join(line % n for n in range(1, 6)))
        finish_run.conclude(directory, finish_run.Ended(0))
        if parameters["repeat"] == 0:
            release.wait()

    monkeypatch.setattr(notebooks, "execute", execute)
    monkeypatch.setattr(sweep, "DYING_SECONDS", 0.2)
    results, said = run(tmp_path, Stop())
    release.set()
    assert [result.status for result in results] == ["completed", "completed"]
    assert said.count("The notebook's kernel did not end within 2 s and was ended") == 1
    assert len(list(store.run_directories(tmp_path))) == 2


def test_other_processes_of_the_caller_are_left_alone(tmp_path: Path):
    child = psutil.Popen(["sleep", "600"])
    work = sweep.Execution(tmp_path / "none.ipynb", small(), tmp_path, RunOptions())
    work.end()
    assert child.is_running()
    child.kill()
    child.wait()
    assert "was not found" in str(work.error)
