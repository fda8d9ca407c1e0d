"""What a configuration that nobody ran would take: rates of kinds of work, fitted to the runs.

``load`` reads what there is to learn from and returns a ``Predictor``; its ``predict`` answers for
one configuration, ``search.layouts`` ranks all legal ones. The README shows how wrong it is.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from scalebook.config import RunConfig
from scalebook.measure.diagnosis import Diagnosis, with_fitted
from scalebook.measure.probes import Probe
from scalebook.measure.probes.files import read_probes
from scalebook.predict.known import KnownRate, known_rate, known_rates
from scalebook.predict.model import (
    Basis,
    Prediction,
    Predictor,
    fitted_shares,
    predictor,
    slower_than_parts,
)
from scalebook.project import root, short

__all__ = [
    "Basis", "KnownRate", "Prediction", "Predictor", "evidence", "filled", "fitted_shares",
    "known_rate", "load", "predictor", "run_seconds", "slower_than_parts",
]  # fmt: skip


def folders(runs: Path) -> tuple[Path, ...]:
    """Return the folders to learn from: the given one and the checkout's committed examples."""
    project = root()
    examples = () if project is None else (project / "runs" / "examples",)
    found = (runs, *(one for one in examples if one.resolve() != runs.resolve()))
    return tuple(one for one in found if one.is_dir())


def evidence(runs: Path) -> tuple[tuple[KnownRate, ...], tuple[Probe, ...], int]:
    """Return the rates and probes to learn from, and how many runs teach nothing."""
    places = folders(runs)
    rates, without = known_rates(places)
    probes = tuple(probe for place in places for probe in read_probes(place)[0])
    return rates, probes, without


def filled(found: Diagnosis, rate: KnownRate | None, made: Predictor) -> Diagnosis:
    """Return a diagnosis in which the parts that its run did not measure stand at fitted rates.

    The command, the tables and the page of a run all show these, so they show the same numbers.
    """
    if rate is None or found.waterfall is None:
        return found
    return replace(found, waterfall=with_fitted(found.waterfall, fitted_shares(rate, made)))


def load(platform: str, runs: Path, *, network_gbps: float | None = None) -> Predictor:
    """Return what predicts configurations of a platform from a folder of runs and the examples.

    Raises:
        CatalogError: the platform is not known.
    """
    rates, probes, without = evidence(runs)
    names = [str(short(place)) for place in folders(runs)]
    return predictor(
        platform, rates, probes, network_gbps=network_gbps, folders=names, without=without
    )


def run_seconds(made: Predictor, config: RunConfig, step_seconds: float) -> float:
    """Return the seconds that a whole run takes: its steps, and what runs take around them."""
    return made.start_seconds + (config.steps + config.profile_steps) * step_seconds


class _Verb(ModuleType):
    """This package as a function: ``sb.predict(...)`` next to ``scalebook.predict.load``."""

    def __call__(self, *arguments: Any, **settings: Any) -> Prediction:
        return import_module("scalebook.api").predict(*arguments, **settings)


sys.modules[__name__].__class__ = _Verb
