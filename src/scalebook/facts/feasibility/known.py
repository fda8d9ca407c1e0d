"""What runs and the prediction say about memory: for each configuration whether it fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal

from scalebook import identity
from scalebook.config import RunConfig
from scalebook.errors import CatalogError, ConfigError
from scalebook.facts import catalog, legality
from scalebook.facts.legality import fit
from scalebook.facts.memory import StageMemory
from scalebook.record import RunRecord
from scalebook.settings import names
from scalebook.step_columns import Steps
from scalebook.store import Run

LARGEST = 10**15  # of any field: records come from anywhere
PROVING_STEPS = 2  # after the second step optimizer state and every buffer are allocated


@dataclass(frozen=True, slots=True)
class KnownMemory:
    """What is known of one configuration on one device: by its runs, by others or by prediction."""

    config: RunConfig
    accelerator: str | None
    verdict: Verdict | None
    evidence: Evidence
    reason: str
    run_ids: tuple[str, ...] = ()
    peak_memory_gib: float | None = None

    @property
    def key(self) -> tuple[str | None, str]:
        """What two runs must share to say the same about memory."""
        unknown = self.accelerator is None and self.config.platform != "cpu"
        device = self.run_ids[0] if unknown else self.accelerator
        return device, identity.memory(self.config)


def known(runs: Iterable[Run]) -> tuple[KnownMemory, ...]:
    """Return what the runs show, one value per configuration and device; repeats are merged.

    A measured run counts more than one of another source, whatever that says. Runs that broke
    before memory was full, and those whose configuration is not whole, show nothing.
    """
    runs = tuple(runs)
    devices = _devices(runs)
    shown = [one for run in runs if (one := _shown(run, devices))]
    return tuple(map(_merged, identity.alike(shown, lambda one: one.key)))


def ran_out(record: RunRecord) -> bool:
    """Return whether a run shows that its configuration is too large for the device's memory.

    A host that ran out of memory says nothing about a GPU; of a CPU run its memory is the device's.
    """
    if record.status != "out_of_memory":
        return False
    host = record.cause == "host_memory" or (
        record.cause is None and "host's memory" in (record.reason or "")
    )
    return not host or record.setting("platform") == "cpu"


def config_of(record: RunRecord) -> RunConfig | None:
    """Return the configuration that ran, as read back where it was.

    None where it is not whole, or has a size that no machine can have.
    """
    values = {
        name: record.observed[name]
        for name in WITHIN_OBSERVED
        if record.observed.get(name) is not None
    }
    try:
        config = RunConfig.from_parameters({**record.requested, **values})
    except ConfigError:
        return None
    sizes = (value for value in config.model_dump().values() if isinstance(value, int))
    return config if all(size <= LARGEST for size in sizes) else None


# The fields that decide about memory and that a trainer reads back under the same name and type.
# Of the kernels it reads back what "auto" came to, and layers offloaded of its own rank only.
WITHIN_OBSERVED = (*names("work", "layout"), "recompute")


def _shown(run: Run, devices: dict[str, str]) -> KnownMemory | None:
    record, config = run.record, config_of(run.record)
    if config is None:
        return None
    steps = len(run.steps)
    if ran_out(record):
        verdict: Verdict = "out_of_memory"
    elif record.status == "completed" or (
        steps >= PROVING_STEPS and record.status != "out_of_memory"
    ):
        verdict = "fits"
    else:
        return None
    device = record.environment.get("accelerator")
    peaks = Steps.of(run.steps).known("allocated_gib")
    return KnownMemory(
        config=config,
        accelerator=device if isinstance(device, str) else devices.get(config.platform),
        verdict=verdict,
        evidence=record.source,
        reason=record.reason or f"{steps} steps ran",
        run_ids=(record.inferred_from or record.run_id,),
        peak_memory_gib=max(peaks, default=None),
    )


def _devices(runs: Iterable[Run]) -> dict[str, str]:
    """Return the device of each platform, for runs that broke before they could name it.

    The one that all its other runs name, else the first name of the catalog's.
    """
    named: dict[str, set[str]] = {}
    for run in runs:
        device, platform = run.record.environment.get("accelerator"), run.record.setting("platform")
        if isinstance(platform, str):
            named.setdefault(platform, set()).update([device] if isinstance(device, str) else [])
    found = {name: next(iter(devices)) for name, devices in named.items() if len(devices) == 1}
    for name in named.keys() - found.keys():
        if device := catalog.device_of(name):
            found[name] = next(iter(device.device_names), device.name)
    return found


def _merged(same: list[KnownMemory]) -> KnownMemory:
    """Return what several runs of a configuration say together."""
    measured = [one for one in same if one.evidence == "measured"]
    same = measured or [one for one in same if one.evidence == same[0].evidence]
    broke = [one for one in same if one.verdict == "out_of_memory"]
    first = (broke or same)[0]
    peaks = [one.peak_memory_gib for one in same if one.peak_memory_gib is not None]
    edge = f"{len(broke)} of {len(same)} runs ran out of memory: at the edge. {first.reason}"
    return replace(
        first,
        reason=edge if 0 < len(broke) < len(same) else first.reason,
        run_ids=tuple(dict.fromkeys(run_id for one in same for run_id in one.run_ids)),
        peak_memory_gib=max(peaks, default=None),
    )


Verdict = Literal["fits", "out_of_memory"]
# measured, or the source of a run that was not measured here; inferred from another cell by
# ``order``; predicted by scalebook.facts.memory alone.
Evidence = Literal["measured", "ingested", "simulated", "published", "inferred", "predicted"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One configuration of the map.

    ``verdict`` is None where prediction and device are too close to tell, or nothing is known of
    the device's memory. GiB are of the fullest rank.
    """

    model: str
    platform: str
    accelerator: str | None  # as the driver said; None where no run tells
    engine: str
    world_size: int
    sequence_length: int
    global_batch_size: int
    precision: str
    data_parallel_sharding: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    virtual_pipeline_parallel_size: int
    context_parallel_size: int
    expert_parallel_size: int
    sequence_parallel: bool
    micro_batch_size: int
    recompute: str
    verdict: Verdict | None
    evidence: Evidence
    reason: str
    run_ids: tuple[str, ...]  # the runs that show it, or that it is inferred from
    peak_memory_gib: float | None
    predicted_gib: float | None
    capacity_gib: float | None


