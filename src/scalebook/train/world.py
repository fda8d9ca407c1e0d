"""The world of a run: its processes, how it is split among them, and what they run on.

Accelerator, libraries and image are described as torch and the driver report them.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from scalebook.config import RunConfig
from scalebook.errors import ConfigError, LaunchError
from scalebook.measure.probes import MachineIdentity
from scalebook.measure.probes.topology import QUERIES, parse_matrix
from scalebook.query import number, printed

_cuda: Any = torch.cuda


@dataclass(frozen=True, slots=True)
class World:
    """This process among the others: its rank, how many there are, and its device."""

    rank: int
    size: int
    device: torch.device

    @property
    def on_gpu(self) -> bool:
        """Whether this process works on a GPU (torch calls those of AMD cuda as well)."""
        return self.device.type == "cuda"

    def synchronize(self) -> None:
        """Wait until the device has done everything that was asked of it."""
        if self.on_gpu:
            _cuda.synchronize()


def output(*command: str) -> str | None:
    """Return what a command prints, or None where it is missing, fails or hangs."""
    text = printed(command, seconds=20)
    return None if text is None else text.strip()


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _nvidia() -> dict[str, Any]:
    query = "--query-gpu=driver_version,power.limit"
    lines = output("nvidia-smi", query, "--format=csv,noheader,nounits")
    if not lines:
        return {"driver": None, "power_cap_watts": None}
    driver, _, cap = lines.splitlines()[0].partition(",")
    return {"driver": driver.strip(), "power_cap_watts": number(cap)}


def _amd() -> dict[str, Any]:
    caps = sorted(Path("/sys/class/drm").glob("card*/device/hwmon/hwmon*/power1_cap"))
    microwatts = number(_text(str(caps[0]))) if caps else None
    return {
        "driver": _text("/sys/module/amdgpu/version"),
        "power_cap_watts": microwatts / 1e6 if microwatts is not None else None,
    }


def accelerator() -> dict[str, Any]:
    """Return name and number of this node's accelerators, driver and power cap; null on a CPU."""
    if not torch.cuda.is_available():
        reason = "trained on the CPU"
        return {"accelerator": None, "accelerator_reason": reason, "accelerators_per_node": 0}
    properties = _cuda.get_device_properties(0)
    return {
        "accelerator": torch.cuda.get_device_name(0),
        "accelerators_per_node": torch.cuda.device_count(),
        "accelerator_memory_gib": round(properties.total_memory / 2**30, 1),
        "multiprocessors": properties.multi_processor_count,
        "device_ids": _device_ids(),
        **(_amd() if torch.version.hip else _nvidia()),
    }


def _device_ids() -> str | None:
    """Return digests of the serial numbers of the devices that this node's ranks use, in order.

    They show whether two runs used the same devices, not which these are.
    """
    used = min(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count())
    return " ".join(_hash(one)[:8] for one in _serials(used)) or None


def _serials(devices: int) -> list[str]:
    """Return the serial numbers of the first devices; none where one of them has none."""
    ids = [getattr(_cuda.get_device_properties(i), "uuid", None) for i in range(devices)]
    return [] if None in ids else [str(one) for one in ids]


def links() -> dict[str, Any]:
    """Return how the devices of this node are linked, pair by pair; null with a reason."""
    if not torch.cuda.is_available():
        return {"topology": None, "topology_reason": "trained on the CPU"}
    query = QUERIES["amd" if torch.version.hip else "nvidia"]
    found = parse_matrix("amd" if torch.version.hip else "nvidia", output(*query))
    reason = None if found else f"'{' '.join(query)}' did not say how the GPUs are linked"
    return {"topology": found or None, "topology_reason": reason}


def _collectives() -> dict[str, str | None]:
    if not torch.cuda.is_available():
        return {"nccl": None, "rccl": None}
    version = ".".join(str(part) for part in _cuda.nccl.version())
    # torch calls RCCL nccl in a build for ROCm.
    return {"nccl": None, "rccl": version} if torch.version.hip else {"nccl": version, "rccl": None}


def software() -> dict[str, Any]:
    """Return the versions that training depends on, in addition to Megatron-Core's."""
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "triton": find_spec("triton") is not None,
        **_collectives(),
    }


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def identity(processes: int) -> MachineIdentity:
    """Return which machine and software this is."""
    on_gpu = torch.cuda.is_available()
    return MachineIdentity(
        host=_hash(socket.gethostname()),
        devices=tuple(map(_hash, _serials(_cuda.device_count() if on_gpu else 0))),
        accelerator=_cuda.get_device_name(0) if on_gpu else None,
        torch=torch.__version__,
        cuda=torch.version.cuda,
        rocm=torch.version.hip,
        processes=None if on_gpu else processes,
    )


distributed: Any = import_module("torch.distributed")

COLLECTIVE_TIMEOUT = timedelta(minutes=10)
LEAVE_SECONDS = 60.0


def restart_count() -> int:
    """Return how often this run has been started again: by torchrun, or by a requeued job."""
    names = ("TORCHELASTIC_RESTART_COUNT", "SCALEBOOK_RESTARTS")
    return sum(int(os.environ.get(name, "0")) for name in names)


def own_place() -> tuple[int, int, int]:
    """Return what torchrun says of this process: rank, how many there are, number on its node."""
    try:
        rank, size, local_rank = (
            int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        )
    except KeyError as error:
        raise LaunchError(
            f"{error.args[0]} is not set. Start this with torchrun, even for 1 process."
        ) from error
    return rank, size, local_rank


def join(config: RunConfig) -> World:
    """Return this process's place after it has met the others and the world has been split.

    Raises:
        ConfigError: the world that torchrun started is not the one that was asked for.
        LaunchError: torchrun did not start this process, or there is no GPU for it.
    """
    rank, size, local_rank = own_place()
    if size != config.world_size:
        raise ConfigError(f"torchrun started {size} processes, but world_size={config.world_size}.")
    device, backend = device_of(config.platform, local_rank)
    distributed.init_process_group(
        backend, store=_store(), rank=rank, world_size=size, timeout=COLLECTIVE_TIMEOUT
    )
    _split(config)
    return World(rank, size, device)


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


def device_of(platform: str, local_rank: int) -> tuple[torch.device, str]:
    """Return the device of a process and the backend of its collectives."""
    if platform == "cpu":
        return torch.device("cpu"), "gloo"
    if not torch.cuda.is_available():
        raise LaunchError(
            f"platform={platform!r} needs a GPU, and torch {torch.__version__} sees none. "
            "Use platform 'cpu', or install a torch built for this GPU."
        )
    if local_rank >= torch.cuda.device_count():
        raise LaunchError(
            f"Process {local_rank} of this node has no GPU: torch sees "
            f"{torch.cuda.device_count()}. Start at most one process per GPU."
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device, "nccl"


def _split(config: RunConfig) -> None:
    from scalebook.train import mcore  # not above: a probe needs no Megatron, which loads slowly

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
