"""The parts of a probe, one after the other; each is on disk before the next begins.

Between them stands what the drivers say: links, clocks and power.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from scalebook import host, project, store
from scalebook.facts import catalog
from scalebook.measure.probes import Matmul, Probe, ProbeRequest, Sample, Skipped
from scalebook.measure.probes.files import FILE, summarise
from scalebook.measure.probes.topology import parse_nvlink
from scalebook.probe.measurement import compute, timing, transfers
from scalebook.probe.measurement.compute import Moment, Sampler
from scalebook.probe.measurement.timing import Budget, Rank
from scalebook.running.devices import sampler
from scalebook.running.devices.sensor import Row, Sensor
from scalebook.train import world
from scalebook.train.world import output

# Parts of the time; without other processes the collectives' goes to the rest.
SHARES = {"sweep": 0.25, "models": 0.25, "sustained": 0.12, "copies": 0.05, "attention": 0.08}
COLLECTIVES = 0.25


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
        shares = SHARES if self.here.size == 1 else {**SHARES, "collectives": COLLECTIVES}
        return self.seconds * shares[part] / sum(shares.values())

    def budget(self, part: str) -> Budget:
        """Return the time of a part, from now on."""
        end = time.perf_counter() + self.share(part)
        return Budget(end, self.skipped, self.here, self.show)

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
    progress.keep(copies=transfers.measured_copies(progress.budget("copies")))
    models = [catalog.model(name) for name in request.models]
    plain = [shape for shape in models if shape.mla is None]
    rows = compute.measured_attention(plain, request, progress.budget("attention"))
    here.barrier()
    progress.keep(attention=rows)
    if here.size > 1:
        budget = progress.budget("collectives")
        progress.keep(collectives=transfers.measured_collectives(budget))
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
            "limits": limits(),
        },
        "topology": topology(),
    }


def _matmuls(request: ProbeRequest, progress: ProbeProgress) -> list[Matmul]:
    here = progress.here
    found: list[Matmul] = []
    parts = {"sweep": compute.sweep_cases(here), "models": compute.model_cases(request, here)}
    for part, members in parts.items():
        found += compute.measured_matmuls(list(members), progress.budget(part))
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
    sample: Sampler = samples if here.rank == 0 else lambda _: []
    row = compute.sustained(size, here, progress.share("sustained"), sample)
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


def limits() -> list[Row]:
    """Return name, power cap (W) and highest clock (MHz) of each device, as its driver says."""
    return _asked(lambda sensor: sensor.devices())


def samples(moment: Moment) -> list[Sample]:
    """Return clocks, power and temperature of each device at the moment."""
    names = ("clock_mhz", "memory_clock_mhz", "power_watts", "temperature_celsius")
    rows = _asked(lambda sensor: sensor.read())
    return [
        Sample(device=row["gpu"], moment=moment, **{name: row.get(name) for name in names})
        for row in rows
    ]


def _asked(question: Callable[[Sensor], list[Row]]) -> list[Row]:
    if not torch.cuda.is_available():
        return []
    return sampler.asked("amd" if torch.version.hip else "nvidia", question)
