"""Steps as columns: the same steps as one by one, in little memory, whatever a line holds."""

from __future__ import annotations

import json
import math
import sys
import tracemalloc
from pathlib import Path

import pytest

from scalebook import step_columns
from scalebook.measure.metrics.window import measured_steps
from scalebook.record import StepRecord
from scalebook.step_columns import Steps, read

EXAMPLES = Path(__file__).parents[1] / "runs" / "examples"


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def line(step: int, **more: object) -> str:
    return json.dumps({"step": step, "phase": "measured", "step_seconds": 1.5, "tokens": 8} | more)


def test_the_steps_of_every_example_are_those_of_its_lines():
    paths = sorted(EXAMPLES.glob("*/steps.jsonl"))
    assert paths
    for path in paths:
        wanted = [StepRecord.model_validate_json(one) for one in path.read_text().splitlines()]
        found, problems = read(path)
        assert not problems
        assert [one.model_dump(exclude={"finished_at"}) for one in found] == [
            one.model_dump(exclude={"finished_at"}) for one in wanted
        ]
        assert [one.finished_at for one in found] == [one.finished_at for one in wanted]
        assert Steps.of(wanted) == found


@pytest.mark.parametrize(
    "bad",
    [
        "", "{", "[]", "3", line(2, tokens=-1), line(2, step_seconds="x"), line(2, phase="other"),
        line(2, skipped=None), line(2, rank_step_seconds=[None]), line(2, part_seconds={"a": "x"}),
        line(2) + line(3), '{"step": 2\n"phase": "measured", "step_seconds": 1, "tokens": 1}',
        line(2, step_seconds=10**400), '{"step": 2, "phase": "measured", "step_seconds": NaN}',
    ],
)  # fmt: skip
def test_a_bad_line_costs_itself_only(tmp_path, bad):
    found, problems = read(written(tmp_path, line(1), bad, line(4, loss=2.5)))
    assert [one.step for one in found] == [1, 4]
    assert found[-1].loss == 2.5
    assert problems[0] == "steps.jsonl line 2 is not a step record"
    assert len(problems) == bad.count("\n") + 1


def test_lines_with_other_fields_are_read_together(tmp_path):
    found, problems = read(
        written(
            tmp_path,
            line(1, part_seconds={"forward": 0.5}, loss=math.nan),
            line(2, rank_step_seconds=[1.0, 2.0], checkpoint_seconds=1.0),
            line(3, phase="stalled", tokens=None, skipped=True, later_field=1),
        )
    )
    assert not problems
    assert found[0].part_seconds == {"forward": 0.5}
    assert found[0].loss is None
    assert found[1].rank_step_seconds == (1.0, 2.0)
    assert found[1].part_seconds == {}
    assert (found[2].tokens, found[2].skipped, found[2].phase) == (None, True, "stalled")
    assert [one.step for one in measured_steps(found)] == [1]  # the second waited for a checkpoint
    assert found[1:][0] == found[1]


@pytest.mark.parametrize(
    "bad",
    [
        line(2, rank_step_seconds=[None]), line(2, part_seconds={"a": "x"}),
        line(2, grad_norm="x"), line(2, finished_at=3), line(2, rank_step_seconds=[2.0**54]),
    ],
)  # fmt: skip
def test_a_brief_reading_refuses_what_a_whole_one_does(tmp_path, bad):
    path = written(tmp_path, line(1, rank_step_seconds=[1.0]), bad, line(3, loss=2.5))
    (whole, problems), (brief, said) = read(path), read(path, brief=True)
    assert problems == said == ("steps.jsonl line 2 is not a step record",)
    assert list(brief.numbers("step")) == list(whole.numbers("step")) == [1, 3]


PLAIN = {"loss": 2, "rank_step_seconds": [1, 2.5], "part_seconds": {"a": 1}, "later": [{}]}
RARE = (
    {"loss": math.nan}, {"loss": -math.inf}, {"loss": 10**40}, {"step": 2.0}, {"step": True},
    {"tokens": 2**53 + 1}, {"expert_load": -(2.0**54)}, {"phase": "x"}, {"finished_at": "\ud800"},
    {"skipped": 1}, {"restart": None}, {"later": math.inf}, {"later": "\x01\u00fc"},
)  # fmt: skip


@pytest.mark.parametrize("odd", RARE)
def test_pydantic_reads_what_msgspec_reads(tmp_path, monkeypatch, odd):
    msgspec = pytest.importorskip("msgspec")
    lines = (json.loads(line(step, **PLAIN)) for step in (1, 2, 3))
    path = written(
        tmp_path, *(json.dumps(one | odd if at else one) for at, one in enumerate(lines))
    )
    step_columns._read_rows.cache_clear()
    by_msgspec = read(path)
    assert isinstance(step_columns._read_rows().__self__, msgspec.json.Decoder)
    monkeypatch.setitem(sys.modules, "msgspec", None)
    step_columns._read_rows.cache_clear()
    try:
        assert read(path) == by_msgspec
    finally:
        step_columns._read_rows.cache_clear()


