"""The container engine of a run: which are here and have the image (asked, not guessed)."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from scalebook.errors import LaunchError
from scalebook.query import ask, said
from scalebook.running.container.commands import OCI
from scalebook.running.container.images import DIGEST, ENGINES, image

REGISTRY_SECONDS = 120.0
PULL_SECONDS = 3600.0  # tens of gigabytes
BASE_LABEL = "org.opencontainers.image.base.name"


@dataclass(frozen=True, slots=True)
class LocalImage:
    """An image that an engine has: its id, and the base it was built on where a label says.

    ``image_id`` is ``sha256:...``; None for a file, which is read only where it is started.
    """

    reference: str
    image_id: str | None
    base: str | None


def find(engine: str, reference: str) -> LocalImage | str:
    """Return an engine's image, or a sentence that says what is missing and what to do."""
    if engine not in OCI:
        # enroot also starts a container that was created under a plain name.
        if Path(reference).is_file() or (engine == "enroot" and "/" not in reference):
            return LocalImage(reference, None, None)
        return f"{engine}'s image file {reference} was not found. {_how_to_build(engine)}"
    form = f'--format={{{{.Id}}}} {{{{index .Config.Labels "{BASE_LABEL}"}}}}'
    answer = ask((engine, "image", "inspect", form, reference))
    if answer.code == 0:
        image_id, _, base = answer.output.strip().partition(" ")
        # docker writes the algorithm, podman does not
        prefixed = f"sha256:{image_id}" if re.fullmatch(r"[0-9a-f]{64}", image_id) else image_id
        return LocalImage(reference, prefixed or None, base.strip() or None)
    lines = [line for line in answer.errors.strip().splitlines() if line.strip()]
    said = lines[-1] if lines else f"exit {answer.code}"
    if re.search(r"no such (image|object)|image not known|not found", said, re.IGNORECASE):
        return f"{engine} has no image {reference}. {_how_to_build(engine)}"
    return f"{engine} does not answer: {said.rstrip('.?! ')}."


def content_id(found: LocalImage) -> str | None:
    """Return what distinguishes an image from every other: its id, or its file's SHA-256.

    Reading a file takes seconds for each 10 GB. None for a container that enroot made of a file.
    """
    path = Path(found.reference)
    if found.image_id is not None or not path.is_file():
        return found.image_id
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _how_to_build(engine: str) -> str:
    return f"Build it (make image PLATFORM=... CONTAINER={engine}) or name one with --image."


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
    lacks = " ".join(lack for lack in here.engines.values() if lack)
    if here.trainer is None:
        return Choice(None, f"without a container, on this machine's own torch. {lacks}".rstrip())
    lacks = lacks or f"No container engine was found ({', '.join(ENGINES)})."
    raise LaunchError(f"Nothing here can train. {lacks} Without a container: {here.trainer}")


def _asked(engine: str, here: Surroundings) -> Choice:
    """Return the engine that was asked for, which has to be here and to have the image."""
    if engine == "pyxis":
        raise LaunchError(
            "pyxis starts images in Slurm jobs. Add --launcher slurm, or use --container enroot."
        )
    if engine not in here.engines:
        found = ", ".join(here.engines) or "none"
        raise LaunchError(
            f"{engine} was not found. Install it, or use another engine (found here: {found})."
        )
    lack = here.engines[engine]
    if lack is not None:
        raise LaunchError(lack)
    return Choice(engine)


def surroundings(
    vendor: str,
    folder: Path,
    named: str = "",
    engines: Sequence[str] = ENGINES,
    environment: Mapping[str, str] = os.environ,
) -> Surroundings:
    """Return what this machine offers.

    ``folder`` holds its image files, ``named`` is the image that the user named, if any.
    """
    found: dict[str, str | None] = {}
    for engine in installed(engines):
        answer = find(engine, named or image(vendor).reference(engine, folder))
        found[engine] = answer if isinstance(answer, str) else None
    return Surroundings(current_container(environment), found, missing_trainer())


def installed(engines: Sequence[str] = ENGINES) -> list[str]:
    return [engine for engine in engines if shutil.which(engine) is not None]


def missing_trainer() -> str | None:
    """Return what this Python lacks to train, None where it lacks nothing."""
    if find_spec("torch") is None:
        return "torch is not installed (pip install -e '.[train]')."
    if find_spec("megatron") is None:
        return "megatron-core is not installed (pip install --no-deps megatron-core)."
    return None


