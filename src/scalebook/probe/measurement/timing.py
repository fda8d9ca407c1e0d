"""How long a call takes: rounds of back-to-back calls between two events of the device."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, quantiles

from scalebook.probe.measurement.place import Rank, cuda

Call = Callable[[int], object]  # gets the number of the call, to choose other buffers each time
ROUND_SECONDS = 2e-3  # long against the resolution of events and the start of a kernel
ROUNDS = (3, 40)
WARM_CALLS = 2


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call: the median round, the fastest, the quartiles' distance over it."""

    seconds: float
    best: float
    spread: float
    calls: int


def _alone(value: float) -> float:
    return value


def measure(
    call: Call, place: Rank, seconds: float, agree: Callable[[float], float] = _alone
) -> Timing:
    """Return how long a call takes, measured for about so many seconds.

    ``agree`` makes every process of a collective choose the same number of calls.
    """
    for number in range(WARM_CALLS):
        call(number)
    # Twice: the first of them may still choose an algorithm or build a kernel.
    once = max(agree(min(_rounds(call, place, 1, 2))), 1e-7)
    calls = max(1, round(ROUND_SECONDS / once))
    rounds = min(max(int(seconds / (calls * once)), ROUNDS[0]), ROUNDS[1])
    return timing(_rounds(call, place, calls, rounds), calls * rounds)


def timing(seconds: list[float], calls: int) -> Timing:
    """Return the timing that rounds make."""
    middle = median(seconds)
    low, _, high = quantiles(seconds, n=4) if len(seconds) > 1 else (middle,) * 3
    return Timing(middle, min(seconds), (high - low) / middle, calls)


def _rounds(call: Call, place: Rank, calls: int, rounds: int) -> list[float]:
    """Return the seconds of a call in each round."""
    return (_device_rounds if place.on_gpu else _host_rounds)(call, place, calls, rounds)


def _device_rounds(call: Call, place: Rank, calls: int, rounds: int) -> list[float]:
    """Return times by the device's own events, so that the host's pace does not count."""
    place.synchronize()
    events = [cuda.Event(enable_timing=True) for _ in range(rounds + 1)]
    events[0].record()
    number = 0
    for event in events[1:]:
        for _ in range(calls):
            call(number)
            number += 1
        event.record()
    place.synchronize()
    return [begin.elapsed_time(end) / 1e3 / calls for begin, end in pairwise(events)]


def _host_rounds(call: Call, _place: Rank, calls: int, rounds: int) -> list[float]:
    found: list[float] = []
    number = 0
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(calls):
            call(number)
            number += 1
        found.append((time.perf_counter() - begin) / calls)
    return found
