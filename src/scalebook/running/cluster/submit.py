"""Submit the runs of a plan to Slurm: one directory per run, in one job each or one for all."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalebook import project, query, store
from scalebook.errors import LaunchError
from scalebook.plan import Plan
from scalebook.running import finish_run, todo
from scalebook.running.cluster import slurm
from scalebook.running.cluster.jobs import FOLDER, Ask, write_job
from scalebook.running.todo import Entry, Inference, label

OWN_JOBS = "Each run was a separate job, submitted in this order: Slurm starts them as it can."
_JOB_ID = re.compile(r"(\d+)(?:;.*)?")


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a plan's runs, and what is known before a run starts."""

    plan: Plan
    entries: Sequence[Entry]
    one_job: bool = False
    prune: bool = False
    rerun: bool = False

    def record(self, entry: Entry) -> dict[str, Any]:
        """Return what the record of a run keeps of its place."""
        places = [one.config.config_hash() for one in self.entries]
        kept = todo.place(self.plan, places.index(entry.config.config_hash()) + 1, None)
        if not self.one_job and len(places) > 1:
            kept["notes"] = [*kept["notes"], OWN_JOBS]
        return kept

    def inferences(self, runs: Path) -> dict[str, Inference]:
        """Return by hash the runs that records already show not to fit."""
        return todo.inferences(self.entries, runs, fresh=self.rerun) if self.prune else {}

    def turn(self, number: int) -> tuple[str, ...]:
        """Return options of ``node`` for the run at a place of its job, counted from 0."""
        if number == 0:
            return ()
        cool_down = self.plan.schedule.cool_down
        words = ("--cool-down", str(cool_down)) if cool_down is not None else ()
        if self.prune:
            words += ("--prune", "--fresh") if self.rerun else ("--prune",)
        return words


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
    return [to_run] if one_job and to_run else [[entry] for entry in to_run]


def preview(entries: Sequence[Entry], runs: Path, options: slurm.Options, order: Order) -> str:
    """Return the script that these entries would be submitted as, except for the runs' names."""
    paths = [store.partial_path(runs.absolute(), f"RUN_ID_{n}") for n, _ in enumerate(entries, 1)]
    tasks = [
        slurm.JobTask(entry.config, path, order.turn(number))
        for number, (entry, path) in enumerate(zip(entries, paths, strict=True))
    ]
    return slurm.script(
        tasks, options, template=template(), logs=runs.absolute() / FOLDER, environment=os.environ
    )


def submit(
    entries: Sequence[Entry], runs: Path, options: slurm.Options, order: Order, ask: Ask = query.ask
) -> list[Submitted]:
    """Submit one job of these entries and return what waits for it; nothing is left on refusal.

    Raises:
        LaunchError: Slurm refuses the job.
    """
    runs = runs.absolute()
    tasks: list[slurm.JobTask] = []
    try:
        for number, entry in enumerate(entries):
            directory = store.create_partial(runs, entry.config)
            write_job(directory, None, len(entries))
            tasks.append(slurm.JobTask(entry.config, directory, order.turn(number)))
            store.write_json(directory / finish_run.SCHEDULE_FILE, order.record(entry))
        folder = runs / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        text = slurm.script(
            tasks, options, template=template(), logs=folder, environment=os.environ
        )
        path = folder / f"{finish_run.run_id(tasks[0].directory)}.sbatch"
        path.write_text(text, encoding="utf-8")
        job_id = _sbatch(path, ask)
    except BaseException:
        for task in tasks:
            shutil.rmtree(task.directory, ignore_errors=True)
        raise
    for task in tasks:
        with suppress(FileNotFoundError):  # a short job may have recorded its run by now
            write_job(task.directory, job_id, len(entries))
    return [
        Submitted(entry, task.directory, job_id) for entry, task in zip(entries, tasks, strict=True)
    ]


def _sbatch(script: Path, ask: Ask) -> str:
    answer = ask(("sbatch", "--parsable", str(script)))
    found = _JOB_ID.fullmatch(answer.output.strip().splitlines()[-1] if answer.output else "")
    if answer.code != 0 or found is None:
        said = " ".join(answer.errors.split())[:500] or "no message"
        raise LaunchError(
            f"Slurm refused the job: {said}. Fix it with --sbatch-option NAME=VALUE (an empty "
            f"VALUE leaves an option out); the script is {project.short(script)}."
        )
    return found[1]


def describe(job: Sequence[Submitted]) -> str:
    first = job[0]
    if len(job) == 1:
        return f"job {first.job_id}: {label(first.entry.config)}"
    return f"job {first.job_id}: {len(job)} runs, one after the other"
