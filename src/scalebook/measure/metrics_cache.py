"""The numbers of runs from the listing before, where no file of a run has changed since.

One file for each folder of runs, in ``reports/.cache`` of the project or in the user's cache
folder: a digest, then a line of JSON for the whole and one for each run. Nothing kept can run, and
a file that is not as it was written counts as not there. Its name stands for this package, the
catalog and the folder. Where nothing changed, no file of a run is opened, and what measuring needs
is not imported.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

import scalebook
from scalebook import project, untrusted
from scalebook.errors import ScalebookError
from scalebook.facts.catalog import load as catalog
from scalebook.measure import registered
from scalebook.measure.row import NAMES, POOLED, SPREAD_VARIABLE, RunMetrics

# Records come from anywhere; one with a value of the wrong type must not stop a page.
ODD = (ScalebookError, ArithmeticError, TypeError, ValueError, LookupError)

_WORTH_SECONDS = 1.0  # what takes less to measure is not kept
_CHUNK = 100  # runs that a process is handed at a time
_KEPT = 8  # files: those of a few folders of runs
_LARGEST = 1 << 30
_KEY = 32  # hex digits
_SEQUENCES = (NAMES.index("device_notes"), NAMES.index("spike_periods"))
_of_pooling = attrgetter(*POOLED)
_UNKNOWN: Any = None
_BLANK = replace(
    RunMetrics(*[_UNKNOWN] * len(NAMES)), device_notes=(), spike_periods=(), registered={}
)


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A row of the list: the numbers of a run and its repeats, and what its record says."""

    metrics: RunMetrics
    repeat_key: str | None  # of its configuration, as identity.repeat
    of_record: Mapping[str, Any]
    problems: tuple[str, ...]  # lines that could not be read, in words


def listed(runs: Path, precision: str | None, *, brief: bool = False) -> list[ListedRun | str]:
    """Return a row for each run under a folder, and a sentence for each that cannot be measured.

    The rows of a ``brief`` list have the fields of ``PRINTED``, and None for all others, of which
    a file for telemetry and the statistics of intervals would take three quarters of the time.
    """
    with catalog.held():
        return _listed(runs, precision, brief)


def _listed(runs: Path, precision: str | None, brief: bool) -> list[ListedRun | str]:
    registered.own()  # what is wrong with a file of the user's is said once, not for each run
    path = _path(runs.resolve(), precision, brief)
    began = time.perf_counter()
    found = list(_directories(runs, brief))
    whole, before = _read(path)
    known = [key for _, key in found if key in before]
    try:
        kept = dict(zip(known, _rows([before[key] for key in known]), strict=True))
    except (TypeError, ValueError):  # whole, but not written by this module
        whole, known, kept = None, [], {}
    fresh = _fresh(runs, [name for name, key in found if key not in kept], precision, brief)
    if whole == _digest(known) and all(isinstance(row, str) for row in fresh.values()):
        return [fresh[name] if key not in kept else kept[key][1] for name, key in found]
    alone = [fresh[name] if key not in kept else _alone(*kept[key]) for name, key in found]
    rows = alone if brief else _pooled(alone)
    if time.perf_counter() - began > _WORTH_SECONDS:
        with suppress(OSError):  # no folder that can be written to: measured again next time
            _write(path, [key for _, key in found], alone, rows)
    return rows


def _fresh(
    runs: Path, names: Sequence[str], precision: str | None, brief: bool
) -> dict[str, ListedRun | str]:
    """Return the row of each run that must be measured, by several processes where many must."""
    if not names:
        return {}
    from scalebook.host import by_processes

    each = partial(_measured, runs, precision=precision, brief=brief)
    # the first one before the forks, which then share what it imports: 10 MiB and 0.1 s each
    rows = chain(map(each, names[:1]), by_processes(each, names[1:], _CHUNK))
    return {
        name: row if isinstance(row, str) else ListedRun(_metrics(row[0]), *row[1:])
        for name, row in zip(names, rows, strict=True)
    }


def _metrics(values: dict[str, Any] | tuple[Any, ...]) -> RunMetrics:
    return RunMetrics(*values) if isinstance(values, tuple) else _BLANK.changed(values)


def _measured(runs: Path, name: str, precision: str | None, brief: bool) -> str | tuple[Any, ...]:
    """Return the row of a run in plain values: they go between processes in half of the time."""
    from scalebook import identity, store
    from scalebook.measure import provenance
    from scalebook.measure.metrics import measure, printed

    directory = runs / name
    try:
        run = store.read_run(directory, brief=brief)
        record = run.record
        if brief:
            values = printed(run, precision)
        else:
            values = measure(run, peak_precision=precision, own=registered.own()).values()
        told = provenance.of(record) if record.source == "measured" else ()
        key = None if brief else identity.repeat(record)
    except ODD as error:
        reason = str(error) or type(error).__name__
        known = isinstance(error, store.RecordError)
        return reason if known else f"{directory} cannot be measured: {reason}"
    of_record = {
        "repeat": record.setting("repeat"),
        "cause": record.cause,
        "inferred_from": record.inferred_from,
        "differences": list(map(asdict, told)),
    }
    return values, key, of_record, run.problems


def _pooled(rows: Sequence[ListedRun | str]) -> list[ListedRun | str]:
    """Return rows of single runs with the numbers of their repeats."""
    from scalebook.measure.metrics.repeats import pooled_repeats

    of_runs = [row for row in rows if isinstance(row, ListedRun)]
    pooled = iter(pooled_repeats((row.repeat_key, row.metrics) for row in of_runs))
    return [row if isinstance(row, str) else replace(row, metrics=next(pooled)) for row in rows]


