"""How a run is called in charts, tables and sentences: from its settings, never from its folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from scalebook.settings import SETTINGS

Row = Mapping[str, Any]

_SPLIT = (
    *((row.short, row.name) for row in SETTINGS.values() if row.short),
    ("DP", "data_parallel_size"),
)


def unit_name(platform: str | None) -> str:
    """Return what a rank of a platform is: a process on ``cpu``, else a GPU."""
    return "process" if platform == "cpu" else "GPU"


def units(platform: str | None) -> tuple[str, str]:
    """Return one and many of the unit."""
    unit = unit_name(platform)
    return unit, "processes" if unit == "process" else "GPUs"


def split_name(row: Row) -> str:
    """Return the parallelism in short, sizes of 1 left out: ``TP2 DP4 SP``, or ``1 GPU``."""
    parts = [f"{short}{row[name]}" for short, name in _SPLIT if (row.get(name) or 1) > 1]
    if row.get("sequence_parallel"):
        parts.append("SP")
    if row.get("data_parallel_sharding") == "full":
        parts.append("FSDP")
    world_size = row.get("world_size")
    if not parts and world_size is None:
        return "split unknown"
    return " ".join(parts) or f"{world_size} {units(row.get('platform'))[world_size != 1]}"


def sized(row: Row) -> str:
    """Return the split and how many ranks it has: ``TP2 DP4 on 8 GPUs``, ``1 process``."""
    split, world_size = split_name(row), row.get("world_size")
    if split[0].isdigit() or world_size is None:
        return split
    return f"{split} on {world_size} {units(row.get('platform'))[world_size != 1]}"


def in_words(row: Row) -> str:
    """Return what a run is called in a sentence: ``TP2 DP4 on 8 GPUs, no fused attention``."""
    name = row.get("name") or split_name(row)
    rest = name.removeprefix(split_name(row)).partition(" [")[0]
    return sized(row) + rest.replace(" · ", ", ")


# What a run must be known to have done before it is set against another.
WORK = {
    "model": "model",
    "platform": "platform",
    "precision": "precision",
    "sequence_length": "sequence length",
}


def group_name(row: Row) -> str:
    """Return what must agree before two runs are ranked: the work, the device and the engine.

    A run of which a part is unknown has a group of its own: unknown equals nothing.
    """
    engine, source = row.get("engine"), row.get("source")
    details = [row.get("precision"), _sequence(row.get("sequence_length"))]
    details += [engine] if engine not in (None, "megatron") else []
    details += [source] if source not in (None, "measured") else []
    details += [f"run {row.get('run_id')}"] if any(row.get(name) is None for name in WORK) else []
    what = f"{row.get('model') or 'unknown model'} on {row.get('platform') or 'unknown platform'}"
    inside = ", ".join(str(detail) for detail in details if detail)
    return f"{what} ({inside})" if inside else what


def _sequence(length: int | None) -> str | None:
    return None if length is None else f"sequence {length:,}"


_TITLE = re.compile(r"([a-z]+?)-?(\d[\d.]*)?-((?:\d+x)?\d+b)(?:@(\d+))?")


def model_title(name: str | None) -> str:
    """Return a model as its makers write it: ``Llama 3.1 8B``, ``8 layers of Llama 3.1 8B``.

    A name of another form stays as it is.
    """
    found = _TITLE.fullmatch(name or "")
    if found is None:
        return name or "unknown model"
    family, version, size, layers = found.groups()
    title = " ".join(part for part in (family.capitalize(), version, size[:-1] + "B") if part)
    many = "1 layer" if layers == "1" else f"{layers} layers"
    return f"{many} of {title}" if layers else title


def platform_title(name: str | None) -> str:
    """Return a platform as its maker writes it: ``H200``."""
    return name.upper() if name else "unknown platform"
