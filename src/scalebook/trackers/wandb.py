"""Weights & Biases: folders of offline runs, read and written."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from scalebook.errors import TrackerError
from scalebook.logs.causes import Ending
from scalebook.trackers import wire
from scalebook.trackers.exported import RunExport, client
from scalebook.trackers.tracked_run import TrackedRun, wants
from scalebook.untrusted import LINES_BYTES, opened

# Fields of W&B's Record, from wandb/proto/wandb_internal.proto, which keeps them for ever.
_HISTORY, _CONFIG, _RUN, _EXIT, _ENVIRONMENT = 2, 5, 17, 18, 26
_KEY, _NESTED_KEY, _VALUE = 1, 2, 16  # of an item of a history or a configuration
_WRITE_SECONDS = 60.0
_RUN_CONFIG, _EXIT_CODE, _GPU_TYPE = 4, 1, 18


def file_in(path: Path) -> Path | None:
    """Return the log of records of a run folder, or the path itself where it is one."""
    if path.is_dir():
        named = path.name.startswith(("offline-run-", "run-", "latest-run"))
        found = sorted(path.glob("run-*.wandb")) if named else []
        return found[0] if found else None
    return path if path.suffix == ".wandb" else None


def read(path: Path, columns: frozenset[str] = frozenset()) -> TrackedRun:
    """Return the run of a folder (or of a .wandb file); its rows are read on the way.

    ``columns`` are those that the user maps; of the others, the ones that are known count.

    Raises:
        OSError: the file cannot be opened, or is too large.
    """
    file = file_in(path) or path
    run = TrackedRun(path)
    with opened(file, LINES_BYTES) as stream:
        for number, value in _records(stream, run):
            _about(run, number, value)
    run.rows = _rows(file, columns)
    return run


def _records(stream: BinaryIO, run: TrackedRun | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield the content of each record with the number of its kind."""
    for record in wire.wandb_records(stream, run.note if run else lambda _: None):
        try:
            yield from (
                (number, value)
                for number, value in wire.fields(record)
                if isinstance(value, bytes)
                and number in (_HISTORY, _CONFIG, _RUN, _EXIT, _ENVIRONMENT)
            )
        except ValueError:
            if run:
                run.note("A record could not be read.")


def _about(run: TrackedRun, number: int, value: bytes) -> None:
    """Take what a record says of the whole run."""
    try:
        if number in (_CONFIG, _RUN):
            path = (1,) if number == _CONFIG else (_RUN_CONFIG, 1)
            for item in wire.members(value, *path):
                name, text = _item(item)
                if name and not name.startswith("_wandb"):
                    run.parameter(name, _value(text))
        elif number == _ENVIRONMENT:
            for name in wire.texts(value, _GPU_TYPE):
                run.parameter("gpu_type", name)
        elif number == _EXIT:
            code = wire.integer(value, _EXIT_CODE)
            status = "failed" if code else "completed"
            run.ending = Ending(status, f"W&B noted exit code {code}")
    except ValueError:
        run.note("A record could not be read.")


def _item(item: bytes) -> tuple[str, bytes]:
    """Return the name of an item, its parts joined by ``/``, and its value as JSON."""
    names, text = list[bytes](), b""
    for number, part in wire.fields(item):
        if isinstance(part, bytes) and number in (_KEY, _NESTED_KEY):
            names.append(part)
        elif isinstance(part, bytes) and number == _VALUE:
            text = part
    return b"/".join(names).decode(errors="replace"), text


def _value(text: bytes) -> Any:
    """Return the value of a JSON text, None where it cannot be read."""
    try:
        return json.loads(text.decode(errors="replace")) if text else None
    except (ValueError, RecursionError):
        return None


def _rows(file: Path, columns: frozenset[str]) -> Iterator[Mapping[str, object]]:
    """Yield the history: one row of plain values per call of ``wandb.log``."""
    with opened(file, LINES_BYTES) as stream:
        for number, value in _records(stream):
            if number != _HISTORY:
                continue
            try:
                items = [_item(item) for item in wire.members(value, 1)]
            except ValueError:
                continue
            cells = ((name, _value(text)) for name, text in items if wants(name, columns))
            yield {name: one for name, one in cells if isinstance(one, int | float | str)}


def write(run: RunExport, place: str) -> None:
    """Write a run as an offline run under a folder; ``wandb sync`` uploads it.

    Raises:
        TrackerError: the client is missing, or does not end.
    """
    wandb = client("wandb")
    Path(place).mkdir(parents=True, exist_ok=True)
    quiet = wandb.Settings(
        console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True,
        x_disable_meta=True, x_disable_machine_info=True,
    )  # fmt: skip
    out = wandb.init(
        mode="offline",
        dir=place,
        project="scalebook",
        name=run.run_id,
        config=run.parameters | run.named_tags,
        tags=[run.tags["source"], run.tags["status"]],
        settings=quiet,
    )
    for step in run.steps:
        out.log({**step.values, "finished_at_seconds": step.finished_at_seconds}, step=step.step)
    out.summary.update(run.summary)
    out.finish(exit_code=0 if run.tags["status"] == "completed" else 1)
    wait_for_end(Path(out.dir).parent)


def wait_for_end(folder: Path) -> None:
    """Wait until the file of a run holds its end: the client returns before it has written all.

    Raises:
        TrackerError: it does not come.
    """
    deadline = time.monotonic() + _WRITE_SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError):
            if read(folder).ending is not None:
                return
        time.sleep(0.1)
    raise TrackerError(f"{folder} is not complete after {_WRITE_SECONDS:.0f} s.")
