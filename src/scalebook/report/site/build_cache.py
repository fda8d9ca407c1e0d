"""What outlives a build: the data of a report, the numbers of its runs, and executed pages.

A page is a function of the files below the folder of runs (economics.toml and claims with them) and
of the runs that teach predictions, its notebook, this package with the libraries that draw, and the
user's catalog. The key of all but the notebook names a folder of the cache.

A file begins with the digest of the rest. One that was cut off, changed or is missing counts as
not there, so that damage costs the time to make it again and nothing else. Nothing kept can run.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, get_type_hints

import polars as pl
from pydantic import TypeAdapter, ValidationError

import scalebook
from scalebook import predict
from scalebook.errors import RecordError, ScalebookError
from scalebook.facts.catalog import load as catalog
from scalebook.host import at_once
from scalebook.measure import registered
from scalebook.measure.diagnosis import Measured, measured
from scalebook.report.base import frames
from scalebook.report.base.against import read_against
from scalebook.report.base.frames import ReportData
from scalebook.report.site.menu import Page
from scalebook.store import Run, entries, read_run, together

DIGEST_BYTES = 32


def keep(path: Path, content: bytes | memoryview) -> None:
    """Write a file so that a reader sees either the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as stream:
        stream.writelines((hashlib.sha256(content).digest(), content))
    temporary.replace(path)


def kept(path: Path) -> bytes | None:
    """Return what was kept in a file; None where it is not there as it was written."""
    try:
        with path.open("rb") as stream:
            digest, content = stream.read(DIGEST_BYTES), stream.read()
    except OSError:
        return None
    return content if hashlib.sha256(content).digest() == digest else None


def keep_data(folder: Path, data: ReportData) -> None:
    """Write the data of a report, a file for each of its parts."""
    for name, kind in _parts():
        value = getattr(data, name)
        if kind is pl.DataFrame:
            buffer = io.BytesIO()
            value.write_ipc(buffer)
            keep(folder / f"{name}.arrow", buffer.getbuffer())
        else:
            keep(folder / f"{name}.json", TypeAdapter(kind).dump_json(value))


def kept_data(folder: Path) -> ReportData | None:
    """Return the data of a report that a build kept; None where a part of it is not whole."""
    found: dict[str, Any] = {}
    for name, kind in _parts():
        is_frame = kind is pl.DataFrame
        content = kept(folder / f"{name}.{'arrow' if is_frame else 'json'}")
        if content is None:
            return None
        read = pl.read_ipc if is_frame else TypeAdapter(kind).validate_json
        try:
            found[name] = read(content)
        except (ValidationError, ScalebookError, pl.exceptions.PolarsError):
            return None
    return ReportData(**found)


def _parts() -> list[tuple[str, Any]]:
    hints = get_type_hints(ReportData)
    return [(one.name, hints[one.name]) for one in fields(ReportData) if one.init]


# From this many runs on, measuring takes longer than the seconds that a process takes to start.
PARALLEL_RUNS = 200
CHUNK = 25  # runs that a process is handed at a time
Result = Measured | str  # a text says why a run cannot be measured
Results = dict[str, tuple[str | None, Result]]  # by directory, with its fingerprint


def measure(files: Mapping[str, str], path: Path, runs: Sequence[Run]) -> list[Result]:
    """Return the result of each run, measured anew only where its files have changed.

    ``files`` has the fingerprint of each directory of the folder of runs; ``path`` is the file of
    results, whose name must stand for the code and the catalog that they come from.
    """
    try:
        before = TypeAdapter(Results).validate_json(kept(path) or b"{}")
    except ValidationError:
        before = Results()
    marks = {run.path: files.get(run.path.name) for run in runs}
    results = {
        place: before[place.name][1]
        for place, mark in marks.items()
        if place.name in before and before[place.name][0] == mark
    }
    missing = [run for run in runs if run.path not in results]
    results |= dict(zip((run.path for run in missing), _each(missing), strict=True))
    now = {place.name: (mark, results[place]) for place, mark in marks.items()}
    if missing or before.keys() != now.keys():
        with suppress(ValueError):  # a text that no file can hold: measured again next time
            keep(path, TypeAdapter(Results).dump_json(now))
    return [results[run.path] for run in runs]