def _directories(runs: Path, brief: bool) -> Iterator[tuple[str, str | None]]:
    """Yield the name of each run directory, as ``store.run_directories``, and its fingerprint."""
    files = _two_files if brief else _files
    with os.scandir(runs) as entries:
        names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    place = f"{runs}{os.sep}"
    for name in names:
        try:
            key = files(f"{place}{name}", name)
        except NotADirectoryError:
            continue
        except OSError:  # nothing is known of its files
            if untrusted.is_there(runs / name / "record.json"):
                yield name, None
            continue
        if key is not None:
            yield name, key


def _files(directory: str, name: str) -> str | None:
    """Return a fingerprint of the files that numbers come from, without reading them.

    None where no record is among them.
    """
    found: list[str] = []
    is_run = False
    with os.scandir(directory) as entries:
        for entry in entries:
            file = entry.name
            if file.endswith((".json", ".jsonl")):
                found.append(f"{file}/{_stand(entry.stat(follow_symlinks=False))}")
                is_run = is_run or file == "record.json"
    return _digest([name, *sorted(found)]) if is_run else None


def _two_files(directory: str, name: str) -> str | None:
    """Return a fingerprint of the record and the steps, of which a brief row is made."""
    try:
        record = _stand(os.lstat(f"{directory}{os.sep}record.json"))
        with suppress(FileNotFoundError):
            return _digest([name, record, _stand(os.lstat(f"{directory}{os.sep}steps.jsonl"))])
    except FileNotFoundError:
        return None
    return _digest([name, record])


def _stand(about: os.stat_result) -> str:
    return f"{about.st_size} {about.st_mtime_ns} {about.st_ctime_ns} {about.st_ino}"


def _digest(parts: Sequence[str | None]) -> str:
    text = "/".join(map(str, parts)).encode(errors="surrogateescape")
    return hashlib.sha256(text).hexdigest()[:_KEY]


def _rows(lines: Sequence[bytes]) -> Iterator[tuple[tuple[Any, ...], ListedRun]]:
    """Yield what each run's row says without its repeats, and the row."""
    for start in range(0, len(lines), 500):
        part: list[Any] = json.loads(b"[" + b",".join(lines[start : start + 500]) + b"]")
        for _, values, own, repeat_key, of_record, problems in part:  # each a list of JSON
            for at in _SEQUENCES:
                values[at] = tuple(values[at])
            yield tuple(own), ListedRun(RunMetrics(*values), repeat_key, of_record, tuple(problems))


def _alone(own: Sequence[Any], row: ListedRun) -> ListedRun:
    """Return the row of a run without its repeats."""
    return replace(row, metrics=row.metrics.changed(dict(zip(POOLED, own, strict=True))))


def _read(path: Path) -> tuple[str | None, dict[str | None, bytes]]:
    """Return what stands for all runs, and the line of each by its fingerprint.

    None and no line where the file is damaged.
    """
    try:
        digest, _, content = untrusted.read_bytes(path, _LARGEST).partition(b"\n")
    except OSError:
        return None, {}
    if hashlib.sha256(content).hexdigest().encode() != digest:
        return None, {}
    whole, *lines = content.splitlines()
    return whole.decode(), {line[2 : 2 + _KEY].decode(): line for line in lines}


def _write(
    path: Path,
    keys: Sequence[str | None],
    alone: Sequence[ListedRun | str],
    rows: Sequence[ListedRun | str],
) -> None:
    from pydantic_core import to_json

    kept: list[str] = []
    lines: list[bytes] = []
    for key, own, row in zip(keys, alone, rows, strict=True):
        if key is not None and isinstance(own, ListedRun) and isinstance(row, ListedRun):
            pooling = _of_pooling(own.metrics)
            of_run = row.repeat_key, row.of_record, row.problems
            line = [key, row.metrics.values(), pooling, *of_run]
            kept.append(key)
            lines.append(to_json(line, inf_nan_mode="null"))
    lines.insert(0, _digest(kept).encode())
    content = b"\n".join(lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    with untrusted.replaced(path) as stream:
        stream.write(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
    others = sorted(path.parent.glob("list-*"), key=lambda one: one.stat().st_mtime)
    for old in others[:-_KEPT]:
        old.unlink(missing_ok=True)


def _path(runs: Path, precision: str | None, brief: bool) -> Path:
    stats = sorted(_code(str(Path(scalebook.__file__).parent)))
    spread = os.environ.get(SPREAD_VARIABLE)
    users = catalog.signature(), registered.signature()
    parts = repr((stats, str(runs), precision, users, spread, brief))
    name = f"list-{hashlib.sha256(parts.encode(errors='surrogateescape')).hexdigest()[:24]}"
    root = project.root()
    if root is not None and os.access(root / "reports", os.W_OK):
        return root / "reports" / ".cache" / name
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scalebook" / name


def _code(folder: str) -> Iterator[tuple[str, int, int]]:
    """Yield path, size and time of change of each file of this package that numbers depend on."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.name.endswith((".py", ".toml", ".csv")):
                about = entry.stat()
                yield entry.path, about.st_size, about.st_mtime_ns
            elif entry.name != "__pycache__" and entry.is_dir():
                yield from _code(entry.path)
