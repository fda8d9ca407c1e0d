"""The logs of a run's nodes: put together in one file, and the one that tells what happened."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalebook import untrusted
from scalebook.logs import causes
from scalebook.running import outcome, torchrun_report
from scalebook.running.progress import last_lines

PREFIX = "train.log.node"
LOG = "train.log"
_WEIGHT = {"out_of_memory": 4, "diverged": 3, "failed": 2, "timeout": 1, "interrupted": 0}


def node_logs(directory: Path) -> list[tuple[int, Path]]:
    """Return number and log of each node, in the nodes' order."""
    found = [
        (int(path.name.removeprefix(PREFIX)), path)
        for path in directory.glob(f"{PREFIX}*")
        if path.name.removeprefix(PREFIX).isdigit()
    ]
    return sorted(found)


@dataclass(frozen=True, slots=True)
class NodeLog:
    """The last lines of a node's log, and the exit code of what ran there (None: not known)."""

    lines: Sequence[str]
    exit_code: int | None


def telling(logs: Sequence[NodeLog]) -> NodeLog | None:
    """Return the node that says most about a failure: the others only follow it.

    One that failed by itself counts more than one that was ended, or broke, because of it.
    """
    best: NodeLog | None = None
    most = (False, -1, False, False)
    for log in logs:
        found = outcome.classify(
            outcome.Evidence(log.exit_code, steps_done=0, steps_asked=None, log=log.lines)
        )
        cause = torchrun_report.root_cause(log.lines)
        alone = not causes.CONSEQUENCE.search(found.reason or "")
        own = cause is not None and cause.code != -signal.SIGTERM
        weight = (log.exit_code != 0, _WEIGHT.get(found.status, -1), alone, own)
        if weight > most:
            best, most = log, weight
    return best


def tails(directory: Path, codes: Mapping[int, int], count: int) -> list[NodeLog]:
    """Return the end of each node's log; of the merged log where there are no others."""
    logs = node_logs(directory)
    if not logs:
        return [NodeLog(last_lines(directory / LOG, count), None)]
    return [NodeLog(last_lines(path, count), codes.get(number)) for number, path in logs]


def merge(directory: Path) -> None:
    """Put the nodes' logs into ``train.log``, one after the other, each under a line of its own."""
    logs = node_logs(directory)
    if not logs:
        return
    if len(logs) == 1:
        logs[0][1].replace(directory / LOG)
        return
    with untrusted.replaced(directory / LOG) as merged:
        for number, path in logs:
            merged.write(f"===== node {number} of {len(logs)} =====\n".encode())
            with untrusted.opened(path) as stream:
                while piece := stream.read(1 << 20):
                    merged.write(piece)
            merged.write(b"\n")
    for _, path in logs:
        path.unlink()
