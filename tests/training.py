"""Helpers of the tests that start something: a small configuration and the fake trainer."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import simulated

from scalebook import store
from scalebook.config import RunConfig
from scalebook.record import RunRecord
from scalebook.running import launch

FAKES = Path(__file__).parent / "fakes"


def small(**changes: Any) -> RunConfig:
    """Return a configuration of a few short steps on the CPU.

    Its seed is that of this process: tests that run at once start no runs of one name.
    """
    return simulated.config(**{"steps": 5, "warmup_steps": 1, "seed": os.getpid(), **changes})


def two_nodes(micro_batch_size: int = 1, **changes: Any) -> RunConfig:
    """Return a configuration of two nodes."""
    sizes = {"micro_batch_size": micro_batch_size, "global_batch_size": 8}
    return small(**{"nodes": 2, "world_size": 2, **sizes, **changes})


def broke(runs: Path, size: int, job_id: str = "7") -> str:
    """Leave the record of a run that ran out of memory; return its id."""
    run_id = f"20330102-030405-{size}-{job_id}"
    (runs / run_id).mkdir(parents=True)
    values = two_nodes(size)
    record = RunRecord(
        run_id=run_id,
        config_hash=values.config_hash(),
        source="measured",
        status="out_of_memory",
        cause="gpu_memory",
        requested=values.model_dump(),
        environment={"slurm": {"job_id": job_id}},
    )
    store.write_record(runs / run_id, record)
    return run_id


def without_torchrun(config: RunConfig, *, config_path: Path, output: Path, **_: Any) -> Any:
    """Return a launch of the fake trainer as a single process, in place of ``launch.direct``."""
    program = (sys.executable, str(FAKES / "fake_trainer.py"))
    arguments = ("--config", str(config_path), "--output", str(output))
    return launch.Launch((*program, *arguments), ())


def environment(*, stand_in: bool = False, **variables: str) -> dict[str, str]:
    """Return an environment with ``fake_trainer``, and a stand-in for torchrun where asked for."""
    fakes = [str(FAKES / "launcher"), str(FAKES)] if stand_in else [str(FAKES)]
    places = [*fakes, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places), **variables}


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """Return the first true answer of a condition; fail if none comes in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        answer = condition()
        if answer:
            return answer
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds} s in vain")
