"""What a short, autocorrelated series says of its mean and of an effect in it.

Neighbouring steps resemble one another (clocks, data, stragglers), and how much is itself unknown
in a series of 20 or 100 steps. The model is a mean, an effect of known shape, and errors of first
order, e(t) = rho e(t-1) + noise. Given rho, generalised least squares gives Student's t for mean
and effect; rho is integrated out over its posterior, with the prior 1 / sqrt(1 - rho^2) (the
reference prior of Berger and Yang 1994, doi 10.1017/S026646660000863X) and the exact likelihood of
a stationary start, mean, effect and scale having been integrated out (Zellner and Tiao 1964). So an
interval is wide where the series is too short to say how correlated it is, and no resampling is
needed: a result is a few sums over the series and a sum over a grid of rho.

Left out: memory of other kinds. ``blocks`` turns a long series into means of neighbours, whose
memory is near that of first order for most kinds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from operator import mul

from scalebook.measure.intervals import mean_tail

# Closer together towards 1, where the variance of a mean changes fast.
_GRID = (
    *(-0.9, -0.8, -0.7, -0.6, -0.5, -0.4, -0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3, 0.4, 0.45, 0.5),
    *(0.55, 0.6, 0.64, 0.68, 0.72, 0.75, 0.78, 0.81, 0.835, 0.86, 0.88, 0.9, 0.915, 0.93, 0.945),
    *(0.957, 0.968, 0.977, 0.985, 0.992),
)
_RHOS = tuple((rho, rho * rho) for rho in _GRID)
_SPACING = tuple(  # widths, doubled: only their proportions count
    after - before
    for before, after in zip((_GRID[0], *_GRID[:-1]), (*_GRID[1:], _GRID[-1]), strict=True)
)
_LOG_WEIGHT = tuple(math.log(spacing) for spacing in _SPACING)
_NEGLIGIBLE = 1e-5  # posterior weight that no sum notices
_TINY = 1e-300
_SHORT = 256  # values of a shape that is kept


@dataclass(frozen=True, slots=True)
class Effect:
    """How large an effect is, in units of the series, and how sure it is: means over rho.

    Each row has the weight of a rho and, given it, the size, the variance of the noise, and by what
    that is divided for the variances of the size and of the mean next to the effect.
    """

    rows: Sequence[tuple[float, float, float, float, float]]
    free: int

    @property
    def size(self) -> float:
        return sum([share * size for share, size, _, _, _ in self.rows])

    @property
    def probability(self) -> float:
        """How likely chance gives an effect as large, of either sign."""
        root = math.sqrt
        rows = [(one[0], abs(one[1]) / root(one[2] / one[3])) for one in self.rows]
        return mean_tail(rows, self.free)

    @property
    def error(self) -> float:
        """The standard error of the size."""
        return sum([share * math.sqrt(noise / room) for share, _, noise, room, _ in self.rows])

    @property
    def mean_variance(self) -> float:
        """The variance of the mean next to the effect."""
        return sum([share * (noise / weight) for share, _, noise, _, weight in self.rows])


# What rho-differenced sums are made of: all products, those but the ends, those of neighbours.
_Products = tuple[float, float, float]


def _products(u: Sequence[float], v: Sequence[float]) -> _Products:
    total, before = sum(map(mul, u, v)), sum(map(mul, u[1:], v))
    ends = u[0] * v[0] + u[-1] * v[-1]
    return total, total - ends, before + (before if u is v else sum(map(mul, u, v[1:])))


def _sums(u: Sequence[float]) -> _Products:
    """Return the products with a constant 1."""
    total, ends = sum(u), u[0] + u[-1]
    return total, total - ends, 2 * total - ends


def _differenced(products: _Products) -> list[float]:
    """Return, by rho, the sum of products after the transformation that decorrelates the errors."""
    whole, inner, neighbours = products
    return [whole + square * inner - rho * neighbours for rho, square in _RHOS]


@lru_cache(maxsize=256)
def _of_mean(count: int) -> tuple[list[float], list[float]]:
    """Return, by rho, the weight of the mean of ``count`` values, and its part of the posterior."""
    weights = _differenced((float(count), count - 2.0, 2.0 * (count - 1)))
    pairs = zip(_LOG_WEIGHT, weights, strict=True)
    return weights, [prior - 0.5 * math.log(weight) for prior, weight in pairs]


@lru_cache(maxsize=1024)  # of many runs, each has its own number of steps
def _of_shape(shape: tuple[float, ...]) -> tuple[list[float], list[float], list[float]]:
    """Return, by rho, the sum of a shape, its room next to a mean, and its posterior part."""
    weights, _ = _of_mean(len(shape))
    heights = _differenced(_sums(shape))
    squares = zip(_differenced(_products(shape, shape)), heights, weights, strict=True)
    rooms = [square - height * height / weight for square, height, weight in squares]
    parts = zip(_LOG_WEIGHT, weights, rooms, strict=True)
    return heights, rooms, [prior - 0.5 * math.log(weight * room) for prior, weight, room in parts]


def _normalised(logs: Sequence[float]) -> list[float]:
    largest = max(logs)
    exp = math.exp
    weights = [exp(value - largest) for value in logs]
    total = sum(weights)
    return [weight / total for weight in weights]


def effect(series: Sequence[float], shape: Sequence[float]) -> Effect:
    """Return how much of a shape is in a series; each has at least 5 values, and a mean of its own.

    Zero-mean input keeps rounding small but is not required.
    """
    free = len(series) - 2
    whole, inner, neighbours = _products(series, series)
    floor, half, log = 1e-14 * whole + _TINY, free / 2, math.log
    sizes, totals, weights, rooms, priors = _least_squares(series, shape)
    known = zip(_RHOS, sizes, totals, weights, rooms, strict=True)
    left = [
        whole + square * inner - rho * neighbours - total * total / weight - size * size * room
        for (rho, square), size, total, weight, room in known
    ]
    rests = [floor if floor > rest else rest for rest in left]  # half of the time of max
    logs = [prior - half * log(rest) for prior, rest in zip(priors, rests, strict=True)]
    rows = zip(_normalised(logs), sizes, rests, rooms, weights, strict=True)
    return Effect(
        [
            (share, size, rest / free, room, weight)
            for share, size, rest, room, weight in rows
            if share > _NEGLIGIBLE
        ],
        free,
    )


def largest_effect(series: Sequence[float], shape: Sequence[float]) -> float:
    """Return the largest size, of either sign, that any correlation gives: ``effect`` is within."""
    return max(map(abs, _least_squares(series, shape)[0]))


def _least_squares(series: Sequence[float], shape: Sequence[float]) -> tuple[list[float], ...]:
    """Return, by rho, the size, the sum of the series, and what is known of mean and shape."""
    count = len(series)
    of_mean, _ = _of_mean(count)
    # a short shape is mostly one of a few; a long one is not worth its memory
    known = _of_shape if count <= _SHORT else _of_shape.__wrapped__
    heights, rooms, priors = known(tuple(shape))
    totals, (whole, inner, neighbours) = _differenced(_sums(series)), _products(shape, series)
    rows = zip(_RHOS, heights, totals, of_mean, rooms, strict=True)
    sizes = [
        (whole + square * inner - rho * neighbours - high * total / weight) / room
        for (rho, square), high, total, weight, room in rows
    ]
    return sizes, totals, of_mean, rooms, priors


@dataclass(frozen=True, slots=True)
class MeanPosterior:
    """How sure the mean of a stretch of series is: errors by rho, each with its weight."""

    weights: tuple[float, ...]
    errors: tuple[float, ...]  # standard errors of the mean, in units of the series
    freedom: int

    @property
    def correlation(self) -> float:
        """The posterior's median of rho."""
        half = enumerate(accumulate(self.weights))
        return _GRID[next(at for at, weight in half if weight >= 0.5 - 1e-9)]

    def half_width(self, level: float = 0.95) -> float:
        """Return half the interval of the mean, in units of the series."""
        pairs = [
            pair for pair in zip(self.weights, self.errors, strict=True) if pair[0] > _NEGLIGIBLE
        ]

        def tail(half: float) -> float:
            return mean_tail([(share, half / error) for share, error in pairs], self.freedom)

        return _solve(tail, 1 - level, sum(weight * error for weight, error in pairs))


