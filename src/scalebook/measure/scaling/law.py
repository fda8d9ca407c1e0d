"""A law of the GPU time that a token takes, fitted to a few sizes, with a prediction interval.

One optimizer step on n GPUs takes a fixed part, a bandwidth part that follows a ring
all-reduce's volume, (n - 1) / n (Thakur et al., 2005), and a part per hop of a tree, log2 n.
Per token, in GPU seconds (n over tokens per second), that is

    weak scaling    a + b (n - 1) / n + c log2 n          (tokens of a step grow with n)
    strong scaling  a + b (n - 1)     + c n log2 n        (tokens of a step stay the same)

with a > 0 and b, c >= 0: more GPUs never make a token cheaper. Left out: the kink at the
border of a node, stragglers, and batch effects on a GPU's own speed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scalebook.measure.intervals import student_quantile

ScalingKind = Literal["weak", "strong"]

TERMS = ("fixed", "bandwidth", "hop")
# Sub-laws by which of the terms they have; the interval spans all that fit about as well.
CANDIDATES = ((0,), (0, 1), (0, 2), (0, 1, 2))
FLOOR = 0.005  # no run repeats to better than half a percent, so no interval claims to
_SINGULAR = 1e12  # condition of normal equations that do not tell the terms apart
COMPARABLE = 2.0  # residual scatter, over that of the best law, up to which a law still counts


@dataclass(frozen=True, slots=True)
class _Fit:
    """One sub-law: its terms, coefficients, covariance factor, and relative scatter."""

    terms: tuple[int, ...]
    coefficients: tuple[float, ...]
    inverse: NDArray[np.float64]
    scatter: float  # standard error of the relative residuals, FLOOR at least
    freedom: int


@dataclass(frozen=True, slots=True)
class FittedLaw:
    """The law that fits best, and all that fit about as well (they widen the interval)."""

    kind: ScalingKind
    world_sizes: tuple[int, ...]
    coefficients: tuple[tuple[str, float], ...]  # GPU seconds per token, by term
    relative_scatter: float  # standard error of the residuals, as a fraction
    alternatives: int  # laws that the interval spans
    fits: tuple[_Fit, ...]

    def predict(self, world_size: int) -> tuple[float, float, float | None]:
        """Return tokens per second at a size with the ends of its 95 % prediction interval.

        The upper end is None where the data do not bound it. The interval is the hull over the
        comparable laws of Student's interval for one new run.
        """
        row = _basis(self.kind, world_size)
        value = world_size / _evaluate(self.fits[0], row)
        lows: list[float] = []
        highs: list[float] = []
        for fit in self.fits:
            centre = _evaluate(fit, row)
            half = _half_width(fit, row, centre)
            lows.append(world_size / (centre + half))
            highs.append(world_size / (centre - half) if centre > half else math.inf)
        high = max(highs)
        return value, min(lows), None if math.isinf(high) else high


def fit_law(points: Sequence[tuple[int, float]], kind: ScalingKind) -> FittedLaw | str:
    """Return the law through (world size, tokens per second), or why there is none."""
    sizes = tuple(sorted({size for size, _ in points}))
    if len(sizes) < 3:
        return f"A law needs runs at 3 world sizes or more; there are {len(sizes)}."
    fits = [fit for terms in CANDIDATES if (fit := _least_squares(points, kind, terms))]
    if not fits:
        return "No law with a fixed, a bandwidth and a hop term fits these runs."
    # ties in scatter go to the law with fewer terms, which comes first
    best = min(fits, key=lambda fit: fit.scatter)
    allowed = best.scatter * COMPARABLE
    near = [fit for fit in fits if fit is not best and fit.scatter <= allowed]
    named = tuple(
        (TERMS[term], value) for term, value in zip(best.terms, best.coefficients, strict=True)
    )
    return FittedLaw(kind, sizes, named, best.scatter, 1 + len(near), (best, *near))


def _basis(kind: ScalingKind, n: int) -> tuple[float, float, float]:
    """Return the three terms at a size, each for a coefficient of 1."""
    hop = math.log2(n)
    return (1.0, (n - 1) / n, hop) if kind == "weak" else (1.0, n - 1.0, n * hop)


def _evaluate(fit: _Fit, row: tuple[float, ...]) -> float:
    """Return GPU seconds per token."""
    return sum(c * row[term] for term, c in zip(fit.terms, fit.coefficients, strict=True))


def _least_squares(
    points: Sequence[tuple[int, float]], kind: ScalingKind, terms: tuple[int, ...]
) -> _Fit | None:
    """Return the relative least-squares fit; None when a coefficient is not allowed.

    Residuals are relative because timing noise is: every point counts by its own size.
    """
    freedom = len(points) - len(terms)
    if freedom < 1:
        return None
    # Divided by the measured time per token, so that the target is 1.
    rows = np.array([[_basis(kind, n)[term] * rate / n for term in terms] for n, rate in points])
    normal = rows.T @ rows
    if np.linalg.cond(normal) > _SINGULAR:
        return None
    inverse = np.linalg.inv(normal)
    solution: Sequence[float] = (inverse @ rows.sum(axis=0)).tolist()
    rounding = 1e-9 * abs(solution[0])  # a term that is absent comes out as plus or minus 1e-20
    if solution[0] <= 0 or any(value < -rounding for value in solution[1:]):
        return None
    residual = float(((1 - rows @ solution) ** 2).sum())
    scatter = max(FLOOR, math.sqrt(residual / freedom))
    return _Fit(terms, tuple(solution), inverse, scatter, freedom)


def _half_width(fit: _Fit, row: tuple[float, ...], centre: float) -> float:
    """Return half the 95 % prediction interval of GPU seconds per token."""
    x = np.array([row[term] for term in fit.terms])
    spread = float(x @ fit.inverse @ x)
    return student_quantile(fit.freedom) * fit.scatter * math.sqrt(centre**2 + spread)
