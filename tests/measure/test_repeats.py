"""Repeats in a recorded order, with a pause between runs."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from training import small

from scalebook import notebooks, store
from scalebook.cli import build_commands, main, run_options
from scalebook.errors import ConfigError
from scalebook.plan import Plan, PlannedRun, Schedule
from scalebook.plan.schedule import CoolDown
from scalebook.record import RunRecord
from scalebook.running import finish_run, sweep, todo
from scalebook.running.console import Console
from scalebook.running.todo import survey

RUN = ("run", "--platform", "cpu", "--set", "model=tiny-llama", "--set", "global_batch_size=8")
FLAGS = (*RUN, "--set", "sequence_length=64", "--set", "steps=7")


def complete(notebook: Path, output: Path, parameters: Mapping[str, Any]) -> None:
    """Stand in for papermill: every run completes."""
    directory = Path(parameters["run_directory"])
    line = '{"step": %d, "phase": "measured", "step_seconds": 0.5, "tokens": 64}\n'
    steps = range(1, parameters["steps"] + 1)
    (directory / "steps.jsonl").write_text("".join(line % step for step in steps))
    finish_run.conclude(directory, finish_run.Ended(0))


@pytest.fixture
def papermill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a stand-in in papermill's place."""
    monkeypatch.setattr(notebooks, "execute", complete)
    monkeypatch.setattr(sweep, "POLL_SECONDS", 0.01)


def by_place(runs: Path) -> list[RunRecord]:
    """Return the records of a plan in the order in which they say that they ran."""
    found = [store.read_record(directory) for directory in store.run_directories(runs)]
    return sorted(found, key=lambda record: record.schedule["place"])


@pytest.mark.usefixtures("papermill")
def test_a_reader_can_check_the_random_order_from_the_records(tmp_path: Path, capsys: Any):
    runs = tmp_path / "runs"
    plan = tmp_path / "plan.toml"
    text = 'model = "tiny-llama"\nglobal_batch_size = 8\nsteps = 6\n'
    plan.write_text(f"[[runs]]\n{text}sequence_length = [16, 32, 64]\n")
    command = ["run", "--platform", "cpu", "--plan", str(plan), "--runs", str(runs)]
    assert main([*command, "--repeats", "3", "--cool-down", "0.01s"]) == 0
    said = capsys.readouterr().out
    records = by_place(runs)
    schedule = records[0].schedule
    assert [record.schedule["place"] for record in records] == list(range(1, 10))
    assert [record.requested["repeat"] for record in records] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert (schedule["order"], schedule["of"], schedule["repeats"]) == ("random", 9, 3)
    assert f"--order-seed {schedule['seed']}" in said
    for block in (records[0:3], records[3:6], records[6:9]):
        hashes = [record.config_hash for record in block]
        seeded = [sha256(f"{schedule['seed']}:{name}".encode()).hexdigest() for name in hashes]
        assert seeded == sorted(seeded)
    assert f"seed {schedule['seed']}" in records[0].notes[0]
    assert schedule["cool_down"] is None  # nothing ran before it
    assert records[1].schedule["cool_down"]["asked"] == "0.01s"


@pytest.mark.usefixtures("papermill")
def test_what_is_done_of_the_repeats_is_not_run_again(tmp_path: Path, capsys: Any):
    command = [*FLAGS, "--runs", str(tmp_path), "--repeats"]
    assert main([*command, "2"]) == 0
    assert main([*command, "3"]) == 0
    assert "1 to run, 2 done, of 3" in capsys.readouterr().out
    assert sorted(record.requested["repeat"] for record in by_place(tmp_path)) == [0, 1, 2]


@pytest.mark.usefixtures("papermill")
def test_a_run_directory_keeps_no_file_of_the_schedule(tmp_path: Path):
    main([*FLAGS, "--runs", str(tmp_path), "--repeats", "2"])
    assert not list(tmp_path.glob(f"*/{finish_run.SCHEDULE_FILE}"))


