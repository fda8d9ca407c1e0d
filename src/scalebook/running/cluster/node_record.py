"""The record of a run whose nodes each left a log and a report in its directory."""

from __future__ import annotations

from pathlib import Path

from scalebook.record import RunRecord, Status
from scalebook.running import finish_run
from scalebook.running.cluster import node, node_logs
from scalebook.running.cluster.node_logs import NodeLog


def conclude_nodes(
    directory: Path,
    *,
    exit_code: int | None,
    stop: tuple[Status, str] | None = None,
    finished_at: str | None = None,
) -> RunRecord:
    """Put the nodes' logs together, and write and return the record of the run.

    ``exit_code`` is what the launcher answered: where a node failed by itself, its own code counts.
    """
    reports = node.reports(directory)
    codes = {number: report.get("exit_code", 1) for number, report in reports.items()}
    told = node_logs.telling(node_logs.tails(directory, codes, finish_run.LOG_LINES))
    node_logs.merge(directory)
    record = finish_run.conclude(
        directory,
        exit_code=_code(exit_code, told),
        stop=stop,
        host_memory_kills=sum(report.get("memory_kills", 0) for report in reports.values()),
        memory_killed=frozenset(
            number for report in reports.values() for number in report.get("memory_killed", ())
        ),
        finished_at=finished_at,
        log=told.lines if told else (),
    )
    for path in directory.glob(node.REPORT.format("*")):
        path.unlink()
    return record


def _code(exit_code: int | None, told: NodeLog | None) -> int | None:
    """Return how the run ended: srun answers with the highest code, often of a node it ended."""
    if not exit_code or told is None or not told.exit_code:
        return exit_code
    return told.exit_code
