"""Build an image or take one over: context, each engine's commands, and list of packages."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scalebook.errors import LaunchError
from scalebook.running.container.commands import ENROOT_PLAIN_SHELL, OCI, enroot_mount
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
    if build.engine in OCI:
        return _docker(build)
    if build.engine == "apptainer":
        return _apptainer(build)
    return _enroot(build)


def _docker(build: Build) -> tuple[tuple[str, ...], ...]:
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
    name, base = build.image.name, f"{build.target}.base"
    registry, _, rest = build.base.partition("/")
    rest = rest.replace("@sha256:", ":sha256:")  # enroot takes a digest as a tag, since 3.0.1
    plain = ("env", *(f"{name}={value}" for name, value in ENROOT_PLAIN_SHELL.items()))
    start = ("enroot", "start", "--root", "--rw")
    install = ("install", "-D", "--mode=644", f"--target-directory={INSIDE}")
    return (
        ("rm", "--force", base),  # enroot writes over no file: one is there where a build failed
        ("enroot", "import", f"--output={base}", f"docker://{registry}#{rest}"),
        ("enroot", "create", "--force", f"--name={name}", base),
        (*plain, *start, _mounted(build, INSIDE), name, *_install(build.image)),
        # what is below the mount is not in the image
        (*start, _mounted(build, "/mnt"), name, *install, f"/mnt/{PACKAGES}", f"/mnt/{POLICY}"),
        ("enroot", "export", "--force", f"--output={build.target}", name),
        ("enroot", "remove", "--force", name),
        ("rm", "--force", base),
    )


def _mounted(build: Build, target: str) -> str:
    return f"--mount={enroot_mount(build.context, target)}"


def _install(image: Image) -> tuple[str, ...]:
    train = ("--train",) if image.vendor == "cpu" else ()
    program = ("python3", f"{INSIDE}/install.py", INSIDE)
    return (*program, *train, "--megatron-core", image.megatron_core)


def definition(build: Build) -> str:
    """Return apptainer's definition file: the same steps as the Containerfile's."""
    files = "\n".join(f"    {name} {INSIDE}/" for name in ("install.py", POLICY, *LOCKS, "*.whl"))
    return f"""\
Bootstrap: docker
From: {build.base}

%files
{files}
    notebooks {INSIDE}/notebooks
    plans {INSIDE}/runs/plans

%post
    {" ".join(_install(build.image))}

%labels
    org.opencontainers.image.base.name {build.base}
    scalebook.security-policy {INSIDE}/{POLICY}
"""


def packages_command(build: Build) -> tuple[str, ...] | None:
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
    if build.engine in OCI:
        name = re.sub(r"[:@]", "-", build.target.rpartition("/")[2])
        return folder / f"{name}.{LIST_SUFFIX}"
    plain = build.target.removesuffix(".sif").removesuffix(".sqsh")
    return Path(f"{plain}.{LIST_SUFFIX}")


@contextmanager
def context(
    project: Path, known: Image, *, dry: bool, wheels: Path | None = None
) -> Generator[Path]:
    """Yield a folder with all that an image is built from and nothing else; ``dry``: its name.

    ``wheels`` is a folder of packages to take in place of an index's.
    """
    if dry:
        yield Path("CONTEXT")
        return
    with tempfile.TemporaryDirectory(prefix="scalebook-image-") as name:
        folder = Path(name)
        containers = project / "containers"
        shutil.copy(containers / known.vendor / "Containerfile", folder)
        shutil.copy(containers / "install.py", folder)
        shutil.copy(project / ".github" / POLICY, folder)
        for lock in LOCKS:
            shutil.copy(project / lock, folder)
        ignore = shutil.ignore_patterns(".ipynb_checkpoints")
        shutil.copytree(project / "notebooks", folder / "notebooks", ignore=ignore)
        shutil.copytree(project / "runs" / "plans", folder / "plans")
        if wheels is not None:
            _copy_wheels(wheels, folder)
        wheel(project, folder, wheels)
        folder.chmod(0o755)  # builders that run as another user read it too
        yield folder


def _copy_wheels(wheels: Path, folder: Path) -> None:
    """Copy a folder's wheels, except Scalebook's own, which may be older."""
    found = [path for path in wheels.glob("*.whl") if not path.name.startswith("scalebook-")]
    if not found:
        raise LaunchError(
            f"{wheels} contains no wheels. Fill it by 'pip download' on a machine with a network; "
            "containers/README.md says with what."
        )
    for path in found:
        shutil.copy(path, folder)


def wheel(project: Path, folder: Path, wheels: Path | None = None) -> None:
    """Build the project's wheel into a folder, from a copy: a checkout may be read-only.

    ``wheels`` has the tool that builds it (setuptools), where no index can be asked.

    Raises:
        LaunchError: pip could not build it.
    """
    with tempfile.TemporaryDirectory(prefix="scalebook-wheel-") as name:
        copy = Path(name)
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "images")
        shutil.copytree(project / "src", copy / "src", ignore=ignore)
        for file in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(project / file, copy)
        command = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps")
        local = ("--no-index", "--find-links", str(wheels)) if wheels is not None else ()
        done = subprocess.run((*command, *local, "--wheel-dir", str(folder), name), check=False)
    if done.returncode != 0:
        raise LaunchError("The wheel of scalebook could not be built; pip says why above.")


def run(wanted: Build) -> int:
    """Run the steps of a build; return the exit code of the first that failed, 0 if none."""
    if wanted.engine not in OCI:
        Path(wanted.target).parent.mkdir(parents=True, exist_ok=True)
    if wanted.source is None and wanted.engine == "apptainer":
        text = definition(wanted)
        (wanted.context / "apptainer.def").write_text(text, encoding="utf-8")
    for step in steps(wanted):
        print(" ".join(step[:2]), "...", flush=True)
        cwd = wanted.context if wanted.source is None else None
        done = subprocess.run(step, cwd=cwd, check=False)
        if done.returncode != 0:
            return done.returncode
    return 0


def copy_packages(wanted: Build, folder: Path) -> Path | None:
    """Copy an image's list of packages out of it, byte by byte; None where it has none."""
    command = packages_command(wanted)
    if command is None:
        content = (wanted.context / PACKAGES).read_bytes()
    else:
        content = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, check=False
        ).stdout
    if b'"bomFormat"' not in content:
        return None
    path = packages_file(wanted, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
