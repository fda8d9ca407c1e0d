"""What happens in a folder of runs now: the plan, the runs that train and their numbers so far.

Reads run directories only, so that it shows the runs of any process or node that shares the folder.
Entry points: ``Monitor(runs).snapshot()``, and ``table`` for a terminal.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from scalebook import ownership, scrub, store
from scalebook.config import RunConfig
from scalebook.errors import RecordError
from scalebook.measure import metrics
from scalebook.measure.metrics.peak import peak_of
from scalebook.measure.metrics.recorded import run_shape
from scalebook.measure.metrics.window import measured_steps
from scalebook.record import RunRecord, finite, number_of, object_of, seconds_between
from scalebook.running import finish_run
from scalebook.running.console import Console
from scalebook.running.progress import LEAST_QUIET_SECONDS, SLOW_STEPS, duration, last_lines
from scalebook.running.todo import label

READ_SECONDS = 1.0  # between two looks at a run's files
COST = 20.0  # looks take at most 1/COST of the time, however long steps.jsonl has become
POINTS = 400  # of a curve: more than a page has pixels for
LOG_LINES = 40
ENDED = 30  # newest ended runs that are listed
READINGS = 256  # last lines of a node's telemetry that are looked at
PAUSE_SECONDS = 60.0  # how long the next run of a plan is waited for
SETTLE_SECONDS = 30.0  # between two questions to a cluster's queue
STALE_SECONDS = 60.0  # a device whose last reading is older than the newest by this is left out
RECENT_STEPS = 50  # their median says how long the steps to come take

State = Literal["waiting", "starting", "training", "left behind"]


@dataclass(frozen=True, slots=True)
class PlanState:
    """How far a plan was when its running run began; ``to_do`` is without that run."""

    name: str
    total: int
    done: int
    failed: int
    to_do: int
    seconds_each: float | None = None  # mean of the runs that this process ended
    running: int = 1

    def left(self, run: LiveRun) -> float | None:
        """Return the seconds that the plan still takes, None where nothing says how long.

        Runs to come take as long as those before, or as the one that trains.
        """
        so_far, own, each = run.seconds or 0.0, run.seconds_left, self.seconds_each
        if own is None:
            return None if each is None else max(each - so_far, 0.0) + self.to_do * each
        return own + self.to_do * (so_far + own if each is None else each)


_PLAN = TypeAdapter(PlanState)


@dataclass(frozen=True, slots=True)
class LiveRun:
    """One run that has not ended: its numbers so far; what is not known is None."""

    run_id: str
    label: str
    state: State
    detail: str  # starting, warm-up, measured, ... or what keeps it
    step: int
    steps_asked: int | None
    seconds: float | None  # since its start
    seconds_left: float | None
    tokens_per_second_per_gpu: float | None
    tokens_per_second_per_gpu_low: float | None  # 95 % interval of the configuration
    tokens_per_second_per_gpu_high: float | None
    interval_reason: str | None
    mfu: float | None
    mfu_low: float | None
    mfu_high: float | None
    mfu_reason: str | None
    memory_gib: float | None  # most that torch had allocated on any rank
    power_watts: float | None  # newest reading, mean over the devices
    loss: float | None
    plan: PlanState | None = None
    curve: tuple[tuple[int, float | None, float | None], ...] = ()  # step, loss, step seconds
    log: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EndedRun:
    """One run that has a record."""

    run_id: str
    label: str
    status: str
    reason: str | None
    seconds: float | None
    tokens_per_second_per_gpu: float | None
    mfu: float | None
    finished_at: str | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a folder of runs holds at one time (UTC, ISO 8601)."""

    time: str
    plan: PlanState | None
    plan_seconds_left: float | None
    running: tuple[LiveRun, ...]
    ended: tuple[EndedRun, ...] = ()

    @property
    def busy(self) -> bool:
        """Whether a run waits or trains; one that was left behind does neither."""
        return any(run.state != "left behind" for run in self.running)


