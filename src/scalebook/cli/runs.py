"""Commands that train: ``run``, ``recover`` and ``drill``."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebook.cli import interchange, run_options, scheduler
from scalebook.cli.terminal import (
    Subparsers,
    add_count,
    add_json,
    add_path,
    add_platform,
    add_runs,
    add_set,
    add_start,
    add_switch,
    existing_runs,
    number,
    print_json,
    print_table,
)
from scalebook.errors import ConfigError, LaunchError
from scalebook.project import TRAIN_NOTEBOOK, required_root, runs_folder, short
from scalebook.running.console import Console

if TYPE_CHECKING:
    from scalebook.config import RunConfig
    from scalebook.facts.catalog.types import Platform
    from scalebook.plan import Plan
    from scalebook.running.drill import Drilled
    from scalebook.running.todo import Entry, Inference

PARTS = (
    ("detection_seconds", "torchrun notices the failure"),
    ("start_seconds", "new processes have started"),
    ("build_seconds", "process group and model are built"),
    ("load_seconds", "the checkpoint is loaded"),
    ("step_seconds", "a step is finished"),
    ("next_step_seconds", "all of these"),
    ("regained_seconds", "until the first new step"),
)


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    text = "train the runs of a plan that are not completed yet"
    _add_run(subparsers.add_parser("run", run, help=text))
    parser = subparsers.add_parser("recover", recover, help="record runs whose process died")
    add_runs(parser)
    text = "kill a rank and measure how training recovers"
    _add_drill(subparsers.add_parser("drill", drill, help=text))


def _add_run(parser: argparse.ArgumentParser) -> None:
    add_platform(parser)
    text = "TOML plan (default: a small plan in runs/plans; see the settings below)"
    add_path(parser, "--plan", "FILE", text)
    add_count(parser, "--gpus", "N", "use at most N GPUs")
    add_runs(parser)
    add_start(parser)
    add_switch(parser, "--rerun", "repeat completed runs")
    add_count(parser, "--budget-seconds", "S", "time for the plan")
    add_switch(parser, "--dry-run", "print the commands without starting them")
    interchange.add_log_to(parser)
    run_options.add_settings_and_order(parser)
    scheduler.add_arguments(parser)
    run_options.add_container(parser)


def _add_drill(parser: argparse.ArgumentParser) -> None:
    add_platform(parser)
    text = "TOML plan whose first run is drilled (default: runs/plans/drill.toml)"
    add_path(parser, "--plan", "FILE", text)
    parser.add_argument("--model", help="model to train instead of the plan's")
    add_count(parser, "--gpus", "N", "use at most N GPUs")
    add_count(parser, "--steps", "STEPS", "optimizer steps", least=2)
    add_count(parser, "--checkpoint-interval", "STEPS", "steps between checkpoints")
    parser.add_argument(
        "--async",
        dest="asynchronous",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="save while training continues (default: yes)",
    )
    add_count(parser, "--kill-step", "STEP", "kill after this step")
    add_count(parser, "--kill-rank", "RANK", "rank to kill (default: the last)", least=0)
    add_switch(parser, "--during-save", "kill while the next checkpoint is being saved")
    text = "skip the reference run without a failure"
    parser.add_argument("--no-reference", dest="reference", action="store_false", help=text)
    add_set(parser)
    add_runs(parser)
    add_start(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Run a plan; 0 if any of its configurations has a completed run."""
    from scalebook.running import finish_run, launch, sweep, todo

    scheduler.refuse_idle(options)
    after = interchange.after_run(options)
    if options.launcher != "direct":
        return scheduler.run(options, _load)
    platform, devices, device_name = _machine(options)
    plan = _load(options, platform, devices)
    runs = runs_folder(options.runs)
    ended = _in_container(options, platform, plan, runs, after)
    if ended is not None:
        return ended
    if options.dry_run:
        return _dry_run(options, plan, runs, devices)
    console = Console()
    finish_run.recover_all(runs, console.say)
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
        plan=plan,
        prune=options.prune,
        rerun=options.rerun,
        accelerator=device_name,
        after=after,
    )
    counts = [sum(entry.action == action for entry in entries) for action in ("run", "done")]
    console.say("Plan {!r}: {} to run, {} done, of {}.".format(plan.name, *counts, len(entries)))
    if line := run_options.describe(plan):
        console.say(line)
    with sweep.stop_on_signals(settings.budget_seconds) as stop:
        results = sweep.run_plan(entries, settings, console, stop)
    console.say("\n".join(("", *sweep.summary(results))))
    if stop.sentence() is not None:
        console.say("The same command continues here: it skips completed runs.")
    return sweep.exit_code(results, stop)


