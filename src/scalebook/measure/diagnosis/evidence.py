"""Everything that the rules read of one run, gathered once, and what a rule says of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from scalebook import untrusted
from scalebook.errors import ScalebookError, TraceError
from scalebook.facts import catalog, memory
from scalebook.facts.catalog.types import Accelerator, ModelShape
from scalebook.facts.communication import CommunicationEstimate
from scalebook.facts.memory import MemoryEstimate
from scalebook.measure.anatomy import BREAKDOWN_FILE, Breakdown, read_breakdown
from scalebook.measure.anatomy.kinds import EXPERTS, SENDS
from scalebook.measure.metrics import Numbers, RunMetrics, measured_steps, numbers
from scalebook.measure.metrics.recorded import (
    count,
    document_length,
    parallelism_of,
    recomputed,
    run_shape,
)
from scalebook.measure.metrics.step_anatomy import marks_of, theory
from scalebook.measure.telemetry import TelemetrySummary
from scalebook.parallelism import Parallelism
from scalebook.record import RunRecord, StepRecord, number_of, object_of
from scalebook.step_columns import Steps
from scalebook.store import Run

Basis = Literal["measured", "computed", "fitted"]  # fitted: at the rates of other runs too
Value = float | int | str | bool | None


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause of a step's time: what it is, how large, and what to try.

    ``step_fraction`` is how much of the step's time it takes, None where that is unknown. It is
    ``measured`` in this run, or ``computed`` from the configuration and the ceilings of its
    machine. Findings may overlap; the waterfall is what adds up.
    """

    rule: str
    says: str
    advice: tuple[str, ...]
    step_fraction: float | None = None
    basis: Basis | None = None
    evidence: Mapping[str, Value] = field(default_factory=dict[str, Value])


def finding(
    says: str,
    *advice: str,
    rule: str = "",
    measured: float | None = None,
    computed: float | None = None,
    evidence: Mapping[str, Value] = MappingProxyType({}),
) -> Finding:
    """Return a finding whose share of the step, where it has one, was measured or computed.

    ``rule``: where it is not the name of the function that yields it, without its ``_rule``.
    """
    share = computed if measured is None else measured
    known: Basis | None = None if share is None else "computed" if measured is None else "measured"
    return Finding(rule, says, advice, share, known, dict(evidence))


def percent(fraction: float) -> str:
    """Return a fraction as a percentage with three digits at the most."""
    return f"{100 * fraction:.3g} %"


def listed(names: list[str]) -> str:
    """Return names as part of a sentence: ``a, b and c``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One run as the rules see it; what is None was not measured, or cannot be known."""

    record: RunRecord
    metrics: RunMetrics
    shape: ModelShape | None
    parallelism: Parallelism | None
    num_microbatches: int | None
    split: Split | None
    breakdown_reason: str | None  # why there is a profile without numbers, or none
    devices: TelemetrySummary
    ceilings: Mapping[str, Any]
    rank_seconds: tuple[float, ...]

    @property
    def on_gpu(self) -> bool:
        return self.metrics.platform not in (None, "cpu")

    @property
    def device(self) -> Accelerator | None:
        return catalog.accelerator_for_device(self.metrics.accelerator or "")

    @property
    def peak_clock_mhz(self) -> float | None:
        """The clock at which the peak holds that MFU divides by; None where nobody says it.

        A device can run faster than that: at such a clock it loses nothing against the peak.
        """
        return self.device.peak_clock_mhz if self.device else None

    @property
    def document_length(self) -> float | None:
        """Tokens that attend to one another."""
        return document_length(self.record)

    @property
    def device_memory_gib(self) -> float | None:
        """Memory of one device, as torch reported it."""
        return number(self.record.environment.get("accelerator_memory_gib"))

    @property
    def gpus_per_node(self) -> int | None:
        """GPUs of one node: as the driver counted, else what the platform has."""
        counted = number(self.record.environment.get("accelerators_per_node"))
        if counted is not None:
            return int(counted)
        try:
            return catalog.platform(self.metrics.platform or "").gpus_per_node or None
        except ScalebookError:
            return None

    def ceiling(self, table: str, key: str) -> float | None:
        """Return a rate that the probe of the machine found."""
        return number(object_of(self.ceilings.get(table)).get(key))

    def memory(self, **changes: Any) -> MemoryEstimate | None:
        """Return the memory that the run, with some settings changed, is predicted to need."""
        values: dict[str, Any] = {
            "micro_batch_size": self.metrics.micro_batch_size,
            "num_microbatches": self.num_microbatches,
            "sequence_length": self.metrics.sequence_length,
            "precision": self.metrics.precision,
            "gradient_precision": self.record.setting("gradient_precision"),
            "recompute": recomputed(self.record),
            **{name: count(self.record, name) or 0 for name in ("offload_layers", "mtp_layers")},
            **memory.kernels(lambda name: self.record.is_on(name) is False, self.metrics.platform),
            **changes,
        }
        if self.shape is None or self.parallelism is None or None in values.values():
            return None
        try:
            return memory.estimate(self.shape, self.parallelism, **values)
        except (ScalebookError, ArithmeticError, ValueError):
            return None

    def sent(self) -> CommunicationEstimate | None:
        """Return the bytes that a rank sends in a step, by kind."""
        return theory(self.record)


