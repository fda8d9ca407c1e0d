"""One side of a comparison: a run, a folder of repeats, or a file of step times."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalebook.errors import RecordError
from scalebook.metrics import RunMetrics, measure
from scalebook.metrics.repeats import Estimate, configuration, estimate, start_spread
from scalebook.metrics.steady import Steady, find_steady
from scalebook.record import RunRecord
from scalebook.store import Run, read_run, read_runs, read_steps
from scalebook.verdicts.compare import Verdict, compare

_LONGEST, _SHORTEST = 1e9, 1e-9  # seconds of a step that could be one


@dataclass(frozen=True, slots=True)
class Series:
    """Step times of a file in its order, and how many at the start are warm-up by its record."""

    seconds: tuple[float, ...]
    minimum: int = 0

    def steady(self) -> Steady:
        """Return the steady state of the series."""
        return find_steady(self.seconds, self.minimum)


@dataclass(frozen=True, slots=True)
class Side:
    """What is known of one side: rates by run, in steps per second and, where known, tokens."""

    name: str
    steps: tuple[Estimate, ...] = ()
    tokens: tuple[Estimate, ...] | None = None
    records: tuple[RunRecord, ...] = ()
    reason: str | None = None  # why there is no rate


def read_series(path: Path) -> Series:
    """Return the step times of a text file (seconds, one a line) or of a steps.jsonl.

    Raises:
        RecordError: the file cannot be read, or a line of it is no time above zero.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise RecordError(f"{path} cannot be read: {reason}.") from error
    lines = [line.strip() for line in text.splitlines()]
    if any(line.startswith("{") for line in lines):
        return _records(path)
    found: list[float] = []
    for number, line in enumerate(lines, start=1):
        if line and not line.startswith("#"):
            found.append(_seconds(path, number, line))
    return _checked(path, found, 0)


def _seconds(path: Path, number: int, line: str) -> float:
    try:
        value = float(line)
    except ValueError:
        value = math.nan
    if not _SHORTEST < value < _LONGEST:
        raise RecordError(
            f"{path} line {number}: {line[:40]!r} is no step time. Write seconds above zero, "
            "one a line, or give a steps.jsonl."
        )
    return value


