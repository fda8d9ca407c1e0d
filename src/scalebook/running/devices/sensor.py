"""What the readers of devices share: the shape of a reading, a tool's output, visible devices.

A vendor's tool repeats its table at its own period into a pipe; it has no energy counters.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

_PR_SET_PDEATHSIG = 1
FARTHEST_STAMP = 60.0  # seconds; a tool's clock farther off is in another time zone


def _die_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends, even by SIGKILL (Linux)."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Stream:
    """The lines of a running command, read without waiting for them."""

    def __init__(self, command: Sequence[str]) -> None:
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                # amd-smi is a Python program, which would keep its lines back
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                preexec_fn=_die_with_parent,  # noqa: PLW1509  the sampler has one thread
            )
        except OSError as error:
            raise SensorError(f"{command[0]} cannot be started: {error.strerror}") from error
        self._name = command[0]
        stream: Any = self._process.stdout
        self._descriptor: int = stream.fileno()
        os.set_blocking(self._descriptor, False)
        self._rest = b""

    def lines(self) -> list[str]:
        """Return the whole lines that have come since the last call.

        Raises:
            SensorError: the command has ended and nothing more will come.
        """
        new = b""
        try:
            while piece := os.read(self._descriptor, 65536):
                new += piece
            ended = True
        except BlockingIOError:
            ended = False
        *lines, self._rest = (self._rest + new).split(b"\n")
        if ended and not lines:
            raise SensorError(f"{self._name} ended by itself with code {self._process.wait()}")
        return [line.decode(errors="replace").strip() for line in lines if line.strip()]

    def close(self) -> None:
        """End the command."""
        self._process.kill()
        self._process.wait()


def near(own: float, arrived: float) -> float:
    """Return the time that a tool gives a sample, unless its clock is another than ours."""
    return own if abs(own - arrived) < FARTHEST_STAMP else arrived


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
        return self.read()

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
