"""A plan: a TOML matrix of runs, expanded for one platform and checked before anything starts.

    [plan]      name, description, kind, question; repeats, order, order_seed, cool_down
    [defaults]  fields of RunConfig, below every [[runs]] table
    [[runs]]    fields of RunConfig; a list stands for each of its values, lists multiply out

In addition to fields of RunConfig a table may have ``global_batch_size_per_gpu`` (the batch grows
with world_size: weak scaling), ``platforms`` (the table counts on those only), ``strategy`` with
names of the catalog instead of sizes, and ``sequence_parallel = "auto"`` (on where
tensor_parallel_size is above 1). Without ``precision`` a run has the platform's default, without
``nodes`` as many as world_size fills. Without ``expert_tensor_parallel_size``, experts that expert
parallelism does not distribute have the layers' tensor parallelism. Without
``last_pipeline_stage_layers`` the last stage has fewer layers, by what its output layer costs (0:
even stages).

``repeats = 3`` runs every configuration three times (their field ``repeat`` counts from 0),
``order = "random"`` shuffles them within each repeat by ``order_seed`` (drawn and recorded if not
given), ``cool_down = "30s"`` or ``"45C"`` waits between two runs. ``kind`` (of ``document.KINDS``)
and ``question`` say what the runs are to answer: the report answers each kind in its own form.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from scalebook.config import RunConfig
from scalebook.errors import CatalogError, ConfigError
from scalebook.facts import catalog, legality
from scalebook.facts.catalog.types import Platform
from scalebook.facts.legality import Problem
from scalebook.plan import defaults
from scalebook.plan.document import Plan, PlannedRun, Table, read_document
from scalebook.plan.schedule import Schedule, read_schedule, whole
from scalebook.settings import PARALLEL_SIZES

__all__ = ["Plan", "PlannedRun", "Schedule", "load_plan", "single_plan"]


def load_plan(
    path: Path,
    *,
    platform: str,
    world_size: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    scheduled: Mapping[str, Any] | None = None,
) -> Plan:
    """Return the plan of a file for one platform.

    ``world_size`` says how many devices there are: runs that name no world size use all of them,
    runs that need more are marked illegal. ``overrides`` replace RunConfig fields in every run,
    ``scheduled`` the file's keys of the schedule. A configuration that the file describes twice is
    planned once. A random order without a seed is left to ``Plan.shuffled``.

    Raises:
        ConfigError: the file is malformed, or names something that does not exist.
    """
    target = catalog.platform(platform)
    plan, tables = read_document(path, overrides, scheduled)
    configs: dict[str, RunConfig] = {}
    for number, table in enumerate(tables, start=1):
        try:
            for parameters in expand(table, target, world_size):
                catalog.model(parameters["model"])  # an unknown name is refused with the file's
                config = RunConfig.from_parameters(parameters)
                configs.setdefault(config.config_hash(), config)
            refuse_many(len(configs) * (plan.schedule.repeats or 1))
        except (ConfigError, CatalogError) as error:
            raise ConfigError(f"{path}: [[runs]] {number}: {error}") from error
    return _filled(plan, configs.values(), target, world_size)


def single_plan(
    fields: Mapping[str, Any],
    *,
    platform: str,
    world_size: int | None = None,
    scheduled: Mapping[str, Any] | None = None,
) -> Plan:
    """Return the plan of one configuration: these fields of RunConfig, each as it stands.

    What is left out has the defaults of a plan. ``strategy`` is a label here: sizes are given.

    Raises:
        ConfigError: a field is unknown, missing or malformed.
    """
    target = catalog.platform(platform)
    run: Table = {"platform": target.name, "precision": target.default_precision, **fields}
    run |= defaults.world(run, target, world_size)
    config = RunConfig.from_parameters(run)
    following = defaults.following(run, catalog.model(config.model))
    config = RunConfig.from_parameters(run | following)
    plan = Plan("single run", "", (), read_schedule(scheduled or {}))
    return _filled(plan, (config,), target, world_size)


def _filled(
    plan: Plan, configs: Collection[RunConfig], platform: Platform, available: int | None
) -> Plan:
    """Return the plan with these configurations, repeated and ordered as its schedule says."""
    repeats, seed = plan.schedule.repeats, plan.schedule.seed
    again = (
        config if repeats is None else config.model_copy(update={"repeat": repeat})
        for repeat in range(repeats or 1)
        for config in configs
    )
    once = {config.config_hash(): config for config in again}
    runs = tuple(_planned(config, platform, available) for config in once.values())
    filled = replace(plan, runs=runs)
    return filled if seed is None else filled.shuffled(seed)


def _planned(config: RunConfig, platform: Platform, available: int | None) -> PlannedRun:
    shape = catalog.model(config.model)
    accelerator = catalog.accelerator(platform.accelerator) if platform.accelerator else None
    room = None if platform.vendor == "cpu" else platform.gpus_per_node
    case = legality.Case(config, shape, accelerator, room)
    problems = legality.check(case)
    if available is not None and config.world_size > available:
        limit = f"{available} devices (--gpus or this machine's)"
        message = f"world_size={config.world_size} is above the limit of {limit}."
        problems = (Problem("devices", message), *problems)
    if not legality.is_legal(problems):
        return PlannedRun(config, problems)
    memory, fit = legality.fitting(case)
    return PlannedRun(config, problems, memory, fit)


MOST_RUNS = 5_000


def expand(table: Mapping[str, Any], platform: Platform, world_size: int | None) -> Iterator[Table]:
    """Yield RunConfig parameters for the product of all lists in the table.

    ``world_size`` serves the tables that name none. Nothing is yielded for a table whose
    ``platforms`` leaves this platform out.
    """
    rest = dict(table)
    only = _as_list("platforms", rest.pop("platforms", platform.name))
    if platform.name not in [catalog.platform(str(name)).name for name in only]:
        return
    columns = [(name, _as_list(name, value)) for name, value in rest.items()]
    refuse_many(math.prod(len(column) for _, column in columns))
    for values in itertools.product(*(column for _, column in columns)):
        names = (name for name, _ in columns)
        yield _complete(dict(zip(names, values, strict=True)), platform, world_size)


def refuse_many(runs: int) -> None:
    """Do nothing for as many runs as a plan may have.

    Raises:
        ConfigError: there are more.
    """
    if runs > MOST_RUNS:
        raise ConfigError(
            f"the lists multiply out to {runs:,} runs; a plan has at most {MOST_RUNS:,}. Shorten "
            "the lists, or split the plan."
        )


def _as_list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        return [value]
    if not value:
        raise ConfigError(f"{name}=[] is empty. Name at least one value, or leave out {name}.")
    return cast("list[Any]", value)


def _complete(run: Table, platform: Platform, world_size: int | None) -> Table:
    """Fill in what follows from the platform, the strategy and the world size."""
    model = run.get("model")
    if not isinstance(model, str):
        known = ", ".join(shape.name for shape in catalog.models())
        raise ConfigError(f"model={model!r} is not a model name. Known models: {known}.")
    run = {"platform": platform.name, "precision": platform.default_precision, **run}
    run |= defaults.world(run, platform, world_size)
    per_gpu = whole(run, "global_batch_size_per_gpu")
    if per_gpu is not None:
        del run["global_batch_size_per_gpu"]
        run["global_batch_size"] = per_gpu * run["world_size"]
    run = _with_strategy(run, platform, model)
    if run.get("sequence_parallel") == "auto":
        run["sequence_parallel"] = run.get("tensor_parallel_size", 1) != 1
    return run | defaults.following(run, catalog.model(model))


def _with_strategy(run: Table, platform: Platform, model: str) -> Table:
    name = run.get("strategy", "custom")
    if name == "custom":
        return run
    if not isinstance(name, str):
        raise ConfigError(f"strategy={name!r} must be a name or a list of names.")
    found = catalog.strategy(name, platform.name, model)
    return run | {size: getattr(found, size) for size in PARALLEL_SIZES} | {"strategy": found.name}
