"""Commands that train: ``run`` (also called ``resume``) and ``recover``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from scalebook.cli import cluster, contained, dry_run, run_options
from scalebook.cli.arguments import Subparsers, at_least

if TYPE_CHECKING:
    from scalebook.facts.catalog.types import Platform
    from scalebook.plan import Plan
    from scalebook.running.console import Console
    from scalebook.running.todo import Entry
    from scalebook.running.waiting import Scheduled


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    _add_run(subparsers.add_parser("run", help="train what a plan names and is not done yet"))
    _add_run(subparsers.add_parser("resume", help="the same: what is done is not repeated"))
    parser = subparsers.add_parser("recover", help="record the runs that a dead process left")
    parser.add_argument("--runs", type=Path, help="folder of run directories; default: runs")
    parser.set_defaults(handler=recover)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--platform", help="cpu, h100, mi300x, ...; default: what this machine has")
    parser.add_argument("--plan", type=Path, help="TOML file; default: a small plan of runs/plans")
    parser.add_argument("--model", help="train this model in place of the plan's")
    parser.add_argument("--engine", help="megatron, nemo or primus; default: the plan's")
    parser.add_argument("--gpus", type=at_least(1), help="use at most so many GPUs")
    parser.add_argument("--nodes", type=at_least(1), help="number of machines of every run")
    parser.add_argument("--steps", type=at_least(1), help="optimizer steps of every run")
    parser.add_argument(
        "--profile",
        type=at_least(1),
        nargs="?",
        const=2,
        metavar="STEPS",
        help="profile so many more steps of every run (2), and keep the trace of rank 0",
    )
    parser.add_argument(
        "--data",
        metavar="PREFIX",
        help="train on PREFIX.bin and PREFIX.idx (Megatron's indexed format) "
        "in place of synthetic tokens",
    )
    parser.add_argument("--runs", type=Path, help="folder of run directories; default: runs")
    parser.add_argument(
        "--force-platform", action="store_true", help="run also where the device is another"
    )
    parser.add_argument("--rerun", action="store_true", help="run also what is done")
    parser.add_argument("--time-limit", type=at_least(1), metavar="S", help="seconds for each run")
    parser.add_argument(
        "--budget-seconds", type=at_least(1), metavar="S", help="for the whole plan"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the commands; start nothing")
    parser.add_argument("--trainer", default="", help=argparse.SUPPRESS)
    run_options.add_arguments(parser)
    cluster.add_arguments(parser)
    contained.add_arguments(parser)
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> int:
    """Run a plan; 0 if any of its configurations has a completed run."""
    from scalebook.project import TRAIN_NOTEBOOK, required_root, runs_folder
    from scalebook.running import launch, sweep, todo
    from scalebook.running.console import Console

    cluster.refuse_idle(options)
    if options.launcher != "direct":
        return cluster.run(options, _load)
    platform, devices = _machine(options)
    plan = _load(options, platform, devices)
    runs = runs_folder(str(options.runs or ""))
    ended = contained.enter(options, platform, plan, runs)
    if ended is not None:
        return ended
    if options.dry_run:
        entries = todo.survey(plan, runs, devices, options.rerun)
        if line := run_options.describe(plan):
            print(line)
        pruned = dry_run.pruned(entries, runs, options)
        return dry_run.show(entries, runs, pruned, options.budget_seconds)
    console = Console()
    _recover(runs, console)
    entries = todo.survey(plan, runs, devices, options.rerun)
    if all(entry.action == "done" for entry in entries):
        console.say(
            f"All {len(entries)} runs of plan {plan.name!r} are done. Repeat them with --rerun."
        )
        return 0
    if not options.trainer:
        launch.require_trainer()
    settings = sweep.Settings(
        runs=runs,
        notebook=required_root() / TRAIN_NOTEBOOK,
        trainer=options.trainer,
        force_platform=options.force_platform,
        budget_seconds=options.budget_seconds,
        schedule=_scheduled(plan),
        prune=options.prune,
        rerun=options.rerun,
        accelerator=_device_name(platform),
    )
    _announce(plan, entries, console)
    with sweep.stop_on_signals(settings.budget_seconds) as stop:
        results = sweep.run_plan(entries, settings, console, stop)
    console.say("\n".join(("", *sweep.summary(results))))
    return sweep.exit_code(results, stop)


def _machine(options: argparse.Namespace) -> tuple[Platform, int | None]:
    """Return the platform to run as and how many GPUs it may use (None: a CPU, or not asked)."""
    from scalebook.errors import LaunchError
    from scalebook.facts import catalog
    from scalebook.running.devices import detect
    from scalebook.running.launch import torchrun

    if options.platform:
        platform = catalog.platform(options.platform)
        if platform.vendor == "cpu" or options.dry_run:
            return platform, None if platform.vendor == "cpu" else options.gpus
        machine = detect.detect()
        refusal = detect.refusal(platform, machine)
        if refusal and not options.force_platform:
            if machine.vendor == "cpu":
                named = f"Platform {platform.name!r} needs {platform.accelerator}, and no GPU"
                refusal = f"{named} is seen here. {torchrun.explain_missing_gpus(platform)}"
            raise LaunchError(refusal)
    else:
        machine = detect.detect()
        platform = detect.platform_of(machine)
        print(f"This machine has {machine.describe()}: platform {platform.name}.", flush=True)
    if platform.vendor == "cpu":
        return platform, None
    return platform, min(machine.count, options.gpus or machine.count)


def _device_name(platform: Platform) -> str | None:
    """Return this machine's device as its driver calls it, None for a CPU."""
    from scalebook.running.devices import detect

    return None if platform.vendor == "cpu" else detect.detect().device_name


