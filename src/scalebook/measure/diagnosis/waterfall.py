"""From the peak to the MFU that was reached: where the time of a step goes, counted once.

Parts are shares of the step's time. Each takes no more than what those before it have left, so
they never explain more than the whole; what nothing explains stays unexplained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from scalebook.facts import traffic
from scalebook.facts.flops import attention_width
from scalebook.facts.flops.conventions import flop_parts
from scalebook.measure.diagnosis.evidence import Basis, Evidence, percent
from scalebook.measure.diagnosis.pipeline import waiting_of
from scalebook.settings import SWITCHES


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the step: its share, None with the reason where it is not known."""

    name: str
    step_fraction: float | None
    basis: Basis | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Waterfall:
    """The parts of a step, the useful work first and the unexplained rest last."""

    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()

    @property
    def explained(self) -> float:
        """The shares of all parts but the unexplained, added up: never above 1."""
        known = (part.step_fraction for part in self.parts if part.name != "unexplained")
        return sum(share for share in known if share is not None)


class _Remaining:
    """Hands out shares of the step until nothing is left."""

    def __init__(self) -> None:
        self.left = 1.0
        self.parts: list[Part] = []
        self.notes: list[str] = []

    def take(self, name: str, share: float | None, basis: Basis, reason: str | None = None) -> None:
        if share is None:
            self.parts.append(Part(name, None, None, reason))
            return
        given = min(max(share, 0.0), self.left)
        if share > given + 0.005:
            self.notes.append(
                f"{name.replace('_', ' ')} would be {percent(share)}, but {percent(given)} of the "
                "step is left: it overlaps with parts before it, or an estimate is too high."
            )
        self.left -= given
        self.parts.append(Part(name, given, basis))


TWO_PEAKS = (
    "The layers' products count at the FP8 peak, attention and the output layer at that of BF16."
)
NO_OPTIONS = "the run recorded neither its options nor a profile, so its rest cannot be split"
NO_PROFILE = "not measured: run with profile_steps=3"


def waterfall(found: Evidence) -> Waterfall | None:
    """Return the parts of the step, None where no peak is known to hold its work against."""
    metrics, split = found.metrics, found.split
    useful, best = useful_work(found), metrics.measured_matmul_tflops
    if useful is None or not 0 < useful <= 1:
        return None
    rest = _Remaining()
    slower = metrics.peak_tflops_per_second / best if metrics.peak_tflops_per_second and best else 1
    rest.take("useful_work_at_peak", useful, "measured")
    if metrics.mfu is None:
        rest.notes.append(TWO_PEAKS)
    slow = lower_clock(found)
    no_clock = "The clocks were not sampled, or nobody states the clock of the peak."
    rest.take("lower_clock", slow, "computed", no_clock)
    # a probe's best product ran at a lowered clock too: that part is counted
    ceiling = None if best is None else max(useful * (slower - 1) - (slow or 0.0), 0.0)
    rest.take("products_below_peak", ceiling, "computed", metrics.matmul_fraction_reason)
    done = useful if found.record.setting("recompute") == "none" else metrics.hfu
    again = None if done is None else (done - useful) * max(slower, 1.0)
    rest.take("recomputation", again, "computed", metrics.hfu_reason)
    waits = waiting_of(found)
    no_schedule = "The sizes of the run's layout are not all known."
    rest.take("pipeline_bubble", waits.bubble if waits else None, "computed", no_schedule)
    rest.take("unequal_stages", waits.imbalance if waits else None, "computed", no_schedule)
    why = NO_PROFILE
    rest.take("exposed_communication", split.communication if split else None, "measured", why)
    stages = waits.stages if waits and split else None
    rest.take("waits_between_stages", stages, "measured", why)
    rest.take("optimizer", split.optimizer if split else None, "measured", why)
    rest.take("data", split.data if split else None, "measured", why)
    rest.take("idle_device", waits.idle if waits else None, "measured", why)
    rest.take("elementwise", *_elementwise(found))
    rest.take("attention_below_peak", _attention(found), "measured", why)
    rest.take("other_kernels", _other(found, rest), "measured", why)
    kernels = [name for name in SWITCHES if name.startswith("fused_")]
    silent = split is None and all(found.record.observed.get(name) is None for name in kernels)
    share, why = (None, NO_OPTIONS) if silent else (max(rest.left, 0.0), None)
    rest.parts.append(Part("unexplained", share, None, why))
    return Waterfall(tuple(rest.parts), tuple(rest.notes))


def _other(found: Evidence, rest: _Remaining) -> float | None:
    """Share of the step that forward and backward take beyond the parts that are named.

    That is products slower than the best, and small kernels; by time marks, which hold everything
    between them, also gaps between kernels and collectives inside a pass.
    """
    split = found.split
    if split is None or split.compute is None:
        return None
    taken = sum(part.step_fraction or 0.0 for part in rest.parts if part.name in COMPUTING)
    return max(split.compute - taken, 0.0)


COMPUTING = {
    *("useful_work_at_peak", "lower_clock", "products_below_peak", "recomputation"),
    *("elementwise", "attention_below_peak"),
}


FLOPS = ("products_below_peak", "attention_below_peak")


