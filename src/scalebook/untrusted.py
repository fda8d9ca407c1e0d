"""Open and write files of a folder that others may have written to.

A run directory may come from anywhere: what has the name of a file may be a pipe that is waited for
without end, a device, a link to a file outside, or of any size. Every reader of run directories
opens files here. An error is an OSError whose ``strerror`` is the reason in words.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO, TextIO

MIB = 1 << 20
OBJECT_BYTES = 16 * MIB  # a file that holds one JSON or TOML value
RECORD_BYTES = MIB  # record.json, whose texts go into every table; those of runs have 10 KB
LINES_BYTES = 8 << 30  # one with a line per step or sample, which is never held as a whole
LONGEST_LINE = MIB  # a step of 10,000 ranks has 200 KB
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe without a writer opens at once
_TOO_LARGE = "it is larger than {:,} bytes"
# What a file system says that cannot put this kind of file on the disk at once.
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EROFS)
# Control characters but for tab and line feed, marks without width or of direction, surrogates.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def html_table(rows: Mapping[str, object]) -> str:
    """Return names and values as an HTML table for a notebook, without values that are empty."""
    import html  # a dictionary of all entities, which no command needs

    filled = {name: value for name, value in rows.items() if value not in (None, "")}
    cells = ((html.escape(name), html.escape(str(value))) for name, value in filled.items())
    return f"<table>{''.join(f'<tr><th>{a}</th><td>{b}</td></tr>' for a, b in cells)}</table>"


def opened(path: Path, most: int | None = None, *, follow: bool = False) -> BinaryIO:
    """Open a regular file of at most ``most`` bytes to read.

    ``follow`` is for a file that the user named: it may also be a link, or a pipe.

    Raises:
        OSError: it cannot be opened, is something else, or is too large.
    """
    return os.fdopen(_checked(path, _READ, most, follow=follow), "rb")


def _checked(path: Path, flags: int, most: int | None, *, follow: bool = False) -> int:
    """Return the descriptor of a regular file, opened with these flags."""
    try:
        descriptor = os.open(path, flags | (0 if follow else os.O_NOFOLLOW), 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            reason = "it is a link; replace it with the file itself"
            raise OSError(errno.ELOOP, reason, str(path)) from error
        raise
    about = os.fstat(descriptor)
    code, reason = 0, ""
    if stat.S_ISDIR(about.st_mode):
        code, reason = errno.EISDIR, "it is a directory, not a file"
    elif not stat.S_ISREG(about.st_mode) and not (follow and stat.S_ISFIFO(about.st_mode)):
        code, reason = errno.EINVAL, "it is a pipe or a device, not a file"
    elif most is not None and about.st_size > most:
        code, reason = errno.EFBIG, _TOO_LARGE.format(most)
    if code:
        os.close(descriptor)
        raise OSError(code, reason, str(path))
    if follow:  # a pipe is waited for
        os.set_blocking(descriptor, True)
    return descriptor


def read_bytes(path: Path, most: int = OBJECT_BYTES, *, follow: bool = False) -> bytes:
    """Return the content of a file, which is opened, or refused, as ``opened`` does."""
    pieces, size, descriptor = list[bytes](), 0, _checked(path, _READ, most, follow=follow)
    try:
        # Room that is not used takes time; a pipe has no size.
        each = min(MIB, (os.fstat(descriptor).st_size or MIB) + 1)
        while piece := os.read(descriptor, each):
            pieces.append(piece)
            size += len(piece)
            if size > most:  # it grows, or comes through a pipe
                raise OSError(errno.EFBIG, _TOO_LARGE.format(most), str(path))
    finally:
        os.close(descriptor)
    return b"".join(pieces)


def read_text(path: Path, most: int = OBJECT_BYTES, *, follow: bool = False) -> str:
    """Return the text of a file; bytes that are not UTF-8 become replacement characters."""
    return read_bytes(path, most, follow=follow).decode(errors="replace")


def lines(path: Path, most: int = LINES_BYTES, *, follow: bool = False) -> Iterator[bytes]:
    """Yield the lines of a file without their ends; of one that is too long, its beginning.

    Raises:
        OSError: as ``opened`` does, at the first line.
    """
    with opened(path, most, follow=follow) as stream:
        while line := stream.readline(LONGEST_LINE):
            yield line.rstrip(b"\r\n")
            while len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                line = stream.readline(LONGEST_LINE)


def blocks(
    path: Path, most: int = LINES_BYTES, *, begin: int = 0, end: int | None = None
) -> Iterator[bytes]:
    """Yield the lines of a file many at a time, without the last end of line of each block.

    Of a line that is too long its beginning counts. ``begin`` and ``end`` bound a part of the file,
    in bytes: see ``parts``.

    Raises:
        OSError: as ``opened`` does, at the first block.
    """
    rest, descriptor = b"", _checked(path, _READ, most)
    try:
        at = os.lseek(descriptor, begin, os.SEEK_SET)
        each = min(MIB >> 2, os.fstat(descriptor).st_size + 1)  # room not used takes time
        while piece := os.read(descriptor, each if end is None else min(each, end - at)):
            at += len(piece)
            whole, newline, after = piece.rpartition(b"\n")
            if newline:
                yield rest + whole
                rest = after
            else:
                rest = (rest + piece)[:LONGEST_LINE]
    finally:
        os.close(descriptor)
    if rest:
        yield rest


def parts(path: Path, size: int, most: int = LINES_BYTES) -> list[tuple[int, int | None]]:
    """Return where parts of about ``size`` bytes begin and end, each at an end of a line.

    The last one has no end, so that a file that grows is read to where it is then.

    Raises:
        OSError: as ``opened`` does.
    """
    begins = [0]
    with opened(path, most) as stream:
        for at in range(size, os.fstat(stream.fileno()).st_size, size):
            stream.seek(max(at, begins[-1]))
            if stream.readline(LONGEST_LINE).endswith(b"\n"):
                begins.append(stream.tell())
    return list(zip(begins, (*begins[1:], None), strict=True))


def remove(path: Path) -> None:
    """Remove what has this name: a file, a link but not what it leads to, or a whole directory.

    Raises:
        OSError: it cannot be removed.
    """
    try:
        path.unlink(missing_ok=True)
    except (IsADirectoryError, PermissionError):  # the latter is what other systems say
        shutil.rmtree(path)


def visible(text: str) -> str:
    """Return a text with what a terminal obeys, or does not show, written as in JSON: ``\\u001b``.

    Names and sentences of others may hold commands for a terminal, and marks that turn the
    direction of what follows.
    """
    return _UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], text)


def is_there(path: Path) -> bool:
    """Return whether anything has this name, even a link that leads nowhere."""
    return os.path.lexists(path)


def appended(path: Path) -> IO[bytes]:
    """Open a file to append to, created where there is none.

    Raises:
        OSError: it is a link, no regular file, or cannot be opened.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    return os.fdopen(_checked(path, flags, None), "ab", buffering=0)


