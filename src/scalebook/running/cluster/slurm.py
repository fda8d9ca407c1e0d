"""RunConfig -> the script of a Slurm job, as text. Nothing here asks Slurm.

The script is made from ``containers/slurm/job.sbatch``: a page of bash that a person can read,
keep and submit by hand. A launcher library would run a pickled Python function in the job instead,
with the submitter's Python, which is neither the image's nor torchrun.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalebook import engines
from scalebook.config import RunConfig
from scalebook.errors import LaunchError
from scalebook.facts import catalog
from scalebook.host import ASKED, performance_variables
from scalebook.running.cluster.slurm_container import CATALOG_VARIABLE, NO_CONTAINER, Container
from scalebook.running.launch.shell import Expression, array, assignment, fill, quoted, safe_path
from scalebook.running.launch.variables import variables
from scalebook.scrub import is_secret

TEMPLATE = Path("containers") / "slurm" / "job.sbatch"
RENDEZVOUS = Expression('"$HEAD_NODE:$PORT"')
JOB_NUMBER = Expression('"$SLURM_JOB_ID.$RESTART"')
JOIN_SECONDS = 600  # for every node to come to the rendezvous: images may have to be unpacked
MARGIN_SECONDS = 600  # of the job over the runs' own limits: start, containers, the record

_OPTION = re.compile(r"[a-z][a-z-]*")
_VALUE = re.compile(r"[\w.,:/@+=%\[\]~*()&|!<>-]*")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


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


@dataclass(frozen=True, slots=True)
class Task:
    """One run of a job: what to train and the directory that it is written to.

    ``turn`` is what ``running.slurm_turn`` is told, which settles whether and when the run starts;
    empty: it starts at once.
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
    tasks: Sequence[Task],
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


def directives(tasks: Sequence[Task], options: Options, logs: Path) -> list[str]:
    """Return the ``#SBATCH`` lines: what the job asks of the cluster."""
    wanted = _resources(tasks, options) | dict(options.sbatch or {})
    output = safe_path(str(logs), "\"'\\", "the directive of a job").replace("%", "%%")
    fixed = {"output": f'"{output}/%x-%j.out"', "open-mode": "append", "export": "NONE"}
    lines = [f"#SBATCH --{name}={value}" for name, value in (wanted | fixed).items() if value]
    exclusive = "exclusive" not in (options.sbatch or {}) and _on_gpus(tasks)
    lines += ["#SBATCH --exclusive"] if exclusive else []
    return [*lines, f"#SBATCH --{'requeue' if options.requeue else 'no-requeue'}"]


def _on_gpus(tasks: Sequence[Task]) -> bool:
    return catalog.platform(tasks[0].config.platform).vendor != "cpu"


def _resources(tasks: Sequence[Task], options: Options) -> dict[str, str]:
    nodes = max(task.config.nodes for task in tasks)
    each = max(ranks_per_node(task.config) for task in tasks)
    wanted = {"job-name": job_name(tasks), "nodes": str(nodes), "ntasks-per-node": "1"}
    if _on_gpus(tasks):
        wanted |= {"gpus-per-node": str(each), "mem": "0"}
    else:
        wanted |= {"cpus-per-task": str(each)}
    limits = [task.config.time_limit_seconds for task in tasks]
    if all(limits):
        minutes = -(-(sum(limits) + MARGIN_SECONDS) // 60)
        wanted |= {"time": str(minutes)}
    return wanted


def job_name(tasks: Sequence[Task]) -> str:
    """Return the name of a job: the model and the number of ranks, or of runs."""
    first = tasks[0].config
    model = re.sub(r"[^\w.-]", "-", first.model)
    if len(tasks) > 1:
        return f"scalebook-{len(tasks)}-runs"
    return f"scalebook-{model}-w{first.world_size}"


def ranks_per_node(config: RunConfig) -> int:
    """Return how many ranks a node gets."""
    return config.world_size // config.nodes


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
    catalogs = [part for part in environment.get(CATALOG_VARIABLE, "").split(os.pathsep) if part]
    for name in (*named, *performance_variables(environment)):
        if _IDENTIFIER.fullmatch(name) and not is_secret(name):
            chosen[name] = (environment[name], "set where the job was made")
    if catalogs:
        paths = os.pathsep.join(str(Path(part).absolute()) for part in catalogs)
        chosen[CATALOG_VARIABLE] = (paths, "facts beside those of the package")
    return chosen


def _exports(task: Task, options: Options, environment: Mapping[str, str]) -> list[str]:
    prefix = options.container.variable_prefix
    own = [f"export {assignment(*item)}" for item in options.container.settings.items()]
    return own + [
        f"export {assignment(prefix + name, value)} # {reason}"
        for name, (value, reason) in exported(task.config, environment).items()
    ]


def command(task: Task, options: Options) -> tuple[str, ...]:
    """Return what starts the ranks of each node: torchrun, whose nodes meet at the first one.

    Which node holds rank 0 is settled there (c10d), not by the nodes' order.
    """
    config, directory = task.config, task.directory.absolute()
    trainer = options.trainer or engines.TRAINERS[config.engine]
    return (
        *(interpreter(options), "-m", "torch.distributed.run", "--nnodes", str(config.nodes)),
        *(
            "--nproc-per-node",
            str(ranks_per_node(config)),
            "--max-restarts",
            str(config.max_restarts),
        ),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", RENDEZVOUS, "--rdzv-id", JOB_NUMBER),
        *("--rdzv-conf", f"join_timeout={JOIN_SECONDS}", "-m", trainer),
        *("--config", str(directory / "config.json"), "--output", str(directory)),
    )


def interpreter(options: Options) -> str:
    """Return the Python of the compute nodes: the image's, or the one that was named."""
    return options.container.python or options.python


def _task(task: Task, options: Options, environment: Mapping[str, str]) -> str:
    directory = safe_path(str(task.directory.absolute()), "\\", "the log option of srun")
    container, python = options.container, interpreter(options)
    finish = (python, "-m", "scalebook.running.cluster.slurm_jobs", directory)
    node = (python, "-m", "scalebook.running.cluster.node", directory)
    names = tuple(exported(task.config, environment))
    mounts = (task.directory.parent.absolute(), task.config, names)
    turn = (python, "-m", "scalebook.running.cluster.slurm_turn", directory, *task.turn)
    before = (*container.once(*mounts), *turn) if task.turn else ()
    return "\n".join(
        (
            assignment("DIRECTORY", directory),
            assignment("NODES", str(task.config.nodes)),
            assignment("LIMIT", str(task.config.time_limit_seconds)),
            array("BEFORE", before),
            array("CONTAINER", container.each_node(*mounts)),
            array("COMMAND", (*node, *command(task, options))),
            array("FINISH", (*container.once(*mounts), *finish)),
            "run",
        )
    )
