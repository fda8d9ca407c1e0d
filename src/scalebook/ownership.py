"""Who writes a run directory: a locked file that falls free when its process dies, however it dies.

The lock tells, also between containers of one machine; the file's text is for people, and for
file systems without locks.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from scalebook import untrusted
from scalebook.errors import LaunchError

FILE = "owner.json"
JOB_FILE = "job.json"  # a directory that waits for a cluster's job, and belongs to it
NEW_SECONDS = 60.0  # a directory this young may be about to get its owner
LOOK_SECONDS = 2.0  # whoever looks at a directory holds its lock for a moment


@contextmanager
def owned(directory: Path, *, create: bool = False) -> Generator[None]:
    """Hold a run directory, also while it is renamed; ``owner.json`` is gone afterwards.

    With ``create`` the directory is made, and waited for while another process holds it.

    Raises:
        LaunchError: another process holds it.
    """
    with _locked(directory, create=create) as stream:
        stream.truncate()
        own = {"pid": os.getpid(), "host": socket.gethostname()}
        json.dump({**own, "started": _start_time(os.getpid())}, stream)
        stream.flush()
        place = os.open(directory, os.O_RDONLY)  # leads to it also under its final name
        try:
            yield
            with suppress(FileNotFoundError):  # the directory was removed
                os.unlink(FILE, dir_fd=place)
        finally:
            os.close(place)


def _locked(directory: Path, *, create: bool) -> TextIO:
    """Return the open owner file of a directory, locked by this process until it is closed."""
    deadline = time.monotonic() + LOOK_SECONDS
    while True:
        if create:
            with suppress(FileExistsError):  # exist_ok would look at what may be gone by now
                directory.mkdir()
        try:
            stream = untrusted.updated(directory / FILE, create=True)
        except FileNotFoundError:
            if create:  # its owner published it at this moment
                continue
            raise
        # Who held it may have moved the file away meanwhile: the lock must be on the one here.
        if _free(stream, fcntl.LOCK_EX) and _is_at(stream.fileno(), directory / FILE):
            return stream
        stream.close()
        if not create and time.monotonic() > deadline:
            raise LaunchError(f"{directory} belongs to another process. Wait until it has ended.")
        time.sleep(0.05)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def is_live(directory: Path) -> bool:
    """Return whether a process still writes this run directory, or a job is to.

    True also where the directory has just got its final name: it is none that was left behind.
    """
    if (directory / JOB_FILE).exists():
        return True
    try:
        stream = untrusted.updated(directory / FILE, create=False)
    except FileNotFoundError:
        return _age_if_new(directory) is not None
    except OSError:  # another user's, or no file of ours: not ours to end
        return True
    with stream:
        return not _free(stream, fcntl.LOCK_SH)


def seconds_unowned(directory: Path) -> float | None:
    """Return the age of a directory that has no owner and is too new to have lost it; else None."""
    owned = (directory / JOB_FILE).exists() or (directory / FILE).exists()
    return None if owned else _age_if_new(directory)


def _age_if_new(directory: Path) -> float | None:
    """Return the age of a directory that may be about to get its owner; 0 where it was renamed."""
    try:
        age = abs(time.time() - directory.stat().st_mtime)  # far in the future is not new either
    except FileNotFoundError:
        return 0.0
    return age if age < NEW_SECONDS else None


def owner(directory: Path) -> dict[str, Any]:
    """Return what ``owner.json`` says (pid, host, started); empty where it says nothing."""
    try:
        return _object(untrusted.read_bytes(directory / FILE))
    except OSError:
        return {}


def _free(stream: TextIO, kind: int) -> bool:
    """Return whether the lock could be taken; it lasts until the stream is closed.

    A look takes a shared one (``LOCK_SH``), so that many may look at the same time.
    """
    try:
        fcntl.flock(stream, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks on this file system: the text has to do
        alive = _alive(_object(stream.read(untrusted.OBJECT_BYTES)))
        stream.seek(0)
        return not alive
    return True


def _object(text: bytes | str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # cut off by the death of its writer, or not ours
        return {}
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _alive(owner: dict[str, Any]) -> bool:
    """Return whether the very process runs; one of another host is taken for alive."""
    if owner.get("host") != socket.gethostname():
        return bool(owner)
    process_id, started = owner.get("pid"), owner.get("started")
    return isinstance(process_id, int) and started == _start_time(process_id)


def _start_time(process_id: int) -> str | None:
    """Return a process's start in clock ticks since boot, so that a reused id does not match."""
    try:
        text = Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()[19]
