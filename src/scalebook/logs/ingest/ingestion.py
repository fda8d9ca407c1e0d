"""Turn files into run directories: what the command line and the Python API call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from scalebook import store
from scalebook.errors import IngestError
from scalebook.logs.dialects.dialect import Dialect
from scalebook.logs.dialects.registry import FileContent, read
from scalebook.logs.ingest.group import Opener, find, no_store
from scalebook.logs.ingest.job_summary import summarise
from scalebook.logs.ingest.log_config import LogConfig, observe_with
from scalebook.logs.ingest.write import write_run
from scalebook.logs.job import Job
from scalebook.logs.setting_lines import Value
from scalebook.record import object_of


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
    groups = list(find([path], dialect, opens).groups(dialect))
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
    show: Callable[[str], None] = lambda _: None,
) -> tuple[list[Ingested], list[str]]:
    """Write run directories for the jobs of all paths; return them, and notes on unused files.

    Each job is written when its files were read, so that what stops an ingest costs only the rest.
    ``opens`` finds readers of what is no text: ``scalebook.trackers.opener()``. ``window`` is the
    first and the last step that the reader chooses to average over. ``show`` gets a line for each
    job that was read.

    Raises:
        IngestError: a path cannot be read, or what was supplied contradicts a file.
    """
    files = find(paths, dialect, opens)
    found: list[Ingested] = []
    before = _runs_by_files(runs)
    for group in files.groups(dialect):
        for content in group.attached:
            files.notes += _no_breakdown(content)
        name, of = group.files[0].path.name, (*group.files, *group.attached)
        show(f"Runs read: {len(found)}, now {group.files[0].path}")
        known = [_known(job, supplied, name, window) for job in group.jobs]
        summed = [summarise(job, one) for job, one in zip(group.jobs, known, strict=True)]
        for index, summary in enumerate(summed):
            path, new = write_run(runs, group, index, known[index], summary)
            found.append(Ingested(path, new, tuple(one.path for one in of), summary))
            if new and (same := before.pop(frozenset(one.digest for one in of), None)):
                words = f"{name} was already there, with other settings: {', '.join(same)}"
                files.notes += [f"{words}. Delete what this run replaces"]
    return found, files.notes


def _runs_by_files(runs: Path) -> dict[frozenset[str], list[str]]:
    """Return the names of ingested runs by the digests of the files that they came from."""
    found: dict[frozenset[str], list[str]] = {}
    for directory in store.run_directories(runs):
        environment = object_of(store.read_object(directory / "record.json").get("environment"))
        files = object_of(environment.get("ingest")).get("files")
        each = cast("list[Any]", files) if isinstance(files, list) else []
        digests = frozenset(str(object_of(one).get("sha256")) for one in each)
        found.setdefault(digests, []).append(directory.name)
    return found


def _no_breakdown(content: FileContent) -> list[str]:
    """Return why a trace gives no anatomy of a step, nothing where it gives one."""
    reasons = (object_of(job.details.get("breakdown")).get("reason") for job in content.jobs)
    return [f"{content.path.name}: no step anatomy. {reason}" for reason in reasons if reason]


def _known(
    job: Job, supplied: Mapping[str, Value], name: str, window: tuple[int, int] | None
) -> LogConfig:
    known = observe_with(job, supplied, name)
    known.window = window
    steps = job.table.column("step")
    if window and len(steps) and not any(window[0] <= step <= window[1] for step in steps):
        raise IngestError(
            f"{name} has steps {job.first_step} to {job.last_step}: none lies in --window "
            f"{window[0]}:{window[1]}. Choose steps of the log."
        )
    return known
