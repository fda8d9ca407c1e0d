"""What every reader of devices has in common: the shape of a reading and of a failure."""

from __future__ import annotations

from typing import Any, Protocol

Row = dict[str, Any]  # a line of telemetry.jsonl; the columns of scalebook.measure.telemetry.Sample


class SensorError(Exception):
    """Devices cannot be read; the message says why. Never ends a run."""


class Sensor(Protocol):
    """Readings of the devices of one machine."""

    source: str  # the tool or library, as telemetry.jsonl names it

    def devices(self) -> list[Row]:
        """Return what does not change of each device."""
        ...

    def read(self) -> list[Row]:
        """Return the newest reading of each device; none where none is new.

        Raises:
            SensorError: no further reading will come.
        """
        ...

    def once(self) -> list[Row]:
        """Return one reading of each device, waiting for it if need be.

        Raises:
            SensorError: no reading will come.
        """
        ...

    def close(self) -> None:
        """End what reads the devices."""
        ...


def without_missing(**values: Any) -> Row:
    """Return the values that are there; a missing one is left out, never zero."""
    return {name: value for name, value in values.items() if value is not None}