def _in_container(
    options: argparse.Namespace,
    platform: Platform,
    plan: Plan,
    runs: Path,
    after: Callable[[Path], Sequence[str]] | None,
) -> int | None:
    """Run the plan in a container if asked to; return its exit status, None to run it here.

    The container's runs are handed to ``after`` here: those that are new in the folder.
    """
    from scalebook import store

    before = set(store.run_directories(runs)) if after else set[Path]()
    ended = run_options.enter_container(options, platform, plan, runs)
    if ended is not None and after:
        interchange.log_new(after, store.run_directories(runs), before)
    return ended


def _dry_run(options: argparse.Namespace, plan: Plan, runs: Path, devices: int | None) -> int:
    from scalebook.running import todo

    entries = todo.survey(plan, runs, devices, options.rerun)
    if line := run_options.describe(plan):
        print(line)
    pruned = todo.inferences(entries, runs, fresh=options.rerun) if options.prune else {}
    return _show(entries, runs, pruned, options.budget_seconds)


def _machine(options: argparse.Namespace) -> tuple[Platform, int | None, str | None]:
    """Return the platform to run as, how many GPUs it may use, and what their driver calls them.

    Both are None on a CPU, and where the machine is not asked: in a dry run.
    """
    from scalebook.facts import catalog
    from scalebook.running import launch
    from scalebook.running.devices import detect

    if options.platform:
        platform = catalog.platform(options.platform)
        if platform.vendor == "cpu" or options.dry_run:
            return platform, None if platform.vendor == "cpu" else options.gpus, None
        machine = detect.detect()
        refusal = detect.refusal(platform, machine)
        if refusal and not options.force_platform:
            if machine.vendor == "cpu":
                named = f"Platform {platform.name!r} needs {platform.accelerator}, and no GPU"
                refusal = f"{named} was found here. {launch.explain_missing_gpus(platform)}"
            raise LaunchError(refusal)
    else:
        machine = detect.detect()
        platform = detect.platform_of(machine)
        print(f"This machine has {machine.describe()}: platform {platform.name}.", flush=True)
    if platform.vendor == "cpu":
        return platform, None, None
    return platform, min(machine.count, options.gpus or machine.count), machine.device_name


def _load(options: argparse.Namespace, platform: Platform, devices: int | None) -> Plan:
    from scalebook.plan import load_plan, single_plan

    name = "quick.toml" if platform.vendor == "cpu" else "gpu_quick.toml"
    path = options.plan or required_root() / "runs" / "plans" / name
    given = run_options.settings(options)
    shared: dict[str, Any] = {
        "platform": platform.name,
        "world_size": options.gpus if devices is None else devices,
        "scheduled": run_options.scheduled(options),
    }
    if options.plan is None and not given.keys() <= run_options.OVERRIDES:
        plan = single_plan(given, **shared)
    else:
        plan = load_plan(path, overrides=given, **shared)
    return run_options.in_order(plan)


def _show(
    entries: tuple[Entry, ...],
    runs: Path,
    pruned: Mapping[str, Inference],
    budget_seconds: float | None = None,
) -> int:
    """Print what would be run, how, with which variables, and how long it is likely to take."""
    from scalebook.cli.predict import duration, forecast, predicted_line, short_value, total_line
    from scalebook.running.todo import label

    predicted = forecast(entries[0].config.platform, runs) if entries else None
    starts = {e.config.config_hash(): _start(e, runs) for e in entries if e.action == "run"}
    shared = _shared(starts.values())
    for line in ("Every run:", *(f"    {line}" for line in shared)) if shared else ():
        print(line)
    seconds: list[float | None] = []
    for entry in entries:
        inference = pruned.get(entry.config.config_hash())
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
        found = predicted(entry.config) if predicted else ""
        if isinstance(found, str):
            print(f"    {predicted_line(found)}")
        else:
            seconds.append(found[1])
            line = predicted_line(short_value(found[0]))
            print(f"    {line}, about {duration(found[1])} in all")
        for line in starts[entry.config.config_hash()]:
            if line not in shared:
                print(f"    {line}")
    if seconds:
        print(total_line(seconds, budget_seconds))
    return 0