def _each(runs: Sequence[Run]) -> list[Result]:
    """Return the result of each run, by several processes where there are many."""
    processes = at_once(len(runs) // CHUNK)
    if len(runs) < PARALLEL_RUNS or processes < 2:
        with catalog.held():
            return [measured(run) for run in runs]
    # a fresh interpreter each: polars' threads do not survive a fork
    parts = [[run.path for run in runs[at : at + CHUNK]] for at in range(0, len(runs), CHUNK)]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        return [one for part in pool.map(_of_directories, parts) for one in part]


def _of_directories(directories: Sequence[Path]) -> list[Result]:
    results: list[Result] = []
    with catalog.held():  # for a whole part: to look for the user's files takes as long as a rule
        for directory in directories:
            # reading again takes a tenth of the time that handing over the steps would
            try:
                results.append(measured(read_run(directory)))
            except RecordError as error:
                results.append(str(error))
    return results


BUSY_SECONDS = 900.0  # longer than a build of the most runs takes between two files
KEPT = 3  # builds whose pages are kept: those of a few folders of runs
# From this many runs on, pages take longer than the seconds that a process takes to start.
PARALLEL_PAGES = 500
LIBRARIES = ("polars", "altair", "vl-convert-python")


def load(runs: Path, cache: Path, against: Path | None = None) -> tuple[frames.ReportData, Path]:
    """Return the data of a folder of runs, and the folder of the cache that belongs to it.

    Raises:
        ReportError: the folder, or that of the older runs, is missing or holds no run at all.
    """
    if not runs.is_dir():
        return frames.load(runs), cache  # which says what is wrong
    place = runs.resolve()
    # before anything is read: a file that changes while pages are made counts as changed
    code, files = _code(place), entries(place)
    older = _beside("against", against)
    for folder in predict.folders(place):  # the committed examples teach predictions too
        older |= _beside("learned", folder) if folder.resolve() != place else {}
    folder = cache / "built" / f"{code}-{together(files | older)[:24]}"
    if (before := kept_data(folder)) is not None:
        return before, folder
    known = cache / "measured" / f"{code}.json"
    data = frames.read(place, partial(measure, files, known))
    if against is not None:
        data = replace(data, against=read_against(against, place))
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(ValueError):  # a text that no file can hold: read again next time
        keep_data(folder, data)
    for newest in (folder, known):
        if newest.exists():
            forget_old(newest)
    return data, folder


def _beside(use: str, folder: Path | None) -> dict[str, str]:
    """Return a fingerprint of another folder of runs and of its place; nothing without one."""
    if folder is None:
        return {}
    inside = together(entries(folder)) if folder.is_dir() else "missing"
    return {f"/{use}/{folder.resolve()}": inside}


def make(
    pages: Sequence[Page], notebooks: Path, data: frames.ReportData, folder: Path, stage: Path
) -> dict[Page, str]:
    """Write the executed notebook of every page to ``stage``, those kept in ``folder`` as they are.

    Returns what failed of each page of which a cell raised. Such a page is not kept.
    """
    known = {page: kept(folder / _name(page, notebooks)) for page in pages}
    missing = [page for page, content in known.items() if content is None]
    failed = _execute(missing, notebooks, data, folder, stage) if missing else {}
    for page, content in known.items():
        path = stage / f"{page.slug}.ipynb"
        if content is not None:
            path.write_bytes(content)
        elif page not in failed:
            keep(folder / _name(page, notebooks), path.read_bytes())
    return failed


def _execute(
    pages: Sequence[Page], notebooks: Path, data: frames.ReportData, folder: Path, stage: Path
) -> dict[Page, str]:
    """Execute pages, by several processes where there are many runs; return what failed."""
    # half a second to import, which a build that has all pages does not need
    from scalebook.report.site.execute import execute

    processes = at_once(len(pages))
    if data.runs.height < PARALLEL_PAGES or processes < 2:
        before = frames.HELD.set(data)
        try:
            return execute(pages, notebooks, data.folder, stage)
        finally:
            frames.HELD.reset(before)
    failed: dict[Page, str] = {}
    # a fresh interpreter each: polars' threads do not survive a fork
    with ProcessPoolExecutor(processes, get_context("spawn"), _start, (folder,)) as pool:
        ahead = pool.submit(_read_ahead, folder)
        for task in [pool.submit(execute, (p,), notebooks, data.folder, stage) for p in pages]:
            failed |= task.result()
        ahead.result()
    return failed


def _start(folder: Path) -> None:
    """Prepare a process that executes pages: it has the data and reads no run."""
    frames.HELD.set(kept_data(folder))


def _read_ahead(folder: Path) -> None:
    """Keep the telemetry, which is asked for when all pages are there."""
    if (data := frames.HELD.get()) is not None:
        telemetry(data, folder)


def telemetry(data: ReportData, folder: Path) -> bytes:
    """Return the telemetry of all runs as Parquet, kept in ``folder``: reading it takes seconds."""
    path = folder / "telemetry.parquet"
    if (content := kept(path)) is None:
        buffer = io.BytesIO()
        frames.telemetry_frame(data.directories).write_parquet(buffer)
        content = buffer.getvalue()
        keep(path, content)
    return content


def forget_old(newest: Path) -> None:
    """Remove what older builds have left next to the newest, except the last few.

    What was written a short while ago may belong to a build that is going on.
    """
    written: dict[Path, float] = {}
    for path in newest.parent.iterdir():
        with suppress(FileNotFoundError):  # another build forgets at the same time
            written[path] = path.stat().st_mtime
    for path in sorted(written, key=lambda path: written[path])[:-KEPT]:
        if time.time() - written[path] < BUSY_SECONDS:
            continue
        path.unlink(missing_ok=True) if path.is_file() else shutil.rmtree(path, ignore_errors=True)


def _name(page: Page, notebooks: Path) -> str:
    digest = hashlib.sha256((notebooks / page.notebook).read_bytes()).hexdigest()
    return f"{page.slug}-{digest[:16]}.ipynb"


def _code(runs: Path) -> str:
    """Return a name for what pages are made from besides the runs' files and their notebooks."""
    digest = hashlib.sha256(repr((str(runs), sys.version, catalog.signature())).encode())
    for library in LIBRARIES:
        digest.update(version(library).encode())
    own = Path(scalebook.__file__).parent
    kinds = (".py", ".toml", ".csv", ".html")
    named = sorted(path for path in own.rglob("*") if path.suffix in kinds)
    for path in (*named, *catalog.user_files(), *registered.own_files()):
        digest.update(f"{path}".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]
