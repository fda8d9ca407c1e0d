"""What a plan still has to do here: which of its runs are done, illegal, or beyond this machine.

Also which would run out of memory as a smaller one did; the order of the others; and the cool-down
between two: so many seconds, or until every GPU is cold enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from scalebook import engines, identity, ownership, store
from scalebook.config import RunConfig
from scalebook.errors import ConfigError, RecordError
from scalebook.facts.feasibility import growth
from scalebook.facts.feasibility.known import config_of, ran_out
from scalebook.plan import Plan, PlannedRun
from scalebook.plan.schedule import CoolDown
from scalebook.record import RunRecord, Status, object_of
from scalebook.running import finish_run, launch
from scalebook.running.devices import telemetry
from scalebook.running.outcome import EndReason

Action = Literal["run", "done", "illegal", "known_illegal", "unavailable", "elsewhere"]

ELSEWHERE = "another process or job is running it"

LONGEST_SECONDS = 900.0  # a room may be warmer than what was asked for
READ_SECONDS = 2.0  # between two readings of the temperature: each opens the driver
POLL_SECONDS = 0.2
NO_TEMPERATURE = (
    "No temperature can be read here (NVML and amdsmi report none): the run did not wait. "
    "Give seconds instead of a temperature, such as --cool-down 60s."
)

Thermometer = Callable[[], float | None]
Show = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Entry:
    """One run of a plan and what to do about it; ``reason`` says why, where it is not run."""

    config: RunConfig
    action: Action
    reason: str | None = None
    warnings: tuple[str, ...] = ()
    memory_gib: float | None = None  # predicted, of the most loaded rank


def survey(
    plan: Plan, runs: Path, devices: int | None = None, rerun: bool = False, *, here: bool = True
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
        try:
            engines.check(config)
        except ConfigError as error:
            errors = str(error)
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


def finished_hashes(runs: Path, named: str = "") -> dict[str, Status]:
    """Return the status by configuration hash of every recorded run; completed wins.

    With ``named`` only directories that have it in their name are read, as those of a configuration
    have its hash.
    """
    found: dict[str, Status] = {}
    for directory in store.run_directories(runs):
        if named not in directory.name:
            continue
        with suppress(RecordError):
            record = store.read_record(directory)
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
    """Return a configuration in a line: model, processes, layout and options, the batch."""
    ranks = "1 rank" if config.world_size == 1 else f"{config.world_size} ranks"
    strategy = "" if config.strategy == "custom" else f" {config.strategy}"
    batch = f"batch {config.global_batch_size} x {config.sequence_length:,} tokens"
    batch += f" of {config.packed_documents} documents" if config.packed_documents > 1 else ""
    repeat = f", repeat {config.repeat}" if config.repeat else ""
    return f"{config.model}{strategy}, {ranks}, {config.words()}, {batch}{repeat}"


@dataclass(frozen=True, slots=True)
class Waited:
    """What a cool-down was: ``celsius`` of the hottest GPU at its end, None where unknown."""

    asked: str
    seconds: float
    celsius: float | None
    note: str | None = None  # what a reader should know: the wait was none, or ended too early


def place(plan: Plan, number: int, waited: Waited | None) -> dict[str, Any]:
    """Return what the record of the run at a place of a plan's order keeps."""
    order = plan.schedule
    notes = [f"Runs were in a random order within each repeat, seed {order.seed}."]
    notes = notes if order.order == "random" else []
    asked = {"kind": plan.kind, "question": plan.question}
    return {
        "plan": plan.name,
        **{name: text for name, text in asked.items() if text},
        "order": order.order,
        "seed": order.seed,
        "place": number,
        "of": len(plan.runs),
        "repeats": order.repeats,
        "cool_down": asdict(waited) if waited else None,
        "notes": notes + ([waited.note] if waited and waited.note else []),
    }


