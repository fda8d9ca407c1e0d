"""A clock that is set by an hour in the middle: durations, order and telemetry stay right."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from training import small

from scalebook import ownership, store
from scalebook.measure import telemetry
from scalebook.measure.telemetry.readings import Device, Telemetry
from scalebook.measure.telemetry.summary import SET_BACK, windows_of
from scalebook.record import RunRecord, StepRecord, seconds_between
from scalebook.running import finish_run, sweep
from scalebook.running.progress import ProgressLimit, Tail

HOUR = 3600.0
BEGIN = 1_795_800_000.0


def steps(jump: float, count: int = 10, at: int = 5) -> list[StepRecord]:
    """Return steps of a second; after step ``at`` the clock is set by so many seconds."""
    return [
        StepRecord(
            step=number,
            phase="measured",
            step_seconds=1.0,
            tokens=1000,
            finished_at=datetime.fromtimestamp(
                BEGIN + number + (jump if number > at else 0), UTC
            ).isoformat(timespec="milliseconds"),
        )
        for number in range(1, count + 1)
    ]


def sampled(jump: float, count: int = 10, at: int = 5) -> Telemetry:
    """Return samples of the same clock: 100 W until it was set, 300 W from then on."""
    moments = [number / 4 for number in range(-8, 4 * count + 8)]
    rows = tuple(
        {"time": BEGIN + one + jump, "power_watts": 300.0}
        if one > at
        else {"time": BEGIN + one, "power_watts": 100.0}
        for one in moments
    )
    device = Device("GPU 0", tuple(sorted(rows, key=lambda row: row["time"])))
    return Telemetry((device,), "test", 0.25)


def record() -> RunRecord:
    return RunRecord(run_id="r", config_hash=None, status="completed", requested={"world_size": 1})


@pytest.mark.parametrize("jump", [HOUR, -HOUR, 0.0])
def test_energy_is_that_of_the_steps_whatever_the_clock_did(jump: float):
    assert sum(one.seconds for one in windows_of(steps(jump))) == pytest.approx(10)
    found = telemetry.summarize(sampled(jump), record(), steps(jump))
    # 5 s at 100 W and 5 s at 300 W; the sample before a jump reaches into the step after it.
    assert found.energy_joules == pytest.approx(2000, abs=60)
    assert found.mean_power_watts == pytest.approx(200, abs=8)


def test_a_clock_set_back_into_earlier_steps_leaves_no_energy_and_says_why():
    found = telemetry.summarize(sampled(-4), record(), steps(-4))
    assert (found.energy_joules, found.energy_reason) == (None, SET_BACK)
    assert SET_BACK in found.notes


def launched(runs: Path, moved: float) -> Path:
    """Return a run that began 60 s ago, by a clock that was then set by so many seconds."""
    partial = store.create_partial(runs, small(), datetime.now(UTC))
    finish_run.write_launch(partial, ("x",), {})
    launch = store.read_object(partial / finish_run.LAUNCH_FILE)
    began = datetime.now(UTC) - timedelta(seconds=60 + moved)
    launch |= {"started_at": began.isoformat(timespec="seconds")}
    launch |= {"boot_seconds": finish_run.boot_seconds() - 60}
    store.write_json(partial / finish_run.LAUNCH_FILE, launch)
    return partial


@pytest.mark.parametrize(("moved", "word"), [(HOUR, "forward"), (-HOUR, "back"), (0.0, "")])
def test_a_record_lasts_as_long_as_the_run_did(tmp_path: Path, moved: float, word: str):
    made = finish_run.conclude(launched(tmp_path, moved), finish_run.Ended(1))
    begin, end = (datetime.fromisoformat(one) for one in (made.started_at, made.finished_at))
    assert (end - begin).total_seconds() == pytest.approx(60, abs=2)
    said = f"The clock was set {word} by 3600 s during the run; finished_at is by the clock that"
    assert [note.startswith(said) for note in made.notes if "clock" in note] == [True] * bool(word)


def test_a_time_that_would_be_negative_is_not_known():
    assert seconds_between("2026-01-01T12:00:00+00:00", "2026-01-01T11:00:00+00:00") is None


def test_runs_of_a_plan_keep_their_order_when_the_clock_is_set_back(
    monkeypatch: pytest.MonkeyPatch,
):
    before = sweep._steady_now()

    class Past(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.fromtimestamp(time.time() - HOUR, tz)

    monkeypatch.setattr(sweep, "datetime", Past)
    assert sweep._steady_now() >= before


def test_a_file_of_the_future_is_neither_new_nor_being_written(tmp_path: Path):
    saved = tmp_path / "checkpoints" / ".saving-00000001-0" / "weights"
    saved.parent.mkdir(parents=True)
    saved.write_text("x")
    limit = ProgressLimit(tmp_path, 600, Tail(tmp_path / "steps.jsonl"))
    assert ownership.is_live(tmp_path)
    assert limit._saving()
    for path in (saved, saved.parent, tmp_path):
        os.utime(path, (time.time() + HOUR, time.time() + HOUR))
    assert not limit._saving()
    assert not ownership.is_live(tmp_path)
