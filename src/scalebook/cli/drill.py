"""The command ``drill``: kill a rank of a training and measure how it comes back."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebook.cli import run_options
from scalebook.cli.arguments import Subparsers, add_json, add_runs, add_set, at_least
from scalebook.cli.leftovers import recover_all
from scalebook.cli.output import number, print_json, print_table

if TYPE_CHECKING:
    from scalebook.config import RunConfig
    from scalebook.running.drill import Drilled

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
    parser = subparsers.add_parser("drill", help="kill a rank and measure how training recovers")
    parser.add_argument("--platform", help="platform (default: that of this machine)")
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="FILE",
        help="TOML plan; its first run is drilled (default: runs/plans/drill.toml)",
    )
    parser.add_argument("--model", help="model to train instead of the plan's")
    parser.add_argument("--gpus", type=at_least(1), metavar="N", help="use at most N GPUs")
    parser.add_argument("--steps", type=at_least(2), metavar="STEPS", help="optimizer steps")
    parser.add_argument(
        "--checkpoint-interval", type=at_least(1), metavar="STEPS", help="steps between checkpoints"
    )
    parser.add_argument(
        "--async",
        dest="asynchronous",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="save while training continues (default: yes)",
    )
    parser.add_argument(
        "--kill-step", type=at_least(1), metavar="STEP", help="kill after this step"
    )
    parser.add_argument(
        "--kill-rank", type=at_least(0), metavar="RANK", help="rank to kill (default: the last)"
    )
    parser.add_argument(
        "--during-save", action="store_true", help="kill while the next checkpoint is being saved"
    )
    parser.add_argument(
        "--no-reference",
        dest="reference",
        action="store_false",
        help="skip the reference run without a failure",
    )
    add_set(parser, "any other setting")
    add_runs(parser)
    parser.add_argument(
        "--force-platform", action="store_true", help="run even if the device differs"
    )
    parser.add_argument("--trainer", default="", help=argparse.SUPPRESS)
    add_json(parser)
    parser.set_defaults(handler=drill)


def drill(options: argparse.Namespace) -> int:
    """Run a drill; 0 if training came back from the last checkpoint with the same losses."""
    from scalebook.project import runs_folder
    from scalebook.running import drill as drills
    from scalebook.running.console import Console
    from scalebook.running.kernel import RunOptions

    config = _config(options)
    order = drills.ordered(config, options.kill_rank, options.kill_step, options.during_save)
    runs = runs_folder(str(options.runs or ""))
    recover_all(runs, Console(sys.stderr))
    how = RunOptions(trainer=options.trainer, force_platform=options.force_platform)
    undisturbed = None
    if options.reference:
        _say("reference: the same training without a failure")
        undisturbed = drills.reference(config, runs, how)
    _say(f"drill: rank {order.rank} is killed after step {order.step}")
    result = drills.drill(config, order, runs, options=how, undisturbed=undisturbed)
    _show(result, options.json)
    return 0 if result.drill.passed else 1


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _config(options: argparse.Namespace) -> RunConfig:
    """Return the first configuration of the plan for this machine, with what the flags change."""
    from scalebook.errors import ConfigError
    from scalebook.facts import catalog
    from scalebook.plan import load_plan
    from scalebook.project import required_root
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
    plan = load_plan(
        options.plan or required_root() / "runs" / "plans" / "drill.toml",
        platform=platform.name,
        world_size=room,
        overrides=overrides | run_options.fields(options.fields),
    )
    if not plan.runs:
        raise ConfigError(f"Plan {plan.name!r} has no run for platform {platform.name!r}.")
    config = plan.runs[0].config
    if config.checkpoint_interval:
        return config
    # A plan that was not written for drills: four checkpoints.
    return config.model_copy(update={"checkpoint_interval": max(config.steps // 4, 1)})


def _show(result: Drilled, as_json: bool) -> None:
    record, found = result.record, result.drill
    if as_json:
        value = {"run": record.run_id, "status": record.status, **found.model_dump(mode="json")}
        print_json(value)
        return
    rows = [(words, number(getattr(found, name), 3)) for name, words in PARTS]
    print_table(("from the kill on", "seconds"), rows)
    print(_verdict(result))
    for note in found.notes:
        print(f"note: {note}")


def _verdict(result: Drilled) -> str:
    """Return what became of the training in words."""
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
