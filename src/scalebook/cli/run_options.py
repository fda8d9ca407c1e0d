"""Flags of ``run`` that say which fields, how often, in which order and with which pauses."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from scalebook.cli.arguments import at_least

if TYPE_CHECKING:
    from scalebook.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument(
        "--set",
        dest="fields",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a field of every run; without --plan such fields describe a single run",
    )
    parser.add_argument("--repeats", type=at_least(1), metavar="N", help="run everything N times")
    parser.add_argument(
        "--order",
        choices=("planned", "random"),
        help="random: shuffled within each repeat; the default where there are repeats",
    )
    parser.add_argument(
        "--order-seed",
        type=at_least(0),
        metavar="SEED",
        help="of the random order; drawn if not given",
    )
    parser.add_argument(
        "--cool-down",
        metavar="30s|45C",
        help="wait between two runs: so many seconds, or until no GPU is hotter",
    )
    parser.add_argument(
        "--no-prune",
        dest="prune",
        action="store_false",
        help="run also what is larger than a configuration that ran out of memory",
    )


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
