"""Turn files into run directories: what the command line and the Python API call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from scalebook.errors import IngestError
from scalebook.logs.dialects.dialect import Dialect
from scalebook.logs.dialects.registry import FileContent, read
from scalebook.logs.ingest.group import Group, Opener, collect, find, no_store
from scalebook.logs.ingest.job_summary import summarise
from scalebook.logs.ingest.log_config import LogConfig, observe_with
from scalebook.logs.ingest.write import write_run
from scalebook.logs.job import Job
from scalebook.logs.setting_lines import Value


@dataclass(frozen=True, slots=True)
class Ingested:
    """One run directory that came out of files."""

    path: Path
    new: bool
    files: tuple[Path, ...]
    summary: Mapping[str, Any]


def summaries(
    path: Path,
    supplied: Mapping[str, Value],
    dialect: str | type[Dialect] | None = None,
    opens: Opener = no_store,
    *,
    window: tuple[int, int] | None = None,
) -> list[dict[str, Any]]:
    """Return one summary a job of a file (or a folder); nothing is written.

    Raises:
        IngestError: the path cannot be read, or what was supplied contradicts it.
    """
    if path.is_file() and not opens(path):
        content = read(path, dialect)
        if content.empty:
            raise content.unrecognised()
        return [
            summarise(job, _known(job, supplied, path.name, window), content.dialect.kind)
            for job in content.jobs
        ]
    groups, _ = collect([path], dialect, opens)
    if not groups:
        raise IngestError(f"Nothing in {path} was recognised. Name a file, or another folder.")
    return [
        summarise(job, _known(job, supplied, group.files[0].path.name, window))
        for group in groups
        for job in group.jobs
    ]


def ingest(
    paths: Iterable[Path],
    runs: Path,
    supplied: Mapping[str, Value],
    dialect: str | type[Dialect] | None = None,
    opens: Opener = no_store,
    *,
    window: tuple[int, int] | None = None,
) -> tuple[list[Ingested], list[str]]:
    """Write run directories for the jobs of all paths; return them, and notes on unused files.

    Each job is written when its files were read, so that what stops an ingest costs only the rest.
    ``opens`` finds readers of what is no text: ``scalebook.trackers.opener()``. ``window`` is the
    first and the last step that the reader chooses to average over.

    Raises:
        IngestError: a path cannot be read, or what was supplied contradicts a file.
    """
    files = find(paths, dialect, opens)
    found: list[Ingested] = []
    for group in files.groups(dialect):
        for content in group.attached:
            files.notes += _no_breakdown(content)
        for index, known, summary in list(_plan(group, supplied, window)):
            path, new = write_run(runs, group, index, known, summary)
            of = tuple(content.path for content in (*group.files, *group.attached))
            found.append(Ingested(path, new, of, summary))
    return found, files.notes


def _no_breakdown(content: FileContent) -> list[str]:
    """Return why a trace gives no anatomy of a step, nothing where it gives one."""
    breakdowns = (job.details.get("breakdown") for job in content.jobs)
    reasons = (
        cast("dict[str, Any]", one).get("reason") for one in breakdowns if isinstance(one, dict)
    )
    return [f"{content.path.name}: no step anatomy. {reason}" for reason in reasons if reason]


def _known(
    job: Job, supplied: Mapping[str, Value], name: str, window: tuple[int, int] | None
) -> LogConfig:
    known = observe_with(job, supplied, name)
    known.window = window
    return known


def _plan(
    group: Group, supplied: Mapping[str, Value], window: tuple[int, int] | None
) -> Iterator[tuple[int, LogConfig, dict[str, Any]]]:
    for index, job in enumerate(group.jobs):
        known = _known(job, supplied, group.files[0].path.name, window)
        yield index, known, summarise(job, known)
