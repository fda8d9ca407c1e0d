"""Fit the slowness of each kind of work to measured steps: non-negative, pulled to a belief.

Minimises the sum of squared relative errors over the noise plus squared distances from the belief
over its deviation, no slowness below zero (Lawson and Hanson, Solving Least Squares Problems,
chapter 23, on the normal equations). The same matrix gives the uncertainty of a prediction, which
grows with its distance from what was fitted. A few dozen unknowns: plain Python is fast enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from scalebook.predict.kinds import Belief

NOISE = 0.02  # relative, of a step time between machines and starts, and of the model at its best
_TINY = 1e-12
# Relative error beyond which a sample is doubted, and rounds of refitting until weights settle.
_CLEAN_ERROR, _ROUNDS = 0.06, 6

Matrix = list[list[float]]


@dataclass(frozen=True, slots=True)
class StepSample:
    """One measured step time with its work in reference seconds by kind."""

    seconds: float
    work: Mapping[str, float]
    configuration: str  # equal for repeats
    layout: str
    ranks: int = 1
    model: str = ""  # without its number of layers
    width: float = 0.0  # the narrowest side of its matrix products
    unsure: float = 0.0  # relative, as hosts differ
    doubt: float = 1.0  # how many times the noise this sample's error is taken to have

    @property
    def scale(self) -> float:
        """The standard deviation of the measured time (seconds) that the fit assumes."""
        return self.seconds * NOISE * self.doubt

    def row(self, kinds: Sequence[str]) -> list[float]:
        """Return the work over the measured time and the noise."""
        return [self.work.get(kind, 0.0) / self.scale for kind in kinds]


@dataclass(frozen=True)
class RateFit:
    """Slowness by kind with its covariance; kinds that no sample has keep their belief."""

    belief: Belief
    kinds: tuple[str, ...]  # that were fitted
    slowness: Mapping[str, float]
    covariance: Matrix  # of the fitted kinds; zero where a slowness is held at zero
    samples: tuple[StepSample, ...]

    def seconds(self, work: Mapping[str, float]) -> float:
        """Return the predicted time of a step."""
        return sum(self.slowness[kind] * value for kind, value in work.items())

    def variance(self, work: Mapping[str, float]) -> float:
        """Return the variance of the relative error without noise: what the fit doesn't know."""
        total = self.seconds(work)
        row = [work.get(kind, 0.0) / total for kind in self.kinds]
        known = max(_bilinear(row, self.covariance, row), 0.0)
        unknown = (
            (self.belief.deviation[kind] * value / total) ** 2
            for kind, value in work.items()
            if kind not in self.kinds
        )
        return known + sum(unknown)

    @cached_property
    def left_out(self) -> tuple[float, ...]:
        """Standardised error of each sample, predicted without all samples of its configuration.

        With the kinds at zero kept there, leaving out rows X is a change of low rank: residuals
        (I - X C X^T)^-1 r and predictive covariance its inverse (Cook and Weisberg 1982).
        """
        groups: dict[str, list[int]] = {}
        for index, sample in enumerate(self.samples):
            groups.setdefault(sample.configuration, []).append(index)
        found = [0.0] * len(self.samples)
        for group in groups.values():
            rows = [self.samples[index].row(self.kinds) for index in group]
            shared = [[_bilinear(one, self.covariance, two) for two in rows] for one in rows]
            size = len(group)
            rest = [
                [(1.0 if i == j else 0.0) - shared[i][j] for j in range(size)] for i in range(size)
            ]
            inverse = _inverse(rest)
            errors = [
                (self.samples[index].seconds - self.seconds(self.samples[index].work))
                / self.samples[index].scale
                for index in group
            ]
            for i, index in enumerate(group):
                error = sum(inverse[i][j] * errors[j] for j in range(size))
                one = self.samples[index]  # back to the noise that intervals start from
                noise = one.doubt / math.hypot(1.0, one.unsure / NOISE)
                found[index] = noise * error / math.sqrt(max(inverse[i][i], 1.0))
        return tuple(found)


