"""One run's numbers: steady step time, rates, MFU with its interval, memory and loss.

Averages cover the steady state of the steps whose recorded phase is ``measured``. A run that did
not complete, measured nothing or was not steady has no rate; each null of a rate has its reason.
A rate above the device's dense peak is void: the run keeps its place in lists, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import Any

from scalebook.facts.catalog.types import ModelShape
from scalebook.facts.flops import DEFAULT_CONVENTION, flops_per_token, headline_convention
from scalebook.measure import registered, row
from scalebook.measure.metrics.peak import highest_peak, matmul_fraction, peak_of
from scalebook.measure.metrics.recorded import count, document_length, run_shape, settings
from scalebook.measure.metrics.repeats import of_configuration, start_spread
from scalebook.measure.metrics.steady import find_steady, middle
from scalebook.measure.metrics.window import Throughput, measured_steps, throughput
from scalebook.measure.row import RunMetrics
from scalebook.measure.telemetry import TelemetrySummary, flags, summarize
from scalebook.measure.telemetry import read as read_telemetry
from scalebook.measure.telemetry.summary import Settling, settled
from scalebook.record import RunRecord, object_of, text_of
from scalebook.step_columns import Steps
from scalebook.store import Run


@dataclass(frozen=True, slots=True)
class _Scale:
    """TFLOP/s/GPU of one token/s over all GPUs, so that a rate times it is a FLOP rate."""

    model: float
    convention: str  # of the model FLOPs


def _partial(record: RunRecord) -> str | None:
    """Return why the FLOPs of training are not those of all weights, None where they are."""
    trained = text_of(record.setting("trained"))
    if trained == "unknown":
        return (
            "The log does not say whether all weights were trained: MFU is left empty. If they "
            "were, ingest it with --trained all."
        )
    if trained not in (None, "all"):
        return (
            f"Only a part of the weights was trained ({trained}): that needs about two thirds of "
            "the FLOPs or less, so MFU is left empty."
        )
    return None


def _scale(record: RunRecord, of_one_gpu: bool) -> tuple[_Scale | None, int | None, str | None]:
    """Return the scale, the layers of the model, and the reason for no scale.

    The model's own vocabulary counts, so that two splits of one model count the same FLOPs.
    """
    shape, reason = run_shape(record)
    if (partial := _partial(record)) is not None:
        return None, shape.num_layers if shape else count(record, "num_layers"), partial
    length = document_length(record)
    world = 1 if of_one_gpu else count(record, "world_size")
    if shape is None:
        return None, count(record, "num_layers"), reason
    if length is None or world is None:
        missing = "sequence_length" if length is None else "world_size"
        return None, shape.num_layers, f"The run names no {missing}."
    counted, flops = _flops(shape, length, count(record, "mtp_layers") or 0)
    return _Scale(flops / (world * 1e12), counted), shape.num_layers, None


@lru_cache(maxsize=256, typed=True)  # the runs of a folder are of few models
def _flops(shape: ModelShape, length: float, modules: int) -> tuple[str, float]:
    """Return the convention of a model's MFU and the FLOPs per token in it."""
    counted = headline_convention(shape)
    return counted, flops_per_token(shape, length, counted, mtp_layers=modules)


def _memory(record: RunRecord, steps: Steps) -> dict[str, Any]:
    """Return the most memory (GiB) allocated on any rank, else reserved; and why there is none."""
    most = (max(steps.known(name), default=0.0) for name in ("allocated_gib", "reserved_gib"))
    peak = next((value for value in most if value > 0), None)
    why = text_of(record.environment.get("memory_reason")) or "No step recorded its memory"
    return {"peak_memory_gib": peak, "peak_memory_reason": why if peak is None else None}