def test_plain_steps_are_not_read_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr(step_columns, "_take_each", None)
    found, _ = read(written(tmp_path, *(line(step, **PLAIN) for step in (1, 2))))
    assert (found[1].loss, found[1].rank_step_seconds, found[1].part_seconds) == (
        *(2.0, (1.0, 2.5)), {"a": 1.0},
    )  # fmt: skip


def test_brief_steps_have_what_rates_need_and_no_times_of_ranks_and_parts(tmp_path):
    more = {"rank_step_seconds": [1.0, 2.0], "part_seconds": {"forward": 0.5}, "restart": 1}
    more |= {"checkpoint_seconds": 0.0, "allocated_gib": 3.5, "reserved_gib": 4.5, "loss": 2.5}
    path = written(tmp_path, *(line(step, **more) for step in (1, 2, 3)))
    whole, brief = read(path)[0], read(path, brief=True)[0]
    for name in ("step", "tokens", "step_seconds", *more.keys() - {"part_seconds"}):
        assert list(brief.known(name)) == list(whole.known(name))
    assert list(brief.phases()) == ["measured"] * 3
    assert (brief.part_names(), brief.rank_means()) == ((), None)
    assert (whole.part_names(), whole.rank_means()) == (("forward",), [1.0, 2.0])


@pytest.mark.parametrize("stamp", ["x", "", "2026-13-01", "0001-01-01T00:00:00+14:00"])
def test_a_time_that_is_none_costs_no_step(tmp_path, stamp):
    found, problems = read(written(tmp_path, line(1, finished_at=stamp), line(2)))
    assert not problems
    assert [(one.step, one.finished_at) for one in found] == [(1, None), (2, None)]


@pytest.mark.parametrize(
    ("lines", "steps"),
    [
        # All lines end alike: in nulls, within an object or a text, in a name given twice.
        ([line(step, loss=None, restart=0) for step in (1, 2, 3)], [1, 2, 3]),
        ([line(step, part_seconds={"a": step, "b": 1}) for step in (1, 2, 3)], [1, 2, 3]),
        ([line(step, part_seconds={"a": step}, phase='m, "x": 1') for step in (1, 2, 3)], []),
        ([f'{line(step)[:-1]}, "step": 7}}' for step in (1, 2, 3)], [7, 7, 7]),
        (['{, "step": 7, "phase": "measured", "step_seconds": 1, "tokens": 1}'] * 3, []),
        ([f'{line(step)[:-1]}, , "restart": 0}}' for step in (1, 2, 3)], []),
        ([line(1, restart=0), line(2, restart=0), line(3, restart=2)], [1, 2, 3]),
        ([line(1, restart=0), line(2, restart=0), line(3, restart=0)[:-1]], [1, 2]),
    ],
)
def test_fields_that_all_lines_end_with_are_read_as_in_each(tmp_path, lines, steps):
    found, problems = read(written(tmp_path, *lines))
    assert [one.step for one in found] == steps
    assert len(problems) == len(lines) - len(steps)
    assert list(found) == [StepRecord.model_validate_json(one) for one in lines[: len(steps)]]


def test_a_long_file_is_read_in_parts_that_say_the_same(tmp_path, monkeypatch):
    rows = [
        line(step, rank_step_seconds=[1.0, float(step)] if step % 3 else [], loss=1 / step)
        for step in range(1, 30)
    ]
    rows[12:12] = ["{", line(12, part_seconds={"forward": 0.5}, finished_at="2026-01-01T00:00Z")]
    rows.append("no step")
    path = written(tmp_path, *rows)
    whole = read(path)
    for size in (1, 100, 333, 1000):
        monkeypatch.setattr(step_columns, "_PART_BYTES", size)
        assert read(path) == whole
    assert [problem.split()[2] for problem in whole[1]] == ["13", "32"]


def test_the_means_of_ranks_are_none_where_a_step_lacks_one(tmp_path):
    lines = [line(step, rank_step_seconds=[1.0, float(step)]) for step in (1, 2, 3)]
    found, _ = read(written(tmp_path, *lines))
    assert found.rank_means() == [1.0, 2.0]
    assert found.select([0, 2]).rank_means() == [1.0, 2.0]
    assert found[1:].rank_means() == [1.0, 2.5]
    assert read(written(tmp_path, *lines, line(4)))[0].rank_means() is None


def test_a_step_takes_less_than_two_hundred_bytes(tmp_path):
    count = 50_000
    path = written(tmp_path, *(line(step, loss=1 / step) for step in range(1, count + 1)))
    read(path)
    tracemalloc.start()
    try:
        found, _ = read(path)
        measured_steps(found)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # a block of lines takes about 8 MB while it is read, however long the file is
    assert peak < 12e6 + 100 * count
    assert len(found) == count
