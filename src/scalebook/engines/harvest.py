"""Steps and observed configuration of a vendor's trainer, from what it printed.

The same readers as for logs from elsewhere. What the log does not tell stays unknown: nothing that
was only asked for is written down as observed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scalebook.errors import IngestError
from scalebook.logs.dialects.registry import read
from scalebook.logs.ingest.log_config import LogConfig, complete, observe
from scalebook.logs.ingest.steps import steps_of
from scalebook.logs.ingest.write import observed_settings
from scalebook.logs.job import Job
from scalebook.record import StepRecord
from scalebook.store import write_json
from scalebook.untrusted import replaced

LOG = "train.log"
# Dialects that each engine may print in.
DIALECTS: Mapping[str, tuple[str, ...]] = {
    "nemo": ("nemo2", "nemo1", "megatron-bridge", "megatron-lm"),
    "primus": ("primus-megatron", "megatron-lm"),
}
_NEEDED = ("world_size", "global_batch_size", "sequence_length")


def harvest(directory: Path, requested: Mapping[str, Any]) -> tuple[str, ...]:
    """Write steps.jsonl and observed.json of a run from its train.log; return notes about it.

    Nothing is written where the log is in no dialect of the engine: then the run has no steps.
    """
    engine = str(requested.get("engine"))
    try:
        content = read(directory / LOG)
    except IngestError as error:
        return (str(error),)
    family = content.dialect.name
    jobs = [job for job in content.jobs if len(job.table)]
    if not jobs:
        return (f"No training step of engine {engine!r} was found in its log.",)
    if family not in DIALECTS.get(engine, ()):
        return (f"The log is in the dialect {family!r}, which engine {engine!r} does not print.",)
    job = jobs[-1]  # a log of several attempts: the last one is the run
    alone = observe(job)
    values = observed_settings(alone) | {"engine": engine}
    told = dict(sorted(alone.provenance.items()))
    environment: dict[str, Any] = {"engine_log": {"dialect": family, "told": told}}
    device = job.details.get("device")
    if isinstance(device, str):
        environment["accelerator"] = device
    write_json(directory / "observed.json", {"observed": values, "environment": environment})
    with replaced(directory / "steps.jsonl") as stream:
        for step in _steps(job, _with_requested(job, alone, requested), requested):
            stream.write(f"{step.model_dump_json()}\n".encode())
    return (f"The steps are those that engine {engine!r} printed.", *alone.notes)


def _with_requested(job: Job, alone: LogConfig, requested: Mapping[str, Any]) -> LogConfig:
    """Return what a step's tokens are counted from: what the log says, else what was requested."""
    known = LogConfig(dict(alone.values), dict(alone.provenance), dict(alone.origin))
    for name in _NEEDED:
        value = requested.get(name)
        if name not in known.values and isinstance(value, int):
            known.put(name, value, "supplied")
    complete(job, known)
    return known


def _steps(job: Job, known: LogConfig, requested: Mapping[str, Any]) -> Iterator[StepRecord]:
    """Yield the steps with the phases that the configuration sets, not those of a guess."""
    warmup = requested.get("warmup_steps")
    for step in steps_of(job, known):
        if not isinstance(warmup, int):
            yield step
        elif step.step == 1:
            yield step.model_copy(update={"phase": "startup"})
        else:
            phase = "warmup" if step.step <= warmup else "measured"
            yield step.model_copy(update={"phase": phase})


def is_foreign(requested: Mapping[str, Any]) -> bool:
    """Return whether a run was trained by an engine that does not write our files."""
    engine = requested.get("engine")
    return isinstance(engine, str) and engine in DIALECTS