@dataclass(slots=True)
class Monitor:
    """Looks at a folder of runs again and again; reads again only what has changed."""

    runs: Path
    only: Path | None = None  # one partial directory in place of all of them
    curves: bool = False  # with curves, the log and the runs that have ended
    _seen: dict[Path, tuple[Any, float, LiveRun]] = field(default_factory=lambda: {})
    _ended: dict[Path, EndedRun] = field(default_factory=lambda: {})

    def snapshot(self) -> Snapshot:
        partials = (self.only,) if self.only else store.partial_directories(self.runs)
        running = tuple(self._run(partial) for partial in partials)
        self._seen = {path: seen for path, seen in self._seen.items() if path in partials}
        first = next((run for run in running if run.plan and run.state != "left behind"), None)
        plan = first.plan if first else None
        return Snapshot(
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            plan=plan,
            plan_seconds_left=plan.left(first) if plan and first else None,
            running=running,
            ended=self._ended_runs() if self.curves else (),
        )

    def ending(self, run_id: str) -> str:
        try:
            record = store.read_record(self.runs / run_id)
        except RecordError:
            return "ended, without a record"
        return record.status.replace("_", " ") + (
            f": {_text(record.reason)}" if record.reason else ""
        )

    def _run(self, partial: Path) -> LiveRun:
        stamp = tuple(_stamp(partial / name) for name in ("steps.jsonl", "observed.json"))
        seen, now = self._seen.get(partial), time.monotonic()
        if seen is None or (seen[0] != stamp and now >= seen[1]):
            run = _read(partial, curves=self.curves)
            pause = max(READ_SECONDS, COST * (time.monotonic() - now))
            seen = (stamp, now + pause, run)
            self._seen[partial] = seen
        return _now(partial, seen[2], curves=self.curves)

    def _ended_runs(self) -> tuple[EndedRun, ...]:
        newest = [*store.run_directories(self.runs)][-ENDED:][::-1]
        for path in newest:
            if path not in self._ended:
                with suppress(RecordError):
                    self._ended[path] = _read_ended(path)
        return tuple(self._ended[path] for path in newest if path in self._ended)


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return what changes when a file does, None where there is none."""
    try:
        about = path.lstat()
    except OSError:
        return None
    return about.st_size, about.st_mtime_ns


def _read(partial: Path, *, curves: bool) -> LiveRun:
    """Return a run by its steps; what changes without a new step is added by ``_now``."""
    record = _record(partial)
    steps = store.read_steps(partial / "steps.jsonl")[0]
    last = steps[-1] if len(steps) else None
    asked = record.requested.get("steps")
    steps_asked, seconds_left = asked if isinstance(asked, int) else None, None
    recent = list(steps.known("step_seconds")[1:])[-RECENT_STEPS:]  # none before the second step
    if last and recent and steps_asked is not None:
        seconds_left = max(steps_asked - last.step, 0) * median(recent)
    memory = max(steps.known("allocated_gib"), default=0.0)
    return LiveRun(
        run_id=_text(finish_run.run_id(partial)),
        label=_label(record.requested, finish_run.run_id(partial)),
        state="training" if last else "starting",
        detail=last.phase if last else "starting",
        step=last.step if last else 0,
        steps_asked=steps_asked,
        seconds=None,
        seconds_left=seconds_left,
        **_rates(partial, record, steps),
        memory_gib=memory or None,
        power_watts=None,
        loss=last.loss if last else None,
        plan=_plan(partial),
        curve=_curve(steps) if curves else (),
    )


def _now(partial: Path, run: LiveRun, *, curves: bool) -> LiveRun:
    """Return a run with what changes from one moment to the next."""
    started = store.read_object(partial / finish_run.LAUNCH_FILE).get("started_at")
    state: State = run.state
    if not ownership.is_live(partial):
        state = "left behind"
    elif (partial / ownership.JOB_FILE).exists() and not isinstance(started, str):
        state = "waiting"
    detail = {"left behind": "its process has ended: scalebook recover", "waiting": "for its job"}
    return replace(
        run,
        state=state,
        detail=detail.get(state) or _quiet(partial, run) or run.detail,
        seconds=seconds_between(started, datetime.now(UTC).isoformat()),
        power_watts=_power(partial),
        log=_log(partial) if curves else (),
    )


def _record(partial: Path) -> RunRecord:
    """Return the record that a run would have if it ended completed now."""
    launch = store.read_object(partial / finish_run.LAUNCH_FILE)
    trainer = store.read_object(partial / "observed.json")
    environment = object_of(launch.get("environment")) | object_of(trainer.get("environment"))
    requested = store.read_object(partial / "config.json")
    observed = object_of(trainer.get("observed"))
    bare = RunRecord(run_id=finish_run.run_id(partial), config_hash=None, status="completed")
    with suppress(ValidationError):
        values = {"requested": requested, "observed": observed, "environment": environment}
        return RunRecord.model_validate(bare.model_dump() | values)
    return bare


def _rates(partial: Path, record: RunRecord, steps: store.Steps) -> dict[str, Any]:
    """Return the fields that are rates: of the steady steps, else of the measured ones so far."""
    found = metrics.measure(store.Run(partial, record, steps))
    world = found.world_size or 1
    rate, low, high = _plain_rate(steps), None, None
    if found.tokens_per_second is not None:
        rate = found.tokens_per_second
        low, high = found.tokens_per_second_low, found.tokens_per_second_high
    values: dict[str, Any] = {name: getattr(found, name) for name in ("mfu", "mfu_low", "mfu_high")}
    if found.mfu is None and rate is not None and found.status != "void":
        values["mfu"] = metrics.mfu_of(record, rate / world)
    why = run_shape(record)[1] or peak_of(record, None)[2] or found.mfu_reason
    return {
        "tokens_per_second_per_gpu": rate / world if rate is not None else None,
        "tokens_per_second_per_gpu_low": low / world if low is not None else None,
        "tokens_per_second_per_gpu_high": high / world if high is not None else None,
        "interval_reason": found.interval_reason if low is None else None,
        "mfu_reason": why if values["mfu"] is None else None,
        **values,
    }


def _plain_rate(steps: store.Steps) -> float | None:
    """Return tokens/s over the measured steps so far, before them of the last warm-up step."""
    measured = measured_steps(steps)
    counted = measured if len(measured) else steps[-1:]
    seconds, tokens = sum(counted.known("step_seconds")), sum(counted.known("tokens"))
    return tokens / seconds if seconds > 0 and tokens > 0 else None


def _quiet(partial: Path, run: LiveRun) -> str | None:
    """Return that no step has come for unusually long, None where that is not so."""
    stamp = _stamp(partial / "steps.jsonl")
    if stamp is None or run.seconds_left is None or run.steps_asked is None:
        return None
    left = run.steps_asked - run.step
    quiet = time.time() - stamp[1] / 1e9
    usual = run.seconds_left / left if left > 0 else None
    if usual is None or quiet <= max(SLOW_STEPS * usual, LEAST_QUIET_SECONDS):
        return None
    return f"no step for {duration(quiet)}"


def _power(partial: Path) -> float | None:
    """Return the newest power in watts, the mean over the run's devices; None without any."""
    newest: dict[tuple[str, str, str], tuple[float, float]] = {}
    for path in sorted(partial.glob("telemetry*.jsonl")):
        for line in last_lines(path, READINGS, READINGS * 512):
            with suppress(ValueError, RecursionError):
                row = object_of(json.loads(line))
                moment, watts = number_of(row.get("time")), number_of(row.get("power_watts"))
                if moment is not None and watts is not None:
                    key = (str(row.get("node")), str(row.get("gpu")), str(row.get("cpu")))
                    newest[key] = (moment, watts)
    last = max((moment for moment, _ in newest.values()), default=0.0)
    found = [watts for moment, watts in newest.values() if moment > last - STALE_SECONDS]
    return fmean(found) if found else None


