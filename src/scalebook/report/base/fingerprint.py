"""Whether files below a folder are the very ones of before, told without reading them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path


def entries(folder: Path) -> dict[str, str]:
    """Return a fingerprint of each file and directory in a folder, by its name.

    That of a directory covers every file below it. Names that begin with a dot are left out: runs
    that are being written, and what editors and file systems leave.
    """
    with os.scandir(folder) as found:
        shown = [entry for entry in found if not entry.name.startswith(".")]
    return {entry.name: _digest(entry) for entry in sorted(shown, key=lambda one: one.name)}


def together(parts: dict[str, str]) -> str:
    """Return one fingerprint of all that ``entries`` found."""
    return hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()


def _digest(entry: os.DirEntry[str]) -> str:
    found = sorted(_files(entry, "", frozenset()), key=repr)
    return hashlib.sha256(repr(found).encode()).hexdigest()


def _files(
    entry: os.DirEntry[str], name: str, above: frozenset[tuple[int, int]]
) -> Iterator[tuple[object, ...]]:
    """Yield name, size, times of change and number of each file at or below an entry.

    Links are followed, but not back to a folder above. The time of the last change of status is
    set by the system alone: a file that was replaced by one of the same size and date shows there.
    """
    try:
        about = entry.stat()
        if not entry.is_dir():
            yield name, about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino
            return
        with os.scandir(entry.path) as found:
            inside = list(found)
    except OSError:
        yield name, "cannot be read"
        return
    yield name, "folder"
    here = (about.st_dev, about.st_ino)
    if here not in above:
        for one in inside:
            yield from _files(one, f"{name}/{one.name}", above | {here})
