"""Which accelerator this machine has, asked of drivers and the kernel: torch is not needed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

from scalebook.errors import LaunchError
from scalebook.facts import catalog
from scalebook.facts.catalog.types import Platform
from scalebook.query import printed, said_of
from scalebook.running.devices.sensor import variables

Runner = Callable[[Sequence[str]], str | None]

NVIDIA_QUERY = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
AMD_QUERIES = (
    ("amd-smi", "static", "--asic", "--json"),
    ("rocm-smi", "--showproductname", "--json"),
)
AMD_NAME_KEYS = ("market_name", "Card Series", "Card series", "Card SKU")


@dataclass(frozen=True, slots=True)
class Machine:
    """The devices of this machine: ``device_name`` as its driver says, None for a CPU."""

    vendor: str  # "cpu", "nvidia" or "amd"
    device_name: str | None
    count: int

    def describe(self) -> str:
        if self.vendor == "cpu":
            return "no GPU"
        return f"{self.count} x {self.device_name or 'an AMD GPU of unknown name'}"


def detect(
    query: Runner = printed, environment: Mapping[str, str] = os.environ, sysfs: Path = Path("/sys")
) -> Machine:
    """Return what this machine has; NVIDIA is asked before AMD, and a CPU is the rest."""
    lines = (line.strip() for line in (query(NVIDIA_QUERY) or "").splitlines())
    nvidia: list[str | None] = [line for line in lines if line]
    for vendor, names in (("nvidia", nvidia), ("amd", _amd(query, sysfs))):
        count = _visible(len(names), vendor, environment)
        if count:
            return Machine(vendor, names[0], count)
    return Machine("cpu", None, 0)


def _visible(count: int, vendor: str, environment: Mapping[str, str]) -> int:
    """Return how many devices a process may use: a list ends at an entry that names none."""
    for name in variables(vendor, environment):
        entries = (part.strip() for part in environment[name].split(","))
        count = sum(1 for _ in takewhile(lambda entry, most=count: _names(entry, most), entries))
    return count


def _names(entry: str, count: int) -> bool:
    """Return whether an entry is the index of a device, or may be its UUID."""
    return int(entry) < count if entry.isdigit() else entry not in ("", "-1")


def _amd(query: Runner, sysfs: Path) -> list[str | None]:
    """Return the name of each AMD GPU; None where only the kernel driver knows that it is there."""
    for command in AMD_QUERIES:
        names = _amd_names(query(command))
        if names:
            return names
    nodes = sysfs.glob("class/kfd/kfd/topology/nodes/*/properties")
    # CPUs have no SIMDs.
    return [None for node in nodes if int(said_of(node, r"^simd_count (\d+)") or 0) > 0]


def _amd_names(text: str | None) -> list[str | None]:
    """Return the names in the JSON of amd-smi (a list, or under gpu_data) or rocm-smi (by card)."""
    try:
        value: Any = json.loads(text or "null")
    except (ValueError, RecursionError):
        return []
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        cards = [entry for name, entry in table.items() if name.startswith("card")]
        value = table.get("gpu_data", cards)
    entries = cast("list[Any]", value) if isinstance(value, list) else []
    return [_amd_name(cast("dict[str, Any]", e)) for e in entries if isinstance(e, dict)]


def _amd_name(entry: dict[str, Any]) -> str | None:
    asic = entry.get("asic")
    fields = {**entry, **cast("dict[str, Any]", asic if isinstance(asic, dict) else {})}
    found = (fields.get(key) for key in AMD_NAME_KEYS)
    return next((name for name in found if isinstance(name, str) and name != "N/A"), None)


def platform_of(machine: Machine) -> Platform:
    """Return the platform that the machine's device belongs to.

    Raises:
        LaunchError: the device is not in the catalog, or no platform uses it.
    """
    if machine.vendor == "cpu":
        return catalog.platform("cpu")
    accelerator = catalog.accelerator_for_device(machine.device_name or "")
    if accelerator is None:
        raise LaunchError(
            f"This machine has {machine.describe()}, which is not in the catalog. Name the nearest "
            "platform with --platform NAME --force-platform, or add the device to the catalog."
        )
    for platform in catalog.platforms():
        if platform.accelerator == accelerator.name:
            return platform
    raise LaunchError(
        f"No platform of the catalog has the accelerator {accelerator.name} of this machine. "
        "Name the nearest with --platform NAME --force-platform."
    )


def refusal(platform: Platform, machine: Machine) -> str | None:
    """Return why a platform cannot be this machine, None where it can; CPU runs go anywhere."""
    if platform.vendor == "cpu":
        return None
    accelerator = catalog.accelerator_for_device(machine.device_name or "")
    if accelerator is not None and accelerator.name == platform.accelerator:
        return None
    return (
        f"Platform {platform.name!r} means {platform.accelerator}; this machine has "
        f"{machine.describe()}. Name its own platform, or add --force-platform."
    )
