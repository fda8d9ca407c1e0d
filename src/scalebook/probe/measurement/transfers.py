"""How fast bytes move: on the device, between host and device, and between devices.

Collectives follow nccl-tests in their sizes and bus rates:
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scalebook.measure.probes import Collective, Copy
from scalebook.probe.measurement.timing import Budget, Rank, Timing, distributed, measure

KIB, MIB, GIB = 2**10, 2**20, 2**30
DEVICE_BYTES = {"cuda": (64 * MIB, 256 * MIB, GIB), "cpu": (16 * MIB,)}
HOST_BYTES = 256 * MIB
BUFFERS = 2  # pairs, so that a small copy finds nothing in a cache


def measured_copies(budget: Budget) -> list[Copy]:
    """Return the rate of each copy; processes share the host's memory, so only rank 0 uses it."""
    found: list[Copy] = []
    place = budget.place
    sizes = DEVICE_BYTES[place.device.type]
    budget.cases = len(sizes) + 2  # to the device and from it
    for size in sizes:
        sources = [
            torch.randint(0, 256, (size,), dtype=torch.uint8, device=place.device)
            for _ in range(BUFFERS)
        ]
        pairs = [(torch.empty_like(source), source) for source in sources]
        found += _timed("device_to_device", size, pairs, budget)
    if not place.on_gpu:
        budget.skip("copies between host and device", "the CPU is the device")
    elif place.rank == 0:
        host = torch.empty(HOST_BYTES, dtype=torch.uint8, pin_memory=True)
        device = torch.empty(HOST_BYTES, dtype=torch.uint8, device=place.device)
        found += _timed("host_to_device", HOST_BYTES, [(device, host)], budget)
        found += _timed("device_to_host", HOST_BYTES, [(host, device)], budget)
    place.barrier()
    for row in found:
        budget.show(f"{row.kind} {row.bytes >> 20} MiB: {row.gib_per_second:.4g} GiB/s")
    return found


def _timed(
    kind: str, size: int, pairs: list[tuple[Tensor, Tensor]], budget: Budget
) -> Iterator[Copy]:
    def call(number: int) -> None:
        target, source = pairs[number % len(pairs)]
        target.copy_(source, non_blocking=True)

    what = f"{kind} {size >> 20} MiB"
    if took := budget.spend(what, lambda seconds: measure(call, budget.place, seconds)):
        moved = size * (2 if kind == "device_to_device" else 1) / GIB
        rates = {"gib_per_second": moved / took.seconds, "gib_per_second_best": moved / took.best}
        yield Copy.model_validate({"kind": kind, "bytes": size, "spread": took.spread, **rates})


# Collectives by size and group

MESSAGE_BYTES = {
    "cuda": (64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB),
    "cpu": (4 * KIB, 64 * KIB, MIB),
}


@dataclass(frozen=True, slots=True)
class CollectiveGroup:
    """Neighbouring ranks; every rank is in one, and all groups work at the same time."""

    handle: Any
    size: int
    ranks: tuple[int, ...]  # global, of this rank's group


def _all_reduce(group: CollectiveGroup, given: Tensor, _: Tensor) -> object:
    return distributed.all_reduce(given, group=group.handle)


def _all_gather(group: CollectiveGroup, given: Tensor, taken: Tensor) -> object:
    part = given[: given.numel() // group.size]
    return distributed.all_gather_into_tensor(taken, part, group=group.handle)


def _reduce_scatter(group: CollectiveGroup, given: Tensor, taken: Tensor) -> object:
    part = taken[: taken.numel() // group.size]
    return distributed.reduce_scatter_tensor(part, given, group=group.handle)


def _all_to_all(group: CollectiveGroup, given: Tensor, taken: Tensor) -> object:
    return distributed.all_to_all_single(taken, given, group=group.handle)


def _send_receive(group: CollectiveGroup, given: Tensor, taken: Tensor) -> object:
    """Send to the next rank of the group and receive from the one before."""
    place = group.ranks.index(distributed.get_rank())
    after, before = (group.ranks[(place + step) % group.size] for step in (1, -1))
    send, receive = distributed.isend, distributed.irecv
    asked = [
        distributed.P2POp(send, given, after, group=group.handle),
        distributed.P2POp(receive, taken, before, group=group.handle),
    ]
    for work in distributed.batch_isend_irecv(asked):
        work.wait()
    return None


@dataclass(frozen=True, slots=True)
class Operation:
    """A collective; ``bus(n)`` times the algorithm's rate is the rate of a link."""

    name: str
    call: Callable[[CollectiveGroup, Tensor, Tensor], object]
    bus: Callable[[int], float]


def _part(n: int) -> float:
    return (n - 1) / n


OPERATIONS = (
    Operation("all_reduce", _all_reduce, lambda n: 2 * _part(n)),
    Operation("all_gather", _all_gather, _part),
    Operation("reduce_scatter", _reduce_scatter, _part),
    Operation("all_to_all", _all_to_all, _part),
    Operation("send_receive", _send_receive, lambda _: 1.0),
)


def group_sizes(world: int) -> list[int]:
    """Return 2, 4, 8, ... and the world, as far as they divide it."""
    doubled = [2**power for power in range(1, world.bit_length())]
    return sorted({size for size in (*doubled, world) if size > 1 and world % size == 0})


def _group(size: int, place: Rank) -> CollectiveGroup:
    handles = [
        (distributed.new_group(range(first, first + size)), first)
        for first in range(0, place.size, size)
    ]
    handle, first = handles[place.rank // size]
    return CollectiveGroup(handle, size, tuple(range(first, first + size)))


def measured_collectives(budget: Budget) -> list[Collective]:
    """Return the rate of every collective; every process must call this."""
    found: list[Collective] = []
    place = budget.place
    sizes, lengths = group_sizes(place.size), MESSAGE_BYTES[place.device.type]
    budget.cases = len(sizes) * len(lengths) * len(OPERATIONS)
    largest = max(lengths)
    # fp32 as in nccl-tests and in the reduction of main gradients
    given, taken = (torch.rand(largest // 4, device=place.device) for _ in range(2))
    for size in sizes:
        group = _group(size, place)
        for operation in OPERATIONS:
            for length in lengths:
                parts = given[: length // 4], taken[: length // 4]
                found += _measured(operation, group, parts, budget)
    return found


def _measured(
    operation: Operation, group: CollectiveGroup, tensors: tuple[Tensor, Tensor], budget: Budget
) -> Iterator[Collective]:
    place = budget.place
    length = tensors[0].numel() * tensors[0].element_size()
    what = f"{operation.name} {length >> 10} KiB over {group.size}"

    def call(_: int) -> None:
        operation.call(group, *tensors)

    def timed(seconds: float) -> Timing:
        return measure(call, place, seconds, place.agree)

    took = budget.spend(what, timed, place.agree)
    if took is None:
        return
    seconds = place.agree(took.seconds)
    rate = length / seconds / 1e9
    row = Collective(
        operation=operation.name,
        group_size=group.size,
        bytes=length,
        seconds=seconds,
        algorithm_gb_per_second=rate,
        bus_gb_per_second=rate * operation.bus(group.size),
        spread=took.spread,
    )
    budget.show(f"{what}: {row.bus_gb_per_second:.4g} GB/s bus")
    yield row
