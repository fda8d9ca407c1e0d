"""Power, energy, clocks and temperature of the devices, read while the training processes run.

A sampler of its own process writes ``telemetry.jsonl`` while a run goes. It can't hurt the run: it
reads the driver's counters, whatever fails in it is a note in its file, and it ends with the run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from scalebook.config import RunConfig
from scalebook.facts import catalog
from scalebook.query import number
from scalebook.running.devices import sampler
from scalebook.running.devices.rapl import RAPL
from scalebook.running.devices.sensor import SensorError

FILE = "telemetry.jsonl"
PERIOD_SECONDS = 0.5
PERIOD_VARIABLE = "SCALEBOOK_TELEMETRY_SECONDS"
_END_SECONDS = 5.0  # the sampler ends within its period, unless its driver hangs


@contextmanager
def sampling(
    directory: Path, config: RunConfig, environment: Mapping[str, str], node: int = 0
) -> Generator[None]:
    """Sample the devices of a run on this node while the body runs.

    ``SCALEBOOK_TELEMETRY_SECONDS`` in the environment is the period; 0 samples nothing.
    """
    process = _start(directory, config, environment, node)
    try:
        yield
    finally:
        if process is not None:
            _end(process)


def _start(
    directory: Path, config: RunConfig, environment: Mapping[str, str], node: int
) -> subprocess.Popen[bytes] | None:
    """Start the sampler; None, with the reason in the file, where there is nothing to read."""
    vendor = catalog.platform(config.platform).vendor
    # on a shared file system each node has its own
    path = directory / (FILE if node == 0 else f"telemetry.node{node}.jsonl")
    period = PERIOD_SECONDS
    try:
        period = _period(environment)
        if vendor == "cpu":
            RAPL()  # most machines let nobody read it: no process for nothing
        used = 0 if vendor == "cpu" else -(-config.world_size // config.nodes)  # 0: all
        arguments = (str(path), vendor, str(period), str(used), str(node))
        return subprocess.Popen(
            (sys.executable, "-m", "scalebook.running.devices.sampler", *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            start_new_session=True,  # an interrupt of the kernel must not end it before the run
        )
    except (SensorError, OSError) as error:
        line = sampler.header(None, period, node, devices=[], reason=str(error))
        with suppress(OSError), path.open("a", encoding="utf-8") as stream:
            sampler.write(stream, line)
        return None


def _period(environment: Mapping[str, str]) -> float:
    value = environment.get(PERIOD_VARIABLE, str(PERIOD_SECONDS))
    period = number(value)
    if period == 0:
        raise SensorError(f"{PERIOD_VARIABLE} is 0")
    if period is None or not sampler.SHORTEST_SECONDS <= period <= sampler.LONGEST_SECONDS:
        raise SensorError(
            f"{PERIOD_VARIABLE}={value!r} is not between {sampler.SHORTEST_SECONDS} and "
            f"{sampler.LONGEST_SECONDS:.0f} seconds"
        )
    return period


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the sampler's input, which ends it after a last sample; kill it if it stays."""
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # stuck in the driver: it dies when that answers
            process.wait(_END_SECONDS)


def temperature_celsius(environment: Mapping[str, str] = os.environ) -> float | None:
    """Return the temperature of the hottest visible GPU in °C, None where nothing reports it."""
    for vendor in ("nvidia", "amd"):
        rows = sampler.asked(vendor, lambda sensor: sensor.read(), environment)
        found = [float(row["temperature_celsius"]) for row in rows if "temperature_celsius" in row]
        if found:
            return max(found)
    return None
