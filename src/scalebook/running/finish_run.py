"""Turn what a run left in its directory into its record, however it ended.

``recover`` does so for what a dead process left behind, so that no run vanishes.
"""

from __future__ import annotations

import itertools
import math
import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from scalebook import ownership, project, scrub, store, untrusted
from scalebook.config import RunConfig
from scalebook.engines import harvest
from scalebook.errors import ConfigError, LaunchError, RecordError
from scalebook.logs import causes
from scalebook.measure import provenance
from scalebook.record import RunRecord, Status, object_of, text_of
from scalebook.running import outcome, processes, progress
from scalebook.running.outcome import EndReason

LAUNCH_FILE = "launch.json"  # command, environment, started_at, start: written before the start
EXIT_FILE = "exit.json"  # how the trainer ended: written as soon as it has
SCHEDULE_FILE = "schedule.json"  # the place in a plan's order, where a plan started the run
PLAN_FILE = "plan.json"  # how far the plan was when it started the run
CLOCK_SECONDS = 5.0  # by which a clock may be corrected without a word
LOG_LINES = 2000  # enough to look over the tracebacks of many ranks
PROBLEM_CHARACTERS = 300
UNSAID = "The process in charge ended without a message (killed, or power was lost)"
GRACE_SECONDS = 10.0  # for processes of a dead run that still hold a GPU


def now() -> str:
    """Return the time as it stands in records: UTC, ISO 8601, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def boot_seconds() -> float:
    """Return seconds since the machine started, which nobody can set: the same in all processes."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def run_id(directory: Path) -> str:
    """Return the run that a partial or published directory holds."""
    return directory.name.removeprefix(store.PARTIAL_PREFIX)


@dataclass(frozen=True, slots=True)
class Ended:
    """How the ranks of a node or a run ended: ``stop`` is why, where they were ended from outside.

    ``exit_code`` is None where it is not known, or nothing was started.
    """

    exit_code: int | None = None
    stop: EndReason | None = None
    memory_kills: int = 0  # processes that the kernel killed for want of memory
    memory_killed: tuple[int, ...] = ()


_ENDED = TypeAdapter(Ended)


def conclude(
    directory: Path,
    end: Ended,
    *,
    inferred_from: str | None = None,
    finished_at: str | None = None,
    log: Sequence[str] | None = None,
) -> RunRecord:
    """Write and return the record of a run that has ended; ``finished_at`` defaults to now.

    ``log`` are the lines that tell how it ended, where they are not the end of its train.log.

    ``inferred_from`` names the run from which follows how this one, never started, would end.
    """
    requested = store.read_object(directory / "config.json")
    harvested = harvest.harvest(directory, requested) if harvest.is_foreign(requested) else ()
    steps, unreadable = store.read_steps(directory / "steps.jsonl")
    measured, steps_asked = steps.in_phase("measured"), requested.get("steps")
    skipped = sum(measured.skipped())
    restarted = restart_notes(directory) if any(steps.numbers("restart")) else ()
    result = outcome.classify(
        outcome.EndEvidence(
            exit_code=end.exit_code,
            steps_done=int(max(steps.numbers("step"), default=0)),
            steps_asked=steps_asked if isinstance(steps_asked, int) else None,
            log=progress.last_lines(directory / "train.log", LOG_LINES) if log is None else log,
            stop=end.stop,
            started=inferred_from is None,
            host_memory_kills=end.memory_kills,
            memory_killed=frozenset(end.memory_killed),
            loss_lost_at=_loss_lost_at(steps),
            measured_steps=len(measured),
            skipped_steps=skipped,
        )
    )
    finished, of_clock = (finished_at, ()) if finished_at else _finished(directory)
    record = _record(
        directory,
        requested,
        result,
        exit_code=end.exit_code,
        inferred_from=inferred_from,
        finished_at=finished,
        of_files=(*unreadable, *harvested, *of_clock),
        of_steps=(*_skipped(skipped, len(measured)), *restarted),
    )
    store.write_record(directory, record)
    for name in (LAUNCH_FILE, EXIT_FILE, SCHEDULE_FILE, PLAN_FILE):
        untrusted.remove(directory / name)
    return record


def _finished(directory: Path) -> tuple[str, tuple[str, ...]]:
    """Return when a run that ends now ended by the clock it began with, and a note if it was set.

    A clock that is set meanwhile must not make a run last an hour more, or less than nothing.
    """
    launch, end = store.read_object(directory / LAUNCH_FILE), now()
    booted = launch.get("boot_seconds")
    try:
        began = datetime.fromisoformat(launch["started_at"])
        elapsed = boot_seconds() - float(booted or "")
        moved = (datetime.fromisoformat(end) - began).total_seconds() - elapsed
    except (KeyError, TypeError, ValueError, OverflowError):
        return end, ()
    same = launch.get("host") == socket.gethostname() and elapsed >= 0
    if not same or abs(moved) <= CLOCK_SECONDS:
        return end, ()
    where = "forward" if moved > 0 else "back"
    note = (
        f"The clock was set {where} by {abs(moved):.0f} s during the run; "
        "finished_at is by the clock that it began with"
    )
    return (began + timedelta(seconds=elapsed)).isoformat(timespec="seconds"), (note,)


