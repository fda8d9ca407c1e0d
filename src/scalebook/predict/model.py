"""The predicted step of a configuration: its time, parts and 90 % interval, and what they rest on.

The interval comes from three things: noise, what the fit does not know of this mix of work (which
grows with its distance from what was fitted), and how wrong the model was about runs of the same
layout that it was not fitted to.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from scalebook.config import RunConfig
from scalebook.errors import ConfigError
from scalebook.facts import catalog, legality
from scalebook.facts.catalog.types import Accelerator, ModelShape, Platform
from scalebook.facts.flops import model_tflops
from scalebook.facts.legality import fit as fit_memory
from scalebook.facts.legality.untrained import untrained
from scalebook.measure.intervals import student_quantile
from scalebook.measure.probes import MachineIdentity, Probe
from scalebook.measure.probes.files import newest
from scalebook.predict import kinds
from scalebook.predict.amounts import Amounts, amounts
from scalebook.predict.fit import NOISE, RateFit, StepSample, fit
from scalebook.predict.kinds import COMMUNICATION, KINDS, MachineRates
from scalebook.predict.known import KnownRate, base_name, layout, narrowest
from scalebook.untrusted import html_table

Z90 = 1.645  # of the normal distribution, both sides of 90 %
_LARGEST_SQUARE = 9.0  # of a standardised error that counts for other layouts
_PRIOR_RUNS = 4.0  # how many runs the width of all layouts counts as, against a layout's own
_NOTABLE = 0.005  # of the step: below it an unmeasured kind is not worth a word
_HIDDEN = 0.1  # of the step: work that no run of this kind of layout has hidden, but this one would
_START_SECONDS = 60.0  # of a run around its steps, where no run is at hand
_CPU_START_SECONDS = 20.0  # the same without a GPU: nothing is compiled
_OTHER_MODEL = 0.025  # relative, where no run is of this model at any depth
_OTHER_WIDTH = 0.02  # relative, for each doubling outside the widths of products that were measured
# Intervals written down before runs that no other resembled, and those that held: fewer than 90 %.
# And how many of these runs are in today's intervals, of the runs before each round.
WRITTEN_BEFORE, HELD_BEFORE, HELD_NOW = 224, 166, 204
_WIDEST = 10.0  # of an interval, its end over its start: beyond it a rate is of no use
_LARGER_WORLD = 0.01  # relative, for each doubling beyond the most ranks that were measured


@dataclass(frozen=True, slots=True)
class Basis:
    """What a prediction rests on; nothing but the catalog where there are no runs and no probe."""

    runs: int
    configurations: int
    platforms: tuple[str, ...]
    probe: str | None
    accelerator: str | None
    folders: tuple[str, ...]
    without: int  # runs of these folders that teach nothing here


@dataclass(frozen=True, slots=True)
class Prediction:
    """A configuration's predicted rate and memory; low and high are the ends of 90 %."""

    tokens_per_second_per_gpu: float
    low: float
    high: float
    step_seconds: float
    mfu: float | None
    mfu_low: float | None
    mfu_high: float | None
    memory_gib: float
    fits: bool | None
    parts: Mapping[str, float]  # seconds, adding up to the step
    basis: Basis
    warnings: tuple[str, ...]
    refused: str | None = None  # why the rate says no more than its order of magnitude
    untrained: str | None = None  # why Scalebook's trainer would refuse it
    assumed: tuple[str, ...] = ()  # what much of the rate rests on and no run has shown

    def _repr_html_(self) -> str:
        rate = f"{self.tokens_per_second_per_gpu:,.0f} tokens/s per GPU"
        return html_table(
            {
                "rate": f"{rate} ({self.low:,.0f} to {self.high:,.0f}, 90 %)",
                "MFU": None if self.mfu is None else f"{self.mfu:.1%}",
                "step": f"{self.step_seconds:.4g} s",
                "memory": f"{self.memory_gib:,.1f} GiB",
                "fits": {True: "yes", False: "no", None: "unknown"}[self.fits],
                "warnings": " ".join(self.warnings),
            }
        )


