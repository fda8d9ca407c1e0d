"""What need not be run because a smaller configuration ran out of memory, and its record."""

from __future__ import annotations

import io
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training import small

from scalebook import notebooks, store
from scalebook.config import RunConfig
from scalebook.facts.feasibility import growth
from scalebook.plan import Plan, PlannedRun
from scalebook.record import RunRecord
from scalebook.running import finish_run, sweep, todo
from scalebook.running.console import Console
from scalebook.running.todo import survey

OUT = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def grown(**changes: Any) -> dict[str, Any] | None:
    """Return by what a changed configuration needs no less than the small one."""
    base = small(micro_batch_size=2, global_batch_size=16, recompute="selective")
    return growth(base, base.model_copy(update=changes))


def test_a_larger_micro_batch_sequence_or_batch_needs_no_less():
    assert grown(micro_batch_size=4) == {"micro_batch_size": 4}
    assert grown(sequence_length=256, global_batch_size=32) == {
        "sequence_length": 256,
        "global_batch_size": 32,
    }


def test_weaker_recomputation_needs_no_less_and_stronger_says_nothing():
    assert grown(recompute="none") == {"recompute": "none"}
    assert grown(recompute="full") is None
    assert grown(recompute="pointwise") is None
    full = small(recompute="full")
    assert growth(full, full.model_copy(update={"recompute": "pointwise"})) is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"micro_batch_size": 1},
        {"micro_batch_size": 4, "tensor_parallel_size": 2},
        {"micro_batch_size": 4, "sequence_length": 64},
        {"world_size": 2},
        {"precision": "bf16"},
        {"platform": "h100"},
    ],
)
def test_nothing_follows_where_anything_else_differs(changes: dict[str, Any]):
    assert grown(**changes) is None


def test_what_takes_no_memory_does_not_matter():
    assert grown(repeat=3, steps=90, seed=5, learning_rate=0.5, strategy="x") == {}


@given(st.lists(st.integers(1, 64), min_size=3, max_size=3))
def test_the_order_is_transitive(sizes: list[int]):
    a, b, c = (small(micro_batch_size=size) for size in sizes)
    if growth(a, b) is not None and growth(b, c) is not None:
        assert growth(a, c) is not None


