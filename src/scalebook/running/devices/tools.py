"""Readings by the vendors' command-line tools, where their libraries cannot be reached.

The tool repeats its table at its own period into a pipe; energy counters are not among its columns.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from scalebook.query import printed
from scalebook.running.devices.sensor import SensorError

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


def ask(*command: str) -> str | None:
    """Return what a command prints, None where it is missing, fails or hangs."""
    return printed(command)


def near(own: float, arrived: float) -> float:
    """Return the time that a tool gives a sample, unless its clock is another than ours."""
    return own if abs(own - arrived) < FARTHEST_STAMP else arrived


def cells(text: str) -> list[list[str]]:
    """Return the cells of CSV text by line."""
    return [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line]
