"""The process that reads the devices during a run and appends to its telemetry file.

``python -m scalebook.running.devices.sampler FILE VENDOR PERIOD_SECONDS DEVICES NODE``. Its
standard input is a pipe from the runner: when that closes, even by the runner's death, it takes a
last sample and ends. The first line of the file says what samples, how often and which devices;
then comes one line per device and sample; the last line says how many there were and what
sampling cost.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TextIO

from scalebook.running.devices.sensor import Row, Sensor, SensorError

SHORTEST_SECONDS = 0.05  # a driver's own readings change ten to twenty times a second
LONGEST_SECONDS = 3600.0


def open_sensor(vendor: str, environment: Mapping[str, str], count: int | None) -> Sensor:
    """Return the reader of a vendor's devices: the first ``count``, or all of them.

    Raises:
        SensorError: they cannot be read.
    """
    # Imported where they are needed: the sampler of a CPU run loads no reader of GPUs.
    if vendor == "nvidia":
        from scalebook.running.devices.nvml import NVML

        return NVML(environment, count)
    if vendor == "amd":
        from scalebook.running.devices.amd import AMDSMI

        return AMDSMI(environment, count)
    from scalebook.running.devices.rapl import RAPL

    return RAPL()


def asked(
    vendor: str,
    question: Callable[[Sensor], list[Row]],
    environment: Mapping[str, str] = os.environ,
) -> list[Row]:
    """Return what all visible devices of a vendor answer; nothing where they cannot be read."""
    with suppress(SensorError), closing(open_sensor(vendor, environment, None)) as sensor:
        return question(sensor)
    return []


def header(source: str | None, period: float, node: int, **more: Any) -> dict[str, Any]:
    return {"kind": "sampler", "source": source, "period_seconds": period, "node": node, **more}


def write(stream: TextIO, line: Mapping[str, Any]) -> None:
    """Append one line, on disk when this returns."""
    stream.write(json.dumps(line, allow_nan=False) + "\n")
    stream.flush()


def main(arguments: Sequence[str]) -> int:
    """Sample until standard input ends; return 0 even if nothing can be read."""
    path, vendor, period_text, count_text, node_text = arguments
    period, node = float(period_text), int(node_text)
    with Path(path).open("a", encoding="utf-8") as stream:
        try:
            sensor = open_sensor(vendor, os.environ, int(count_text) or None)
        except SensorError as error:
            write(stream, header(None, period, node, devices=[], reason=str(error)))
            return 0
        first = header(sensor.source, period, node, devices=sensor.devices(), reason=None)
        write(stream, first)
        try:
            count, reason = sample(sensor, stream, period, node)
        finally:
            sensor.close()
        end = {"kind": "end", "node": node, "samples": count, "reason": reason}
        write(stream, {**end, "cpu_seconds": round(time.process_time(), 3)})
    return 0


def sample(sensor: Sensor, stream: TextIO, period: float, node: int) -> tuple[int, str | None]:
    """Write samples until the owner is gone; return how many, and why they ended early."""
    count, ended = 0, False
    due = time.monotonic()
    while True:
        try:
            now, rows = time.time(), sensor.read()
        except SensorError as error:
            return count, str(error)
        for row in rows:
            write(stream, {"time": round(now, 3), "node": node, **row})
        count += len(rows)
        if ended:
            return count, None
        # The next whole period: a slow reading leaves samples out rather than pile them up.
        due += period * max(1, -((due - time.monotonic()) // period))
        ended = _owner_gone(due - time.monotonic())


def _owner_gone(seconds: float) -> bool:
    """Wait ``seconds``, or until standard input has ended; return whether it has."""
    ready, _, _ = select.select([sys.stdin], [], [], max(0.0, seconds))
    return bool(ready)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
