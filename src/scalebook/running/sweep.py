"""Run a plan: one notebook after the other, each to its record, whatever happens on the way."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from scalebook import notebooks, store
from scalebook.config import RunConfig
from scalebook.project import short
from scalebook.record import RunRecord
from scalebook.running import conclusion, ownership, processes, recovery, runner
from scalebook.running.console import Console
from scalebook.running.outcome import signal_name
from scalebook.running.progress import POLL_SECONDS, Tail, duration, line
from scalebook.running.survey import Entry, label


@dataclass(frozen=True, slots=True)
class Settings:
    """How a plan is run; ``budget_seconds`` None means no limit for the whole plan."""

    runs: Path
    notebook: Path
    trainer: str = ""
    force_platform: bool = False
    budget_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What became of an entry: a record where one was written now, ``note`` where none was."""

    entry: Entry
    record: RunRecord | None
    note: str | None = None

    @property
    def good(self) -> bool:
        """Whether a completed run of this configuration exists."""
        done = self.entry.action == "done"
        return done or (self.record is not None and self.record.status == "completed")


@dataclass(slots=True)
class Stop:
    """Whether the plan must end: by a signal, or because its time is used up."""

    deadline: float | None = None
    signals: list[int] = field(default_factory=lambda: [])

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        """Note a signal."""
        self.signals.append(number)

    def sentence(self) -> str | None:
        """Return why a run must end now, None while it may go on."""
        if self.signals:
            return f"'scalebook run' was ended by {signal_name(self.signals[0])}"
        if self.deadline is not None and time.monotonic() > self.deadline:
            return "The time budget of the plan was used up"
        return None

    @property
    def exit_code(self) -> int | None:
        """128 + the first signal, None where none came."""
        return 128 + self.signals[0] if self.signals else None


@contextmanager
def stop_on_signals(budget_seconds: float | None) -> Generator[Stop]:
    """Yield what SIGINT and SIGTERM set meanwhile; the handlers from before come back."""
    deadline = None if budget_seconds is None else time.monotonic() + budget_seconds
    stop = Stop(deadline)
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_plan(
    entries: Sequence[Entry], settings: Settings, console: Console, stop: Stop
) -> tuple[Result, ...]:
    """Run every entry that is to be run, and return what became of each."""
    total = sum(entry.action == "run" for entry in entries)
    results: list[Result] = []
    number = 0
    for entry in entries:
        if entry.action == "illegal":
            results.append(Result(entry, record_illegal(entry, settings.runs)))
        elif entry.action != "run":
            results.append(Result(entry, None, entry.reason))
        elif (sentence := stop.sentence()) is not None:
            results.append(Result(entry, None, f"not started: {sentence}"))
        else:
            number += 1
            results.append(_run_entry(entry, f"[{number}/{total}]", settings, console, stop))
    return tuple(results)


def _run_entry(
    entry: Entry, place: str, settings: Settings, console: Console, stop: Stop
) -> Result:
    console.say(f"{place} {label(entry.config)}")
    for warning in entry.warnings:
        console.say(f"{place} note: {warning}")
    started = time.monotonic()
    record, directory = run_one(entry.config, settings, console, stop, place)
    took = duration(time.monotonic() - started)
    reason = f" {record.reason}" if record.reason else ""
    console.say(f"{place} {record.status} in {took}: {short(directory)}{reason}")
    return Result(entry, record)


def run_one(
    config: RunConfig, settings: Settings, console: Console, stop: Stop, place: str
) -> tuple[RunRecord, Path]:
    """Train one configuration through its notebook; return its record and its directory."""
    partial = store.create_partial(settings.runs, config, datetime.now(UTC))
    with ownership.owned(partial):
        work = _Execution(config, partial, settings)
        _follow(work, console, stop, place)
        record = _settle(partial, work.error, stop)
        return record, store.publish(partial)


class _Execution(threading.Thread):
    """Papermill in a thread: in the main thread nbclient would take the signals to itself."""

    def __init__(self, config: RunConfig, partial: Path, settings: Settings) -> None:
        super().__init__(daemon=True)
        self.config, self.partial = config, partial
        options = {
            "run_directory": str(short(partial)),
            "trainer": settings.trainer,
            "force_platform": settings.force_platform,
        }
        self.parameters = {**config.model_dump(), **options}
        self.notebook, self.output = short(settings.notebook), short(partial / "run.ipynb")
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Execute the notebook and keep its error for the thread that waits."""
        try:
            notebooks.execute(self.notebook, self.output, self.parameters)
        except Exception as error:  # noqa: BLE001  a defect in one run must not cost the others
            self.error = error


def _follow(work: _Execution, console: Console, stop: Stop, place: str) -> None:
    """Show progress until the notebook has ended; pass on a request to stop.

    A second signal does not wait for the trainer to end by itself.
    """
    partial, config = work.partial, work.config
    tail = Tail(partial / "steps.jsonl")
    asked = killed = False
    while work.is_alive():
        work.join(POLL_SECONDS)
        console.live(f"{place} {label(config)}: {line(tail.read(), config.steps)}")
        sentence = stop.sentence()
        if sentence is not None and not asked:
            asked = True
            runner.request_stop(partial, "interrupted", sentence)
            console.say(f"{place} ending this run: {sentence}")
        if len(stop.signals) > 1 and not killed:
            killed = processes.end(conclusion.run_id(partial))


def _settle(partial: Path, error: Exception | None, stop: Stop) -> RunRecord:
    """Return the record that the kernel wrote, or write the one that it could not write."""
    if error is None or (partial / "record.json").exists():
        return store.read_record(partial)
    sentence = stop.sentence()
    status = "failed" if sentence is None else "interrupted"
    record = recovery.settle(partial, status, sentence or str(error))
    return record or store.read_record(partial)


def record_illegal(entry: Entry, runs: Path) -> RunRecord:
    """Write and return the record of a configuration that nothing was started for."""
    partial = store.create_partial(runs, entry.config, datetime.now(UTC))
    with ownership.owned(partial):
        record = conclusion.conclude(partial, stop=("illegal", entry.reason or "illegal"))
        store.publish(partial)
    return record


def summary(results: Sequence[Result]) -> list[str]:
    """Return one line for each entry of a plan: what it is and what became of it."""
    lines: list[str] = []
    for result in results:
        status = result.record.status if result.record else result.entry.action
        note = (result.record.reason if result.record else result.note) or ""
        shown = status.replace("known_illegal", "illegal").replace("_", " ")
        lines.append(f"{shown:<13} {label(result.entry.config)}{': ' if note else ''}{note}")
    return lines


def exit_code(results: Sequence[Result], stop: Stop) -> int:
    """Return 0 if any configuration has a completed run, 1 if none, 128 + n after signal n."""
    if stop.exit_code is not None:
        return stop.exit_code
    return 0 if any(result.good for result in results) else 1
