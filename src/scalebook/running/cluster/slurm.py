"""RunConfig -> the script of a Slurm job, as text, and how the job enters its image.

The script is made from ``containers/slurm/job.sbatch``: a page of bash that a person can read,
keep and submit by hand. A launcher library would run a pickled Python function in the job instead,
with the submitter's Python, which is neither the image's nor torchrun.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scalebook import query
from scalebook.config import RunConfig
from scalebook.errors import LaunchError
from scalebook.facts import catalog
from scalebook.facts.catalog.load import ENVIRONMENT_VARIABLE
from scalebook.host import ASKED, image_digest, performance_variables
from scalebook.running.container import images
from scalebook.running.container.commands import ENROOT_PLAIN_SHELL, settle
from scalebook.running.container.nested import catalogs
from scalebook.running.container.rules import variables
from scalebook.scrub import is_secret

_PLACE = re.compile(r"@([A-Z_]+)@")


class Expression(str):
    """A word that the job's shell has to expand, such as ``"$HEAD_NODE:$PORT"``: left as it is."""

    __slots__ = ()


def quoted(word: str) -> str:
    """Return a word as bash reads it back unchanged; an ``Expression`` as it stands."""
    if isinstance(word, Expression):
        return str(word)
    plain = shlex.quote(word)
    return f"'{word}'" if plain == word and "," in word else plain  # no comma between elements


def array(name: str, words: Iterable[str]) -> str:
    return f"{name}=({' '.join(quoted(word) for word in words)})"


def assignment(name: str, value: str) -> str:
    return f"{name}={quoted(value)}"


def fill(template: str, values: Mapping[str, str]) -> str:
    """Return a template with each ``@NAME@`` replaced, once: values are not looked through.

    Raises:
        LaunchError: the template has a place that no value is given for, or lacks one.
    """
    places = set(_PLACE.findall(template))
    if places != set(values):
        odd = ", ".join(sorted(places ^ set(values)))
        raise LaunchError(
            f"The template of the job script has other places than expected: {odd}. "
            "Restore containers/slurm/job.sbatch."
        )
    return _PLACE.sub(lambda found: values[found[1]], template)


def safe_path(path: str, forbidden: str, why: str) -> str:
    """Return a path without line ends and the characters that some other program splits at.

    Raises:
        LaunchError: it holds one of them.
    """
    bad = sorted({character for character in path if character in forbidden or character < " "})
    if bad:
        raise LaunchError(
            f"The path {path!r} holds {' '.join(map(repr, bad))}, which {why} cannot take. "
            "Use a folder without."
        )
    return path


TEMPLATE = Path("containers") / "slurm" / "job.sbatch"
RENDEZVOUS = Expression('"$HEAD_NODE:$PORT"')
JOB = ("--job", Expression('"$SLURM_JOB_ID"'), "--restart", Expression('"$RESTART"'))
IMAGE_ID = Expression('"${IMAGE_SHA256:+sha256:$IMAGE_SHA256}"')  # empty where it is not read
MARGIN_SECONDS = 600  # of the job over the runs' own limits: start, containers, the record

_OPTION = re.compile(r"[a-z][a-z-]*")
_VALUE = re.compile(r"[\w.,:/@+=%\[\]~*()&|!<>-]*")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")

