"""Fit the slowness of each kind of work to measured steps: non-negative, pulled to a belief.

Minimises the sum of squared relative errors over the noise plus squared distances from the belief
over its deviation, no slowness below zero (Lawson and Hanson, Solving Least Squares Problems,
chapter 23, on the normal equations). The same matrix gives the uncertainty of a prediction, which
grows with its distance from what was fitted. A few dozen unknowns: plain Python is fast enough.

All runs of a node share how much slower it is than others (a random effect, Henderson 1975), so
that many runs of one slow node teach little more about work than a few. Devices of an architecture
differ from their figures in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import mul

from scalebook.measure.metrics.repeats import DEVICE_SPREAD
from scalebook.predict.kinds import Belief

NOISE = 0.02  # relative, of a step time between machines and starts, and of the model at its best
_OWN = math.sqrt(NOISE**2 - DEVICE_SPREAD**2)  # of this, what runs of one node do not share
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
    device: str = ""  # what it ran on
    node: str = ""  # which of these; empty: one that no other sample ran on

    @property
    def own(self) -> float:
        """The relative deviation of a step that other samples of its node do not share."""
        return _OWN if self.node else NOISE

    @property
    def scale(self) -> float:
        """The standard deviation of the measured time (seconds) that the fit assumes."""
        return self.seconds * self.own * self.doubt


@dataclass(frozen=True)
class RateFit:
    """Slowness by kind with its covariance; kinds that no sample has keep their belief.

    Of ``devices``, ``slowness`` holds by how much more they differ from their figures than others.
    """

    belief: Belief
    kinds: tuple[str, ...]  # that were fitted
    slowness: Mapping[str, float]
    covariance: Matrix  # of the fitted kinds and the devices; zero where one is held at zero
    samples: tuple[StepSample, ...]
    devices: tuple[str, ...] = ()  # where the samples have several

    def longer(self, device: str) -> float:
        """Return how many times as long work takes on a device as on a usual one."""
        return 1 / (1 - sum(self.slowness[one] * x for one, x in self._apart(device).items()))

    def _apart(self, device: str) -> dict[str, float]:
        if device not in self.devices:
            return {}
        return {one: (one == device) - 1 / len(self.devices) for one in self.devices}

    def seconds(self, work: Mapping[str, float], device: str = "", node: str = "") -> float:
        """Return the predicted time of a step, on a usual node if it names none that is known."""
        total = sum(self.slowness[kind] * value for kind, value in work.items())
        return total * self.longer(device) / (1 - self._of_node(node)[0][-1])

    def variance(self, work: Mapping[str, float], device: str = "", node: str = "") -> float:
        """Return the variance of the relative error without noise: what the fit doesn't know.

        The noise has in it what an unknown node may differ by, so a known one has less.
        """
        total = self.seconds(work, device)
        (*seen, _), share = self._of_node(node)
        row = [a - b for a, b in zip(self._row(work, device, total), seen, strict=True)]
        known = max(_dot(row, _times(self.covariance, row)), 0.0) + share - DEVICE_SPREAD**2
        unknown = [self.belief.deviation[kind] * work[kind] for kind in work.keys() - {*self.kinds}]
        other = DEVICE_SPREAD * bool(self.devices and device not in self.devices)
        return known + math.hypot(other, *(one / total for one in unknown)) ** 2

    def _row(self, work: Mapping[str, float], device: str, seconds: float) -> list[float]:
        apart = self._apart(device)
        row = [work.get(kind, 0.0) / seconds for kind in self.kinds]
        return row + [apart.get(one, 0.0) for one in self.devices]

    def _rows(self, samples: Sequence[StepSample]) -> Matrix:
        """Return the work of samples and, last in a row, their relative errors, over the noise."""
        made: Matrix = []
        for one in samples:
            error = 1 / self.longer(one.device) - self.seconds(one.work) / one.seconds
            row = (*self._row(one.work, one.device, one.seconds), error)
            made.append([value * one.seconds / one.scale for value in row])
        return made

    def _of_node(self, node: str) -> tuple[list[float], float]:
        """Return what a node's samples share: of their rows, and its variance when they are known.

        Of the errors it is by how much longer a step takes there, relative to the step.
        """
        if not node:
            return [0.0] * (len(self.kinds) + len(self.devices) + 1), DEVICE_SPREAD**2
        samples = [one for one in self.samples if one.node == node]
        shared = [one.seconds / one.scale for one in samples]
        share = _share(shared)
        columns = zip(*self._rows(samples), strict=True)
        return [share * _dot(shared, column) for column in columns] or self._of_node("")[0], share

    @cached_property
    def left_out(self) -> tuple[float, ...]:
        """Standardised error of each sample, predicted without all samples of its node.

        Without a node, without those of its configuration. With the kinds at zero kept there, what
        is left out has the inverse of its block of the precision (of all samples together, beliefs
        in them) as its predictive covariance (Rasmussen and Williams 2006, 5.4.2).
        """
        groups: dict[tuple[bool, str], list[int]] = {}
        for index, one in enumerate(self.samples):
            key = (True, one.node) if one.node else (False, one.configuration)
            groups.setdefault(key, []).append(index)
        found = [0.0] * len(self.samples)
        for group in groups.values():
            errors, variances = self._without([self.samples[index] for index in group])
            for index, error, variance in zip(group, errors, variances, strict=True):
                one = self.samples[index]  # back to the noise that intervals start from
                known = variance - (one.own * one.doubt) ** 2
                noise = math.hypot(one.own, one.unsure)
                found[index] = error / math.sqrt(max(known, 0.0) + noise**2)
        return tuple(found)

    def _without(self, samples: Sequence[StepSample]) -> tuple[list[float], list[float]]:
        """Return the relative errors of samples predicted without them, and their variances."""
        rows = self._rows(samples)
        scales = [one.own * one.doubt for one in samples]
        shared = [bool(one.node) / scale for one, scale in zip(samples, scales, strict=True)]
        share = _share(shared)
        total = [_dot(shared, column) for column in zip(*rows, strict=True)]
        rows = [
            [value - share * mine * all_ for value, all_ in zip(row, total, strict=True)]
            for row, mine in zip(rows, shared, strict=True)
        ]
        precision: Matrix = []
        for i, (*row, _) in enumerate(rows):
            turned = _times(self.covariance, row)
            known = [
                share * shared[i] * mine + _dot(turned, one)
                for mine, one in zip(shared, rows, strict=True)
            ]
            precision.append([(i == j) - value for j, value in enumerate(known)])
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
    found = least_squares(ordered, belief)
    for _ in range(_ROUNDS):
        errors = [abs(found.seconds(one.work, one.device) / one.seconds - 1) for one in ordered]
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
    devices = tuple(sorted({one.device for one in ordered}))
    devices = devices if len(devices) > 1 else ()
    names = (*kinds, *devices)
    place, size = {name: i for i, name in enumerate(names)}, len(names)
    matrix, vector = [[0.0] * size for _ in names], [0.0] * size
    nodes: dict[str, Node] = {}
    for one in ordered:  # most kinds of work are in few samples
        scale, believed = one.scale, sum(belief.mean[kind] * one.work.get(kind, 0) for kind in held)
        filled = [(place[kind], value / scale) for kind, value in one.work.items() if kind in place]
        each = one.seconds / scale
        filled += [(place[d], each * ((d == one.device) - 1 / len(devices))) for d in devices]
        rest = (one.seconds - believed) / scale
        for i, value in filled:
            vector[i] += value * rest
            for j, other in filled:
                matrix[i][j] += value * other
        if one.node:
            nodes.setdefault(one.node, []).append((each, rest, filled))
    for group in nodes.values():
        _take_off(matrix, vector, group)
    for i, name in enumerate(names):
        weight = (DEVICE_SPREAD if name in devices else belief.deviation[name]) ** -2
        matrix[i][i] += weight
        vector[i] += weight * (0.0 if name in devices else belief.mean[name])
    values, covariance = _not_negative(matrix, vector, len(kinds))
    slowness = dict(belief.mean) | dict(zip(names, values, strict=True))
    if belief.vague and (free := {kind for kind in kinds if slowness[kind] <= 0}):
        return least_squares(ordered, belief, held | free)
    return RateFit(belief, kinds, slowness, covariance, ordered, devices)


# Of each sample of a node: its seconds, its seconds without what is held, its work; over its scale.
Node = list[tuple[float, float, list[tuple[int, float]]]]


def _share(seconds: Sequence[float]) -> float:
    """Return the variance of what a node's samples share, of its samples' sum over their scale."""
    return 1 / (sum(one * one for one in seconds) + DEVICE_SPREAD**-2)


def _take_off(matrix: Matrix, vector: list[float], node: Node) -> None:
    """Take off the normal equations what the samples of a node share, whose size is not known."""
    share = _share([each for each, _, _ in node])
    total, rest = [0.0] * len(vector), sum(each * rest for each, rest, _ in node)
    for each, _, filled in node:
        for i, value in filled:
            total[i] += each * value
    for i, one in enumerate(total):
        if one:
            vector[i] -= share * one * rest
            matrix[i] = [a - share * one * b for a, b in zip(matrix[i], total, strict=True)]


def _not_negative(
    matrix: Matrix, vector: list[float], first: int | None = None
) -> tuple[list[float], Matrix]:
    """Return the minimum without negative values, and the inverse over those above zero.

    Only the ``first`` so many may not be negative, all by default.
    """
    size = len(vector)
    held = range(size if first is None else first)
    free = set(range(size))
    for _ in range(3 * size + 1):
        values, covariance = _solved(matrix, vector, free)
        negative = [i for i in free if values[i] < 0 and i in held]
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
    return [max(value, 0.0) if i in held else value for i, value in enumerate(values)], covariance


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


def _times(matrix: Matrix, vector: Sequence[float]) -> list[float]:
    return [_dot(row, vector) for row in matrix]


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(map(mul, left, right))
