"""What a run left about its steps' anatomy: profiles, time marks, and what theory predicts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from scalebook import untrusted
from scalebook.errors import ScalebookError, TraceError
from scalebook.facts import communication
from scalebook.facts.communication import CommunicationEstimate
from scalebook.measure.anatomy import BREAKDOWN_FILE, Breakdown, read_breakdown
from scalebook.measure.metrics.recorded import count, parallelism_of, recomputed, run_shape
from scalebook.measure.metrics.window import chosen_steps, measured_steps
from scalebook.parallelism import Parallelism
from scalebook.record import RunRecord, StepRecord, text_of
from scalebook.step_columns import Steps
from scalebook.store import Run

FOLDER = "profile"
MOST_RANKS = 64  # breakdowns of one run that are read
OUTSIDE = "outside"  # of every mark: logging, and waiting for the slowest rank


@dataclass(frozen=True, slots=True)
class MarkedSteps:
    """Means over the measured steps that have time marks, in seconds of one step."""

    steps: int
    step_seconds: float
    parts: dict[str, float]  # mean over ranks; with what is outside of them they add up


@dataclass(frozen=True, slots=True)
class RunAnatomy:
    """Everything that is known of where the steps of a run spend their time."""

    run_id: str
    profiles: tuple[Breakdown, ...]  # those with numbers, by rank
    marked: MarkedSteps | None
    theory: CommunicationEstimate | None
    problems: tuple[str, ...]  # profiles without numbers or that cannot be read, in words


def step_anatomy(run: Run) -> RunAnatomy:
    record = run.record
    profiles, problems = _profiles(run.path / FOLDER, parallelism_of(record))
    return RunAnatomy(
        record.run_id, profiles, marked_steps(record, run.steps), theory(record), problems
    )


def _profiles(
    folder: Path, layout: Parallelism | None
) -> tuple[tuple[Breakdown, ...], tuple[str, ...]]:
    if not folder.is_dir():
        return (), ()
    first = folder / BREAKDOWN_FILE
    others = sorted(folder.glob("breakdown-rank*.json"))[: MOST_RANKS - 1]
    found: list[Breakdown] = []
    problems: list[str] = []
    for path in (first, *others):
        if not untrusted.is_there(path):
            continue
        try:
            one = read_breakdown(path, layout)
        except TraceError as error:
            problems.append(str(error).replace(f"{folder.parent}/", ""))
            continue
        if (one.step_seconds or 0.0) > 0:
            found.append(one)
        else:
            rank = "" if one.rank is None else f" of rank {one.rank}"
            problems.append(f"The profile{rank} has no numbers. {one.reason or ''}".rstrip())
    return tuple(sorted(found, key=lambda one: one.rank or 0)), tuple(problems)


def marked_steps(record: RunRecord, steps: Iterable[StepRecord]) -> MarkedSteps | None:
    """Return the mean parts of the measured steps, of those of a window that a reader chose.

    None where they have no time marks.
    """
    return marks_of(chosen_steps(record, measured_steps(steps)))


def marks_of(steps: Steps) -> MarkedSteps | None:
    """Return the mean parts of those steps that have time marks and a time; None without any."""
    columns = {name: steps.part(name) for name in steps.part_names()}
    seconds = steps.numbers("step_seconds")
    marks = zip(*columns.values(), strict=True)
    marked = [
        at
        for at, (second, values) in enumerate(zip(seconds, marks, strict=bool(columns)))
        if second and not math.isnan(second) and not all(map(math.isnan, values))
    ]
    whole, number = sum(seconds[at] for at in marked), len(marked)
    if not marked or whole <= 0:
        return None
    parts: dict[str, float] = {}
    for name, column in columns.items():
        if known := [column[at] for at in marked if not math.isnan(column[at])]:
            parts[name] = sum(known) / number
    parts[OUTSIDE] = max(whole / number - sum(parts.values()), 0.0)
    return MarkedSteps(number, whole / number, parts)


def theory(record: RunRecord) -> CommunicationEstimate | None:
    """Return what a rank sends in a step and the pipeline's bubble; None where the run is vague.

    Vague too where the answer depends on a precision that the log of another trainer does not say.
    """
    shape, _ = run_shape(record)
    sizes = {
        name: count(record, name)
        for name in ("micro_batch_size", "global_batch_size", "sequence_length")
    }
    parallelism = parallelism_of(record)
    if shape is None or parallelism is None or None in sizes.values():
        return None
    stages = parallelism.pipeline_parallel_size, parallelism.virtual_pipeline_parallel_size
    if max(stages) > shape.num_layers or parallelism.data_parallel_size < 1:
        return None
    micro, batch, length = (size or 0 for size in sizes.values())
    microbatches = batch // (micro * parallelism.data_parallel_size)
    if microbatches < 1:
        return None
    own, summed = (text_of(record.setting(name)) for name in ("precision", "gradient_precision"))
    possible = dict.fromkeys(((own or "bf16", summed or "fp32"), (own or "fp32", summed or "bf16")))
    try:
        first, *others = (
            communication.estimate(
                shape,
                parallelism,
                micro_batch_size=micro,
                num_microbatches=microbatches,
                sequence_length=length,
                precision=precision,
                gradient_precision=gradients,
                recompute=recomputed(record) or communication.NOTHING_AGAIN,
            )
            for precision, gradients in possible
        )
        return first if all(one == first for one in others) else None
    except (ScalebookError, ArithmeticError, LookupError):
        return None  # a split that cannot be: said where the record is judged