def _records(path: Path) -> Series:
    """Return the series of a steps.jsonl; of each line only time and phase are needed."""
    steps, problems = read_steps(path)
    pairs = [(step.step_seconds, str(step.phase)) for step in steps]
    if problems:  # written by something else, or with fewer fields than a run of ours has
        lines = path.read_text(encoding="utf-8").splitlines()
        pairs = [_pair(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    phases = [phase for _, phase in pairs]
    end = phases.index("profiled") if "profiled" in phases else len(phases)
    minimum = phases.index("measured") if "measured" in phases[:end] else end
    for at, (value, _) in enumerate(pairs[:end], start=1):
        if value is None or not _SHORTEST < value < _LONGEST:
            raise RecordError(f"{path}: record {at} has no step_seconds above zero.")
    return _checked(path, [value for value, _ in pairs[:end] if value is not None], minimum)


def _pair(path: Path, number: int, line: str) -> tuple[float | None, str]:
    """Return time and phase of a line; a step without a phase may count."""
    try:
        record: Any = json.loads(line)
        phase = record.get("phase", "measured")
        value = record.get("step_seconds")
    except (ValueError, AttributeError, RecursionError) as error:
        raise RecordError(
            f"{path} line {number} is not a step record: {line[:40]!r}. Each line is one JSON "
            "object with step_seconds."
        ) from error
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known and abs(value) < _LONGEST else None, str(phase)


def _checked(path: Path, seconds: list[float], minimum: int) -> Series:
    if not seconds:
        raise RecordError(f"{path} holds no step time. Write seconds, one a line.")
    return Series(tuple(seconds), minimum)


def read_side(name: str, runs: Path) -> Side:
    """Return a side named by a run id (under ``runs``), a directory, or a file.

    Raises:
        RecordError: there is no such thing, or it is not one configuration.
    """
    path = Path(name)
    if path.is_file():
        return _file_side(name, path)
    for directory in (path, runs / name):
        if (directory / "record.json").is_file():
            return _runs_side(name, [read_run(directory)])
        if directory.is_dir() and (directory / "steps.jsonl").is_file():
            return _file_side(name, directory / "steps.jsonl")
    if path.is_dir():
        return _folder_side(name, path)
    raise RecordError(
        f"{name!r} is no run under {runs}, no directory and no file. Name a run id of "
        "'scalebook list', a directory of runs, or a file of step times."
    )


def _file_side(name: str, path: Path) -> Side:
    steady = read_series(path).steady()
    found = _of_steady(steady)
    return Side(name, (found,) if found else (), reason=steady.reason)


def _of_steady(steady: Steady) -> Estimate | None:
    """Return steps per second as an estimate."""
    if steady.mean is None or steady.low is None or steady.high is None or steady.low <= 0:
        return None
    return Estimate.of(1 / steady.mean, 1 / steady.high, 1 / steady.low, steady.count or 0)


def _folder_side(name: str, path: Path) -> Side:
    runs, problems = read_runs(path)
    if not runs:
        raise RecordError(f"{path} holds no run. {'; '.join(problems)}".strip())
    kinds = {configuration(run.record) or run.record.run_id for run in runs}
    if len(kinds) > 1:
        raise RecordError(
            f"{path} holds {len(kinds)} configurations, which are no repeats of one another. "
            "Name one run, or a folder with the repeats of one; 'scalebook gate' compares folders."
        )
    return _runs_side(name, runs)


def _runs_side(name: str, runs: Sequence[Run]) -> Side:
    """Return the side of runs; those without a steady state are left out, and why is said."""
    steps: list[Estimate] = []
    tokens: list[Estimate] = []
    reasons: list[str] = []
    for run in runs:
        item = measure(run)
        rate = estimate(item)
        mean, low, high = item.step_seconds_mean, item.step_seconds_low, item.step_seconds_high
        if rate is None or mean is None or not low or not high:
            reason = item.throughput_reason or item.interval_reason
            reasons.append(f"{item.run_id}: {reason or 'no interval.'}")
            continue
        if _does_not_train(item):
            losses = f"{item.loss_first:.5g} to {item.loss_last:.5g}"
            reasons.append(f"{item.run_id}: its loss did not fall ({losses}), so it is refused.")
            continue
        tokens.append(rate)
        steps.append(Estimate.of(1 / mean, 1 / high, 1 / low, item.steady_steps or 0))
    records = tuple(run.record for run in runs)
    reason = " ".join(reasons) if reasons else None
    return Side(name, tuple(steps), tuple(tokens), records, reason)


def _does_not_train(item: RunMetrics) -> bool:
    """Return whether a run's loss did not fall: how fast it computed means nothing then."""
    first, last = item.loss_first, item.loss_last
    return first is not None and last is not None and last >= first


def judge(a: Side, b: Side) -> tuple[Verdict | None, str | None]:
    """Return the verdict on two sides, and what was left out of it or why there is none.

    Rates are tokens per second where both sides tell their tokens, else steps per second.
    """
    reasons = [f"{side.name}: {side.reason}" for side in (a, b) if side.reason]
    told = " ".join(reasons) or None
    if not a.steps or not b.steps:
        return None, told or "A side has no interval."
    spreads = (start_spread(_platform(side)) for side in (a, b))
    left, right = (a.steps, b.steps)
    if a.tokens is not None and b.tokens is not None:
        left, right = a.tokens, b.tokens
    return compare(left, right, start_spread=max(spreads)), told


def _platform(side: Side) -> str | None:
    platform = side.records[0].setting("platform") if side.records else None
    return platform if isinstance(platform, str) else None
