"""Step times made up with a known truth: simulated data for tests and the benchmark."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Known:
    """A series (seconds), the mean of its steady state, and where that starts.

    ``mean`` is None for a series that has no steady state; ``start`` where it is a matter of taste.
    """

    seconds: list[float]
    mean: float | None
    start: int | None


def noise(generator: random.Random, count: int, correlation: float, deviation: float):
    """Return stationary normal noise of first order and this standard deviation."""
    value = generator.gauss(0, deviation)
    fresh = deviation * math.sqrt(1 - correlation**2)
    series = []
    for _ in range(count):
        series.append(value)
        value = correlation * value + generator.gauss(0, fresh)
    return series


def _noisy(generator, count, correlation=0.0, deviation=None):
    deviation = deviation or generator.choice((0.001, 0.003, 0.01, 0.02, 0.05))
    return [1 + value for value in noise(generator, count, correlation, deviation)]


def correlated(correlation: float) -> Callable[[random.Random, int], Known]:
    """Return a maker of stable series whose neighbours are so correlated."""

    def make(generator: random.Random, count: int) -> Known:
        return Known(_noisy(generator, count, correlation), 1.0, 0)

    return make


def warm_up(kind: str) -> Callable[[random.Random, int], Known]:
    """Return a maker of series with a warm-up: slow steps, a ramp, or a decay."""

    def make(generator: random.Random, count: int) -> Known:
        deviation = generator.choice((0.003, 0.01, 0.02))
        series = _noisy(generator, count, generator.choice((0.0, 0.3, 0.6)), deviation)
        length = generator.randint(3, max(4, min(30, count // 5)))
        size = generator.choice((0.2, 0.5, 2.0))
        for at in range(count):
            if kind == "decay":
                series[at] += size * math.exp(-4 * at / length)
            elif at < length:
                series[at] += size * (1 - at / length if kind == "ramp" else 1)
        end = length if kind != "decay" else length / 4 * math.log(max(size / deviation, 1))
        return Known(series, 1.0, round(end))

    return make


def first_step(generator: random.Random, count: int) -> Known:
    """Return a series whose first step compiles."""
    series = _noisy(generator, count)
    series[0] *= generator.uniform(2, 20)
    return Known(series, 1.0, 1)


def spikes(generator: random.Random, count: int) -> Known:
    """Return a series with a slow step every so many, as a checkpoint makes."""
    period = generator.choice([k for k in (5, 10, 20, 25, 50) if 3 * k <= count])
    phase, height = generator.randrange(period), generator.choice((0.2, 0.5, 1.0, 3.0))
    series = [
        value + height * (at % period == phase) for at, value in enumerate(_noisy(generator, count))
    ]
    return Known(series, 1 + height / period, None if phase == 0 else 0)


def spikes_after_warm_up(generator: random.Random, count: int) -> Known:
    """Return a series with a decay at its start and periodic slow steps all along."""
    known = spikes(generator, count)
    series = [value + 0.5 * math.exp(-at / 4) for at, value in enumerate(known.seconds)]
    return Known(series, known.mean, None)


def bimodal(generator: random.Random, count: int) -> Known:
    """Return a series of steps that take one of two times, by chance."""
    share, height = generator.choice((0.1, 0.3, 0.5)), generator.choice((0.1, 0.3))
    series = [value + height * (generator.random() < share) for value in _noisy(generator, count)]
    return Known(series, 1 + share * height, 0)


def alternating(generator: random.Random, count: int) -> Known:
    """Return a series whose steps are fast and slow by turns."""
    series = [value + 0.2 * (at % 2) for at, value in enumerate(_noisy(generator, count))]
    return Known(series, 1.1, 0)


def slow_noise(generator: random.Random, count: int) -> Known:
    """Return a series with slow and with fresh noise: its memory is not of first order."""
    deviation = generator.choice((0.003, 0.01, 0.02))
    slow = noise(generator, count, 0.9, deviation)
    return Known([1 + value + generator.gauss(0, deviation) for value in slow], 1.0, 0)


def drift(total: float) -> Callable[[random.Random, int], Known]:
    """Return a maker of series that drift by so much over their length, up or down."""

    def make(generator: random.Random, count: int) -> Known:
        deviation = generator.choice((0.001, 0.003, 0.01, 0.02))
        series = _noisy(generator, count, generator.choice((0.0, 0.0, 0.5)), deviation)
        sign = generator.choice((-1, 1))
        return Known([v + sign * total * at / count for at, v in enumerate(series)], None, None)

    return make


def shift(size: float) -> Callable[[random.Random, int], Known]:
    """Return a maker of series whose level changes once, somewhere in the middle."""

    def make(generator: random.Random, count: int) -> Known:
        deviation = generator.choice((0.001, 0.003, 0.01, 0.02))
        series = _noisy(generator, count, generator.choice((0.0, 0.0, 0.5)), deviation)
        at = int(count * generator.uniform(0.35, 0.75))
        change = generator.choice((-size, size))
        return Known([*series[:at], *(value + change for value in series[at:])], None, None)

    return make


def drift_after_warm_up(generator: random.Random, count: int) -> Known:
    """Return a series that warms up fast and then drifts."""
    known = drift(0.2)(generator, count)
    series = [value + 0.5 * math.exp(-at / 4) for at, value in enumerate(known.seconds)]
    return Known(series, None, None)


def tail(size: float, constant: float) -> Callable[[random.Random, int], Known]:
    """Return a maker of series that approach their level exponentially, from ``size`` away."""

    def make(generator: random.Random, count: int) -> Known:
        series = _noisy(generator, count)
        return Known(
            [v + size * math.exp(-at / constant) for at, v in enumerate(series)], 1.0, None
        )

    return make


def rare_spikes(share: float, height: float) -> Callable[[random.Random, int], Known]:
    """Return a maker of series in which a step takes ``height`` longer, by chance."""

    def make(generator: random.Random, count: int) -> Known:
        series = [v + height * (generator.random() < share) for v in _noisy(generator, count)]
        return Known(series, 1 + share * height, None)

    return make


BRIEF: dict[str, Callable[[random.Random, int], Known]] = {
    "warm-up tail of 2 %, 10 steps": tail(0.02, 10),
    "warm-up tail of 5 %, 20 steps": tail(0.05, 20),
    "throttle of 3 %, 30 steps": tail(-0.03, 30),
    "throttle of 1 %, 15 steps": tail(-0.01, 15),
    "one step in 100 takes twice": rare_spikes(0.01, 1.0),
    "one step in 50 takes twice": rare_spikes(0.02, 1.0),
    "one step in 30 takes half more": rare_spikes(1 / 30, 0.5),
}
STABLE: dict[str, Callable[[random.Random, int], Known]] = {
    "uncorrelated": correlated(0.0),
    "correlation 0.5": correlated(0.5),
    "correlation 0.8": correlated(0.8),
    "correlation 0.9": correlated(0.9),
    "slow first steps": warm_up("step"),
    "ramp": warm_up("ramp"),
    "decay": warm_up("decay"),
    "first step": first_step,
    "periodic spikes": spikes,
    "decay and spikes": spikes_after_warm_up,
    "bimodal": bimodal,
    "alternating": alternating,
}
UNSTABLE: dict[str, Callable[[random.Random, int], Known]] = {
    "drift of 10 %": drift(0.1),
    "drift of 30 %": drift(0.3),
    "decay, then drift": drift_after_warm_up,
    "shift of 10 %": shift(0.1),
    "shift of 30 %": shift(0.3),
}
HARD: dict[str, Callable[[random.Random, int], Known]] = {
    "slow and fresh noise": slow_noise,
    "drift of 3 %": drift(0.03),
    "shift of 3 %": shift(0.03),
}
