"""A file to jobs: which dialect it is in, and what that reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from scalebook.errors import IngestError, unknown
from scalebook.logs.dialect import Dialect
from scalebook.logs.job import Job
from scalebook.logs.plain import Plain
from scalebook.logs.registry import dialects
from scalebook.logs.source import LONGEST_LINE, Source

SEARCHED_BESIDE = 16 << 20
SEARCHED_CHARACTERS = 64 << 20  # a file whose first record comes later is not recognised
_FAILURES = ("out_of_memory", "timeout", "failed")


@dataclass(slots=True)
class FileContent:
    """What one file holds; ``digest`` names its decompressed content."""

    path: Path
    dialect: type[Dialect]
    jobs: list[Job]
    digest: str
    tail: tuple[str, ...]

    @property
    def empty(self) -> bool:
        """Whether nothing in the file was of use: no dialect, no settings, no failure in a log."""
        log = self.path.suffix in (".log", ".out", ".err")
        failed = log and any(job.ending and job.ending.status in _FAILURES for job in self.jobs)
        return self.dialect is Plain and not failed and not any(job.settings for job in self.jobs)


def named(name: str) -> type[Dialect]:
    """Return the dialect of a name.

    Raises:
        IngestError: no dialect has this name.
    """
    known = {dialect.name: dialect for dialect in (*dialects(), Plain)}
    if name not in known:
        raise IngestError(unknown("dialect", name, known))
    return known[name]


def recognise(texts: Iterable[str]) -> type[Dialect]:
    """Return the dialect of the first piece of text that holds a record of one.

    A log of training may begin with a monitoring tool's output: such a dialect counts only if no
    record of training follows soon.
    """
    seen, beside = 0, None
    for piece in texts:
        text = piece
        if any(len(line) > LONGEST_LINE for line in piece.split("\n")):
            text = "\n".join(line[:LONGEST_LINE] for line in piece.split("\n"))
        found = next((dialect for dialect in dialects() if dialect.recognises(text)), None)
        if found and found.kind == "training":
            return found
        beside = beside or found
        seen += len(text)
        if seen > (SEARCHED_BESIDE if beside else SEARCHED_CHARACTERS):
            break
    return beside or Plain


def read_content(path: Path, dialect: str | None = None) -> FileContent:
    """Return what a file holds.

    Raises:
        IngestError: the file cannot be read, or the dialect that is forced is unknown.
    """
    if not path.is_file():
        raise IngestError(f"{path} is not a file. Name a file, or a folder of files.")
    kind = named(dialect) if dialect else recognise(Source(path).texts())
    source = Source(path)
    try:
        jobs = kind().read(source)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise IngestError(
            f"{path} holds something that its dialect {kind.name} does not foresee ({error}): it "
            "was not read. Take the line out, or name another --dialect."
        ) from error
    return FileContent(path, kind, jobs, source.digest(), source.tail())
