"""Rules on memory: what is left of it, and what saving it costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scalebook.facts.communication import pipeline_bubble
from scalebook.measure.diagnosis.evidence import Evidence, Finding, finding, percent
from scalebook.measure.diagnosis.pipeline import bubble_of

SAFE = 0.92  # of a device's memory, for what a prediction leaves out
FULL = 0.95
_OFF = (0.8, 2.0)  # measured over predicted: beyond, the prediction is of another run
ENOUGH_ROWS = 16_384  # of a matrix product: beyond, more rows make it hardly faster


@dataclass(frozen=True, slots=True)
class Need:
    """Predicted memory (GiB) of a changed run, scaled by how far off the prediction was."""

    gib: float
    of_gib: float

    @property
    def fits(self) -> bool:
        """Whether it fits with something to spare."""
        return self.gib <= SAFE * self.of_gib


def fits_with(found: Evidence, *, measured: Evidence | None = None, **changes: Any) -> Need | None:
    """Return what the run would need with changes; ``measured`` is the run that was measured."""
    base = measured or found
    now, then, device = base.memory(), found.memory(**changes), found.device_memory_gib
    peak = base.metrics.peak_memory_gib
    if now is None or then is None or not device or not peak:
        return None
    off = peak / now.total_gib
    fits = _OFF[0] <= off <= _OFF[1]
    return Need(then.total_gib * max(off, 1.0), device) if fits else None


def recompute_rule(found: Evidence) -> Iterator[Finding]:
    """Yield what recomputation costs, and whether the run would fit with less of it."""
    metrics, mode = found.metrics, found.record.setting("recompute")
    if not metrics.mfu or not metrics.hfu or metrics.hfu <= metrics.mfu:
        return
    extra = 1 - metrics.mfu / metrics.hfu
    if extra < 0.02:
        return
    needs = {
        less: fits_with(found, recompute=less)
        for less in ("none", "pointwise", "selective")
        if less != mode
    }
    # Of the time in which products may run: all of the step where nobody measured.
    measured = found.split.compute if found.split else None
    share = 1.0 - (bubble_of(found) or 0.0) if measured is None else min(measured, 1.0)
    yield finding(
        f"recompute={mode} repeats {percent(extra)} of all matrix products: HFU is "
        f"{percent(metrics.hfu)}, MFU {percent(metrics.mfu)}.",
        _less_recomputation(needs),
        computed=extra * share,
        evidence={"hfu": metrics.hfu, "mfu": metrics.mfu, "recompute": str(mode)},
    )


def _less_recomputation(needs: Mapping[str, Need | None]) -> str:
    """Return which mode with less recomputation would fit into memory, if that can be predicted."""
    for mode, need in needs.items():
        if need is not None and need.fits:
            return f"recompute={mode}: {need.gib:.3g} of {need.of_gib:.3g} GiB predicted."
    if any(need is not None for need in needs.values()):
        return (
            "Less recomputation is not predicted to fit here: shard further or spread the model "
            "over more GPUs to do without it."
        )
    return "Try less recomputation, where memory is left: no prediction fits what was measured."


def micro_batch_size_rule(found: Evidence) -> Iterator[Finding]:
    """Yield that memory is left for a larger micro batch."""
    metrics, batches = found.metrics, found.num_microbatches
    split, micro = found.parallelism, metrics.micro_batch_size
    if split is None or not micro or not batches or batches % 2 or not metrics.sequence_length:
        return
    rows = micro * metrics.sequence_length / split.context_parallel_size
    need = fits_with(found, micro_batch_size=2 * micro, num_microbatches=batches // 2)
    if rows >= ENOUGH_ROWS or need is None or not need.fits:
        return
    bubble = bubble_of(found) or 0.0
    stages, chunks = split.pipeline_parallel_size, split.virtual_pipeline_parallel_size
    later = pipeline_bubble(stages, batches // 2, chunks)
    if later - bubble > 0.02 or (chunks > 1 and batches // 2 % stages):
        return
    yield finding(
        f"A micro batch of {micro} gives each matrix product {rows:,.0f} rows, and uses "
        f"{metrics.peak_memory_gib:.3g} of {need.of_gib:.3g} GiB.",
        f"Try micro_batch_size={2 * micro}: {need.gib:.3g} GiB predicted, larger products and "
        "half the launches per step.",
        evidence={"micro_batch_size": micro, "predicted_gib": need.gib, "device_gib": need.of_gib},
    )


def memory_full_rule(found: Evidence) -> Iterator[Finding]:
    """Yield that the device is so full that the allocator may have had to tidy up."""
    device, peak = found.device_memory_gib, found.metrics.peak_memory_gib
    if not device or not peak or peak < FULL * device:
        return
    yield finding(
        f"{peak:.3g} of {device:.3g} GiB were allocated at the peak: so close to the limit the "
        "allocator frees memory and asks for it again, which stops the device.",
        "A smaller micro batch, more sharding, or recompute=pointwise or selective.",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragments.",
        evidence={"peak_memory_gib": peak, "device_gib": device},
    )
