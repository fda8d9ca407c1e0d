"""Progress for people: one live line on a terminal, plain lines now and then in a file.

What cannot be written (the reader went away, the disk is full) is dropped: training goes on.
"""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TextIO

PLAIN_SECONDS = 15.0  # between two plain lines about the same run


@dataclass(slots=True)
class Console:
    """Where a sweep says how it gets on."""

    stream: TextIO = field(default_factory=lambda: sys.stdout)
    _live: bool = False
    _shown: str = ""
    _next_plain: float = 0.0

    def say(self, text: str) -> None:
        """Print a line that stays."""
        with suppress(OSError):
            self._clear()
            print(text, file=self.stream, flush=True)
        self._next_plain = time.monotonic() + PLAIN_SECONDS

    def live(self, text: str) -> None:
        """Show a line that the next one replaces; in a file, print it if the last is old."""
        if self.stream.isatty():
            if text == self._shown:
                return
            self._shown = text
            width = shutil.get_terminal_size().columns - 1
            with suppress(OSError):
                self.stream.write(f"\r\x1b[K{text[:width]}")
                self.stream.flush()
            self._live = True
        elif time.monotonic() >= self._next_plain:
            self.say(text)

    def _clear(self) -> None:
        if self._live:
            self._live, self._shown = False, ""
            self.stream.write("\r\x1b[K")
