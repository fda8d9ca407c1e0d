"""Profiled steps of a real run on the CPU, and the time marks of every step."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest
from train_forked import trained
from train_worlds import SMALL, Finished

from scalebook import plan
from scalebook.config import RunConfig
from scalebook.errors import ConfigError
from scalebook.facts import catalog, legality
from scalebook.measure.anatomy import Breakdown, read_breakdown
from scalebook.measure.anatomy.breakdown import reduce_file
from scalebook.record import StepRecord
from scalebook.report.base.frames import load
from scalebook.report.pages import anatomy_page
from scalebook.running.finish_run import Ended, conclude
from scalebook.train.marks import PARTS, HostClock, Mark, Marks, attach, marks_for


class Clock:
    """A clock that tells the times it was given, one after the other."""

    def __init__(self, *times: float) -> None:
        self.times = list(times)

    def now(self) -> float:
        return self.times.pop(0)

    def between(self, start: float, stop: float) -> float:
        return stop - start

    def forget(self) -> None:
        assert not self.times, "a moment was not asked for"


def seconds(marks: Marks) -> dict[str, float]:
    return {part: value for part, value in marks.take().items() if value}


def timer(marks: Marks, name: str) -> Mark:
    found = marks(name, log_level=2)
    assert isinstance(found, Mark)
    return found


def test_a_part_does_not_count_the_parts_inside_of_it():
    marks = Marks(Clock(0, 1, 3, 10, 11, 20, 21, 30))
    with marks.part("schedule"):  # 0 to 30
        timer(marks, "forward-compute").start()  # 1 to 10
        with marks.part("data"):  # 3, for which the clock is asked twice
            marks.clock.times.insert(0, 5)
        timer(marks, "forward-compute").stop()
        timer(marks, "backward-compute").start()
        timer(marks, "backward-compute").stop()
        timer(marks, "all-grads-sync").start(barrier=True)
        marks.clock.times.insert(0, 25)
        timer(marks, "all-grads-sync").stop()
    assert seconds(marks) == {
        "data": 2, "forward": 7, "backward": 9, "gradients": 4, "schedule": 30 - 9 - 9 - 4,
    }  # fmt: skip


def test_waits_between_stages_are_one_part_by_whatever_name():
    marks = Marks(Clock(0, 1, 5, 8))
    for name in ("forward-recv", "forward-backward-send-forward-backward-recv"):
        timer(marks, name).start()
        timer(marks, name).stop()
    assert seconds(marks) == {"pipeline": 4}


def test_timers_that_nobody_wants_and_ends_without_a_begin_change_nothing():
    marks = Marks(Clock(0, 2))
    marks("forward-backward", log_level=1).start(barrier=True)
    marks("backward-compute").stop()
    with marks.part("optimizer"):
        marks("forward-compute").stop()
    marks("forward-backward").stop()
    assert seconds(marks) == {"optimizer": 2}
    assert not seconds(marks)  # taken once


def test_items_are_timed_as_they_come():
    marks = Marks(Clock(0, 1, 10, 13, 20, 21))
    assert list(marks.over("data", iter("ab"))) == ["a", "b"]
    assert seconds(marks) == {"data": 1 + 3 + 1}


def test_without_a_split_no_clock_is_read():
    marks = Marks(None)
    with marks.part("forward"):
        pass
    assert marks.take() == {}


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Two pipeline stages, each profiled for two steps."""
    split = {"world_size": 2, "pipeline_parallel_size": 2}
    asked = {**split, "steps": 5, "profile_steps": 2, "profile_all_ranks": True}
    return trained(tmp_path_factory.mktemp("runs"), {"profiled": asked})["profiled"]


def breakdown(run: Finished, name: str = "breakdown.json") -> Breakdown:
    return read_breakdown(run.output / "profile" / name)


def test_profiled_steps_come_after_the_measured_ones_and_apart(profiled: Finished):
    assert profiled.code == 0, profiled.log
    phases = [step.phase for step in profiled.steps]
    # one more than was asked for: the profiler starts in it
    assert phases == ["startup", "warmup", *["measured"] * 3, *["profiled"] * 3]


def test_each_rank_leaves_its_trace_and_its_breakdown_and_nothing_else(profiled: Finished):
    names = sorted(path.name for path in (profiled.output / "profile").iterdir())
    assert names == [
        "breakdown-rank1.json", "breakdown.json", "trace-rank0.json.gz", "trace-rank1.json.gz",
    ]  # fmt: skip
    assert breakdown(profiled).trace == "trace-rank0.json.gz"
    assert breakdown(profiled, "breakdown-rank1.json").rank == 1


def test_the_parts_of_a_real_step_add_up_and_none_of_the_main_ones_is_empty(profiled: Finished):
    found = breakdown(profiled)
    assert found.reason is None
    assert (found.device, found.rank, found.steps) == ("cpu", 0, 2)
    parts = found.parts.model_dump()
    assert sum(parts.values()) == pytest.approx(found.step_seconds, rel=1e-6)
    assert all(value > 0 for value in parts.values()), parts
    assert found.exposed_by_collective["send_receive"] > 0  # the other stage
    assert {"gemm", "communication"} <= set(found.kinds)
    assert any(kernel.name == "aten::mm" for kernel in found.top_kernels)


