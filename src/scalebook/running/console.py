"""Progress for people: a live line or table on a terminal, plain lines now and then in a file.

What cannot be written (the reader went away, the disk is full) is dropped: training goes on.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TextIO

from scalebook import untrusted

PLAIN_SECONDS = 15.0  # between two plain lines about the same run
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"  # the cursor: hidden only while a frame is written

Lines = Callable[[], Sequence[str]]


@dataclass(slots=True)
class Console:
    """Where a sweep says how it gets on."""

    stream: TextIO = field(default_factory=lambda: sys.stdout)
    _drawn: tuple[str, ...] = ()  # the lines on the screen that the next ones replace
    _next_plain: float = 0.0
    _terminal: TextIO = field(init=False)  # what moves the cursor goes there, past the command line

    def __post_init__(self) -> None:
        """Find the terminal behind a stream that shows escapes instead of passing them on."""
        self._terminal = getattr(self.stream, "terminal", self.stream)

    @property
    def draws(self) -> bool:
        """Whether lines can be replaced: on a terminal that moves its cursor."""
        return self.stream.isatty() and os.environ.get("TERM") != "dumb"

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        with suppress(OSError):
            print(untrusted.visible(text), file=self.stream, flush=True)
        self._next_plain = time.monotonic() + PLAIN_SECONDS

    def clear(self) -> None:
        """Remove the lines that the next ones would replace."""
        if self._drawn:
            with suppress(OSError):
                self._terminal.write(self._erase())
                self._terminal.flush()
            self._drawn = ()

    def live(self, text: str, table: Lines | None = None) -> None:
        """Show a line that the next one replaces; in a file, print it if the last is old.

        On a terminal ``table`` is shown instead, where it has lines; it is called only there.
        """
        if self.draws:
            self._draw((table() if table else ()) or (text,))
        elif time.monotonic() >= self._next_plain:
            self.say(text)

    def _draw(self, lines: Sequence[str]) -> None:
        """Replace the lines on the screen, in one write, so that nothing flickers."""
        size = self._size()
        shown = tuple(cut(line, size.columns - 1) for line in lines[: max(size.lines - 1, 1)])
        if shown == self._drawn:
            return
        same = len(shown) == len(self._drawn) and self._rows() == len(shown)
        start = f"\r{_up(len(shown) - 1)}" if same else self._erase()
        first = "" if os.environ.get("NO_COLOR") or len(shown) == 1 else "\x1b[1m"
        body = [f"{first}{shown[0]}{first and chr(27) + '[0m'}\x1b[K"]
        body += [f"{line}\x1b[K" for line in shown[1:]]
        with suppress(OSError):
            self._terminal.write(f"{_HIDE}{start}{chr(10).join(body)}{_SHOW}")
            self._terminal.flush()
        self._drawn = shown

    def _erase(self) -> str:
        """Return what removes the lines on the screen and leads to where they began."""
        return f"\r{_up(self._rows() - 1)}\x1b[J" if self._drawn else "\r\x1b[K"

    def _rows(self) -> int:
        """Return the rows that the lines take now: a terminal made narrower has wrapped them."""
        columns = self._size().columns
        return sum(max(1, -(-width(line) // columns)) for line in self._drawn)

    def _size(self) -> os.terminal_size:
        """Return the terminal's size as it is now; 80 columns where it does not say."""
        try:
            size = os.get_terminal_size(self.stream.fileno())
        except (OSError, ValueError):
            return shutil.get_terminal_size()
        return size if size.columns > 0 and size.lines > 0 else shutil.get_terminal_size()


def _up(rows: int) -> str:
    return f"\x1b[{rows}A" if rows > 0 else ""


def width(text: str) -> int:
    """Return the columns that a text takes on a terminal."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def cut(text: str, columns: int) -> str:
    """Return a text of at most ``columns`` columns, without characters that move the cursor."""
    kept: list[str] = []
    for character in text:
        columns -= _columns(character)
        if columns < 0:
            break
        kept.append(character if character.isprintable() else "\ufffd")
    return "".join(kept)


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
