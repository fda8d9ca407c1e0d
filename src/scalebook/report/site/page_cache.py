"""Executed pages: those of the build before where nothing that they are made from has changed.

A page is a function of the files below the folder of runs (economics.toml and claims with them),
its notebook, this package with the libraries that draw, and the user's catalog. The key of the
first, third and fourth names a folder of the cache.
"""

from __future__ import annotations

import hashlib
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
from scalebook.facts.catalog import load as catalog
from scalebook.report.base import fingerprint, frames
from scalebook.report.site.execute import execute
from scalebook.report.site.keeping import keep, keep_data, kept, kept_data
from scalebook.report.site.known_runs import KnownRuns, cores
from scalebook.report.site.menu import Page

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
    if (before := kept_data(folder)) is not None:
        return before, folder
    known = KnownRuns(files, cache / "measured" / f"{code}.json")
    data = frames.read(place, known.measure)
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(ValueError):  # a text that no file can hold: read again next time
        keep_data(folder, data)
    for newest in (folder, known.kept):
        if newest.exists():
            _forget_old(newest)
    return data, folder


def make(
    pages: Sequence[Page], notebooks: Path, data: frames.ReportData, folder: Path, stage: Path
) -> dict[Page, str]:
    """Write the executed notebook of every page to ``stage``, those kept in ``folder`` as they are.

    Returns what failed of each page of which a cell raised. Such a page is not kept.
    """
    known = {page: kept(folder / _name(page, notebooks)) for page in pages}
    missing = [page for page, content in known.items() if content is None]
    processes = min(cores(), len(missing))
    failed: dict[Page, str] = {}
    if data.runs.height < MANY or processes < 2:
        before = frames.HELD.set(data)
        try:
            failed = execute(missing, notebooks, data.folder, stage)
        finally:
            frames.HELD.reset(before)
    else:
        # a fresh interpreter each: polars' threads do not survive a fork
        with ProcessPoolExecutor(processes, get_context("spawn"), _start, (folder,)) as pool:
            tasks = [pool.submit(execute, (p,), notebooks, data.folder, stage) for p in missing]
            for task in tasks:
                failed |= task.result()
    for page, content in known.items():
        path = stage / f"{page.slug}.ipynb"
        if content is not None:
            path.write_bytes(content)
        elif page not in failed:
            keep(folder / _name(page, notebooks), path.read_bytes())
    return failed


def _start(folder: Path) -> None:
    """Prepare a process that executes pages: it has the data and reads no run."""
    frames.HELD.set(kept_data(folder))


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
