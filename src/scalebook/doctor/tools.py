"""What the drivers' tools and files say of their devices: parsers of text and of /sys."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from scalebook.doctor.facts import GpuState

NVIDIA_FIELDS = (
    "index",
    "name",
    "driver_version",
    "memory.total",
    "memory.used",
    "power.limit",
    "power.default_limit",
    "persistence_mode",
    "mig.mode.current",
    "clocks_throttle_reasons.hw_thermal_slowdown",
    "clocks_throttle_reasons.sw_thermal_slowdown",
    "clocks_throttle_reasons.hw_power_brake_slowdown",
)
FORMAT = "--format=csv,noheader,nounits"
NVIDIA_DEVICES = ("nvidia-smi", f"--query-gpu={','.join(NVIDIA_FIELDS)}", FORMAT)
NVIDIA_PROCESSES = ("nvidia-smi", "--query-compute-apps=pid", FORMAT)
PCI_VENDORS = {"0x10de": "nvidia", "0x1002": "amd"}
PCI_CLASSES = ("0x0302", "0x0300", "0x0380", "0x1200")  # 3D, VGA, display, accelerator
MIB = 2**20


def number(text: str) -> float | None:
    """Return a number, None for what tools print in place of one ([N/A], [Not Supported])."""
    try:
        return float(text)
    except ValueError:
        return None


def nvidia_devices(text: str) -> tuple[tuple[GpuState, ...], str | None]:
    """Return the devices that nvidia-smi lists, and the driver's version."""
    devices: list[GpuState] = []
    driver = None
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
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
    """Return the processes that a tool lists, one a line, but for our own."""
    found = {int(line) for line in text.split() if line.isdigit()}
    return tuple(sorted(found - set(own)))


def amd_devices(names: Sequence[str | None], sysfs: Path) -> tuple[GpuState, ...]:
    """Return AMD's devices: names as the tools say, the rest from the kernel driver's files."""
    cards = [path for path in sysfs.glob("class/drm/card*") if re.fullmatch(r"card\d+", path.name)]
    folders = [
        path / "device"
        for path in sorted(cards, key=lambda path: int(path.name.removeprefix("card")))
        if _text(path / "device" / "vendor") == "0x1002"
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
            performance_level=_text(folder / "power_dpm_force_performance_level"),
        )
        for index, folder in enumerate(folders)
    )


def _first(folder: Path, name: str) -> float | None:
    found = sorted(folder.glob(f"hwmon/hwmon*/{name}"))
    return _scaled(found[0], 1e6) if found else None


def _scaled(path: Path, unit: float) -> float | None:
    value = number(_text(path) or "")
    return None if value is None else value / unit


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def amd_processes(sysfs: Path, own: Sequence[int]) -> tuple[int, ...] | None:
    """Return the processes that have the AMD compute driver open, None where it tells none."""
    folder = sysfs / "class" / "kfd" / "kfd" / "proc"
    if not folder.is_dir():
        return None
    return process_ids("\n".join(path.name for path in folder.iterdir()), own)


def cards_on_bus(sysfs: Path) -> dict[str, int]:
    """Return how many graphics and compute cards of each vendor the PCI bus has."""
    found: dict[str, int] = {}
    for path in sysfs.glob("bus/pci/devices/*"):
        vendor = PCI_VENDORS.get(_text(path / "vendor") or "")
        if vendor and (_text(path / "class") or "").startswith(PCI_CLASSES):
            found[vendor] = found.get(vendor, 0) + 1
    return found
