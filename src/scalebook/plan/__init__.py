"""A plan: a TOML matrix of runs, expanded for one platform and checked before anything starts.

    [plan]      name, description
    [defaults]  fields of RunConfig, below every [[runs]] table
    [[runs]]    fields of RunConfig; a list stands for each of its values, lists multiply out

Beside the fields of RunConfig a table may have ``global_batch_size_per_gpu`` (the batch grows with
world_size: weak scaling), ``platforms`` (the table counts on those alone), ``strategy`` with names
of the catalog in place of sizes, and ``sequence_parallel = "auto"`` (on where tensor_parallel_size
is above 1). Without ``precision`` a run has the platform's default, without ``nodes`` as many as
world_size fills, without ``expert_tensor_parallel_size`` experts that expert parallelism does not
spread are split like the layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalebook import catalog, legality
from scalebook.catalog.types import Platform
from scalebook.config import RunConfig
from scalebook.errors import CatalogError, ConfigError
from scalebook.legality import Fit, Problem
from scalebook.memory import MemoryEstimate
from scalebook.plan.document import Table, read_document
from scalebook.plan.expand import expand

__all__ = ["Plan", "PlannedRun", "load_plan"]


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One configuration of a plan with its verdict; illegal ones stay, with their reason."""

    config: RunConfig
    problems: tuple[Problem, ...]
    memory: MemoryEstimate | None = None  # None where the run is illegal
    fit: Fit | None = None

    @property
    def fits(self) -> bool | None:
        """Whether the predicted memory fits; None where it cannot be told (``fit.reason``)."""
        return self.fit.fits if self.fit else None

    @property
    def legal(self) -> bool:
        """Whether nothing forbids the run."""
        return legality.is_legal(self.problems)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run, in the order of the file."""

    name: str
    description: str
    runs: tuple[PlannedRun, ...]


def load_plan(
    path: Path,
    *,
    platform: str,
    world_size: int | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Plan:
    """Return the plan of a file for one platform.

    ``world_size`` says how many devices there are: runs that name no world size use all of them,
    runs that need more are marked illegal. ``overrides`` replace RunConfig fields in every run.
    A configuration that the file describes twice is planned once.

    Raises:
        ConfigError: the file is malformed, or names something that does not exist.
    """
    target = catalog.platform(platform)
    document = read_document(path, overrides)
    configs: dict[str, RunConfig] = {}
    for number, table in enumerate(document.tables, start=1):
        try:
            for config in _configs(table, target, world_size):
                configs.setdefault(config.config_hash(), config)
        except (ConfigError, CatalogError) as error:
            raise ConfigError(f"{path}: [[runs]] {number}: {error}") from error
    runs = tuple(_planned(config, target, world_size) for config in configs.values())
    return Plan(document.name, document.description, runs)


def _configs(table: Table, platform: Platform, world_size: int | None) -> Iterator[RunConfig]:
    for parameters in expand(table, platform, world_size):
        catalog.model(parameters["model"])  # unknown names are refused here, with the file's name
        yield RunConfig.from_parameters(parameters)


def _planned(config: RunConfig, platform: Platform, available: int | None) -> PlannedRun:
    shape = catalog.model(config.model)
    accelerator = catalog.accelerator(platform.accelerator) if platform.accelerator else None
    room = None if platform.vendor == "cpu" else platform.gpus_per_node
    problems = legality.check(config, shape, accelerator=accelerator, gpus_per_node=room)
    if available is not None and config.world_size > available:
        message = f"world_size={config.world_size} is above the {available} devices available."
        problems = (Problem("devices", message), *problems)
    if not legality.is_legal(problems):
        return PlannedRun(config, problems)
    memory, fit = legality.fitting(config, shape, accelerator=accelerator, gpus_per_node=room)
    return PlannedRun(config, problems, memory, fit)
