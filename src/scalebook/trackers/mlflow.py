"""MLflow: folders of runs (mlruns) and SQLite stores, read; any tracking server, written."""

from __future__ import annotations

import math
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scalebook.errors import IngestError, TrackerError
from scalebook.logs.causes import Ending
from scalebook.trackers.exported import RunExport, client
from scalebook.trackers.tracked_run import MOST_PARAMETERS, History, TrackedRun
from scalebook.untrusted import lines, opened, read_text

MOST_RUNS = 1000  # of one store
_STORE_BYTES = 4 << 30
_TEXT_BYTES = 1 << 16  # of one parameter
_MOST_STEPS = 20_000_000_000  # of SQLite's virtual machine, for all that is asked of a store
_EACH = 10_000
_MAGIC = b"SQLite format 3\0"
_STATUS = re.compile(r"^status: ['\"]?(\w+)", re.MULTILINE)
_DELETED = re.compile(r"^lifecycle_stage: ['\"]?deleted", re.MULTILINE)
# RunStatus of MLflow's service.proto; a file store keeps the number.
_STATUSES = {"3": "FINISHED", "4": "FAILED", "5": "KILLED"}
_TABLES = {"runs", "params", "tags", "metrics"}
_ASK_SECONDS, _ASK_TIMES = "20", "2"  # of a server that does not answer: the next run waits
_AT_ONCE = 500  # of a batch: MLflow takes 1,000 metrics and 100 parameters
_MOST_TEXT = 500


def is_run(path: Path) -> bool:
    """Whether a folder is a run of a file store."""
    return (path / "meta.yaml").is_file() and (path / "metrics").is_dir()


def is_store(path: Path) -> bool:
    """Whether a file is a SQLite store by its name and its first bytes."""
    if path.suffix.lower() not in (".db", ".sqlite", ".sqlite3"):
        return False
    try:
        with opened(path, follow=True) as stream:
            return stream.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def read_run(path: Path, wanted: frozenset[str]) -> TrackedRun | None:
    """Return a run of a file store, None for one that was deleted.

    Raises:
        OSError: a file cannot be opened, or is too large.
        IngestError: there are too many numbers.
    """
    run, history = TrackedRun(path), History(path, wanted)
    about = read_text(path / "meta.yaml")
    if _DELETED.search(about):
        return None
    found = _STATUS.search(about)
    run.ending = _ending(_STATUSES.get(found[1], found[1]) if found else "")
    for kind, name, file in _files(path):
        if kind == "metrics" and history.wants(name):
            for line in lines(file):
                _point(run, history, name, line)
        elif kind in ("params", "tags"):
            run.parameter(name, read_text(file, _TEXT_BYTES))
    run.rows = history
    return run


