"""From the peak to the MFU that was reached: where the time of a step goes, counted once.

Parts are shares of the step's time. Each takes no more than what those before it have left, so
they never explain more than the whole; what nothing explains stays unexplained.
"""

from __future__ import annotations

from dataclasses import dataclass

from scalebook.measure.diagnosis.evidence import Evidence
from scalebook.measure.diagnosis.finding import Basis, percent
from scalebook.measure.diagnosis.waiting import waiting_of


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
                f"{name} would be {percent(share)}, but {percent(given)} of the step is left: "
                "it overlaps with parts before it, or an estimate is too high."
            )
        self.left -= given
        self.parts.append(Part(name, given, basis))


NO_PROFILE = "not measured: run with profile_steps=3"


def waterfall(found: Evidence) -> Waterfall | None:
    """Return the parts of the step, None where the run has no MFU to explain."""
    metrics, split = found.metrics, found.split
    mfu, peak, best = metrics.mfu, metrics.peak_tflops_per_second, metrics.measured_matmul_tflops
    if mfu is None or peak is None or not 0 < mfu <= 1:
        return None
    rest = _Remaining()
    slower = peak / best if best else 1.0
    rest.take("useful_work_at_peak", mfu, "measured")
    ceiling = None if best is None else max(mfu * (slower - 1), 0.0)
    rest.take("products_below_peak", ceiling, "computed", metrics.matmul_fraction_reason)
    again = None if metrics.hfu is None else (metrics.hfu - mfu) * max(slower, 1.0)
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
    rest.take("other_kernels", _other(found, rest), "measured", why)
    rest.parts.append(Part("unexplained", max(rest.left, 0.0), None))
    return Waterfall(tuple(rest.parts), tuple(rest.notes))


def _other(found: Evidence, rest: _Remaining) -> float | None:
    """Return what forward and backward take beyond the products at their ceiling.

    That is attention, norms and other kernels, and products slower than the best. Only a profile
    tells: with marks alone, gaps and collectives are in it as well.
    """
    split = found.split
    if split is None or split.source != "profile" or split.compute is None:
        return None
    products = {"useful_work_at_peak", "products_below_peak", "recomputation"}
    taken = sum(part.step_fraction or 0.0 for part in rest.parts if part.name in products)
    return max(split.compute - taken, 0.0)
