"""Runs without progress: what the line says, when they are ended, and which rank stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from training import small, wait_for

from scalebook.record import StepRecord
from scalebook.running import processes, progress
from scalebook.running.progress import ProgressLimit, Tail, line
from scalebook.untrusted import MIB

# A process of the trainer that waits as a rank does: in a collective, or somewhere else.
RANK = """
import faulthandler, signal, sys, time
faulthandler.register(signal.SIGUSR1, all_threads=False)
code = "def wait():\\n    print('ready', flush=True)\\n    time.sleep(60)\\n"
exec(compile(code, sys.argv[1], "exec"))
wait()
"""
COLLECTIVE, MODEL = "/lib/torch/distributed/distributed_c10d.py", "/lib/model/attention.py"


def step(number: int, seconds: float = 1.0, phase: str = "measured") -> str:
    values = {"step": number, "phase": phase, "step_seconds": seconds, "tokens": 64}
    return StepRecord.model_validate(values).model_dump_json() + "\n"


class Clock:
    """A clock that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(progress.time, "monotonic", found)
    return found


def test_the_progress_line_says_that_no_step_comes_after_five_median_steps(
    tmp_path: Path, clock: Clock
):
    path = tmp_path / "steps.jsonl"
    path.write_text(step(1, 90.0, "startup") + step(2, 2.0) + step(3, 2.0) + step(4, 20.0))
    tail = Tail(path)
    last = tail.read()
    clock.now += 10.0  # 5 times the median of 2, 2 and 20 s
    assert tail.quiet_seconds() is None
    clock.now += 0.1
    assert "no step" not in line(last, 10, None)
    assert line(last, 10, tail.quiet_seconds()) == "step 4/10, no step for 10 s"
    assert "no step" not in line(last, 4, tail.quiet_seconds())  # all are done
    with path.open("a") as stream:
        stream.write(step(5, 2.0))
    tail.read()
    assert tail.quiet_seconds() is None


def test_of_a_long_file_of_steps_only_the_end_is_read(tmp_path: Path):
    path = tmp_path / "steps.jsonl"
    with path.open("wb") as stream:
        stream.truncate(64 * MIB)  # zeros, which no line end divides
        stream.seek(0, os.SEEK_END)
        stream.write(b'\n{"step": 7, "phase": "measured", "step_seconds": 1.0, "tokens": 8}\n')
    tracemalloc.start()
    try:
        last, most = Tail(path).read(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert last is not None and last.step == 7
    assert most < 16 * MIB


def test_a_limit_without_progress_counts_from_the_last_step_or_line(tmp_path: Path, clock: Clock):
    limit = ProgressLimit(tmp_path, 600, Tail(tmp_path / "steps.jsonl"), clock)
    assert not limit.reached()
    clock.now += 500
    (tmp_path / "train.log").write_text("loading\n")
    assert not limit.reached()
    clock.now += 600
    assert not limit.reached()
    clock.now += 1
    assert limit.reached()
    (tmp_path / "steps.jsonl").write_text(step(1, 1.0, "startup") + step(2, 200.0))
    assert not limit.reached()
    clock.now += 1000
    assert not limit.reached()  # 5 steps of 200 s are longer than the limit
    clock.now += 1
    assert limit.reached()


def test_a_checkpoint_that_grows_is_progress_and_zero_is_no_limit(tmp_path: Path, clock: Clock):
    limit = ProgressLimit(tmp_path, 600, Tail(tmp_path / "steps.jsonl"), clock)
    never = ProgressLimit(tmp_path, 0, Tail(tmp_path / "steps.jsonl"), clock)
    assert not limit.reached() and not never.reached()
    part = tmp_path / "checkpoints" / ".saving-00000010-0" / "__0_0.distcp"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x")
    clock.now += 10_000
    assert not limit.reached()
    os.utime(part, (1, 1))
    assert limit.reached()
    assert not never.reached()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    """Start processes that are ranks of a run; their stacks go to one log."""
    log = tmp_path / "train.log"
    found: list[subprocess.Popen[bytes]] = []

    def start(*places: str) -> tuple[dict[int, int], Path]:
        for rank, place in enumerate(places):
            more = {processes.MARK: f"run-{tmp_path.name}", "RANK": str(rank)}
            with log.open("ab") as stream:
                command = [sys.executable, "-c", RANK, place]
                process = subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=stream, env=os.environ | more
                )
            found.append(process)
        for process in found:
            assert process.stdout is not None
            process.stdout.readline()
        return processes.ranks(f"run-{tmp_path.name}"), log

    yield start
    for process in found:
        process.kill()
        process.wait()


def test_the_rank_that_is_not_in_a_collective_is_the_one_that_stopped(started: Any):
    ranks, log = started(COLLECTIVE, MODEL, COLLECTIVE)
    assert sorted(ranks) == [0, 1, 2]
    words = progress.stopped_rank(ranks, log)
    assert words == f"rank 1 stopped in {MODEL}:3 wait, and the others wait for it"


def test_no_rank_is_blamed_where_it_is_not_clear_who_stopped(started: Any):
    ranks, log = started(COLLECTIVE, MODEL, MODEL)
    assert progress.stopped_rank(ranks, log) is None
    assert progress.stopped_rank({0: ranks[0]}, log) is None
    two = {0: ranks[0], 1: ranks[0]}
    assert progress.stopped_rank(two, log) is None


def test_a_suspended_rank_is_named_and_one_without_a_handler_is_not_killed(started: Any):
    ranks, log = started(COLLECTIVE, COLLECTIVE)
    os.kill(ranks[1], signal.SIGSTOP)
    wait_for(lambda: processes.state(ranks[1]) == "T")
    assert progress.stopped_rank(ranks, log) == "rank 1 stopped, it is suspended"
    with subprocess.Popen(["sleep", "60"]) as other:
        assert progress.stack(other.pid, log) == ()
        assert other.poll() is None
        other.kill()


def test_the_limits_of_a_run_are_no_part_of_its_configuration():
    assert small(progress_limit_seconds=7).config_hash() == small().config_hash()
