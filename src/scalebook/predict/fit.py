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
prediction, which grows with its distance from what was fitted. *Scaled* is what was divided by the
deviation of the sample's noise.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import nlargest

import numpy as np
from numpy.typing import NDArray

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

Array = NDArray[np.float64]


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
    covariance: Array  # of the fitted kinds and the devices; zero where one is held at zero
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
        return total * self.device_factor(device) / float(1 - self._node_effect(node)[0][-1])

    def variance(self, work: Mapping[str, float], device: str = "", node: str = "") -> float:
        """Return the variance of the relative error without noise: what the fit doesn't know.

        The noise has in it what an unknown node may differ by, so a known one has less.
        """
        total = self.seconds(work, device)
        effect, node_variance = self._node_effect(node)
        row = self._row(work, device, total) - effect[:-1]
        known = max(float(row @ self.covariance @ row), 0.0) + node_variance - _NODE_VARIANCE
        unknown = [self.belief.deviation[kind] * work[kind] for kind in work.keys() - {*self.kinds}]
        other = DEVICE_SPREAD * bool(self.devices and device not in self.devices)
        unlike = _UNLIKE * self.unlike(self._shares(work))
        return known + math.hypot(other, unlike, *(one / total for one in unknown)) ** 2

    def unlike(self, shares: Array, without: Collection[str] = ()) -> float:
        """Return the share of a step's time (0 to 1) that runs spend on other work.

        The mean of the configurations most like it, but for those that are ``without``.
        """
        names, each = self._of_configurations
        alike = zip(np.minimum(each, shares).sum(axis=1).tolist(), names, strict=True)
        found = nlargest(_MOST_LIKE, [one for one, name in alike if name not in without])
        return 1 - sum(found) / len(found) if found else 0.0

    @cached_property
    def _of_configurations(self) -> tuple[tuple[str, ...], Array]:
        """The configurations, and the share of each kind in a step of each (row)."""
        works = {one.configuration: one.work for one in self.samples}
        each = [self._shares(work) for work in works.values()]
        return tuple(works), np.array(each).reshape(len(works), len(self.kinds))

    def _shares(self, work: Mapping[str, float]) -> Array:
        """Return the share of a step's time of each fitted kind."""
        times = {kind: self.slowness[kind] * value for kind, value in work.items()}
        total = sum(times.values())
        return np.array([times.get(kind, 0.0) / total for kind in self.kinds])

    def _row(self, work: Mapping[str, float], device: str, seconds: float) -> Array:
        """Return the coefficients of the fitted kinds and devices, relative to a step's time."""
        row = [work.get(kind, 0.0) / seconds for kind in self.kinds]
        return np.array(row + _device_shares(device, self.devices))

    def _scaled_rows(self, samples: Sequence[StepSample]) -> Array:
        """Return the coefficients of samples and, last in each row, their errors, scaled."""
        made: list[Array] = []
        for one in samples:
            error = 1 / self.device_factor(one.device) - self.seconds(one.work) / one.seconds
            row = np.append(self._row(one.work, one.device, one.seconds), error)
            made.append(row * one.seconds / one.scale)
        return np.array(made)

    def _node_effect(self, node: str) -> tuple[Array, float]:
        """Return how a node's effect follows from coefficients, the effect last, and its variance.

        The effect is by how much of a step's time steps take longer there.
        """
        samples = [one for one in self.samples if node and one.node == node]
        if not samples:
            return np.zeros(len(self.kinds) + len(self.devices) + 1), _NODE_VARIANCE
        sizes = np.array([one.seconds / one.scale for one in samples])
        return _shared(sizes, self._scaled_rows(samples))

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
            gone = {*self._of_configurations[0]} - other
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
        scales = np.array([one.own_noise * one.doubt for one in samples])
        sizes = np.array([bool(one.node) for one in samples]) / scales
        rows = self._scaled_rows(samples)
        effect, node_variance = _shared(sizes, rows)
        rows -= np.outer(sizes, effect)  # times the inverse of the covariance of a node's errors
        terms = rows[:, :-1]
        explained = node_variance * np.outer(sizes, sizes) + terms @ self.covariance @ terms.T
        inverse = np.linalg.inv(np.eye(len(samples)) - explained)
        variances = scales**2 * np.diagonal(inverse)
        return (scales * (inverse @ rows[:, -1])).tolist(), variances.tolist()


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
            one if one.doubt == doubt else replace(one, doubt=doubt)
            for one, doubt in zip(ordered, doubts, strict=True)
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
    matrix, vector = _normal(ordered, kinds, devices, belief)
    deviations = [belief.deviation[kind] for kind in kinds] + [DEVICE_SPREAD] * len(devices)
    means = [belief.mean[kind] for kind in kinds] + [0.0] * len(devices)
    weights = np.array(deviations) ** -2.0
    matrix[np.diag_indices_from(matrix)] += weights
    values, free = _not_negative(matrix, vector + weights * np.array(means), len(kinds))
    slowness = dict(belief.mean) | dict(zip((*kinds, *devices), values.tolist(), strict=True))
    if belief.vague and (nothing := {kind for kind in kinds if slowness[kind] <= 0}):
        return least_squares(ordered, belief, held | nothing)
    return RateFit(belief, kinds, slowness, _covariance(matrix, free), ordered, devices)


