"""The command ``drill``: kill a rank of a training and measure how it comes back."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebook.cli import run_options
from scalebook.cli.arguments import Subparsers, add_json, at_least
from scalebook.cli.output import number, print_json, print_table

if TYPE_CHECKING:
    from scalebook.config import RunConfig
    from scalebook.running.drill.drill import Drilled

PARTS = (
    ("detection_seconds", "torchrun sees that the rank is gone"),
    ("start_seconds", "new processes are there"),
    ("build_seconds", "they have met and built the model"),
    ("load_seconds", "the checkpoint is loaded"),
    ("step_seconds", "a step is finished"),
    ("next_step_seconds", "all of these"),
    ("regained_seconds", "kill to the first step that had not been done"),
)


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    parser = subparsers.add_parser("drill", help="kill a rank, and measure how training comes back")
    parser.add_argument("--platform", help="cpu, h100, mi300x, ...; default: what this machine has")
    parser.add_argument("--plan", type=Path, help="TOML file, of which the first run is drilled")
    parser.add_argument("--model", help="train this model in place of the plan's")
    parser.add_argument("--gpus", type=at_least(1), help="use at most so many GPUs")
    parser.add_argument("--steps", type=at_least(2), help="optimizer steps")
    parser.add_argument("--checkpoint-interval", type=at_least(1), help="steps between checkpoints")
    parser.add_argument(
        "--async",
        dest="asynchronous",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="save while training goes on (default: yes)",
    )
    parser.add_argument("--kill-step", type=at_least(1), metavar="K", help="kill after this step")
    parser.add_argument("--kill-rank", type=at_least(0), metavar="R", help="default: the last rank")
    parser.add_argument(
        "--during-save", action="store_true", help="kill while the next checkpoint is saved"
    )
    parser.add_argument(
        "--no-reference",
        dest="reference",
        action="store_false",
        help="do not train the same without a kill, to compare the losses with",
    )
    parser.add_argument(
        "--set", dest="fields", action="append", default=[], metavar="NAME=VALUE",
        help="any other field of the configuration",
    )  # fmt: skip
    parser.add_argument("--runs", type=Path, help="folder of run directories; default: runs")
    parser.add_argument(
        "--force-platform", action="store_true", help="run also where the device is another"
    )
    parser.add_argument("--trainer", default="", help=argparse.SUPPRESS)
    add_json(parser)
    parser.set_defaults(handler=drill)


def drill(options: argparse.Namespace) -> int:
    """Run a drill; 0 if training came back from the last checkpoint with the same losses."""
    from scalebook.project import runs_folder
    from scalebook.running.drill import drill as drills
    from scalebook.running.kernel import RunOptions

    config = _config(options)
    order = drills.ordered(config, options.kill_rank, options.kill_step, options.during_save)
    runs = runs_folder(str(options.runs or ""))
    how = RunOptions(trainer=options.trainer, force_platform=options.force_platform)
    undisturbed = None
    if options.reference:
        _say("the reference: the same training, not interrupted")
        undisturbed = drills.reference(config, runs, how)
    _say(f"the drill: rank {order.rank} is killed after step {order.step}")
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
        told = {"run": record.run_id, "status": record.status, **found.model_dump(mode="json")}
        print_json(told)
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
        f"went on from the checkpoint of step {found.resumed_step}"
        if found.resumed_step is not None
        else "began again without a checkpoint"
    )
    difference = found.largest_loss_difference
    losses = (
        "no loss to compare"
        if difference is None
        else f"all {found.compared_steps} compared losses are identical"
        if found.identical
        else f"{found.compared_steps} compared losses differ by up to {difference:.2%}"
    )
    outcome = "Recovered" if found.passed else "Not recovered as it should"
    return (
        f"{outcome}: killed after step {found.last_step}, training {start}; "
        f"steps done twice: {found.steps_lost}; {losses}. Record: {result.path}"
    )
