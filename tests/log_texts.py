"""Helpers of the tests that read a log from a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scalebook.logs.ingest.ingestion import summaries


def jobs(tmp_path: Path, text: str, name: str = "a.log") -> list[dict[str, Any]]:
    """Return the summaries of all jobs in a log."""
    path = tmp_path / name
    path.write_text(text)
    return summaries(path, {})


def read(tmp_path: Path, text: str, name: str = "a.log") -> dict[str, Any]:
    """Return the summary of the one job in a log."""
    (found,) = jobs(tmp_path, text, name)
    return found
