"""Executed pages: those of the build before where nothing that they are made from has changed.

A page is a function of the files below the folder of runs (economics.toml and claims with them),
its notebook, this package with the libraries that draw, and the user's catalog. The key of the
first, third and fourth names a folder of the cache.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import scalebook
from scalebook import fingerprint, frames
from scalebook.catalog import load as catalog
from scalebook.report.execute import execute
from scalebook.report.known_runs import KnownRuns, cores, write_pickle
from scalebook.report.pages import Page

BUSY_SECONDS = 900.0  # longer than a build of the most runs takes between two files
KEPT = 3  # builds whose pages are kept: those of a few folders of runs
# From this many runs on, pages take longer than the seconds that a process takes to start.
MANY = 500
LIBRARIES = ("polars", "altair", "vl-convert-python")


def load(runs: Path, cache: Path) -> tuple[frames.ReportData, Path]:
    """Return the data of a folder of runs, and the folder of the cache that belongs to it.

    Raises:
        ReportError: the folder is missing or holds no run at all.
    """
    if not runs.is_dir():
        return frames.load(runs), cache  # which says what is wrong
    place = runs.resolve()
    # before anything is read: a file that changes while pages are made counts as changed
    code, files = _code(place), fingerprint.entries(place)
    folder = cache / "built" / f"{code}-{fingerprint.together(files)[:24]}"
    kept = folder / "data.pickle"
    if kept.is_file():
        return _unpickle(kept), folder
    known = KnownRuns(files, cache / "measured" / f"{code}.pickle")
    data = frames.read(place, known.measure)
    folder.mkdir(parents=True, exist_ok=True)
    write_pickle(kept, data)
    for newest in (folder, known.kept):
        _forget_old(newest)
    return data, folder


def make(
    pages: Sequence[Page], notebooks: Path, data: frames.ReportData, folder: Path, stage: Path
) -> None:
    """Write the executed notebook of every page to ``stage``, those in ``folder`` as they are.

    Raises:
        ReportError: a cell raised; the executed copy in ``stage`` holds the traceback.
    """
    known = {page: folder / _name(page, notebooks) for page in pages}
    missing = [page for page in pages if not known[page].is_file()]
    processes = min(cores(), len(missing))
    if data.runs.height < MANY or processes < 2:
        before = frames.HELD.set(data)
        try:
            execute(missing, notebooks, data.folder, stage)
        finally:
            frames.HELD.reset(before)
    else:
        # a fresh interpreter each: polars' threads do not survive a fork
        start = (folder / "data.pickle",)
        with ProcessPoolExecutor(processes, get_context("spawn"), _start, start) as pool:
            tasks = [pool.submit(execute, (p,), notebooks, data.folder, stage) for p in missing]
            for task in tasks:
                task.result()
    for page in missing:
        _write(known[page], (stage / f"{page.slug}.ipynb").read_bytes())
    for page in pages:
        if page not in missing:
            shutil.copyfile(known[page], stage / f"{page.slug}.ipynb")


def _start(kept: Path) -> None:
    """Prepare a process that executes pages: it has the data and reads no run."""
    frames.HELD.set(_unpickle(kept))


def _unpickle(path: Path) -> frames.ReportData:
    """Return the data that a build of this very version wrote into its own cache."""
    data: frames.ReportData = pickle.loads(path.read_bytes())
    return data


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(content)
    temporary.replace(path)


def _forget_old(newest: Path) -> None:
    """Remove what older builds have left beside the newest, but for the last few.

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
    """Return a name for what pages are made from beside the runs' files and their notebooks."""
    digest = hashlib.sha256(repr((str(runs), sys.version, catalog.signature())).encode())
    for library in LIBRARIES:
        digest.update(version(library).encode())
    own = Path(scalebook.__file__).parent
    named = sorted(path for path in own.rglob("*") if path.suffix in (".py", ".toml", ".csv"))
    for path in (*named, *catalog.user_files()):
        digest.update(f"{path}".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]
