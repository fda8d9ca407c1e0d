"""One table of a plan -> the parameters of every run that it stands for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, cast

from scalebook.errors import ConfigError
from scalebook.facts import catalog
from scalebook.facts.catalog.types import Platform
from scalebook.plan import defaults
from scalebook.plan.document import Table
from scalebook.settings import PARALLEL_SIZES

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
    run = _with_batch(run)
    run = _with_strategy(run, platform, model)
    if run.get("sequence_parallel") == "auto":
        run["sequence_parallel"] = run.get("tensor_parallel_size", 1) != 1
    return run | defaults.following(run, catalog.model(model))


def _with_batch(run: Table) -> Table:
    per_gpu = defaults.size(run, "global_batch_size_per_gpu")
    if per_gpu is not None:
        del run["global_batch_size_per_gpu"]
        return run | {"global_batch_size": per_gpu * run["world_size"]}
    return run


def _with_strategy(run: Table, platform: Platform, model: str) -> Table:
    name = run.get("strategy", "custom")
    if name == "custom":
        return run
    if not isinstance(name, str):
        raise ConfigError(f"strategy={name!r} must be a name or a list of names.")
    found = catalog.strategy(name, platform.name, model)
    return run | {size: getattr(found, size) for size in PARALLEL_SIZES} | {"strategy": found.name}
