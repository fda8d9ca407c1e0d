"""Trackers that people use: runs come in by ``opener``, and go out by ``export``.

``opener`` is what ``scalebook ingest`` asks for each path; ``parse_target`` and ``export`` are
behind ``scalebook export --to`` and ``scalebook run --log-to``. No client is needed to read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from scalebook.errors import IngestError, TrackerError, not_installed, unknown
from scalebook.logs.dialects.dialect import Dialect
from scalebook.logs.dialects.registry import FileContent
from scalebook.logs.ingest.group import StoreReader
from scalebook.query import ask
from scalebook.store import Run
from scalebook.trackers import mlflow, mlperf_log, tensorboard, wandb
from scalebook.trackers.exported import RunExport, export_of
from scalebook.trackers.tracked_run import TrackedRun, content, wanted

EXPORT_SECONDS = 180.0  # for one run and one tracker, after which the plan continues
# Kind of a target -> what its place is, the module that its client is, what writes to it.
_KINDS: dict[str, tuple[str, str | None, Callable[[RunExport, str], None]]] = {
    "mlflow": ("URI", "mlflow", mlflow.write),
    "wandb": ("DIR", "wandb", wandb.write),
    "tensorboard": ("DIR", "tensorboard", tensorboard.write),
    "mlperf": ("FILE", None, mlperf_log.write),
}
FORMS = tuple(f"{kind}:{place}" for kind, (place, _, _) in _KINDS.items())


@dataclass(frozen=True, slots=True)
class Target:
    """Where runs are written to: a kind of tracker and a place of it."""

    kind: str
    place: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.place}"


def parse_target(text: str, tables: Sequence[str] = ()) -> Target:
    """Return the target that ``KIND:PLACE`` names; ``tables`` are the caller's own kinds.

    Raises:
        TrackerError: the kind is unknown, the place is missing, or the client is not installed.
    """
    kind, colon, place = text.partition(":")
    if kind not in _KINDS:
        forms = " or ".join((*FORMS, *(f"{table}:DIR" for table in tables)))
        raise TrackerError(f"{unknown('target', kind, (*_KINDS, *tables))} Write {forms}.")
    what, module, _ = _KINDS[kind]
    if not colon or not place:
        raise TrackerError(f"{text!r} names no place. Write {kind}:{what}.")
    if module is not None and find_spec(module) is None:
        raise TrackerError(not_installed(module, "trackers"))
    return Target(kind, place)


def export(run: Run, target: Target) -> None:
    """Write a run to a target.

    Raises:
        TrackerError: the tracker refuses it, cannot be reached, or its client is missing.
    """
    try:
        _KINDS[target.kind][2](export_of(run), target.place)
    except TrackerError:
        raise
    except Exception as error:  # a client may raise anything
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise TrackerError(f"{target} did not take run {run.record.run_id}: {reason}") from error


def log_run(directory: Path, targets: Sequence[Target]) -> list[str]:
    """Write a run that has just ended to each target; return a sentence for each that failed.

    Each target has a process of its own: a client that hangs or crashes costs the run nothing.
    """
    problems: list[str] = []
    for target in targets:
        command = (sys.executable, "-m", "scalebook", "export", str(directory), "--to", str(target))
        answer = ask(command, EXPORT_SECONDS)
        if answer.code != 0:
            said = answer.errors.strip().splitlines() or [f"exit code {answer.code}"]
            reason = said[-1].removeprefix("scalebook: ")
            known = reason.startswith(str(target))
            problems.append(reason if known else f"not written to {target}: {reason}")
    return problems


def opener(dialect: type[Dialect] | None = None) -> Callable[[Path], StoreReader | None]:
    """Return what finds a reader for a path that a tracker wrote, None for any other.

    ``dialect`` is the one that the columns of --map make.
    """

    def find(path: Path) -> StoreReader | None:
        reader = _reader(path, wanted(dialect))
        if reader is None:
            return None
        tracker, runs = reader

        def read() -> Iterator[FileContent]:
            try:
                for run in runs():
                    yield content(tracker, run, dialect)
            except OSError as error:
                raise IngestError(f"{path} cannot be read: {error.strerror or error}.") from error

        return read

    return find


def _reader(
    path: Path, columns: frozenset[str]
) -> tuple[str, Callable[[], Iterator[TrackedRun]]] | None:
    """Return the tracker of a path and what reads its runs."""
    if path.is_dir():
        if mlflow.is_run(path):
            return "mlflow", lambda: iter(filter(None, [mlflow.read_run(path, columns)]))
        return ("wandb", lambda: iter([wandb.read(path, columns)])) if wandb.file_in(path) else None
    if wandb.file_in(path):
        return "wandb", lambda: iter([wandb.read(path, columns)])
    if tensorboard.is_events(path):
        first = tensorboard.files_of(path)[:1] in ([path], [])
        return "tensorboard", lambda: iter([tensorboard.read(path, columns)] if first else [])
    if mlflow.is_store(path):
        return "mlflow", lambda: mlflow.read_store(path, columns)
    return None