def _plan(partial: Path) -> PlanState | None:
    value = finite(store.read_object(partial / finish_run.PLAN_FILE))
    try:
        plan = _PLAN.validate_python(value)
    except ValidationError:
        return None
    return replace(plan, name=_text(plan.name))


def write_plan(partial: Path, plan: PlanState) -> None:
    """Write how far the plan is into the directory of the run that begins, for other processes."""
    store.write_json(partial / finish_run.PLAN_FILE, asdict(plan))


def _curve(steps: store.Steps) -> tuple[tuple[int, float | None, float | None], ...]:
    """Return step, loss and step seconds of evenly spaced steps, the last of them included."""
    every = max(1, -(-len(steps) // POINTS))
    return tuple(
        (step.step, finite(step.loss), finite(step.step_seconds)) for step in steps[::-every]
    )[::-1]


def _log(partial: Path) -> tuple[str, ...]:
    lines = last_lines(partial / "train.log", LOG_LINES + 1)
    lines = lines[:-1] if lines and not lines[-1] else lines
    return tuple(map(_text, scrub.scrub_all(lines[-LOG_LINES:], os.environ)))


def _label(requested: dict[str, Any], name: str) -> str:
    try:
        return _text(label(RunConfig.model_validate(requested)))
    except (ValidationError, ValueError, TypeError):
        return _text(name)


def _text(text: str) -> str:
    """Return a text of a file without secrets and without what a terminal would obey."""
    clean = scrub.scrub(text[:2000], os.environ)
    return "".join(c if c.isprintable() else " " if c == "\t" else "\ufffd" for c in clean)


def _read_ended(path: Path) -> EndedRun:
    run = store.read_run(path)
    found, record, ended = metrics.measure(run), run.record, run.record.finished_at
    return EndedRun(
        run_id=_text(path.name),
        label=_label(record.requested, path.name),
        status=found.status.replace("_", " "),
        reason=_text(found.reason) if found.reason else None,
        seconds=seconds_between(record.started_at, ended),
        tokens_per_second_per_gpu=found.tokens_per_second_per_gpu,
        mfu=found.mfu,
        finished_at=_text(ended) if ended else None,
    )


COLUMNS = ("step", "left", "tokens/s per GPU", "MFU", "memory", "power")


def table(snapshot: Snapshot) -> list[str]:
    """Return the lines of the table for a terminal; the console cuts them to its width."""
    lines = [plan_line(snapshot)] if snapshot.plan else []
    counts = Counter(run.state for run in snapshot.running)
    if not lines and len(snapshot.running) > 1:
        lines = [", ".join(f"{count} {state}" for state, count in counts.items())]
    rows = {run.run_id: _cells(run) for run in snapshot.running if run.state == "training"}
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows.values(), strict=True)]
    lines += [_row(COLUMNS, widths)] if rows else []
    for run in snapshot.running:
        doing = run.state if run.state == run.detail else f"{run.state}, {run.detail}"
        lines.append(f"{run.label}: {doing}")
        lines += [_row(rows[run.run_id], widths)] if run.run_id in rows else []
    return lines


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return f" {'  '.join(padded)}".rstrip()


