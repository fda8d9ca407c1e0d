"""A long plan whose process must not grow: memory, descriptors, children that are dead."""

from __future__ import annotations

import math
import os
import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from commands import PLAN, BrokenError, children, ended, start

from scalebook import store
from scalebook.measure.intervals import student_quantile
from scalebook.running import processes

SETTLED = 0.1  # of the runs, after which caches are filled
BLOCKS = 10  # of runs whose means the slope goes through: neighbours are alike
PER_RUNS = 1000
# What a plan of a thousand runs may have grown by, in the units of Sample.
MOST = {"memory_mib": 64.0, "files": 2.0, "zombies": 1.0}


@dataclass(frozen=True)
class Sample:
    """The least that a process held while a run went on, after ``runs`` others."""

    runs: int
    memory_mib: float
    files: int
    zombies: int


def sample(process_id: int, runs: int) -> Sample:
    """Return what a process holds now; raises OSError where it is gone."""
    place = processes.PROC / str(process_id)
    pages = int((place / "statm").read_text().split()[1])
    kept = [child for child in children(process_id) if processes.state(child) == "Z"]
    memory_mib = pages * os.sysconf("SC_PAGESIZE") / 2**20
    return Sample(runs, memory_mib, len(list((place / "fd").iterdir())), len(kept))


def slope(values: Sequence[float]) -> tuple[float, float]:
    """Return by how much a series grows per 1,000 entries, and half of its 95 % interval.

    The line goes through the means of ten blocks by least squares; the interval is of Student's t.
    The first tenth of the series is left out.
    """
    kept = values[math.ceil(len(values) * SETTLED) :]
    size = max(1, len(kept) // BLOCKS)
    means = [statistics.fmean(kept[at : at + size]) for at in range(0, len(kept) - size + 1, size)]
    if len(means) < 3:
        return math.nan, math.nan
    places = [float(number * size) for number in range(len(means))]
    line = statistics.linear_regression(places, means)
    middle = statistics.fmean(places)
    rest = sum(
        (y - line.intercept - line.slope * x) ** 2 for x, y in zip(places, means, strict=True)
    )
    spread = sum((place - middle) ** 2 for place in places)
    error = math.sqrt(rest / (len(means) - 2) / spread)
    half = student_quantile(len(means) - 2) * error
    return line.slope * PER_RUNS, half * PER_RUNS


def grown(samples: Sequence[Sample]) -> tuple[list[str], list[str]]:
    """Return the slope of each quantity in words, and those that surely grow too much."""
    said: list[str] = []
    broken: list[str] = []
    for name, most in MOST.items():
        rate, half = slope([float(getattr(one, name)) for one in samples])
        text = f"{name} {rate:+.2f} ± {half:.2f} per {PER_RUNS:,} runs"
        said.append(text)
        broken += [text] if rate - half > most else []
    return said, broken


def plan_without_growth(folder: Path, runs: int, seconds: float) -> None:
    """Go through a plan of so many runs, or as many as fit, and print what its process held.

    Raises:
        BrokenError: it failed, or it grew.
    """
    plan, place, output = folder / "plan.toml", folder / "runs", folder / "output.log"
    text = PLAN.format(seed=1, repeats=", ".join(str(number) for number in range(runs)))
    plan.write_text(text.replace("world_size = 2", "world_size = 1"))
    fake = ("--platform", "cpu", "--runs", str(place), "--trainer", "fake_trainer")
    process = start(("run", "--plan", str(plan), *fake), str(folder), output)
    samples, until, stopped = list[Sample](), time.monotonic() + seconds, False
    while process.poll() is None:
        now = sample(process.pid, len(list(store.run_directories(place))))
        if samples and samples[-1].runs == now.runs:
            now = Sample(
                *(min(pair) for pair in zip(astuple(now), astuple(samples[-1]), strict=True))
            )
            samples[-1] = now
        else:
            if samples and samples[-1].runs % 10 == 0:
                print(samples[-1], flush=True)
            samples.append(now)
        if time.monotonic() > until and not stopped:
            stopped = True
            process.send_signal(signal.SIGINT)
        time.sleep(0.5)
    ended(process, str(folder), output)
    if process.returncode and not stopped:
        raise BrokenError(output.read_text(errors="replace")[-3000:])
    said, broken = grown(samples)
    print(f"{samples[-1].runs} runs of {runs}: {', '.join(said)}")
    if broken:
        raise BrokenError(f"the process of the plan grew: {', '.join(broken)}")
