"""Check parameters against a notebook, then execute it by papermill.

Papermill itself only warns about an unknown name and injects a text where a number belongs, so
names and types are compared with the notebook's ``parameters`` cell before a kernel starts.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from scalebook import catalog, detect
from scalebook.config import RunConfig
from scalebook.errors import ConfigError, LaunchError

TYPES: dict[str, type[object]] = {"str": str, "int": int, "float": float, "bool": bool}
# What IPython puts into a kernel's namespace beside names with an underscore.
STATUS_SECONDS = 2.0
# ipykernel warns at every start that it talks over loopback; its errors are still shown.
QUIET_KERNEL: dict[str, Any] = {"extra_arguments": ["--log-level=ERROR"]}
KERNEL_NAMES = frozenset({"In", "Out", "exit", "quit", "open", "get_ipython"})


class NotebookError(LaunchError):
    """A notebook's kernel died, or one of its cells raised."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What 10_train.ipynb takes beside the configuration: how and where to run it.

    ``run_directory`` is a partial run directory that the caller owns and publishes; empty: one is
    made under ``runs``. ``trainer`` is the module that torchrun starts; empty: scalebook.train.
    """

    runs: str = ""
    run_directory: str = ""
    trainer: str = ""
    force_platform: bool = False


def parameters_of(notebook: Path) -> dict[str, str]:
    """Return the name and type name of each parameter of a notebook.

    Raises:
        LaunchError: the notebook cannot be read, or a parameter has no plain type.
    """
    if not notebook.is_file():
        raise LaunchError(f"Notebook {notebook} was not found.")
    found: dict[str, dict[str, str]] = _papermill().inspect_notebook(str(notebook))
    types = {name: parameter["inferred_type_name"] for name, parameter in found.items()}
    for name, type_name in types.items():
        if type_name not in TYPES:
            known = ", ".join(TYPES)
            raise LaunchError(
                f"Parameter {name} of notebook {notebook.name} has the type {type_name}. "
                f"Write one of {known}."
            )
    return types


def validate(notebook: Path, parameters: Mapping[str, Any]) -> None:
    """Refuse parameters that the notebook does not have, or has with another type.

    Raises:
        ConfigError: a name or a type does not fit.
    """
    types = parameters_of(notebook)
    for name, value in parameters.items():
        if name not in types:
            raise ConfigError(_unknown(notebook, name, types))
        if not _fits(value, TYPES[types[name]]):
            raise ConfigError(
                f"Parameter {name}={value!r} is a {type(value).__name__}; notebook "
                f"{notebook.name} takes a {types[name]}."
            )


def _unknown(notebook: Path, name: str, known: Mapping[str, str]) -> str:
    matches = get_close_matches(name, known, n=1)
    hint = f"Did you mean {matches[0]!r}?" if matches else f"It has: {', '.join(known)}."
    return f"Notebook {notebook.name} has no parameter {name!r}. {hint}"


def _fits(value: Any, wanted: type[object]) -> bool:
    """Return whether a value has a type; a bool is no int here, and an int is a float."""
    if isinstance(value, bool) or wanted is bool:
        return isinstance(value, bool) and wanted is bool
    return isinstance(value, int | float) if wanted is float else isinstance(value, wanted)


def execute(notebook: Path, output: Path, parameters: Mapping[str, Any]) -> None:
    """Execute a notebook in a kernel of this Python; the executed copy goes to ``output``.

    Safe in a thread: no signal handler is touched. The copy is written also when a cell fails.

    Raises:
        ConfigError: a parameter does not fit; nothing was started.
        NotebookError: the kernel died or a cell raised.
    """
    validate(notebook, parameters)
    # A kernel "python3" of the user's own may be another Python: that of this environment wins.
    os.environ.setdefault("JUPYTER_PREFER_ENV_PATH", "1")
    papermill = _papermill()
    try:
        papermill.execute_notebook(
            str(notebook), str(output), dict(parameters), progress_bar=False, **QUIET_KERNEL
        )
    except papermill.PapermillExecutionError as error:
        raise NotebookError(
            f"A cell of {notebook.name} raised {error.ename}: {error.evalue}"
        ) from error
    except RuntimeError as error:  # nbclient's DeadKernelError is one
        raise NotebookError(f"The notebook's kernel ended early: {error}") from error


def _papermill() -> Any:
    """Return the module, which has no types, and keep its notes about itself off the terminal.

    Raises:
        LaunchError: it is not installed.
    """
    try:
        module = import_module("papermill")
    except ImportError as error:
        message = "papermill is not installed. Install the extra: pip install 'scalebook[run]'."
        raise LaunchError(message) from error
    logging.getLogger("papermill").setLevel(logging.ERROR)
    return module


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
        if not _fits(own[name], wanted):
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
    """Return a function that shows a text in one line of the running cell, in place of the last.

    The line changes at most once in two seconds: each change is a message to whoever reads.
    """
    display: Any = import_module("IPython.display").display
    handle = display({"text/plain": "starting"}, raw=True, display_id=True)
    next_change = time.monotonic()

    def show(text: str) -> None:
        nonlocal next_change
        if time.monotonic() >= next_change:
            next_change = time.monotonic() + STATUS_SECONDS
            handle.update({"text/plain": text}, raw=True)

    return show
