"""Run a plan: one notebook after the other, each to its record, whatever happens on the way.

Papermill runs a notebook in a thread. A kernel can lose a message and then wait for ever, as
papermill does for it. What a run leaves in its directory tells how far it is; between the files a
kernel has so long and no longer. While the ranks train nothing is expected of it: training has
limits of its own.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from scalebook import notebooks, ownership, store
from scalebook.config import RunConfig
from scalebook.measure import provenance
from scalebook.notebooks import KernelDeathError
from scalebook.plan import Plan
from scalebook.project import short
from scalebook.record import RunRecord, Status
from scalebook.running import finish_run, live, processes, runner, todo
from scalebook.running.console import Console
from scalebook.running.kernel import RunOptions
from scalebook.running.outcome import signal_name
from scalebook.running.progress import POLL_SECONDS, Tail, duration, extra_seconds, line
from scalebook.running.todo import Action, Entry, Inference, Waited, again, label, place, wait

START_SECONDS = 900.0  # to import, look at the machine and start: a cold shared disk is slow
CLOSING_SECONDS = 90.0  # for a request to end the run, with its grace, and for the last cells
DYING_SECONDS = 30.0  # for papermill to see that its kernel is gone


@dataclass(frozen=True, slots=True)
class Settings:
    """How a plan is run; ``budget_seconds`` None means no limit for the whole plan."""

    runs: Path
    notebook: Path
    trainer: str = ""
    force_platform: bool = False
    budget_seconds: float | None = None
    plan: Plan | None = None  # what the records say of the order; its cool-down is kept
    prune: bool = True  # skip what is larger than a configuration that ran out of memory
    rerun: bool = False  # what ran out of memory before this plan counts no more
    accelerator: str | None = None  # this machine's device, where it is known
    after: Callable[[Path], Sequence[str]] | None = None  # of each run that ended; its warnings


def run_plan(
    entries: Sequence[Entry], settings: Settings, console: Console, stop: Stop
) -> tuple[Result, ...]:
    """Run every entry that is to be run, and return what became of each."""
    sweep = _Sweep([entry.action for entry in entries], settings, console, stop)
    return tuple(sweep.result(number, entry) for number, entry in enumerate(entries, start=1))


class _Sweep:
    """The state of a plan under way: how many have been run, and what has run out of memory."""

    def __init__(
        self, actions: Sequence[Action], settings: Settings, console: Console, stop: Stop
    ) -> None:
        self.settings, self.console, self.stop = settings, console, stop
        self.total, self.done = actions.count("run"), actions.count("done")
        self.runs, self.number, self.failed = self.total + self.done, 0, 0
        self.started = False
        self.seconds: list[float] = []  # of the runs that were trained
        known = todo.broken(settings.runs, settings.accelerator, fresh=settings.rerun)
        self.broken = known if settings.prune else None

    def result(self, number: int, entry: Entry) -> Result:
        """Return what becomes of the entry at this place of the plan, counted from 1."""
        if entry.action == "illegal":
            return unstarted(entry, self.settings.runs)
        if entry.action != "run":
            return Result(entry, None, entry.reason)
        self.number += 1
        where = f"[{self.number}/{self.total}]"
        sentence = self.stop.sentence()
        if sentence is not None:
            return Result(entry, None, f"not started: {sentence}")
        inference = self.broken.against(entry.config) if self.broken else None
        if inference is None:
            return self._run(number, entry, where)
        self.console.say(f"{where} {label(entry.config)}")
        self.console.say(f"{where} {inference.sentence}")
        return unstarted(entry, self.settings.runs, inference)

    def _run(self, number: int, entry: Entry, where: str) -> Result:
        waited = self._cool_down(where)
        sentence = self.stop.sentence()
        if sentence is not None:
            return Result(entry, None, f"not started: {sentence}")
        entry = again(entry, self.settings.runs, rerun=self.settings.rerun)
        if entry.action != "run":
            self.console.say(f"{where} {label(entry.config)}")
            self.console.say(f"{where} not started: {entry.reason}")
            return Result(entry, None, entry.reason)
        self.started = True
        plan = self.settings.plan
        scheduled = place(plan, number, waited) if plan else {}
        record = self._train(entry, where, scheduled)
        if self.broken is not None:
            self.broken.add(record)
        return Result(entry, RunEnd.of(record))

    def _train(self, entry: Entry, where: str, scheduled: dict[str, Any]) -> RunRecord:
        console = self.console
        console.say(f"{where} {label(entry.config)}")
        for warning in entry.warnings:
            console.say(f"{where} note: {warning}")
        started = time.monotonic()
        record, directory = run_one(
            entry.config,
            self.settings,
            console,
            self.stop,
            where,
            scheduled=scheduled,
            plan=self._state(scheduled),
        )
        self.seconds.append(time.monotonic() - started)
        self.done += record.status == "completed"
        self.failed += record.status != "completed"
        took = duration(self.seconds[-1])
        reason = f" {record.reason}" if record.reason else ""
        console.say(f"{where} {record.status} in {took}: {short(directory)}{reason}")
        for one in provenance.of(record):
            said = f"this run differs from what was requested: {one.sentence()}"
            console.say(f"{where} warning: {said}")
        for problem in self.settings.after(directory) if self.settings.after else ():
            console.say(f"{where} warning: {problem}")
        return record

    def _state(self, scheduled: dict[str, Any]) -> live.PlanState:
        """Return how far the plan is as the next run begins."""
        to_do = self.total - self.number
        mean = sum(self.seconds) / len(self.seconds) if self.seconds else None
        name = str(scheduled.get("plan", ""))
        return live.PlanState(name, self.runs, self.done, self.failed, to_do, mean)

    def _cool_down(self, where: str) -> Waited | None:
        """Wait as the plan asks; None before the first run and where nothing is asked for."""
        asked = self.settings.plan.schedule.cool_down if self.settings.plan else None
        if asked is None or not self.started:
            return None
        waited = wait(
            asked,
            lambda: self.stop.sentence() is not None,
            lambda text: self.console.live(f"{where} {text}"),
        )
        if waited.note:
            self.console.say(f"{where} note: {waited.note}")
        return waited


def _steady_now() -> datetime:
    """Return the time by the clock that this process began with.

    Runs are listed by the time in their names: those of a plan keep their order if it is set back.
    """
    began, booted = _began()
    return began + timedelta(seconds=finish_run.boot_seconds() - booted)


@cache
def _began() -> tuple[datetime, float]:
    return datetime.now(UTC), finish_run.boot_seconds()


def run_one(
    config: RunConfig,
    settings: Settings,
    console: Console,
    stop: Stop,
    where: str,
    *,
    scheduled: dict[str, Any] | None = None,
    plan: live.PlanState | None = None,
) -> tuple[RunRecord, Path]:
    """Train one configuration through its notebook; return its record and its directory."""
    partial = store.create_partial(settings.runs, config, _steady_now())
    with ownership.owned(partial):
        if scheduled:
            store.write_json(partial / finish_run.SCHEDULE_FILE, scheduled)
        if plan is not None:
            live.write_plan(partial, plan)
        options = RunOptions(trainer=settings.trainer, force_platform=settings.force_platform)
        work = Execution(settings.notebook, config, partial, options)
        lost = _follow(work, console, stop, where)
        record = _settle(partial, lost or work.error, stop)
        return record, store.publish(partial)


def _follow(work: Execution, console: Console, stop: Stop, where: str) -> str | None:
    """Show progress until the notebook has ended; pass on a request to stop.

    A second signal does not wait for the trainer to end by itself. Returns what a kernel failed to
    do that had to be ended here.
    """
    partial, config = work.directory, work.config
    tail, patience = Tail(partial / "steps.jsonl"), Patience(partial)
    monitor, asked, killed = live.Monitor(partial.parent, only=partial), False, False
    while work.is_alive():
        work.join(POLL_SECONDS)
        last = tail.read()
        text = f"{where} {label(config)}: {line(last, config.steps, tail.quiet_seconds())}"
        console.live(text, lambda: live.table(monitor.snapshot()))
        sentence = stop.sentence(extra_seconds(last, config.steps))
        if sentence is not None and not asked:
            asked = True
            stop_file = partial / runner.STOP_FILE
            store.write_json(stop_file, {"status": "interrupted", "sentence": sentence})
            console.say(f"{where} ending this run: {sentence}")
        start = finish_run.start_of(partial) if len(stop.signals) > 1 and not killed else None
        if start is not None:
            killed = processes.end(finish_run.run_id(partial), start=start)
        lost = patience.lost(asked=asked)
        if lost is not None and work.is_alive():
            console.say(f"{where} {lost}")
            work.end()
            return lost
    return None


def _settle(partial: Path, error: Exception | str | None, stop: Stop) -> RunRecord:
    """Return the record that the kernel wrote, or write the one that it could not write."""
    if error is None or (partial / "record.json").exists():
        return store.read_record(partial)
    sentence = stop.sentence()
    gone = sentence is not None or isinstance(error, KernelDeathError)
    status = "interrupted" if gone else "failed"
    record = finish_run.settle(partial, status, sentence or str(error))
    return record or store.read_record(partial)


def unstarted(entry: Entry, runs: Path, inference: Inference | None = None) -> Result:
    """Record an entry for which nothing is started: it is illegal, or by ``inference`` no fit."""
    if inference and inference.recorded:
        return Result(entry, None, inference.sentence, inferred=True)
    reason = inference.reason if inference else ("illegal", entry.reason or "illegal")
    end, source = finish_run.Ended(stop=reason), inference.run_id if inference else None
    partial = store.create_partial(runs, entry.config, _steady_now())
    with ownership.owned(partial):
        record = finish_run.conclude(partial, end, inferred_from=source)
        store.publish(partial)
    return Result(entry, RunEnd.of(record), inferred=inference is not None)


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended: what the summary of a plan says, without the whole record."""

    run_id: str
    status: Status
    reason: str | None

    @classmethod
    def of(cls, record: RunRecord) -> RunEnd:
        return cls(record.run_id, record.status, record.reason)


