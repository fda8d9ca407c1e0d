"""Commands that train: ``run`` (alias ``resume``) and ``recover``."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from scalebook.cli import cluster, contained, run_options, tracking
from scalebook.cli.arguments import Subparsers, add_runs, at_least
from scalebook.cli.leftovers import recover_all

if TYPE_CHECKING:
    from scalebook.facts.catalog.types import Platform
    from scalebook.plan import Plan
    from scalebook.running.console import Console
    from scalebook.running.pruning import Inference
    from scalebook.running.todo import Entry, Scheduled


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    text = "train the runs of a plan that are not completed yet"
    _add_run(subparsers.add_parser("run", help=text, aliases=("resume",)))
    parser = subparsers.add_parser("recover", help="record runs whose process died")
    add_runs(parser)
    parser.set_defaults(handler=recover)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--platform", help="platform (default: that of this machine)")
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="FILE",
        help="TOML plan (default: a small plan in runs/plans; see the settings below)",
    )
    parser.add_argument("--gpus", type=at_least(1), metavar="N", help="use at most N GPUs")
    add_runs(parser)
    parser.add_argument(
        "--force-platform", action="store_true", help="run even if the device differs"
    )
    parser.add_argument("--rerun", action="store_true", help="repeat completed runs")
    parser.add_argument("--budget-seconds", type=at_least(1), metavar="S", help="time for the plan")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the commands without starting them"
    )
    tracking.add_log_to(parser)
    parser.add_argument("--trainer", default="", help=argparse.SUPPRESS)
    run_options.add_arguments(parser)
    cluster.add_arguments(parser)
    contained.add_arguments(parser)
    parser.set_defaults(handler=run)


def run(options: argparse.Namespace) -> int:
    """Run a plan; 0 if any of its configurations has a completed run."""
    from scalebook import store
    from scalebook.project import TRAIN_NOTEBOOK, required_root, runs_folder
    from scalebook.running import launch, sweep, todo
    from scalebook.running.console import Console

    cluster.refuse_idle(options)
    after = tracking.after_run(options)
    if options.launcher != "direct":
        return cluster.run(options, _load)
    platform, devices = _machine(options)
    plan = _load(options, platform, devices)
    runs = runs_folder(str(options.runs or ""))
    # Only a container's runs are found by what is new in the folder.
    before = set(store.run_directories(runs)) if after else set[Path]()
    ended = contained.enter(options, platform, plan, runs)
    if ended is not None:
        if after:
            tracking.log_new(after, store.run_directories(runs), before)
        return ended
    if options.dry_run:
        return _dry_run(options, plan, runs, devices)
    console = Console()
    recover_all(runs, console)
    entries = todo.survey(plan, runs, devices, options.rerun)
    if all(entry.action == "done" for entry in entries):
        console.say(
            f"All {len(entries)} runs of plan {plan.name!r} are completed. Use --rerun to repeat."
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
        after=after,
    )
    _announce(plan, entries, console)
    with sweep.stop_on_signals(settings.budget_seconds) as stop:
        results = sweep.run_plan(entries, settings, console, stop)
    console.say("\n".join(("", *sweep.summary(results))))
    return sweep.exit_code(results, stop)


def _dry_run(options: argparse.Namespace, plan: Plan, runs: Path, devices: int | None) -> int:
    """Print what the plan would run."""
    from scalebook.running import todo

    entries = todo.survey(plan, runs, devices, options.rerun)
    if line := run_options.describe(plan):
        print(line)
    return _show(entries, runs, _pruned(entries, runs, options), options.budget_seconds)


def _machine(options: argparse.Namespace) -> tuple[Platform, int | None]:
    """Return the platform to run as and how many GPUs it may use (None: a CPU, or not asked)."""
    from scalebook.errors import LaunchError
    from scalebook.facts import catalog
    from scalebook.running import launch
    from scalebook.running.devices import detect

    if options.platform:
        platform = catalog.platform(options.platform)
        if platform.vendor == "cpu" or options.dry_run:
            return platform, None if platform.vendor == "cpu" else options.gpus
        machine = detect.detect()
        refusal = detect.refusal(platform, machine)
        if refusal and not options.force_platform:
            if machine.vendor == "cpu":
                named = f"Platform {platform.name!r} needs {platform.accelerator}, and no GPU"
                refusal = f"{named} is seen here. {launch.explain_missing_gpus(platform)}"
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
    from scalebook.running.todo import Scheduled

    return Scheduled.of(plan)


def _load(options: argparse.Namespace, platform: Platform, devices: int | None) -> Plan:
    from scalebook.plan import load_plan, single_plan
    from scalebook.project import required_root

    name = "quick.toml" if platform.vendor == "cpu" else "gpu_quick.toml"
    path = options.plan or required_root() / "runs" / "plans" / name
    given = run_options.settings(options)
    world_size = options.gpus if devices is None else devices
    scheduled = run_options.scheduled(options)
    if options.plan is None and run_options.is_single(options):
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


def _pruned(
    entries: tuple[Entry, ...], runs: Path, options: argparse.Namespace
) -> dict[str, Inference]:
    """Return what records already show to need too much memory."""
    from scalebook.running import pruning

    if not options.prune:
        return {}
    known = pruning.broken(runs, None, fresh=options.rerun)
    return pruning.inferences((entry.config for entry in entries), known)


def _show(
    entries: tuple[Entry, ...],
    runs: Path,
    pruned: Mapping[str, Inference],
    budget_seconds: float | None = None,
) -> int:
    """Print what would be run, how, with which variables, and how long it is likely to take."""
    from scalebook.cli.predict import duration, forecast, rate_line, short_value, total_line
    from scalebook.running.todo import label

    predicted = forecast(entries[0].config.platform, runs) if entries else None
    starts = {e.config.config_hash(): _start(e, runs) for e in entries if e.action == "run"}
    shared = _shared(starts.values())
    for line in ("Every run:", *(f"    {line}" for line in shared)) if shared else ():
        print(line)
    seconds: list[float | None] = []
    for entry in entries:
        inference = pruned.get(entry.config.config_hash()) if entry.action == "run" else None
        if inference is not None:
            print(f"{'inferred':<13} {label(entry.config)}: {inference.sentence}")
            continue
        reason = f": {entry.reason}" if entry.reason else ""
        print(f"{entry.action.replace('_', ' '):<13} {label(entry.config)}{reason}")
        for warning in entry.warnings:
            print(f"    note: {warning}")
        if entry.action != "run":
            continue
        if entry.memory_gib is not None:
            print(f"    predicted memory: {entry.memory_gib:.2f} GiB on the most loaded rank")
        if predicted and (found := predicted(entry.config)):
            seconds.append(found[1])
            line = rate_line(**short_value(found[0]))
            print(f"    predicted rate: {line}, about {duration(found[1])} in all")
        for line in starts[entry.config.config_hash()]:
            if line not in shared:
                print(f"    {line}")
    if seconds:
        print(total_line(seconds, budget_seconds))
    return 0


def _start(entry: Entry, runs: Path) -> tuple[str, ...]:
    """Return the variables of a run, each with its reason, and its command."""
    from scalebook.project import short
    from scalebook.running import launch

    directory = short(runs) / "RUN_ID"
    plan = launch.direct(entry.config, config_path=directory / "config.json", output=directory)
    variables = (f"{one.name}={one.value}  # {one.reason}" for one in plan.variables)
    return *variables, shlex.join(plan.command)


def _shared(starts: Collection[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the lines that all of several runs have, in their order."""
    if len(starts) < 2:
        return ()
    first, *others = starts
    return tuple(line for line in first if all(line in other for other in others))


def recover(options: argparse.Namespace) -> int:
    """Record what dead processes left under the runs folder."""
    from scalebook.project import runs_folder
    from scalebook.running.console import Console

    recover_all(runs_folder(str(options.runs or "")), Console())
    return 0
