"""One node's part of a job on several: start its ranks, sample its devices, say how it ended.

``python -m scalebook.running.cluster.node DIRECTORY COMMAND...`` runs the command (torchrun) under
a guard and answers with its exit code. What only this node knows goes into ``node<n>.json`` of the
run's directory, for whoever writes the record.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from scalebook import store
from scalebook.config import RunConfig
from scalebook.running import finish_run, memory_kills
from scalebook.running.devices import telemetry
from scalebook.running.processes import shell_code

GRACE_SECONDS = 20.0  # from SIGTERM to SIGKILL; Slurm's KillWait is 30 s unless a site shortens it
REPORT = "node{}.json"
_NUMBER = re.compile(r"node(\d+)\.json")


def main(arguments: Sequence[str]) -> int:
    """Run this node's command; return its exit code."""
    directory, *command = arguments
    return run(Path(directory), command)


def run(directory: Path, command: Sequence[str]) -> int:
    """Run a command for a run's directory; return its exit code and leave a report."""
    config = RunConfig.from_parameters(store.read_object(directory / "config.json"))
    node = telemetry.node_number(os.environ)
    before = memory_kills.before()
    with telemetry.sampling(directory, config, os.environ):
        # Where two nodes are one machine (a test's) each ends its own processes alone.
        code = _guarded(f"{finish_run.run_id(directory)}.node{node}", command)
    kills, killed = memory_kills.since(before)
    report = {"exit_code": code, "memory_kills": kills, "memory_killed": sorted(killed)}
    if directory.is_dir():
        store.write_json(directory / REPORT.format(node), report)
    return code


def _guarded(mark: str, command: Sequence[str]) -> int:
    """Run the command under a guard, which ends every process of the run on this node."""
    guard = (sys.executable, "-m", "scalebook.running.guard", mark, str(GRACE_SECONDS))
    process = subprocess.Popen((*guard, *command), stdin=subprocess.PIPE)

    def end(_number: int, _frame: FrameType | None) -> None:
        process.terminate()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    return shell_code(process.wait())


def reports(directory: Path) -> dict[int, dict[str, Any]]:
    """Return what each node left, by its number; a report that was cut off is empty."""
    return {
        int(match[1]): store.read_object(path)
        for path in sorted(directory.glob(REPORT.format("*")))
        if (match := _NUMBER.fullmatch(path.name))
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