@dataclass(frozen=True, slots=True)
class Result:
    """What became of an entry: how it ended where it was run or recorded now, else ``note``."""

    entry: Entry
    ended: RunEnd | None
    note: str | None = None
    inferred: bool = False  # not run: a smaller configuration ran out of memory

    @property
    def status(self) -> str:
        """What became of it, or else what was to be done, in words."""
        if self.inferred:
            return "inferred"
        status = self.ended.status if self.ended else self.entry.action
        return status.replace("known_illegal", "illegal").replace("_", " ")

    @property
    def good(self) -> bool:
        """Whether a completed run of this configuration exists."""
        done = self.entry.action == "done"
        return done or (self.ended is not None and self.ended.status == "completed")


def summary(results: Sequence[Result]) -> list[str]:
    """Return one line for each entry of a plan: what it is and what became of it."""
    notes = ((one, (one.ended.reason if one.ended else one.note) or "") for one in results)
    return [
        f"{one.status:<13} {label(one.entry.config)}{': ' if note else ''}{note}"
        for one, note in notes
    ]


def exit_code(results: Sequence[Result], stop: Stop) -> int:
    """Return 0 if any configuration has a completed run, 1 if none, 128 + n after signal n."""
    if stop.exit_code is not None:
        return stop.exit_code
    return 0 if any(result.good for result in results) else 1


