"""telemetry*.jsonl of a run directory -> a series of readings for each device."""

from __future__ import annotations

import fnmatch
import itertools
import math
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, cast

from pydantic_core import from_json

from scalebook import untrusted
from scalebook.record import number_of

FILES = "telemetry*.jsonl"
_TIME = itemgetter("time")
MOST_DEVICES = 4096


class Reading(NamedTuple):  # a run has thousands: a dataclass takes three times as long
    """One quantity of one device at one moment: seconds since 1970, and its value."""

    time: float
    value: float


@dataclass(frozen=True, slots=True)
class Device:
    """All readings of one GPU or CPU package, in order of time."""

    name: str  # "GPU 3", with its node where there are several
    rows: tuple[Mapping[str, Any], ...]
    power_cap_watts: float | None = None
    max_clock_mhz: float | None = None

    def series(self, column: str) -> list[Reading]:
        """Return the readings of a quantity, only those that are finite numbers."""
        values = _numbers([row.get(column) for row in self.rows])
        pairs = zip(map(_TIME, self.rows), values, strict=True)
        return [Reading(time, value) for time, value in pairs if value is not None]

    def values(self, column: str) -> list[float]:
        """Return the values of a quantity without their times."""
        values = _numbers([row.get(column) for row in self.rows])
        return [value for value in values if value is not None]

    def within(self, begin: float, end: float) -> Device:
        """Return the device with its readings between two times."""
        first = bisect_left(self.rows, begin, key=_TIME)
        rows = self.rows[first : bisect_right(self.rows, end, key=_TIME)]
        return Device(self.name, rows, self.power_cap_watts, self.max_clock_mhz)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What was read during a run; ``reason`` says why there is nothing, or why it ended early."""

    devices: tuple[Device, ...]
    source: str | None = None
    period_seconds: float | None = None
    reason: str | None = None


NOTHING = "The run directory contains no telemetry: nothing sampled the devices."


def read(directory: Path) -> Telemetry:
    """Return the telemetry of a run directory; a line that is not an object is left out."""
    lines = [line for path in _files(directory) for line in _lines(path)]
    said = [line for line in lines if "kind" in line]
    heads = [line for line in said if line["kind"] == "sampler"]
    ends = [line for line in said if line["kind"] == "end"]
    rows = [line for line in lines if "kind" not in line]
    times = _numbers([row.get("time") for row in rows])
    rows = [row for row, time in zip(rows, times, strict=True) if time is not None]
    reasons = [reason for line in (*heads, *ends) if isinstance(reason := line.get("reason"), str)]
    if not lines:
        reasons = [NOTHING]
    elif not rows and not reasons:
        reasons = ["The telemetry contains no sample with a time."]
    sources = [source for line in heads if isinstance(source := line.get("source"), str)]
    return Telemetry(
        devices=_devices(rows, heads),
        source=sources[0] if sources else None,
        period_seconds=_period(heads, rows),
        reason=reasons[0] if reasons else None,
    )


def _files(directory: Path) -> list[Path]:
    """Return the files of telemetry in a directory, in order: a tenth of the time of a glob."""
    try:
        with os.scandir(directory) as entries:
            names = fnmatch.filter([entry.name for entry in entries], FILES)
    except OSError:
        return []
    return [directory / name for name in sorted(names)]


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        for block in untrusted.blocks(path):
            for value in _objects(block):
                if isinstance(value, dict):
                    yield cast("dict[str, Any]", value)
    except OSError as error:
        yield {"kind": "end", "reason": f"{path.name} cannot be read: {error.strerror}"}


def _objects(block: bytes) -> Iterator[Any]:
    """Yield the JSON values of lines, all at once where none is damaged."""
    with suppress(ValueError):
        whole: list[Any] = from_json(b"[" + block.replace(b"\n", b",") + b"]")
        if len(whole) == block.count(b"\n") + 1:
            yield from whole
            return
    for line in block.split(b"\n"):
        with suppress(ValueError):  # cut off by the end of its writer, or not ours
            yield from_json(line)


def _numbers(values: Sequence[Any]) -> Sequence[float | None]:
    """Return each value as ``number_of`` does: at once where all are plain numbers, as in most."""
    plain = values and set(map(type, values)) <= {float, int}
    if plain and -1e300 < min(values) <= max(values) < 1e300 and not math.isnan(sum(values)):
        return list(map(float, values))
    return list(map(number_of, values))


def _key(line: Mapping[str, Any]) -> tuple[int, str, int]:
    """Return the node, kind and number of a line's device; 0 where it names none."""
    kind, name = ("CPU", "cpu") if "cpu" in line else ("GPU", "gpu")
    node, number = number_of(line.get("node")), number_of(line.get(name))
    return int(node or 0), kind, int(number or 0)


def _devices(
    rows: Sequence[Mapping[str, Any]], heads: Sequence[Mapping[str, Any]]
) -> tuple[Device, ...]:
    found: dict[tuple[int, str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        key = _key(row)
        if key in found:
            found[key].append(row)
        elif len(found) < MOST_DEVICES:
            found[key] = [row]
    static = dict(_static(heads))
    several = len({node for node, _, _ in found}) > 1
    devices: list[Device] = []
    for key in sorted(found):
        node, kind, number = key
        known = static.get(key, {})
        devices.append(
            Device(
                name=f"node {node} {kind} {number}" if several else f"{kind} {number}",
                rows=tuple(sorted(found[key], key=_TIME)),
                power_cap_watts=number_of(known.get("power_cap_watts")),
                max_clock_mhz=number_of(known.get("max_clock_mhz")),
            )
        )
    return tuple(devices)


def _static(
    heads: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[tuple[int, str, int], Mapping[str, Any]]]:
    """Yield what the samplers said of each device when they began."""
    for head in heads:
        listed = head.get("devices")
        for entry in cast("list[Any]", listed) if isinstance(listed, list) else []:
            if isinstance(entry, dict):
                device = cast("dict[str, Any]", entry)
                yield _key({**device, "node": head.get("node")}), device


def _period(heads: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the sampling period in seconds: as recorded, else the median step of a device."""
    stated = [period for head in heads if (period := number_of(head.get("period_seconds")))]
    if stated:
        return max(stated)
    first = [row["time"] for row in rows if _key(row) == _key(rows[0])]
    steps = [after - before for before, after in itertools.pairwise(first)]
    positive = [step for step in steps if step > 0]
    return median(positive) if positive else None
