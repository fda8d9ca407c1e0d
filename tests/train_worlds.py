"""Small training runs for the tests of the trainer, started as a user starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalebook.config import RunConfig
from scalebook.record import StepRecord
from scalebook.store import read_steps

SMALL: dict[str, Any] = {
    "platform": "cpu",
    "model": "tiny-llama",
    "world_size": 1,
    "micro_batch_size": 1,
    "global_batch_size": 4,
    "sequence_length": 32,
    "precision": "fp32",
    "data_parallel_sharding": "none",
    "steps": 6,
    "warmup_steps": 2,
}


@dataclass(frozen=True)
class Finished:
    """What a run left behind."""

    code: int
    log: str
    output: Path
    steps: tuple[StepRecord, ...]

    @property
    def losses(self) -> list[float | None]:
        return [step.loss for step in self.steps]

    @property
    def observed(self) -> dict[str, Any]:
        return json.loads((self.output / "observed.json").read_text())["observed"]

    @property
    def environment(self) -> dict[str, Any]:
        return json.loads((self.output / "observed.json").read_text())["environment"]


def torchrun(config: RunConfig, output: Path) -> list[str]:
    """The command that trains a configuration into a directory."""
    output.mkdir(parents=True, exist_ok=True)
    path = output / "config.json"
    path.write_text(config.model_dump_json())
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    trainer = ["-m", "scalebook.train", "--config", str(path), "--output", str(output)]
    return [*launcher, f"--nproc-per-node={config.world_size}", *trainer]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def train(output: Path, **changes: Any) -> Finished:
    """Train SMALL with changes, to the end."""
    command = torchrun(RunConfig(**{**SMALL, **changes}), output)
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment(), timeout=300, check=False
    )
    steps, problems = read_steps(output / "steps.jsonl")
    assert not problems
    return Finished(done.returncode, done.stdout + done.stderr, output, steps)
