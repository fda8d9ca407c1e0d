"""What the nodes of a run left: the log that says what happened, and the record made of all."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scalebook import untrusted
from scalebook.logs import causes
from scalebook.record import RunRecord, Status
from scalebook.running import finish_run, outcome
from scalebook.running.progress import last_lines

_LOG = re.compile(r"train\.log(?:\.node(\d+))?")
_EXIT = re.compile(r"exit(?:\.node(\d+))?\.json")
# Why a node's ranks are ended from here. Neither is the run's end: the scheduler knows why it ended
# the job, and the node that failed has the reason in its log.
ASKED: tuple[Status, str] = ("interrupted", "The job was asked to end")
FOLLOWED: tuple[Status, str] = ("interrupted", "Another node of the run failed")

_WEIGHT = {"out_of_memory": 4, "diverged": 3, "failed": 2, "timeout": 1, "interrupted": 0}


def _by_node(directory: Path, name: re.Pattern[str]) -> list[tuple[int, Path]]:
    """Return node and path of each file of a kind, in the nodes' order."""
    found = [
        (int(match[1] or 0), path)
        for path in directory.iterdir()
        if (match := name.fullmatch(path.name)) and not path.is_symlink()
    ]
    return sorted(found)


def ends(directory: Path) -> dict[int, finish_run.Ended]:
    """Return how the ranks of each node ended, for the nodes that noted it."""
    found = {node: finish_run.read_exit(directory, node) for node, _ in _by_node(directory, _EXIT)}
    return {node: end for node, end in found.items() if end is not None}


def own_stop(directory: Path) -> outcome.EndReason | None:
    """Return why a node ended its ranks of its own accord; None where none did."""
    stops = (end.stop for end in ends(directory).values())
    return next((stop for stop in stops if stop not in (None, ASKED, FOLLOWED)), None)


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
            outcome.EndEvidence(log.exit_code, steps_done=0, steps_asked=None, log=log.lines)
        )
        cause = outcome.root_cause(log.lines)
        first = not causes.CONSEQUENCE.search(found.reason or "")
        own = cause is not None and cause.code != -signal.SIGTERM
        weight = (log.exit_code != 0, _WEIGHT.get(found.status, -1), first, own)
        if weight > most:
            best, most = log, weight
    return best


def merge(directory: Path) -> None:
    """Put the nodes' logs into ``train.log``, one after the other, each under a separate line."""
    logs = _by_node(directory, _LOG)
    if not any(number for number, _ in logs):
        return
    with untrusted.replaced(finish_run.log_file(directory)) as merged:
        for number, path in logs:
            merged.write(f"===== node {number} of {logs[-1][0] + 1} =====\n".encode())
            try:
                stream = untrusted.opened(path)
            except OSError as error:
                merged.write(f"{path.name} cannot be read: {error.strerror}\n".encode())
                continue
            with stream:
                shutil.copyfileobj(stream, merged)
            merged.write(b"\n")
    for number, path in logs:
        if number:
            untrusted.remove(path)


def conclude_nodes(
    directory: Path,
    *,
    stop: outcome.EndReason | None = None,
    exit_code: int | None = None,
    finished_at: str | None = None,
    printed: Sequence[str] = (),
) -> RunRecord:
    """Put the nodes' logs together, and write and return the record of the run.

    ``exit_code`` counts where no node noted an end, and ``printed``, what the run's job printed,
    where no node has a log.
    """
    found = ends(directory)
    codes = {node: end.exit_code or 0 for node, end in found.items()}
    ended = [
        NodeLog(last_lines(path, finish_run.LOG_LINES), codes.get(node))
        for node, path in _by_node(directory, _LOG)
    ]
    log = telling(ended)
    merge(directory)
    if any(codes.values()):
        # Node 0 may have ended well, or only because another one failed: its own code counts.
        exit_code = (log.exit_code if log else None) or max(codes.values())
    elif codes:
        exit_code = 0
    kills = sum(end.memory_kills for end in found.values())
    killed = tuple(one for end in found.values() for one in end.memory_killed)
    whole = finish_run.Ended(exit_code, stop, kills, killed)
    lines = log.lines if log else printed
    record = finish_run.conclude(directory, whole, finished_at=finished_at, log=lines)
    for _, path in _by_node(directory, _EXIT):
        untrusted.remove(path)
    return record
