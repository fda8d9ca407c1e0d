"""Commands that judge configurations before anything runs: ``check`` and ``plan``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebook.cli.arguments import Subparsers, add_json, add_settings, at_least, positive
from scalebook.cli.output import number, print_data, print_json, print_table
from scalebook.settings import SETTINGS

if TYPE_CHECKING:
    from scalebook.cli.check_request import Request
    from scalebook.plan import Plan, PlannedRun
    from scalebook.predict import Prediction

    Forecast = tuple[Prediction, float] | None  # with the seconds of the whole run

REQUIRED = ("model", "platform")


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    parser = subparsers.add_parser(
        "check", help="check whether a configuration is legal and fits (exit code 1 if illegal)"
    )
    for name in REQUIRED:
        parser.add_argument(f"--{name}", required=True, help=SETTINGS[name].help)
    add_layout(parser, world_size=True)
    add_json(parser)
    parser.set_defaults(handler=check)

    parser = subparsers.add_parser("plan", help="list a plan's runs with legality and memory")
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="TOML plan")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="TOML plan, if not named first")
    parser.add_argument("--platform", help="platform (default: that of this machine)")
    parser.add_argument(
        "--gpus",
        "--world-size",
        dest="world_size",
        type=at_least(1),
        metavar="N",
        help="use at most N GPUs (default: no limit)",
    )
    parser.add_argument("--model", help="model to train instead of the plan's")
    parser.add_argument(
        "--budget-seconds", type=positive, metavar="S", help="show how many runs fit into S seconds"
    )
    add_json(parser, csv=True)
    parser.set_defaults(handler=plan)


def add_layout(parser: argparse.ArgumentParser, *, world_size: bool) -> None:
    """Add the flags of the settings that decide whether a step fits, and how fast it is."""
    left_out = REQUIRED if world_size else (*REQUIRED, "world_size")
    shown = (n for n, row in SETTINGS.items() if row.help and (row.affects or n == "strategy"))
    add_settings(parser, (n for n in shown if n not in left_out and n != "data"))


def check(options: argparse.Namespace) -> int:
    """Print the verdict on one configuration; return 1 where it is illegal."""
    from scalebook.cli.check_request import answer, request
    from scalebook.cli.predict import forecast, short_value

    asked = request(options)
    result = answer(asked)
    found = forecast(asked.config.platform, None)(asked.config) if result["legal"] else None
    result["prediction"] = short_value(found[0]) if found else None
    if options.json:
        print_json(result)
    else:
        _print_verdict(asked, result)
    return 0 if result["legal"] else 1


def plan(options: argparse.Namespace) -> int:
    """Print every run of a plan with its verdict."""
    from scalebook.cli.predict import forecast, total_line
    from scalebook.errors import ConfigError
    from scalebook.plan import load_plan
    from scalebook.running.devices import detect

    if (options.file is None) == (options.plan is None):
        raise ConfigError("Name one plan: scalebook plan FILE.")
    platform = options.platform or detect.platform_of(detect.detect()).name
    overrides = {"model": options.model} if options.model else {}
    loaded = load_plan(
        options.file or options.plan,
        platform=platform,
        world_size=options.world_size,
        overrides=overrides,
    )
    predicted = forecast(platform, None)
    found = [predicted(run.config) if run.legal else None for run in loaded.runs]
    if options.json:
        value = _plan_value(loaded, found)
        print_data(value["runs"] if options.json == "csv" else value, options.json)
    else:
        _print_plan(loaded, found)
        seconds = [one[1] if one else None for one in found]
        if any(found):
            print(total_line(seconds, options.budget_seconds))
    return 0


def _plan_value(loaded: Plan, found: Sequence[Forecast]) -> dict[str, Any]:
    return {
        "name": loaded.name,
        "description": loaded.description,
        "runs": [_run_value(run, one) for run, one in zip(loaded.runs, found, strict=True)],
        "predicted_seconds": sum(one[1] for one in found if one),
    }


def _run_value(run: PlannedRun, found: Forecast) -> dict[str, Any]:
    from scalebook.cli.check_request import said
    from scalebook.cli.predict import short_value

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
        "fits_reason": run.fit.reason if run.fit else "the configuration is illegal",
        "advice": run.fit.advice if run.fit else (),
        "prediction": short_value(found[0]) if found else None,
        "predicted_seconds": found[1] if found else None,
    }


def _print_plan(loaded: Plan, found: Sequence[Forecast]) -> None:
    print(f"{loaded.name}: {loaded.description}" if loaded.description else loaded.name)
    headers = ("#", "model", "strategy", "GPUs", "tp", "pp", "cp", "ep", "dp", "micro", "global")
    headers += ("sequence", "precision", "repeat", "GiB", "tokens/s/GPU", "verdict")
    pairs = zip(loaded.runs, found, strict=True)
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
    legal = sum(run.legal for run in loaded.runs)
    print(
        f"{len(loaded.runs)} runs, {legal} legal, {sum(run.fits is False for run in loaded.runs)}"
        " that do not fit."
    )


def _plan_row(index: int, run: PlannedRun, found: Forecast) -> tuple[str, ...]:
    config = run.config
    sizes = (
        config.tensor_parallel_size,
        config.pipeline_parallel_size,
        config.context_parallel_size,
        config.expert_parallel_size,
    )
    return (
        str(index),
        config.model,
        config.strategy,
        str(config.world_size),
        *(str(size) for size in sizes),
        str(config.data_parallel_size) if run.legal else "-",
        str(config.micro_batch_size),
        str(config.global_batch_size),
        str(config.sequence_length),
        config.precision,
        str(config.repeat),
        number(run.memory.total_gib, 3) if run.memory else "-",
        number(found[0].tokens_per_second_per_gpu, 3) if found else "-",
        _verdict(run),
    )


def _verdict(run: PlannedRun) -> str:
    if not run.legal:
        return "illegal"
    return {True: "fits", False: "does not fit", None: "cannot tell"}[run.fits]


def _print_verdict(asked: Request, result: dict[str, Any]) -> None:
    from scalebook.cli.predict import rate_line

    config = asked.config
    print(
        f"{config.model} on {config.world_size} x {config.platform}: "
        f"{'legal' if result['legal'] else 'illegal'}"
    )
    for kind, problems in (("error", result["problems"]), ("warning", result["warnings"])):
        for problem in problems:
            print(f"  {kind}: {problem['message']}")
    for change in result["nearest"]:
        print(f"  nearest: {_flags(change['changes'])}")
    if result["memory_gib"]:
        names = [name for name, size in result["memory_gib"].items() if size]
        print_table(
            ("GiB per rank", f"stage {result['memory_stage']}"),
            [(name, number(result["memory_gib"][name], 3)) for name in names],
        )
    print(f"  memory: {result['fits_reason']}")
    if result["prediction"]:
        print(f"  predicted: {rate_line(**result['prediction'])}")
    if result["communication_bytes"]:
        sent = {name: size for name, size in result["communication_bytes"].items() if size}
        parts = ", ".join(f"{name} {number(size / 1e9, 3)}" for name, size in sent.items())
        print(f"  GB sent per rank and step: {parts or 'none'}")
        print(f"  pipeline bubble: {number(100 * result['pipeline_bubble'], 3)} % of the step")
    for advice in result["advice"]:
        print(f"  to fit: {advice}")
    if result["defaults"]:
        print(f"  assumed: {_flags(result['defaults'])}")


def _flags(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in values.items()
    )
