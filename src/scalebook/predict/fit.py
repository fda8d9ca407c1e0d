"""Fit the slowness of each kind of work to measured steps: non-negative, pulled to a belief.

A sample i that ran on a device d of a node n says, in seconds:

    seconds[i] * (1 - device[d] - node[n]) = sum over kinds k of slowness[k] * work[i, k] + noise[i]

Slowness has its belief as prior. All runs of a node share by how much it is slower than others (a
random effect, Henderson 1975), so that many runs of one slow node teach little more about work than
a few; devices of an architecture differ from their figures in the same way, counted from their
mean. Both effects are of the deviation DEVICE_SPREAD. Those of devices are unknowns of the fit,
next to slowness; those of nodes are integrated out, by which a node's errors are correlated.

The minimum of squares with no slowness below zero is Lawson and Hanson's (Solving Least Squares
Problems, chapter 23, on the normal equations). Its matrix also gives the uncertainty of a
prediction, which grows with its distance from what was fitted. A few dozen unknowns: plain Python
is fast enough. *Scaled* is what was divided by the deviation of the sample's noise.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import nlargest
from operator import mul
from typing import NamedTuple

from scalebook.measure.metrics.repeats import DEVICE_SPREAD
from scalebook.predict.kinds import Belief

NOISE = 0.02  # relative, of a step time between machines and starts, and of the model at its best
_OWN_NOISE = math.sqrt(NOISE**2 - DEVICE_SPREAD**2)  # of this, what runs of a node do not share
_NODE_VARIANCE = DEVICE_SPREAD**2  # of a node without samples
# Relative deviation of the work in which a step is unlike the runs most like it, by the likelihood
# of runs predicted without their kind of layout, model or node (0.14 to 0.17); how many these are.
_UNLIKE, _MOST_LIKE = 0.15, 3
_TINY = 1e-12
# Relative error beyond which a sample is doubted, and rounds of refitting until weights settle.
_CLEAN_ERROR, _ROUNDS = 0.06, 6

Matrix = list[list[float]]
Shares = Mapping[str, float]  # of a step's time, by kind


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
    device: str = ""  # the kind of device that it ran on
    node: str = ""  # the machine; empty: one that no other sample ran on

    @property
    def own_noise(self) -> float:
        """The relative deviation of a step that other samples of its node do not share."""
        return _OWN_NOISE if self.node else NOISE

    @property
    def scale(self) -> float:
        """The standard deviation of the measured time (seconds) that the fit assumes."""
        return self.seconds * self.own_noise * self.doubt


@dataclass(frozen=True)
class RateFit:
    """Slowness by kind with its covariance; kinds that no sample has keep their belief."""

    belief: Belief
    kinds: tuple[str, ...]  # that were fitted
    slowness: Mapping[str, float]  # and, by the name of a device, its effect
    covariance: Matrix  # of the fitted kinds and the devices; zero where one is held at zero
    samples: tuple[StepSample, ...]
    devices: tuple[str, ...] = ()  # where the samples have several

    def device_factor(self, device: str) -> float:
        """Return how many times as long work takes on a device as on the mean one."""
        shares = _device_shares(device, self.devices)
        pairs = zip(self.devices, shares, strict=True)
        return 1 / (1 - sum(self.slowness[name] * share for name, share in pairs))

    def seconds(self, work: Mapping[str, float], device: str = "", node: str = "") -> float:
        """Return the predicted time of a step, on a usual node if it names none that is known."""
        total = sum(self.slowness[kind] * value for kind, value in work.items())
        return total * self.device_factor(device) / (1 - self._node_effect(node)[0][-1])

    def variance(self, work: Mapping[str, float], device: str = "", node: str = "") -> float:
        """Return the variance of the relative error without noise: what the fit doesn't know.

        The noise has in it what an unknown node may differ by, so a known one has less.
        """
        total = self.seconds(work, device)
        (*effect, _), node_variance = self._node_effect(node)
        row = [a - b for a, b in zip(self._row(work, device, total), effect, strict=True)]
        known = max(_dot(row, _times(self.covariance, row)), 0.0) + node_variance - _NODE_VARIANCE
        unknown = [self.belief.deviation[kind] * work[kind] for kind in work.keys() - {*self.kinds}]
        other = DEVICE_SPREAD * bool(self.devices and device not in self.devices)
        unlike = _UNLIKE * self.unlike(self._shares(work))
        return known + math.hypot(other, unlike, *(one / total for one in unknown)) ** 2

    def unlike(self, shares: Shares, without: Collection[str] = ()) -> float:
        """Return the share of a step's time (0 to 1) that runs spend on other work.

        The mean of the configurations most like it, but for those that are ``without``.
        """
        alike = [0.0] * len(self._of_configurations)
        for kind, share in shares.items():
            column = self._of_kinds[kind]
            alike = [a + (b if b < share else share) for a, b in zip(alike, column, strict=True)]
        named = zip(alike, self._of_configurations, strict=True)
        found = nlargest(_MOST_LIKE, [one for one, name in named if name not in without])
        return 1 - sum(found) / len(found) if found else 0.0

    @cached_property
    def _of_configurations(self) -> Mapping[str, Shares]:
        return {one.configuration: self._shares(one.work) for one in self.samples}

    @cached_property
    def _of_kinds(self) -> Mapping[str, list[float]]:
        """The share of a kind in the step of each configuration."""
        every = self._of_configurations.values()
        return {kind: [shares.get(kind, 0.0) for shares in every] for kind in self.kinds}

    def _shares(self, work: Mapping[str, float]) -> Shares:
        """Return the share of a step's time of each fitted kind that it has."""
        times = {kind: self.slowness[kind] * value for kind, value in work.items()}
        total = sum(times.values())
        return {kind: times[kind] / total for kind in self.kinds if times.get(kind)}

    def _row(self, work: Mapping[str, float], device: str, seconds: float) -> list[float]:
        """Return the coefficients of the fitted kinds and devices, relative to a step's time."""
        row = [work.get(kind, 0.0) / seconds for kind in self.kinds]
        return row + _device_shares(device, self.devices)

    def _scaled_rows(self, samples: Sequence[StepSample]) -> Matrix:
        """Return the coefficients of samples and, last in each row, their errors, scaled."""
        made: Matrix = []
        for one in samples:
            error = 1 / self.device_factor(one.device) - self.seconds(one.work) / one.seconds
            row = (*self._row(one.work, one.device, one.seconds), error)
            made.append([value * one.seconds / one.scale for value in row])
        return made

    def _node_effect(self, node: str) -> tuple[list[float], float]:
        """Return how a node's effect follows from coefficients, the effect last, and its variance.

        The effect is by how much of a step's time steps take longer there.
        """
        samples = [one for one in self.samples if node and one.node == node]
        if not samples:
            return [0.0] * (len(self.kinds) + len(self.devices) + 1), _NODE_VARIANCE
        return _shared([one.seconds / one.scale for one in samples], self._scaled_rows(samples))

    @cached_property
    def left_out(self) -> tuple[float, ...]:
        """Standardised error of each sample, predicted without all samples of its node.

        Of a sample without a node: without those of its configuration.
        """
        groups: dict[tuple[bool, str], list[int]] = {}
        for index, one in enumerate(self.samples):
            key = (True, one.node) if one.node else (False, one.configuration)
            groups.setdefault(key, []).append(index)
        found = [0.0] * len(self.samples)
        for group in groups.values():
            errors, variances = self._without([self.samples[index] for index in group])
            other = {one.configuration for i, one in enumerate(self.samples) if i not in group}
            gone = self._of_configurations.keys() - other
            for index, error, variance in zip(group, errors, variances, strict=True):
                one = self.samples[index]  # back to the noise that intervals start from
                known = variance - (one.own_noise * one.doubt) ** 2
                unlike = _UNLIKE * self.unlike(self._shares(one.work), gone)
                noise = math.hypot(one.own_noise, one.unsure, unlike)
                found[index] = error / math.sqrt(max(known, 0.0) + noise**2)
        return tuple(found)

    def _without(self, samples: Sequence[StepSample]) -> tuple[list[float], list[float]]:
        """Return the relative errors of samples predicted without them, and their variances.

        The samples are a whole node, or have none. Their predictive covariance without them is the
        inverse of their block of the precision of all samples, with the beliefs integrated out
        (Rasmussen and Williams 2006, 5.4.2). Kinds at zero are kept there.
        """
        rows = self._scaled_rows(samples)
        scales = [one.own_noise * one.doubt for one in samples]
        sizes = [bool(one.node) / scale for one, scale in zip(samples, scales, strict=True)]
        effect, node_variance = _shared(sizes, rows)
        rows = [  # times the inverse of the covariance of a node's errors
            [value - size * of_node for value, of_node in zip(row, effect, strict=True)]
            for row, size in zip(rows, sizes, strict=True)
        ]
        precision: Matrix = []
        for i, (*row, _) in enumerate(rows):
            turned = _times(self.covariance, row)
            explained = [
                node_variance * sizes[i] * size + _dot(turned, other)
                for size, other in zip(sizes, rows, strict=True)
            ]
            precision.append([(i == j) - value for j, value in enumerate(explained)])
        inverse = _inverse(precision)
        errors = [row[-1] for row in rows]
        return (
            [scale * _dot(row, errors) for scale, row in zip(scales, inverse, strict=True)],
            [scale**2 * inverse[i][i] for i, scale in enumerate(scales)],
        )


