"""What memory prediction says of each run, part by part, or why it says nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scalebook import identity
from scalebook.config import RunConfig
from scalebook.errors import CatalogError
from scalebook.facts import catalog, legality
from scalebook.facts.feasibility.known import config_of
from scalebook.facts.legality import fit
from scalebook.store import Run

PARTS = ("parameters", "gradients", "optimizer", "activations", "logits", "gathered")


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
            made[key] = _predict(config)
        found[run.record.run_id] = made[key]
    return found


def _predict(config: RunConfig) -> Predicted:
    try:
        shape = catalog.model(config.model)
    except CatalogError:
        return Predicted(None, f"the shape of {config.model} is not known")
    problems = legality.check(config, shape)
    if not legality.is_legal(problems):
        return Predicted(None, "its sizes do not fit together")
    return Predicted(fit.estimate(config, shape).parts_gib())
