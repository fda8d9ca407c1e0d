"""How the devices of a node are linked, from the text that the vendors' tools print.

The formats are the tools' own and change; what cannot be read is left out, never guessed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

QUERIES: Mapping[str, tuple[str, ...]] = {
    "nvidia": ("nvidia-smi", "topo", "-m"),
    "amd": ("rocm-smi", "--showtopo"),
}

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_DEVICE = re.compile(r"GPU\d+")
_LINK_TYPES = re.compile(r"^=+ *Link Type between two GPUs *=+$", re.MULTILINE)
_NVLINK_DEVICE = re.compile(r"^GPU (\d+):")
_NVLINK_RATE = re.compile(r"^\s*Link \d+: ([\d.]+) GB/s")


def parse_matrix(vendor: str, text: str | None) -> dict[str, Any]:
    """Return devices and links of what the vendor's query printed; empty where it says nothing."""
    return {"nvidia": parse_nvidia_matrix, "amd": parse_rocm_matrix}[vendor](text or "")


def pairs_by_link(topology: object) -> dict[str, int]:
    """Return how many pairs of devices each kind of link joins, the most frequent first.

    Empty for anything that is not a whole matrix: records come from anywhere.
    """
    if not isinstance(topology, Mapping):
        return {}
    links = cast("Mapping[str, Any]", topology).get("links")
    rows = cast("Sequence[Any]", links if isinstance(links, list | tuple) else ())
    if not all(
        isinstance(row, list | tuple) and len(cast("list[Any]", row)) == len(rows) for row in rows
    ):
        return {}
    kinds = (str(kind) for place, row in enumerate(rows) for kind in row[place + 1 :])
    return dict(Counter(kinds).most_common())


def parse_nvidia_matrix(text: str) -> dict[str, Any]:
    """Return devices and links of ``nvidia-smi topo -m``: NV18, SYS, NODE, ... by pair."""
    lines = [_ANSI.sub("", line).rstrip() for line in text.splitlines()]
    header = next((line for line in lines if line.lstrip().startswith("GPU0")), None)
    return _matrix(header, lines[lines.index(header) + 1 :]) if header else {}


def parse_nvlink(text: str) -> dict[str, list[float]]:
    """Return the rates of ``nvidia-smi nvlink --status``: GB/s of each active link by device."""
    found: dict[str, list[float]] = {}
    device = ""
    for line in text.splitlines():
        if match := _NVLINK_DEVICE.match(line):
            device = f"GPU{match[1]}"
            found[device] = []
        elif device and (match := _NVLINK_RATE.match(line)):
            found[device].append(float(match[1]))
    return {name: rates for name, rates in found.items() if rates}


def parse_rocm_matrix(text: str) -> dict[str, Any]:
    """Return devices and links of ``rocm-smi --showtopo``: XGMI or PCIE by pair."""
    start = _LINK_TYPES.search(text)
    if start is None:
        return {}
    header, *lines = text[start.end() :].lstrip("\n").splitlines() or [""]
    return _matrix(header, lines)


def _matrix(header: str, lines: Sequence[str]) -> dict[str, Any]:
    """Return the first whole matrix below a line of its devices; nothing where a row is missing.

    A device's link to itself is ``X``, for which rocm-smi has 0.
    """
    devices = _DEVICE.findall(header)
    rows: dict[str, list[str]] = {}
    for line in lines:
        name, *cells = line.split()[: len(devices) + 1] or [""]
        if name in devices and len(cells) == len(devices):
            rows.setdefault(name, ["X" if cell == "0" else cell for cell in cells])
    whole = bool(devices) and list(rows) == devices
    return {"devices": devices, "links": list(rows.values())} if whole else {}
