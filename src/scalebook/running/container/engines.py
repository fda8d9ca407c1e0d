"""What container engines this machine has, and whether they have an image: asked, not guessed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from scalebook.query import ask
from scalebook.running.container import inside, oci
from scalebook.running.container.choose import Surroundings
from scalebook.running.container.images import ENGINES, image


@dataclass(frozen=True, slots=True)
class LocalImage:
    """An image that an engine has: its id, and the base it was built on where a label says."""

    reference: str
    image_id: str | None
    base: str | None


def find(engine: str, reference: str) -> LocalImage | str:
    """Return an engine's image, or a sentence that says what is missing and what to do."""
    if engine not in ("docker", "podman"):
        return _file(engine, reference)
    answer = ask(oci.inspect(engine, reference))
    if answer.code == 0:
        image_id, _, base = answer.output.strip().partition(" ")
        return LocalImage(reference, image_id, base.strip() or None)
    lines = [line for line in answer.errors.strip().splitlines() if line.strip()]
    said = lines[-1] if lines else f"exit {answer.code}"
    if re.search(r"no such (image|object)|image not known|not found", said, re.IGNORECASE):
        return f"{engine} has no image {reference}. {_how_to_build(engine)}"
    return f"{engine} does not answer: {said.rstrip('.?! ')}."


def _file(engine: str, reference: str) -> LocalImage | str:
    # enroot also starts a container that was created under a plain name.
    if Path(reference).is_file() or (engine == "enroot" and "/" not in reference):
        return LocalImage(reference, None, None)
    return f"{engine}'s image file {reference} was not found. {_how_to_build(engine)}"


def _how_to_build(engine: str) -> str:
    return f"Build it (make image PLATFORM=... CONTAINER={engine}) or name one with --image."


def surroundings(
    vendor: str,
    folder: Path,
    named: str = "",
    engines: Sequence[str] = ENGINES,
    environment: Mapping[str, str] = os.environ,
) -> Surroundings:
    """Return what this machine offers; ``named`` is the image that the user named, if any."""
    found: dict[str, str | None] = {}
    for engine in engines:
        if shutil.which(engine) is not None:
            reference = named or image(vendor).reference(engine, str(folder))
            answer = find(engine, reference)
            found[engine] = answer if isinstance(answer, str) else None
    return Surroundings(inside.container(environment), found, missing_trainer())


def missing_trainer() -> str | None:
    """Return what this Python lacks to train, None where it lacks nothing."""
    if find_spec("torch") is None:
        return "torch is not installed (pip install 'scalebook[train]')."
    if find_spec("megatron") is None:
        return "megatron-core is not installed (pip install --no-deps megatron-core)."
    return None
