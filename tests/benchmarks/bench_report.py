"""How long the report of many runs takes to build, and how large its pages are.

Not part of the tests: python tests/benchmarks/bench_report.py [--runs 10000]. The runs are
those of many_runs.py.

Seen on 2 cores that others used too (15 pages, 50 steps a run):

- 10,000 runs: 157 s, 176 to 178 s of CPU time; nothing changed, 19 s of CPU time. The largest page
  3.2 MB, before rows of a chart lost the fields that it does not draw 13.7 MB; its tables read
  their rows from files of up to 13 MB when they come into sight. Highest memory of one process
  0.9 GB. Before each run was measured once, rows were moved out and charts were sampled, reading
  and pages alone took 265 s of CPU time and the throughput page held 31 MB.
- 500 runs: 28 s of CPU time, 0.55 of the 51 s before; the largest page 1.1 MB, before 2.3 MB. Most
  of that difference is the grammar that jsonschema built in each process (light_jsonschema).
- The 28-run examples: 13 s; nothing changed, 1 s. The 116-run examples: 11.0 s of CPU time, 0.56
  of the 19.7 s before sparse rows were fitted and charts checked by the tests alone. The 125-run
  examples: 13.8 s of CPU time, 22 s on a busy machine; nothing changed, 1.4 s of CPU time.
- 1,000 runs: 22 s of CPU time; nothing changed, 2 s.
- Runs with telemetry, rank times and repeats, before and after records were read and settings
  gathered once per process, on a busy machine: 1,000 runs 44 and 35 s of CPU time; 10,000 runs
  266 and 220 s. Pages of 10,000 runs alone, in one process: 124 and 91 s of CPU time.

All of that is of runs without telemetry, rank times and repeats. 1,000 runs with them, on a busy
machine: 35 s of CPU time in one process, of which 22 s are pages; 57 s in two processes before
rates were shared with the diagnosis and tables of steps and telemetry were built from many runs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from many_runs import write_many

ROOT = Path(__file__).parents[2]


def spent() -> tuple[float, float]:
    """Return seconds of wall time and of CPU time, of this process and its ended children."""
    times = os.times()
    return time.perf_counter(), sum(times[:4])


def main() -> None:
    """Write the runs, build their report twice, print times and sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.fsync = lambda _file: None  # these runs need not survive a power cut
        write_many(folder / "runs", options.runs)
        from scalebook.report import Places, build

        for what in ("first build", "second build, nothing changed"):
            wall, cpu = spent()
            index = build(
                Places(folder / "runs", folder / "report" / "site", ROOT), "preview", print
            )
            after = spent()
            print(f"{what}: {after[0] - wall:.0f} s, {after[1] - cpu:.0f} s of CPU time")
        for path in sorted(index.parent.rglob("*")):
            if path.is_file():
                print(f"{path.stat().st_size / 1e6:8.2f} MB  {path.relative_to(index.parent)}")


if __name__ == "__main__":
    main()
