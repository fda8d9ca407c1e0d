"""How a job of a cluster enters its image: pyxis (options of srun), Apptainer, or not at all."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scalebook.config import RunConfig
from scalebook.errors import LaunchError
from scalebook.facts import catalog
from scalebook.running.container import images
from scalebook.running.container.enroot import PLAIN_SHELL
from scalebook.running.container.request import settle
from scalebook.running.launch.shell import safe_path

Form = Literal["none", "pyxis", "apptainer"]
ASK_SECONDS = 30.0
CATALOG_VARIABLE = "SCALEBOOK_CATALOG"


@dataclass(frozen=True, slots=True)
class Container:
    """An image and the program that enters it; ``catalogs`` are files of facts to show it."""

    form: Form = "none"
    image: str = ""
    catalogs: tuple[Path, ...] = ()
    arguments: tuple[str, ...] = ()  # the user's own, for srun or apptainer

    @property
    def python(self) -> str | None:
        """The interpreter inside, None where there is no container."""
        return None if self.form == "none" else "python"

    @property
    def variable_prefix(self) -> str:
        """What stands before a variable's name on the host for it to be set inside."""
        return "APPTAINERENV_" if self.form == "apptainer" else ""

    @property
    def settings(self) -> Mapping[str, str]:
        """Variables for the program that enters the image, not for what runs inside."""
        return PLAIN_SHELL if self.form == "pyxis" else {}

    def each_node(self, runs: Path, config: RunConfig, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return what stands between srun and the command."""
        if self.form == "pyxis":
            return self._pyxis(runs, config, names)
        return self._apptainer(runs, config) if self.form == "apptainer" else ()

    def once(self, runs: Path, config: RunConfig, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return what stands before a command that the job's first node runs once."""
        if self.form == "pyxis":
            one = ("srun", "--nodes=1", "--ntasks=1", "--export=ALL", "--cpu-bind=none")
            return (*one, "--input=none", *self._pyxis(runs, config, names))
        return self._apptainer(runs, config) if self.form == "apptainer" else ()

    def _mounts(self, runs: Path, config: RunConfig) -> list[tuple[str, bool]]:
        """Return each folder or file that the run needs, under its own name, and if it writes."""
        folders = [(runs, True)]
        folders += [(Path(config.data).absolute().parent, False)] if config.data else []
        folders += [(path.absolute(), False) for path in self.catalogs]
        why = "the list of mounts of a container"
        return [(safe_path(str(path), ":,\\", why), writes) for path, writes in folders]

    def _pyxis(self, runs: Path, config: RunConfig, names: tuple[str, ...]) -> tuple[str, ...]:
        mounts = ",".join(
            f"{path}:{path}" + ("" if writes else ":ro")
            for path, writes in self._mounts(runs, config)
        )
        # The image's root is left as it is: what a run leaves is below the mounted runs.
        return (
            f"--container-image={self.image}",
            f"--container-mounts={mounts}",
            "--no-container-mount-home",
            "--container-writable",
            # Else what the image sets wins over what the job sets.
            f"--container-env={','.join(names)}",
            *self.arguments,
        )

    def _apptainer(self, runs: Path, config: RunConfig) -> tuple[str, ...]:
        vendor = catalog.platform(config.platform).vendor
        device = [flag.argument for flag in images.image(vendor).flags.get("apptainer", ())]
        binds = [
            f"--bind={path}:{path}" + ("" if writes else ":ro")
            for path, writes in self._mounts(runs, config)
        ]
        clean = ("--cleanenv", "--no-home", "--pwd=/tmp")
        return ("apptainer", "exec", *clean, *device, *binds, *self.arguments, self.image)


NO_CONTAINER = Container()


def chosen(
    asked: str,
    image: str,
    environment: Mapping[str, str] = os.environ,
    *,
    arguments: Sequence[str] = (),
    ask: bool = True,
) -> Container:
    """Return the container of a job; ``auto`` takes pyxis or Apptainer where an image is named.

    ``ask`` False: nothing is asked of this machine (a dry run), and ``auto`` is pyxis.

    Raises:
        LaunchError: an image or a program is missing, or a program does not suit a cluster.
    """
    if asked == "none" or (asked == "auto" and not image):
        return NO_CONTAINER
    if asked not in ("auto", "pyxis", "enroot", "apptainer"):
        raise LaunchError(
            f"A Slurm job does not start its image by {asked!r}. Use --container pyxis (the plugin "
            "of srun that starts enroot), apptainer or none."
        )
    if not image:
        raise LaunchError(f"--container {asked} needs an image. Name it with --image.")
    form: Form = "apptainer" if asked == "apptainer" else "pyxis"
    if asked == "auto" and ask and not has_pyxis():
        if shutil.which("apptainer") is None:
            raise LaunchError(
                "srun has no --container-image here (pyxis) and apptainer was not found. Install "
                "one, or run without a container: --container none."
            )
        form = "apptainer"
    listed = [part for part in environment.get(CATALOG_VARIABLE, "").split(os.pathsep) if part]
    catalogs = tuple(Path(part) for part in listed)
    return Container(form, image, catalogs, settle((), arguments))


def has_pyxis() -> bool:
    """Return whether srun knows the options of pyxis."""
    try:
        done = subprocess.run(
            ("srun", "--help"), capture_output=True, text=True, timeout=ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "--container-image" in done.stdout