def fit(samples: Sequence[StepSample], belief: Belief) -> RateFit:
    """Return the slowness of each kind that samples and belief together make likeliest.

    A sample that the kinds cannot explain, such as a run that waits for its host, must not bend
    them: beyond ``_CLEAN_ERROR`` its weight falls with its error (Huber 1964).
    """
    ordered = tuple(
        sorted(samples, key=lambda one: (one.configuration, one.seconds, sorted(one.work.items())))
    )
    normal = _normal(ordered, belief)
    found = least_squares(ordered, belief, normal=normal, covariance=False)
    for left in reversed(range(_ROUNDS)):
        errors = [abs(found.seconds(one.work, one.device) / one.seconds - 1) for one in ordered]
        doubts = [max(error / _CLEAN_ERROR, 1.0) for error in errors]
        ordered = tuple(
            one if one.doubt == doubt else replace(one, doubt=doubt)
            for one, doubt in zip(ordered, doubts, strict=True)
        )
        found = least_squares(ordered, belief, normal=normal, covariance=not left)
    return found


def least_squares(
    ordered: tuple[StepSample, ...],
    belief: Belief,
    held: frozenset[str] = frozenset(),
    normal: _Normal | None = None,
    covariance: bool = True,
) -> RateFit:
    """Return the fit of samples in their order; what is ``held`` keeps its belief.

    A vague belief holds each kind that would cost nothing. ``normal`` are the equations of these
    samples with any doubts. A fit without its ``covariance`` has slowness only.
    """
    normal = normal or _normal(ordered, belief, held)
    kinds, devices = normal.kinds, normal.devices
    names = (*kinds, *devices)
    matrix, vector = [[*row] for row in normal.matrix], [*normal.vector]
    nodes: dict[str, list[tuple[float, _Equation]]] = {}
    for sample, one in zip(ordered, normal.equations, strict=True):
        weight = sample.doubt**-2
        if weight != 1:
            _add(matrix, vector, one, weight - 1)
        if sample.node:
            nodes.setdefault(sample.node, []).append((weight, one))
    for equations in nodes.values():
        _integrate_out(matrix, vector, equations)
    for i, name in enumerate(names):
        weight = (DEVICE_SPREAD if name in devices else belief.deviation[name]) ** -2
        matrix[i][i] += weight
        vector[i] += weight * (0.0 if name in devices else belief.mean[name])
        matrix[i][:i] = [above[i] for above in matrix[:i]]
    values, free = _not_negative(matrix, vector, len(kinds))
    slowness = dict(belief.mean) | dict(zip(names, values, strict=True))
    if belief.vague and (nothing := {kind for kind in kinds if slowness[kind] <= 0}):
        return least_squares(ordered, belief, held | nothing, covariance=covariance)
    known = _covariance(matrix, free) if covariance else []
    return RateFit(belief, kinds, slowness, known, ordered, devices)


