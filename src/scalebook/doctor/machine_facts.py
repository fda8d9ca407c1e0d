"""What is read from a machine before anything is judged; None is what it does not report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU as its driver describes it; memory in MiB, power in watts."""

    index: int
    name: str | None
    memory_total_mib: float | None = None
    memory_used_mib: float | None = None
    power_cap_watts: float | None = None
    power_default_watts: float | None = None
    slowdown: tuple[str, ...] = ()  # why its clocks are held down at this moment
    performance_level: str | None = None  # AMD: "auto" where nobody fixed the clocks
    persistent: bool | None = None  # NVIDIA: the driver stays loaded between processes
    partitioned: bool | None = None  # NVIDIA: MIG


@dataclass(frozen=True, slots=True)
class Node:
    """A device file that training opens, and whether this user may read and write it."""

    path: str
    access: bool
    group: str | None


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """One machine, or one container, as this user sees it. Sizes in bytes; limits None: none."""

    vendor: str  # of the devices that a driver's tool or the kernel names: nvidia, amd or cpu
    devices: tuple[GpuState, ...] = ()
    cards_on_bus: Mapping[str, int] = field(default_factory=dict[str, int])  # vendor -> PCI devices
    driver: str | None = None
    links: Mapping[str, int] | None = None  # pairs of GPUs by kind of link; None: nobody says
    nodes: tuple[Node, ...] = ()
    processes: tuple[int, ...] | None = None  # that hold GPU memory and are not of this tree
    inside: str | None = None
    groups: tuple[str, ...] = ()
    shm_bytes: int | None = None
    memlock: int | None = None
    stack: int | None = None
    open_files: int | None = None
    numa_balancing: str | None = None
    numa_nodes: int = 1
    governor: str | None = None
    memory_available: int | None = None
    runs: str = "runs"
    runs_free: int | None = None
    runs_writable: bool = True
    versions: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    engines: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    device_specs: tuple[str, ...] = ()  # files of the Container Device Interface
    known_device: bool | None = None  # the catalog has the first device's name
