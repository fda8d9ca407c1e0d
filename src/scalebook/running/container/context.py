"""Make a build's context, run its steps, and read what a container prints."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from scalebook.errors import LaunchError
from scalebook.running.container import build as building
from scalebook.running.container.follow import scratch
from scalebook.running.container.images import Image, image
from scalebook.running.container.request import EngineCommand

END_SECONDS = 900.0  # a first start unpacks tens of gigabytes on some engines


def reference(vendor: str, engine: str, folder: Path) -> str:
    """Return what an engine calls our image of a vendor."""
    return image(vendor).reference(engine, str(folder))


@contextmanager
def made(project: Path, known: Image, *, dry: bool, wheels: Path | None = None) -> Generator[Path]:
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
        shutil.copy(project / ".github" / building.POLICY, folder)
        for lock in building.LOCKS:
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
    """Copy a folder's wheels, except Scalebook's own, which may be older.

    Raises:
        LaunchError: there is none.
    """
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


def build(wanted: building.Build) -> int:
    """Run the steps of a build; return the exit code of the first that failed, 0 if none."""
    if wanted.engine in ("apptainer", "enroot"):
        Path(wanted.target).parent.mkdir(parents=True, exist_ok=True)
    if wanted.source is None and wanted.engine == "apptainer":
        text = building.definition(wanted)
        (wanted.context / "apptainer.def").write_text(text, encoding="utf-8")
    for step in building.steps(wanted):
        print(" ".join(step[:2]), "...", flush=True)
        cwd = wanted.context if wanted.source is None else None
        done = subprocess.run(step, cwd=cwd, check=False)
        if done.returncode != 0:
            return done.returncode
    return 0


def copy_packages(wanted: building.Build, folder: Path) -> Path | None:
    """Copy an image's list of packages out of it, byte by byte; None where it has none."""
    command = building.packages(wanted)
    if command is None:
        content = (wanted.context / building.PACKAGES).read_bytes()
    else:
        content = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, check=False
        ).stdout
    if b'"bomFormat"' not in content:
        return None
    path = building.packages_file(wanted, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def output_of(command: EngineCommand, caller: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON object that a container prints as its last line.

    Raises:
        LaunchError: it printed none, or did not end.
    """
    environment = command.full_environment(caller)
    try:
        with scratch(command):
            done = subprocess.run(
                command.argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=END_SECONDS,
            )
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"The image did not answer within {END_SECONDS:.0f} s.") from error
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    try:
        value: object = json.loads(lines[-1]) if done.returncode == 0 and lines else None
    except ValueError:
        value = None
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no output"]
    raise LaunchError(f"The image reported nothing (exit {done.returncode}): {said[0][:300]}")
