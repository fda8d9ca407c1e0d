"""Which files belong together: ranks and nodes of one job, its telemetry and its traces."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from scalebook.errors import IngestError
from scalebook.logs.causes import weightier
from scalebook.logs.dialects.dialect import Dialect
from scalebook.logs.dialects.registry import FileContent, dialect_of, read
from scalebook.logs.job import Job

_PACKED = re.compile(r"\.(?:gz|zst|xz|bz2|zip)$")
_SUFFIX = re.compile(r"\.(?:out|err|log|txt|stdout|stderr)$")
_RANKED = re.compile(
    r"((?:local_)?(?:rank|node|host|proc|worker|task|pod|gpu)s?[-_.=]?)\d+", re.IGNORECASE
)
_ELASTIC = re.compile(r"/attempt_\d+/\d+/(?:stdout|stderr)$")
_RESULT_SUFFIXES = {
    *(".log", ".out", ".err", ".txt", ".json", ".csv", ".jsonl", ""),
    *(".gz", ".zst", ".xz", ".bz2", ".zip"),
}
_LOSS_AGREES = 1e-3
_HISTORIES = ("trainer_state.json", "trainer_log.jsonl")  # of Hugging Face
_FULLER = {"train_results.json": ("all_results.json", *_HISTORIES), "all_results.json": _HISTORIES}
MOST_FILES = 10_000
# What is no text: an opener returns, for a file or a folder that it knows, what reads its runs.
StoreReader: TypeAlias = Callable[[], Iterable[FileContent]]
Opener: TypeAlias = Callable[[Path], StoreReader | None]


def no_store(_path: Path) -> StoreReader | None:
    """Return None: every file is read as text."""
    return None


@dataclass(slots=True)
class Group:
    """Files of one job, or of several jobs that a file holds one after the other."""

    files: list[FileContent]
    jobs: list[Job]
    attached: list[FileContent] = field(default_factory=list[FileContent])

    @property
    def folder(self) -> Path:
        """Where the files lie."""
        return self.files[0].path.parent


def files_under(path: Path, opens: Opener = no_store) -> Iterator[tuple[Path, bool]]:
    """Yield the files and stores of a path, and whether the user named each one.

    A folder is walked without following links; hidden entries and run directories are left out.
    """
    if not path.is_dir() or opens(path):
        if not path.exists():
            raise IngestError(f"{path} does not exist. Name log files or folders.")
        yield path, True
        return
    count = 0
    for name, folders, files in os.walk(path):
        folder = Path(name)
        seen = (one for one in folders if not one.startswith("."))
        folders[:] = sorted(one for one in seen if not (folder / one / "record.json").exists())
        stores = {one for one in folders if not (folder / one).is_symlink() and opens(folder / one)}
        folders[:] = [one for one in folders if one not in stores]
        for file in sorted((*files, *stores)):
            found = folder / file
            if file in stores:
                yield found, False
                continue
            if file.startswith(".") or found.is_symlink() or not found.is_file():
                continue
            if found.suffix.lower() not in _RESULT_SUFFIXES and not opens(found):
                continue
            count += 1
            if count > MOST_FILES:
                raise IngestError(
                    f"{path} contains more than {MOST_FILES:,} files. Name a part of it."
                )
            yield found, False


def group_key(path: Path) -> str:
    """Return what the names of all files of one job have in common."""
    name = _PACKED.sub("", path.as_posix())
    name = _SUFFIX.sub("", name)
    name = _ELASTIC.sub("/attempt", name)
    return _RANKED.sub(r"\1#", name)


def _summed_elsewhere(file: Path) -> bool:
    """Whether a file of Hugging Face's results lies next to one that holds more of the run."""
    return any((file.parent / name).exists() for name in _FULLER.get(file.name, ()))


def _agree(first: Job, second: Job) -> bool:
    """Whether two jobs may be views of one: settings and losses of common steps are the same."""
    for name, value in second.settings.items():
        if first.settings.get(name, value) != value:
            return False
    if not len(first.table) or not len(second.table):
        return True
    losses = dict(zip(first.table.column("step"), first.table.column("loss"), strict=True))
    common = 0
    for step, loss in zip(second.table.column("step"), second.table.column("loss"), strict=True):
        other = losses.get(step, math.nan)
        if step in losses:
            common += 1
        if abs(other - loss) > _LOSS_AGREES * abs(loss) + 1e-9:  # false for NaN
            return False
    return common > 0


