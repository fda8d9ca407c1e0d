"""Submit the runs of a plan to Slurm: a directory a run, and a job a run or one for all."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from scalebook import __version__, host, project, query, scrub, store
from scalebook.errors import LaunchError
from scalebook.running import finish_run
from scalebook.running.cluster import job_files, slurm
from scalebook.running.cluster.slurm_order import NO_ORDER, Order
from scalebook.running.cluster.slurm_state import Ask
from scalebook.running.todo import Entry, label

FOLDER = ".slurm"  # below the runs: scripts, and what jobs print beside their runs
_JOB_ID = re.compile(r"(\d+)(?:;.*)?")


@dataclass(frozen=True, slots=True)
class Submitted:
    """One run that waits for a job."""

    entry: Entry
    directory: Path
    job_id: str


def require_slurm() -> None:
    """Refuse to submit where Slurm's commands are missing.

    Raises:
        LaunchError: sbatch, squeue or scontrol was not found.
    """
    missing = [name for name in ("sbatch", "squeue", "scontrol") if shutil.which(name) is None]
    if missing:
        raise LaunchError(
            f"{', '.join(missing)} not found. Run this on a login node of a Slurm cluster, or "
            "print the script with --dry-run."
        )


def template() -> str:
    """Return the text that a job script is made from.

    Raises:
        LaunchError: it is not in this checkout.
    """
    path = project.required_root() / slurm.TEMPLATE
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise LaunchError(f"{path} cannot be read: {error.strerror}. Restore it.") from error


def jobs(entries: Sequence[Entry], one_job: bool) -> list[list[Entry]]:
    """Return the entries that are to be run, by job."""
    to_run = [entry for entry in entries if entry.action == "run"]
    if one_job and to_run:
        return [to_run]
    return [[entry] for entry in to_run]


def preview(
    entries: Sequence[Entry], runs: Path, options: slurm.Options, order: Order = NO_ORDER
) -> str:
    """Return the very script that these entries would be submitted as, but for the runs' names."""
    tasks = [
        slurm.Task(
            entry.config,
            store.partial_path(runs.absolute(), f"RUN_ID_{number + 1}"),
            order.turn(entries, number),
        )
        for number, entry in enumerate(entries)
    ]
    return slurm.script(
        tasks, options, template=template(), logs=_folder(runs), environment=os.environ
    )


def submit(
    entries: Sequence[Entry],
    runs: Path,
    options: slurm.Options,
    order: Order = NO_ORDER,
    ask: Ask = query.ask,
) -> list[Submitted]:
    """Submit one job of these entries and return what waits for it; nothing is left on refusal.

    Raises:
        LaunchError: Slurm refuses the job.
    """
    runs = runs.absolute()
    tasks: list[slurm.Task] = []
    try:
        for number, entry in enumerate(entries):
            directory = store.create_partial(runs, entry.config, datetime.now(UTC))
            job_files.write_job(directory, None, len(entries))
            tasks.append(slurm.Task(entry.config, directory, order.turn(entries, number)))
            _write_launch(tasks[-1], options)
            if order.places:
                store.write_json(directory / finish_run.SCHEDULE_FILE, order.record(entry))
        job_id = _sbatch(_write_script(tasks, runs, options), ask)
    except BaseException:
        for task in tasks:
            shutil.rmtree(task.directory, ignore_errors=True)
        raise
    for task in tasks:
        with suppress(FileNotFoundError):  # a short job may have recorded its run by now
            job_files.write_job(task.directory, job_id, len(entries))
    return [
        Submitted(entry, task.directory, job_id) for entry, task in zip(entries, tasks, strict=True)
    ]


def _folder(runs: Path) -> Path:
    return runs.absolute() / FOLDER


def _write_script(tasks: Sequence[slurm.Task], runs: Path, options: slurm.Options) -> Path:
    folder = _folder(runs)
    folder.mkdir(parents=True, exist_ok=True)
    text = slurm.script(tasks, options, template=template(), logs=folder, environment=os.environ)
    path = folder / f"{finish_run.run_id(tasks[0].directory)}.sbatch"
    path.write_text(text, encoding="utf-8")
    return path


def _sbatch(script: Path, ask: Ask) -> str:
    answer = ask(("sbatch", "--parsable", str(script)))
    found = _JOB_ID.fullmatch(answer.output.strip().splitlines()[-1] if answer.output else "")
    if answer.code != 0 or found is None:
        said = " ".join(answer.errors.split())[:500] or "no message"
        raise LaunchError(
            f"Slurm refused the job: {said}. Mend it with --sbatch-option NAME=VALUE (an empty "
            f"VALUE leaves an option out); the script is {project.short(script)}."
        )
    return found[1]


def _write_launch(task: slurm.Task, options: slurm.Options) -> None:
    """Keep what is known before the start; the machine is the compute nodes', not this one."""
    chosen = slurm.exported(task.config, os.environ)
    variables = {name: value for name, (value, _) in chosen.items()}
    checkout = project.root()
    environment = {
        "scalebook": __version__,
        "git_commit": host.git_commit(checkout) if checkout else None,
        "variables": scrub.without_secrets(host.performance_variables(variables)),
    }
    command = ("python", *map(str, slurm.command(task, options)[1:]))
    finish_run.write_launch(task.directory, command, environment)


def describe(job: Sequence[Submitted]) -> str:
    """Return a job in words."""
    first = job[0]
    if len(job) == 1:
        return f"job {first.job_id}: {label(first.entry.config)}"
    return f"job {first.job_id}: {len(job)} runs, one after the other"
