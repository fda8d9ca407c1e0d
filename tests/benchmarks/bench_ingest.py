"""How fast a Megatron log is read, against the obvious loop of one regex a field and line.

Not part of the tests: python tests/benchmarks/bench_ingest.py [--megabytes 100]. Both read the
same synthetic log in one process; the ratio is what counts, the rates depend on the machine.

Reached, at 100 MB: 2.1 to 2.2 times faster on records alone and 1.9 to 2.0 with timer lines between
(about 50 MB/s). The aim was ten times; the time goes to one pattern over each piece (a third),
floats and columns (a fifth), reading, cleaning and hashing (a sixth), recognising the dialect, and,
with timer lines, the search for words that tell how a run ended (a fifth). A prototype that splits
at the bars instead of matching a pattern was estimated at under four times, and one odd line would
send a whole piece to the slow path, so the pattern stayed.
"""

from __future__ import annotations

import argparse
import re
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from scalebook.logs.dialects.registry import read

FIELDS = {
    "iteration": re.compile(r"iteration\s+(\d+)/"),
    "samples": re.compile(r"consumed samples:\s+(\d+)"),
    "milliseconds": re.compile(r"elapsed time per iteration \(ms\): ([\d.]+)"),
    "tflops": re.compile(r"throughput per GPU \(TFLOP/s/GPU\): ([\d.]+)"),
    "learning_rate": re.compile(r"learning rate: ([\d.E+-]+)"),
    "batch": re.compile(r"global batch size:\s+(\d+)"),
    "loss": re.compile(r"lm loss: ([\d.E+-]+)"),
    "grad_norm": re.compile(r"grad norm: ([\d.]+)"),
    "skipped": re.compile(r"number of skipped iterations:\s+(\d+)"),
    "nan": re.compile(r"number of nan iterations:\s+(\d+)"),
}
NOISE = (
    "    forward-backward ...............................: (1234.50, 1236.71)\n"
    "    optimizer ......................................: (12.34, 12.99)\n"
)


def write_log(path: Path, megabytes: int, noise: bool) -> int:
    """Write a log of about this size and return its number of lines."""
    lines = step = 0
    total = 99_999_999
    with path.open("w") as stream:
        stream.write("  world_size ...................................... 64\n")
        stream.write("  seq_length ...................................... 8192\n")
        while stream.tell() < megabytes << 20:
            for _ in range(1000):
                step += 1
                stream.write(
                    f" [2031-01-01 00:00:{step % 60:02d}] iteration {step:8d}/{total:8d} | "
                    f"consumed samples: {256 * step:12d} | elapsed time per iteration (ms): "
                    f"{5000 + step % 97 / 10:.1f} | throughput per GPU (TFLOP/s/GPU): 410.5 | "
                    f"learning rate: 1.000000E-04 | global batch size:   256 | lm loss: "
                    f"{2 + 1 / step:.6E} | loss scale: 1.0 | grad norm: 0.{step % 1000:03d} | "
                    "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
                    + (NOISE if noise else "")
                )
                lines += 3 if noise else 1
    return lines


def obvious(path: Path) -> int:
    """Read the log the obvious way and return how many records it has."""
    rows: list[dict[str, float]] = []
    with path.open() as stream:
        for line in stream:
            row: dict[str, float] = {}
            for name, pattern in FIELDS.items():
                found = pattern.search(line)
                if found:
                    row[name] = float(found[1])
            if "iteration" in row:
                rows.append(row)
    return len(rows)


def ours(path: Path) -> int:
    """Read the log as ``scalebook ingest`` does and return how many records it has."""
    return sum(len(job.table) for job in read(path).jobs)


def timed(read: Callable[[Path], int], path: Path) -> tuple[int, float]:
    """Return what a reader returns and the seconds that it takes."""
    started = time.process_time()
    count = read(path)
    return count, time.process_time() - started


def main() -> None:
    """Print both rates, their ratio and the most memory that was used."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for noise in (False, True):
            path = Path(folder) / "big.log"
            lines = write_log(path, options.megabytes, noise)
            size = path.stat().st_size / 1e6
            count, seconds = timed(ours, path)
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            same, loop = timed(obvious, path)
            assert count == same
            what = "records and timers" if noise else "records alone"
            print(
                f"{what}: {size:.0f} MB, {count:,} records, {lines:,} lines: "
                f"{seconds:.2f} s ({lines / seconds:,.0f} lines/s, {size / seconds:.0f} MB/s); "
                f"obvious loop {loop:.2f} s ({lines / loop:,.0f} lines/s): {loop / seconds:.1f} "
                f"times faster; {memory:.0f} MiB resident at most"
            )


if __name__ == "__main__":
    main()
