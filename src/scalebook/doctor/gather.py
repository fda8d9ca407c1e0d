"""The facts of a machine, before anything is judged: files below a root and what tools say.

None is what the machine does not report.
"""

from __future__ import annotations

import grp
import os
import re
import resource
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scalebook.facts import catalog
from scalebook.measure.probes import topology
from scalebook.query import cells, number, printed, said, said_of
from scalebook.running.container import contents, engines
from scalebook.running.devices import detect

CDI_FOLDERS = ("etc/cdi", "var/run/cdi")
NVIDIA_FIELDS = (
    "index", "name", "driver_version", "memory.total", "memory.used", "power.limit",
    "power.default_limit", "persistence_mode", "mig.mode.current",
    "clocks_throttle_reasons.hw_thermal_slowdown", "clocks_throttle_reasons.sw_thermal_slowdown",
    "clocks_throttle_reasons.hw_power_brake_slowdown",
)  # fmt: skip
FORMAT = "--format=csv,noheader,nounits"
NVIDIA_DEVICES = ("nvidia-smi", f"--query-gpu={','.join(NVIDIA_FIELDS)}", FORMAT)
NVIDIA_PROCESSES = ("nvidia-smi", "--query-compute-apps=pid", FORMAT)
PCI_VENDORS = {"0x10de": "nvidia", "0x1002": "amd"}
PCI_CLASSES = ("0x0302", "0x0300", "0x0380", "0x1200")  # 3D, VGA, display, accelerator
MIB = 2**20


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


@dataclass(frozen=True, slots=True)
class FactSource:
    """Where to look and whom to ask; the defaults are this machine."""

    root: Path = Path("/")
    query: detect.Runner = printed
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def text(self, path: str) -> str | None:
        """Return what a file holds, None where it is not or may not be read."""
        return said(self.root / path) or None


def gather(runs: Path, images: Path, machine: FactSource | None = None) -> MachineFacts:
    here = machine or FactSource()
    found = detect.detect(here.query, here.environment, here.root / "sys")
    devices, driver = _devices(here, found)
    name = devices[0].name if devices else None
    available = said_of(here.root / "proc/meminfo", r"^MemAvailable:\s*(\d+)")
    surroundings = engines.surroundings(found.vendor, images, environment=here.environment)
    return MachineFacts(
        vendor=found.vendor,
        devices=devices,
        driver=driver,
        links=_links(here, found),
        cards_on_bus=cards_on_bus(here.root / "sys"),
        nodes=_nodes(here.root / "dev"),
        processes=_processes(here, found.vendor),
        inside=engines.current_container(here.environment, here.root),
        groups=tuple(sorted({_group(number) for number in os.getgroups()})),
        shm_bytes=_space(here.root / "dev" / "shm", "total"),
        memlock=_limit(resource.RLIMIT_MEMLOCK),
        stack=_limit(resource.RLIMIT_STACK),
        open_files=_limit(resource.RLIMIT_NOFILE),
        numa_balancing=here.text("proc/sys/kernel/numa_balancing"),
        numa_nodes=len(list((here.root / "sys/devices/system/node").glob("node[0-9]*"))) or 1,
        governor=here.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        memory_available=int(available) * 1024 if available else None,
        runs=str(runs),
        runs_free=_space(_nearest(runs), "free"),
        runs_writable=os.access(_nearest(runs), os.W_OK),
        versions=contents.versions(),
        engines=surroundings.engines,
        device_specs=_device_specs(here.root),
        known_device=None if name is None else catalog.accelerator_for_device(name) is not None,
    )


def _devices(here: FactSource, found: detect.Machine) -> tuple[tuple[GpuState, ...], str | None]:
    """Return the devices in full where the driver reports them, else as many as were detected."""
    devices: tuple[GpuState, ...] = ()
    driver = None
    if found.vendor == "nvidia":
        devices, driver = nvidia_devices(here.query(NVIDIA_DEVICES) or "")
    elif found.vendor == "amd":
        names = [found.device_name] * found.count
        devices = amd_devices(names, here.root / "sys")
        driver = here.text("sys/module/amdgpu/version") or here.text("proc/sys/kernel/osrelease")
    plain = tuple(GpuState(index, found.device_name) for index in range(found.count))
    return devices or plain, driver


def _links(here: FactSource, found: detect.Machine) -> dict[str, int] | None:
    """Return how many pairs of GPUs each kind of link joins; None where the tool does not say."""
    if found.count < 2:
        return None
    text = here.query(topology.QUERIES[found.vendor])
    return topology.pairs_by_link(topology.parse_matrix(found.vendor, text)) or None


def _processes(here: FactSource, vendor: str) -> tuple[int, ...] | None:
    own = (os.getpid(), os.getppid())
    if vendor == "nvidia":
        text = here.query(NVIDIA_PROCESSES)
        return None if text is None else process_ids(text, own)
    return amd_processes(here.root / "sys", own) if vendor == "amd" else None


