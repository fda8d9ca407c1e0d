"""What outlives a build: files that are used only while they hold what was written to them.

A file begins with the digest of the rest. One that was cut off, changed or is missing counts as
not there, so that damage costs the time to make it again and nothing else. Nothing kept can run.
"""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import polars as pl
from pydantic import TypeAdapter, ValidationError

from scalebook.errors import ScalebookError
from scalebook.report.base.frames import ReportData

DIGEST_BYTES = 32


def keep(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees either the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(hashlib.sha256(content).digest() + content)
    temporary.replace(path)


def kept(path: Path) -> bytes | None:
    """Return what was kept in a file; None where it is not there as it was written."""
    try:
        whole = path.read_bytes()
    except OSError:
        return None
    digest, content = whole[:DIGEST_BYTES], whole[DIGEST_BYTES:]
    return content if hashlib.sha256(content).digest() == digest else None


def keep_data(folder: Path, data: ReportData) -> None:
    """Write the data of a report, a file for each of its parts."""
    for name, kind in _parts():
        value = getattr(data, name)
        if kind is pl.DataFrame:
            buffer = io.BytesIO()
            value.write_ipc(buffer)
            keep(folder / f"{name}.arrow", buffer.getvalue())
        else:
            keep(folder / f"{name}.json", TypeAdapter(kind).dump_json(value))


def kept_data(folder: Path) -> ReportData | None:
    """Return the data of a report that a build kept; None where a part of it is not whole."""
    found: dict[str, Any] = {}
    for name, kind in _parts():
        is_frame = kind is pl.DataFrame
        content = kept(folder / f"{name}.{'arrow' if is_frame else 'json'}")
        if content is None:
            return None
        try:
            if is_frame:
                found[name] = pl.read_ipc(io.BytesIO(content))
            else:
                found[name] = TypeAdapter(kind).validate_json(content)
        except (ValidationError, ScalebookError, pl.exceptions.PolarsError):
            return None
    return ReportData(**found)


def _parts() -> list[tuple[str, Any]]:
    hints = get_type_hints(ReportData)
    return [(one.name, hints[one.name]) for one in fields(ReportData)]