def with_fitted(found: Waterfall, shares: Mapping[str, float]) -> Waterfall:
    """Return the parts with what the run did not measure at rates that are fitted to runs.

    ``shares`` are those of the step beyond its FLOPs at the peak, by part. They are taken from the
    kernels without a name and from what is unexplained, never from what the run itself measured.
    """
    known = {part.name: part for part in found.parts}
    if known["unexplained"].step_fraction is None:
        return found
    left = {name: known[name].step_fraction or 0.0 for name in ("other_kernels", "unexplained")}
    clock = known["lower_clock"].step_fraction or 0.0
    slower = sum(shares.get(name, 0.0) for name in FLOPS) or 1.0
    profiled = known["idle_device"].step_fraction is not None
    added: dict[str, Part] = {}
    for name, share in shares.items():
        if name in known and known[name].step_fraction is not None:
            continue  # measured, or computed from the run's own machine
        if profiled and name not in FLOPS:
            continue  # a profile has measured every wait
        own = share * (1 - min(clock / slower, 1.0)) if name in FLOPS else share
        given = min(own, sum(left.values()))
        from_kernels = min(given, left["other_kernels"])
        left["other_kernels"] -= from_kernels
        left["unexplained"] -= given - from_kernels
        added[name] = Part(name, given, "fitted")
    parts = [added.pop(part.name, part) for part in found.parts]
    parts = [replace(one, step_fraction=left[one.name]) if one.name in left
             and one.step_fraction is not None else one for one in parts]  # fmt: skip
    return replace(found, parts=(*parts[:-2], *added.values(), *parts[-2:]))


def useful_work(found: Evidence) -> float | None:
    """Share of the step that the model's FLOPs take at the dense peak: the MFU.

    An FP8 run has no single peak: products of its layers count at the FP8 peak, the attention core
    and the output layer at that of BF16, in which they run. Not counted: experts, further tokens.
    """
    metrics, shape, length = found.metrics, found.shape, found.document_length
    if metrics.mfu is not None or metrics.precision != "fp8":
        return metrics.mfu
    rate = metrics.tokens_per_second_per_gpu
    eight, sixteen = _peak(found, "fp8"), _peak(found, "bf16")
    further = found.record.setting("mtp_layers")
    if shape is None or shape.moe or further or not (length and rate and eight and sixteen):
        return None
    parts = flop_parts(shape, length)
    return rate * (parts.layers / eight + (parts.attention_core + parts.logits) / sixteen) / 1e12


def _peak(found: Evidence, precision: str) -> float | None:
    """Return the dense peak (TFLOP/s) that MFU divides by, of an FP8 run that of a precision."""
    known = found.metrics.peak_tflops_per_second
    if known is not None:
        return known
    return found.device.peak_tflops.get(precision) if found.device else None


def lower_clock(found: Evidence) -> float | None:
    """Share of the step by which its FLOPs take longer at the mean clock than at the peak's."""
    clocks, peak = found.devices.clocks, found.peak_clock_mhz
    done = found.metrics.hfu or useful_work(found)
    if clocks is None or peak is None or done is None or clocks.mean_mhz <= 0:
        return None
    return max(done * (peak / clocks.mean_mhz - 1), 0.0)


def _attention(found: Evidence) -> float | None:
    """Share of the step that the profile's attention kernels take beyond their FLOPs at peak.

    The causal half of scores and values counts: 6 x width x sequence per token and layer.
    """
    split, shape, metrics = found.split, found.shape, found.metrics
    rate, peak = metrics.tokens_per_second_per_gpu, _peak(found, "bf16")
    if split is None or split.attention is None or shape is None or not rate or not peak:
        return None
    flops = 6 * attention_width(shape) * (found.document_length or 0) * shape.attention_layers
    # what the lower clock adds to these FLOPs is counted with it
    slower = (lower_clock(found) or 0.0) / (metrics.hfu or useful_work(found) or 1.0)
    return max(split.attention - rate * flops / (1e12 * peak) * (1 + slower), 0.0)


def _elementwise(found: Evidence) -> tuple[float | None, Basis, str | None]:
    """Share of the step of element-wise kernels: of a profile, else their bytes at full bandwidth.

    Backward and forward values of 2 bytes, and the logits; experts are not counted.
    """
    split, shape, layout, metrics = found.split, found.shape, found.parallelism, found.metrics
    if split is not None and split.elementwise is not None:
        return split.elementwise, "measured", None
    bandwidth = found.device.memory_bandwidth_tb_per_second if found.device else None
    rate = metrics.tokens_per_second_per_gpu
    if shape is None or shape.moe or layout is None or not bandwidth or not rate:
        return None, "computed", "The sizes of the layers or the memory's bandwidth are not known."
    tensor = layout.tensor_parallel_size
    replicated = 1 / tensor if layout.sequence_parallel else 1.0
    values = sum(traffic.layer_values(shape, tensor=tensor, replicated=replicated, moe=False))
    size = 2 * values * shape.num_layers + traffic.LOGIT_BYTES * shape.vocab_size / tensor
    if tensor > 1 and found.record.is_on("sequence_parallel") is None:
        return None, "computed", "The run does not say whether it had sequence parallelism."
    return rate * tensor * size / (1e12 * bandwidth), "computed", None
