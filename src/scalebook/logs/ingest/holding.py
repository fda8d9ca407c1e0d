"""Who writes an ingested run: a locked file, as ``scalebook.running.ownership`` has it above."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

OWNER_FILE = "owner.json"


@contextmanager
def held(partial: Path) -> Generator[None]:
    """Create a directory and hold it: another ingest waits, and ``recover`` leaves it alone."""
    file = partial / OWNER_FILE
    while True:
        partial.mkdir(exist_ok=True)
        try:
            stream = file.open("a")
        except FileNotFoundError:  # published at this moment
            continue
        with stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX)
                own = _is_at(stream.fileno(), file)
            except OSError:  # no locks on this file system: that the directory is new has to do
                file.unlink(missing_ok=True)
                own = True
            if own:
                yield
                return


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file still has this path: whoever held it may have moved it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def clear(partial: Path) -> None:
    """Remove what an ingest that was killed left behind in a directory that is held."""
    for path in partial.iterdir():
        if path.name != OWNER_FILE:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
