"""Events of a Chrome trace (JSON, plain or gzip), one at a time, in bounded memory.

A trace is untrusted input of any size: it is read in pieces, an event that is no JSON is left out
and counted, and a file that unpacks to far more than it is, or never ends an event, is refused or
skipped. No code is made from it.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from scalebook.errors import TraceError
from scalebook.untrusted import opened

PIECE_BYTES = 1 << 20
MOST_BYTES = 8 << 30  # unpacked: more is no trace of a few steps
LONGEST_EVENT = 1 << 20
LONGEST_HEAD = 1 << 16
_BLANKS = re.compile(r"[\s,]*")
_NEXT_EVENT = re.compile(r"\}\s*,\s*(?=\{)")
_DISTRIBUTED = re.compile(r'"distributedInfo"\s*:\s*(\{)')
_START = re.compile(r'"traceEvents"\s*:\s*\[')

Event = dict[str, Any]


def pieces(path: Path) -> Iterator[str]:
    """Yield the text of a trace file in pieces of about a MiB, unpacked where it is gzip.

    A damaged end is an end: the reader finds out that the list of events was not closed.

    Raises:
        TraceError: the file cannot be opened, or unpacks to more than 8 GiB.
    """
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    total = 0
    try:
        for piece in _bytes(path):
            total += len(piece)
            if total > MOST_BYTES:
                size = f"{MOST_BYTES >> 30} GiB"
                raise TraceError(f"{path} unpacks to more than {size}. Profile fewer steps.")
            yield decode(piece)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}.") from error


def _bytes(path: Path) -> Iterator[bytes]:
    with opened(path, follow=True) as stream:
        packed = stream.read(2) == b"\x1f\x8b"
        stream.seek(0)
        read = gzip.GzipFile(fileobj=stream).read1 if packed else stream.read
        with suppress(EOFError, zlib.error, gzip.BadGzipFile):
            while piece := read(PIECE_BYTES):
                yield piece


@dataclass(slots=True)
class EventReader:
    """The events of a text that comes in pieces. Mutable: reading fills in what it learns."""

    source: Iterator[str]
    distributed: dict[str, Any] = field(default_factory=dict[str, Any])  # rank, world size, ...
    broken_lines: list[int] = field(default_factory=list[int])  # the first of those left out
    broken: int = 0  # events left out because they were no JSON
    complete: bool = False  # whether the list of events was closed
    _buffer: str = ""
    _at: int = 0
    _lines: int = 0  # in what was dropped so far

    def events(self) -> Iterator[Event]:
        """Yield every event that is a JSON object."""
        decoder = json.JSONDecoder()
        if not self._seek():
            return
        while self._next_object():
            event = self._event(decoder)
            if event is not None:
                yield event

    def _more(self) -> bool:
        """Read on and drop what was read before; False at the end of the file."""
        piece = next(self.source, None)
        if self._at:
            self._lines += self._buffer.count("\n", 0, self._at)
        self._buffer = self._buffer[self._at :] + (piece or "")
        self._at = 0
        return piece is not None

    def _sign(self) -> str:
        """Move past blanks and return the character there, empty at the end of the buffer."""
        found = _BLANKS.match(self._buffer, self._at)
        self._at = found.end() if found else self._at
        return self._buffer[self._at : self._at + 1]

    def _seek(self) -> bool:
        """Move behind the bracket before the first event; False where there is none."""
        self._more()
        if self._sign() == "[":
            self._at += 1
            return True
        while True:
            start = _START.search(self._buffer, self._at)
            self._note_distributed(start.start() if start else len(self._buffer))
            if start:
                self._at = start.end()
                return True
            self._at = max(len(self._buffer) - LONGEST_HEAD, 0)
            if not self._more():
                return False

    def _note_distributed(self, end: int) -> None:
        found = _DISTRIBUTED.search(self._buffer, self._at, end)
        if found is None:
            return
        try:
            value, _ = json.JSONDecoder().raw_decode(self._buffer, found.start(1))
        except (ValueError, RecursionError):
            return
        self.distributed = cast("dict[str, Any]", value)

    def _next_object(self) -> bool:
        """Move to the next event; False at the end of the list or of the file."""
        while (sign := self._sign()) != "{":
            if sign:
                self.complete = sign == "]"
                return False
            if not self._more():
                return False
        return True

    def _event(self, decoder: json.JSONDecoder) -> Event | None:
        """Return the event here, None where it is not JSON; move behind it."""
        while True:
            try:
                event, self._at = decoder.raw_decode(self._buffer, self._at)
            except (ValueError, RecursionError) as error:
                after = _NEXT_EVENT.search(self._buffer, self._at)
                whole = after is not None or len(self._buffer) - self._at > LONGEST_EVENT
                if not whole and self._more():
                    continue
                where = error.pos if isinstance(error, json.JSONDecodeError) else self._at
                self.broken += 1
                if len(self.broken_lines) < 100:
                    line = self._lines + self._buffer.count("\n", 0, where) + 1
                    self.broken_lines.append(line)
                self._at = after.end() if after else len(self._buffer)
                return None
            return cast(Event, event)
