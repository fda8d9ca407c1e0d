"""Where in a claims file an error is: the file, and the line as well as it can be told."""

from __future__ import annotations

import re
from dataclasses import dataclass

from scalebook.errors import ClaimError


@dataclass(frozen=True, slots=True)
class Place:
    """A part of a TOML text that starts at line ``start`` (counted from 1)."""

    file: str
    text: str
    start: int = 1

    def headers(self, name: str, count: int) -> list[Place]:
        """Return the places of every ``[[name]]``, or ``count`` times this one if they differ."""
        pattern = re.compile(rf"^\s*\[\[\s*{name}\s*\]\]")
        found = [i for i, line in enumerate(self.text.splitlines(), 1) if pattern.match(line)]
        if len(found) != count:  # written in another way, or inside a text
            return [self] * count
        return [Place(self.file, self.text, line) for line in found]

    def error(self, message: str, near: str | None = None) -> ClaimError:
        """Return the error with file and line: of the first ``near`` from here on, or of here."""
        lines = self.text.splitlines()
        line = self.start
        if near:
            hits = (i for i in range(self.start - 1, len(lines)) if near in lines[i])
            line = next(hits, self.start - 1) + 1
        return ClaimError(f"{self.file} line {line}: {message}")
