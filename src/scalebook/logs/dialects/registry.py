"""Every dialect, the more particular ones first, and what the one that recognises a file reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from scalebook.errors import IngestError, unknown
from scalebook.logs.dialects.dialect import Dialect, Plain
from scalebook.logs.job import COLUMNS, Job
from scalebook.logs.numbers import names
from scalebook.logs.source import LONGEST_LINE, Source, Unwrapped

_MODULES: tuple[tuple[str, tuple[str, ...]], ...] = (  # with their classes
    ("json_documents", ("TPrimat", "TrainerState", "GoldenValues", "Autotuning", "Documents")),
    ("nanotron", ("NanotronCSV", "Nanotron")),
    ("deepspeed", ("SwissArmy",)),
    ("nemo", ("NeMo2", "NeMo1")),
    ("megatron", ("PrimusMegatron", "MegatronBridge", "MegatronDeepSpeed", "GPTNeoX")),
    ("megatron", ("MegatronLM", "Progress")),
    ("key_value", ("Nanochat", "NanoGPT", "Verl", "Slime", "OLMoCore", "NeMoRL")),
    ("nemo", ("NeMoAutomodel",)),
    ("pytorch", ("TorchTitan", "Torchtune")),
    ("key_value", ("PrimeRL",)),
    ("maxtext", ("MaxText",)),
    ("litgpt", ("LitGPT",)),
    ("composer", ("Composer",)),
    ("mlperf", ("MLPerf",)),
    ("rows", ("Rows",)),
    ("hf_trainer", ("HFTrainer",)),
    ("deepspeed", ("DeepSpeed",)),
    ("device_samples", ("SMITable",)),
    ("nvidia_smi", ("NvidiaSMI", "NvidiaDmon", "DcgmiDmon")),
    ("amd_smi", ("AMDSMICSV", "AMDSMIMonitor", "RocmSMICSV", "RocmSMIText")),
    ("kineto", ("Kineto",)),
    ("key_value", ("Pairs",)),
)


@cache
def dialects() -> tuple[type[Dialect], ...]:
    """Return every dialect, in the order in which they are tried."""
    return tuple(
        getattr(import_module(f"scalebook.logs.dialects.{module}"), name)
        for module, classes in _MODULES
        for name in classes
    )


SEARCHED_BESIDE = 16 << 20
SEARCHED_CHARACTERS = 64 << 20  # a file whose first record comes later is not recognised
_FAILURES = ("out_of_memory", "timeout", "failed", "interrupted", "diverged")


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
        """Whether the file is not a log: no record, rate or sample, and no failure before them."""
        suffixes = {one.lower() for one in self.path.suffixes}
        log = bool(suffixes & {".log", ".out", ".err"}) or not suffixes or self.dialect is not Plain
        few = 3  # sizes that prose hardly states in the words of a banner
        return not any(
            len(job.table)
            or len(job.samples)
            or job.rates
            or "breakdown" in job.details
            or (job.settings and self.dialect is not Plain)
            or (
                (log or (".txt" in suffixes and len(job.settings) >= few))
                and job.ending
                and job.ending.status in _FAILURES
            )
            or (  # it printed no step
                log and "world_size" in job.settings and (job.finished or len(job.settings) >= few)
            )
            for job in self.jobs
        )

    def unrecognised(self) -> IngestError:
        """Return the error that says what was looked for, and what is nearest."""
        if self.dialect is not Plain:
            return IngestError(
                f"{self.path} contains no record that the dialect {self.dialect.name} reads: "
                f"nothing was written. {_REMEDY}"
            )
        head = Source(self.path).head()
        empty, binary = not head.strip(), head.count("\ufffd") > len(head) / 20
        if empty or binary:
            return IngestError(
                f"{self.path} is not a known log: it is {'empty' if empty else 'not text'}. "
                "Nothing was written. Name a log or a packed one (.gz, .zst, .xz, .bz2, .zip)."
            )
        nearest = _nearest(head)
        return IngestError(
            f"{self.path} is not a known log: no training step of any dialect was "
            f"found. {nearest}Nothing was written. {_REMEDY}"
        )


_REMEDY = (
    "Name the dialect with --dialect ('--dialect list' names them all), or a table's columns "
    "with --map, such as --map step_seconds=COLUMN."
)


def _nearest(text: str) -> str:
    """Return a sentence on the dialect that shares most markers with a text; empty without one."""
    for piece, what in names("without-steps").items():
        if piece in text:
            return f"It looks like {what}. "
    shared = {
        dialect.name: sum(marker in text for marker in dialect.markers) / len(dialect.markers)
        for dialect in dialects()
    }
    name = max(shared, key=lambda one: shared[one])
    return f"The nearest is {name}, but none of its records is complete. " if shared[name] else ""


def named(name: str) -> type[Dialect]:
    """Return the dialect of a name.

    Raises:
        IngestError: no dialect has this name.
    """
    known = {dialect.name: dialect for dialect in (*dialects(), Plain)}
    if name not in known:
        raise IngestError(unknown("dialect", name, known))
    return known[name]


def recognise(texts: Iterable[str], below: type[Dialect] | None = None) -> type[Dialect]:
    """Return the dialect, of those ``below`` one, of the first text that holds a record of it.

    A log of training may begin with a monitoring tool's output: such a dialect counts only if no
    record of training follows soon.
    """
    seen, beside, known = 0, None, dialects()
    known = known[known.index(below) + 1 :] if below in known else known
    for piece in texts:
        text = piece
        if any(len(line) > LONGEST_LINE for line in piece.split("\n")):
            text = "\n".join(line[:LONGEST_LINE] for line in piece.split("\n"))
        found = next((dialect for dialect in known if dialect.recognises(text)), None)
        if found and found.kind == "training":
            return found
        beside = beside or found
        seen += len(text)
        if seen > (SEARCHED_BESIDE if beside else SEARCHED_CHARACTERS):
            break
    return beside or Plain


def dialect_of(path: Path, dialect: str | type[Dialect] | None = None) -> type[Dialect]:
    """Return the dialect of a file, read as far as it takes, else the one that is forced.

    Raises:
        IngestError: the file cannot be read, or the dialect that is forced is unknown.
    """
    if not path.is_file():
        raise IngestError(f"{path} is not a file. Name a file, or a folder of files.")
    if isinstance(dialect, type):
        return dialect
    return named(dialect) if dialect else recognise(Source(path).texts())


def read(path: Path, dialect: str | type[Dialect] | None = None) -> FileContent:
    """Return what a file holds.

    Raises:
        IngestError: the file cannot be read, or the dialect that is forced is unknown.
    """
    found = _read(path, Source(path), dialect)
    small = path.stat().st_size <= _LARGEST_PASTE
    if small and found.empty:
        bare = Source(path, bare=True)
        found = _read(path, bare, dialect or recognise(bare.texts()))
    source = Unwrapped(path)
    for source.where in ("width", "words", "bars", "blocks", "tables") if small else ():
        text = "".join(source.texts())
        if source.joins or found.empty:
            again = _read(path, source, dialect or recognise([text]))
            found = max(found, again, key=_figures)
    other = found
    while other.empty and not dialect and other.dialect is not Plain:  # a look-alike
        other = _read(path, Source(path), recognise(Source(path).texts(), other.dialect))
    return found if other.empty else other


def _figures(content: FileContent) -> tuple[bool, int, int]:
    """Return whether a file is a log, and how many figures and settings were read."""
    figures = sum(len(job.table.values(name)) for job in content.jobs for name in COLUMNS)
    said = sum(len({*job.settings, *job.conflicts}) for job in content.jobs)
    return not content.empty, figures, said


_LARGEST_PASTE = 1 << 20


def _read(path: Path, source: Source, dialect: str | type[Dialect] | None) -> FileContent:
    kind = dialect_of(path, dialect)
    try:
        jobs = kind().read(source)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise IngestError(
            f"{path} has something that its dialect {kind.name} does not expect ({error}): it "
            "was not read. Remove the line, or name another --dialect."
        ) from error
    return FileContent(path, kind, jobs, source.digest(), source.tail())
