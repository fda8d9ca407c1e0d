"""Helpers of the tests that start something: a small configuration and the fake trainer."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scalebook.config import RunConfig
from scalebook.running import launch

FAKES = Path(__file__).parent / "fakes"


def small(**changes: Any) -> RunConfig:
    """Return a configuration of a few short steps on the CPU."""
    base: dict[str, Any] = {
        "platform": "cpu",
        "model": "tiny-llama",
        "world_size": 1,
        "global_batch_size": 8,
        "sequence_length": 128,
        "precision": "fp32",
        "steps": 5,
        "warmup_steps": 1,
    }
    return RunConfig(**{**base, **changes})


def without_torchrun(config: RunConfig, *, config_path: Path, output: Path, **_: Any) -> Any:
    """Return a launch of the fake trainer as a single process, in place of ``launch.direct``."""
    program = (sys.executable, str(FAKES / "fake_trainer.py"))
    arguments = ("--config", str(config_path), "--output", str(output))
    return launch.Launch((*program, *arguments), ())


def environment(**variables: str) -> dict[str, str]:
    """Return an environment in which ``fake_trainer`` can be imported."""
    places = [str(FAKES), *filter(None, [os.environ.get("PYTHONPATH")])]
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