# What the runs of one map have in common; the rest is inside it.
SCOPE = (
    *("model", "platform", "accelerator", "engine", "world_size", "sequence_length", "precision"),
    *("data_parallel_sharding", "context_parallel_size", "expert_parallel_size"),
)
SETTINGS = tuple(name for name in Cell.__dataclass_fields__ if name in RunConfig.model_fields)


def scope_of(cell: Cell) -> tuple[object, ...]:
    """Return the key of the map that a cell belongs to."""
    return tuple(getattr(cell, name) for name in SCOPE)


PARTS = tuple(one.name for one in fields(StageMemory) if one.name != "stage")


@dataclass(frozen=True, slots=True)
class Predicted:
    """GiB of the fullest rank by part (PARTS and ``total``); None with a reason."""

    parts: Mapping[str, float] | None
    reason: str | None = None


def predictions(runs: Iterable[Run]) -> dict[str, Predicted]:
    """Return the prediction of each run by its id; equal configurations are counted once."""
    made: dict[str, Predicted] = {}
    found: dict[str, Predicted] = {}
    for run in runs:
        config = config_of(run.record)
        if config is None:
            found[run.record.run_id] = Predicted(None, "its configuration is incomplete")
            continue
        key = identity.memory(config)
        if key not in made:
            made[key] = predict(config)
        found[run.record.run_id] = made[key]
    return found


def predict(config: RunConfig) -> Predicted:
    try:
        shape = catalog.model(config.model)
    except CatalogError:
        return Predicted(None, f"the shape of {config.model} is not known")
    problems = legality.check(legality.Case(config, shape))
    if not legality.is_legal(problems):
        return Predicted(None, "its sizes do not fit together")
    return Predicted(fit.estimate(config, shape).parts_gib())
