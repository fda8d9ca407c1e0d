"""Read and write run directories. Plain JSON: a training container needs nothing else."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from scalebook import scrub, step_columns, untrusted
from scalebook.config import RunConfig
from scalebook.errors import RecordError
from scalebook.record import SCHEMA_VERSION, RunRecord, StepRecord, finite, object_of
from scalebook.step_columns import Steps

Model = TypeVar("Model", bound=BaseModel)

PARTIAL_PREFIX = ".partial-"
SHORTEST_ENDING = 6  # characters of a run id by which it may be named
_MOST_NAMED = 12  # runs of one message


@dataclass(frozen=True, slots=True)
class Run:
    """One run as read from its directory."""

    path: Path
    record: RunRecord
    steps: Sequence[StepRecord]  # Steps where they were read
    problems: tuple[str, ...] = ()  # lines that could not be read, in words

    def _repr_html_(self) -> str:
        record = self.record
        return untrusted.html_table(
            {
                "run": record.run_id,
                "status": record.status,
                "reason": record.reason,
                "model": record.setting("model"),
                "GPUs": record.setting("world_size"),
                "steps": len(self.steps),
                "not readable": " ".join(self.problems),
            }
        )


def run_id(config: RunConfig, started_at: datetime) -> str:
    """Return a run's name: when it started, its model and world size, its configuration's hash."""
    name = "".join(c if c.isalnum() or c in ".-" else "-" for c in config.model)
    time = started_at.strftime("%Y%m%d-%H%M%S")
    return f"{time}-{name}-w{config.world_size}-{config.config_hash()}"


def create_partial(runs: Path, config: RunConfig, started_at: datetime | None = None) -> Path:
    """Create the directory of a run that starts now, with its configuration; return its path."""
    partial = create_directory(runs, run_id(config, started_at or datetime.now(UTC)))
    try:
        write_json(partial / "config.json", config.model_dump())
    except OSError as error:
        raise _cannot_write(runs, error) from error
    return partial


def create_directory(folder: Path, first: str) -> Path:
    """Create a partial directory of this name, or of the next one that is free; return its path.

    Raises:
        RecordError: the folder cannot be written, or has no free name.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, 1000):
            name = first if attempt == 1 else f"{first}-{attempt}"
            partial = partial_path(folder, name)
            with suppress(FileExistsError):
                if not (folder / name).exists():
                    partial.mkdir()
                    return partial
    except OSError as error:
        raise _cannot_write(folder, error) from error
    raise RecordError(f"{folder} has no free name like {first}. Remove the files that take it.")


def _cannot_write(folder: Path, error: OSError) -> RecordError:
    return RecordError(
        f"{folder} cannot be written: {error.strerror}. Choose another folder with --runs."
    )


def partial_directories(runs: Path) -> tuple[Path, ...]:
    """Return the directories of runs that have not been published, oldest name first."""
    if not runs.is_dir():
        return ()
    found = sorted(runs.glob(f"{PARTIAL_PREFIX}*"))
    # What a link leads to is not this folder's to end, to rename or to remove.
    return tuple(path for path in found if path.is_dir() and not path.is_symlink())


def partial_path(runs: Path, run_id: str) -> Path:
    """Return where a run lives while it is being written."""
    return runs / f"{PARTIAL_PREFIX}{run_id}"


