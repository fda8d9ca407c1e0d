"""The numbers of runs from the listing before, where no file of a run has changed since.

One file for each folder of runs, in ``reports/.cache`` of the project or in the user's cache
folder: a digest, then a line of JSON for each run. Nothing kept can run, and a file that is not as
it was written counts as not there. Its name stands for this package, the catalog and the folder.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

from pydantic_core import from_json, to_json

import scalebook
from scalebook import identity, project, store, untrusted
from scalebook.facts.catalog import load as catalog
from scalebook.measure import provenance
from scalebook.measure.measured import ODD
from scalebook.measure.metrics import RunMetrics, measure

_WORTH_SECONDS = 1.0  # what takes less to measure is not kept
_KEPT = 4  # files: those of a few folders of runs
_LARGEST = 1 << 30
_NAMES = tuple(field.name for field in fields(RunMetrics))


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A row of the list: the numbers of a run, and what its record says in addition."""

    metrics: RunMetrics
    repeat_key: str | None  # of its configuration, as identity.repeat
    of_record: Mapping[str, Any]
    problems: tuple[str, ...]  # lines that could not be read, in words


def listed(runs: Path, precision: str | None) -> Iterator[ListedRun | str]:
    """Yield a row for each run under a folder, and a sentence for each that cannot be measured."""
    path = _path(runs.resolve(), precision)
    before, now = _read(path), list[bytes]()
    began, fresh = time.perf_counter(), False
    for directory in store.run_directories(runs):
        key = _files(directory)
        content = before.pop(key, None)
        row = None if content is None else _row(content)
        if row is None or content is None:
            row, fresh = _measured(directory, precision), True
            if isinstance(row, ListedRun):
                content = _line(key, row)
        if content is not None and isinstance(row, ListedRun):
            now.append(content)
        yield row
    if fresh and time.perf_counter() - began > _WORTH_SECONDS:
        with suppress(OSError):  # no folder that can be written to: measured again next time
            _write(path, now)


def _measured(directory: Path, precision: str | None) -> ListedRun | str:
    try:
        run = store.read_run(directory)
        record, metrics = run.record, measure(run, peak_precision=precision)
        told = provenance.of(record) if record.source == "measured" else ()
        key = identity.repeat(record)
    except ODD as error:
        reason = str(error) or type(error).__name__
        known = isinstance(error, store.RecordError)
        return reason if known else f"{directory} cannot be measured: {reason}"
    of_record = {
        "repeat": record.setting("repeat"),
        "cause": record.cause,
        "inferred_from": record.inferred_from,
        "differences": [one.value() for one in told],
    }
    return ListedRun(metrics, key, of_record, run.problems)


def _files(directory: Path) -> str:
    """Return a fingerprint of the files that numbers come from, without reading them."""
    found: list[tuple[object, ...]] = [(directory.name,)]
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith((".json", ".jsonl")):
                about = entry.stat(follow_symlinks=False)
                found.append((entry.name, about.st_size, about.st_mtime_ns, about.st_ctime_ns))
    return hashlib.sha256(repr(sorted(found, key=repr)).encode()).hexdigest()[:32]


def _line(key: str, row: ListedRun) -> bytes:
    values = [getattr(row.metrics, field) for field in _NAMES]
    whole = [key, values, row.repeat_key, row.of_record, row.problems]
    return to_json(whole, inf_nan_mode="null")


def _row(content: bytes) -> ListedRun | None:
    _, values, repeat_key, of_record, problems = cast("list[Any]", from_json(content))
    if len(values) != len(_NAMES):
        return None
    plain: list[Any] = [tuple(cast("list[Any]", v)) if isinstance(v, list) else v for v in values]
    return ListedRun(RunMetrics(*plain), repeat_key, of_record, tuple(problems))


def _read(path: Path) -> dict[str, bytes]:
    """Return the lines of a file by the fingerprint in each, none where it is damaged."""
    try:
        digest, _, content = untrusted.read_bytes(path, _LARGEST).partition(b"\n")
    except OSError:
        return {}
    if hashlib.sha256(content).hexdigest().encode() != digest:
        return {}
    return {line[2:34].decode(): line for line in content.splitlines()}


def _write(path: Path, lines: list[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = b"\n".join(lines)
    with untrusted.replaced(path) as stream:
        stream.write(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
    others = sorted(path.parent.glob("list-*"), key=lambda one: one.stat().st_mtime)
    for old in others[:-_KEPT]:
        old.unlink(missing_ok=True)


def _path(runs: Path, precision: str | None) -> Path:
    own = Path(scalebook.__file__).parent
    code = sorted(path for path in own.rglob("*") if path.suffix in (".py", ".toml", ".csv"))
    stats = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in code]
    parts = repr((stats, str(runs), precision, catalog.signature()))
    name = f"list-{hashlib.sha256(parts.encode()).hexdigest()[:24]}"
    root = project.root()
    if root is not None and os.access(root / "reports", os.W_OK):
        return root / "reports" / ".cache" / name
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scalebook" / name