def pause(text: str, readings: list[float | None], ended: bool = False) -> todo.Waited:
    """Return what a cool-down was at these temperatures, read one after the other."""
    found = CoolDown(celsius=float(text[:-1])) if text.endswith("C") else CoolDown(float(text[:-1]))
    return todo.wait(found, lambda: ended, temperature=lambda: readings.pop(0))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a cool-down read often."""
    monkeypatch.setattr(todo, "READ_SECONDS", 0.01)
    monkeypatch.setattr(todo, "POLL_SECONDS", 0.005)


@pytest.mark.usefixtures("quick")
def test_a_cool_down_lasts_until_the_hottest_gpu_is_cold_enough():
    waited = pause("45C", [71.0, 52.0, 45.0, 10.0])
    assert (waited.celsius, waited.note, waited.asked) == (45.0, None, "45C")


@pytest.mark.usefixtures("quick")
def test_without_a_temperature_nothing_is_waited_for_and_the_record_says_why():
    waited = pause("45C", [None])
    assert waited.celsius is None
    assert "No temperature can be read" in waited.note
    kept = todo.place(Plan("p", "", ()), 2, waited)
    assert kept["cool_down"]["celsius"] is None
    assert kept["notes"] == [waited.note]


@pytest.mark.usefixtures("quick")
def test_a_gpu_that_does_not_cool_down_does_not_hold_the_plan(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(todo, "LONGEST_SECONDS", 0.0)
    waited = pause("45C", [60.0] * 50)
    assert "Still 60 °C" in waited.note


@pytest.mark.usefixtures("quick")
def test_a_cool_down_by_seconds_notes_the_temperature_at_its_end():
    waited = pause("0.05s", [33.0])
    assert waited.seconds >= 0.05 - 0.05  # rounded to a tenth
    assert waited.celsius == 33.0


def test_a_plan_that_is_ended_does_not_wait_on():
    assert pause("600s", [None], ended=True).seconds < 60


@pytest.mark.usefixtures("papermill")
def test_a_signal_during_the_cool_down_starts_nothing_more(tmp_path: Path):
    runs = tuple(PlannedRun(small(repeat=n), ()) for n in range(2))
    plan = Plan("p", "", runs, Schedule(cool_down=CoolDown(seconds=600)))
    stop = sweep.Stop()

    class Interrupted(Console):
        def live(self, text: str, _table: object = None) -> None:
            if "cooling down" in text:
                stop(2, None)

    settings = sweep.Settings(runs=tmp_path, notebook=Path("n.ipynb"), plan=plan)
    results = sweep.run_plan(survey(plan, tmp_path), settings, Interrupted(io.StringIO()), stop)
    assert [result.ended is not None for result in results] == [True, False]
    assert "not started" in results[1].note


def test_fields_of_the_command_line_have_the_types_of_the_configuration():
    texts = ("steps=3", "learning_rate=1e-4", "sequence_parallel=TRUE", "model=tiny-moe", "data=")
    assert run_options.fields(texts) == {
        "steps": 3,
        "learning_rate": 1e-4,
        "sequence_parallel": True,
        "model": "tiny-moe",
        "data": "",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("steps", "has no '='"),
        ("step=3", "Did you mean 'steps'"),
        ("steps=x", "is not a whole number"),
        ("sequence_parallel=1", "is not true or false"),
        ("learning_rate=high", "is not a number"),
        ("platform=h100", "--platform"),
    ],
)
def test_a_field_that_is_none_is_refused_in_one_line(text: str, words: str):
    with pytest.raises(ConfigError, match=words) as caught:
        run_options.fields([text])
    assert "\n" not in str(caught.value)


def test_a_dry_run_tells_the_seed_that_gives_its_order(tmp_path: Path, capsys: Any):
    command = [*FLAGS, "--runs", str(tmp_path), "--repeats", "2", "--dry-run"]
    assert main([*command, "--cool-down", "45C"]) == 0
    assert "--order-seed" in (said := capsys.readouterr().out)
    assert "Cool-down between runs: 45C." in said
    assert [line[:3] for line in said.splitlines()].count("run") == 2
    assert said.count("torch.distributed.run") == 1  # the same for both


def test_a_cool_down_that_is_none_is_one_line(tmp_path: Path, capsys: Any):
    assert main([*FLAGS, "--runs", str(tmp_path), "--cool-down", "a while"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_schedule_of_the_command_line_is_only_what_was_given():
    options = build_commands()[0].parse_args(["run", "--repeats", "3"])
    assert json.dumps(run_options.scheduled(options)) == '{"repeats": 3}'
