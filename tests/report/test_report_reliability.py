"""The reliability page says what the runs say, and what to run where they say nothing."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from training import small

from scalebook import store
from scalebook.measure import reliability
from scalebook.measure.reliability import CheckpointRecord, DrillRecord
from scalebook.record import RunRecord, StepRecord
from scalebook.report.base import frames
from scalebook.report.base.markup import unreadable
from scalebook.report.pages import reliability_page

NOON = "2026-03-05T12:00:00.000+00:00"
GIB = 2**30


def run(folder: Path, second: int, **changes: Any) -> Path:
    """Write a run of ten steps of 2 s; return its directory."""
    config = small(steps=10)
    run_id = store.run_id(config, datetime(2026, 3, 5, 12, 0, second, tzinfo=UTC))
    path = folder / run_id
    path.mkdir()
    values = {"status": "completed", "requested": config.model_dump()} | changes
    store.write_record(path, RunRecord(run_id=run_id, config_hash=None, **values))
    steps = [
        StepRecord(step=n, phase="measured", step_seconds=2.0, tokens=64, loss=3.0)
        for n in range(1, 11)
    ]
    (path / "steps.jsonl").write_text("".join(f"{s.model_dump_json()}\n" for s in steps))
    return path


def checkpoint(path: Path, kind: str = "save", **changes: Any) -> None:
    values = {
        "kind": kind, "step": 5, "seconds": 4.0, "blocking_seconds": 1.0, "size_bytes": 8 * GIB,
        "started_at": NOON, "finished_at": NOON,
    }  # fmt: skip
    record = CheckpointRecord(**(values | changes))
    with (path / reliability.CHECKPOINTS_FILE).open("a") as stream:
        stream.write(record.model_dump_json() + "\n")


def drilled(path: Path, **changes: Any) -> None:
    values = {
        "kill_rank": 1, "kill_during": "step", "killed_at": NOON, "last_step": 7,
        "resumed_step": 5, "steps_lost": 2, "detection_seconds": 0.5, "start_seconds": 1.5,
        "build_seconds": 8.0, "load_seconds": 4.0, "step_seconds": 6.0, "next_step_seconds": 20.0,
        "regained_seconds": 24.0, "compared_steps": 2, "largest_loss_difference": 0.0,
        "identical": True, "passed": True,
    }  # fmt: skip
    store.write_json(
        path / reliability.DRILL_FILE, DrillRecord(**(values | changes)).model_dump(mode="json")
    )


def words(shown: Any) -> str:
    """Return the text of a fragment without its markup."""
    text = re.sub(r"<[^>]+>", "", shown._repr_markdown_()).replace("\u00a0", " ")
    return re.sub(r"\s+", " ", text.replace("\u202f", " "))


def found(folder: Path) -> reliability_page.Reliability:
    return reliability_page.reliability(frames.load(folder))


def test_runs_are_counted_by_status_and_failures_by_what_they_share(tmp_path: Path):
    run(tmp_path, 1)
    for second, rank in ((2, 0), (3, 3)):
        reason = f"The trainer failed on rank {rank}: ValueError: {second}"
        run(tmp_path, second, status="failed", reason=reason, cause="python_error")
    reason = "The GPU's memory ran out on rank 1: 2 GiB"
    run(tmp_path, 4, status="out_of_memory", reason=reason, cause="gpu_memory")
    text = words(reliability_page.statuses(frames.load(tmp_path)))
    assert "4 runs: 2 failed, 1 completed, 1 out of memory." in text
    assert "failed: 2 runs (" in text
    assert "The first: The trainer failed on rank 0: ValueError: 2." in text
    assert "out of memory: 1 run (" in text
    assert "The GPU&#39;s memory ran out on rank 1: 2 GiB." in text


def test_a_record_from_before_causes_stands_with_the_others_that_ran_out_of_memory(tmp_path: Path):
    asked = small(steps=10).model_dump() | {"platform": "h100"}
    for second, cause in ((1, "gpu_memory"), (2, None), (3, "host_memory")):
        said = {"reason": f"It ran out: {second}.", "cause": cause}
        run(tmp_path, second, status="out_of_memory", requested=asked, **said)
    text = words(reliability_page.statuses(frames.load(tmp_path)))
    assert "out of memory: 2 runs (" in text
    assert "The first: It ran out: 1." in text
    assert "out of memory: 1 run (" in text
    assert "It ran out: 3." in text


def test_the_cost_of_checkpoints_is_computed_from_every_save(tmp_path: Path):
    path = run(tmp_path, 1)
    checkpoint(path)
    checkpoint(path, step=10, seconds=4.0, blocking_seconds=3.0)
    checkpoint(path, "load", seconds=2.0, blocking_seconds=2.0)
    (row,) = found(tmp_path).saved
    assert (row["saves"], row["size_gib"], row["mode"]) == (2, 8, "synchronous")
    assert (row["save_seconds"], row["blocking_seconds"], row["save_rate"]) == (4, 2, 2)
    assert (row["waited_steps"], row["waited_share"]) == (
        1,
        4 / (20 + 3),  # ten steps of 2 s, of which one holds the first wait, and the last wait
    )
    assert (row["load_seconds"], row["load_rate"]) == (2, 4)
    text = words(reliability_page.checkpoint_findings(found(tmp_path)))
    assert "tiny-llama on CPU, synchronous: 2 saves of 8.00 GiB in 1 run." in text
    assert "A save is complete after 4.00 s (2.00 GiB/s), and training waits 2.00 s for it" in text
    assert "as long as 1.00 steps. Waiting takes 17.4 % of the training time." in text


def test_no_share_of_waiting_is_told_where_steps_were_done_anew(tmp_path: Path):
    """The wait after the first save was in a step that a restart has done again."""
    path = run(tmp_path, 1)
    checkpoint(path)
    checkpoint(path, step=10, restart=1)
    (saved,) = found(tmp_path).saved
    assert saved["waited_share"] is None
    assert "of the training" not in words(reliability_page.checkpoint_findings(found(tmp_path)))


def test_both_modes_of_saving_are_told_apart(tmp_path: Path):
    checkpoint(run(tmp_path, 1))
    checkpoint(run(tmp_path, 2), asynchronous=True)
    text = words(reliability_page.checkpoint_findings(found(tmp_path)))
    assert "CPU, synchronous: 1 save" in text
    assert "CPU, asynchronous: 1 save" in text


def test_without_checkpoints_and_drills_the_page_says_what_to_run(tmp_path: Path):
    run(tmp_path, 1)
    nothing = found(tmp_path)
    assert "--set checkpoint_interval=10" in words(reliability_page.checkpoint_findings(nothing))
    assert "scalebook drill trains, kills a rank" in words(reliability_page.findings(nothing))
    assert reliability_page.checkpoint_chart(nothing) is None
    assert reliability_page.chart(nothing) is None


def test_a_drill_is_told_with_its_times_and_whether_the_losses_agree(tmp_path: Path):
    drilled(run(tmp_path, 1))
    text = words(reliability_page.findings(found(tmp_path)))
    assert text.find("Recovered on CPU: rank 1 of tiny-llama") >= 0
    assert "died after step 7, between two saves." in text
    assert (
        "A step was finished again 20.0 s after the kill (500 ms to notice, 4.00 s to load)" in text
    )
    assert "from the checkpoint of step 5; 2 steps had to be repeated" in text
    assert "All 2 losses compared between repeated steps are identical." in text


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"passed": False, "identical": False, "largest_loss_difference": 0.25},
            "by up to 25.0 %.",
        ),
        ({"passed": False, "next_step_seconds": None}, "Training did not continue."),
        ({"resumed_step": None, "steps_lost": 7}, "from its first step, without a checkpoint; 7"),
        ({"kill_during": "save"}, "while a checkpoint was saved."),
    ],
)
def test_a_drill_that_went_otherwise_is_said(
    changes: dict[str, Any], sentence: str, tmp_path: Path
):
    drilled(run(tmp_path, 1), **changes)
    text = words(reliability_page.findings(found(tmp_path)))
    assert sentence in text
    assert ("Not recovered as expected" in text) is not changes.get("passed", True)


def test_the_parts_in_the_chart_follow_one_another(tmp_path: Path):
    drilled(run(tmp_path, 1))
    figure = reliability_page.chart(found(tmp_path))
    assert figure is not None
    parts = figure.spec()["data"]["values"]
    assert [part["begins"] for part in parts] == [0, 0.5, 2, 10, 14]
    assert parts[-1]["ends"] == 20


def test_a_part_that_is_not_known_ends_the_time_line(tmp_path: Path):
    drilled(run(tmp_path, 1), build_seconds=None)
    figure = reliability_page.chart(found(tmp_path))
    assert figure is not None
    assert len(figure.spec()["data"]["values"]) == 2


def test_two_runs_of_one_configuration_are_two_bars(tmp_path: Path):
    for second in (1, 2):
        checkpoint(run(tmp_path, second))
    figure = reliability_page.checkpoint_chart(found(tmp_path))
    assert figure is not None
    assert len({bar["label"] for bar in figure.spec()["data"]["values"]}) == 2


def test_broken_files_are_listed_and_hide_no_run(tmp_path: Path):
    path = run(tmp_path, 1)
    checkpoint(path)
    with (path / reliability.CHECKPOINTS_FILE).open("a") as stream:
        stream.write('{"kind": "<script>')
    (path / reliability.DRILL_FILE).write_text("{")
    data = found(tmp_path)
    assert len(data.saved) == 1
    assert not data.drills
    assert "checkpoints.jsonl line 2 is not" in words(unreadable(data.problems))


def test_markup_in_a_record_stays_text(tmp_path: Path):
    run(tmp_path, 1, status="failed", reason="<script>alert(1)</script>")
    html = reliability_page.statuses(frames.load(tmp_path))._repr_markdown_()
    assert "<script>" not in html