def _normal(
    ordered: Sequence[StepSample], kinds: Sequence[str], devices: Sequence[str], belief: Belief
) -> tuple[Array, Array]:
    """Return the normal equations of samples, without the belief: a matrix and a vector.

    The unknown effect of each node is integrated out of them.
    """
    size = len(kinds) + len(devices)
    matrix, vector, nodes = np.zeros((size, size)), np.zeros(size), dict[str, list[int]]()
    if not ordered:
        return matrix, vector
    rows: list[list[float]] = []
    rests: list[float] = []
    for index, one in enumerate(ordered):
        shares = [one.seconds * share for share in _device_shares(one.device, devices)]
        rows.append([one.work.get(kind, 0.0) for kind in kinds] + shares)
        others = one.work.keys() - {*kinds}
        rests.append(one.seconds - sum(belief.mean[kind] * one.work[kind] for kind in others))
        if one.node:
            nodes.setdefault(one.node, []).append(index)
    scales = np.array([one.scale for one in ordered])
    scaled, rest = np.array(rows) / scales[:, None], np.array(rests) / scales
    sizes = np.array([one.seconds for one in ordered]) / scales
    matrix, vector = scaled.T @ scaled, scaled.T @ rest
    for group in nodes.values():
        of_node = sizes[group]
        total, square = of_node @ scaled[group], of_node @ of_node + 1 / _NODE_VARIANCE
        matrix -= np.outer(total, total) / square
        vector -= total * (of_node @ rest[group]) / square
    return matrix, vector


def _device_shares(device: str, devices: Sequence[str]) -> list[float]:
    """Return the coefficients of the devices' effects on one of them, relative to their mean."""
    if device not in devices:
        return [0.0] * len(devices)
    return [(name == device) - 1 / len(devices) for name in devices]


def _shared(sizes: Array, rows: Array) -> tuple[Array, float]:
    """Return the mean effect of a node by column of its samples' scaled rows, and its variance."""
    variance = float(1 / (sizes @ sizes + 1 / _NODE_VARIANCE))
    return variance * (sizes @ rows), variance


def _not_negative(matrix: Array, vector: Array, bounded: int) -> tuple[Array, NDArray[np.bool_]]:
    """Return the minimum without negative values among the first ones, and which are above zero."""
    free = np.ones(len(vector), dtype=np.bool_)
    for _ in range(3 * len(vector) + 1):
        values = _solved(matrix, vector, free)
        if bounded and values[:bounded].min() < 0:
            free[values[:bounded].argmin()] = False
            continue
        slopes = np.where(free, -np.inf, vector - matrix @ values)
        if free.all() or slopes.max() <= 1e-9 * abs(vector[slopes.argmax()]) + _TINY:
            return values, free
        free[slopes.argmax()] = True
    values = _solved(matrix, vector, free)
    values[:bounded] = values[:bounded].clip(min=0.0)
    return values, free


def _solved(matrix: Array, vector: Array, free: NDArray[np.bool_]) -> Array:
    """Return the minimum over the free values, all others zero."""
    values = np.zeros(len(vector))
    values[free] = np.linalg.solve(matrix[np.ix_(free, free)], vector[free])
    return values


def _covariance(matrix: Array, free: NDArray[np.bool_]) -> Array:
    """Return the inverse over the free values, zero for all others."""
    covariance = np.zeros_like(matrix)
    covariance[np.ix_(free, free)] = np.linalg.inv(matrix[np.ix_(free, free)])
    return covariance
