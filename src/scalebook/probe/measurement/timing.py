"""This process among those of a probe, the time that a part may take, and how long a call takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from itertools import pairwise
from statistics import median, quantiles
from typing import Any, cast

import torch

from scalebook.measure.probes import ProbeRequest, Skipped
from scalebook.train.world import World, device_of, own_place

distributed: Any = import_module("torch.distributed")
cuda: Any = torch.cuda

COLLECTIVE_TIMEOUT = timedelta(minutes=3)
ROUND_SECONDS = 2e-3  # long against the resolution of events and the start of a kernel
ROUNDS = (3, 40)
WARM_CALLS = 2

Call = Callable[[int], object]  # gets the number of the call, to choose other buffers each time


@dataclass(frozen=True, slots=True)
class Rank(World):
    """This process among the others of a probe."""

    def barrier(self) -> None:
        """Wait until every process is here and its device is idle."""
        self.synchronize()
        self.agree(0.0)

    def agree(self, value: float) -> float:
        """Return the largest of all processes' values; every process must call this."""
        own = torch.tensor([value], dtype=torch.float32, device=self.device)
        distributed.all_reduce(own, op=distributed.ReduceOp.MAX)
        return float(own.item())

    def gather(self, value: float) -> tuple[float, ...]:
        """Return the value of each process by rank; every process must call this."""
        own = torch.tensor([value], dtype=torch.float32, device=self.device)
        all_values = torch.empty(self.size, dtype=torch.float32, device=self.device)
        distributed.all_gather_into_tensor(all_values, own)
        values: list[float] = cast("Any", all_values).tolist()
        return tuple(values)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call: the median round, the fastest, the quartiles' distance over it."""

    seconds: float
    best: float
    spread: float
    calls: int

    def rates(self, flops: float) -> dict[str, float]:
        """Return TFLOP/s of the median and of the fastest round, and the spread."""
        return {
            "tflops": flops / self.seconds / 1e12,
            "tflops_best": flops / self.best / 1e12,
            "spread": self.spread,
        }


def _alone(value: float) -> float:
    return value


@dataclass(slots=True)
class Budget:
    """Seconds of one part of a probe, shared evenly among the cases that are left."""

    end: float
    skipped: list[Skipped]
    place: Rank
    show: Callable[[str], None]
    cases: int = 1  # each part sets how many it has

    def spend(
        self, what: str, timed: Callable[[float], Timing], agree: Callable[[float], float] = _alone
    ) -> Timing | None:
        """Return what is timed in the seconds of the next case; None, and a note, where nothing is.

        Nothing is where the time is used up, or where the device or the backend refuses.
        """
        seconds = agree((self.end - time.perf_counter()) / max(self.cases, 1))
        self.cases -= 1
        if seconds <= 0:
            self.skip(what, "the time budget was used up")
            return None
        try:
            return timed(seconds)
        except (RuntimeError, TypeError) as error:  # out of memory is a RuntimeError
            self.skip(what, str(error).partition("\n")[0])
            return None

    def skip(self, what: str, reason: str) -> None:
        self.skipped.append(Skipped(what=what, reason=reason))


def join(request: ProbeRequest) -> Rank:
    """Return this process's place after it has met the others.

    Raises:
        LaunchError: torchrun did not start this process, or there is no GPU for it.
    """
    rank, _, local_rank = own_place()
    device, backend = device_of(request.platform, local_rank)
    distributed.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)
    return Rank(rank, request.world_size, device)


def leave() -> None:
    distributed.destroy_process_group()


# How long a call takes: rounds of back-to-back calls between two events of the device


def measure(
    call: Call, place: Rank, seconds: float, agree: Callable[[float], float] = _alone
) -> Timing:
    """Return how long a call takes, measured for about ``seconds`` seconds.

    ``agree`` makes every process of a collective choose the same number of calls.
    """
    for number in range(WARM_CALLS):
        call(number)
    # Twice: the first of them may still choose an algorithm or build a kernel.
    once = max(agree(min(_rounds(call, place, 1, 2))), 1e-7)
    calls = max(1, round(ROUND_SECONDS / once))
    rounds = min(max(int(seconds / (calls * once)), ROUNDS[0]), ROUNDS[1])
    return summarised(_rounds(call, place, calls, rounds), calls * rounds)


def summarised(seconds: list[float], calls: int) -> Timing:
    middle = median(seconds)
    low, _, high = quantiles(seconds, n=4) if len(seconds) > 1 else (middle,) * 3
    return Timing(middle, min(seconds), (high - low) / middle, calls)


def mark(place: Rank) -> Any:
    """Return a moment: an event of the device, or the host's clock in seconds."""
    if not place.on_gpu:
        return time.perf_counter()
    event = cuda.Event(enable_timing=True)
    event.record()
    return event


def between(marks: list[Any]) -> list[float]:
    """Return the seconds from each mark to the next; the device must have passed them all."""
    return [
        end - begin if isinstance(begin, float) else begin.elapsed_time(end) / 1e3
        for begin, end in pairwise(marks)
    ]


def _rounds(call: Call, place: Rank, calls: int, rounds: int) -> list[float]:
    """Return the seconds of a call in each round.

    A device's own events mark the rounds, so that the host's pace does not count.
    """
    place.synchronize()
    marks = [mark(place)]
    for start in range(0, calls * rounds, calls):
        for number in range(start, start + calls):
            call(number)
        marks.append(mark(place))
    place.synchronize()
    return [seconds / calls for seconds in between(marks)]