def _files(path: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield the kind, the name and the file of each value of a run; no link is followed."""
    for folder, folders, files in os.walk(path):
        at = Path(folder)
        folders[:] = sorted(one for one in folders if not (at / one).is_symlink())
        kind, *inner = at.relative_to(path).parts or ("",)
        if kind in ("metrics", "params", "tags"):
            for name in sorted(files)[:MOST_PARAMETERS]:
                yield kind, "/".join((*inner, name)), at / name


def _point(run: TrackedRun, history: History, name: str, line: bytes) -> None:
    """Take a line of a metric: time in milliseconds, value, step."""
    try:
        stamp, value, step = line.split()[:3]
        history.add(name, int(step), float(value), int(stamp) / 1e3)
    except ValueError:
        run.note(f"A line of the metric {name[:80]} could not be read.")


def _ending(status: str) -> Ending | None:
    """Return how a run ended; None for one that was running, or nobody ended."""
    said = f"MLflow holds the status {status[:20]}"
    if status == "FINISHED":
        return Ending("completed", said)
    if status in ("FAILED", "KILLED"):
        return Ending("failed" if status == "FAILED" else "interrupted", said)
    return None


def read_store(path: Path, wanted: frozenset[str]) -> Iterator[TrackedRun]:
    """Yield the runs of a SQLite store, which is opened to read and by its own bytes.

    Raises:
        OSError: the file cannot be opened, or is too large.
        IngestError: it is no store of MLflow, is damaged, or holds too much.
    """
    with (
        opened(path, _STORE_BYTES, follow=True) as stream,
        closing(_connect(stream.fileno())) as store,
    ):
        try:
            yield from _runs(store, path, wanted)
        except sqlite3.Error as error:
            raise IngestError(f"{path} cannot be read as a store of MLflow: {error}.") from error


def _connect(descriptor: int) -> sqlite3.Connection:
    """Return a connection that can only read; what the file's schema defines is not run."""
    uri = f"file:/dev/fd/{descriptor}?mode=ro&immutable=1"
    store = sqlite3.connect(uri, uri=True)
    for pragma in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON"):
        store.execute(f"PRAGMA {pragma}")
    store.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1 << 20)
    store.text_factory = partial(bytes.decode, errors="replace")
    left = iter(range(_MOST_STEPS // _EACH))
    store.set_progress_handler(lambda: next(left, None) is None, _EACH)
    return store


def _runs(store: sqlite3.Connection, path: Path, wanted: frozenset[str]) -> Iterator[TrackedRun]:
    tables = {
        name for (name,) in store.execute("SELECT name FROM sqlite_master WHERE type='table'")
    }
    if not tables >= _TABLES:
        raise IngestError(f"{path} is an SQLite file, but not a store of MLflow: it lacks tables.")
    found = store.execute(
        "SELECT run_uuid, status FROM runs WHERE lifecycle_stage = 'active' "
        "ORDER BY start_time, run_uuid LIMIT ?",
        (MOST_RUNS + 1,),
    ).fetchall()
    if len(found) > MOST_RUNS:
        raise IngestError(
            f"{path} contains more than {MOST_RUNS:,} runs. Export those that matter and ingest "
            "them."
        )
    for name, status in found:
        run, history = TrackedRun(path), History(path, wanted)
        run.ending = _ending(str(status))
        for table in ("params", "tags"):
            asked = f"SELECT key, value FROM {table} WHERE run_uuid = ? LIMIT ?"
            for key, value in store.execute(asked, (name, MOST_PARAMETERS)):
                run.parameter(str(key), value)
        asked = "SELECT DISTINCT key FROM metrics WHERE run_uuid = ? ORDER BY key LIMIT ?"
        keys = [str(key) for (key,) in store.execute(asked, (name, MOST_PARAMETERS))]
        for key in filter(history.wants, keys):
            asked = (
                "SELECT step, value, is_nan, timestamp FROM metrics WHERE run_uuid = ? AND key = ? "
                "ORDER BY timestamp"
            )
            for step, value, is_nan, at in store.execute(asked, (name, key)):
                if isinstance(step, int) and isinstance(at, int) and isinstance(value, int | float):
                    history.add(key, step, math.nan if is_nan else float(value), at / 1e3)
        run.rows = history
        yield run


def write(run: RunExport, place: str) -> None:
    """Write a run to a tracking server, a folder or a store, in the experiment 'scalebook'.

    Raises:
        TrackerError: the client is missing, or cannot write there by itself.
    """
    uri = place if "://" in place or place.startswith("file:") else Path(place).absolute().as_uri()
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", _ASK_SECONDS)
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", _ASK_TIMES)
    if uri.startswith("file:"):  # the user names a folder: MLflow asks for this word on it
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow, entities = client("mlflow"), client("mlflow.entities")
    if uri.startswith("sqlite:") and find_spec("sqlalchemy") is None:
        raise TrackerError(
            "mlflow-skinny writes to servers and folders. For a database install the whole "
            "client: pip install mlflow."
        )
    tracker = mlflow.MlflowClient(tracking_uri=uri)
    experiment = tracker.get_experiment_by_name("scalebook")
    where = experiment.experiment_id if experiment else tracker.create_experiment("scalebook")
    start, end = (int(1e3 * seconds) for seconds in run.seconds)
    tags = {name: value[:_MOST_TEXT] for name, value in run.named_tags.items()}
    made = tracker.create_run(where, start_time=start, run_name=run.run_id, tags=tags)
    _log(tracker, entities, made.info.run_id, run, end)
    status = "FINISHED" if run.tags["status"] == "completed" else "FAILED"
    tracker.set_terminated(made.info.run_id, status=status, end_time=end)


def _log(tracker: Any, entities: Any, run_id: str, run: RunExport, end: int) -> None:
    """Write parameters and numbers in batches, as many as a server takes at once."""
    parameters = [
        entities.Param(name, str(value)[:_MOST_TEXT]) for name, value in run.parameters.items()
    ]
    numbers = [
        entities.Metric(name, value, int(1e3 * step.finished_at_seconds), step.step)
        for step in run.steps
        for name, value in step.values.items()
    ]
    last = run.steps[-1].step if run.steps else 0
    numbers += [entities.Metric(name, value, end, last) for name, value in run.summary.items()]
    for at in range(0, len(parameters), 100):
        tracker.log_batch(run_id, params=parameters[at : at + 100])
    for at in range(0, len(numbers), _AT_ONCE):
        tracker.log_batch(run_id, metrics=numbers[at : at + _AT_ONCE])