def number(value: Any) -> float | None:
    """Return a number above zero, None for anything else."""
    return max(number_of(value) or 0.0, 0.0) or None


def gather(run: Run, found: Numbers | None = None) -> Evidence:
    """Return what the run's directory contains; its numbers are measured where none are given."""
    found = found or numbers(run)
    record, metrics, rates = run.record, found.metrics, found.rates
    # the very steps that the rates are over
    steps = rates.steps if rates else measured_steps(run.steps)
    layout = parallelism_of(record)
    breakdown, reason = _breakdown(run.path / "profile" / BREAKDOWN_FILE, layout)
    return Evidence(
        record=record,
        metrics=metrics,
        shape=run_shape(record)[0],
        parallelism=layout,
        num_microbatches=_num_microbatches(metrics),
        split=split_of(breakdown, steps, metrics.step_seconds_median),
        breakdown_reason=reason,
        devices=found.devices,
        ceilings=object_of(record.environment.get("ceilings")),
        rank_seconds=tuple(steps.rank_means() or ()),
    )


def _breakdown(path: Path, layout: Parallelism | None) -> tuple[Breakdown | None, str | None]:
    if not untrusted.is_there(path):
        return None, "The run was not profiled."
    try:
        found = read_breakdown(path, layout)
    except TraceError as error:
        return None, str(error)
    return found, found.reason


def _num_microbatches(metrics: RunMetrics) -> int | None:
    whole, micro = metrics.global_batch_size, metrics.micro_batch_size
    replicas = metrics.data_parallel_size
    if not whole or not micro or not replicas or whole % (micro * replicas):
        return None
    return whole // (micro * replicas)


@dataclass(frozen=True, slots=True)
class Split:
    """Shares of a step's time, 0 to 1; None where its source does not say.

    ``profile`` is of one rank and divides the step whole. ``marks`` are means over ranks from time
    marks in the device's stream: forward and backward then hold what their collectives and the
    host's gaps took.
    """

    source: Literal["profile", "marks"]
    compute: float | None  # forward and backward
    optimizer: float | None
    communication: float | None  # exposed, of all kinds but that between stages
    between_stages: float | None  # exposed
    data: float | None
    idle: float | None = None
    launch_gaps: float | None = None  # of the idle time
    exchanges_named: bool = True  # False: what is between stages may be an all-to-all of experts
    largest_collective: str | None = None
    collective_seconds: float | None = None  # of one step, exposed or not
    kernels_per_step: float | None = None
    kernel_seconds: float | None = None
    attention: float | None = None  # kernels of the profile, which may overlap with others
    elementwise: float | None = None  # with norms and copies


def split_of(
    breakdown: Breakdown | None, steps: Iterable[StepRecord], median: float | None = None
) -> Split | None:
    """Return how the steps divide, None where there is neither a profile nor marks.

    ``median`` is the measured step in seconds. A profiled one is longer, because its host is slower
    with every launch: what that adds is idle time of the device, and is taken out.
    """
    profiled = _profile(breakdown, median) if breakdown is not None else None
    return profiled or _marks(Steps.of(steps))


def _profile(told: Breakdown, median: float | None) -> Split | None:
    whole, parts = told.step_seconds, told.parts
    values = (
        parts.forward_seconds, parts.backward_seconds, parts.optimizer_seconds,
        parts.exposed_communication_seconds, parts.data_seconds, parts.idle_seconds,
    )  # fmt: skip
    if not whole or whole <= 0 or any(value is None or value < 0 for value in values):
        return None
    forward, backward, optimizer, exposed, data, idle = (value or 0.0 for value in values)
    named = {name: time for name, time in told.exposed_by_collective.items() if time > 0}
    between = min(named.pop(SENDS, 0.0), exposed)
    added = min(max(whole - median, 0.0), idle) if median else 0.0
    whole, idle = whole - added, idle - added
    rest = [told.kinds[name] for name in ("elementwise", "norm", "copy") if name in told.kinds]
    gaps = None if told.launch_gap_seconds is None else max(told.launch_gap_seconds - added, 0.0)
    return Split(
        source="profile",
        compute=(forward + backward) / whole,
        optimizer=optimizer / whole,
        communication=(exposed - between) / whole,
        between_stages=between / whole,
        data=data / whole,
        idle=idle / whole,
        launch_gaps=None if gaps is None else min(gaps, idle) / whole,
        exchanges_named=not {"all_to_all", EXPERTS}.isdisjoint(told.exposed_by_collective),
        largest_collective=max(named, key=lambda name: named[name]) if named else None,
        collective_seconds=told.communication_seconds,
        kernels_per_step=told.kernels_per_step,
        kernel_seconds=told.kernel_seconds,
        attention=told.kinds["attention"] / whole if "attention" in told.kinds else None,
        elementwise=sum(rest) / whole if rest else None,
    )


def _marks(steps: Steps) -> Split | None:
    """Return how the steps divide by their time marks; of those that have any."""
    found = marks_of(steps)
    if found is None:
        return None

    def share(*names: str) -> float | None:
        there = [found.parts[name] for name in names if name in found.parts]
        return sum(there) / found.step_seconds if there else None

    return Split(
        source="marks",
        compute=share("forward", "backward"),
        optimizer=share("optimizer"),
        communication=share("gradients"),
        between_stages=share("pipeline"),
        data=share("data"),
    )