def _record(
    directory: Path,
    requested: dict[str, Any],
    result: outcome.Outcome,
    *,
    exit_code: int | None,
    inferred_from: str | None,
    finished_at: str,
    of_files: Sequence[str],
    of_steps: Sequence[str],
) -> RunRecord:
    """Return the record: what was requested, what the trainer reported, and how it ended.

    ``of_files`` and ``of_steps`` are notes on what the directory's files and the steps say.
    """
    launch = store.read_object(directory / LAUNCH_FILE)
    trainer = store.read_object(directory / "observed.json")
    observed = object_of(trainer.get("observed"))
    environment = _environment(launch.get("environment"), trainer.get("environment"))
    schedule = store.read_object(directory / SCHEDULE_FILE)
    differences = provenance.differences(requested, observed, environment)
    scheduled = _texts(schedule.pop("notes", ()))
    return RunRecord(
        run_id=run_id(directory),
        config_hash=hash_of(requested),
        source="inferred" if inferred_from else "measured",
        status=result.status,
        reason=" ".join(scrub.scrub(result.reason, os.environ).split()) if result.reason else None,
        cause=result.cause,
        inferred_from=inferred_from,
        log_tail=scrub.scrub_all(result.log_tail, os.environ),
        exit_code=exit_code,
        requested=requested,
        observed=observed,
        environment=environment,
        started_at=text_of(launch.get("started_at")),
        finished_at=finished_at,
        command=_texts(launch.get("command")),
        schedule=schedule,
        differences=tuple(map(asdict, differences)),
        notes=(*of_files, *(one.sentence() for one in differences), *of_steps, *scheduled),
    )


def _loss_lost_at(steps: store.Steps) -> int | None:
    """Return the step from which no loss was recorded to the end; None where the last has one.

    Trainers that record no loss at all are none that lost it.
    """
    rows = list(zip(steps.numbers("step"), steps.numbers("loss"), steps.skipped(), strict=True))
    last = max((at for at, (_, loss, _) in enumerate(rows) if not math.isnan(loss)), default=None)
    if last is None:
        return None
    after = (step for step, _, skipped in rows if step > rows[last][0] and not skipped)
    return next(map(int, after), None)


def _skipped(count: int, measured: int) -> tuple[str, ...]:
    """Return a sentence about measured steps that the optimizer refused; none where it took all."""
    if not count:
        return ()
    return (
        f"The optimizer refused {count} of {measured} measured steps (a gradient was not "
        "finite): they are in the averages, and take less time.",
    )


def _environment(launcher: Any, trainer: Any) -> dict[str, Any]:
    """Return what launcher and trainer say of the environment; the trainer's word counts."""
    merged = object_of(launcher) | object_of(trainer)
    variables = merged.get("variables")
    if isinstance(variables, dict):
        merged["variables"] = scrub.without_secrets(cast("dict[str, str]", variables))
    return merged


def _texts(value: Any) -> tuple[str, ...]:
    """Return the texts of a value that should be a list of them; none where it is not a list."""
    items = cast("list[object]", value) if isinstance(value, list) else []
    return tuple(item for item in items if isinstance(item, str))


def write_launch(
    directory: Path,
    command: tuple[str, ...],
    environment: Mapping[str, Any],
    start: str | None = None,
) -> None:
    """Keep what is known before the start, for whoever concludes the run.

    The command is written with the directory's final name, under which it can be given again.
    ``start`` is the mark of the processes to be started (``processes.START``).
    """
    final = (part.replace(directory.name, run_id(directory)) for part in command)
    value = {
        "command": list(scrub.scrub_all(final, os.environ)),
        "environment": dict(environment),
        "started_at": now(),
        "boot_seconds": boot_seconds(),
        "host": socket.gethostname(),
        "start": start,
        "directory": str(directory.resolve()),
    }
    store.write_json(directory / LAUNCH_FILE, value)


def log_file(directory: Path, node: int = 0) -> Path:
    """Return where the ranks of a node print."""
    return directory / ("train.log" if node == 0 else f"train.log.node{node}")


def exit_file(directory: Path, node: int = 0) -> Path:
    """Return where a node notes how its ranks ended."""
    return directory / (EXIT_FILE if node == 0 else f"exit.node{node}.json")


def write_exit(directory: Path, end: Ended, node: int = 0) -> None:
    """Keep how the ranks of a node ended, for whoever concludes the run."""
    store.write_json(exit_file(directory, node), asdict(end))


def read_exit(directory: Path, node: int = 0) -> Ended | None:
    """Return how the ranks of a node ended, None where it noted nothing that can be read."""
    try:
        end = _ENDED.validate_python(store.read_object(exit_file(directory, node)))
    except ValidationError:
        return None
    return None if end.exit_code is None else end


