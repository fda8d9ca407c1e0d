"""One side of a comparison: a run, a folder of repeats, or a file of step times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from scalebook import identity
from scalebook.errors import RecordError
from scalebook.measure.metrics import measure
from scalebook.measure.metrics.repeats import Estimate, between, estimate, start_spread
from scalebook.measure.metrics.steady import Steady
from scalebook.measure.verdicts import Rate, Verdict, compare
from scalebook.measure.verdicts.differences import Difference
from scalebook.measure.verdicts.series import STEPS, read_series
from scalebook.record import RunRecord, text_of
from scalebook.step_columns import Steps
from scalebook.store import Run, find_run, read_run, read_runs

CLOCKS_APART = 0.01  # of the mean clock; one device differs by less from start to start


@dataclass(frozen=True, slots=True)
class Side:
    """What is known of one side: rates by run, in steps per second and, where known, tokens."""

    name: str
    steps: tuple[Estimate, ...] = ()
    tokens: tuple[Estimate, ...] | None = None
    records: tuple[RunRecord, ...] = ()
    reason: str | None = None  # why there is no rate; of runs, it says of which
    sources: frozenset[tuple[str, int]] = frozenset()  # what tells each run or file from others
    clocks: tuple[float, ...] = ()  # mean of each rated run in MHz, where it was sampled


def read_side(name: str, runs: Path) -> Side:
    """Return a side named by a run id (under ``runs``) or its end, a directory, or a file.

    Raises:
        RecordError: there is no such thing, several runs are named, or it is not one configuration.
    """
    path = Path(name)
    if path.is_file():
        return _file_side(name, path)
    for directory in (path, runs / name):
        if (directory / "record.json").is_file():
            return runs_side(name, [read_run(directory)])
        if directory.is_dir() and (directory / STEPS).is_file():
            return _file_side(name, directory / STEPS)
    if path.is_dir():
        return _folder_side(name, path)
    found = find_run(name, runs)
    if found is not None:
        return runs_side(name, [read_run(found)])
    raise RecordError(
        f"{name!r} is not a run under {runs}, a directory or a file. Name a run id of "
        "'scalebook list' or its last six characters, a directory of runs, or a file of step times."
    )


def _file_side(name: str, path: Path) -> Side:
    steady = read_series(path).steady()
    found = _of_steady(steady)
    sources = frozenset({(str(path.resolve()), 0)})
    return Side(name, (found,) if found else (), reason=steady.reason, sources=sources)


def _of_steady(steady: Steady) -> Estimate | None:
    """Return steps per second as an estimate."""
    if steady.mean is None or steady.seen is None or steady.seen[0] <= 0:
        return None
    low, high = steady.seen
    return Estimate.of(1 / steady.mean, 1 / high, 1 / low, steady.count or 0)


def _folder_side(name: str, path: Path) -> Side:
    runs, problems = read_runs(path)
    if not runs:
        raise RecordError(f"{path} contains no run. {'; '.join(problems)}".strip())
    kinds = {identity.repeat(run.record) or run.record.run_id for run in runs}
    if len(kinds) > 1:
        raise RecordError(
            f"{path} holds {len(kinds)} configurations, which are not repeats of one another. "
            "Name one run, or a folder with the repeats of one; 'scalebook gate' compares folders."
        )
    return runs_side(name, runs)


def runs_side(name: str, runs: Sequence[Run]) -> Side:
    """Return the side of runs; those without a steady state are left out, and why is said."""
    steps: list[Estimate] = []
    tokens: list[Estimate] = []
    clocks: list[float] = []
    reasons: list[str] = []
    for run in runs:
        item = measure(run)
        rate, fell = estimate(item), item.loss_fell is not False
        mean, low, high = item.step_seconds_mean, item.step_seconds_low, item.step_seconds_high
        reasons += [f"{item.run_id}: {problem}" for problem in run.problems]
        if rate is None or mean is None or not low or not high or not fell:
            losses = f"({item.loss_first or 0:.5g} to {item.loss_last or 0:.5g})"
            ended = None if run.record.averaged else item.reason
            why = ended or item.throughput_reason or item.interval_reason
            # how fast a run without a falling loss computed means nothing
            reasons.append(f"{item.run_id}: {why or f'The loss did not fall {losses}.'}")
            continue
        tokens.append(rate)
        clocks += [item.mean_clock_mhz] if item.mean_clock_mhz else []
        steps.append(Estimate.of(1 / mean, 1 / high, 1 / low, rate.steps, item.device_ids))
    records = tuple(run.record for run in runs)
    reason = " ".join(reasons) if reasons else None
    # an id may be a log's name, which two folders can have; a copy has the same times too
    sources = frozenset(
        (run.record.run_id, hash(tuple(Steps.of(run.steps).known("step_seconds")))) for run in runs
    )
    return Side(name, tuple(steps), tuple(tokens), records, reason, sources, tuple(clocks))


def judge(a: Side, b: Side, starts: float | None = None) -> tuple[Verdict | None, str | None]:
    """Return the verdict on two sides, and what was left out of it or why there is none.

    ``starts`` replaces the assumed spread from start to start.

    Rates are tokens per second where both sides tell their tokens, else steps per second. What is
    the same on both sides is no second measurement: the ratio is 1 and nothing can be told.
    """
    both = same(a, b)
    if both is not None:
        verdict = Verdict("cannot tell", 1.0, 1.0, 1.0, rate=_rate(a, b)) if a.steps else None
        return verdict, both
    said = (
        side.reason if side.records else f"{side.name}: {side.reason}"  # runs are named in it
        for side in (a, b)
        if side.reason
    )
    told = " ".join(said) or None
    if not a.steps or not b.steps:
        return None, told or "A side has no interval."
    return compared(a, b, starts), told


def compared(a: Side, b: Side, starts: float | None, level: float = 0.95) -> Verdict:
    """Return the verdict on two sides that have rates; ``starts`` as in ``judge``."""
    others = identity.other_devices(*([one.environment for one in side.records] for side in (a, b)))
    platforms = [side.records[0].setting("platform") if side.records else "" for side in (a, b)]
    assumed = max(start_spread(text_of(name)) for name in platforms)
    start, device = between(assumed, assumed, others) if starts is None else (starts, 0.0)
    left, right = a.steps, b.steps
    if a.tokens is not None and b.tokens is not None:
        left, right = a.tokens, b.tokens
    verdict = compare(left, right, start_spread=start, device_spread=device, level=level)
    return replace(verdict, rate=_rate(a, b), other_devices=others)


def clocks_apart(a: Side, b: Side, found: Iterable[Difference]) -> str | None:
    """Return a sentence where only the devices' clocks differ, by more than their rounding.

    Other settings draw another power, so that a clock is then their effect. Two devices of one kind
    reach other clocks at one power cap: what differs is theirs.
    """
    if not a.clocks or not b.clocks or {one.name for one in found} - {"git_commit"}:
        return None
    left, right = fmean(a.clocks), fmean(b.clocks)
    if abs(left / right - 1) < CLOCKS_APART:
        return None
    return (
        f"The same settings ran at {left:,.0f} MHz on side A and at {right:,.0f} MHz on side B, "
        f"{100 * abs(left / right - 1):.2g} % apart: the difference may be that of the devices."
    )


def _rate(a: Side, b: Side) -> Rate:
    return "steps/s" if a.tokens is None or b.tokens is None else "tokens/s of all GPUs"


def same(a: Side, b: Side) -> str | None:
    """Return a sentence where both sides are the same runs or file, None where they are not.

    Raises:
        RecordError: some runs, but not all, are on both sides.
    """
    shared = sorted(name for name, _ in a.sources & b.sources)
    if not shared:
        return None
    if a.sources == b.sources:
        kind = "run" if a.records else "file"
        kinds = kind if len(shared) == 1 else f"{kind}s"
        return f"A and B are the same {kinds} ({', '.join(shared)}): nothing to compare."
    raise RecordError(
        f"{', '.join(shared)} is in both A ({a.name}) and B ({b.name}). A run can be on only one "
        "side: name a folder without it."
    )
