"""How often the steady state is found, its interval holds the truth, and what must be refused is.

Not part of the tests: python tests/benchmarks/bench_steady.py [--trials 200] [--speed]. Prints the
table of src/scalebook/measure/metrics/README.md. Every series is simulated, with the truth known.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))
from series import BRIEF, HARD, STABLE, UNSTABLE

from scalebook.measure.metrics.steady import find_steady

COUNTS = (30, 50, 100, 300, 1000)
BRIEF_COUNTS = (15, 20, 30, 39)


def row(make, count: int, trials: int, seed: int) -> tuple[str, int, int]:
    """Return a cell of the table, how many series were accepted, and how many held the truth."""
    generator = random.Random(seed * 1000 + count)
    accepted = held = 0
    off: list[int] = []
    known = None
    for _ in range(trials):
        known = make(generator, count)
        found = find_steady(known.seconds)
        if not found.accepted:
            continue
        accepted += 1
        if known.mean is not None:
            held += found.low <= known.mean <= found.high
        if known.start is not None:
            off.append(abs(found.start - known.start))
    cell = f"{100 * accepted / trials:.0f}"
    if known is not None and known.mean is not None:
        cell += f" / {100 * held / accepted:.0f}" if accepted else " / -"
        cell += f" / {median(off):.0f}" if off else " / -"
    return cell, accepted, held if known is not None and known.mean is not None else 0


def table(trials: int) -> None:
    """Print the table."""
    print("| series | " + " | ".join(f"{count} steps" for count in COUNTS) + " |")
    print("|---|" + "---|" * len(COUNTS))
    accepted = held = 0
    for seed, (name, make) in enumerate((STABLE | HARD | UNSTABLE).items()):
        cells = []
        for count in COUNTS:
            cell, some, hits = row(make, count, trials, seed)
            cells.append(cell)
            if name in STABLE:
                accepted, held = accepted + some, held + hits
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    print(f"all stable: {100 * held / accepted:.1f} % of {accepted:,} intervals hold the truth")


def brief(trials: int) -> None:
    """Print the table of short windows, where a tail or a rare spike can hide."""
    print("| series | " + " | ".join(f"{count} steps" for count in BRIEF_COUNTS) + " |")
    print("|---|" + "---|" * len(BRIEF_COUNTS))
    for seed, (name, make) in enumerate((BRIEF | STABLE).items()):
        cells = [row(make, count, trials, seed)[0] for count in BRIEF_COUNTS]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def speed(count: int = 50, runs: int = 2000) -> None:
    """Print how long runs of 50 steps take."""
    generator = random.Random(1)
    makers = list(STABLE.values())
    many = [makers[at % len(makers)](generator, count).seconds for at in range(runs)]
    begin = time.process_time()
    for seconds in many:
        find_steady(seconds)
    each = (time.process_time() - begin) / runs
    print(f"{1e3 * each:.2f} ms of processor time a series of {count} steps")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--speed", action="store_true")
    options = parser.parse_args()
    speed()
    if not options.speed:
        table(options.trials)
        brief(options.trials)
