"""What the readers of devices share: the shape of a reading, and which devices are visible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

# Each variable lists devices of what the one before it left over. ROCR's comes first on AMD, and
# HIP reads CUDA's name only where its own is not set.
VISIBLE = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}


def chosen(vendor: str, names: Sequence[str], environment: Mapping[str, str]) -> tuple[int, ...]:
    """Return the indices of the visible devices in the order in which ranks take them.

    ``names`` are the devices' UUIDs, by the driver's index. CUDA sorts devices of one kind as the
    driver does; on a node of unlike GPUs its order may be another (CUDA_DEVICE_ORDER).
    """
    indices = tuple(range(len(names)))
    for variable in variables(vendor, environment):
        indices = _listed(environment[variable], indices, names)
    return indices


def variables(vendor: str, environment: Mapping[str, str]) -> list[str]:
    """Return the variables that hide devices here, in the order in which they count."""
    found = [name for name in VISIBLE[vendor] if name in environment]
    by_hip = vendor == "amd" and "HIP_VISIBLE_DEVICES" in found
    return [name for name in found if name != "CUDA_VISIBLE_DEVICES" or not by_hip]


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


Row = dict[str, Any]  # a line of telemetry.jsonl; the columns of scalebook.measure.telemetry.Sample


class SensorError(Exception):
    """Devices cannot be read; the message says why. Never ends a run."""


class Sensor(Protocol):
    """Readings of the devices of one machine; every reader is one."""

    source: str  # the library, as telemetry.jsonl names it

    def devices(self) -> list[Row]:
        """Return what does not change of each device."""
        ...

    def read(self) -> list[Row]:
        """Return a reading of each device.

        Raises:
            SensorError: no further reading will come.
        """
        ...

    def close(self) -> None:
        """End what reads the devices, if anything has to be ended."""


class Library(Sensor):
    """A reader through a vendor's Python module, whose functions may be missing or fail."""

    module: Any
    error: type[Exception]  # what a function raises

    def ask(self, name: str, *arguments: Any) -> Any:
        """Return what a function of the module answers; None where it has no answer."""
        function = getattr(self.module, name, None)
        if function is None or any(argument is None for argument in arguments):
            return None
        try:
            return function(*arguments)
        except self.error:
            return None


def without_missing(**values: Any) -> Row:
    """Return the values that are there; a missing one is left out, never zero."""
    return {name: value for name, value in values.items() if value is not None}
