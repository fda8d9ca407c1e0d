"""Flags of ``run`` that say which settings, how often, in which order and with which pauses."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from scalebook.cli.arguments import add_set, add_settings, at_least
from scalebook.settings import SETTINGS

if TYPE_CHECKING:
    from scalebook.plan import Plan

# Without --plan these change every run of the default plan; any other setting makes a single run.
OVERRIDES = {
    *("model", "engine", "nodes", "steps", "data", "profile_steps", "time_limit_seconds"),
}
# These have flags with a meaning of their own in ``run``: --gpus is a limit, plans name strategies.
OWN = ("platform", "world_size", "strategy", "profile_steps", "time_limit_seconds")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    group = parser.add_argument_group(
        "settings of every run",
        "without --plan, --model, --engine, --nodes, --steps, --data, --profile and --time-limit "
        "change the default plan; any other setting describes a single run",
    )
    add_settings(group, (n for n, row in SETTINGS.items() if row.help and n not in OWN))
    group.add_argument(
        "--profile",
        dest="profile_steps",
        type=at_least(1),
        nargs="?",
        const=2,
        metavar="STEPS",
        help="profile STEPS more steps (default: 2) and keep the trace of rank 0",
    )
    group.add_argument(
        "--time-limit",
        dest="time_limit_seconds",
        type=at_least(1),
        metavar="S",
        help="time limit per run",
    )
    add_set(group, "any other setting")
    group = parser.add_argument_group("order of the runs")
    group.add_argument("--repeats", type=at_least(1), metavar="N", help="run everything N times")
    group.add_argument(
        "--order",
        choices=("planned", "random"),
        help="random: shuffled within each repeat (default with repeats)",
    )
    group.add_argument(
        "--order-seed",
        type=at_least(0),
        metavar="SEED",
        help="seed of the random order (default: drawn)",
    )
    group.add_argument(
        "--cool-down",
        metavar="30s|45C",
        help="wait between runs: N seconds, or until no GPU is hotter than N degrees",
    )
    group.add_argument(
        "--no-prune",
        dest="prune",
        action="store_false",
        help="also run configurations larger than one that ran out of memory",
    )


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that the flags and ``--set`` give.

    Raises:
        ConfigError: ``--set`` is malformed, or a setting is given both ways.
    """
    from scalebook.errors import ConfigError

    flags = {name: getattr(options, name, None) for name in SETTINGS if name != "platform"}
    given = {name: value for name, value in flags.items() if value is not None}
    assigned = fields(options.fields)
    for name in assigned.keys() & given.keys():
        raise ConfigError(f"{name} is given by its flag and by --set. Leave one out.")
    return given | assigned


def is_single(options: argparse.Namespace) -> bool:
    """Whether the settings describe a single run where no plan is named."""
    return not settings(options).keys() <= OVERRIDES


def scheduled(options: argparse.Namespace) -> dict[str, Any]:
    """Return the keys of a plan's schedule that the flags set."""
    names = ("repeats", "order", "order_seed", "cool_down")
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def fields(assignments: Iterable[str]) -> dict[str, Any]:
    """Return the values of ``NAME=VALUE`` texts, by the types of RunConfig's fields.

    Raises:
        ConfigError: a text has no ``=``, its name is unknown, or its value has another type.
    """
    return dict(_field(text) for text in assignments)


def _field(text: str) -> tuple[str, Any]:
    from scalebook.config import RunConfig
    from scalebook.errors import ConfigError, unknown

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