@dataclass(frozen=True)
class Predictor:
    """Predicts configurations of one platform from the runs, the probe and the catalog."""

    platform: Platform
    accelerator: Accelerator | None
    machine: MachineRates
    fitted: RateFit
    basis: Basis
    foreign: bool  # no run and no probe of this architecture
    network_known: bool
    start_seconds: float  # of a run outside its steps, the median of those at hand

    @cached_property
    def widths(self) -> Mapping[str, float]:
        """How many times wider than nominal the errors of left-out runs are, by layout."""
        groups: dict[str, list[float]] = defaultdict(list)
        for sample, error in zip(self.fitted.samples, self.fitted.left_out, strict=True):
            groups[sample.layout].append(error * error)
        every = [error for group in groups.values() for error in group]
        # Bounded, so that one layout that no kind explains does not widen all others.
        bounded = sum(min(error, _LARGEST_SQUARE) for error in every)
        overall = (bounded + _PRIOR_RUNS) / (len(every) + _PRIOR_RUNS)
        groups[""] = []  # a layout that no run has
        found: dict[str, float] = {}
        for name, group in groups.items():
            freedom = len(group) + _PRIOR_RUNS
            square = (sum(group) + _PRIOR_RUNS * overall) / freedom
            found[name] = math.sqrt(square) * student_quantile(freedom, 0.95) / Z90
        return found

    def distance(self, config: RunConfig, shape: ModelShape) -> float:
        """Return the relative deviation for how far a configuration is from every run.

        The covariance doesn't have it: it takes the kinds of work to be the same for all shapes.
        """
        samples = self.fitted.samples
        if not samples:
            return 0.0
        ranks, width = max(one.ranks for one in samples), narrowest(config, shape)
        low, high = min(one.width for one in samples), max(one.width for one in samples)
        larger = max(math.log2(config.world_size / ranks), 0.0)
        outside = max(math.log2(low / width), math.log2(width / high), 0.0)
        other = base_name(config, shape) not in {one.model for one in samples}
        return math.hypot(_LARGER_WORLD * larger, _OTHER_WIDTH * outside, _OTHER_MODEL * other)

    def _assumed(self, config: RunConfig, work: Mapping[str, float], total: float) -> Iterator[str]:
        """Yield what is taken to be hidden, with its share of the step, and no run has shown."""
        family = layout(config)
        alike = [one.work for one in self.fitted.samples if one.layout == family]
        for kind, seconds in work.items() if self.fitted.samples else ():
            hidden = (1 - self.fitted.slowness[kind]) * seconds / total
            if hidden > _HIDDEN and not any(one.get(kind) for one in alike):
                what = f"{KINDS[kind].words}, {100 * hidden:.0f} % of the step, would be hidden"
                yield f"Assumption: {what}. No run of this kind of layout ({family}) has shown it."

    def step(
        self, config: RunConfig, shape: ModelShape, ran: Mapping[str, Any] | None = None,
        work: Amounts | None = None,
    ) -> tuple[Mapping[str, float], float]:  # fmt: skip
        """Return a step's seconds by kind of work and ``bubble``, and their relative deviation.

        The configuration must be legal. ``ran`` names options as a run recorded them.
        """
        work = work or amounts(config, shape, self.machine, ran)
        device = self.accelerator.name if self.accelerator else ""
        longer = self.fitted.device_factor(device)
        slowness = {kind: longer * value for kind, value in self.fitted.slowness.items()}
        parts = {
            kind: slowness[kind] * (value - work.idle.get(kind, 0.0))
            for kind, value in work.seconds.items()
        }
        parts["bubble"] = sum(slowness[kind] * value for kind, value in work.idle.items())
        variance = NOISE**2 + self.fitted.variance(work.seconds, device)
        width = self.widths.get(layout(config, ran), self.widths[""])
        variance = variance * width**2 + self.distance(config, shape) ** 2
        if self.foreign:
            variance += kinds.FOREIGN**2
        total = sum(parts.values())
        host = sum(slowness[kind] * value for kind, value in work.unsure.items())
        variance += (host / total) ** 2
        return parts, math.sqrt(variance)

    def predict(self, config: RunConfig) -> Prediction:
        """Return the predicted rate, memory and parts of a configuration.

        Raises:
            ConfigError: the configuration is illegal, in the words of ``check``.
        """
        shape = catalog.model(config.model)
        room = None if self.platform.vendor == "cpu" else self.platform.gpus_per_node
        legality.refuse(legality.Case(config, shape, self.accelerator, room))
        return self.of_legal(config, shape, fit_memory.estimate(config, shape).total_gib)

    def of_legal(self, config: RunConfig, shape: ModelShape, memory_gib: float) -> Prediction:
        """Return the prediction of a legal configuration that needs so much memory per GPU."""
        work = amounts(config, shape, self.machine)
        parts, deviation = self.step(config, shape, work=work)
        seconds = sum(parts.values())
        assumed = tuple(self._assumed(config, work.seconds, seconds))
        rate = config.tokens_per_step / seconds / config.world_size
        spread = math.exp(Z90 * deviation)
        high = rate * spread
        verdict = fit_memory.verdict(memory_gib, self.accelerator)
        mfu, why = self._mfu(config, shape, rate)
        if mfu:  # nothing is faster than the peak, however little is known
            high = min(high, rate / mfu)
        shown = {kind: value for kind, value in parts.items() if kind not in COMMUNICATION}
        shown["exposed_communication"] = sum(parts.get(kind, 0.0) for kind in COMMUNICATION)
        low = rate / spread
        ends = (*untrained(config, shape),) if config.engine == "megatron" else ()
        said = tuple(f"{one} The run would end at its start." for one in ends)
        return Prediction(
            tokens_per_second_per_gpu=rate,
            low=low,
            high=high,
            step_seconds=seconds,
            mfu=mfu,
            mfu_low=mfu / spread if mfu else None,
            mfu_high=mfu * high / rate if mfu else None,
            memory_gib=memory_gib,
            fits=verdict.fits,
            parts=shown,
            basis=self.basis,
            warnings=(*said, *self._warnings(config, parts, verdict, why), *assumed),
            refused=_refusal(config, low, high),
            untrained=" ".join(ends) or None,
            assumed=assumed,
        )

    def answer(self, config: RunConfig) -> Prediction:
        """Return the prediction of a configuration, if it says more than its order of magnitude.

        Raises:
            ConfigError: the configuration is illegal, or its interval is wider than a factor of 10.
        """
        found = self.predict(config)
        if found.refused:
            raise ConfigError(found.refused)
        return found

    def _mfu(
        self, config: RunConfig, shape: ModelShape, rate: float
    ) -> tuple[float | None, str | None]:
        if self.accelerator is None:
            return None, None
        if config.precision in ("fp8", "fp4"):
            return None, f"MFU is left empty: {config.precision} has no single peak."
        peak = self.accelerator.peak_tflops.get(config.precision)
        if peak is None:
            return None, f"MFU is left empty: {self.accelerator.name} has no {config.precision}."
        length, modules = config.unpacked().sequence_length, config.mtp_layers
        return model_tflops(rate, shape, length, mtp_layers=modules) / peak, None

    def _warnings(
        self,
        config: RunConfig,
        parts: Mapping[str, float],
        verdict: legality.Fit,
        no_mfu: str | None,
    ) -> Iterable[str]:
        if verdict.fits is False:
            yield f"Memory: {verdict.reason}. 'scalebook tune --dry-run' ranks layouts that fit."
        elif verdict.fits is None and verdict.capacity_gib is not None:
            yield f"Memory: {verdict.reason}."
        if self.foreign:
            device = self.accelerator.name if self.accelerator else "this CPU"
            yield (
                f"No run and no probe of {device}: the catalog's figures only, so the interval is "
                "wide. 'scalebook probe' or any completed run narrows it."
            )
        total = sum(parts.values())
        unmeasured = [
            f"{KINDS[kind].words} ({100 * value / total:.2g} % of the step)"
            for kind, value in sorted(parts.items(), key=lambda item: -item[1])
            if kind in KINDS and kind not in self.fitted.kinds and value > _NOTABLE * total
        ]
        if unmeasured and self.fitted.samples:
            yield f"Never measured by these runs: {', '.join(unmeasured)}."
        if config.nodes > 1 and not self.network_known:
            yield (
                f"The catalog has no network speed for {self.platform.name}: "
                f"{kinds.DEFAULT_NETWORK_GBPS:.0f} Gbit/s per GPU is assumed. Give --network-gbps."
            )
        if config.engine != "megatron":
            yield f"The runs are of engine 'megatron'; {config.engine} may differ."
        if no_mfu:
            yield no_mfu


