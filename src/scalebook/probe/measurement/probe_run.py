"""The parts of a probe, one after the other; each is on disk before the next begins.

Between them stands what the drivers say: links, clocks and power. Their text is read defensively.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import torch

from scalebook import host, project, store
from scalebook.facts import catalog
from scalebook.measure.probes import Matmul, Probe, ProbeRequest, Sample, Skipped
from scalebook.measure.probes.files import FILE, summarise
from scalebook.measure.probes.topology import parse_nvlink
from scalebook.probe.measurement import compute, timing, transfers
from scalebook.probe.measurement.compute import Moment, Sampler
from scalebook.probe.measurement.timing import Budget, Rank
from scalebook.query import cells, number
from scalebook.train import world
from scalebook.train.world import output

# Parts of the time; without other processes the collectives' goes to the rest.
SHARES = {"sweep": 0.25, "models": 0.25, "sustained": 0.12, "copies": 0.05, "attention": 0.08}
COLLECTIVES = 0.25
SAMPLE_QUERY = "index,clocks.sm,clocks.mem,power.draw,temperature.gpu"
LIMIT_QUERY = "index,clocks.max.sm,clocks.max.mem,power.limit,power.max_limit"
_CLOCK = re.compile(r"\(?(\d+)\s*Mhz\)?", re.IGNORECASE)


@dataclass(slots=True)
class ProbeProgress:
    """What has been found so far, by the names of probe.json, and what was left out."""

    directory: Path
    values: dict[str, Any]
    here: Rank
    seconds: float
    skipped: list[Skipped] = field(default_factory=lambda: [])

    def show(self, text: str) -> None:
        """Print a line for whoever watches."""
        if self.here.rank == 0:
            print(text, flush=True)

    def share(self, part: str) -> float:
        """Return the seconds of a part."""
        shares = SHARES if self.here.size == 1 else {**SHARES, "collectives": COLLECTIVES}
        return self.seconds * shares[part] / sum(shares.values())

    def budget(self, part: str, cases: int) -> Budget:
        """Return the time of a part, from now on."""
        return Budget(time.perf_counter() + self.share(part), cases, self.skipped)

    def keep(self, **values: Any) -> None:
        """Write what has been found to the directory."""
        self.values |= values
        if self.here.rank != 0:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        probe = Probe.model_validate(
            {**self.values, "finished_at": now, "skipped": [s.model_dump() for s in self.skipped]}
        )
        probe = probe.model_copy(update={"ceilings": summarise(probe)})
        store.write_json(self.directory / FILE, probe.model_dump(mode="json"))


def run(
    request: ProbeRequest, directory: Path, variables: Mapping[str, str], started: float
) -> None:
    """Measure everything and write probe.json as it grows."""
    here = timing.join(request)
    progress = ProbeProgress(
        directory, _facts(request, directory, variables), here, request.seconds
    )
    progress.show(f"met {here.size} processes after {time.perf_counter() - started:.1f} s")
    progress.keep()
    matmuls = _matmuls(request, progress)
    _sustained(matmuls, progress)
    budget = progress.budget("copies", transfers.copy_cases(here))
    progress.keep(copies=transfers.measured_copies(here, budget, progress.show))
    models = [catalog.model(name) for name in request.models]
    plain = [shape for shape in models if shape.mla is None]
    budget = progress.budget("attention", compute.attention_cases(plain, here))
    rows = compute.measured_attention(plain, request, here, budget, progress.show)
    here.barrier()
    progress.keep(attention=rows)
    if here.size > 1:
        budget = progress.budget("collectives", transfers.collective_cases(here))
        progress.keep(collectives=transfers.measured_collectives(here, budget, progress.show))
    else:
        progress.skipped.append(Skipped(what="collectives", reason="one process has no peer"))
        progress.keep()
    timing.leave()


def _facts(request: ProbeRequest, directory: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of probe.json that are known before anything is measured."""
    return {
        "probe_id": directory.name.removeprefix(store.PARTIAL_PREFIX),
        "request": request.model_dump(),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "identity": world.identity(request.world_size).model_dump(),
        "environment": {
            **host.facts(variables, project.root()),
            **world.accelerator(),
            **world.software(),
            "container": world.containers(),
            "limits": limits(),
        },
        "topology": topology(),
    }


