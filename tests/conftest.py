"""Fixtures that every test may use."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Deadlines of single examples would make a busy machine fail tests.
settings.register_profile("scalebook", deadline=None)
settings.load_profile("scalebook")

# A shell starts what it puts in the background with SIGINT ignored, and every process that a test
# starts would inherit that: its interrupts would do nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# An image may ask Python to keep no compiled code: every process that runs files of tests would
# rewrite all their assertions, and every process that a test starts compile the package.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What is imported and collected lives to the end: passes over it would find nothing, at a third of
# the time of a collection. Tests make little garbage next to what they hold.
gc.disable()
YOUNG_OBJECTS = 20_000  # before a pass over them, in place of 700

# Tests write many small files that are soon gone: in memory that takes a tenth of a disk's time.
# What a run of all of them leaves there until its end is less than 1 GB. What real containers and
# jobs are given lies on a disk: their /dev is another.
MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 << 30
REAL = {"SCALEBOOK_TEST_CONTAINERS", "SCALEBOOK_TEST_SLURM"} & os.environ.keys()
if not REAL and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

ROOT = Path(__file__).resolve().parents[1]
FACTS = ROOT.parent / "shared" / "facts"
# Folders of tests that train, start processes, fit rates or damage every file of a run.
LONG = ("train", "running", "probe", "predict", "tests")


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of tables of facts that stands next to a developer's checkout."""
    return FACTS.parent


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A folder that a container may be given, which none below /dev is."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def pytest_collection_finish() -> None:
    """Look for garbage again, only among what tests make."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what compares with that folder, and leave it out where the folder is absent.

    Their figures are in tests/golden; .github/CONTRIBUTING.md says what else they compare.
    Files with slow tests come first, and folders with short ones last, so that no process waits
    for a file that another began last.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, item.path.parent.name not in LONG))
    compared = [item for item in items if "shared" in getattr(item, "fixturenames", ())]
    for item in compared:
        item.add_marker("facts")
    if compared and not FACTS.is_dir():
        config.hook.pytest_deselected(items=compared)
        items[:] = [item for item in items if item not in compared]
