"""Run tests in forks, with one change each or with none, which notes what lines each test runs."""

from __future__ import annotations

import functools
import gc
import os
import pickle
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import redirect_stdout, suppress
from importlib.machinery import SourceFileLoader
from multiprocessing import connection, get_context
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import hypothesis.configuration
import pytest

ROOT = Path(__file__).resolve().parents[2]
OWN = (f"{ROOT}/src/", f"{ROOT}/tests/")  # an environment may be in the checkout
OFTEN, LONG = 20, {"": 300.0}  # calls that count for all lines of a function; seconds of a part
OPTIONS = ["-qs", "-pno:cacheprovider", "-mnot slow and not facts"]


class Work(NamedTuple):
    """Files of tests; sources: the one to change, or those of which to note what each test runs."""

    part: str
    tests: list[str]
    sources: list[str]
    words: str = ""
    compiled: Callable[[], CodeType] | None = None
    chosen: dict[str, float] | None = None
    known: Collection[str] = ()


class Plugin:
    """Run the chosen tests, the fastest first, or all tests and note their lines."""

    def __init__(self, work: Work) -> None:
        self.work, self.spent, self.met = work, {}, defaultdict(set)
        self.lines, self.calls, self.sources = self.met[""], Counter(), {*work.sources}
        self.ours, self.known = {*work.sources, *work.tests}, set()

    def trace(self, frame: FrameType, *_: object) -> object:
        code = frame.f_code
        if code.co_filename not in self.sources:
            return None
        self.calls[code] += 1
        if self.calls[code] <= OFTEN:
            return self.trace_line
        if self.calls[code] == OFTEN + 1:
            lines = range(frame.f_lineno, max(line or 0 for *_, line in code.co_lines()) + 1)
            self.lines.update((code.co_filename, line) for line in lines)
        return None

    def trace_line(self, frame: FrameType, *_: object) -> object:
        self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self.trace_line

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen, whole = self.work.chosen, Counter[Path]()  # a fixture serves all tests of a file
        if chosen is not None:  # a change may give a test other parameters, and so another name
            items[:] = [i for i in items if i.nodeid in chosen or i.nodeid not in self.work.known]
            for one in items:
                whole[one.path] += chosen.get(one.nodeid, 0)
            items.sort(key=lambda i: (whole[i.path], str(i.path), chosen.get(i.nodeid, 0)))
        kept = [one for one in gc.get_objects() if isinstance(one, functools._lru_cache_wrapper)]
        file = {one: getattr(sys.modules.get(one.__module__), "__file__", None) for one in kept}
        self.kept = [one for one in kept if file[one] in self.ours]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        for one in self.kept if self.work.chosen is None else ():  # what another test would leave
            one.cache_clear()
        if not self.work.compiled:
            sys.settrace(self.trace)  # a test that ends in an error inside it has ended it
        # a fixture may serve all tests of its file
        self.lines, self.calls = self.met[str(item.path)], Counter()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        begun, self.lines, self.calls = time.monotonic(), self.met[item.nodeid], Counter()
        self.known.add(item.nodeid)
        yield
        self.spent[item.nodeid] = time.monotonic() - begun


def attempt(work: Work, home: str) -> None:
    os.setsid()
    plain, plugin = SourceFileLoader.get_code, Plugin(work)
    if work.compiled:
        SourceFileLoader.get_code = lambda loader, name: (
            work.compiled() if loader.path in work.sources else plain(loader, name)
        )
    else:
        sys.settrace(plugin.trace)
    hypothesis.configuration.set_hypothesis_home_dir(home)
    for number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    options = [*OPTIONS, f"--basetemp={home}/{os.getpid()}", *["-x"][: bool(work.compiled)]]
    code = int(pytest.main([*options, *work.tests], plugins=[plugin]))
    if not work.compiled:
        noted = plugin.met, plugin.spent, plugin.known
        Path(home, f"{os.getpid()}.notes").write_bytes(pickle.dumps(noted))
    os._exit(code if work.compiled or code > 1 else 0)


def meeting(notes: tuple[dict, dict, set], lines: set[tuple[str, int]]) -> dict[str, float]:
    """Return the tests that run any of these lines; all if lines ran before them, or in none."""
    (met, spent, _), every = notes, not lines or lines & notes[0][""]
    of_files = {one: met[one] | met[str(ROOT / one.split("::")[0])] for one in spent}
    return {one: spent[one] for one, ran in of_files.items() if every or lines & ran} or spent


def import_others(tests: list[str]) -> None:
    """Import the packages of others that tests use, once for all forks, but nothing of our own."""
    with Path(os.devnull).open("w") as nothing, redirect_stdout(nothing):
        pytest.main([*OPTIONS, "--collect-only", *tests])
    for name, one in list(sys.modules.items()):
        if name != "__main__" and (getattr(one, "__file__", None) or "").startswith(OWN):
            del sys.modules[name]


def outcomes(work: list[Work], jobs: int) -> Iterator[tuple[Work, bool, tuple | None]]:
    running, left = {}, list(work)
    with tempfile.TemporaryDirectory(prefix="mutate-") as home:
        while running or left:
            while left and len(running) < jobs:
                one = left.pop(0)
                process = get_context("fork").Process(target=attempt, args=(one, home))
                process.start()
                end = time.monotonic() + 20 + 5 * sum((one.chosen or LONG).values())
                running[process] = (one, end)
            connection.wait([process.sentinel for process in running], timeout=1)
            for process, (one, end) in list(running.items()):
                if not process.is_alive() or time.monotonic() > end:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.join()
                    del running[process]
                    notes = Path(home, f"{process.pid}.notes")
                    kept = pickle.loads(notes.read_bytes()) if notes.exists() else None
                    yield one, process.exitcode == 0, kept
