"""Options of commands that train: which settings, in which order, and in which container."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebook.cli.interchange import add_log_to
from scalebook.cli.terminal import add_count, add_repeated, add_set, add_settings, add_text, without
from scalebook.errors import ConfigError, LaunchError, unknown
from scalebook.project import required_root
from scalebook.running.container.images import ASKABLE
from scalebook.settings import SETTINGS

if TYPE_CHECKING:
    from scalebook.facts.catalog.types import Platform
    from scalebook.plan import Plan
    from scalebook.running.container.engines import Choice
    from scalebook.running.container.nested import ContainerRequest

# Without --plan these change every run of the default plan; any other setting makes a single run.
OVERRIDES = {*("model", "engine", "nodes", "steps", "data", "profile_steps", "time_limit_seconds")}
# These have flags with a meaning of their own in ``run``: --gpus is a limit, plans name strategies.
OWN = ("platform", "world_size", "strategy")


def add_settings_and_order(parser: argparse.ArgumentParser) -> None:
    """Add the flags of settings, repeats, order and pauses."""
    group = parser.add_argument_group(
        "settings of every run",
        "without --plan, --model, --engine, --nodes, --steps, --data, --profile and --time-limit "
        "change the default plan; any other setting describes a single run",
    )
    add_settings(group, (n for n, row in SETTINGS.items() if row.help and n not in OWN))
    text = "profile STEPS more steps (default: 2) and keep the trace of rank 0"
    add_count(group, "--profile", "STEPS", text, dest="profile_steps", nargs="?", const=2)
    add_count(group, "--time-limit", "S", "time limit per run", dest="time_limit_seconds")
    add_set(group)
    group = parser.add_argument_group("order of the runs")
    add_count(group, "--repeats", "N", "run everything N times")
    text = "random: shuffled within each repeat (default with repeats)"
    group.add_argument("--order", choices=("planned", "random"), help=text)
    add_count(group, "--order-seed", "SEED", "seed of the random order (default: drawn)", least=0)
    text = "wait between runs: N seconds, or until no GPU is hotter than N degrees"
    group.add_argument("--cool-down", metavar="30s|45C", help=text)
    text = "also run configurations larger than one that ran out of memory"
    group.add_argument("--no-prune", dest="prune", action="store_false", help=text)


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that the flags and ``--set`` give.

    Raises:
        ConfigError: ``--set`` is malformed, or a setting is given both ways.
    """
    flags = {name: getattr(options, name, None) for name in SETTINGS if name != "platform"}
    given = {name: value for name, value in flags.items() if value is not None}
    assigned = fields(options.fields)
    for name in assigned.keys() & given.keys():
        raise ConfigError(f"{name} is given by its flag and by --set. Leave one out.")
    given |= assigned
    known_model(given)
    return given


def known_model(given: Mapping[str, Any]) -> None:
    """Refuse an unknown model that settings name, before a row of the plan is blamed for it."""
    from scalebook.facts import catalog

    if "model" in given:
        catalog.model(given["model"])


def scheduled(options: argparse.Namespace) -> dict[str, Any]:
    """Return the keys of a plan's schedule that the flags set.

    Raises:
        ConfigError: one is malformed, which is said before the plan is blamed.
    """
    from scalebook.plan import schedule

    found = {key: one for key in schedule.KEYS if (one := getattr(options, key)) is not None}
    schedule.read_schedule(found)
    return found


def fields(assignments: Iterable[str]) -> dict[str, Any]:
    """Return the values of ``NAME=VALUE`` texts, by the types of RunConfig's fields.

    Raises:
        ConfigError: a text has no ``=``, its name is unknown, or its value has another type.
    """
    return dict(_field(text) for text in assignments)


def _field(text: str) -> tuple[str, Any]:
    from scalebook.config import RunConfig

    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text!r} has no '='. Write --set NAME=VALUE.")
    if name == "platform":
        raise ConfigError("--set does not take the platform. Name it with --platform.")
    if name not in RunConfig.model_fields:
        raise ConfigError(unknown("parameter", name, RunConfig.model_fields))
    kind: Any = RunConfig.model_fields[name].annotation
    try:
        if kind is bool:
            return name, {"true": True, "false": False}[value.lower()]
        return name, kind(value) if kind in (int, float) else value
    except (KeyError, ValueError):
        words = {bool: "true or false", int: "a whole number", float: "a number"}
        wanted = next(word for known, word in words.items() if known is kind)
        raise ConfigError(f"--set {name}={value!r} is not {wanted}.") from None


def in_order(plan: Plan) -> Plan:
    """Return the plan in its order, with a seed drawn where a random order has none."""
    from scalebook.plan.schedule import draw_seed

    if plan.schedule.order == "planned" or plan.schedule.seed is not None:
        return plan
    return plan.shuffled(draw_seed())


def describe(plan: Plan) -> str | None:
    """Return order and pauses in a line; None where runs follow one another as planned."""
    schedule = plan.schedule
    parts: list[str] = []
    if schedule.order == "random":
        parts.append(f"Order: random within each repeat, --order-seed {schedule.seed}.")
    if schedule.cool_down is not None:
        parts.append(f"Cool-down between runs: {schedule.cool_down}.")
    return " ".join(parts) or None


