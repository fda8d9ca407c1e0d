"""Check parameters against a notebook, then execute it by papermill.

Papermill itself only warns about an unknown name and injects a text where a number belongs, so
names and types are compared with the notebook's ``parameters`` cell before a kernel starts.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

from scalebook import light_jsonschema
from scalebook.errors import ConfigError, LaunchError, not_installed

TYPES: dict[str, type[object]] = {"str": str, "int": int, "float": float, "bool": bool}
START_SECONDS = 600  # for a kernel to answer: its imports come from a cold shared disk at times
_LONGEST_SOCKET = 90  # characters: a Unix socket's path ends at 107, of which a name takes some
# ipykernel warns at every start how it talks. Now and then a kernel that is told to end while it
# sends prints a traceback of its messaging, or that it was interrupted. No user can act on these:
# papermill tells of a kernel that dies and of a cell that raises.
_LOGGING = {"loggers": {"tornado.general": {"level": "CRITICAL"}}}
QUIET_KERNEL: dict[str, Any] = {
    "extra_arguments": ["--log-level=CRITICAL", f"--IPKernelApp.logging_config={_LOGGING}"]
}


class NotebookError(LaunchError):
    """A notebook's kernel died, or one of its cells raised."""


class KernelDeathError(NotebookError):
    """A notebook's kernel is gone: a signal from outside, or the memory of the machine."""


def parameters_of(notebook: Path) -> dict[str, str]:
    """Return the name and type name of each parameter of a notebook.

    Raises:
        LaunchError: the notebook cannot be read, or a parameter has no plain type.
    """
    if not notebook.is_file():
        raise LaunchError(f"Notebook {notebook} was not found.")
    found: dict[str, dict[str, str]] = _papermill().inspect_notebook(papermill_path(notebook))
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
        if not fits(value, TYPES[types[name]]):
            raise ConfigError(
                f"Parameter {name}={value!r} is of type {type(value).__name__}; notebook "
                f"{notebook.name} takes {types[name]}."
            )


def _unknown(notebook: Path, name: str, known: Mapping[str, str]) -> str:
    matches = get_close_matches(name, known, n=1)
    hint = f"Did you mean {matches[0]!r}?" if matches else f"It has: {', '.join(known)}."
    return f"Notebook {notebook.name} has no parameter {name!r}. {hint}"


def fits(value: Any, wanted: type[object]) -> bool:
    """Return whether a value has a type; a bool is not an int here, and an int is a float."""
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
        with _connection() as traits:
            papermill.execute_notebook(
                papermill_path(notebook),
                papermill_path(output),
                dict(parameters),
                progress_bar=False,
                start_timeout=START_SECONDS,
                **QUIET_KERNEL,
                **traits,
            )
    except papermill.PapermillExecutionError as error:
        raise NotebookError(
            f"A cell of {notebook.name} raised {error.ename}: {error.evalue}"
        ) from error
    except RuntimeError as error:  # nbclient's DeadKernelError is one
        raise KernelDeathError(f"The notebook's kernel ended early: {error}") from error


@contextmanager
def _connection() -> Generator[dict[str, Any]]:
    """Yield what makes a kernel talk through sockets in a folder that only this user may enter.

    A port is chosen before the kernel binds it: another program that takes it meanwhile costs the
    run. Other users of the machine can reach a port, too.
    """
    with tempfile.TemporaryDirectory(prefix="scalebook-") as folder:
        if len(folder) > _LONGEST_SOCKET or os.name != "posix":
            yield {}
            return
        manager = {"transport": "ipc", "connection_file": str(Path(folder, "kernel.json"))}
        yield {"config": import_module("traitlets.config").Config({"KernelManager": manager})}


def papermill_path(path: Path) -> str:
    """Return a path as papermill takes it, which puts parameters in the place of ``{name}``."""
    return str(path).replace("{", "{{").replace("}", "}}")


def _papermill() -> Any:
    """Return the module, which has no types, and keep its notes about itself off the terminal.

    Raises:
        LaunchError: it is not installed.
    """
    light_jsonschema.load()
    try:
        module = import_module("papermill")
    except ImportError as error:
        raise LaunchError(not_installed("papermill", "run")) from error
    logging.getLogger("papermill").setLevel(logging.ERROR)
    return module
