"""A file to jobs: which dialect it is in, and what that reads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from scalebook.errors import IngestError, unknown
from scalebook.logs.dialect import Dialect
from scalebook.logs.job import Job
from scalebook.logs.plain import Plain
from scalebook.logs.registry import DIALECTS
from scalebook.logs.source import Source

SEARCHED_BYTES = 256 << 20  # a file whose first record comes later than this is not recognised


def named(name: str) -> type[Dialect]:
    """Return the dialect of a name.

    Raises:
        IngestError: no dialect has this name.
    """
    known = {dialect.name: dialect for dialect in (*DIALECTS, Plain)}
    if name not in known:
        raise IngestError(unknown("dialect", name, known))
    return known[name]


def recognise(texts: Iterable[str]) -> type[Dialect]:
    """Return the dialect of the first piece of text that holds a record of one."""
    seen = 0
    for text in texts:
        for dialect in DIALECTS:
            if dialect.recognises(text):
                return dialect
        seen += len(text)
        if seen > SEARCHED_BYTES:
            break
    return Plain


def read_file(path: Path, dialect: str | None = None) -> tuple[type[Dialect], list[Job]]:
    """Return the dialect of a file and its jobs.

    Raises:
        IngestError: the file cannot be read, or the dialect that is forced is unknown.
    """
    source = Source(path)
    kind = named(dialect) if dialect else recognise(source.texts())
    return kind, kind().read(Source(path))
