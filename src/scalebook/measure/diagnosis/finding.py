"""What a rule says of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Basis = Literal["measured", "computed", "fitted"]  # fitted: at the rates of other runs too
Value = float | int | str | bool | None


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause of a step's time: what it is, how large, and what to try.

    ``step_fraction`` is how much of the step's time it takes, None where that cannot be told. It is
    ``measured`` in this run, or ``computed`` from the configuration and the ceilings of its
    machine. Findings may overlap; the waterfall is what adds up.
    """

    rule: str
    says: str
    advice: tuple[str, ...]
    step_fraction: float | None = None
    basis: Basis | None = None
    evidence: dict[str, Value] = field(default_factory=dict[str, Value])


def percent(fraction: float) -> str:
    """Return a fraction as a percentage with three digits at the most."""
    return f"{100 * fraction:.3g} %"


def listed(names: list[str]) -> str:
    """Return names as part of a sentence: ``a, b and c``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
