"""Follow the jobs of a plan until the last has ended, or leave them to themselves."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scalebook import query, store
from scalebook.errors import RecordError
from scalebook.project import short
from scalebook.running import finish_run
from scalebook.running.cluster import jobs
from scalebook.running.cluster.jobs import Ask, JobState, queue, state_of
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
    """One run that is followed; ``result`` is what became of it, when its job has ended."""

    run: Submitted
    console: Console
    ask: Ask
    tail: Tail
    shown: str = ""
    result: Result | None = None

    def look(self, states: Mapping[str, JobState] | None) -> None:
        """Say how the job stands (None: no answer from the queue); record a run that has ended."""
        directory, state = self.run.directory, (states or {}).get(self.run.job_id)
        if states is not None and state is None and directory.is_dir():
            self._settle()
        if not directory.is_dir():
            self._ended()
        elif state is not None:
            self._say(state)

    def _settle(self) -> None:
        """Record a run whose job is not in the queue any more, unless it continues after all."""
        state, job = state_of(self.run.job_id, self.ask), jobs.SlurmJob.read(self.run.directory)
        if state is not None and not state.active and job is not None:
            jobs.settle_one(self.run.directory, job, state)

    def _ended(self) -> None:
        entry, directory = self.run.entry, self.run.directory
        final = directory.with_name(finish_run.run_id(directory))
        try:
            record = store.read_record(final)
        except RecordError:
            self.result = Result(entry, None)
            self.console.say(f"{self.name}: not run, its job ended before")
            return
        self.result = Result(entry, RunEnd.of(record), inferred=record.source == "inferred")
        reason = f" {record.reason}" if record.reason else ""
        self.console.say(f"{self.name}: {record.status}: {short(final)}{reason}")

    def _say(self, state: JobState) -> None:
        """Say a change of a job's state, and what a waiting one waits for."""
        reason = f" ({state.reason})" if state.reason and state.name == "PENDING" else ""
        text = f"{state.name.lower().replace('_', ' ')}{reason}"
        if text != self.shown:
            self.shown = text
            self.console.say(f"{self.name}: {text}")

    @property
    def name(self) -> str:
        return f"job {self.run.job_id}, {label(self.run.entry.config)}"


def follow(
    submitted: Sequence[Submitted],
    console: Console,
    stop: Stop,
    ask: Ask = query.ask,
    poll_seconds: float = POLL_SECONDS,
) -> tuple[list[Result], str | None]:
    """Return what became of each run, and why following ended early (None: all have ended)."""
    watches = [Watch(run, console, ask, Tail(run.directory / "steps.jsonl")) for run in submitted]
    heard, deadline = time.monotonic(), time.monotonic() + LONGEST_SECONDS
    why: str | None = None
    while why is None and (waiting := [one for one in watches if one.result is None]):
        states = queue(os.getuid(), ask)
        heard = heard if states is None else time.monotonic()
        for watch in waiting:
            watch.look(states)
        console.live(_summary(watches))
        why, due = _enough(stop, heard, deadline), time.monotonic() + poll_seconds
        waits = why is None and any(watch.result is None for watch in waiting)
        while waits and time.monotonic() < due and not stop.signals:
            time.sleep(min(0.5, poll_seconds))  # a signal is noticed soon
    note = f"not followed to its end: {why}"
    return [watch.result or Result(watch.run.entry, None, note) for watch in watches], why


def _enough(stop: Stop, heard: float, deadline: float) -> str | None:
    """Return why nobody should wait any longer, None while it makes sense."""
    if (sentence := stop.sentence()) is not None:
        return sentence
    if time.monotonic() - heard > SILENT_SECONDS:
        return f"Slurm has not answered for {SILENT_SECONDS / 60:.0f} minutes"
    return "a week has passed" if time.monotonic() > deadline else None


def _summary(watches: Sequence[Watch]) -> str:
    """Return one line: how many have ended, and how far the first one that runs has come."""
    ended = sum(watch.result is not None for watch in watches)
    parts = [f"{ended} of {len(watches)} ended"]
    running = (one for one in watches if one.result is None and one.shown == "running")
    for watch in itertools.islice(running, 1):
        steps = watch.run.entry.config.steps
        parts.append(f"job {watch.run.job_id}: {line(watch.tail.read(), steps)}")
    return ", ".join(parts)


def cancel(submitted: Sequence[Submitted]) -> None:
    """Ask Slurm to end the jobs."""
    query.ask(("scancel", *dict.fromkeys(run.job_id for run in submitted)))