def updated(path: Path, *, create: bool) -> TextIO:
    """Open a file to read and overwrite, never one that has a second name elsewhere.

    Raises:
        OSError: it is a link, no regular file, has another name, or cannot be opened.
    """
    flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    descriptor = _checked(path, flags, None)
    if os.fstat(descriptor).st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.EMLINK, "it is a hard link to another file", str(path))
    return os.fdopen(descriptor, "r+", encoding="utf-8")


@contextmanager
def replaced(path: Path) -> Generator[BinaryIO]:
    """Write a file that takes its name only when it is complete and on disk.

    Its temporary name is new and random: nobody can have put a link there.
    """
    temporary = path.with_name(f".{path.name[:100]}.{os.urandom(8).hex()}.tmp")
    try:
        with os.fdopen(os.open(temporary, _CREATE, 0o644), "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _sync(path.parent)


def publish(directory: Path, final: Path) -> None:
    """Rename a directory whose files are all on the disk; the new name is, too, on return.

    After a power loss there is the old name or the new one, and the new one has all its content.

    Raises:
        OSError: the disk reports an error, or the directory cannot be renamed.
    """
    for folder, _, files in os.walk(directory, topdown=False):
        for name in files:
            _sync(Path(folder, name))
        _sync(Path(folder))
    directory.rename(final)
    _sync(final.parent)


def _sync(path: Path) -> None:
    """Wait until a regular file or a directory is on the disk; anything else has nothing there."""
    try:
        descriptor = os.open(path, _READ | os.O_NOFOLLOW)
    except OSError:  # a link or a socket, or one that is not ours to read
        return
    try:
        if stat.S_IFMT(os.fstat(descriptor).st_mode) in (stat.S_IFREG, stat.S_IFDIR):
            os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)


def links_out(directory: Path) -> tuple[str, ...]:
    """Return the names of links at or below a directory that lead out of it, in order."""
    place = directory.resolve()
    found: list[str] = []
    for folder, folders, files in os.walk(directory):
        for path in (Path(folder, name) for name in (*folders, *files)):
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(place):
                found.append(str(path.relative_to(directory)))
    return tuple(sorted(found))
