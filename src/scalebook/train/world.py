"""The processes of a run: how they find one another and how the world is split among them."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch

from scalebook.config import RunConfig
from scalebook.errors import ConfigError, LaunchError
from scalebook.train import mcore
from scalebook.train.machine import Process

distributed: Any = import_module("torch.distributed")

COLLECTIVE_TIMEOUT = timedelta(minutes=10)
LEAVE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class World(Process):
    """This process among the others of a run, with its number on its node."""

    local_rank: int


def restart_count() -> int:
    """Return how often this run has been started again: by torchrun, or by a requeued job."""
    names = ("TORCHELASTIC_RESTART_COUNT", "SCALEBOOK_RESTARTS")
    return sum(int(os.environ.get(name, "0")) for name in names)


def _environment_number(name: str) -> int:
    value = os.environ.get(name)
    if value is None:
        raise LaunchError(
            f"{name} is not set. Start the trainer with torchrun, even for 1 process."
        )
    return int(value)


def join(config: RunConfig) -> World:
    """Return this process's place after it has met the others and the world has been split.

    Raises:
        ConfigError: the world that torchrun started is not the one that was asked for.
        LaunchError: torchrun did not start this process, or there is no GPU for it.
    """
    rank, size, local_rank = (
        _environment_number(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    )
    if size != config.world_size:
        raise ConfigError(f"torchrun started {size} processes, but world_size={config.world_size}.")
    device = _device(config, local_rank)
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(
        backend, store=_store(), rank=rank, world_size=size, timeout=COLLECTIVE_TIMEOUT
    )
    _split(config)
    return World(rank, size, device, local_rank)


def _store() -> Any:
    """Return the store in which the processes of this start meet.

    torchrun keeps its store over a restart, and there the addresses of processes that are gone.
    """
    rendezvous: Any = import_module("torch.distributed.rendezvous").rendezvous
    store, _, _ = next(rendezvous("env://", timeout=COLLECTIVE_TIMEOUT))
    return distributed.PrefixStore(f"start_{restart_count()}", store)


def leave(code: int, patience: float = LEAVE_SECONDS) -> None:
    """Part from the other processes, all steps done and on disk.

    A communicator whose kernels something still holds never ends (a graph, a peer's memory). After
    ``patience`` seconds the process exits with ``code`` as it is, rather than hold its GPUs.
    """

    def give_up() -> None:
        print(f"scalebook.train: left communicators that did not end in {patience:g} s", flush=True)
        os._exit(code)

    timer = threading.Timer(patience, give_up)
    timer.daemon = True
    timer.start()
    distributed.destroy_process_group()
    timer.cancel()


def _device(config: RunConfig, local_rank: int) -> torch.device:
    if config.platform == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise LaunchError(
            f"platform={config.platform!r} needs a GPU, and torch {torch.__version__} sees none. "
            "Use platform 'cpu', or install a torch built for this GPU."
        )
    if local_rank >= torch.cuda.device_count():
        raise LaunchError(
            f"Process {local_rank} of this node has no GPU: torch sees "
            f"{torch.cuda.device_count()}. Start at most one process per GPU."
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def _split(config: RunConfig) -> None:
    stages = config.virtual_pipeline_parallel_size
    mcore.parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=config.tensor_parallel_size,
        pipeline_model_parallel_size=config.pipeline_parallel_size,
        virtual_pipeline_model_parallel_size=stages if stages > 1 else None,
        context_parallel_size=config.context_parallel_size,
        expert_model_parallel_size=config.expert_parallel_size,
        expert_tensor_parallel_size=config.expert_tensor_parallel_size,
        create_gloo_process_groups=False,
        distributed_timeout_minutes=int(COLLECTIVE_TIMEOUT.total_seconds() // 60),
    )
    mcore.tensor_parallel.model_parallel_cuda_manual_seed(config.seed)