def _rates(
    found: Throughput | None, reason: str | None, world: int | None, start: float
) -> dict[str, Any]:
    """Return the fields of RunMetrics that are rates of steps and tokens."""
    single = found is not None and found.of_one_gpu
    interval = _interval(found, start) if found and not single else None
    low, high = interval or (None, None)
    seen = (found.seen if found and interval else None) or (None, None)
    if single:
        reason = "The number of GPUs is unknown: the rate is that of one GPU."
    return {
        "tokens_per_second": None if single or not found else found.tokens_per_second,
        "tokens_per_second_low": low,
        "tokens_per_second_high": high,
        "run_tokens_per_second_low": seen[0],
        "run_tokens_per_second_high": seen[1],
        "start_spread": start if interval else None,
        "tokens_per_second_per_gpu": _of_one_gpu(found, world),
        "throughput_reason": reason,
        "interval_reason": None if interval else reason or _no_interval(found),
        **(found.fields() if found else {"steady_reason": reason}),
    }


def _of_one_gpu(found: Throughput | None, world: int | None) -> float | None:
    """Return the rate of one GPU (tokens/s)."""
    if found is None or found.of_one_gpu:
        return found and found.tokens_per_second
    return found.tokens_per_second / world if world else None


PRINTED = "tokens_per_second_per_gpu_median"  # under "ingest" of a record's environment


def _printed(found: Throughput | None, record: RunRecord, steps: Steps) -> dict[str, Any]:
    """Return the rate that a trainer printed where it printed no time of a step."""
    rate = object_of(record.environment.get("ingest")).get(PRINTED)
    timed = any(steps.known("step_seconds"))
    if found is not None or timed or not record.averaged or not isinstance(rate, float):
        return {}
    why = "The trainer printed this rate of a GPU and no time of a step."
    return {"tokens_per_second_per_gpu": rate, "throughput_reason": why}


def _untold(record: RunRecord, steps: Steps) -> float | None:
    """Return the steady step time (s) of a run whose tokens nobody knows, None for any other."""
    seconds = [one for one in steps.known("step_seconds") if 0 < one < math.inf]
    known = any(steps.known("tokens")) or any(steps.known("tokens_per_gpu"))
    if not seconds or not record.averaged or known:
        return None
    problem = find_steady(seconds, interval=False).problem
    return middle(seconds) if problem in (None, "too short") else None


def _interval(found: Throughput, start: float) -> tuple[float, float] | None:
    """Return the interval of the configuration's rate: this run's, and what a start changes."""
    if found.interval is None:
        return None
    return of_configuration(found.tokens_per_second, *found.interval, start)


def _no_interval(found: Throughput | None) -> str:
    """Return why a rate has no interval."""
    reason = (found.steady.reason or found.note) if found else None
    return reason or "The interval of the step time reaches down to zero."


def mfu_of(record: RunRecord, rate: float) -> float | None:
    """Return the fraction of the peak for a rate of one GPU (tokens/s); None where unknown."""
    (scale, _, _), (peak, _, _) = _scale(record, of_one_gpu=True), peak_of(record, None)
    value = rate * scale.model / peak if scale and peak else None
    return value if value is None or value <= 1 else None


def _void(
    rates: Throughput | None, scale: _Scale | None, record: RunRecord, named: str | None
) -> str | None:
    """Return why a rate cannot be true, None where it can: it is above what the device can do."""
    limit, precision = highest_peak(record, named)
    achieved = rates.tokens_per_second * scale.model if rates and scale else 0.0
    if limit is None or achieved <= limit:
        return None
    return (
        f"Void: {achieved:,.0f} TFLOP/s per GPU is {achieved / limit:.1f} times the dense "
        f"{precision} peak of the device ({limit:,.0f}). The time, the tokens, the number of GPUs "
        "or the device is wrong."
    )


def _stalls(steps: Steps, measured: Steps, rates: Throughput | None) -> dict[str, Any]:
    """Return the fields of RunMetrics about steps that were held up."""
    stalled = steps.in_phase("stalled")
    counted = (measured, stalled)
    seconds = sum(sum(part.known("step_seconds")) for part in counted)
    tokens = sum(sum(part.known("tokens")) for part in counted)
    rate = tokens / seconds if stalled and rates and seconds > 0 else None
    return {"stalled_steps": len(stalled), "tokens_per_second_with_stalls": rate}


