"""A long plan whose process must not grow: memory, descriptors, children that are dead."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from commands import PLAN, BrokenError, ended, start

from scalebook import store
from scalebook.running import processes

SETTLED = 0.1  # of the runs, after which caches are filled
GROWTH_MIB, GROWTH_FILES = 64.0, 2


@dataclass(frozen=True)
class Sample:
    """What a process holds after a number of runs."""

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


def children(process_id: int) -> list[int]:
    """Return the children of all threads of a process."""
    tasks = (processes.PROC / str(process_id) / "task").iterdir()
    return [int(one) for task in tasks for one in (task / "children").read_text().split()]


def grown(samples: list[Sample]) -> str:
    """Return what grew after the first runs, in words; empty where nothing did."""
    first = max(1, int(samples[-1].runs * SETTLED))
    early = [one for one in samples if one.runs <= first]
    late = [one for one in samples if one.runs > first]
    found: list[str] = []
    for name, most in (("memory_mib", GROWTH_MIB), ("files", GROWTH_FILES), ("zombies", 1)):
        before = max(getattr(one, name) for one in early)
        # The least of the last few: a run in between holds more for a while.
        after = min(getattr(one, name) for one in late[-10:])
        found += [f"{name} {before:g} -> {after:g}"] if after > before + most else []
    return ", ".join(found)


def plan_without_growth(folder: Path, runs: int) -> None:
    """Go through a plan of so many runs, and print what its process held on the way.

    Raises:
        BrokenError: it failed, or it grew.
    """
    plan, place = folder / "plan.toml", folder / "runs"
    text = PLAN.format(seed=1, repeats=", ".join(str(number) for number in range(runs)))
    plan.write_text(text.replace("world_size = 2", "world_size = 1"))
    fake = ("--platform", "cpu", "--runs", str(place), "--trainer", "fake_trainer")
    mark = f"{os.getpid()}-growth"
    process, output = start(("run", "--plan", str(plan), *fake), mark)
    samples: list[Sample] = []
    while process.poll() is None:
        done = len(list(store.run_directories(place)))
        if not samples or done > samples[-1].runs:
            samples.append(sample(process.pid, done))
            if done % max(1, runs // 20) == 0:
                print(samples[-1], flush=True)
        time.sleep(0.5)
    if process.returncode:
        raise BrokenError(output.read_text(errors="replace")[-3000:])
    ended(process, mark, output)
    if what := grown(samples):
        raise BrokenError(f"the process of the plan grew: {what}")
    print(f"{samples[-1].runs} runs: nothing grew.")
