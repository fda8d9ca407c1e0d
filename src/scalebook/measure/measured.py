"""Everything that a report says of one run from its own files, found in one pass."""

from __future__ import annotations

from dataclasses import dataclass

from scalebook.errors import ScalebookError
from scalebook.measure import provenance
from scalebook.measure.diagnosis import Diagnosis, diagnose
from scalebook.measure.metrics import RunMetrics, measure
from scalebook.measure.metrics.step_anatomy import RunAnatomy, step_anatomy
from scalebook.measure.registered import own
from scalebook.store import Run

# Records come from anywhere; one with a value of the wrong type must not stop a page.
ODD = (ScalebookError, ArithmeticError, TypeError, ValueError, LookupError)


@dataclass(frozen=True, slots=True)
class Measured:
    """What the files of one run say; nothing here depends on any other run."""

    metrics: RunMetrics
    anatomy: RunAnatomy
    differences: tuple[str, ...]  # sentences about what ran otherwise than asked for
    diagnosis: Diagnosis | None  # None without a throughput, or where the rules can't read it


def measured(run: Run) -> Measured | str:
    """Return what the files of a run say, or why it cannot be measured."""
    try:
        metrics, anatomy = measure(run, own=own()), step_anatomy(run)
        told = provenance.of(run.record) if run.record.source == "measured" else ()
        sentences = tuple(one.sentence() for one in told)
    except ODD as error:
        return str(error) or type(error).__name__
    return Measured(metrics, anatomy, sentences, _diagnosis(run, metrics))


def _diagnosis(run: Run, metrics: RunMetrics) -> Diagnosis | None:
    if metrics.tokens_per_second is None:
        return None
    try:
        return diagnose(run, metrics)
    except ODD:
        return None  # what is odd about the record is said where the runs are read
