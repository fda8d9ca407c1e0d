"""Why a run's MFU is what it is, from its own measurements, and what to try.

Each rule reads the evidence of one run and yields findings, or nothing where its measurement is
missing. The rules come from the trouble lists that Megatron's users pass on (low MFU, heavy
communication, memory bound); the numbers are the run's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from scalebook.measure import provenance, registered
from scalebook.measure.diagnosis import device, memory_use, network, pipeline
from scalebook.measure.diagnosis.evidence import Evidence, Finding, gather
from scalebook.measure.diagnosis.waterfall import Part, Waterfall, waterfall, with_fitted
from scalebook.measure.metrics import Numbers, RunMetrics, numbers
from scalebook.measure.metrics.step_anatomy import RunAnatomy, step_anatomy
from scalebook.measure.metrics_cache import ODD
from scalebook.store import Run

__all__ = [
    "Diagnosis", "Finding", "Measured", "Part", "Waterfall", "diagnose", "measured", "with_fitted",
]  # fmt: skip

Rule = Callable[[Evidence], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    pipeline.pipeline_bubble_rule, pipeline.pipeline_imbalance_rule, pipeline.vocabulary_rule,
    network.exposed_communication_rule, network.waits_between_stages_rule, network.overlap_off_rule,
    network.tensor_parallel_size_rule, network.tensor_parallel_across_nodes_rule,
    network.sequence_parallel_off_rule, network.collective_backend_rule, pipeline.expert_load_rule,
    pipeline.forced_balance_rule, memory_use.recompute_rule, memory_use.micro_batch_size_rule,
    memory_use.memory_full_rule, device.launch_gaps_rule, device.data_rule, device.optimizer_rule,
    device.cpu_cores_rule, device.matmul_ceiling_rule, device.matmul_shapes_rule,
    device.clocks_rule, device.slow_device_rule, device.straggler_rule, device.precision_rule,
    device.attention_kernel_rule,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What explains a run's speed: findings, largest first, then those without a size."""

    run_id: str
    mfu: float | None
    mfu_reason: str | None
    reason: str | None  # why there is no diagnosis
    findings: tuple[Finding, ...]
    waterfall: Waterfall | None
    missing: tuple[str, ...]  # what to measure to know more


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
        found, anatomy = numbers(run, own=registered.own()), step_anatomy(run)
        told = provenance.of(run.record) if run.record.source == "measured" else ()
        sentences = tuple(one.sentence() for one in told)
    except ODD as error:
        return str(error) or type(error).__name__
    explained = None
    if found.metrics.tokens_per_second is not None:
        with suppress(*ODD):  # what is odd about the record is said where the runs are read
            explained = diagnose(run, found)
    return Measured(found.metrics, anatomy, sentences, explained)


def diagnose(run: Run, measured: Numbers | None = None) -> Diagnosis:
    """Return what the measurements of a run say about its speed.

    ``measured`` are the run's own numbers where the caller has them already.
    """
    found = gather(run, measured)
    metrics = found.metrics
    if metrics.step_seconds_median is None:
        reason = metrics.throughput_reason
        return Diagnosis(run.record.run_id, None, metrics.mfu_reason, reason, (), None, ())
    named = ((rule.__name__.removesuffix("_rule"), one) for rule in RULES for one in rule(found))
    findings = [replace(one, rule=one.rule or name) for name, one in named]
    findings.sort(key=lambda one: (one.step_fraction is None, -(one.step_fraction or 0.0)))
    return Diagnosis(
        run_id=run.record.run_id,
        mfu=metrics.mfu,
        mfu_reason=metrics.mfu_reason,
        reason=None,
        findings=tuple(findings),
        waterfall=waterfall(found),
        missing=tuple(_missing(found)),
    )


def _missing(found: Evidence) -> Iterator[str]:
    """Yield what was not measured and would explain more."""
    if found.record.source == "measured" and (found.split is None or found.split.source == "marks"):
        reason = (found.breakdown_reason or "").rstrip(".")
        yield f"{reason}: profile_steps=3 shows kernels, launch gaps and exposed communication."
    if found.on_gpu and found.metrics.measured_matmul_tflops is None:
        reason = found.metrics.matmul_fraction_reason or ""
        probe = " 'scalebook probe' measures its ceilings."
        yield reason if "scalebook probe" in reason else reason + probe
    if found.on_gpu and not found.devices.devices:
        yield f"Clocks and power are not known: {found.devices.reason}"
    if found.metrics.steady is False:
        yield f"The steps are not steady: {found.metrics.steady_reason}"
