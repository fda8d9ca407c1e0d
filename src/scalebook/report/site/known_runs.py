"""The numbers of runs from the build before, and those of the others by all cores."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from scalebook.errors import RecordError
from scalebook.measure.measured import Measured, measured
from scalebook.report.site.keeping import keep, kept
from scalebook.store import Run, read_run

# From this many runs on, measuring takes longer than the seconds that a process takes to start.
MANY = 200
CHUNK = 25  # runs that a process is handed at a time
Result = Measured | str  # a text says why a run cannot be measured
Results = dict[str, tuple[str | None, Result]]  # by directory, with its fingerprint


@dataclass(frozen=True, slots=True)
class KnownRuns:
    """A store of results by run directory, each good while the directory's files are the same.

    ``files`` has the fingerprint of each directory of the folder of runs; ``kept`` is the file of
    results, whose name must stand for the code and the catalog that they come from.
    """

    files: Mapping[str, str]
    kept: Path

    def measure(self, runs: Sequence[Run]) -> list[Result]:
        """Return the result of each run, measured anew only where its files have changed."""
        before = self._before()
        results = {
            run.path: before[run.path.name][1]
            for run in runs
            if run.path.name in before and before[run.path.name][0] == self.files.get(run.path.name)
        }
        missing = [run for run in runs if run.path not in results]
        results |= dict(zip((run.path for run in missing), _each(missing), strict=True))
        marked = {run.path.name: self.files.get(run.path.name) for run in runs}
        now = {run.path.name: (marked[run.path.name], results[run.path]) for run in runs}
        if missing or before.keys() != now.keys():
            with suppress(ValueError):  # a text that no file can hold: measured again next time
                keep(self.kept, TypeAdapter(Results).dump_json(now))
        return [results[run.path] for run in runs]

    def _before(self) -> Results:
        try:
            return TypeAdapter(Results).validate_json(kept(self.kept) or b"{}")
        except ValidationError:
            return {}


def _each(runs: Sequence[Run]) -> list[Result]:
    """Return the result of each run, by several processes where there are many."""
    processes = cores()
    if len(runs) < MANY or processes < 2:
        return [measured(run) for run in runs]
    # a fresh interpreter each: polars' threads do not survive a fork
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        return list(pool.map(_of_directory, (run.path for run in runs), chunksize=CHUNK))


def _of_directory(directory: Path) -> Result:
    # reading again takes a tenth of the time that handing over the steps would
    try:
        return measured(read_run(directory))
    except RecordError as error:
        return str(error)


def cores() -> int:
    """Return how many processes can run at once."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