def _scheduled(plan: Plan) -> Scheduled:
    from scalebook.running.waiting import Scheduled

    return Scheduled.of(plan)


def _load(options: argparse.Namespace, platform: Platform, devices: int | None) -> Plan:
    from scalebook.plan import load_plan, single_plan
    from scalebook.project import required_root

    name = "quick.toml" if platform.vendor == "cpu" else "gpu_quick.toml"
    path = options.plan or required_root() / "runs" / "plans" / name
    overrides = {
        "model": options.model,
        "engine": options.engine,
        "nodes": options.nodes,
        "time_limit_seconds": options.time_limit,
        "steps": options.steps,
        "profile_steps": options.profile,
        "data": options.data,
    }
    given = {name: value for name, value in overrides.items() if value is not None}
    given |= run_options.fields(options.fields)
    world_size = options.gpus if devices is None else devices
    scheduled = run_options.scheduled(options)
    if options.fields and options.plan is None:
        plan = single_plan(
            given, platform=platform.name, world_size=world_size, scheduled=scheduled
        )
    else:
        plan = load_plan(
            path,
            platform=platform.name,
            world_size=world_size,
            overrides=given,
            scheduled=scheduled,
        )
    return run_options.in_order(plan)


def _announce(plan: Plan, entries: tuple[Entry, ...], console: Console) -> None:
    done = sum(entry.action == "done" for entry in entries)
    to_run = sum(entry.action == "run" for entry in entries)
    console.say(f"Plan {plan.name!r}: {to_run} to run, {done} done, of {len(entries)}.")
    if line := run_options.describe(plan):
        console.say(line)


def _recover(runs: Path, console: Console) -> None:
    from scalebook.project import short
    from scalebook.running import recovery

    for leftover in recovery.recover(runs):
        if leftover.problem is not None:
            console.say(
                f"{short(leftover.path)} cannot be recovered and stays as it is: {leftover.problem}"
            )
        elif leftover.record is None:
            console.say(f"{short(leftover.path)} belongs to a process at work; it is left alone.")
        else:
            record = leftover.record
            console.say(f"Recovered {short(leftover.path)}: {record.status}. {record.reason or ''}")


def recover(options: argparse.Namespace) -> int:
    """Record what dead processes left under the runs folder."""
    from scalebook.project import runs_folder
    from scalebook.running.console import Console

    _recover(runs_folder(str(options.runs or "")), Console())
    return 0
