"""Series of a file: step times, one a line, or losses by step; or the steps.jsonl of a run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalebook import untrusted
from scalebook.errors import RecordError
from scalebook.measure.metrics.steady import Steady, find_steady
from scalebook.record import RunRecord, StepRecord, number_of
from scalebook.step_columns import Steps
from scalebook.store import find_run, read_run, read_steps

STEPS = "steps.jsonl"  # of a run directory
_LONGEST, _SHORTEST = 1e9, 1e-9  # seconds of a step that could be one


@dataclass(frozen=True, slots=True)
class Series:
    """Step times of a file in its order, and how many at the start are warm-up by its record."""

    seconds: tuple[float, ...]
    minimum: int

    def steady(self) -> Steady:
        return find_steady(self.seconds, self.minimum)


def read_series(path: Path) -> Series:
    """Return the step times of a text file (seconds, one a line), a steps.jsonl or a run directory.

    Raises:
        RecordError: the file cannot be read, or a line of it is no time above zero.
    """
    named = not path.is_dir()  # the user's own file may be a link, that of a run directory not
    if not named:
        if not untrusted.is_there(path / STEPS):
            raise RecordError(f"{path} contains no {STEPS}: it is not the directory of a run.")
        path /= STEPS
    found: list[float] = []
    for number, line in _lines(path, follow=named):
        if line.startswith("{"):
            return _records(path)
        if line and line[0] != "#" and not (number == 1 and line[3:].isidentifier()):
            found.append(_seconds(path, number, line))
    return _checked(path, found, 0)


def _lines(path: Path, *, follow: bool) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line of a file; a RecordError where it cannot be read."""
    try:
        for number, raw in enumerate(untrusted.lines(path, follow=follow), start=1):
            yield number, raw.decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise RecordError(f"{path} cannot be read: {reason}.") from error


def _seconds(path: Path, number: int, line: str) -> float:
    try:
        value = float(line.removesuffix("s"))  # of seconds
    except ValueError:
        value = math.nan
    if not _SHORTEST < value < _LONGEST:
        raise RecordError(
            f"{path} line {number}: {line[:40]!r} is not a step time. Write seconds above zero, "
            "one per line, or give a steps.jsonl."
        )
    return value


def _records(path: Path) -> Series:
    """Return the series of a steps.jsonl; of each line only time and phase are needed."""
    place = path.resolve()  # opened once by now: a link here is one that the user named
    steps, problems = read_steps(place)
    seconds = (None if math.isnan(value) else value for value in steps.numbers("step_seconds"))
    pairs = [(value, str(phase)) for value, phase in zip(seconds, steps.phases(), strict=True)]
    if problems:  # written by something else, or with fewer fields than a run of ours has
        lines = _lines(place, follow=False)
        pairs = [_pair(path, number, line) for number, line in lines if line]
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
        value = number_of(record.get("step_seconds"))
    except (ValueError, AttributeError, RecursionError) as error:
        raise RecordError(
            f"{path} line {number} is not a step record: {line[:40]!r}. Each line is one JSON "
            "object with step_seconds."
        ) from error
    return value if value is not None and abs(value) < _LONGEST else None, str(phase)


def _checked(path: Path, seconds: list[float], minimum: int) -> Series:
    if not seconds:
        raise RecordError(f"{path} contains no step time. Write seconds, one per line.")
    return Series(tuple(seconds), minimum)


@dataclass(frozen=True, slots=True)
class LossCurve:
    """The losses of a reference by step, and the record of its run where it is one."""

    name: str
    losses: Mapping[int, float]
    record: RunRecord | None = None


def losses_of(steps: Iterable[StepRecord]) -> dict[int, float | None]:
    """Return the loss of each step, the last of one that was trained again; None if not finite."""
    columns = (Steps.of(steps).numbers(name) for name in ("step", "loss"))
    pairs = zip(*columns, strict=True)
    return {int(step): None if math.isnan(loss) else loss for step, loss in pairs}


def read_losses(name: str, runs: Path) -> LossCurve:
    """Return a reference curve: a run directory, a run id under ``runs``, or a file.

    A file has a step and a loss on each line, with a comma or spaces between them, or is a
    steps.jsonl.

    Raises:
        RecordError: there is no such thing, it has no loss, or a line is not a step and a loss.
    """
    path = Path(name)
    directory = path if (path / "record.json").is_file() else find_run(name, runs)
    record = None
    if path.is_file():
        found = _loss_file(path)
    elif directory is not None:
        run = read_run(directory)
        found, record = losses_of(run.steps), run.record
    else:
        raise RecordError(
            f"--loss-reference {name!r} is not a run under {runs}, a run directory or a file."
        )
    losses = {step: loss for step, loss in found.items() if loss is not None}
    if not losses:
        raise RecordError(f"--loss-reference {name}: no step of it has a loss.")
    return LossCurve(record.run_id if record else path.name, losses, record)


def _loss_file(path: Path) -> dict[int, float | None]:
    if path.suffix == ".jsonl":
        return losses_of(read_steps(path)[0])
    found: dict[int, float | None] = {}
    for number, text in _lines(path, follow=True):
        line = text.partition("#")[0].strip()
        step, *rest = re.split(r"[,;\s]+", line)
        if not line or (number == 1 and not step[:1].isdecimal()):  # the names of the columns
            continue
        try:
            (loss,) = map(float, rest)
            found[int(step)] = loss if math.isfinite(loss) else None
        except ValueError as error:
            raise RecordError(
                f"{path} line {number}: {line[:40]!r} is not a step and a loss, like 10,6.93."
            ) from error
    return found
