"""Executed pages: those of the build before where nothing that they are made from has changed.

A page is a function of the files of the runs, its notebook, this package with the libraries that
draw, and the user's catalog. The key of the first, third and fourth names a folder of the cache.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import scalebook
from scalebook import frames
from scalebook.catalog import load as catalog
from scalebook.report.execute import execute
from scalebook.report.pages import Page

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
    folder = cache / "built" / _key(runs.resolve())
    kept = folder / "data.pickle"
    if kept.is_file():
        return _unpickle(kept), folder
    data = frames.load(runs)
    folder.mkdir(parents=True, exist_ok=True)
    _write(kept, pickle.dumps(data, pickle.HIGHEST_PROTOCOL))
    _forget_old(folder)
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
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    processes = min(cores or 1, len(missing))
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
    """Remove the folders of older builds but for the last few."""
    others = sorted(newest.parent.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    for path in others[:-KEPT]:
        shutil.rmtree(path, ignore_errors=True)


def _name(page: Page, notebooks: Path) -> str:
    digest = hashlib.sha256((notebooks / page.notebook).read_bytes()).hexdigest()
    return f"{page.slug}-{digest[:16]}.ipynb"


def _key(runs: Path) -> str:
    """Return a name for what every page is made from beside its notebook."""
    digest = hashlib.sha256(repr((str(runs), catalog.signature())).encode())
    for library in LIBRARIES:
        digest.update(version(library).encode())
    for path in sorted(Path(scalebook.__file__).parent.rglob("*")):
        if path.suffix in (".py", ".toml"):
            digest.update(path.read_bytes())
    for entry in sorted(_files(runs)):
        digest.update(repr(entry).encode())
    return digest.hexdigest()[:24]


def _files(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Yield path, size and time of change of every file below a folder."""
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _files(Path(entry.path))
        elif entry.is_file():
            about = entry.stat()
            yield entry.path, about.st_size, about.st_mtime_ns
