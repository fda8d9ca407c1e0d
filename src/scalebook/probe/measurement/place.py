"""This process among those of a probe, and the time that each part of the probe may take."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any, cast

import torch

from scalebook.errors import LaunchError
from scalebook.measure.probes import ProbeRequest, Skipped

distributed: Any = import_module("torch.distributed")
cuda: Any = torch.cuda

COLLECTIVE_TIMEOUT = timedelta(minutes=3)


@dataclass(frozen=True, slots=True)
class Rank:
    """Rank, number of processes and device of this process."""

    rank: int
    size: int
    device: torch.device

    @property
    def on_gpu(self) -> bool:
        """Whether this process measures a GPU (torch calls those of AMD cuda as well)."""
        return self.device.type == "cuda"

    def synchronize(self) -> None:
        """Wait until the device has done everything that was asked of it."""
        if self.on_gpu:
            cuda.synchronize()

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


@dataclass(slots=True)
class Budget:
    """Seconds of one part of a probe, shared evenly among the cases that are left."""

    end: float
    cases: int
    skipped: list[Skipped]

    def slot(self) -> float:
        """Return the seconds of the next case; none left where the time is used up."""
        left = self.end - time.perf_counter()
        share = left / max(self.cases, 1)
        self.cases -= 1
        return share

    def skip(self, what: str, reason: str = "the time budget was used up") -> None:
        """Note that something is not measured."""
        self.skipped.append(Skipped(what=what, reason=reason))


def join(request: ProbeRequest) -> Rank:
    """Return this process's place after it has met the others.

    Raises:
        LaunchError: torchrun did not start this process, or there is no GPU for it.
    """
    try:
        rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    except KeyError as error:
        raise LaunchError(f"{error.args[0]} is not set. Start the probe with torchrun.") from error
    device = torch.device("cpu")
    if request.platform != "cpu":
        if local >= cuda.device_count():
            raise LaunchError(
                f"Process {local} of this node has no GPU: torch {torch.__version__} sees "
                f"{cuda.device_count()}. Use a smaller --world-size, or platform 'cpu'."
            )
        device = torch.device("cuda", local)
        cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)
    return Rank(rank, request.world_size, device)


def leave() -> None:
    """Part from the other processes."""
    distributed.destroy_process_group()