# Fields that a summary of telemetry and RunMetrics have in common.
_OF_DEVICES = (
    *("energy_joules_per_token", "energy_method", "energy_reason", "mean_power_watts"),
    *("max_power_watts", "power_cap_watts", "power_reason", "clock_reason"),
    *("max_temperature_celsius", "temperature_reason", "gpu_busy_fraction", "busy_reason"),
    *("throttle_fractions", "throttle_reason"),
)


def _devices(found: TelemetrySummary) -> dict[str, Any]:
    """Return the fields of RunMetrics that telemetry shows."""
    clocks = found.clocks
    return {name: getattr(found, name) for name in _OF_DEVICES} | {
        "mean_clock_mhz": clocks.mean_mhz if clocks else None,
        "min_clock_mhz": clocks.lowest_mhz if clocks else None,
        "device_notes": flags(found),
    }


_FEW = 10
_SMALL_RISE = 1.02
_OF_A_POLICY = 0.5  # losses that stay below it may be of a policy, which need not fall


def loss_fell(losses: Sequence[float]) -> bool | None:
    """Return whether losses fell, None with fewer than two.

    A last loss above the first is noise where the later half is lower on average; of a few steps
    a small rise says nothing, and the loss of a policy, small or negative, need not fall.
    """
    if len(losses) < 2:
        return None
    half = len(losses) // 2
    if losses[-1] < losses[0] or fmean(losses[-half:]) < fmean(losses[:half]):
        return True
    few = len(losses) < _FEW and losses[0] < losses[-1] <= _SMALL_RISE * losses[0]
    return None if few or min(losses) <= 0 or max(losses) < _OF_A_POLICY else False


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of a run, and what they come from."""

    metrics: RunMetrics
    rates: Throughput | None  # even where they are void
    devices: TelemetrySummary


@dataclass(frozen=True, slots=True)
class _Rated:
    """The rates of a run and what they are fractions of; each that is None has its reason."""

    seen: Throughput | None  # even where it is void
    rates: Throughput | None
    no_rate: str | None
    void: str | None
    scale: _Scale | None
    layers: int | None
    no_scale: str | None
    peak: float | None
    peak_name: str | None
    no_peak: str | None

    @property
    def achieved(self) -> float | None:
        """Model TFLOP/s of a GPU."""
        return (
            self.rates.tokens_per_second * self.scale.model if self.rates and self.scale else None
        )

    def mfu(self, start: float) -> dict[str, Any]:
        """Return the fields of RunMetrics that are fractions of the peak."""
        reason = self.no_rate or self.no_scale or self.no_peak
        found: dict[str, Any] = dict.fromkeys(("mfu", "mfu_low", "mfu_high"))
        found |= dict.fromkeys(("mfu_reason", "mfu_interval_reason"), reason)
        rates, scale, peak = self.rates, self.scale, self.peak
        if rates is None or scale is None or peak is None:
            return found
        value = rates.tokens_per_second * scale.model / peak
        if value > 1:
            why = (
                f"{value:.3f} of the peak is physically impossible: the precision, the time, the "
                "tokens or the device is wrong."
            )
            return found | dict.fromkeys(("mfu_reason", "mfu_interval_reason"), why)
        found["mfu"] = value
        interval = _interval(rates, start)
        if interval is None:
            found["mfu_interval_reason"] = _no_interval(rates)
        else:
            found["mfu_low"], found["mfu_high"] = (end * scale.model / peak for end in interval)
        return found


def _rated(
    record: RunRecord, steps: Steps, named: str | None, devices: Settling, *, interval: bool
) -> _Rated:
    """Return the rates over measured steps; ``named`` is the precision of the peak."""
    seen, no_rate = throughput(record, steps, devices, interval=interval)
    scale, layers, no_scale = _scale(record, seen is not None and seen.of_one_gpu)
    void = _void(seen, scale, record, named)
    rates, no_rate = (None, void) if void else (seen, no_rate)
    peak = peak_of(record, named)
    return _Rated(seen, rates, no_rate, void, scale, layers, no_scale, *peak)


def printed(run: Run, peak_precision: str | None = None) -> dict[str, Any]:
    """Return the numbers of ``row.PRINTED`` by name, without a look at intervals and telemetry.

    The steps of the run may be brief ones.
    """
    record, every = run.record, Steps.of(run.steps)
    steps = measured_steps(every)
    found = _rated(record, steps, peak_precision, Settling(None), interval=False)
    per_gpu = _of_one_gpu(found.rates, count(record, "world_size"))
    rate = {"tokens_per_second_per_gpu": per_gpu, "throughput_reason": found.no_rate}
    values = _known(record, every, steps, found, 0.0) | rate
    values |= _printed(found.rates, record, every)
    return {name: values[name] for name in row.PRINTED}


def _known(
    record: RunRecord, every: Steps, steps: Steps, found: _Rated, start: float
) -> dict[str, Any]:
    """Return the fields of RunMetrics that ``printed`` and ``numbers`` share."""
    rates = found.rates
    return {
        "run_id": record.run_id,
        "status": "void" if found.void else record.status,
        "reason": found.void or record.reason,
        "source": record.source,
        **settings(record),
        "step_seconds_median": rates.step_seconds_median if rates else _untold(record, steps),
        "model_tflops_per_second_per_gpu": found.achieved,
        **found.mfu(start),
        **_memory(record, every),
        **_losses(every.known("loss")),
    }


def measure(
    run: Run, *, peak_precision: str | None = None, own: Iterable[registered.Metric] = ()
) -> RunMetrics:
    """Return the numbers of a run, with ``own`` metrics in addition to those of the project.

    ``peak_precision`` names the peak that MFU is a fraction of where the run's own precision
    does not settle it (fp8).
    """
    return numbers(run, peak_precision=peak_precision, own=own).metrics


def numbers(
    run: Run, *, peak_precision: str | None = None, own: Iterable[registered.Metric] = ()
) -> Numbers:
    """Return the numbers of a run as ``measure`` does, and what they come from."""
    record, every = run.record, Steps.of(run.steps)
    steps = measured_steps(every)
    readings = read_telemetry(run.path)
    rated = _rated(record, steps, peak_precision, settled(readings, steps), interval=True)
    start = start_spread(text_of(record.setting("platform")))
    rates, no_rate = rated.rates, rated.no_rate
    no_flops = no_rate or rated.no_scale
    devices = summarize(readings, record, rates.steps if rates else steps)
    found = RunMetrics(
        **_known(record, every, steps, rated, start),
        cause=text_of(record.cause),
        accelerator=text_of(record.environment.get("accelerator")),
        device_ids=text_of(record.environment.get("device_ids")),
        num_layers=rated.layers,
        measured_steps=len(steps),
        **_rates(rates, no_rate, count(record, "world_size"), start)
        | _printed(rates, record, every),
        flops_convention=rated.scale.convention if rated.scale else DEFAULT_CONVENTION,
        model_tflops_reason=no_flops,
        peak_tflops_per_second=rated.peak,
        peak_precision=rated.peak_name,
        **matmul_fraction(rated.achieved, record, peak_precision, no_flops),
        **_devices(devices),
        **_stalls(every, steps, rates),
    )
    subject = registered.Subject(record, every, rates.steps if rates else None, found)
    more = registered.values(subject, (*registered.BUILT_IN, *own))
    return Numbers(found.changed({"registered": more}), rated.seen, devices)


def _losses(losses: Sequence[float]) -> dict[str, Any]:
    first, last = (losses[0], losses[-1]) if losses else (None, None)
    return {"loss_first": first, "loss_last": last, "loss_fell": loss_fell(losses)}
