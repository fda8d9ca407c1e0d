"""Which runs of a plan need not be started: a smaller configuration has run out of memory."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from scalebook import identity, store
from scalebook.config import RunConfig
from scalebook.errors import RecordError
from scalebook.facts.feasibility import growth
from scalebook.facts.feasibility.known import config_of, ran_out
from scalebook.record import RunRecord, object_of


@dataclass(frozen=True, slots=True)
class Inference:
    """Why a configuration is taken to run out of memory, and the run that shows it."""

    run_id: str
    sentence: str


@dataclass(slots=True)
class Broken:
    """The newest measured end of every configuration that ran out of the device's memory.

    ``accelerator`` is this machine's device: a run on another one shows nothing about it. None
    where it is not known, or for a CPU.
    """

    accelerator: str | None = None
    _by_key: dict[str, tuple[RunConfig, str]] = field(
        default_factory=dict[str, tuple[RunConfig, str]]
    )
    _inferred: set[str] = field(default_factory=set[str])

    def add(self, record: RunRecord) -> None:
        """Take in one record; a later run that fits makes an earlier one that did not void."""
        if record.source == "inferred" and record.config_hash:
            self._inferred.add(record.config_hash)
        config = config_of(record)
        if record.source != "measured" or config is None or not self._same_device(record):
            return
        if ran_out(record):
            self._by_key[identity.memory(config)] = config, record.run_id
        elif record.status == "completed":
            self._by_key.pop(identity.memory(config), None)

    def _same_device(self, record: RunRecord) -> bool:
        named = record.environment.get("accelerator")
        return named is None or self.accelerator is None or named == self.accelerator

    def against(self, config: RunConfig) -> Inference | None:
        """Return why a configuration cannot fit, None where it has to be tried.

        A configuration that itself ran out of memory is tried again; its other repeats are not.
        """
        own = config.config_hash()
        for smaller, run_id in self._by_key.values():
            grown = growth(smaller, config)
            if grown is None or (not grown and smaller.config_hash() == own):
                continue
            changes = ", ".join(f"{name}={value}" for name, value in grown.items())
            what = f"with {changes} it needs no less" if changes else "it differs only in repeat"
            return Inference(
                run_id,
                f"Not run, inferred: {run_id} ran out of memory, and {what}. --no-prune runs it.",
            )
        return None

    def is_recorded(self, config: RunConfig) -> bool:
        """Return whether a record already says that this configuration was inferred."""
        return config.config_hash() in self._inferred


def broken(runs: Path, accelerator: str | None, *, fresh: bool = False, job_id: str = "") -> Broken:
    """Return what the records of a folder show; nothing yet where all is to run ``fresh``.

    With ``job_id`` only the records of that job of Slurm count.
    """
    found = Broken(accelerator)
    for directory in () if fresh else store.run_directories(runs):  # the oldest first
        with suppress(RecordError):
            record = store.read_record(directory)
            if not job_id or object_of(record.environment.get("slurm")).get("job_id") == job_id:
                found.add(record)
    return found


def inferences(configs: Iterable[RunConfig], known: Broken) -> dict[str, Inference]:
    """Return by hash the configurations that need not be started, as far as it is known before."""
    found = ((config.config_hash(), known.against(config)) for config in configs)
    return {name: inference for name, inference in found if inference is not None}