def _matmuls(request: ProbeRequest, progress: ProbeProgress) -> list[Matmul]:
    here = progress.here
    found: list[Matmul] = []
    parts = {"sweep": compute.sweep_cases(here), "models": compute.model_cases(request, here)}
    for part, members in parts.items():
        cases = list(members)
        budget = progress.budget(part, len(cases))
        found += compute.measured_matmuls(cases, here, budget, progress.show)
        here.barrier()
        progress.keep(matmuls=found)
    return found


def _sustained(matmuls: list[Matmul], progress: ProbeProgress) -> None:
    here = progress.here
    name = "bf16" if here.on_gpu else "fp32"
    squares = [row for row in matmuls if row.precision == name and row.model is None]
    best = max(squares, key=lambda row: row.tflops, default=None)
    # All processes must repeat the same product, also where another was best for one of them.
    size = int(here.agree(float(best.m if best else 0)))
    if size == 0:
        progress.skipped.append(Skipped(what="sustained rate", reason="no product was measured"))
        return
    sampler: Sampler = samples if here.rank == 0 else lambda _: []
    row = compute.sustained(size, here, progress.share("sustained"), sampler)
    progress.keep(sustained=[row])
    progress.show(f"sustained {row.sustained_tflops:.4g}, burst {row.burst_tflops:.4g} TFLOP/s")


# What the drivers say


def topology() -> dict[str, Any]:
    """Return how the devices are linked, as far as a tool of the vendor says."""
    matrix: dict[str, Any] = world.links()["topology"] or {}
    if not torch.cuda.is_available() or torch.version.hip:
        return matrix
    links = parse_nvlink(output("nvidia-smi", "nvlink", "--status") or "")
    return matrix | ({"nvlink_gb_per_second": links} if links else {})


def limits() -> list[dict[str, float | None]]:
    """Return the highest clocks and power caps of each device that the driver reports."""
    if not torch.cuda.is_available() or torch.version.hip:
        return []
    names = ("device", "max_clock_mhz", "max_memory_clock_mhz", "power_cap_watts", "max_cap_watts")
    return [dict(zip(names, row, strict=False)) for row in _query(LIMIT_QUERY)]


def samples(moment: Moment) -> list[Sample]:
    """Return clocks, power and temperature of each device at the moment."""
    if not torch.cuda.is_available():
        return []
    if torch.version.hip:
        text = output("rocm-smi", "--showclocks", "--showpower", "--showtemp", "--json")
        return parse_rocm_samples(text or "", moment)
    names = ("clock_mhz", "memory_clock_mhz", "power_watts", "temperature_celsius")
    return [
        Sample(device=int(index), moment=moment, **dict(zip(names, values, strict=False)))
        for index, *values in _query(SAMPLE_QUERY)
        if index is not None
    ]


def _query(fields: str) -> list[list[float | None]]:
    """Return the numbers that nvidia-smi answers, one row per device."""
    text = output("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits") or ""
    return [[number(cell) for cell in row] for row in cells(text)]


def parse_rocm_samples(text: str, moment: Moment) -> list[Sample]:
    """Return what the JSON of rocm-smi says of each card; a name it does not use is null."""
    try:
        cards: Any = json.loads(text)
    except ValueError:
        return []
    if not isinstance(cards, dict):
        return []
    named = cast("dict[str, dict[str, Any]]", cards)
    return [
        Sample(
            device=int(name[4:]),
            moment=moment,
            clock_mhz=_clock(fields, "sclk"),
            memory_clock_mhz=_clock(fields, "mclk"),
            power_watts=_first(fields, "power (w)"),
            temperature_celsius=_first(fields, "junction"),
        )
        for name, fields in named.items()
        if re.fullmatch(r"card\d+", name) and isinstance(cast("object", fields), dict)
    ]


def _clock(fields: dict[str, Any], name: str) -> float | None:
    for key, value in fields.items():
        match = _CLOCK.search(str(value))
        if key.lower().startswith(f"{name} clock speed") and match:
            return float(match[1])
    return None


def _first(fields: dict[str, Any], part: str) -> float | None:
    values = (number(value) for key, value in fields.items() if part in key.lower())
    return next((value for value in values if value is not None), None)