@dataclass(slots=True)
class Stop:
    """Whether the plan must end: by a signal, or because its time is used up."""

    deadline: float | None = None
    signals: list[int] = field(default_factory=lambda: [])

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        """Note a signal; a closed terminal sends more than one, and they count once."""
        if number != signal.SIGHUP or number not in self.signals:
            self.signals.append(number)

    def sentence(self, extra_seconds: float = 0.0) -> str | None:
        """Return why a run must end now, None while it may continue.

        ``extra_seconds`` are granted beyond the budget, not against a signal.
        """
        if self.signals:
            return f"'scalebook run' was ended by {signal_name(self.signals[0])}"
        if self.deadline is not None and time.monotonic() > self.deadline + extra_seconds:
            return "The time budget of the plan was used up"
        return None

    @property
    def exit_code(self) -> int | None:
        """128 + the first signal, None where none came."""
        return 128 + self.signals[0] if self.signals else None


@contextmanager
def stop_on_signals(budget_seconds: float | None) -> Generator[Stop]:
    """Yield what SIGINT, SIGTERM and SIGHUP set meanwhile; the handlers from before come back.

    SIGHUP (the terminal was closed) stays ignored where it is: under nohup.
    """
    deadline = None if budget_seconds is None else time.monotonic() + budget_seconds
    stop = Stop(deadline)
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    with processes.handled(stop, numbers):
        yield stop


class Execution(threading.Thread):
    """Papermill in a thread: in the main thread nbclient would take the signals to itself."""

    def __init__(
        self, notebook: Path, config: RunConfig, directory: Path, options: RunOptions
    ) -> None:
        super().__init__(daemon=True)
        self.config, self.directory = config, directory
        self._notebook, self._output = short(notebook), short(directory / "run.ipynb")
        own = replace(options, run_directory=str(short(directory)))
        self._parameters = {**config.model_dump(), **asdict(own)}
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Execute the notebook and keep its error for the thread that waits."""
        try:
            notebooks.execute(self._notebook, self._output, self._parameters)
        except Exception as error:  # noqa: BLE001  a defect in one run must not cost the others
            self.error = error
        finally:
            with suppress(RuntimeError):  # papermill made none
                # Else its descriptors stay open until memory is next searched for garbage.
                asyncio.get_event_loop().close()

    def end(self) -> None:
        """Kill the kernel, whose death ends papermill and, by its guard, what it ran."""
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):
                if "ipykernel_launcher" in child.cmdline():
                    child.kill()
        self.join(DYING_SECONDS)


@dataclass(slots=True)
class Patience:
    """How long the kernel of one run has kept what is waited for now."""

    directory: Path
    clock: Callable[[], float] = time.monotonic
    _awaited: str | None = None
    _since: float = 0.0

    def lost(self, *, asked: bool) -> str | None:
        """Return what the kernel is late to do, None while it has time.

        ``asked``: it has been told to end the run.
        """
        awaited, seconds = self._next(asked)
        if awaited != self._awaited:
            self._awaited, self._since = awaited, self.clock()
        if awaited is None or self.clock() - self._since <= seconds:
            return None
        return f"The notebook's kernel did not {awaited} within {seconds:.0f} s and was ended"

    def _next(self, asked: bool) -> tuple[str | None, float]:
        if (self.directory / "record.json").exists():
            return "end", CLOSING_SECONDS
        if asked:
            return "end the run", CLOSING_SECONDS
        if not (self.directory / finish_run.LAUNCH_FILE).exists():
            return "start the run", START_SECONDS
        return None, 0.0