def registry_digest(reference: str) -> tuple[str, str]:
    """Return the digest that a tag has in its registry, and the program that asked.

    It is of the list of platforms where the tag names one. skopeo and docker read the manifest,
    whose SHA-256 is the digest; podman has to pull the image.

    Raises:
        LaunchError: no such program is here, or the registry does not answer.
    """
    buildx = ("docker", "buildx", "imagetools", "inspect", "--raw", reference)
    host = reference.partition("/")[0]
    elsewhere = (
        f"Or let a machine that reaches {host} print it, 'skopeo inspect --raw "
        f"docker://{reference} | sha256sum', and write it here with --pin sha256:DIGEST."
    )
    if shutil.which("skopeo") is not None:
        program = "skopeo"
        answer = _manifest(("skopeo", "inspect", "--raw", f"docker://{reference}"))
    elif shutil.which("docker") is not None and ask((*buildx[:2], "version")).code == 0:
        program, answer = "docker", _manifest(buildx)
    elif shutil.which("podman") is not None:
        program, answer = "podman", _pulled(reference)
    else:
        raise LaunchError(
            "Nothing here can ask a registry: skopeo, docker with buildx and podman were not "
            f"found. Install skopeo. {elsewhere}"
        )
    if DIGEST.fullmatch(answer):
        return answer, program
    raise LaunchError(
        f"{program} got no digest of {reference}: {answer.rstrip('. ')}. Repeat this when the "
        f"registry can be reached ('{program} login {host}' first where it is private). {elsewhere}"
    )


def _manifest(command: Sequence[str]) -> str:
    """Return the digest of a manifest that a command prints as it is; else what went wrong."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=REGISTRY_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {REGISTRY_SECONDS:.0f} s"
    if done.returncode == 0 and done.stdout.lstrip().startswith(b"{"):
        return f"sha256:{hashlib.sha256(done.stdout).hexdigest()}"
    return _last_words(done.stderr.decode(errors="replace"))


def _pulled(reference: str) -> str:
    """Return the digest by which podman pulls a tag; else what went wrong."""
    pulled = ask(("podman", "pull", "--quiet", reference), PULL_SECONDS)
    if pulled.code != 0:
        return _last_words(pulled.errors)
    return ask(("podman", "image", "inspect", "--format={{.Digest}}", reference)).output.strip()


def _last_words(errors: str) -> str:
    """Return the last line of what a program says, out of the form of its log."""
    line = (errors.strip().splitlines() or ["no answer"])[-1]
    logged = re.search(r'msg="(.*)"', line)
    return logged[1].replace('\\"', '"') if logged else line


CONTAINER = "SCALEBOOK_CONTAINER"  # set by our launcher: the engine that started the container

_VARIABLES = {
    "APPTAINER_CONTAINER": "apptainer",
    "APPTAINER_NAME": "apptainer",
    "SINGULARITY_CONTAINER": "apptainer",
    "SINGULARITY_NAME": "apptainer",
    "ENROOT_ROOTFS": "enroot",
    "KUBERNETES_SERVICE_HOST": "kubernetes",
}
_FILES = {
    "run/.containerenv": "podman",
    ".dockerenv": "docker",
    ".singularity.d": "apptainer",
    ".enroot": "enroot",
}
_CGROUPS = {
    "libpod": "podman",
    "docker": "docker",
    "kubepods": "kubernetes",
    "containerd": "containerd",
    "lxc": "lxc",
}


def current_container(environment: Mapping[str, str], root: Path = Path("/")) -> str | None:
    """Return the kind of container that this process is in, None on a bare machine.

    The variable ``container`` is what podman and systemd-nspawn set; files come next, and the
    first process's control group is asked last, as a new kind of group would be no sign.
    """
    group = said(root / "proc" / "1" / "cgroup")
    signs = (
        environment.get(CONTAINER),
        *(kind for name, kind in _VARIABLES.items() if environment.get(name)),
        environment.get("container"),
        *(kind for name, kind in _FILES.items() if (root / name).exists()),
        *(kind for name, kind in _CGROUPS.items() if re.search(rf"[/:]{name}[-/.:]", group)),
    )
    return next(filter(None, signs), None)
