"""One run's numbers: steady step time, rates, MFU with its interval, memory and loss.

Averages cover the steps whose recorded phase is ``measured``. A run that did not complete, or
measured nothing, has no rate; each null of a rate has its reason beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from scalebook import catalog
from scalebook.flops import DEFAULT_CONVENTION, flops_per_token
from scalebook.metrics_interval import MINIMUM_STEPS, rate_interval
from scalebook.metrics_settings import count, run_shape, settings, text
from scalebook.record import RunRecord, StepRecord
from scalebook.store import Run


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """What ``scalebook list --json`` prints of a run; a rate that does not exist is None."""

    run_id: str
    status: str
    reason: str | None
    source: str
    platform: str | None
    accelerator: str | None  # as the driver names it
    world_size: int | None
    nodes: int | None
    engine: str | None
    model: str | None
    num_layers: int | None
    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    context_parallel_size: int | None
    expert_parallel_size: int | None
    data_parallel_size: int | None
    micro_batch_size: int | None
    global_batch_size: int | None
    sequence_length: int | None
    precision: str | None
    strategy: str | None
    measured_steps: int
    step_seconds_median: float | None
    tokens_per_second: float | None  # total tokens over total time
    tokens_per_second_low: float | None  # 95 % interval
    tokens_per_second_high: float | None
    tokens_per_second_per_gpu: float | None
    throughput_reason: str | None
    model_tflops_per_second_per_gpu: float | None
    flops_convention: str
    model_tflops_reason: str | None
    mfu: float | None  # a fraction of the dense peak
    mfu_low: float | None  # 95 % interval
    mfu_high: float | None
    mfu_reason: str | None
    mfu_interval_reason: str | None
    peak_tflops_per_second: float | None  # dense, of one device
    peak_precision: str | None
    peak_memory_gib: float | None  # most that torch had allocated on any rank
    loss_first: float | None
    loss_last: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return every field by name, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Rates over the measured steps."""

    step_seconds_median: float
    tokens_per_second: float
    interval: tuple[float, float] | None  # of tokens_per_second, 95 %


def measured_steps(steps: Iterable[StepRecord]) -> tuple[StepRecord, ...]:
    """Return the steps that count: start-up, warm-up and profiled ones are left out."""
    return tuple(step for step in steps if step.phase == "measured")


def throughput(
    record: RunRecord, steps: Sequence[StepRecord]
) -> tuple[Throughput | None, str | None]:
    """Return the rates over measured steps, or None and the reason."""
    if record.status != "completed":
        return None, f"The run did not complete ({record.status}): its window is not averaged."
    if not steps:
        return None, "No step was measured."
    if any(not math.isfinite(step.step_seconds) or step.step_seconds <= 0 for step in steps):
        return None, "A measured step has no time above zero."
    if any(step.tokens <= 0 for step in steps):
        return None, "A measured step has no tokens."
    seconds = [step.step_seconds for step in steps]
    tokens = [step.tokens for step in steps]
    rate = sum(tokens) / sum(seconds)
    return Throughput(median(seconds), rate, rate_interval(tokens, seconds)), None


def _peak(
    record: RunRecord, peak_precision: str | None
) -> tuple[float | None, str | None, str | None]:
    """Return the dense peak (TFLOP/s), the precision whose peak it is, and the reason for None."""
    device = text(record.environment.get("accelerator"))
    precision = text(record.setting("precision"))
    if record.setting("platform") == "cpu":
        return None, None, "A CPU has no peak in the catalog: MFU is left empty."
    if device is None:
        return None, None, "The run names no accelerator: MFU is left empty."
    if precision is None:
        return None, None, "The run names no precision: MFU is left empty."
    if precision == "fp8" and peak_precision is None:
        return (
            None,
            None,
            (
                "An fp8 run computes attention and the output layer in bf16, so it has no single "
                "peak. Name the denominator with --peak-precision fp8 or bf16."
            ),
        )
    wanted = peak_precision or precision
    if wanted == "fp32":  # AMD's matrix cores take fp32; where a device has none, its vector rate
        peak, reason = catalog.peak_tflops(device, "fp32_matrix")
        if peak is not None:
            return peak, "fp32_matrix", None
    peak, reason = catalog.peak_tflops(device, wanted)
    return peak, wanted if peak is not None else None, reason


