"""What training runs on, as torch and the driver report it: accelerator, libraries, image."""

from __future__ import annotations

import hashlib
import os
import socket
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from scalebook import host
from scalebook.measure.probes import MachineIdentity
from scalebook.measure.probes.topology import QUERIES, parse_matrix
from scalebook.query import printed

_cuda: Any = torch.cuda


@dataclass(frozen=True, slots=True)
class Process:
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
    return {"driver": driver.strip(), "power_cap_watts": _number(cap)}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _amd() -> dict[str, Any]:
    caps = sorted(Path("/sys/class/drm").glob("card*/device/hwmon/hwmon*/power1_cap"))
    microwatts = _number(_text(str(caps[0])) or "") if caps else None
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
        **(_amd() if torch.version.hip else _nvidia()),
    }


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


def containers() -> dict[str, str]:
    """Return what the image says of itself, where it does."""
    return host.container(os.environ)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def identity(processes: int) -> MachineIdentity:
    """Return which machine and software this is."""
    on_gpu = torch.cuda.is_available()
    ids = [
        str(getattr(_cuda.get_device_properties(index), "uuid", ""))
        for index in range(_cuda.device_count() if on_gpu else 0)
    ]
    return MachineIdentity(
        host=_hash(socket.gethostname()),
        devices=tuple(_hash(name) for name in ids) if all(ids) else (),
        accelerator=_cuda.get_device_name(0) if on_gpu else None,
        torch=torch.__version__,
        cuda=torch.version.cuda,
        rocm=torch.version.hip,
        processes=None if on_gpu else processes,
    )