def fit(samples: Sequence[StepSample], belief: Belief) -> RateFit:
    """Return the slowness of each kind that samples and belief together make likeliest.

    A sample that the kinds cannot explain, such as a run that waits for its host, must not bend
    them: beyond ``_CLEAN_ERROR`` its weight falls with its error (Huber 1964).
    """
    ordered = tuple(
        sorted(samples, key=lambda one: (one.configuration, one.seconds, sorted(one.work.items())))
    )
    found = least_squares(ordered, belief)
    for _ in range(_ROUNDS):
        errors = [abs(found.seconds(one.work) / one.seconds - 1) for one in ordered]
        doubts = [max(error / _CLEAN_ERROR, 1.0) for error in errors]
        ordered = tuple(
            replace(one, doubt=doubt) for one, doubt in zip(ordered, doubts, strict=True)
        )
        found = least_squares(ordered, belief)
    return found


def least_squares(
    ordered: tuple[StepSample, ...], belief: Belief, held: frozenset[str] = frozenset()
) -> RateFit:
    """Return the fit of samples in their order; what is ``held`` keeps its belief.

    A vague belief holds each kind that would cost nothing.
    """
    kinds = tuple(sorted({kind for sample in ordered for kind in sample.work} - held))
    place, size = {kind: i for i, kind in enumerate(kinds)}, len(kinds)
    matrix, vector = [[0.0] * size for _ in kinds], [0.0] * size
    for one in ordered:  # most kinds of work are in few samples
        scale, believed = one.scale, sum(belief.mean[kind] * one.work.get(kind, 0) for kind in held)
        filled = [(place[kind], value / scale) for kind, value in one.work.items() if kind in place]
        for i, value in filled:
            vector[i] += value * (one.seconds - believed) / scale
            for j, other in filled:
                matrix[i][j] += value * other
    for i, kind in enumerate(kinds):
        weight = belief.deviation[kind] ** -2
        matrix[i][i] += weight
        vector[i] += weight * belief.mean[kind]
    values, covariance = _not_negative(matrix, vector)
    slowness = dict(belief.mean) | dict(zip(kinds, values, strict=True))
    if belief.vague and (free := {kind for kind in kinds if slowness[kind] <= 0}):
        return least_squares(ordered, belief, held | free)
    return RateFit(belief, kinds, slowness, covariance, ordered)


def _not_negative(matrix: Matrix, vector: list[float]) -> tuple[list[float], Matrix]:
    """Return the minimum without negative values, and the inverse over those above zero."""
    size = len(vector)
    free = set(range(size))
    for _ in range(3 * size + 1):
        values, covariance = _solved(matrix, vector, free)
        negative = [i for i in free if values[i] < 0]
        if negative:
            free.remove(min(negative, key=lambda i: values[i]))
            continue
        slope = {
            i: vector[i] - sum(matrix[i][j] * values[j] for j in free)
            for i in range(size)
            if i not in free
        }
        best = max(slope, key=lambda i: slope[i], default=None)
        if best is None or slope[best] <= 1e-9 * abs(vector[best]) + _TINY:
            return values, covariance
        free.add(best)
    values, covariance = _solved(matrix, vector, free)
    return [max(value, 0.0) for value in values], covariance


def _solved(matrix: Matrix, vector: list[float], free: set[int]) -> tuple[list[float], Matrix]:
    """Return the minimum over the free values, all others zero, and the inverse over them."""
    size, chosen = len(vector), sorted(free)
    inverse = _inverse([[matrix[i][j] for j in chosen] for i in chosen])
    values = [0.0] * size
    covariance = [[0.0] * size for _ in range(size)]
    for row, i in zip(inverse, chosen, strict=True):
        values[i] = sum(weight * vector[j] for weight, j in zip(row, chosen, strict=True))
        for weight, j in zip(row, chosen, strict=True):
            covariance[i][j] = weight
    return values, covariance


def _inverse(matrix: Matrix) -> Matrix:
    """Return the inverse of a positive definite matrix (Gauss and Jordan, in place)."""
    work = [list(row) for row in matrix]
    for column in range(len(work)):
        pivot = work[column][column] or _TINY
        lead = [value / pivot for value in work[column]]
        lead[column] = 1 / pivot
        for i, row in enumerate(work):
            if i != column and (factor := row[column]):
                row[column] = 0.0
                work[i] = [a - factor * b for a, b in zip(row, lead, strict=True)]
        work[column] = lead
    return work


def _bilinear(left: Sequence[float], matrix: Matrix, right: Sequence[float]) -> float:
    return sum(
        a * sum(c * b for c, b in zip(row, right, strict=True))
        for a, row in zip(left, matrix, strict=True)
        if a
    )
