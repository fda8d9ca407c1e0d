"""Find and read probes: each is a directory ``probes/PROBE_ID`` of a folder of runs.

A probe is no run: its directory has no record.json, and nothing that counts runs looks into it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from scalebook.errors import RecordError
from scalebook.facts import catalog
from scalebook.measure.probes import SCHEMA_VERSION, Ceilings, MachineIdentity, Matmul, Probe
from scalebook.measure.probes.shapes import products
from scalebook.store import newer_schema, read_model, run_directories

FOLDER = "probes"
FILE = "probe.json"
ABSENT = (
    "No probe of this machine with this software is among the runs. Make one with 'scalebook probe'"
)
# The layouts of a training step; the accumulating one is an alternative to the last.
STEP_LAYOUTS = ("forward", "dgrad", "wgrad")


def probe_directories(runs: Path) -> Iterator[Path]:
    """Return every finished probe's directory of a folder of runs, oldest name first."""
    return run_directories(runs / FOLDER, FILE)


def read_probe(directory: Path) -> Probe:
    """Return the probe of a directory.

    Raises:
        RecordError: probe.json is missing, is not valid, or is of a newer schema.
    """
    path = directory / FILE
    probe, _ = read_model(path, Probe)
    if probe.schema_version > SCHEMA_VERSION:
        raise newer_schema(path, probe.schema_version, SCHEMA_VERSION)
    return probe


def read_probes(runs: Path) -> tuple[tuple[Probe, ...], tuple[str, ...]]:
    """Return the readable probes of a folder of runs and a sentence for each that is not."""
    found: list[Probe] = []
    problems: list[str] = []
    for path in probe_directories(runs):
        try:
            found.append(read_probe(path))
        except RecordError as error:
            problems.append(str(error))
    return tuple(found), tuple(problems)


def newest(probes: Iterable[Probe], fits: Callable[[MachineIdentity], bool]) -> Probe | None:
    """Return the newest completed probe of a machine and software that fit, None without any."""
    fitting = (
        probe
        for probe in probes
        if probe.status == "completed" and probe.identity and fits(probe.identity)
    )
    return max(fitting, key=lambda probe: probe.started_at or "", default=None)


def ceilings(runs: Path, identity: MachineIdentity) -> dict[str, Any]:
    """Return this machine's ceilings for a run's environment, or null and the reason."""
    probe = newest(read_probes(runs)[0], lambda one: one.covers(identity))
    if probe is None or probe.ceilings is None:
        return {"ceilings": None, "ceilings_reason": ABSENT}
    return {"ceilings": probe.ceilings.model_dump(mode="json")}


def summarise(probe: Probe) -> Ceilings:
    """Return the ceilings that a probe's rows show."""
    memory = [row.gib_per_second for row in probe.copies if row.kind == "device_to_device"]
    reduced = (
        (str(row.group_size), row.bus_gb_per_second)
        for row in probe.collectives
        if row.operation == "all_reduce"
    )
    return Ceilings(
        probe=probe.probe_id,
        matmul_tflops=highest((row.precision, row.tflops) for row in probe.matmuls),
        sustained_matmul_tflops=highest(
            (row.precision, row.sustained_tflops) for row in probe.sustained
        ),
        model_matmul_tflops=model_rates(probe.layers),
        copy_gib_per_second=max(memory, default=None),
        all_reduce_bus_gb_per_second=highest(reduced),
    )


def highest(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the largest value of each name."""
    found: dict[str, float] = {}
    for name, value in pairs:
        found[name] = max(value, found.get(name, value))
    return found


def model_rates(rows: Iterable[Matmul]) -> dict[str, float]:
    """Return the rate (TFLOP/s) of all products of a micro batch, forward and backward.

    Keys are ``model/tpN/precision``. Total FLOPs over total time; a set with a layer or a layout
    that was not measured has no rate.
    """
    groups: dict[str, list[Matmul]] = defaultdict(list)
    for row in rows:
        if row.layout in STEP_LAYOUTS and row.count:
            key = f"{row.model}/tp{row.tensor_parallel_size}/{row.precision}"
            groups[key].append(row)
    return {key: _rate(group) for key, group in groups.items() if _is_whole(group)}


def _is_whole(group: list[Matmul]) -> bool:
    """Return whether every layer of the model was measured in every layout."""
    row = group[0]
    shape = catalog.model(row.model or "")
    layers = {item.layer for item in products(shape, 1, row.tensor_parallel_size or 1)}
    seen = {(row.layer, row.layout) for row in group}
    return all((layer, layout) in seen for layer in layers for layout in STEP_LAYOUTS)


def _rate(group: list[Matmul]) -> float:
    total = sum(row.flops * (row.count or 0) for row in group)
    seconds = sum(row.flops * (row.count or 0) / (row.tflops * 1e12) for row in group)
    return total / seconds / 1e12
