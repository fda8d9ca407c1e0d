"""How often each configuration runs, in which order, and what is waited for between two runs."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from scalebook.config import RunConfig
from scalebook.errors import ConfigError

Order = Literal["planned", "random", "adaptive"]  # the last: as the runs before it suggest

KEYS = ("repeats", "order", "order_seed", "cool_down")
ORDERS = ("planned", "random")
MOST_REPEATS = 1000
LONGEST_SECONDS = 86_400
COLDEST, HOTTEST = 10, 110  # °C: below the first no room cools a GPU, the second none outlives
_COOL_DOWN = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s?(s|C)")


@dataclass(frozen=True, slots=True)
class CoolDown:
    """The wait before the next run: a number of seconds, or a temperature of every GPU."""

    seconds: float | None = None
    celsius: float | None = None

    def __str__(self) -> str:
        """Return the text that is parsed to this value."""
        return f"{self.celsius:g}C" if self.seconds is None else f"{self.seconds:g}s"


@dataclass(frozen=True, slots=True)
class Schedule:
    """``repeats`` None: as the runs say themselves; ``seed`` None: not drawn yet, or not needed."""

    repeats: int | None = None
    order: Order = "planned"
    seed: int | None = None
    cool_down: CoolDown | None = None


def read_schedule(values: Mapping[str, Any]) -> Schedule:
    """Return the schedule that the keys ``repeats``, ``order``, ``order_seed``, ``cool_down`` say.

    Repeats run in a random order unless another is named: what drifts with time, such as a
    temperature, then falls on every configuration alike.

    Raises:
        ConfigError: a value is malformed, or a seed is given for an order that has none.
    """
    repeats = whole(values, "repeats", 1, MOST_REPEATS)
    seed = whole(values, "order_seed", 0, 2**63 - 1)
    order = values.get("order")
    if order is None:
        order = "random" if seed is not None or (repeats or 1) > 1 else "planned"
    if order not in ORDERS:
        raise ConfigError(f"order={order!r} is not known. Use one of: {', '.join(ORDERS)}.")
    if order == "planned" and seed is not None:
        raise ConfigError(f"order_seed={seed} needs order='random'. Leave out one of them.")
    text = values.get("cool_down")
    return Schedule(repeats, order, seed, None if text is None else cool_down(text))


def whole(
    values: Mapping[str, Any], name: str, lowest: int = 1, highest: int | None = None
) -> int | None:
    """Return a whole number, None where it is not given.

    Raises:
        ConfigError: the value is another, or not within the limits.
    """
    value = values.get(name)
    if value is None:
        return None
    plain = isinstance(value, int) and not isinstance(value, bool)
    if not plain or value < lowest or (highest is not None and value > highest):
        limits = f"at least {lowest}" if highest is None else f"{lowest} to {highest}"
        raise ConfigError(f"{name}={value!r} must be a whole number of {limits}.")
    return value


def cool_down(text: Any) -> CoolDown | None:
    """Return what a text such as ``30s`` or ``45C`` asks for; None for no seconds.

    Raises:
        ConfigError: the text is neither, or out of range.
    """
    match = _COOL_DOWN.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ConfigError(
            f"cool_down={text!r} is not a pause. Give seconds, such as '30s', or the highest "
            "temperature of a GPU to start at, such as '45C'."
        )
    number = float(match[1])
    if match[2] == "s":
        if number > LONGEST_SECONDS:
            raise ConfigError(f"cool_down={text!r} is longer than a day.")
        return CoolDown(seconds=number) if number else None
    if not COLDEST <= number <= HOTTEST:
        raise ConfigError(f"cool_down={text!r} must be {COLDEST}C to {HOTTEST}C.")
    return CoolDown(celsius=number)


def draw_seed() -> int:
    """Return a seed for a random order; the caller must record it."""
    return secrets.randbelow(2**32)


def shuffled(configs: Iterable[RunConfig], seed: int) -> tuple[RunConfig, ...]:
    """Return the configurations in the random order of a seed, each repeat as a block.

    All of the first repeat run before the second, so that a plan cut short is balanced. In a block
    the order is that of sha256("SEED:CONFIG_HASH"): anyone can check it from the records alone,
    and leaving out what is done changes nothing about the rest.
    """

    def key(config: RunConfig) -> tuple[int, str]:
        text = f"{seed}:{config.config_hash()}"
        return config.repeat, hashlib.sha256(text.encode()).hexdigest()

    return tuple(sorted(configs, key=key))
