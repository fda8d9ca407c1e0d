"""Several folders of runs as one: links to their runs, and the folder that each came from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from scalebook import untrusted
from scalebook.errors import ReportError
from scalebook.report.base.frames import SOURCES
from scalebook.report.cleaned import clean_file
from scalebook.store import read_object, run_directories


def merge(folders: Sequence[Path], target: Path) -> None:
    """Fill a new folder with links to the runs of folders, each run id once.

    A folder is one of runs, or a publication, whose runs are in ``runs``.

    Raises:
        ReportError: a folder has no run, or two runs of one id differ; both are named.
    """
    target.mkdir(parents=True)
    known: dict[str, Path] = {}
    sources: dict[str, str] = {}
    for folder, label in zip(folders, labels(folders), strict=True):
        for path in _runs(folder):
            run_id = str(read_object(path / "record.json").get("run_id") or path.resolve())
            if (before := known.get(run_id)) is not None:
                _require_equal(run_id, before, path)
                continue
            known[run_id] = path
            name = _free(target, path.name)
            (target / name).symlink_to(path.resolve(), target_is_directory=True)
            sources[name] = label
    (target / SOURCES).write_text(json.dumps(sources))


def labels(folders: Sequence[Path]) -> list[str]:
    """Return what each folder is called: its name, with those above it until names differ."""
    places = [folder.resolve() for folder in folders]
    for depth in range(1, max(len(place.parts) for place in places) + 1):
        found = ["/".join(place.parts[-depth:]) for place in places]
        if len(set(found)) == len(set(places)):
            return found
    return [str(place) for place in places]


def _runs(folder: Path) -> tuple[Path, ...]:
    found = tuple(run_directories(folder)) or tuple(run_directories(folder / "runs"))
    if not found:
        raise ReportError(f"{folder} contains no run. Give folders of runs or publications.")
    return found


def _free(target: Path, name: str) -> str:
    number, free = 1, name
    while untrusted.is_there(target / free):
        number += 1
        free = f"{name}-{number}"
    return free


def _require_equal(run_id: str, one: Path, other: Path) -> None:
    if content(one) != content(other):
        raise ReportError(
            f"Run {run_id} is in {one} and in {other} with different content. Remove one of them."
        )


def content(directory: Path) -> str:
    """Return a hash of record and steps as a publication holds them: a cleaned copy is equal."""
    digest = hashlib.sha256()
    for name in ("record.json", "steps.jsonl"):
        try:
            text = untrusted.read_text(directory / name, untrusted.LINES_BYTES)
        except OSError:
            text = ""
        clean = clean_file(name, text, ())
        digest.update(json.dumps(read(clean), sort_keys=True).encode())
    return digest.hexdigest()


def read(text: str) -> list[object]:
    """Return the JSON values of a text, one or one per line; other lines stay text."""
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        return [_value(line) for line in text.splitlines()]


def _value(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return line
