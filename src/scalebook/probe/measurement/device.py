"""What the drivers say: identity, links, clocks and power. Text is read defensively."""

from __future__ import annotations

import csv
import json
import re
from typing import Any, Literal, cast

import torch

from scalebook.measure.probes import Sample
from scalebook.measure.probes.topology import parse_nvidia_matrix, parse_nvlink, parse_rocm_matrix
from scalebook.train.machine import output

SAMPLE_QUERY = "index,clocks.sm,clocks.mem,power.draw,temperature.gpu"
LIMIT_QUERY = "index,clocks.max.sm,clocks.max.mem,power.limit,power.max_limit"
_CLOCK = re.compile(r"\(?(\d+)\s*Mhz\)?", re.IGNORECASE)

Moment = Literal["idle", "loaded"]


def topology() -> dict[str, Any]:
    """Return how the devices are linked, as far as a tool of the vendor tells it."""
    if not torch.cuda.is_available():
        return {}
    if torch.version.hip:
        return parse_rocm_matrix(output("rocm-smi", "--showtopo") or "")
    matrix = parse_nvidia_matrix(output("nvidia-smi", "topo", "-m") or "")
    links = parse_nvlink(output("nvidia-smi", "nvlink", "--status") or "")
    return matrix | ({"nvlink_gb_per_second": links} if links else {})


def limits() -> list[dict[str, float | None]]:
    """Return the highest clocks and the power caps of each device, where the driver tells."""
    if not torch.cuda.is_available() or torch.version.hip:
        return []
    names = ("device", "max_clock_mhz", "max_memory_clock_mhz", "power_cap_watts", "max_cap_watts")
    return [dict(zip(names, row, strict=False)) for row in _query(LIMIT_QUERY)]


def samples(moment: str) -> list[Sample]:
    """Return clocks, power and temperature of each device at this moment."""
    if not torch.cuda.is_available():
        return []
    when = cast("Moment", moment)
    if torch.version.hip:
        text = output("rocm-smi", "--showclocks", "--showpower", "--showtemp", "--json")
        return parse_rocm_samples(text or "", when)
    names = ("clock_mhz", "memory_clock_mhz", "power_watts", "temperature_celsius")
    return [
        Sample(device=int(index), moment=when, **dict(zip(names, values, strict=False)))
        for index, *values in _query(SAMPLE_QUERY)
        if index is not None
    ]


def _query(fields: str) -> list[list[float | None]]:
    """Return the numbers that nvidia-smi answers, a row a device."""
    text = output("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits") or ""
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return [[_number(cell) for cell in row] for row in rows if row]


def _number(text: object) -> float | None:
    try:
        return float(str(text))
    except ValueError:
        return None


def parse_rocm_samples(text: str, moment: Moment) -> list[Sample]:
    """Return what the JSON of rocm-smi says of each card; a name it does not use is null."""
    try:
        cards: Any = json.loads(text)
    except ValueError:
        return []
    if not isinstance(cards, dict):
        return []
    found: list[Sample] = []
    for name, fields in cast("dict[str, Any]", cards).items():
        if re.fullmatch(r"card\d+", name) and isinstance(fields, dict):
            values = cast("dict[str, Any]", fields)
            found.append(
                Sample(
                    device=int(name[4:]),
                    moment=moment,
                    clock_mhz=_clock(values, "sclk"),
                    memory_clock_mhz=_clock(values, "mclk"),
                    power_watts=_first(values, "power (w)"),
                    temperature_celsius=_first(values, "junction"),
                )
            )
    return found


def _clock(fields: dict[str, Any], name: str) -> float | None:
    for key, value in fields.items():
        match = _CLOCK.search(str(value))
        if key.lower().startswith(f"{name} clock speed") and match:
            return float(match[1])
    return None


def _first(fields: dict[str, Any], part: str) -> float | None:
    values = (_number(value) for key, value in fields.items() if part in key.lower())
    return next((value for value in values if value is not None), None)