def mean_posterior(series: Sequence[float]) -> MeanPosterior:
    """Return what at least 5 values that are not all the same say of their mean."""
    count = len(series)
    free = count - 1
    centre = sum(series) / count
    centred = [value - centre for value in series]
    own = _products(centred, centred)
    of_mean, priors = _of_mean(count)
    floor = 1e-14 * own[0] + _TINY
    totals = zip(_differenced(own), _differenced(_sums(centred)), of_mean, strict=True)
    left = [square - total * total / weight for square, total, weight in totals]
    rests = [floor if floor > rest else rest for rest in left]  # half of the time of max
    half, log, root = free / 2, math.log, math.sqrt
    logs = [prior - half * log(rest) for prior, rest in zip(priors, rests, strict=True)]
    errors = [root(rest / free / weight) for rest, weight in zip(rests, of_mean, strict=True)]
    return MeanPosterior(tuple(_normalised(logs)), tuple(errors), free)


def _solve(tail: Callable[[float], float], target: float, scale: float) -> float:
    """Return where a falling tail reaches the target, to a ten-thousandth of itself.

    By false position on the logarithm, which is nearly straight there (the Illinois variant).
    """
    goal = math.log(target)
    low, above = 0.0, -goal  # the tail is 1 at zero
    high = 2 * scale
    while (below := math.log(max(tail(high), _TINY)) - goal) > 0:
        low, above, high = high, below, 2 * high
    for _ in range(60):
        middle = (low * below - high * above) / (below - above)
        error = math.log(max(tail(middle), _TINY)) - goal
        if abs(error) < 1e-4 or high - low < 1e-5 * high:
            return middle
        if error > 0:
            low, above, below = middle, error, below / 2
        else:
            high, below, above = middle, error, above / 2
    return high


def blocks(series: Sequence[float], count: int) -> tuple[list[float], int]:
    """Return about ``count`` means of neighbours, and how many make one; a short series as it is.

    What does not fill a block is left out at the start.
    """
    size = max(1, len(series) // count)
    if size == 1:
        return list(series), 1
    first = len(series) % size
    return [sum(series[at : at + size]) / size for at in range(first, len(series), size)], size