class _Equation(NamedTuple):
    """A sample over the deviation of its noise, without doubt."""

    seconds: float
    rest: float  # of them, without what is held
    terms: list[tuple[int, float]]  # place and coefficient: most kinds are in few samples


class _Normal(NamedTuple):
    """The normal equations of samples without doubts, nodes and belief: their upper half."""

    kinds: tuple[str, ...]
    devices: tuple[str, ...]
    equations: list[_Equation]
    matrix: Matrix
    vector: list[float]


def _normal(
    ordered: Sequence[StepSample], belief: Belief, held: frozenset[str] = frozenset()
) -> _Normal:
    """Return the equations of samples in their order, and their sums."""
    kinds = tuple(sorted({kind for sample in ordered for kind in sample.work} - held))
    devices = tuple(sorted({one.device for one in ordered}))
    devices = devices if len(devices) > 1 else ()
    names = (*kinds, *devices)
    place = {name: i for i, name in enumerate(names)}
    found = _Normal(kinds, devices, [], [[0.0] * len(names) for _ in names], [0.0] * len(names))
    for one in ordered:
        scale = one.seconds * one.own_noise
        of_held = sum(belief.mean[kind] * one.work.get(kind, 0) for kind in held)
        terms = sorted((place[kind], value) for kind, value in one.work.items() if kind in place)
        shares = zip(devices, _device_shares(one.device, devices), strict=True)
        terms += [(place[name], one.seconds * share) for name, share in shares]
        scaled = [(i, value / scale) for i, value in terms]
        equation = _Equation(one.seconds / scale, (one.seconds - of_held) / scale, scaled)
        found.equations.append(equation)
        _add(found.matrix, found.vector, equation, 1.0)
    return found


