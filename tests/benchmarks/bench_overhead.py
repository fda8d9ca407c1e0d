"""What notebook, records and sampling cost: a run of the toolkit against bare torchrun.

Not part of the tests: make bench-overhead [ARGS="--pairs 6 --platform h100"]. Both train the same
configuration by the same trainer, in turns: two ranks on a CPU, one on a GPU. Bare is torchrun with
its output thrown away: no notebook, no guard, no sampling of devices, no log; each step's time is
written by both.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, stdev

from scalebook import store
from scalebook.config import RunConfig

# Two-sided 95 % of Student's t at 1, 2, ... degrees of freedom (any table of it).
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
CPU = {
    "platform": "cpu",
    "model": "tiny-llama",
    "world_size": 2,
    "sequence_length": 128,
    "global_batch_size": 16,
    "micro_batch_size": 2,
    "precision": "fp32",
    "steps": 40,
    "warmup_steps": 10,
}
GPU = {
    "model": "llama3.1-8b@2",  # steps of a tenth of a second: what costs a step shows
    "world_size": 1,
    "sequence_length": 1024,
    "global_batch_size": 8,
    "micro_batch_size": 2,
    "precision": "bf16",
    "learning_rate": 1e-4,
    "steps": 100,
    "warmup_steps": 20,
}
Fields = dict[str, object]


def steps(directory: Path) -> tuple[float, float]:
    """Return the mean of the measured steps, and the sum of all, in seconds."""
    found, _ = store.read_steps(directory / "steps.jsonl")
    measured = [step.step_seconds for step in found if step.phase == "measured"]
    return fmean(measured), sum(step.step_seconds for step in found)


def toolkit(folder: Path, fields: Fields) -> tuple[float, float]:
    """Return a step's seconds under the toolkit, and the seconds beside the steps."""
    # Without a container: bare has none either.
    base = (sys.executable, "-m", "scalebook", "run", "--runs", str(folder), "--container", "none")
    told = [f"--set={name}={value}" for name, value in fields.items() if name != "platform"]
    start = time.monotonic()
    command = (*base, "--platform", str(fields["platform"]), *told)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall = time.monotonic() - start
    (directory,) = store.run_directories(folder)
    step, total = steps(directory)
    return step, wall - total


def bare(folder: Path, fields: Fields) -> tuple[float, float]:
    """Return the same of torchrun alone."""
    config = RunConfig.from_parameters(fields)
    (folder / "config.json").write_text(json.dumps(config.model_dump()))
    start = time.monotonic()
    ranks = f"--nproc-per-node={config.world_size}"
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", ranks)
    trainer = ("-m", "scalebook.train", "--config", str(folder / "config.json"))
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run((*launcher, *trainer, "--output", str(folder)), check=True, **silent)
    wall = time.monotonic() - start
    step, total = steps(folder)
    return step, wall - total


def interval(values: list[float]) -> tuple[float, float]:
    """Return the mean of values and the half width of its 95 % interval (Student's t)."""
    half = STUDENT[len(values) - 2] * stdev(values) / math.sqrt(len(values))
    return fmean(values), half


def main() -> None:
    """Measure pairs in turns and print ratio and start-up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=6, choices=range(2, 11))
    parser.add_argument("--platform", default="cpu")
    given = parser.parse_args()
    fields: Fields = CPU if given.platform == "cpu" else {**GPU, "platform": given.platform}
    ratios: list[float] = []
    added: list[float] = []
    alone: list[float] = []
    for number in range(given.pairs):
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            sides = [(toolkit, Path(one)), (bare, Path(other))]
            order = sides if number % 2 == 0 else sides[::-1]
            told = {side: side(folder, fields) for side, folder in order}
        ratios.append(math.log(told[toolkit][0] / told[bare][0]))
        added.append(told[toolkit][1] - told[bare][1])
        alone.append(told[bare][1])
        seconds = f"start {told[bare][1]:.1f} s bare, {told[toolkit][1]:.1f} s with the toolkit"
        print(f"pair {number + 1}: step ratio {math.exp(ratios[-1]):.3f}; {seconds}", flush=True)
    mean, half = interval(ratios)
    low, high = math.exp(mean - half), math.exp(mean + half)
    print(f"steady step, toolkit over bare: {math.exp(mean):.3f} ({low:.3f} to {high:.3f})")
    mean, half = interval(added)
    print(f"start and end: {mean:.1f} s (± {half:.1f}) more than the {fmean(alone):.1f} s of bare")


if __name__ == "__main__":
    main()
