"""One product repeated for seconds: clocks fall under load, and a short test does not see it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import median
from typing import Any

from scalebook.measure.probes import Sample, Sustained
from scalebook.probe.measurement import operands
from scalebook.probe.measurement.operands import BF16, FP32
from scalebook.probe.measurement.place import Rank, cuda
from scalebook.probe.measurement.timing import measure

REST_SECONDS = {"cuda": 1.0, "cpu": 0.0}  # the device cools and its clock rises again
BURST_SECONDS = 0.25
ROUND_SECONDS = 10e-3
ROUNDS_AHEAD = 8  # asked of the device before the host waits for it
PARTS = 20  # of the series over time

Sampler = Callable[[str], list[Sample]]


def sustained(size: int, place: Rank, seconds: float, sample: Sampler) -> Sustained:
    """Return the rate of a square product over seconds; every process must call this."""
    precision = BF16 if place.on_gpu else FP32
    shape = {"m": size, "n": size, "k": size}
    buffer = operands.arena(precision, operands.elements(**shape), place)
    call = operands.product(buffer, precision, "plain", **shape)
    calls = max(1, round(ROUND_SECONDS / measure(call, place, 0.0).seconds))
    idle = sample("idle")
    time.sleep(REST_SECONDS[place.device.type])
    place.barrier()
    rounds, loaded = _rounds(call, calls, place, seconds, sample)
    flops = 2.0 * size**3 * calls / 1e12
    half = rounds[len(rounds) // 2 :]
    steady = flops * len(half) / sum(half)
    return Sustained(
        precision=precision.name,
        **shape,
        seconds=sum(rounds),
        burst_tflops=flops / median(_first(rounds, BURST_SECONDS)),
        sustained_tflops=steady,
        series_tflops=tuple(_parts([flops / seconds for seconds in rounds])),
        rank_tflops=place.gather(steady),
        samples=tuple(idle + loaded),
    )


def _rounds(
    call: Callable[[int], object], calls: int, place: Rank, seconds: float, sample: Sampler
) -> tuple[list[float], list[Sample]]:
    """Return the seconds of each round, and samples from the middle of it all."""
    found, samples = list[float](), list[Sample]()
    # The driver's tool takes a while to answer, during which the device must not fall idle.
    asking = threading.Thread(target=lambda: samples.extend(sample("loaded")))
    begin = time.perf_counter()
    while (now := time.perf_counter() - begin) < seconds or not found:
        if now > seconds / 2 and asking.ident is None:
            asking.start()
        marks = [_mark(place)]
        for _ in range(ROUNDS_AHEAD):
            for number in range(calls):
                call(number)
            marks.append(_mark(place))
        place.synchronize()
        found += [_between(a, b) for a, b in pairwise(marks)]
    if asking.ident is not None:
        asking.join()
    return found, samples


def _mark(place: Rank) -> Any:
    """Return a moment: an event of the device, or the host's clock in seconds."""
    if not place.on_gpu:
        return time.perf_counter()
    event = cuda.Event(enable_timing=True)
    event.record()
    return event


def _between(begin: Any, end: Any) -> float:
    return end - begin if isinstance(begin, float) else begin.elapsed_time(end) / 1e3


def _first(rounds: list[float], limit: float) -> list[float]:
    """Return the first rounds, as many as the limit takes to pass, at least one."""
    total, taken = 0.0, 0
    while taken < len(rounds) and (total < limit or taken == 0):
        total += rounds[taken]
        taken += 1
    return rounds[:taken]


def _parts(rates: list[float]) -> Iterator[float]:
    size = max(len(rates) // PARTS, 1)
    for start in range(0, len(rates) - size + 1, size):
        part = rates[start : start + size]
        yield sum(part) / len(part)
