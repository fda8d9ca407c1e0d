"""How an image is built or taken over, engine by engine: lists of arguments, run one by one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from scalebook.errors import LaunchError
from scalebook.running.container.enroot import PLAIN_SHELL, mount
from scalebook.running.container.images import Image

INSIDE = "/opt/scalebook"
LOCKS = ("requirements.lock", "requirements.sha256")
POLICY = "SECURITY.md"  # how to report a vulnerability
LIST_SUFFIX = "cdx.json"  # CycloneDX
PACKAGES = f"packages.{LIST_SUFFIX}"  # written by install.py


@dataclass(frozen=True, slots=True)
class Build:
    """One image to make: ``base`` is its base, ``target`` a tag or a file, ``context`` a folder.

    ``source`` names an image that is there already: ``docker-archive:FILE`` (from ``docker save``
    or ``podman save``), ``docker:TAG`` or ``podman:TAG``. None: build from the base. ``offline``:
    the context holds every wheel, and the build gets no network.
    """

    engine: str
    image: Image
    base: str
    target: str
    context: Path
    source: str | None = None
    arguments: tuple[str, ...] = ()
    offline: bool = False


def steps(build: Build) -> tuple[tuple[str, ...], ...]:
    """Return the commands that make the image.

    Raises:
        LaunchError: the engine cannot take the source.
    """
    if build.engine in ("docker", "podman"):
        return _oci(build)
    if build.engine == "apptainer":
        return _apptainer(build)
    return _enroot(build)


def _oci(build: Build) -> tuple[tuple[str, ...], ...]:
    if build.source is not None:
        kind, _, path = build.source.partition(":")
        if kind != "docker-archive":
            raise LaunchError(f"{build.engine} takes --from docker-archive:FILE, not {kind!r}.")
        return ((build.engine, "load", f"--input={path}"),)
    command = (
        *(build.engine, "build", f"--tag={build.target}"),
        f"--file={build.context / 'Containerfile'}",
        f"--build-arg=BASE_IMAGE={build.base}",
        f"--build-arg=MEGATRON_CORE={build.image.megatron_core}",
        *(("--network=none",) if build.offline else ()),
        *build.arguments,
        str(build.context),
    )
    return (command,)


def _apptainer(build: Build) -> tuple[tuple[str, ...], ...]:
    kind, _, name = (build.source or "").partition(":")
    sources = {
        "": str(build.context / "apptainer.def"),
        "docker-archive": f"docker-archive:{name}",
        "docker": f"docker-daemon:{name}",
    }
    if kind not in sources:
        raise LaunchError(
            f"apptainer cannot read from {kind!r}. Save the image to a file (podman save) and give "
            "--from docker-archive:FILE."
        )
    return (("apptainer", "build", "--force", *build.arguments, build.target, sources[kind]),)


def _enroot(build: Build) -> tuple[tuple[str, ...], ...]:
    kind, _, name = (build.source or "").partition(":")
    if build.source is not None:
        if kind not in ("docker", "podman"):
            raise LaunchError(
                f"enroot cannot read from {kind!r}. Load the file into podman (podman load) and "
                "give --from podman:TAG."
            )
        scheme = "dockerd" if kind == "docker" else "podman"
        return (("enroot", "import", f"--output={build.target}", f"{scheme}://{name}"),)
    container = build.image.name
    base = f"{build.target}.base"
    registry, _, rest = build.base.partition("/")
    rest = rest.replace("@sha256:", ":sha256:")  # enroot takes a digest as a tag, since 3.0.1
    start = ("enroot", "start", "--root", "--rw", f"--mount={mount(build.context, INSIDE)}")
    plain = ("env", *(f"{name}={value}" for name, value in PLAIN_SHELL.items()))
    return (
        ("rm", "--force", base),  # enroot writes over no file: one is there where a build failed
        ("enroot", "import", f"--output={base}", f"docker://{registry}#{rest}"),
        ("enroot", "create", "--force", f"--name={container}", base),
        (
            *plain,
            *start,
            container,
            "python3",
            f"{INSIDE}/install.py",
            INSIDE,
            *_flags(build.image),
        ),
        # what is below the mount is not in the image
        (
            "enroot",
            "start",
            "--root",
            "--rw",
            f"--mount={mount(build.context, '/mnt')}",
            container,
            "install",
            "-D",
            "--mode=644",
            f"--target-directory={INSIDE}",
            f"/mnt/{PACKAGES}",
            f"/mnt/{POLICY}",
        ),
        ("enroot", "export", "--force", f"--output={build.target}", container),
        ("enroot", "remove", "--force", container),
        ("rm", "--force", base),
    )


def _install(image: Image) -> tuple[str, ...]:
    return ("python3", f"{INSIDE}/install.py", INSIDE, *_flags(image))


def _flags(image: Image) -> tuple[str, ...]:
    train = ("--train",) if image.vendor == "cpu" else ()
    return (*train, "--megatron-core", image.megatron_core)


def definition(build: Build) -> str:
    """Return apptainer's definition file: the same steps as the Containerfile's."""
    install = " ".join(_install(build.image))
    return "\n".join(
        (
            "Bootstrap: docker",
            f"From: {build.base}",
            "",
            "%files",
            *(f"    {name} {INSIDE}/" for name in ("install.py", POLICY, *LOCKS)),
            f"    *.whl {INSIDE}/",
            f"    notebooks {INSIDE}/notebooks",
            f"    plans {INSIDE}/runs/plans",
            "",
            "%post",
            f"    {install}",
            "",
            "%labels",
            f"    org.opencontainers.image.base.name {build.base}",
            f"    scalebook.security-policy {INSIDE}/{POLICY}",
            "",
        )
    )


def packages(build: Build) -> tuple[str, ...] | None:
    """Return the command that prints an image's list of packages, without its entrypoint.

    None for what enroot builds: there the list is in the context.
    """
    path = f"{INSIDE}/{PACKAGES}"
    if build.engine == "apptainer":
        return ("apptainer", "exec", build.target, "cat", path)
    engine, reference = build.engine, build.target
    if engine == "enroot":
        if build.source is None:
            return None
        engine, _, reference = build.source.partition(":")
    return (engine, "run", "--rm", "--network=none", "--entrypoint=cat", reference, path)


def packages_file(build: Build, folder: Path) -> Path:
    """Return where the list goes: next to an image that is a file, else into ``folder``."""
    if build.engine in ("docker", "podman"):
        name = re.sub(r"[:@]", "-", build.target.rpartition("/")[2])
        return folder / f"{name}.{LIST_SUFFIX}"
    plain = build.target.removesuffix(".sif").removesuffix(".sqsh")
    return Path(f"{plain}.{LIST_SUFFIX}")