def _nodes(dev: Path) -> tuple[Node, ...]:
    paths = [*dev.glob("kfd"), *sorted(dev.glob("dri/renderD*")), *sorted(dev.glob("nvidia[0-9]*"))]
    return tuple(
        Node(str(path), os.access(path, os.R_OK | os.W_OK), _group(path.stat().st_gid))
        for path in paths
    )


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:  # a group of the host has no name in a container
        return str(number)


def _limit(kind: int) -> int | None:
    soft, _hard = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


def _nearest(path: Path) -> Path:
    """Return the path, or the folder above it that exists."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def _space(path: Path, part: str) -> int | None:
    """Return the ``total`` or ``free`` bytes of a file system, None where it is not."""
    try:
        return getattr(shutil.disk_usage(path), part)
    except OSError:
        return None


def _device_specs(root: Path) -> tuple[str, ...]:
    """Return the CDI files that name NVIDIA's devices."""
    files = [path for folder in CDI_FOLDERS for path in sorted((root / folder).glob("*.*"))]
    return tuple(f"/{path.relative_to(root)}" for path in files if "nvidia" in path.name)


# What the drivers' tools and files say of their devices


def nvidia_devices(text: str) -> tuple[tuple[GpuState, ...], str | None]:
    """Return the devices that nvidia-smi lists, and the driver's version."""
    devices: list[GpuState] = []
    driver = None
    for parts in cells(text):
        if len(parts) != len(NVIDIA_FIELDS) or not parts[0].isdigit():
            continue
        row = dict(zip(NVIDIA_FIELDS, parts, strict=True))
        driver = row["driver_version"]
        slow = [name for name in NVIDIA_FIELDS[-3:] if row[name] == "Active"]
        devices.append(
            GpuState(
                index=int(row["index"]),
                name=row["name"],
                memory_total_mib=number(row["memory.total"]),
                memory_used_mib=number(row["memory.used"]),
                power_cap_watts=number(row["power.limit"]),
                power_default_watts=number(row["power.default_limit"]),
                slowdown=tuple(name.partition(".")[2].replace("_", " ") for name in slow),
                persistent=_switch(row["persistence_mode"]),
                partitioned=_switch(row["mig.mode.current"]),
            )
        )
    return tuple(devices), driver


def _switch(text: str) -> bool | None:
    return {"Enabled": True, "Disabled": False}.get(text)


def process_ids(text: str, own: Sequence[int]) -> tuple[int, ...]:
    """Return the processes that a tool lists, one per line, except our own."""
    found = {int(line) for line in text.split() if line.isdigit()}
    return tuple(sorted(found - set(own)))


def amd_devices(names: Sequence[str | None], sysfs: Path) -> tuple[GpuState, ...]:
    """Return AMD's devices: names as the tools say, the rest from the kernel driver's files."""
    cards = [path for path in sysfs.glob("class/drm/card*") if re.fullmatch(r"card\d+", path.name)]
    folders = [
        path / "device"
        for path in sorted(cards, key=lambda path: int(path.name.removeprefix("card")))
        if said(path / "device" / "vendor") == "0x1002"
    ]
    known = [*names, *[None] * len(folders)]
    return tuple(
        GpuState(
            index=index,
            name=known[index],
            memory_total_mib=_scaled(folder / "mem_info_vram_total", MIB),
            memory_used_mib=_scaled(folder / "mem_info_vram_used", MIB),
            power_cap_watts=_first(folder, "power1_cap"),
            power_default_watts=_first(folder, "power1_cap_default"),
            performance_level=said(folder / "power_dpm_force_performance_level") or None,
        )
        for index, folder in enumerate(folders)
    )


def _first(folder: Path, name: str) -> float | None:
    found = sorted(folder.glob(f"hwmon/hwmon*/{name}"))
    return _scaled(found[0], 1e6) if found else None


def _scaled(path: Path, unit: float) -> float | None:
    value = number(said(path))
    return None if value is None else value / unit


def amd_processes(sysfs: Path, own: Sequence[int]) -> tuple[int, ...] | None:
    """Return the processes that have the AMD compute driver open, None where it reports none."""
    folder = sysfs / "class" / "kfd" / "kfd" / "proc"
    if not folder.is_dir():
        return None
    return process_ids("\n".join(path.name for path in folder.iterdir()), own)


def cards_on_bus(sysfs: Path) -> dict[str, int]:
    """Return how many graphics and compute cards of each vendor the PCI bus has."""
    vendors = (
        PCI_VENDORS.get(said(path / "vendor"))
        for path in sysfs.glob("bus/pci/devices/*")
        if said(path / "class").startswith(PCI_CLASSES)
    )
    return dict(Counter(vendor for vendor in vendors if vendor))
