"""Which container engine a run uses: the one asked for, or the one that this machine offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scalebook.errors import LaunchError, unknown
from scalebook.running.container.images import ASKABLE, ENGINES


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a choice depends on.

    ``inside`` is the kind of container that this process is in. ``engines`` holds each engine that
    is installed, and what it lacks to run the image (None: nothing). ``trainer`` is None where
    torch and megatron-core can be imported here, else what is missing.
    """

    inside: str | None
    engines: Mapping[str, str | None]
    trainer: str | None


@dataclass(frozen=True, slots=True)
class Choice:
    """An engine, None to run right here; ``note`` says why where a person might wonder."""

    engine: str | None
    note: str | None = None


def choose(asked: str, vendor: str, here: Surroundings) -> Choice:
    """Return the engine to use; ``auto`` takes what works, and never hides what is missing.

    Raises:
        LaunchError: what was asked for is not here, or ``auto`` found no way to train.
    """
    if asked == "none":
        return Choice(None)
    if asked != "auto":
        return _asked(asked, here)
    if vendor == "cpu":
        return Choice(None)
    if here.inside is not None:
        return Choice(None, f"inside a container already ({here.inside})")
    for engine, lack in here.engines.items():
        if lack is None:
            return Choice(engine, f"in a container, by {engine}")
    if here.trainer is None:
        lacks = " ".join(lack for lack in here.engines.values() if lack)
        return Choice(None, f"without a container, on this machine's own torch. {lacks}".rstrip())
    raise LaunchError(_nothing(here))


def _asked(engine: str, here: Surroundings) -> Choice:
    if engine == "pyxis":
        raise LaunchError(
            "pyxis starts images in Slurm jobs. Add --launcher slurm, or use --container enroot."
        )
    if engine not in ASKABLE:
        raise LaunchError(unknown("container engine", engine, ASKABLE))
    if engine not in here.engines:
        found = ", ".join(here.engines) or "none"
        raise LaunchError(
            f"{engine} was not found. Install it, or use another engine (found here: {found})."
        )
    lack = here.engines[engine]
    if lack is not None:
        raise LaunchError(lack)
    return Choice(engine)


def _nothing(here: Surroundings) -> str:
    lacks = [lack for lack in here.engines.values() if lack]
    if not lacks:
        lacks = [f"No container engine was found ({', '.join(ENGINES)})."]
    return f"Nothing here can train. {' '.join(lacks)} Without a container: {here.trainer}"
