"""Commands that judge configurations before anything runs: ``check`` and ``plan``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebook.cli.terminal import (
    Subparsers,
    add_json,
    add_platform,
    add_processes,
    add_runs,
    add_settings,
    number,
    platform_of,
    positive,
    print_data,
    print_json,
    print_table,
)
from scalebook.settings import PARALLEL_SIZES, SETTINGS, assigned, names

if TYPE_CHECKING:
    from scalebook.config import RunConfig
    from scalebook.facts.catalog import Accelerator, ModelShape, Platform
    from scalebook.facts.legality import Problem
    from scalebook.plan import Plan, PlannedRun
    from scalebook.predict import Prediction

    Forecast = tuple[Prediction, float] | str  # with the seconds of the whole run; or why not

REQUIRED = ("model", "platform")
DEFAULT_SEQUENCE_LENGTH = 4096
ILLEGAL = "the configuration is illegal"
FOREIGN = "no engine here trains its layers"
MICROBATCHES_PER_STAGE = 4  # keeps the bubble of a pipeline below a fifth


@dataclass(frozen=True, slots=True)
class Request:
    """One configuration to judge, and which of its fields the user did not give."""

    config: RunConfig
    shape: ModelShape
    accelerator: Accelerator | None
    gpus_per_node: int | None
    defaults: dict[str, Any]


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    text = "check whether a configuration is legal and fits (exit code 1 if illegal)"
    parser = subparsers.add_parser("check", check, help=text)
    for name in REQUIRED:
        parser.add_argument(f"--{name}", required=True, help=SETTINGS[name].help)
    add_layout(parser, world_size=True)
    add_json(parser)

    parser = subparsers.add_parser("plan", plan, help="list a plan's runs with legality and memory")
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="TOML plan")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="TOML plan, if not named first")
    add_platform(parser)
    add_processes(parser, "use at most N GPUs (default: no limit)")
    parser.add_argument("--model", help="model to train instead of the plan's")
    text = "show how many runs fit into S seconds"
    parser.add_argument("--budget-seconds", type=positive, metavar="S", help=text)
    add_runs(parser, "folder of runs that predictions rest on")
    add_json(parser, csv=True)


def add_layout(parser: argparse.ArgumentParser, *, world_size: bool) -> None:
    """Add the flags of the settings that decide whether a step fits, and how fast it is."""
    left_out = REQUIRED if world_size else (*REQUIRED, "world_size")
    shown = (n for n, row in SETTINGS.items() if row.help and (row.affects or n == "strategy"))
    add_settings(parser, (n for n in shown if n not in left_out and n != "data"))


def check(options: argparse.Namespace) -> int:
    """Print the verdict on one configuration; return 1 where it is illegal."""
    from scalebook.cli.predict import forecast

    asked = request(options)
    result = answer(asked)
    legal = result["legal"] or result["legal_with"]
    found = forecast(asked.config.platform, None)(asked.config) if legal else ILLEGAL
    result |= _prediction(found)
    if options.json:
        print_json(result)
    else:
        _print_verdict(asked, result)
    return 0 if result["legal"] else 1


def request(options: argparse.Namespace) -> Request:
    """Return the configuration that the flags describe.

    Raises:
        ConfigError: a strategy is named and a size that it sets is given too.
        CatalogError: the model, the platform or the strategy is not known.
    """
    from scalebook.config import RunConfig
    from scalebook.facts import catalog
    from scalebook.plan import defaults as plan_defaults

    platform, shape = catalog.platform(options.platform), catalog.model(options.model)
    given = {
        name: getattr(options, name)
        for name in RunConfig.model_fields
        if getattr(options, name, None) is not None
    }
    given |= {"platform": platform.name, "model": shape.name}
    given |= _strategy(given, platform, shape)
    machine = plan_defaults.world(given, platform)
    defaults = {name: value for name, value in machine.items() if name not in given}
    defaults |= _training_defaults(given | defaults, platform, shape)
    config = RunConfig.from_parameters(given | defaults)
    accelerator = catalog.accelerator(platform.accelerator) if platform.accelerator else None
    room = None if platform.vendor == "cpu" else platform.gpus_per_node
    return Request(config, shape, accelerator, room, defaults)


def answer(asked: Request) -> dict[str, Any]:
    """Return the verdict: legality with the nearest legal configurations, memory and fit.

    Where only an assumed last stage makes it legal (``legal_with``), they are of that layout.
    """
    from scalebook.facts import legality

    config, shape = asked.config, asked.shape
    case = legality.Case(config, shape, asked.accelerator, asked.gpus_per_node)
    found = legality.check(case)
    foreign = [one for one in found if (one.rule, one.severity) == ("engine", "error")]
    problems = tuple(replace(one, severity="warning") if one in foreign else one for one in found)
    legal = legality.is_legal(problems)
    counted = legal and not foreign  # memory and traffic are those of layers that are trained here
    estimate, fit = legality.fitting(case) if counted else (None, None)
    last = "last_pipeline_stage_layers"
    assumed = {last: asked.defaults[last]} if legal and last in asked.defaults else {}
    stated = case.of(config.model_copy(update=dict.fromkeys(assumed, 0)))
    uneven = [one for one in legality.check(stated) if assumed and one.rule == "layers"]
    return {
        "legal": legal and not uneven,
        "trained_here": not foreign,
        "legal_with": assumed if uneven else {},
        "problems": said((*problems, *uneven), "error"),
        "warnings": said(problems, "warning"),
        "nearest": [_neighbour(stated.config, one) for one in legality.nearest(stated)],
        "memory_gib": estimate.parts_gib() if estimate else None,
        "memory_stage": estimate.worst.stage if estimate else None,
        "host_memory_gib": estimate.host_gib if estimate else None,
        "fits": fit.fits if fit else None,
        "fits_reason": fit.reason if fit else f"not predicted: {FOREIGN if legal else ILLEGAL}",
        "device_memory_gib": asked.accelerator.memory_gb if asked.accelerator else None,
        "advice": list(fit.advice) if fit else [],
        **_communication(config, shape, counted),
        "data_parallel_size": config.data_parallel_size if legal else None,
        "num_microbatches": config.num_microbatches if legal else None,
        "config": config.model_dump(),
        "defaults": asked.defaults,
    }


def host_line(config: RunConfig) -> str:
    """Return how much memory of its host each rank offloads to, and all ranks of a node."""
    from scalebook.facts import catalog
    from scalebook.facts.legality import fit

    rank = fit.estimate(config, catalog.model(config.model)).host_gib
    node = -(-config.world_size // config.nodes) * rank
    has = catalog.platform(config.platform).host_memory_gb
    line = f"host memory: {number(rank, 3)} GiB per rank, {number(node, 3)} GiB per node"
    if has is None:
        return line
    return f"{line} of {number(has)} GB{': does not fit' if node > has else ''}"


def _communication(config: RunConfig, shape: ModelShape, legal: bool) -> dict[str, Any]:
    """Return bytes that a rank sends in a step, by kind, and the idle part of the pipeline."""
    from scalebook.facts import communication

    if not legal:
        return {"communication_bytes": None, "pipeline_bubble": None}
    alike = ("micro_batch_size", "num_microbatches", "sequence_length", "precision")
    given = {name: getattr(config, name) for name in (*alike, "gradient_precision")}
    layout, again = config.parallelism, config.recomputation
    sent = communication.estimate(shape, layout, **given, recompute=again)
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
    from scalebook.facts import legality

    sizes = (*names("layout"), "sequence_length", "precision")
    return {name: getattr(candidate, name) for name in sizes} | {
        "data_parallel_size": candidate.data_parallel_size,
        "changes": legality.changes(config, candidate),
    }


def _strategy(given: dict[str, Any], platform: Platform, shape: ModelShape) -> dict[str, Any]:
    from scalebook.errors import ConfigError
    from scalebook.facts import catalog

    name = given.get("strategy")
    if name is None:
        return {}
    for size in PARALLEL_SIZES:
        if size in given:
            flag = size.replace("_", "-")
            raise ConfigError(f"--strategy {name} sets {size}. Leave out --{flag}, or --strategy.")
    found = catalog.strategy(name, platform.name, shape.name)
    return {"strategy": found.name} | {size: getattr(found, size) for size in PARALLEL_SIZES}


def _training_defaults(
    known: dict[str, Any], platform: Platform, shape: ModelShape
) -> dict[str, Any]:
    """Return what a check needs and the user left out: batch, length, precision, SP."""
    from scalebook.parallelism import Parallelism
    from scalebook.plan import defaults as plan_defaults

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


def plan(options: argparse.Namespace) -> int:
    """Print every run of a plan with its verdict."""
    from scalebook.cli.predict import forecast, total_line
    from scalebook.errors import ConfigError
    from scalebook.plan import load_plan

    if (options.file is None) == (options.plan is None):
        raise ConfigError("Name one plan: scalebook plan FILE.")
    platform = options.platform or platform_of(options).name
    overrides = {"model": options.model} if options.model else {}
    loaded = load_plan(
        options.file or options.plan,
        platform=platform,
        world_size=options.world_size,
        overrides=overrides,
    )
    predicted = forecast(platform, options.runs)
    found = [predicted(run.config) if run.legal else ILLEGAL for run in loaded.runs]
    seconds = [None if isinstance(one, str) else one[1] for one in found]
    known = [one for one in seconds if one is not None]
    if options.json:
        runs = [_run_value(run, one) for run, one in zip(loaded.runs, found, strict=True)]
        value = {"name": loaded.name, "description": loaded.description, "runs": runs}
        value |= {"predicted_seconds": sum(known) if known else None}
        print_data(runs if options.json == "csv" else value, options.json)
    else:
        _print_plan(loaded, found)
        if known:
            print(total_line(seconds, options.budget_seconds))
    return 0


def _run_value(run: PlannedRun, found: Forecast) -> dict[str, Any]:
    return {
        "config_hash": run.config.config_hash(),
        "config": run.config.model_dump(),
        "data_parallel_size": run.config.data_parallel_size if run.legal else None,
        "num_microbatches": run.config.num_microbatches if run.legal else None,
        "legal": run.legal,
        "problems": said(run.problems, "error"),
        "warnings": said(run.problems, "warning"),
        "memory_gib": run.memory.parts_gib() if run.memory else None,
        "fits": run.fits,
        "fits_reason": run.fit.reason if run.fit else ILLEGAL,
        "advice": run.fit.advice if run.fit else (),
        **_prediction(found),
        "predicted_seconds": None if isinstance(found, str) else found[1],
    }


def _prediction(found: Forecast) -> dict[str, Any]:
    from scalebook.cli.predict import short_value

    if isinstance(found, str):
        return {"prediction": None, "prediction_reason": found}
    return {"prediction": short_value(found[0]), "prediction_reason": None}


def _print_plan(loaded: Plan, found: Sequence[Forecast]) -> None:
    print(f"{loaded.name}: {loaded.description}" if loaded.description else loaded.name)
    headers = ("#", "model", "strategy", "GPUs", "layout and options", "global", "sequence")
    headers += ("repeat", "GiB", "tokens/s/GPU", "verdict")
    pairs = list(zip(loaded.runs, found, strict=True))
    rows = [_plan_row(index, run, one) for index, (run, one) in enumerate(pairs, start=1)]
    if rows:
        print_table(headers, rows)
    for index, run in enumerate(loaded.runs, start=1):
        for problem in run.problems:
            print(f"#{index} {problem.severity}: {problem.message}")
        last = run.config.last_pipeline_stage_layers
        if last:
            print(f"#{index} pipeline: the last stage has {last} layers and the output layer.")
        if run.fit and run.fit.advice:
            print(f"#{index} memory: {run.fit.reason}. Try {'; '.join(run.fit.advice)}.")
    unknown = [why for run, why in pairs if run.legal and isinstance(why, str)]
    if unknown:
        print(f"{len(unknown)} without a predicted rate, the first: {unknown[0]}")
    legal = sum(run.legal for run in loaded.runs)
    print(
        f"{len(loaded.runs)} runs, {legal} legal, {sum(run.fits is False for run in loaded.runs)}"
        " that do not fit."
    )


def _plan_row(index: int, run: PlannedRun, found: Forecast) -> tuple[str, ...]:
    config = run.config
    packed = f" of {config.packed_documents}" if config.packed_documents > 1 else ""
    verdict = {True: "fits", False: "does not fit", None: "may fit"}[run.fits]
    return (
        *(str(index), config.model, config.strategy, str(config.world_size), config.words()),
        *(str(config.global_batch_size), f"{config.sequence_length:,}{packed}", str(config.repeat)),
        number(run.memory.total_gib, 3) if run.memory else "-",
        "-" if isinstance(found, str) else number(found[0].tokens_per_second_per_gpu, 3),
        verdict if run.legal else "illegal",
    )


def _print_verdict(asked: Request, result: dict[str, Any]) -> None:
    from scalebook.cli.predict import predicted_line

    config, verdict = asked.config, "legal" if result["legal"] else "illegal"
    if result["legal"] and not result["trained_here"]:
        verdict += " by the rules of Megatron-LM; no run of it can start here"
    for name, size in result["legal_with"].items():
        parts = config.pipeline_parallel_size * config.virtual_pipeline_parallel_size
        verdict += f" as stated: {asked.shape.num_layers} layers do not divide by {parts}; legal "
        verdict += f"with --{name.replace('_', '-')} {size} (assumed below)"
    print(f"{config.model} on {config.world_size} x {config.platform}: {verdict}")
    for kind, problems in (("error", result["problems"]), ("warning", result["warnings"])):
        for problem in problems:
            print(f"  {kind}: {problem['message']}")
    for change in result["nearest"]:
        print(f"  nearest: {', '.join(assigned(change['changes']))}")
    if result["memory_gib"]:
        names = [name for name, size in result["memory_gib"].items() if size]
        print_table(
            ("GiB per rank", f"stage {result['memory_stage']}"),
            [(name, number(result["memory_gib"][name], 3)) for name in names],
        )
    print(f"  memory: {result['fits_reason']}")
    if result["host_memory_gib"]:
        print(f"  {host_line(config)}")
    if config.packed_documents > 1 and result["memory_gib"]:
        length = number(config.unpacked().sequence_length)
        print(f"  packed: attention, FLOPs and MFU are counted inside documents of {length} tokens")
    if result["memory_gib"]:
        print(f"  {predicted_line(result['prediction'] or result['prediction_reason'])}")
    if result["communication_bytes"]:
        sent = {name: size for name, size in result["communication_bytes"].items() if size}
        parts = ", ".join(f"{name} {number(size / 1e9, 3)}" for name, size in sent.items())
        print(f"  GB sent per rank and step: {parts or 'none'}")
        print(f"  pipeline bubble: {number(100 * result['pipeline_bubble'], 3)} % of the step")
    for advice in result["advice"]:
        print(f"  to fit: {advice}")
    if result["defaults"]:
        print(f"  assumed: {', '.join(assigned(result['defaults']))}")
