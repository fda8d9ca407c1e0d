"""A reader may choose the steps that a rate is over, and is offered them where it helps."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import fmean, stdev

import pytest

from scalebook import store
from scalebook.cli import main
from scalebook.measure.metrics import measure
from scalebook.measure.metrics.steady import longest_level
from scalebook.measure.metrics.step_anatomy import marked_steps
from scalebook.measure.metrics.window import measured_steps, throughput
from scalebook.record import RunRecord, StepRecord
from scalebook.store import Run, read_run

# Two levels: 60 steps of 1 s, then 140 steps of 2 s; 1,000 tokens each.
SHORT, LONG = 60, 140


def seconds() -> list[float]:
    noise = random.Random(3)
    levels = [1.0] * SHORT + [2.0] * LONG
    return [level * noise.gauss(1, 0.003) for level in levels]


def run(folder: Path, chosen: tuple[int, int] | None = None) -> Run:
    """Write and return a run with two levels."""
    folder.mkdir()
    record = RunRecord(
        run_id=folder.name,
        config_hash=None,
        source="ingested",
        status="completed",
        observed={"model": "llama3.1-8b", "world_size": 8},
        window=chosen,
    )
    store.write_record(folder, record)
    lines = [
        f'{{"step": {step}, "phase": "measured", "step_seconds": {value}, "tokens": 1000}}'
        for step, value in enumerate(seconds(), start=1)
    ]
    (folder / "steps.jsonl").write_text("\n".join(lines) + "\n")
    return read_run(folder)


def test_a_series_with_two_levels_has_no_rate_and_the_longest_is_offered(tmp_path: Path):
    found = measure(run(tmp_path / "two"))
    assert found.tokens_per_second is None
    assert "The longest level is steps 61 to 200, at 500 tokens/s" in (
        found.throughput_reason or ""
    )
    assert "--window 61:200" in (found.throughput_reason or "")
    two = read_run(tmp_path / "two")
    _, brief = throughput(two.record, measured_steps(two.steps), interval=False)
    assert brief is not None
    assert "The level shifts after 60 of 200 measured steps" in brief
    assert "--window" not in brief  # to look for it takes as long as all else


def test_a_shift_is_counted_in_measured_steps_and_a_window_named_by_step_numbers(tmp_path: Path):
    """Of 200 steps the first 10 are warm-up: 50 measured steps lie before the shift."""
    path = tmp_path / "two"
    run(path)
    lines = (path / "steps.jsonl").read_text().splitlines()
    lines[:10] = [line.replace("measured", "warmup") for line in lines[:10]]
    (path / "steps.jsonl").write_text("\n".join(lines) + "\n")
    said = measure(read_run(path)).throughput_reason or ""
    assert "The level shifts after 50 of 190 measured steps: they take 100 % more" in said
    assert "The longest level is steps 61 to 200" in said


def test_the_rate_of_a_chosen_window_is_over_its_steps_and_says_so(tmp_path: Path):
    late = measure(run(tmp_path / "late", (SHORT + 1, SHORT + LONG)))
    assert late.tokens_per_second == pytest.approx(1000 / 2.0, rel=0.002)
    assert "The reader chose steps 61 to 200" in (late.window_note or "")
    early = measure(run(tmp_path / "early", (1, SHORT)))
    assert early.tokens_per_second == pytest.approx(1000 / 1.0, rel=0.002)
    assert (early.tokens_per_second_low or 0) < early.tokens_per_second


def test_the_parts_of_a_step_are_those_of_the_window():
    record = RunRecord(run_id="one", config_hash=None, source="ingested", status="completed")
    steps = [
        StepRecord(
            step=step,
            phase="measured",
            step_seconds=level,
            tokens=1000,
            part_seconds={"forward": 0.25 * level},
        )
        for step, level in enumerate([1.0] * 6 + [2.0] * 4, start=1)
    ]
    late = marked_steps(record.model_copy(update={"window": (7, 9)}), steps)
    assert late is not None
    assert (late.steps, late.step_seconds) == (3, 2.0)
    assert late.parts == {"forward": 0.5, "outside": 1.5}
    whole = marked_steps(record, steps)
    assert whole is not None
    assert (whole.steps, whole.step_seconds) == (10, 1.4)


def test_the_spread_of_the_steps_is_that_of_the_window(tmp_path: Path):
    late = measure(run(tmp_path / "late", (SHORT + 1, SHORT + LONG)))
    window = seconds()[SHORT:]
    assert late.registered["step_seconds_std"] == pytest.approx(stdev(window), rel=1e-9)
    assert late.registered["step_seconds_cv"] == pytest.approx(
        stdev(window) / fmean(window), rel=1e-9
    )
    assert measure(run(tmp_path / "two")).registered["step_seconds_std"] is None


def test_a_chosen_window_over_a_shift_or_without_a_step_has_no_rate(tmp_path: Path):
    across = measure(run(tmp_path / "across", (1, 200)))
    assert "The level shifts after 60 of 200 measured steps" in (across.throughput_reason or "")
    beyond = measure(run(tmp_path / "beyond", (300, 400)))
    assert "No measured step lies in the window that was chosen, steps 300 to 400" in (
        beyond.throughput_reason or ""
    )


def test_the_longest_of_three_levels_is_found_wherever_it_lies():
    noise = random.Random(5)
    levels = [1.0] * 40 + [3.0] * 90 + [2.0] * 50
    first, last = longest_level([level * noise.gauss(1, 0.003) for level in levels]) or (0, 0)
    assert 40 <= first <= 45 and 125 <= last < 130


def test_steady_keeps_a_window_in_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = run(tmp_path / "kept").path
    assert main(["steady", str(folder), "--window", "61:200"]) == 0
    assert "500 tokens/s over steps 61 to 200, as chosen" in capsys.readouterr().err
    assert read_run(folder).record.window == (61, 200)
    assert main(["steady", str(folder), "--window", "1:200"]) == 2
    assert read_run(folder).record.window == (61, 200)  # what gives no rate is not kept


def test_steady_offers_the_longest_level_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = run(tmp_path / "two").path
    assert main(["steady", str(folder), str(folder / "steps.jsonl")]) == 0
    of_run, of_steps = capsys.readouterr().out.splitlines()
    assert of_run.endswith("is steps 61 to 200, at 500 tokens/s; --window 61:200 chooses it.")
    assert "not averaged" in of_steps and "--window" not in of_steps  # only a run keeps a choice


def test_a_log_is_ingested_with_a_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    log = tmp_path / "log.jsonl"
    rows = (f'{{"step": {n}, "seconds": {s}}}' for n, s in enumerate(seconds(), 1))
    log.write_text("\n".join(rows) + "\n")
    options = ["--map", "step=step", "--map", "step_seconds=seconds", "--sequence-length", "100"]
    options += ["--global-batch-size", "10", "--gpus", "1"]
    runs = tmp_path / "runs"
    words = ["ingest", str(log), *options, "--runs", str(runs)]
    assert main([*words, "--window", "61:200"]) == 0
    (directory,) = store.run_directories(runs)
    assert read_run(directory).record.window == (61, 200)
    assert measure(read_run(directory)).tokens_per_second == pytest.approx(500, rel=0.002)
    with pytest.raises(SystemExit):
        main([*words, "--window", "200:61"])
    assert "not a range of steps FIRST:LAST" in capsys.readouterr().err
