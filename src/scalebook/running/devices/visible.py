"""Which of a machine's GPUs a process may use, and in which order its ranks take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Each variable lists devices of what the one before it left over. ROCR's comes first on AMD, and
# HIP reads CUDA's name only where its own is not set.
_AMD = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


def chosen(vendor: str, names: Sequence[str], environment: Mapping[str, str]) -> tuple[int, ...]:
    """Return the indices of the visible devices in the order in which ranks take them.

    ``names`` are the devices' UUIDs, by the driver's index. CUDA sorts devices of one kind as the
    driver does; on a node of unlike GPUs its order may be another (CUDA_DEVICE_ORDER).
    """
    indices = tuple(range(len(names)))
    for variable in _variables(vendor, environment):
        indices = _listed(environment[variable], indices, names)
    return indices


def _variables(vendor: str, environment: Mapping[str, str]) -> list[str]:
    if vendor != "amd":
        return [name for name in ("CUDA_VISIBLE_DEVICES",) if name in environment]
    found = [name for name in _AMD if name in environment]
    return [name for name in found if name != _AMD[2] or _AMD[1] not in environment]


def _listed(value: str, indices: tuple[int, ...], names: Sequence[str]) -> tuple[int, ...]:
    """Return the devices that a list names; what follows an entry that names none is hidden."""
    found: list[int] = []
    for entry in (part.strip() for part in value.split(",")):
        match = _index(entry, indices, names)
        if match is None or match in found:
            break
        found.append(match)
    return tuple(found)


def _index(entry: str, indices: tuple[int, ...], names: Sequence[str]) -> int | None:
    """Return the device of an entry: a position, or the start of one device's UUID."""
    if entry.isdigit():
        return indices[int(entry)] if int(entry) < len(indices) else None
    matching = [index for index in indices if entry and names[index].startswith(entry)]
    return matching[0] if len(matching) == 1 else None