def _start(entry: Entry, runs: Path) -> tuple[str, ...]:
    """Return the variables of a run, each with its reason, and its command."""
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
    from scalebook.running.finish_run import recover_all

    recover_all(existing_runs(options.runs), Console().say)
    return 0


def drill(options: argparse.Namespace) -> int:
    """Run a drill; 0 if training came back from the last checkpoint with the same losses."""
    from scalebook.running import drill as drills
    from scalebook.running.finish_run import recover_all
    from scalebook.running.kernel import RunOptions

    config = _drilled(options)
    order = drills.ordered(config, options.kill_rank, options.kill_step, options.during_save)
    runs = runs_folder(str(options.runs or ""))
    console = Console(sys.stderr)
    recover_all(runs, console.say)
    how = RunOptions(trainer=options.trainer, force_platform=options.force_platform)
    undisturbed = None
    if options.reference:
        console.say("reference: the same training without a failure")
        undisturbed = drills.reference(config, runs, how)
    console.say(f"drill: rank {order.rank} is killed after step {order.step}")
    result = drills.drill(config, order, runs, options=how, undisturbed=undisturbed)
    _print_drill(result, options.json)
    if result.record.status == "interrupted":
        raise KeyboardInterrupt
    return 0 if result.drill.passed else 1


def _drilled(options: argparse.Namespace) -> RunConfig:
    """Return the first configuration of the plan for this machine, with what the flags change."""
    from scalebook.facts import catalog
    from scalebook.plan import load_plan
    from scalebook.running.devices import detect

    machine = detect.detect()
    platform = (
        catalog.platform(options.platform) if options.platform else detect.platform_of(machine)
    )
    room = None
    if platform.vendor != "cpu":
        room = min(machine.count, options.gpus or machine.count) or options.gpus
    given: dict[str, Any] = {
        "model": options.model,
        "steps": options.steps,
        "checkpoint_interval": options.checkpoint_interval,
        "checkpoint_async": options.asynchronous,
        # A CPU has as many processes as one asks for; GPUs are those that there are.
        "world_size": options.gpus if platform.vendor == "cpu" else None,
    }
    overrides = {name: value for name, value in given.items() if value is not None}
    overrides |= run_options.fields(options.fields)
    run_options.known_model(overrides)
    plan = load_plan(
        options.plan or required_root() / "runs" / "plans" / "drill.toml",
        platform=platform.name,
        world_size=room,
        overrides=overrides,
    )
    if not plan.runs:
        raise ConfigError(f"Plan {plan.name!r} has no run for platform {platform.name!r}.")
    config = plan.runs[0].config
    if config.checkpoint_interval:
        return config
    # A plan that was not written for drills: four checkpoints.
    return config.model_copy(update={"checkpoint_interval": max(config.steps // 4, 1)})


def _print_drill(result: Drilled, as_json: bool) -> None:
    record, found = result.record, result.drill
    if as_json:
        value = {"run": record.run_id, "status": record.status, **found.model_dump(mode="json")}
        print_json(value)
        return
    rows = [(words, number(getattr(found, name), 3)) for name, words in PARTS]
    print_table(("after the kill", "seconds"), rows)
    print(_outcome(result))
    for note in found.notes:
        print(f"note: {note}")


def _outcome(result: Drilled) -> str:
    record, found = result.record, result.drill
    if record.status != "completed":
        return f"Not recovered: {record.status}. {record.reason} Record: {result.path}"
    start = (
        f"continued from the checkpoint of step {found.resumed_step}"
        if found.resumed_step is not None
        else "restarted without a checkpoint"
    )
    difference = found.largest_loss_difference
    losses = (
        "no loss to compare"
        if difference is None
        else f"all {found.compared_steps} compared losses are identical"
        if found.identical
        else f"{found.compared_steps} compared losses differ by up to {difference:.2%}"
    )
    outcome = "Recovered" if found.passed else "Not recovered as expected"
    return (
        f"{outcome}: killed after step {found.last_step}, training {start}; "
        f"repeated steps: {found.steps_lost}; {losses}. Record: {result.path}"
    )