# Containers -------------------------------------------------------------------------------------


def add_container(parser: argparse.ArgumentParser) -> None:
    """Add the options that say in which container a command runs."""
    group = parser.add_argument_group("in a container")
    text = "engine that starts the image; in a Slurm job: pyxis (or enroot), apptainer or none"
    group.add_argument("--container", choices=(*ASKABLE, "pyxis"), default="auto", help=text)
    text = "name or file of the image (default: Scalebook's own; required in Slurm jobs)"
    add_text(group, "--image", "REFERENCE", text)
    text = "option for the engine; replaces ours of the same name; repeatable"
    add_repeated(group, "--container-arg", "=--OPTION[=VALUE]", text)
    text = "variable to set, or to pass into the container; repeatable"
    add_repeated(group, "--env", "NAME[=VALUE]", text)


def set_variables(options: argparse.Namespace) -> None:
    """Set the variables of ``--env`` in this process, marked as named by the user."""
    from scalebook.host import ASKED
    from scalebook.running.container.nested import asked_variables

    values, names = asked_variables(options.env, os.environ)
    if options.env:
        before = os.environ.get(ASKED, "").split()
        os.environ.update({**values, ASKED: " ".join([*before, *values, *names])})


def enter_container(
    options: argparse.Namespace, platform: Platform, plan: Plan, runs: Path
) -> int | None:
    """Run the plan in a container and return its exit code; None to run it right here.

    A dry run prints the line that would be run, and returns None.
    """
    from scalebook.host import performance_variables
    from scalebook.running.container import follow, nested
    from scalebook.running.container.commands import OCI

    choice = _choice(options, platform.vendor)
    if choice.note:
        print(f"Running {choice.note}", flush=True)
    if choice.engine is None:
        set_variables(options)
        follow.follow()
        return None
    host = nested.describe(required_root(), runs.resolve())
    request = _request(options, choice.engine, platform.vendor)
    if any(planned.config.engine == "nemo" for planned in plan.runs):
        # Megatron-Bridge reads a model's configuration from Hugging Face
        request = replace(request, fetches=True)
    data = {Path(one.config.data).resolve().parent for one in plan.runs if one.config.data}
    command = nested.command(
        request,
        host,
        _inner_arguments(options, platform.name, runs),
        writes=(runs.resolve(),),
        reads=[*data, *([options.plan.resolve()] if options.plan else [])],
    )
    if options.dry_run:
        print(command.shown(), end="\n\n")
        return None
    performance = tuple(performance_variables(os.environ))
    if names := nested.not_passed(performance, options.env):
        print(f"Not passed into the container: {', '.join(names)} (name one with --env).")
    runs.mkdir(parents=True, exist_ok=True)
    remove = (request.engine, "rm", "--force", host.name) if request.engine in OCI else ()
    return follow.run(command, remove)


def _choice(options: argparse.Namespace, vendor: str) -> Choice:
    """Return the engine to use; a dry run of what cannot run here says so and continues."""
    from scalebook.running.container import engines, images
    from scalebook.running.container.engines import Choice, choose, surroundings

    if options.container == "none":
        return Choice(None)
    wanted = images.ENGINES if options.container == "auto" else (options.container,)
    if options.container == "auto" and (vendor == "cpu" or engines.current_container(os.environ)):
        wanted = ()  # no engine is used: none is asked, which can take a while
    here = surroundings(vendor, images.folder_of(required_root()), options.image, wanted)
    try:
        return choose(options.container, vendor, here)
    except LaunchError as error:
        if not options.dry_run:
            raise
        shown = None if options.container == "auto" else options.container
        return Choice(shown, f"dry only: {error}")


def _request(options: argparse.Namespace, engine: str, vendor: str) -> ContainerRequest:
    from scalebook.running.container import engines
    from scalebook.running.container.images import image, named_or_ours
    from scalebook.running.container.nested import ContainerRequest

    reference = named_or_ours(options.image, vendor, engine)
    found = None if options.dry_run else engines.find(engine, reference)
    known = None if isinstance(found, str) else found
    if known and not options.image and image(vendor).is_another_base(known.base):
        print(
            f"note: {reference} was built on {known.base}, and image.toml names "
            f"{image(vendor).base_reference}. Build it again: make image PLATFORM=..."
        )
    return ContainerRequest(
        engine=engine,
        vendor=vendor,
        image=reference,
        image_id=engines.content_id(known) if known else None,
        base=known.base if known else None,
        arguments=tuple(options.container_arg),
        variables=tuple(options.env),
    )


def _inner_arguments(options: argparse.Namespace, platform: str, runs: Path) -> list[str]:
    """Return the command line inside: the same, with every path absolute and no container."""
    outside = without(options.arguments, add_container, add_log_to)
    arguments = [one for one in outside if one != "--dry-run"]
    arguments += ["--platform", platform, "--runs", str(runs.resolve()), "--container", "none"]
    if options.plan:
        arguments += ["--plan", str(options.plan.resolve())]
    if options.data:
        arguments += ["--data", str(Path(options.data).resolve())]
    return arguments