def _join(main: Job, other: Job) -> None:
    """Add to a job what another view of it says."""
    for name, value in other.settings.items():
        main.settings.setdefault(name, value)
    for name, value in other.details.items():
        known = main.details.get(name)
        if name.startswith("peak_") and isinstance(known, float) and isinstance(value, float):
            main.details[name] = max(known, value)
        else:
            main.details.setdefault(name, value)
    if other.ending:
        main.ending = weightier(main.ending, other.ending)
    main.finished = main.finished or other.finished
    main.counts.other_rank_records += len(other.table)
    for note in other.notes:
        main.note(note)


def _joins(groups: Iterable[Group], content: FileContent) -> bool:
    """Put a training file into the group that it is a view of; return False where none is."""
    for group in groups:
        if len(group.jobs) != len(content.jobs):
            continue
        pairs = list(zip(group.jobs, content.jobs, strict=True))
        if all(_agree(one, other) for one, other in pairs):
            for index, (one, other) in enumerate(pairs):
                main, rest = (one, other) if len(one.table) >= len(other.table) else (other, one)
                _join(main, rest)
                group.jobs[index] = main
            group.files.append(content)
            return True
    return False


def _attach(groups: Sequence[Group], contents: Iterable[FileContent]) -> list[str]:
    """Attach telemetry and traces to the one run next to them; return notes on the others."""
    notes: list[str] = []
    beside: dict[Path, list[Group]] = {}
    for group in groups:
        beside.setdefault(group.folder, []).append(group)
    for content in contents:
        near = beside.get(content.path.parent, groups)
        if len(near) == 1 and len(near[0].jobs) == 1:
            near[0].attached.append(content)
        else:
            which = "no run" if not near else "several runs"
            notes.append(
                f"{content.path}: {content.dialect.name} next to {which}, attached to none."
            )
    return notes


@dataclass(slots=True)
class SortedFiles:
    """Files of some paths, sorted first, so that a job is complete when it is read."""

    training: dict[str, list[tuple[Path, bool]]]  # by what the names of a job's files share
    beside: list[FileContent]  # telemetry and traces
    notes: list[str]  # on files that were not used
    stores: list[tuple[Path, bool, StoreReader]] = field(
        default_factory=list[tuple[Path, bool, StoreReader]]
    )

    def groups(self, dialect: str | type[Dialect] | None = None) -> Iterator[Group]:
        """Yield each job when its files were read; those next to other files at the end.

        Raises:
            IngestError: a file that was named cannot be read, or nothing in it was recognised.
        """
        folders = {content.path.parent for content in self.beside}
        homes = {files[0][0].parent for files in self.training.values()}
        waiting: list[Group] = []
        for group in self._stored():
            if self.beside:
                waiting.append(group)
            else:
                yield group
        for files in self.training.values():
            groups: list[Group] = []
            for file, named in files:
                self._read(file, named, dialect, groups)
            # what lies in a folder without a log may belong to any
            if files[0][0].parent in folders or not folders <= homes:
                waiting += groups
            else:
                yield from groups
        self.notes += _attach(waiting, self.beside)
        yield from waiting

    def _stored(self) -> Iterator[Group]:
        """Yield the runs of each store; what cannot be read becomes a note unless it was named."""
        for path, named, contents in self.stores:
            count = 0
            try:
                for content in contents():
                    count += 1
                    if not content.empty:
                        yield Group([content], list(content.jobs))
                    elif named:
                        raise content.unrecognised()
                    else:
                        self.notes.append(f"{path}: nothing in it was recognised.")
            except IngestError as error:
                if named and count < 2:
                    raise
                self.notes.append(str(error))

    def _read(
        self, file: Path, named: bool, dialect: str | type[Dialect] | None, groups: list[Group]
    ) -> None:
        if not named and _summed_elsewhere(file):
            self.notes.append(f"{file}: the files next to it hold more of its run.")
            return
        try:
            content = read(file, dialect)
            if content.empty and named:
                raise content.unrecognised()
        except IngestError as error:
            if named:
                raise
            self.notes.append(str(error))
            return
        if content.empty:
            self.notes.append(f"{file}: nothing in it was recognised.")
        elif not _joins(groups, content):
            groups.append(Group([content], list(content.jobs)))


def find(
    paths: Iterable[Path], dialect: str | type[Dialect] | None = None, opens: Opener = no_store
) -> SortedFiles:
    """Return the files under some paths by job; of logs only the beginnings are read.

    Raises:
        IngestError: a path does not exist, or a file that was named cannot be read.
    """
    found = SortedFiles({}, [], [])
    for path in paths:
        for file, named in files_under(path, opens):
            try:
                if contents := opens(file):
                    found.stores.append((file, named, contents))
                elif dialect_of(file, dialect).kind == "training":
                    found.training.setdefault(group_key(file), []).append((file, named))
                else:
                    found.beside.append(read(file, dialect))
            except IngestError as error:
                if named:
                    raise
                found.notes.append(str(error))
    return found