def _model_rate(record: RunRecord) -> tuple[float | None, int | None, str | None]:
    """Return TFLOP/s/GPU of one token/s over all GPUs, the model's layers, and the reason."""
    shape, reason = run_shape(record)
    length, world = count(record, "sequence_length"), count(record, "world_size")
    if shape is None:
        return None, count(record, "num_layers"), reason
    if length is None or world is None:
        missing = "sequence_length" if length is None else "world_size"
        return None, shape.num_layers, f"The run names no {missing}."
    return flops_per_token(shape, length) / world / 1e12, shape.num_layers, None


def _finite(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _memory(steps: Sequence[StepRecord]) -> float | None:
    """Return the most memory (GiB) allocated on any rank, or reserved where that alone is known."""
    allocated = _finite(step.allocated_gib for step in steps)
    reserved = _finite(step.reserved_gib for step in steps)
    return max(allocated or reserved, default=None)


@dataclass(frozen=True, slots=True)
class _Mfu:
    mfu: float | None = None
    mfu_low: float | None = None
    mfu_high: float | None = None
    mfu_reason: str | None = None
    mfu_interval_reason: str | None = None


def _mfu(
    rates: Throughput | None, scale: float | None, peak: float | None, reason: str | None
) -> _Mfu:
    """Return MFU and its interval; ``scale`` is TFLOP/s/GPU of one token/s."""
    if rates is None or scale is None or peak is None:
        return _Mfu(mfu_reason=reason, mfu_interval_reason=reason)
    value = rates.tokens_per_second * scale / peak
    above = f"{value:.3f} of the peak is physically impossible: time, tokens or device are wrong."
    note = above if value > 1 else None
    if rates.interval is None:
        few = f"Fewer than {MINIMUM_STEPS} measured steps: no interval."
        return _Mfu(value, mfu_reason=note, mfu_interval_reason=few)
    low, high = (end * scale / peak for end in rates.interval)
    return _Mfu(value, low, high, note)


def measure(run: Run, *, peak_precision: str | None = None) -> RunMetrics:
    """Return the numbers of a run.

    ``peak_precision`` names the peak that MFU is a fraction of where the run's own precision
    does not settle it (fp8).
    """
    record, steps = run.record, measured_steps(run.steps)
    rates, no_rate = throughput(record, steps)
    scale, layers, no_scale = _model_rate(record)
    peak, peak_name, no_peak = _peak(record, peak_precision)
    world = count(record, "world_size")
    rate = rates.tokens_per_second if rates else None
    low, high = (rates.interval if rates else None) or (None, None)
    losses = _finite(step.loss for step in run.steps)
    return RunMetrics(
        run_id=record.run_id,
        status=record.status,
        reason=record.reason,
        source=record.source,
        accelerator=text(record.environment.get("accelerator")),
        **settings(record),
        num_layers=layers,
        measured_steps=len(steps),
        step_seconds_median=rates.step_seconds_median if rates else None,
        tokens_per_second=rate,
        tokens_per_second_low=low,
        tokens_per_second_high=high,
        tokens_per_second_per_gpu=rate / world if rate and world else None,
        throughput_reason=no_rate,
        model_tflops_per_second_per_gpu=rate * scale if rate and scale else None,
        flops_convention=DEFAULT_CONVENTION,
        model_tflops_reason=no_rate or no_scale,
        **asdict(_mfu(rates, scale, peak, no_rate or no_scale or no_peak)),
        peak_tflops_per_second=peak,
        peak_precision=peak_name,
        peak_memory_gib=_memory(run.steps),
        loss_first=losses[0] if losses else None,
        loss_last=losses[-1] if losses else None,
    )
