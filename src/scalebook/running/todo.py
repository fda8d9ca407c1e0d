"""What a plan still has to do here: which of its runs are done, illegal, or beyond this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from scalebook import engines, ownership, store
from scalebook.config import RunConfig
from scalebook.errors import ConfigError, RecordError
from scalebook.plan import Plan, PlannedRun
from scalebook.record import Status
from scalebook.running import finish_run, launch
from scalebook.settings import SETTINGS

Action = Literal["run", "done", "illegal", "known_illegal", "unavailable", "elsewhere"]

ELSEWHERE = "another process or job is running it"

_SHORT = {row.name: row.short.lower() for row in SETTINGS.values() if row.short} | {
    "data_parallel_size": "dp"
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One run of a plan and what to do about it; ``reason`` says why, where it is not run."""

    config: RunConfig
    action: Action
    reason: str | None = None
    warnings: tuple[str, ...] = ()
    memory_gib: float | None = None  # predicted, of the most loaded rank


def survey(
    plan: Plan,
    runs: Path,
    devices: int | None = None,
    rerun: bool = False,
    *,
    here: bool = True,
) -> tuple[Entry, ...]:
    """Return what to do about each run of a plan, in its order.

    Only a completed run of the same configuration counts as done, so that a failed one is tried
    again. ``devices`` is how many this machine has (None: does not matter); ``here`` False: the
    runs are for other machines, so what this one cannot start does not count.
    """
    finished = {} if rerun else finished_hashes(runs)
    live = live_hashes(runs)
    return tuple(_entry(planned, finished, live, devices, here) for planned in plan.runs)


def again(entry: Entry, runs: Path, *, rerun: bool = False) -> Entry:
    """Return the current state of an entry that is to be run: another process may have taken it."""
    name = entry.config.config_hash()
    if name in live_hashes(runs):
        return replace(entry, action="elsewhere", reason=ELSEWHERE)
    if not rerun and finished_hashes(runs, name).get(name) == "completed":
        return replace(entry, action="done", reason="a completed run of it exists now")
    return entry


def _entry(
    planned: PlannedRun,
    finished: Mapping[str, Status],
    live: frozenset[str],
    devices: int | None,
    here: bool,
) -> Entry:
    config, name = planned.config, planned.config.config_hash()
    # What this machine lacks is no property of the configuration: it is said, but not recorded.
    problems = [problem for problem in planned.problems if problem.rule != "devices"]
    lacking = [problem for problem in planned.problems if problem.rule == "devices"]
    errors = " ".join(problem.message for problem in problems if problem.severity == "error")
    warnings = [problem.message for problem in problems if problem.severity != "error"]
    if not errors:
        errors = _refused_by_engine(config)
    if planned.fits is False and planned.fit is not None:
        # A prediction forbids nothing: if the run breaks, its record says so.
        warnings.append(f"{planned.fit.reason}.")
    missing = launch.unavailable(config, devices) if here else None
    if errors:
        known = finished.get(name) == "illegal"
        return Entry(config, "known_illegal" if known else "illegal", errors)
    if finished.get(name) == "completed":
        return Entry(config, "done")
    if missing or lacking:
        return Entry(config, "unavailable", missing or lacking[0].message)
    if name in live:
        return Entry(config, "elsewhere", ELSEWHERE)
    memory = planned.memory.total_gib if planned.memory else None
    return Entry(config, "run", None, tuple(warnings), memory)


def _refused_by_engine(config: RunConfig) -> str:
    """Return what the engine of a run does not support; empty where it supports all."""
    try:
        engines.check(config)
    except ConfigError as error:
        return str(error)
    return ""


def finished_hashes(runs: Path, named: str = "") -> dict[str, Status]:
    """Return the status by configuration hash of every recorded run; completed wins.

    With ``named`` only directories that have it in their name are read, as those of a configuration
    have its hash.
    """
    found: dict[str, Status] = {}
    for directory in store.run_directories(runs):
        if named not in directory.name:
            continue
        try:
            record = store.read_record(directory)
        except RecordError:
            continue
        name = record.config_hash
        if name and record.source == "measured" and found.get(name) != "completed":
            found[name] = record.status
    return found


def live_hashes(runs: Path) -> frozenset[str]:
    """Return the configuration hashes of runs that other processes are at."""
    return frozenset(
        name
        for partial in store.partial_directories(runs)
        if ownership.is_live(partial)
        and (name := finish_run.hash_of(store.read_object(partial / "config.json")))
    )


def label(config: RunConfig) -> str:
    """Return a configuration's short name: model, processes, every size above 1, the batch."""
    sizes = [
        f"{short} {getattr(config, name)}"
        for name, short in _SHORT.items()
        if getattr(config, name) > 1
    ]
    sizes += ["sp"] if config.sequence_parallel else []
    ranks = "1 rank" if config.world_size == 1 else f"{config.world_size} ranks"
    split = f" ({', '.join(sizes)})" if sizes else ""
    strategy = "" if config.strategy == "custom" else f" {config.strategy}"
    batch = f", batch {config.global_batch_size}x{config.sequence_length}"
    micro = f" by {config.micro_batch_size}"
    repeat = f", repeat {config.repeat}" if config.repeat else ""
    return f"{config.model} {config.precision}{strategy}, {ranks}{split}{batch}{micro}{repeat}"
