"""Read the facts of this machine: files below a root, a few queries, nothing changed."""

from __future__ import annotations

import grp
import os
import resource
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scalebook.doctor import tools
from scalebook.doctor.facts import GpuState, MachineFacts, Node
from scalebook.facts import catalog
from scalebook.query import printed
from scalebook.running.container import contents, engines, inside
from scalebook.running.devices import detect

CDI_FOLDERS = ("etc/cdi", "var/run/cdi")


@dataclass(frozen=True, slots=True)
class FactSource:
    """Where to look and whom to ask; the defaults are this machine."""

    root: Path = Path("/")
    query: detect.Runner = printed
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def text(self, path: str) -> str | None:
        """Return what a file holds, None where it is not or may not be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None


def gather(runs: Path, images: Path, machine: FactSource | None = None) -> MachineFacts:
    """Return the facts of a machine."""
    here = machine or FactSource()
    found = detect.detect(here.query, here.environment, here.root / "sys")
    devices, driver = _devices(here, found)
    name = devices[0].name if devices else None
    surroundings = engines.surroundings(found.vendor, images, environment=here.environment)
    return MachineFacts(
        vendor=found.vendor,
        devices=devices,
        driver=driver,
        cards_on_bus=tools.cards_on_bus(here.root / "sys"),
        nodes=_nodes(here.root / "dev"),
        processes=_processes(here, found.vendor),
        inside=inside.container(here.environment, here.root),
        groups=tuple(sorted({_group(number) for number in os.getgroups()})),
        shm_bytes=_total(here.root / "dev" / "shm"),
        memlock=_limit(resource.RLIMIT_MEMLOCK),
        stack=_limit(resource.RLIMIT_STACK),
        open_files=_limit(resource.RLIMIT_NOFILE),
        numa_balancing=here.text("proc/sys/kernel/numa_balancing"),
        numa_nodes=len(list((here.root / "sys/devices/system/node").glob("node[0-9]*"))) or 1,
        governor=here.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        memory_available=_available(here.text("proc/meminfo") or ""),
        runs=str(runs),
        runs_free=_free(runs),
        runs_writable=os.access(_nearest(runs), os.W_OK),
        versions=contents.versions(),
        engines=surroundings.engines,
        device_specs=_device_specs(here.root),
        known_device=None if name is None else catalog.accelerator_for_device(name) is not None,
    )


def _devices(here: FactSource, found: detect.Machine) -> tuple[tuple[GpuState, ...], str | None]:
    """Return the devices in full where the driver tells, else as many as were detected."""
    devices: tuple[GpuState, ...] = ()
    driver = None
    if found.vendor == "nvidia":
        devices, driver = tools.nvidia_devices(here.query(tools.NVIDIA_DEVICES) or "")
    elif found.vendor == "amd":
        names = [found.device_name] * found.count
        devices = tools.amd_devices(names, here.root / "sys")
        driver = here.text("sys/module/amdgpu/version") or here.text("proc/sys/kernel/osrelease")
    plain = tuple(GpuState(index, found.device_name) for index in range(found.count))
    return devices or plain, driver


def _processes(here: FactSource, vendor: str) -> tuple[int, ...] | None:
    own = (os.getpid(), os.getppid())
    if vendor == "nvidia":
        text = here.query(tools.NVIDIA_PROCESSES)
        return None if text is None else tools.process_ids(text, own)
    return tools.amd_processes(here.root / "sys", own) if vendor == "amd" else None


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


def _available(meminfo: str) -> int | None:
    for line in meminfo.splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return None


def _nearest(path: Path) -> Path:
    """Return the path, or the folder above it that exists."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def _free(path: Path) -> int | None:
    try:
        return shutil.disk_usage(_nearest(path)).free
    except OSError:
        return None


def _total(path: Path) -> int | None:
    try:
        return shutil.disk_usage(path).total
    except OSError:
        return None


def _device_specs(root: Path) -> tuple[str, ...]:
    """Return the CDI files that name NVIDIA's devices."""
    files = [path for folder in CDI_FOLDERS for path in sorted((root / folder).glob("*.*"))]
    return tuple(f"/{path.relative_to(root)}" for path in files if "nvidia" in path.name)