def _refusal(config: RunConfig, low: float, high: float) -> str | None:
    """Return why an interval says no more than an order of magnitude; None where it does."""
    if high <= _WIDEST * low:
        return None
    ends = (f"{one:,.0f}" if one >= 10 else f"{one:.2g}" for one in (low, high))
    return (
        f"The rate of {config.model} on {config.platform} is not known: the 90 % interval is "
        f"{' to '.join(ends)} tokens/s per GPU. A completed run like it, or 'scalebook probe', "
        "narrows it."
    )


def predictor(
    platform: str,
    rates: Sequence[KnownRate] = (),
    probes: Iterable[Probe] = (),
    *,
    network_gbps: float | None = None,
    leave_out: Callable[[KnownRate], bool] | None = None,
    folders: Sequence[str] = (),
    without: int = 0,
) -> Predictor:
    """Return what predicts configurations of a platform, fitted to the runs of its architecture.

    ``leave_out`` names runs that must not teach it, such as the one to compare with.
    """
    target = catalog.platform(platform)
    device = catalog.accelerator(target.accelerator) if target.accelerator else None
    speed = network_gbps or target.network_gbps
    machine = kinds.machine(device, target.gpus_per_node, speed)
    architecture = device.architecture if device else "cpu"
    alike = (rate for rate in rates if rate.architecture == architecture)
    teaching = [rate for rate in alike if not (leave_out and leave_out(rate))]
    probe = newest(
        probes, lambda one: bool((ours := _device(one)) and ours.architecture == architecture)
    )
    # A probe's slowness is against the figures of the device that it ran on.
    probed = probe and _device(probe.identity)
    figures = kinds.machine(probed, machine.gpus_per_node) if probed else machine
    fitted = fit([rate.sample for rate in teaching], kinds.belief(figures, probed and probe))
    basis = Basis(
        runs=len(teaching),
        configurations=len({rate.placed for rate in teaching}),
        platforms=tuple(sorted({rate.config.platform for rate in teaching})),
        probe=probe.probe_id if probe else None,
        accelerator=device.name if device else None,
        folders=tuple(folders),
        without=without + len(rates) - len(teaching),
    )
    foreign = not teaching and probe is None
    around = [rate.around_seconds for rate in teaching if rate.around_seconds is not None]
    guess = _START_SECONDS if machine.is_gpu else _CPU_START_SECONDS
    start = median(around) if around else guess
    return Predictor(target, device, machine, fitted, basis, foreign, speed is not None, start)


