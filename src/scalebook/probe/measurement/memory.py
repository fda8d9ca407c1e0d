"""How fast bytes move on the device and between host and device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from scalebook.measure.probes import Copy
from scalebook.probe.measurement.place import Budget, Rank
from scalebook.probe.measurement.timing import measure

MIB, GIB = 2**20, 2**30
DEVICE_BYTES = {"cuda": (64 * MIB, 256 * MIB, GIB), "cpu": (16 * MIB,)}
HOST_BYTES = 256 * MIB
BUFFERS = 2  # pairs, so that a small copy finds nothing in a cache


def cases(place: Rank) -> int:
    """Return how many copies are measured."""
    return len(DEVICE_BYTES[place.device.type]) + 2


def measured(place: Rank, budget: Budget, show: Callable[[str], None]) -> list[Copy]:
    """Return the rate of each copy; processes share the host's memory, so rank 0 asks it alone."""
    found: list[Copy] = []
    for size in DEVICE_BYTES[place.device.type]:
        pairs = [_pair(size, place) for _ in range(BUFFERS)]
        found += _timed("device_to_device", size, pairs, place, budget)
    if not place.on_gpu:
        budget.skip("copies between host and device", "the CPU is the device")
    elif place.rank == 0:
        host = torch.empty(HOST_BYTES, dtype=torch.uint8, pin_memory=True)
        device = torch.empty(HOST_BYTES, dtype=torch.uint8, device=place.device)
        found += _timed("host_to_device", HOST_BYTES, [(device, host)], place, budget)
        found += _timed("device_to_host", HOST_BYTES, [(host, device)], place, budget)
    place.barrier()
    for row in found:
        show(f"{row.kind} {row.bytes >> 20} MiB: {row.gib_per_second:.4g} GiB/s")
    return found


def _pair(size: int, place: Rank) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.randint(0, 256, (size,), dtype=torch.uint8, device=place.device)
    return torch.empty_like(source), source


def _timed(
    kind: str,
    size: int,
    pairs: list[tuple[torch.Tensor, torch.Tensor]],
    place: Rank,
    b: Budget,
) -> list[Copy]:
    slot = b.slot()
    if slot <= 0:
        b.skip(f"{kind} {size >> 20} MiB")
        return []

    def call(number: int) -> None:
        target, source = pairs[number % len(pairs)]
        target.copy_(source, non_blocking=True)

    took = measure(call, place, slot)
    moved = size * (2 if kind == "device_to_device" else 1) / GIB
    rates = {"gib_per_second": moved / took.seconds, "gib_per_second_best": moved / took.best}
    return [Copy.model_validate({"kind": kind, "bytes": size, "spread": took.spread, **rates})]