def _add(matrix: Matrix, vector: list[float], one: _Equation, weight: float) -> None:
    """Add a sample of a weight to the upper half of normal equations."""
    for at, (i, value) in enumerate(one.terms):
        row, weighted = matrix[i], weight * value
        vector[i] += weighted * one.rest
        for j, other in one.terms[at:]:
            row[j] += weighted * other


def _device_shares(device: str, devices: Sequence[str]) -> list[float]:
    """Return the coefficients of the devices' effects on one of them, relative to their mean."""
    if device not in devices:
        return [0.0] * len(devices)
    return [(name == device) - 1 / len(devices) for name in devices]


def _shared(sizes: Sequence[float], rows: Matrix) -> tuple[list[float], float]:
    """Return the mean effect of a node by column of its samples' scaled rows, and its variance."""
    variance = 1 / (_dot(sizes, sizes) + 1 / _NODE_VARIANCE)
    return [variance * _dot(sizes, column) for column in zip(*rows, strict=True)], variance


def _integrate_out(
    matrix: Matrix, vector: list[float], node: Sequence[tuple[float, _Equation]]
) -> None:
    """Take the unknown effect of a node with weighted samples off the upper half of equations."""
    total, rest, square = [0.0] * len(vector), 0.0, 1 / _NODE_VARIANCE
    for weight, one in node:
        size = weight * one.seconds
        square += size * one.seconds
        rest += size * one.rest
        for i, value in one.terms:
            total[i] += size * value
    for i, value in enumerate(total):
        if factor := value / square:
            vector[i] -= factor * rest
            pairs = zip(matrix[i][i:], total[i:], strict=True)
            matrix[i][i:] = [a - factor * b for a, b in pairs]


def _not_negative(
    matrix: Matrix, vector: list[float], bounded: int
) -> tuple[list[float], set[int]]:
    """Return the minimum without negative values among the first ones, and which are above zero."""
    size = len(vector)
    free = set(range(size))
    for _ in range(3 * size + 1):
        values = _solved(matrix, vector, free)
        negative = [i for i in free if values[i] < 0 and i < bounded]
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
            return values, free
        free.add(best)
    values = _solved(matrix, vector, free)
    return [max(value, 0.0) if i < bounded else value for i, value in enumerate(values)], free


def _solved(matrix: Matrix, vector: list[float], free: set[int]) -> list[float]:
    """Return the minimum over the free values, all others zero (Gauss, of the upper half)."""
    chosen, values = sorted(free), [0.0] * len(vector)
    rows = [[matrix[i][j] for j in chosen[at:]] + [vector[i]] for at, i in enumerate(chosen)]
    for at, lead in enumerate(rows):
        pivot = lead[0] or _TINY
        for below, value in enumerate(lead[1:-1], 1):
            if factor := value / pivot:
                pairs = zip(rows[at + below], lead[below:], strict=True)
                rows[at + below] = [a - factor * b for a, b in pairs]
    for at in reversed(range(len(rows))):
        pivot, *others, right = rows[at]
        rest = sum(a * values[j] for a, j in zip(others, chosen[at + 1 :], strict=True))
        values[chosen[at]] = (right - rest) / (pivot or _TINY)
    return values


def _covariance(matrix: Matrix, free: set[int]) -> Matrix:
    """Return the inverse over the free values, zero for all others."""
    chosen, size = sorted(free), len(matrix)
    covariance = [[0.0] * size for _ in range(size)]
    inverse = _inverse([[matrix[i][j] for j in chosen] for i in chosen])
    for row, i in zip(inverse, chosen, strict=True):
        for weight, j in zip(row, chosen, strict=True):
            covariance[i][j] = weight
    return covariance


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


def _times(matrix: Matrix, vector: Sequence[float]) -> list[float]:
    return [_dot(row, vector) for row in matrix]


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(map(mul, left, right))