def execute(limit: int, ran: list[RunConfig]) -> Any:
    """Return a stand-in for papermill in which micro batches above the limit do not fit."""

    def run(notebook: Path, output: Path, parameters: Mapping[str, Any]) -> None:
        directory = Path(parameters["run_directory"])
        fields = {name: parameters[name] for name in RunConfig.model_fields}
        ran.append(RunConfig(**fields))
        line = '{"step": %d, "phase": "measured", "step_seconds": 0.5, "tokens": 64}\n'
        fits = parameters["micro_batch_size"] <= limit
        steps = range(1, parameters["steps"] + 1 if fits else 1)
        (directory / "steps.jsonl").write_text("".join(line % step for step in steps))
        (directory / "train.log").write_text("" if fits else OUT)
        finish_run.conclude(directory, finish_run.Ended(0 if fits else 1))

    return run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs micro batches and returns those started, results and output."""
    monkeypatch.setattr(sweep, "POLL_SECONDS", 0.02)

    def call(*sizes: int, limit: int = 2, repeats: int = 1, **settings: Any) -> Any:
        started: list[RunConfig] = []
        monkeypatch.setattr(notebooks, "execute", execute(limit, started))
        configs = [small(micro_batch_size=size, repeat=n) for n in range(repeats) for size in sizes]
        plan = Plan("test", "", tuple(PlannedRun(config, ()) for config in configs))
        stream = io.StringIO()
        options = sweep.Settings(runs=tmp_path, notebook=Path("n.ipynb"), **settings)
        entries = survey(plan, tmp_path, rerun=options.rerun)
        results = sweep.run_plan(entries, options, Console(stream), sweep.Stop())
        return [config.micro_batch_size for config in started], results, stream.getvalue()

    return call


def records(runs: Path) -> dict[int, RunRecord]:
    """Return the newest record of each micro batch."""
    found = (store.read_record(directory) for directory in store.run_directories(runs))
    return {record.requested["micro_batch_size"]: record for record in found}


def test_what_is_larger_than_a_run_that_broke_is_inferred_and_recorded(tmp_path: Path, run: Any):
    started, results, said = run(1, 2, 4, 8)
    assert started == [1, 2, 4]
    broken, inferred = records(tmp_path)[4], records(tmp_path)[8]
    assert (broken.source, broken.status, broken.cause) == (
        "measured",
        "out_of_memory",
        "gpu_memory",
    )
    assert (inferred.source, inferred.status) == ("inferred", "out_of_memory")
    assert inferred.inferred_from == broken.run_id
    assert "micro_batch_size=8 it needs no less" in inferred.reason
    assert inferred.reason.endswith("--no-prune runs it.")
    words = ["completed", "completed", "out of memory", "inferred"]
    assert [line[:13].strip() for line in sweep.summary(results)] == words
    assert "--no-prune" in said


def test_the_switch_runs_everything(run: Any):
    assert run(4, 8, prune=False)[0] == [4, 8]


def test_the_other_repeats_of_a_run_that_broke_are_inferred(run: Any):
    assert run(4, repeats=3)[0] == [4]


def test_an_inferred_run_is_recorded_once_and_never_counts_as_done(tmp_path: Path, run: Any):
    run(4, 8)
    assert run(4, 8)[0] == [4]  # what broke is tried again
    inferred = [r for d in store.run_directories(tmp_path) if (r := store.read_record(d))]
    assert sum(record.source == "inferred" for record in inferred) == 1
    assert run(4, 8, prune=False)[0] == [4, 8]


def test_a_run_that_fits_now_makes_void_what_followed_from_its_failure(run: Any):
    run(4, 8)
    started, results, _ = run(4, 8, limit=8)
    assert started == [4, 8]
    assert all(result.good for result in results)


def test_a_rerun_starts_from_nothing(run: Any):
    run(4, 8)
    assert run(8, limit=8, rerun=True)[0] == [8]


def record(cause: str | None, **changes: Any) -> RunRecord:
    """Return the record of a run that ran out of memory."""
    config = small(platform="h100", precision="bf16", **changes)
    return RunRecord(
        run_id="r",
        config_hash=config.config_hash(),
        status="out_of_memory",
        cause=cause,
        requested=config.model_dump(),
        environment={"accelerator": "NVIDIA H100 80GB HBM3"},
    )


LARGER = small(platform="h100", precision="bf16", micro_batch_size=4)


def test_a_host_that_ran_out_of_memory_says_nothing_about_the_gpu():
    known = todo.Broken()
    known.add(record("host_memory"))
    assert known.against(LARGER) is None
    known.add(record("gpu_memory"))
    assert known.against(LARGER) is not None


def test_a_run_on_another_device_says_nothing_about_this_one():
    known = todo.Broken(accelerator="NVIDIA H200")
    known.add(record("gpu_memory"))
    assert known.against(LARGER) is None


def test_a_run_that_was_started_is_not_taken_for_an_inferred_one():
    known = todo.Broken()
    known.add(record("gpu_memory"))
    own = record("gpu_memory", micro_batch_size=4)
    known.add(own.model_copy(update={"status": "failed"}))
    found = known.against(LARGER)
    assert found is not None and not found.recorded
    known.add(own.model_copy(update={"source": "inferred"}))
    found = known.against(LARGER)
    assert found is not None and found.recorded


def test_only_the_records_of_a_job_count_where_one_is_named(tmp_path: Path):
    partial = store.create_partial(tmp_path, small(), datetime.now(UTC))
    found = record("gpu_memory")
    of_job = {"environment": found.environment | {"slurm": {"job_id": "7"}}}
    store.write_record(partial, found.model_copy(update=of_job))
    store.publish(partial)
    for job_id, known in (("7", True), ("8", False), ("", True)):
        inference = todo.broken(tmp_path, None, job_id=job_id).against(LARGER)
        assert (inference is not None) is known


def test_the_records_that_are_there_are_read(tmp_path: Path):
    config = small(platform="h100", precision="bf16")
    partial = store.create_partial(tmp_path, config, datetime.now(UTC))
    store.write_record(partial, record("gpu_memory"))
    store.publish(partial)
    entries = [todo.Entry(one, "run") for one in (config, LARGER)]
    assert list(todo.inferences(entries, tmp_path, fresh=False)) == [LARGER.config_hash()]