def start_of(directory: Path) -> str | None:
    """Return the mark of the processes that were started in this directory; None: none were.

    A copy of the directory has the file too, but the processes are those of the original.
    """
    launch = store.read_object(directory / LAUNCH_FILE)
    mark, place = launch.get("start"), launch.get("directory")
    return mark if isinstance(mark, str) and place == str(directory.resolve()) else None


def hash_of(requested: Mapping[str, Any]) -> str | None:
    """Return the configuration's hash, None where the configuration was not left whole."""
    try:
        return RunConfig.from_parameters(requested).config_hash()
    except ConfigError:
        return None


def restart_notes(directory: Path) -> tuple[str, ...]:
    """Return a sentence for each time that the processes were started again and made a step."""
    lines, _ = store.read_step_lines(directory / "steps.jsonl")
    said: list[str] = []
    rows = zip(map(int, lines.numbers("step")), lines.numbers("restart"), strict=True)
    for (before, restarts), (after, more) in itertools.pairwise(rows):
        if more <= restarts:
            continue
        again = max(before - after + 1, 0)
        said.append(
            f"A process died after step {before} and all were restarted: "
            f"{again} {'step was' if again == 1 else 'steps were'} repeated."
        )
    return tuple(said)


@dataclass(frozen=True, slots=True)
class Recovered:
    """A run directory that was left behind, and the record that it got.

    ``record`` is None where there was nothing to record, where the directory is in use or was made
    just now, and where ``problem`` says why no record could be made of what is there.
    """

    path: Path
    record: RunRecord | None = None
    problem: str | None = None
    seconds_old: float | None = None  # where nobody owns it and it is too new to tell


def recover(runs: Path) -> tuple[Recovered, ...]:
    """Publish every partial run whose process is gone; leave those of live ones as they are.

    One of which no record can be made stays as it is and keeps none of the others.
    """
    found: list[Recovered] = []
    for partial in store.partial_directories(runs):
        if links := links_of(partial):  # what they lead to is not this folder's
            found.append(Recovered(partial, problem=links))
        elif ownership.is_live(partial):
            found.append(Recovered(partial, seconds_old=ownership.seconds_unowned(partial)))
        else:
            one = recorded(partial, settle)
            found += [one] if one and (one.record or one.problem) else []  # nothing was started
    return tuple(found)


def recover_all(runs: Path, say: Callable[[str], None]) -> None:
    """Publish what dead processes left under a folder of runs, and say so line by line."""
    for found in recover(runs):
        path, record = project.short(found.path), found.record
        if found.problem is not None:
            say(f"{path} cannot be recovered and stays as it is: {found.problem}")
        elif record is not None:
            say(f"Recovered {path}: {record.status}. {record.reason or ''}")
        elif (age := found.seconds_old) is not None:
            say(f"{path} is {age:.0f} s old, too new to tell: its run may be starting.")
        else:
            say(f"{path} belongs to a running process and stays as it is.")


def recorded(partial: Path, settle: Callable[[Path], RunRecord | None]) -> Recovered | None:
    """Publish a run with the record that ``settle`` makes; None: another process was faster."""
    try:
        with ownership.owned(partial):
            record = settle(partial)
            return Recovered(store.publish(partial) if record else partial, record)
    except LaunchError:
        return None
    except Exception as error:  # noqa: BLE001  the files may hold anything
        problem = " ".join(f"{type(error).__name__}: {error}".split())[:PROBLEM_CHARACTERS]
        return Recovered(partial, problem=problem) if partial.exists() else None


def links_of(partial: Path) -> str | None:
    """Return why a directory was not written by a run; None where nothing in it leads out."""
    links = untrusted.links_out(partial)
    return f"{links[0]} is a link that leads out of it" if links else None


def settle(
    partial: Path, status: Status = "interrupted", sentence: str | None = None
) -> RunRecord | None:
    """End what still runs of a partial run and return its record, written if it had none.

    None, and the directory is gone, where nothing had been started in it.
    """
    start = start_of(partial)
    if start is not None:
        processes.end(run_id(partial), GRACE_SECONDS, start=start)
    with suppress(RecordError):
        return store.read_record(partial)  # only the renaming was missing
    if not untrusted.is_there(partial / "config.json"):
        shutil.rmtree(partial)
        return None
    stop: EndReason = status, sentence or UNSAID
    end = read_exit(partial) or Ended(stop=stop if sentence else _disk_full(partial) or stop)
    return conclude(partial, end, finished_at=last_sign(partial))


def _disk_full(partial: Path) -> EndReason | None:
    """Return the end of a run whose logs say that no space was left, None where none does."""
    logs = (progress.last_lines(path, LOG_LINES) for path in sorted(partial.glob("train.log*")))
    full = causes.search([*itertools.chain(*logs)], causes.NO_SPACE)
    return (full.rule.status, causes.sentence(full, None), full.rule.cause) if full else None


def last_sign(partial: Path) -> str:
    """Return when the run last wrote anything, as records keep times."""
    names = ("config.json", LAUNCH_FILE, "steps.jsonl", "train.log", EXIT_FILE)
    newest = max(path.stat().st_mtime for name in names if (path := partial / name).exists())
    return datetime.fromtimestamp(newest, UTC).isoformat(timespec="seconds")