def publish(partial: Path) -> Path:
    """Rename a whole run directory to its final name, on the disk, and return that path.

    Where that name is taken it gets the next free one, and its record, if it has one, says so.
    """
    name = partial.name.removeprefix(PARTIAL_PREFIX)
    final = partial.with_name(name)
    number = 1
    while final.exists():
        number += 1
        final = partial.with_name(f"{name}-{number}")
    if number > 1 and (partial / "record.json").exists():
        record = read_record(partial)
        write_record(partial, record.model_copy(update={"run_id": final.name}))
    for log in ("train.log", "probe.log"):
        with suppress(OSError):  # none, or no room for a second one: the run counts for more
            scrub.scrub_file(partial / log, os.environ)
    with suppress(OSError, ValueError, RecursionError):
        notebook = json.loads(untrusted.read_bytes(partial / "run.ipynb"))
        if (clean := scrub.scrub_values(notebook)) != notebook:
            write_json(partial / "run.ipynb", clean)
    for left in partial.glob(".*.tmp"):  # of a writer that was killed
        left.unlink()
    untrusted.publish(partial, final)
    return final


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees either the old file or the whole new one."""
    text = json.dumps(value, indent=1, allow_nan=False)
    with untrusted.replaced(path) as stream:
        stream.write(f"{text}\n".encode())


def read_object(path: Path) -> dict[str, Any]:
    """Return a JSON object of a run directory; empty where the file is missing or holds none."""
    try:
        content = untrusted.read_bytes(path)
        value = finite(json.loads(content))
        if b"\\u" in content:  # half of a character is text to Python, and to no other reader
            value = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except (OSError, ValueError, RecursionError):  # cut off, or nested without end
        return {}
    return object_of(value)


def write_record(directory: Path, record: RunRecord) -> None:
    """Write ``record.json`` into a run directory."""
    write_json(directory / "record.json", record.model_dump(mode="json"))


def read_steps(path: Path, *, brief: bool = False) -> tuple[Steps, tuple[str, ...]]:
    """Return the readable steps of a steps.jsonl and a sentence for each line that is not.

    Of steps that were done again after a restart, those that training went on from count.
    """
    steps, problems = step_columns.read(path, brief=brief)
    return step_columns.gone_on_from(steps), problems


def read_step_lines(path: Path) -> tuple[Steps, tuple[str, ...]]:
    """Return every readable line of a steps.jsonl, and a sentence for each that is not."""
    return step_columns.read(path)


def read_record(directory: Path) -> RunRecord:
    """Return the record of a run directory.

    Raises:
        RecordError: record.json is missing, is not valid, or is of a newer schema.
    """
    path = directory / "record.json"
    record, content = read_model(path, RunRecord, untrusted.RECORD_BYTES)
    if scrub.kinds(content.decode()):  # written by others, or before these were known
        record = RunRecord.model_validate(scrub.scrub_values(record.model_dump(mode="json")))
    if record.schema_version > SCHEMA_VERSION:
        raise newer_schema(path, record.schema_version, SCHEMA_VERSION)
    return record


def read_model(
    path: Path, model: type[Model], most: int = untrusted.OBJECT_BYTES
) -> tuple[Model, bytes]:
    """Return what a JSON file holds, checked, and its bytes.

    Raises:
        RecordError: the file is missing or is not valid.
    """
    try:
        content = untrusted.read_bytes(path, most)
        return model.model_validate_json(content), content
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise RecordError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error


def newer_schema(path: Path, version: int, known: int) -> RecordError:
    """Return the error of a file that a later version of Scalebook wrote."""
    what = f"{path} has schema_version {version}; this version reads up to {known}"
    return RecordError(f"{what}. Update scalebook.")


def read_run(directory: Path, *, brief: bool = False) -> Run:
    """Return the run in a directory; ``brief`` steps have only what a list shows.

    Raises:
        RecordError: record.json is missing, is not valid, or is of a newer schema.
    """
    record = read_record(directory)
    steps, problems = read_steps(directory / "steps.jsonl", brief=brief)
    return Run(directory, record, steps, problems)


def run_directories(runs: Path, file: str = "record.json") -> Iterator[Path]:
    """Yield every finished run directory under ``runs``, which has this file, oldest name first."""
    if runs.is_dir():
        for path in sorted(runs.iterdir()):
            if not path.name.startswith(".") and untrusted.is_there(path / file):
                yield path


def find_run(name: str, runs: Path) -> Path | None:
    """Return the directory of a run by its id or the end of it, ``…-1f3a9c`` as reports write it.

    Looked for are the runs of a folder and of its examples; None where no run has the name.

    Raises:
        RecordError: several runs end like that.
    """
    directories = [*run_directories(runs), *run_directories(runs / "examples")]
    by_name = {directory.name: directory for directory in reversed(directories)}
    if name in by_name:
        return by_name[name]
    ending = name.removeprefix("...").removeprefix("…")
    if len(ending.lstrip("-")) < SHORTEST_ENDING:
        return None
    found = sorted(other for other in by_name if other.endswith(ending))
    if len(found) > 1:
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        names = ", ".join(found[:_MOST_NAMED])
        what = f"{len(found)} runs under {runs} end in {ending!r}: {names}{more}"
        raise RecordError(f"{what}. Write more of the id.")
    return by_name[found[0]] if found else None


def read_runs(runs: Path) -> tuple[tuple[Run, ...], tuple[str, ...]]:
    """Return the readable runs under a folder and a sentence for each that is not."""
    found = list(each_run(runs))
    problems = tuple(one for one in found if isinstance(one, str))
    return tuple(one for one in found if not isinstance(one, str)), problems


def each_run(runs: Path) -> Iterator[Run | str]:
    """Yield each readable run under a folder, and a sentence for each that is not."""
    for path in run_directories(runs):
        try:
            yield read_run(path)
        except RecordError as error:
            yield str(error)


def without_record(runs: Path) -> Iterator[str]:
    """Yield a sentence for each directory that a run has written to but never recorded."""
    for path in sorted(runs.iterdir()):
        if (
            path.name.startswith(".")
            or not path.is_dir()
            or untrusted.is_there(path / "record.json")
        ):
            continue
        if (path / "steps.jsonl").exists() or (path / "train.log").exists():
            yield f"{path} has no record.json: the run in it is not shown"


def entries(folder: Path) -> dict[str, str]:
    """Return a fingerprint of each file and directory in a folder, by its name.

    That of a directory covers every file below it. Names that begin with a dot are left out: runs
    that are being written, and what editors and file systems leave.
    """
    with os.scandir(folder) as found:
        shown = [entry for entry in found if not entry.name.startswith(".")]
    digests: dict[str, str] = {}
    for entry in sorted(shown, key=lambda one: one.name):
        files = sorted(_files(entry, "", set()), key=repr)
        digests[entry.name] = hashlib.sha256(repr(files).encode()).hexdigest()
    return digests


def together(parts: dict[str, str]) -> str:
    """Return one fingerprint of all that ``entries`` found."""
    return hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()


def _files(
    entry: os.DirEntry[str], name: str, seen: set[tuple[int, int]]
) -> Iterator[tuple[object, ...]]:
    """Yield name, size, times of change and number of each file at or below an entry.

    Links are followed, but no folder is entered twice: n folders of two links to the next one would
    take 2^n steps. The time of the last change of status is
    set by the system alone: a file that was replaced by one of the same size and date shows there.
    """
    try:
        about = entry.stat()
        if not entry.is_dir():
            yield name, about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino
            return
        with os.scandir(entry.path) as found:
            inside = sorted(found, key=lambda one: one.name)
    except OSError:
        yield name, "cannot be read"
        return
    yield name, "folder"
    here = (about.st_dev, about.st_ino)
    if here not in seen:
        seen.add(here)
        for one in inside:
            yield from _files(one, f"{name}/{one.name}", seen)