Form = Literal["none", "pyxis", "apptainer"]
ASK_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Container:
    """An image and the program that enters it; ``catalogs`` are files of facts to show it."""

    form: Form = "none"
    image: str = ""
    catalogs: tuple[Path, ...] = ()
    arguments: tuple[str, ...] = ()  # the user's own, for srun or apptainer

    @property
    def is_file(self) -> bool:
        """Whether the image is a file, which its bytes identify."""
        named = self.image.endswith((".sif", ".sqsh")) and "://" not in self.image
        return named and self.form != "none"

    @property
    def is_pinned(self) -> bool:
        """Whether no other image can have this name: a file's bytes are hashed in the job."""
        return self.form == "none" or self.is_file or image_digest(self.image) is not None

    def named(self) -> dict[str, str]:
        """Return the variables by which a run's record names the image."""
        if self.form == "none":
            return {}
        known = {"SCALEBOOK_CONTAINER": self.form, "SCALEBOOK_IMAGE": self.image}
        return known | ({"SCALEBOOK_IMAGE_ID": IMAGE_ID} if self.is_file else {})

    def each_node(self, runs: Path, config: RunConfig, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return what stands between srun and the command."""
        if self.form == "pyxis":
            return self._pyxis(runs, config, names)
        return self._apptainer(runs, config) if self.form == "apptainer" else ()

    def _mounts(self, runs: Path, config: RunConfig) -> list[str]:
        """Return each folder or file that the run needs, under its own name."""
        folders = [(runs, True)]
        folders += [(Path(config.data).absolute().parent, False)] if config.data else []
        folders += [(path, False) for path in self.catalogs]
        why = "the list of mounts of a container"
        paths = ((safe_path(str(path), ":,\\", why), writes) for path, writes in folders)
        return [f"{path}:{path}" + ("" if writes else ":ro") for path, writes in paths]

    def _pyxis(self, runs: Path, config: RunConfig, names: tuple[str, ...]) -> tuple[str, ...]:
        # The image's root is left as it is: what a run leaves is below the mounted runs.
        return (
            f"--container-image={self.image}",
            f"--container-mounts={','.join(self._mounts(runs, config))}",
            "--no-container-mount-home",
            "--container-writable",
            # Else what the image sets wins over what the job sets.
            f"--container-env={','.join(names)}",
            *self.arguments,
        )

    def _apptainer(self, runs: Path, config: RunConfig) -> tuple[str, ...]:
        vendor = catalog.platform(config.platform).vendor
        device = [flag.argument for flag in images.image(vendor).flags.get("apptainer", ())]
        binds = [f"--bind={mount}" for mount in self._mounts(runs, config)]
        clean = ("--cleanenv", "--no-home", "--pwd=/tmp")
        # Inside, a node knows its number only by a variable that is passed on by name.
        shell = ("bash", "-c", 'APPTAINERENV_SLURM_NODEID=$SLURM_NODEID exec "$@"', "bash")
        return (*shell, "apptainer", "exec", *clean, *device, *binds, *self.arguments, self.image)


NO_CONTAINER = Container()


@dataclass(frozen=True, slots=True)
class Options:
    """How the jobs of a plan are made. ``sbatch``: options by name; an empty value leaves one out.

    ``python`` is the interpreter on the compute nodes, used where there is no container.
    """

    container: Container = NO_CONTAINER
    python: str = sys.executable
    sbatch: Mapping[str, str] | None = None
    setup: Path | None = None  # a script of the site that the job sources first
    requeue: bool = True
    trainer: str = ""  # empty: the engine's own
    force_platform: bool = False


@dataclass(frozen=True, slots=True)
class JobTask:
    """One run of a job: what to train and the directory that it is written to.

    ``turn`` are options of ``node`` that settle whether and when the run starts; empty: at once.
    """

    config: RunConfig
    directory: Path
    turn: tuple[str, ...] = ()


def parse_options(pairs: Sequence[str]) -> dict[str, str]:
    """Return ``NAME=VALUE`` pairs as options of sbatch.

    Raises:
        LaunchError: one is not of that form, or holds what a directive cannot.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        name, _, value = pair.removeprefix("--").partition("=")
        if not _OPTION.fullmatch(name) or not _VALUE.fullmatch(value):
            raise LaunchError(
                f"The sbatch option {pair!r} cannot be used. Write NAME=VALUE without blanks and "
                "quotes, such as partition=gpu."
            )
        found[name] = value
    return found


def script(
    tasks: Sequence[JobTask],
    options: Options,
    *,
    template: str,
    logs: Path,
    environment: Mapping[str, str],
) -> str:
    """Return the job script of one run, or of several runs one after the other.

    ``environment`` is the submitter's: its performance variables go into the job, nothing else.
    """
    return fill(
        template,
        {
            "DIRECTIVES": "\n".join(directives(tasks, options, logs)),
            "SETUP": _setup(options),
            "VARIABLES": "\n".join(_exports(tasks[0], options, environment)),
            "RUNS": "\n\n".join(_task(task, options, environment) for task in tasks),
        },
    )


def directives(tasks: Sequence[JobTask], options: Options, logs: Path) -> list[str]:
    """Return the ``#SBATCH`` lines: what the job asks of the cluster."""
    wanted = _resources(tasks, options) | dict(options.sbatch or {})
    output = safe_path(str(logs), "\"'\\", "the directive of a job").replace("%", "%%")
    fixed = {"output": f'"{output}/%x-%j.out"', "open-mode": "append", "export": "NONE"}
    lines = [f"#SBATCH --{name}={value}" for name, value in (wanted | fixed).items() if value]
    exclusive = "exclusive" not in (options.sbatch or {}) and _on_gpus(tasks)
    lines += ["#SBATCH --exclusive"] if exclusive else []
    return [*lines, f"#SBATCH --{'requeue' if options.requeue else 'no-requeue'}"]


def _on_gpus(tasks: Sequence[JobTask]) -> bool:
    return catalog.platform(tasks[0].config.platform).vendor != "cpu"


def _resources(tasks: Sequence[JobTask], options: Options) -> dict[str, str]:
    nodes = max(task.config.nodes for task in tasks)
    each = max(task.config.world_size // task.config.nodes for task in tasks)
    first = tasks[0].config
    what = re.sub(r"[^\w.-]", "-", f"{first.model}-w{first.world_size}")
    name = f"scalebook-{len(tasks)}-runs" if len(tasks) > 1 else f"scalebook-{what}"
    wanted = {"job-name": name, "nodes": str(nodes), "ntasks-per-node": "1"}
    if _on_gpus(tasks):
        wanted |= {"gpus-per-node": str(each), "mem": "0"}
    else:
        wanted |= {"cpus-per-task": str(each)}
    limits = [task.config.time_limit_seconds for task in tasks]
    if all(limits):
        minutes = -(-(sum(limits) + MARGIN_SECONDS) // 60)
        wanted |= {"time": str(minutes)}
    return wanted


def _setup(options: Options) -> str:
    if options.setup is None:
        return "# No script of the site (--setup)."
    path = options.setup.absolute()
    if not path.is_file():
        raise LaunchError(f"--setup {options.setup} does not exist. Name a bash script.")
    return f"# shellcheck source=/dev/null\nsource {quoted(str(path))}"


def asked(environment: Mapping[str, str]) -> list[str]:
    """Return the variables that the user named (--env)."""
    return environment.get(ASKED, "").split()


def exported(config: RunConfig, environment: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return value and reason of each variable that the job sets; what the submitter set wins."""
    chosen = {item.name: (item.value, item.reason) for item in variables(config)}
    named = [name for name in (*chosen, *asked(environment)) if name in environment]
    for name in (*named, *performance_variables(environment)):
        if _IDENTIFIER.fullmatch(name) and not is_secret(name):
            chosen[name] = (environment[name], "set where the job was made")
    if files := catalogs(environment):
        paths = os.pathsep.join(map(str, files))
        chosen[ENVIRONMENT_VARIABLE] = (paths, "facts in addition to the package's")
    return chosen


def _exports(task: JobTask, options: Options, environment: Mapping[str, str]) -> list[str]:
    container = options.container
    # What stands before a variable's name on the host for it to be set inside.
    prefix = "APPTAINERENV_" if container.form == "apptainer" else ""
    enters = ENROOT_PLAIN_SHELL if container.form == "pyxis" else {}  # not for what runs inside
    own = [f"export {assignment(*item)}" for item in enters.items()]
    if container.is_file:
        own.append(f"IMAGE_SHA256=$(sha256sum <{quoted(container.image)} | cut -c -64)")
    own += [f"export {assignment(prefix + n, value)}" for n, value in container.named().items()]
    return own + [
        f"export {assignment(prefix + name, value)} # {reason}"
        for name, (value, reason) in exported(task.config, environment).items()
    ]


def command(task: JobTask, options: Options) -> tuple[str, ...]:
    """Return what runs one node's part of a run: the same on each node."""
    directory = safe_path(str(task.directory.absolute()), "\\", "a path of the job")
    python = options.python if options.container.form == "none" else "python"
    return (
        *(python, "-m", "scalebook.running.cluster.node", directory),
        *("--rendezvous", RENDEZVOUS, *JOB),
        *(("--trainer", options.trainer) if options.trainer else ()),
        *(("--force-platform",) if options.force_platform else ()),
        *task.turn,
    )


def _task(task: JobTask, options: Options, environment: Mapping[str, str]) -> str:
    names = (*options.container.named(), *exported(task.config, environment))
    enter = options.container.each_node(task.directory.parent.absolute(), task.config, names)
    return "\n".join(
        (
            assignment("DIRECTORY", str(task.directory.absolute())),
            assignment("NODES", str(task.config.nodes)),
            # what the variable is on the node, not here
            *(("# shellcheck disable=SC2016",) if any("$" in word for word in enter) else ()),
            array("CONTAINER", enter),
            array("COMMAND", command(task, options)),
            "run",
        )
    )


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
    options = query.printed(("srun", "--help"), ASK_SECONDS) if asked == "auto" and ask else None
    if asked == "auto" and ask and "--container-image" not in (options or ""):
        if shutil.which("apptainer") is None:
            raise LaunchError(
                "srun has no --container-image here (pyxis) and apptainer was not found. Install "
                "one, or run without a container: --container none."
            )
        form = "apptainer"
    return Container(form, image, tuple(catalogs(environment)), settle((), arguments))
