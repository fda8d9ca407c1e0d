"""Turn what a dead process left behind into a record, so that no run vanishes."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from scalebook import ownership, store, untrusted
from scalebook.errors import LaunchError, RecordError
from scalebook.record import RunRecord, Status
from scalebook.running import finish_run, processes
from scalebook.running.outcome import EndReason

PROBLEM_CHARACTERS = 300
GRACE_SECONDS = 10.0  # for processes of a dead run that still hold a GPU


@dataclass(frozen=True, slots=True)
class Leftover:
    """One partial run directory: ``record`` is None where a live process owns it.

    It is None too where ``problem`` says why no record could be made of what is there.
    """

    path: Path
    record: RunRecord | None
    problem: str | None = None


def recover(runs: Path) -> tuple[Leftover, ...]:
    """Publish every partial run whose process is gone; leave those of live ones alone.

    One of which no record can be made stays as it is and keeps none of the others.
    """
    found: list[Leftover] = []
    for partial in store.partial_directories(runs):
        if links := links_of(partial):  # what they lead to is not this folder's
            found.append(Leftover(partial, None, links))
            continue
        if ownership.is_live(partial):
            found.append(Leftover(partial, None))
            continue
        try:
            found += _recovered(partial)
        except LaunchError:  # another process was faster
            continue
        except Exception as error:  # noqa: BLE001  the files may hold anything
            if partial.exists():  # else another process was faster
                found.append(Leftover(partial, None, problem_of(error)))
    return tuple(found)


def problem_of(error: Exception) -> str:
    """Return in one line why no record could be made of a directory."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:PROBLEM_CHARACTERS]


def links_of(partial: Path) -> str | None:
    """Return why a directory was not written by a run; None where nothing in it leads out."""
    links = untrusted.links_out(partial)
    return f"{links[0]} is a link that leads out of it" if links else None


def _recovered(partial: Path) -> list[Leftover]:
    """Return what a partial run was published as; nothing where nothing had been started."""
    with ownership.owned(partial):
        record = settle(partial)
        return [Leftover(store.publish(partial), record)] if record else []


def settle(
    partial: Path, status: Status = "interrupted", sentence: str | None = None
) -> RunRecord | None:
    """End what still runs of a partial run and return its record, written if it had none.

    None, and the directory is gone, where nothing had been started in it.
    """
    start = finish_run.start_of(partial)
    if start is not None:
        processes.end(finish_run.run_id(partial), GRACE_SECONDS, start=start)
    try:
        return store.read_record(partial)  # only the renaming was missing
    except RecordError:
        pass
    if not untrusted.is_there(partial / "config.json"):
        shutil.rmtree(partial)
        return None
    reason = sentence or "The process in charge ended without a word (killed, or power was lost)"
    unknown: EndReason = (status, reason)
    end = finish_run.read_exit(partial)
    return finish_run.conclude(
        partial,
        exit_code=end.exit_code if end else None,
        stop=end.stop if end else unknown,
        finished_at=last_sign(partial),
    )


def last_sign(partial: Path) -> str:
    """Return when the run last wrote anything, as records keep times."""
    names = (
        "config.json",
        finish_run.LAUNCH_FILE,
        "steps.jsonl",
        "train.log",
        finish_run.EXIT_FILE,
    )
    newest = max(path.stat().st_mtime for name in names if (path := partial / name).exists())
    return datetime.fromtimestamp(newest, UTC).isoformat(timespec="seconds")
