"""What 10_train.ipynb calls besides the runner: its parameters, read strictly, and a status."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

from scalebook.config import RunConfig
from scalebook.errors import ConfigError
from scalebook.facts import catalog
from scalebook.notebooks import fits
from scalebook.running.devices import detect

# What IPython puts into a kernel's namespace beside names with an underscore.
KERNEL_NAMES = frozenset({"In", "Out", "exit", "quit", "open", "get_ipython"})


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What 10_train.ipynb takes in addition to the configuration: how and where to run it.

    ``run_directory`` is a partial run directory that the caller owns and publishes; empty: one is
    made under ``runs``. ``trainer`` is the module that torchrun starts; empty: scalebook.train.
    """

    runs: str = ""
    run_directory: str = ""
    trainer: str = ""
    force_platform: bool = False


def run_parameters(namespace: Mapping[str, Any]) -> tuple[RunConfig, RunOptions]:
    """Return what 10_train.ipynb was asked to run, from its namespace, strictly checked.

    Papermill by hand injects whatever it is given: a name that is no parameter is found here.
    An empty ``platform`` or ``precision`` stands for what the machine has.

    Raises:
        ConfigError: a name is unknown, or a value has another type or is out of range.
    """
    given = {name: value for name, value in namespace.items() if _is_parameter(name, value)}
    own: dict[str, Any] = {}
    for name, field in RunOptions.__dataclass_fields__.items():
        own[name] = given.pop(name, field.default)
        wanted = cast("type[object]", type(field.default))
        if not fits(own[name], wanted):
            kind = type(own[name]).__name__
            raise ConfigError(
                f"Parameter {name}={own[name]!r} is a {kind}, not a {wanted.__name__}."
            )
    return RunConfig.from_parameters(_settled(given)), RunOptions(**own)


def _is_parameter(name: str, value: Any) -> bool:
    """Return whether a name of a kernel's namespace can be a parameter, right or wrong."""
    plain = value is None or isinstance(value, str | int | float | list | dict | tuple)
    return plain and not name.startswith("_") and name not in KERNEL_NAMES


def _settled(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with an empty platform or precision replaced by the machine's."""
    settled = dict(given)
    if settled.get("platform") == "":
        settled["platform"] = detect.platform_of(detect.detect()).name
    if settled.get("precision") == "" and isinstance(settled.get("platform"), str):
        settled["precision"] = catalog.platform(settled["platform"]).default_precision
    return settled


def status_line() -> Callable[[str], None]:
    """Return a function that shows a text in one line of the running cell, replacing the last."""
    display: Any = import_module("IPython.display").display
    handle = display({"text/plain": "starting"}, raw=True, display_id=True)
    return lambda text: handle.update({"text/plain": text}, raw=True)