def _device(machine: MachineIdentity | None) -> Accelerator | None:
    name = machine.accelerator if machine else None
    return catalog.accelerator_for_device(name) if name else None


def slower_than_parts(
    rate: KnownRate, rates: Sequence[KnownRate], probes: Iterable[Probe]
) -> dict[str, Any] | None:
    """Return by how much a run is slower than its parts, predicted without it and its repeats.

    ``fraction`` is above 0 where it was slower, ``low`` and ``high`` are what 90 % of such runs
    differ by, ``suspect`` is the kind of work whose rate would have to be worst to explain it.
    None where no other run of the architecture is at hand.
    """
    _, own = rate.placed
    found = predictor(
        rate.config.platform, rates, probes, leave_out=lambda other: other.placed[1] == own
    )
    if not found.fitted.samples:
        return None
    sample = rate.sample
    seconds = found.fitted.seconds(sample.work, sample.device, sample.node)
    width = found.widths.get(sample.layout, found.widths[""])
    known = NOISE**2 + found.fitted.variance(sample.work, sample.device, sample.node)
    deviation = math.hypot(width * math.sqrt(known), sample.unsure)
    spread = math.exp(Z90 * deviation)
    return {
        "fraction": rate.seconds / seconds - 1,
        "low": 1 / spread - 1,
        "high": spread - 1,
        "predicted_seconds": seconds,
        "measured_seconds": rate.seconds,
        "runs": found.basis.runs,
        "suspect": _suspect(found.fitted, sample, rate.seconds - seconds),
    }


# The parts of `scalebook.measure.diagnosis.waterfall` that fitted rates can fill in.
_AT_PEAK = {  # whose reference seconds are their FLOPs at the peak, counted there as such
    "products_below_peak": ("gemm", "gemm_fp8", "gemm_fp32", "expert_gemm"),
    "attention_below_peak": ("attention", "context_attention"),
}
_BEYOND = {
    "elementwise": ("elementwise",),
    "communication_in_passes": (*kinds.COMMUNICATION, "sharding", "uneven_experts", "fp8_weights"),
    "options_off": tuple(name for name in kinds.KINDS if name.endswith("_off")),
    "copies_and_waits": (
        *("gemm_outputs", "gemm_traffic", "routing", "offload", "waiting", "launch", "step"),
        *("fp8_cast", "fp8_scaling", "fp8_blockwise", "kernels"),
    ),
}


def fitted_shares(rate: KnownRate, made: Predictor) -> dict[str, float]:
    """Return shares of a run's step (0 to 1) by part, beyond its FLOPs at the device's peak.

    They are at the rates that ``made`` has fitted, so they need not add up to the measured step.
    """
    work, slowness = rate.sample.work, made.fitted.slowness
    beyond = {
        part: sum(max(slowness[kind] - 1, 0.0) * work.get(kind, 0.0) for kind in names)
        for part, names in _AT_PEAK.items()
    } | {
        part: sum(slowness[kind] * work.get(kind, 0.0) for kind in names)
        for part, names in _BEYOND.items()
    }
    return {part: seconds / rate.seconds for part, seconds in beyond.items() if seconds > 0}


def _suspect(fitted: RateFit, sample: StepSample, missing: float) -> str | None:
    """Return the kind of work that explains missing seconds most cheaply: least known per second.

    The posterior change of kind k is in proportion to its covariance with the step's time.
    """
    if missing <= 0:
        return None
    shares: dict[str, float] = {}
    for i, kind in enumerate(fitted.kinds):
        row = fitted.covariance[i]
        moves = sum(row[j] * sample.work.get(other, 0.0) for j, other in enumerate(fitted.kinds))
        shares[kind] = moves * sample.work.get(kind, 0.0)
    for kind, value in sample.work.items():
        if kind not in fitted.kinds:
            shares[kind] = (fitted.belief.deviation[kind] * value) ** 2
    best = max(shares, key=lambda kind: shares[kind], default=None)
    return KINDS[best].words if best else None