def wait(
    cool_down: CoolDown,
    ended: Callable[[], bool],
    show: Show = lambda _: None,
    temperature: Thermometer = telemetry.temperature_celsius,
) -> Waited:
    """Wait as requested and return what was waited for; ``ended`` cuts the wait short."""
    asked, start, goal = str(cool_down), time.monotonic(), cool_down.celsius or 0.0
    if cool_down.seconds is not None:
        while not ended() and (left := start + cool_down.seconds - time.monotonic()) > 0:
            show(f"cooling down: {left:.0f} s left")
            time.sleep(min(POLL_SECONDS, left))
        return Waited(asked, round(time.monotonic() - start, 1), temperature())
    while True:
        celsius, waited = temperature(), round(time.monotonic() - start, 1)
        if celsius is None:
            return Waited(asked, waited, None, NO_TEMPERATURE)
        if celsius <= goal or ended():
            return Waited(asked, waited, celsius)
        if waited > LONGEST_SECONDS:
            note = f"Still {celsius:g} °C after {waited:.0f} s: the run started above {goal:g} °C."
            return Waited(asked, waited, celsius, note)
        show(f"cooling down: {celsius:g} °C, until {goal:g} °C")
        pause = time.monotonic() + READ_SECONDS
        while not ended() and time.monotonic() < pause:
            time.sleep(POLL_SECONDS)


@dataclass(frozen=True, slots=True)
class Inference:
    """Why a configuration is taken to run out of memory, and the run that shows it."""

    run_id: str
    sentence: str
    recorded: bool  # a record says so already

    @property
    def reason(self) -> EndReason:
        """How the run would end, for its record."""
        return "out_of_memory", self.sentence


@dataclass(slots=True)
class Broken:
    """The newest measured end of every configuration that ran out of the device's memory.

    ``accelerator`` is this machine's device: a run on another one shows nothing about it. None
    where it is not known, or for a CPU.
    """

    accelerator: str | None = None
    _by_key: dict[str, tuple[RunConfig, str]] = field(
        default_factory=dict[str, tuple[RunConfig, str]]
    )
    _inferred: set[str] = field(default_factory=set[str])

    def add(self, record: RunRecord) -> None:
        """Take in one record; a later run that fits makes an earlier one that did not void."""
        if record.source == "inferred" and record.config_hash:
            self._inferred.add(record.config_hash)
        config, named = config_of(record), record.environment.get("accelerator")
        another = None not in (named, self.accelerator) and named != self.accelerator
        if record.source != "measured" or config is None or another:
            return
        if ran_out(record):
            self._by_key[identity.memory(config)] = config, record.run_id
        elif record.status == "completed":
            self._by_key.pop(identity.memory(config), None)

    def against(self, config: RunConfig) -> Inference | None:
        """Return why a configuration cannot fit, None where it has to be tried.

        A configuration that itself ran out of memory is tried again; its other repeats are not.
        """
        own = config.config_hash()
        for smaller, run_id in self._by_key.values():
            grown = growth(smaller, config)
            if grown is None or (not grown and smaller.config_hash() == own):
                continue
            changes = ", ".join(f"{name}={value}" for name, value in grown.items())
            what = f"with {changes} it needs no less" if changes else "it differs only in repeat"
            said = f"Not run, inferred: {run_id} ran out of memory, and {what}. --no-prune runs it."
            return Inference(run_id, said, own in self._inferred)
        return None


def broken(runs: Path, accelerator: str | None, *, fresh: bool = False, job_id: str = "") -> Broken:
    """Return what the records of a folder show; nothing yet where all is to run ``fresh``.

    With ``job_id`` only the records of that job of Slurm count.
    """
    found = Broken(accelerator)
    for directory in () if fresh else store.run_directories(runs):  # the oldest first
        with suppress(RecordError):
            record = store.read_record(directory)
            if not job_id or object_of(record.environment.get("slurm")).get("job_id") == job_id:
                found.add(record)
    return found


def inferences(entries: Iterable[Entry], runs: Path, *, fresh: bool) -> dict[str, Inference]:
    """Return by hash the entries to run that records already show not to fit."""
    known = broken(runs, None, fresh=fresh)
    waiting = (entry.config for entry in entries if entry.action == "run")
    found = ((config.config_hash(), known.against(config)) for config in waiting)
    return {name: inference for name, inference in found if inference is not None}