def plan_line(snapshot: Snapshot) -> str:
    plan = snapshot.plan
    if plan is None:
        return ""
    counts = f"{plan.done} done, {plan.running} running, {plan.to_do} to do"
    failed = f", {plan.failed} failed" if plan.failed else ""
    left = snapshot.plan_seconds_left
    about = "" if left is None else f"; about {duration(left)} left"
    name = f"Plan {plan.name!r}" if plan.name else "Plan"
    return f"{name}: {counts}{failed}, of {plan.total}{about}"


def _cells(run: LiveRun) -> tuple[str, ...]:
    """Return the numbers of a run in the order of ``COLUMNS``."""
    rate = "-"
    if (value := run.tokens_per_second_per_gpu) is not None:
        low, high = run.tokens_per_second_per_gpu_low, run.tokens_per_second_per_gpu_high
        rate = f"{value:,.0f}{_ends(low, high, ',.0f')}"
    mfu = "-"
    if run.mfu is not None:
        low, high = (end and 100 * end for end in (run.mfu_low, run.mfu_high))
        mfu = f"{100 * run.mfu:.1f} %{_ends(low, high, '.1f')}"
    return (
        f"{run.step}/{'?' if run.steps_asked is None else run.steps_asked}",
        "-" if run.seconds_left is None else duration(run.seconds_left),
        rate,
        mfu,
        "-" if run.memory_gib is None else f"{run.memory_gib:.1f} GiB",
        "-" if run.power_watts is None else f"{run.power_watts:.0f} W",
    )


def _ends(low: float | None, high: float | None, form: str) -> str:
    return "" if low is None or high is None else f" ({low:{form}}-{high:{form}})"


def watch(
    monitor: Monitor, console: Console, seconds: float, settle: Callable[[], None] = lambda: None
) -> int:
    """Show a folder's runs until none waits or trains; return how many were seen to end.

    ``settle`` records runs whose jobs have ended. Between two runs of a plan none trains for a
    moment, and longer while devices cool down: the next is waited for ``PAUSE_SECONDS``.
    """
    seen, gone = set[str](), set[str]()  # of them those that ended
    to_do, settled, busy = 0, -math.inf, time.monotonic()
    while True:
        if time.monotonic() - settled >= SETTLE_SECONDS:
            settle()
            settled = time.monotonic()
        now = monitor.snapshot()
        if now.busy:
            busy, to_do = time.monotonic(), now.plan.to_do if now.plan else 0
        names = {run.run_id for run in now.running if run.state != "left behind"}
        for name in sorted(seen - names - gone):
            console.say(f"{name}: {monitor.ending(name)}")
        gone |= seen - names
        seen |= names
        if not now.busy and not (to_do and time.monotonic() - busy < PAUSE_SECONDS):
            return len(seen)
        console.live(_one_line(now), lambda now=now: table(now))
        time.sleep(seconds)


def _one_line(now: Snapshot) -> str:
    """Return the same in one line, for a file or a notebook."""
    runs: list[str] = []
    for run in now.running:
        if run.state == "training":
            cells = zip(COLUMNS, _cells(run), strict=True)
            numbers = ", ".join(f"{name} {cell}" for name, cell in cells if cell != "-")
            runs.append(f"{run.label}: {numbers}")
    waiting = sum(run.state in ("waiting", "starting") for run in now.running)
    parts = [plan_line(now)] if now.plan else []
    parts += [f"{waiting} waiting or starting"] if waiting else []
    return "; ".join(parts + runs) or "the next run of the plan has not begun"
