"""How long ``scalebook list`` takes for many runs and for one long run.

Not part of the tests: python tests/benchmarks/bench_list.py [--runs 1000] [--steps 50]
[--long 200000]. The runs are made up and marked as such (source: simulated). Times are of the
processor, of all processes together, so that others on the machine count less; compare ratios,
not seconds. A process for each core measures many runs, and reads parts of a long one: on an idle
machine the wait is about the time of the processor over the cores, of which 8 at most are used.

Seen on 2 cores that others used too, so that seconds of CPU time are up to twice those of an idle
machine. 10,000 runs: 13 s of CPU time with nothing kept (71 MiB), 0.6 s where nothing changed
(59 MiB); in turns with the code before the lines of steps were checked in one pass, 12.6 s of user
time against 18.8 s. On a slower machine, in turns with the code before msgspec read the steps and
warm-ups were sought by distances, 18.6 s against 23.8 s (medians of three).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from many_runs import write_many
from simulated import config, write_run


def listing(runs: Path, cache: Path, *options: str) -> tuple[float, float, float]:
    """Return the seconds of a list, its CPU seconds, and the most memory of a process (MiB)."""
    sys.stdout.flush()
    began = time.perf_counter()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.chdir(cache)
        environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
        command = [sys.executable, "-m", "scalebook", "list", "--runs", str(runs), *options]
        os.execve(sys.executable, command, environment)
    _, status, used = os.wait4(child, 0)
    if status:
        raise SystemExit(f"scalebook list ended with {os.waitstatus_to_exitcode(status)}")
    waited = time.perf_counter() - began
    return waited, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def show(what: str, runs: Path, cache: Path, *options: str, of: float | None = None) -> float:
    """Print and return the CPU seconds of a list, and their ratio to another's."""
    waited, seconds, memory = listing(runs, cache, *options)
    ratio = "" if of is None else f", {seconds / of:.3f} of the first"
    print(f"{what}: {waited:.2f} s, {seconds:.2f} s of CPU time, {memory:.0f} MiB{ratio}")
    return seconds


def main() -> None:
    """Write the runs, list them twice and once more after a change, print times and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--long", type=int, default=200_000, help="steps of the one long run")
    options = parser.parse_args()
    os.fsync = lambda _file: None  # these runs need not survive a power cut
    with tempfile.TemporaryDirectory() as name:
        many, long, none = (Path(name, part) for part in ("many", "long", "none"))
        none.mkdir()
        write_many(many, options.runs)
        show("no run", none, none)
        first = show(f"{options.runs} runs, nothing kept", many, none)
        show("nothing changed", many, none, of=first)
        (next(many.iterdir()) / "record.json").touch()
        show("one run changed", many, none, of=first)
        show("every column, nothing kept", many, none, "--json", of=first)
        show("every column, nothing changed", many, none, "--json", of=first)
        write_run(long, "long", config(), steps=options.long)
        size = (long / "long" / "steps.jsonl").stat().st_size / 1e6
        seconds = show(f"a run of {options.long:,} steps, {size:.0f} MB", long, none)
        print(f"{size / seconds:.0f} MB of steps per second of CPU time")


if __name__ == "__main__":
    main()
