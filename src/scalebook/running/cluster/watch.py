"""Follow the jobs of a plan until the last has ended, or leave them to themselves."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scalebook import query, store
from scalebook.errors import RecordError
from scalebook.project import short
from scalebook.record import RunRecord
from scalebook.running import finish_run
from scalebook.running.cluster import jobs
from scalebook.running.cluster.jobs import GONE, Ask, JobState, queue, state_of
from scalebook.running.cluster.submit import Submitted
from scalebook.running.console import Console
from scalebook.running.progress import Tail, line
from scalebook.running.sweep import Result, RunEnd, Stop
from scalebook.running.todo import label

POLL_SECONDS = 5.0  # a controller serves a whole cluster
SILENT_SECONDS = 900.0  # without an answer from Slurm: then nothing is known any more
LONGEST_SECONDS = 7 * 86400.0  # nobody waits at a terminal for longer


@dataclass(slots=True)
class Watch:
    """One run that is followed; ``record`` and ``done`` are set when its job has ended."""

    run: Submitted
    tail: Tail
    shown: str = ""
    record: RunRecord | None = None
    done: bool = False

    @property
    def final(self) -> Path:
        """Where the run will be."""
        return self.run.directory.with_name(finish_run.run_id(self.run.directory))

    def result(self, note: str | None) -> Result:
        """Return what became of the run; ``note`` says why it was not followed to its end."""
        record = self.record
        if record is None:
            return Result(self.run.entry, None, note)
        return Result(self.run.entry, RunEnd.of(record), note, record.source == "inferred")


@dataclass(slots=True)
class Follower:
    """What following needs: where to speak, whom to ask, and when to stop."""

    console: Console
    stop: Stop
    ask: Ask = query.ask
    poll_seconds: float = POLL_SECONDS
    sleep: Callable[[float], None] = time.sleep
    _heard: float = field(default_factory=time.monotonic)

    def follow(self, submitted: Sequence[Submitted]) -> tuple[list[Result], str | None]:
        """Return what became of each run, and why following ended early (None: all have ended)."""
        watches = [Watch(run, Tail(run.directory / "steps.jsonl")) for run in submitted]
        deadline = time.monotonic() + LONGEST_SECONDS
        why: str | None = None
        while why is None and not all(watch.done for watch in watches):
            self._look(watches)
            why = self._enough(deadline)
            due = time.monotonic() + self.poll_seconds
            waits = why is None and not all(watch.done for watch in watches)
            while waits and time.monotonic() < due and not self.stop.signals:
                self.sleep(min(0.5, self.poll_seconds))  # a signal is noticed soon
        note = None if why is None else f"not followed to its end: {why}"
        return [watch.result(None if watch.done else note) for watch in watches], why

    def _enough(self, deadline: float) -> str | None:
        if self.stop.sentence() is not None:
            return self.stop.sentence()
        if time.monotonic() - self._heard > SILENT_SECONDS:
            return f"Slurm has not answered for {SILENT_SECONDS / 60:.0f} minutes"
        return "a week has passed" if time.monotonic() > deadline else None

    def _look(self, watches: Sequence[Watch]) -> None:
        states = queue(os.getuid(), self.ask)
        if states is not None:
            self._heard = time.monotonic()
        for watch in watches:
            if not watch.done:
                self._update(watch, states)
        self.console.live(_summary(watches))

    def _update(self, watch: Watch, states: dict[str, JobState] | None) -> None:
        if not watch.run.directory.is_dir():
            self._ended(watch)
        elif states is not None:
            state = states.get(watch.run.job_id)
            if state is None:
                self._settle(watch)
            else:
                self._say(watch, state)

    def _settle(self, watch: Watch) -> None:
        """Record a run whose job is not in the queue any more, unless it continues after all."""
        state = state_of(watch.run.job_id, self.ask)
        job = jobs.SlurmJob.read(watch.run.directory)
        if state is None or state.active or job is None:
            return
        jobs.settle_one(watch.run.directory, job, state)
        if not watch.run.directory.is_dir():
            self._ended(watch)

    def _ended(self, watch: Watch) -> None:
        watch.done = True
        try:
            watch.record = store.read_record(watch.final)
        except RecordError:
            self.console.say(f"{_name(watch)}: not run, its job ended before")
            return
        record = watch.record
        reason = f" {record.reason}" if record.reason else ""
        self.console.say(f"{_name(watch)}: {record.status}: {short(watch.final)}{reason}")

    def _say(self, watch: Watch, state: JobState) -> None:
        """Tell a change of a job's state, and what a waiting one waits for."""
        reason = f" ({state.reason})" if state.reason and state.name == "PENDING" else ""
        text = f"{state.name.lower().replace('_', ' ')}{reason}"
        if text != watch.shown and state.name != GONE:
            watch.shown = text
            self.console.say(f"{_name(watch)}: {text}")


def _name(watch: Watch) -> str:
    return f"job {watch.run.job_id}, {label(watch.run.entry.config)}"


def _summary(watches: Sequence[Watch]) -> str:
    """Return one line: how many have ended, and how far the first one that runs has come."""
    ended = sum(watch.done for watch in watches)
    parts = [f"{ended} of {len(watches)} ended"]
    for watch in watches:
        if not watch.done and watch.shown == "running":
            config = watch.run.entry.config
            parts.append(f"job {watch.run.job_id}: {line(watch.tail.read(), config.steps)}")
            break
    return ", ".join(parts)


def cancel(submitted: Sequence[Submitted]) -> None:
    """Ask Slurm to end the jobs."""
    query.ask(("scancel", *dict.fromkeys(run.job_id for run in submitted)))