def test_the_profiled_steps_last_as_long_as_their_records_say(profiled: Finished):
    recorded = [step.rank_step_seconds[0] for step in profiled.steps[-2:]]
    assert breakdown(profiled).each_step_seconds == pytest.approx(recorded, rel=0.05)


def test_the_trace_that_was_kept_gives_the_same_breakdown(profiled: Finished):
    found = breakdown(profiled)
    again = reduce_file(profiled.output / "profile" / "trace-rank0.json.gz")
    assert again == found.model_copy(update={"trace": None})


def test_the_trace_is_one_that_other_tools_read(profiled: Finished):
    with gzip.open(profiled.output / "profile" / "trace-rank0.json.gz") as stream:
        events = json.load(stream)["traceEvents"]
    names = {event["name"] for event in events}
    assert {f"scalebook.{part}" for part in PARTS} <= names | {"scalebook.gradients"}


def test_the_cheap_split_covers_a_step_and_agrees_with_the_profile_about_what_is_long(
    profiled: Finished,
):
    for step in profiled.steps[1:]:
        assert set(step.part_seconds) == set(PARTS)
        assert 0.5 * step.step_seconds < sum(step.part_seconds.values()) <= step.step_seconds
    measured = profiled.steps[2:5]
    assert all(step.part_seconds["backward"] > step.part_seconds["data"] for step in measured)


def test_the_marks_cost_less_than_half_a_percent_of_a_step(profiled: Finished):
    step = median(step.step_seconds for step in profiled.steps if step.phase == "measured")
    marks, pairs = Marks(HostClock()), 40  # of a step with 4 micro batches: 3 x 4 and some
    costs: list[float] = []
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(pairs):
            timer(marks, "forward-compute").start()
            timer(marks, "forward-compute").stop()
        marks.take()
        costs.append(time.perf_counter() - start)
    assert median(costs) < 0.005 * step


def test_without_split_and_profile_megatron_gets_no_timers():
    world: Any = SimpleNamespace(on_gpu=False)
    for options, timed, read in (
        ({}, True, True),
        ({"step_split": False}, False, False),
        ({"step_split": False, "profile_steps": 2}, True, False),
    ):
        config, transformer = RunConfig(**SMALL, **options), SimpleNamespace()
        marks = marks_for(config, world)
        attach(marks, transformer, config)
        assert (transformer.timers is marks) == timed
        assert (marks.clock is not None) == read


def test_records_of_before_read_as_steps_without_a_split():
    old = '{"step": 1, "phase": "measured", "step_seconds": 0.1, "tokens": 4}'
    assert StepRecord.model_validate_json(old).part_seconds == {}


def test_asking_for_a_profile_names_another_configuration_and_leaving_it_out_does_not():
    plain = RunConfig(**SMALL)
    assert RunConfig(**SMALL, profile_steps=0, step_split=True).config_hash() == plain.config_hash()
    assert RunConfig(**SMALL, profile_steps=2).config_hash() != plain.config_hash()


@pytest.mark.parametrize("steps", [-1, 21])
def test_the_number_of_profiled_steps_is_bounded(steps: int):
    with pytest.raises(ConfigError, match="profile_steps"):
        RunConfig.from_parameters({**SMALL, "profile_steps": steps})


def test_asking_for_all_ranks_without_steps_to_profile_is_a_warning():
    shape = catalog.model("tiny-llama")
    found = legality.check(legality.Case(RunConfig(**SMALL, profile_all_ranks=True), shape))
    assert [(one.rule, one.severity) for one in found] == [("profile_all_ranks", "warning")]
    assert not legality.check(
        legality.Case(RunConfig(**SMALL, profile_all_ranks=True, profile_steps=1), shape)
    )


def test_a_plan_of_two_runs_measures_what_the_split_costs(root: Path):
    loaded = plan.load_plan(root / "runs/plans/step_split.toml", platform="h100", world_size=8)
    assert {run.config.step_split for run in loaded.runs} == {True, False}


def test_a_profiled_run_has_its_bars_on_the_page(profiled: Finished):
    conclude(profiled.output, Ended(0))
    data = load(profiled.output.parent)
    found = data.anatomies[data.runs["run_id"][0]]
    assert [one.rank for one in found.profiles] == [0, 1]
    assert found.marked is not None
    assert sum(found.marked.parts.values()) == pytest.approx(found.marked.step_seconds)
    assert found.theory is not None
    assert found.theory.bubble == pytest.approx(1 / (4 + 1))  # 2 stages, 4 micro batches
    assert "profiled step" in str(anatomy_page.findings(data))
    assert anatomy_page.profile_bars(data) is not None
