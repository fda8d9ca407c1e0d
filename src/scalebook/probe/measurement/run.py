"""The parts of a probe, one after the other; each is on disk before the next begins."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scalebook import host, project, store
from scalebook.facts import catalog
from scalebook.measure.probes import Matmul, Probe, ProbeRequest, Sample, Skipped
from scalebook.measure.probes.files import FILE, summarise
from scalebook.probe.measurement import (
    attention,
    collectives,
    device,
    matmul,
    memory,
    place,
    sustained,
)
from scalebook.probe.measurement.place import Budget, Rank
from scalebook.train import machine

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
    here = place.join(request)
    progress = ProbeProgress(
        directory, _facts(request, directory, variables), here, request.seconds
    )
    progress.show(f"met {here.size} processes after {time.perf_counter() - started:.1f} s")
    progress.keep()
    matmuls = _matmuls(request, progress)
    _sustained(matmuls, progress)
    copies = memory.measured(here, progress.budget("copies", memory.cases(here)), progress.show)
    progress.keep(copies=copies)
    models = [catalog.model(name) for name in request.models]
    plain = [shape for shape in models if shape.mla is None]
    budget = progress.budget("attention", attention.cases(plain, here))
    rows = attention.measured(plain, request, here, budget, progress.show)
    here.barrier()
    progress.keep(attention=rows)
    if here.size > 1:
        budget = progress.budget("collectives", collectives.cases(here))
        progress.keep(collectives=collectives.measured(here, budget, progress.show))
    else:
        progress.skipped.append(Skipped(what="collectives", reason="one process has no peer"))
        progress.keep()
    place.leave()


def _facts(request: ProbeRequest, directory: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of probe.json that are known before anything is measured."""
    return {
        "probe_id": directory.name.removeprefix(store.PARTIAL_PREFIX),
        "request": request.model_dump(),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "identity": machine.identity(request.world_size).model_dump(),
        "environment": {
            **host.facts(variables, project.root()),
            **machine.accelerator(),
            **machine.software(),
            "container": machine.containers(),
            "limits": device.limits(),
        },
        "topology": device.topology(),
    }


def _matmuls(request: ProbeRequest, progress: ProbeProgress) -> list[Matmul]:
    here = progress.here
    cases = list(matmul.sweep_cases(here))
    sweep = matmul.measured(cases, here, progress.budget("sweep", len(cases)), progress.show)
    here.barrier()
    progress.keep(matmuls=sweep)
    cases = list(matmul.model_cases(request, here))
    layers = matmul.measured(cases, here, progress.budget("models", len(cases)), progress.show)
    here.barrier()
    progress.keep(matmuls=[*sweep, *layers])
    return [*sweep, *layers]


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
    sampler = device.samples if here.rank == 0 else _nothing
    row = sustained.sustained(size, here, progress.share("sustained"), sampler)
    progress.keep(sustained=[row])
    progress.show(f"sustained {row.sustained_tflops:.4g}, burst {row.burst_tflops:.4g} TFLOP/s")


def _nothing(_: str) -> list[Sample]:
    return []
