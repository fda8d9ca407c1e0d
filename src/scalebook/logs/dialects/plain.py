"""Text of no known dialect: configuration dumps and endings alone, so that a failed start shows."""

from __future__ import annotations

import re

from scalebook.logs.dialects.dialect import LineDialect


class Plain(LineDialect):
    """Has no records."""

    name = "unknown"
    markers = ()
    signature = re.compile(r"(?!)")

    def line(self, line: str) -> bool:
        """Take nothing: every line is looked at for settings and endings."""
        return False
