"""What ``scalebook check`` was asked, completed by stated defaults, and its answer."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from scalebook.config import RunConfig
from scalebook.errors import ConfigError
from scalebook.facts import catalog, communication, legality
from scalebook.facts.catalog import Accelerator, ModelShape, Platform
from scalebook.facts.legality import Problem
from scalebook.parallelism import Parallelism
from scalebook.plan import defaults as plan_defaults
from scalebook.settings import PARALLEL_SIZES, names

DEFAULT_SEQUENCE_LENGTH = 4096
MICROBATCHES_PER_STAGE = 4  # keeps the bubble of a pipeline below a fifth


@dataclass(frozen=True, slots=True)
class Request:
    """One configuration to judge, and which of its fields the user did not give."""

    config: RunConfig
    shape: ModelShape
    accelerator: Accelerator | None
    gpus_per_node: int | None
    defaults: dict[str, Any]


def request(options: argparse.Namespace) -> Request:
    """Return the configuration that the flags describe.

    Raises:
        ConfigError: a strategy is named and a size that it sets is given too.
        CatalogError: the model, the platform or the strategy is not known.
    """
    platform, shape = catalog.platform(options.platform), catalog.model(options.model)
    given = {
        name: getattr(options, name)
        for name in RunConfig.model_fields
        if getattr(options, name, None) is not None
    }
    given |= {"platform": platform.name, "model": shape.name}
    given |= _strategy(given, platform, shape)
    defaults = _machine_defaults(given, platform)
    defaults |= _training_defaults(given | defaults, platform, shape)
    config = RunConfig.from_parameters(given | defaults)
    accelerator = catalog.accelerator(platform.accelerator) if platform.accelerator else None
    room = None if platform.vendor == "cpu" else platform.gpus_per_node
    return Request(config, shape, accelerator, room, defaults)


def answer(asked: Request) -> dict[str, Any]:
    """Return the verdict: legality with the nearest legal configurations, memory and fit."""
    config, shape = asked.config, asked.shape
    device, room = asked.accelerator, asked.gpus_per_node
    problems = legality.check(config, shape, accelerator=device, gpus_per_node=room)
    legal = legality.is_legal(problems)
    estimate, fit = (
        legality.fitting(config, shape, accelerator=device, gpus_per_node=room)
        if legal
        else (None, None)
    )
    nearest = legality.nearest(config, shape, accelerator=device, gpus_per_node=room)
    return {
        "legal": legal,
        "problems": said(problems, "error"),
        "warnings": said(problems, "warning"),
        "nearest": [_neighbour(config, candidate) for candidate in nearest],
        "memory_gib": estimate.parts_gib() if estimate else None,
        "memory_stage": estimate.worst.stage if estimate else None,
        "fits": fit.fits if fit else None,
        "fits_reason": fit.reason if fit else "not predicted: the configuration is illegal",
        "device_memory_gib": asked.accelerator.memory_gb if asked.accelerator else None,
        "advice": list(fit.advice) if fit else [],
        **(_communication(config, shape) if legal else _NO_COMMUNICATION),
        "data_parallel_size": config.data_parallel_size if legal else None,
        "num_microbatches": config.num_microbatches if legal else None,
        "config": config.model_dump(),
        "defaults": asked.defaults,
    }


_NO_COMMUNICATION: dict[str, Any] = {"communication_bytes": None, "pipeline_bubble": None}


def _communication(config: RunConfig, shape: ModelShape) -> dict[str, Any]:
    """Return bytes that a rank sends in a step, by kind, and the idle part of the pipeline."""
    sent = communication.estimate(
        shape,
        config.parallelism,
        micro_batch_size=config.micro_batch_size,
        num_microbatches=config.num_microbatches,
        sequence_length=config.sequence_length,
        precision=config.precision,
        gradient_precision=config.gradient_precision,
    )
    kinds = ("tensor", "pipeline", "context", "expert", "data", "total")
    return {
        "communication_bytes": {kind: getattr(sent, kind) for kind in kinds},
        "pipeline_bubble": sent.bubble,
    }


def said(problems: tuple[Problem, ...], severity: str) -> list[dict[str, str]]:
    """Return the problems of one severity as rule and message."""
    return [
        {"rule": one.rule, "message": one.message} for one in problems if one.severity == severity
    ]


def _neighbour(config: RunConfig, candidate: RunConfig) -> dict[str, Any]:
    sizes = (*names("layout"), "sequence_length", "precision")
    return {name: getattr(candidate, name) for name in sizes} | {
        "data_parallel_size": candidate.data_parallel_size,
        "changes": legality.changes(config, candidate),
    }


def _strategy(given: dict[str, Any], platform: Platform, shape: ModelShape) -> dict[str, Any]:
    name = given.get("strategy")
    if name is None:
        return {}
    for size in PARALLEL_SIZES:
        if size in given:
            flag = size.replace("_", "-")
            raise ConfigError(f"--strategy {name} sets {size}. Leave out --{flag}, or --strategy.")
    found = catalog.strategy(name, platform.name, shape.name)
    return {"strategy": found.name} | {size: getattr(found, size) for size in PARALLEL_SIZES}


def _machine_defaults(given: dict[str, Any], platform: Platform) -> dict[str, Any]:
    whole = plan_defaults.world(given, platform)
    return {name: value for name, value in whole.items() if name not in given}


def _training_defaults(
    known: dict[str, Any], platform: Platform, shape: ModelShape
) -> dict[str, Any]:
    """Return what a check needs and the user left out: batch, length, precision, SP."""
    defaults: dict[str, Any] = {}
    asked = {name: known[name] for name in Parallelism.__dataclass_fields__ if name in known}
    split = Parallelism(**asked)
    if "precision" not in known:
        defaults["precision"] = platform.default_precision
    if "micro_batch_size" not in known:
        defaults["micro_batch_size"] = 1
    if "sequence_length" not in known:
        limit = shape.learned_positions or shape.max_sequence_length or DEFAULT_SEQUENCE_LENGTH
        defaults["sequence_length"] = min(DEFAULT_SEQUENCE_LENGTH, limit)
    if "sequence_parallel" not in known:
        defaults["sequence_parallel"] = split.tensor_parallel_size > 1
    if "global_batch_size" not in known:
        micro = known.get("micro_batch_size", 1)
        # A multiple of every data-parallel size that divides the world.
        rounds = MICROBATCHES_PER_STAGE if split.pipeline_parallel_size > 1 else 1
        defaults["global_batch_size"] = micro * split.world_size * rounds
    return defaults | plan_defaults.following(known | defaults, shape)
