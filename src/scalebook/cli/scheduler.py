"""``run`` through a cluster's scheduler, and ``status``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from scalebook.cli import run_options
from scalebook.cli.terminal import (
    Subparsers,
    add_count,
    add_json,
    add_path,
    add_repeated,
    add_switch,
    existing_runs,
    print_json,
    print_table,
)
from scalebook.errors import LaunchError
from scalebook.project import runs_folder, short
from scalebook.running.console import Console

if TYPE_CHECKING:
    from scalebook.facts.catalog.types import Platform
    from scalebook.plan import Plan
    from scalebook.running.cluster.slurm import Options
    from scalebook.running.cluster.submit import Submitted
    from scalebook.running.sweep import Result
    from scalebook.running.todo import Entry, Inference

    Load = Callable[[argparse.Namespace, Platform, int | None], Plan]

LAUNCHERS = ("direct", "slurm")


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    text = "show waiting, running and ended runs with their steps so far"
    parser = subparsers.add_parser("status", status, help=text)
    parser.add_argument("--runs", type=Path, help="folder of run directories; default: runs")
    add_switch(parser, "--all", "include runs that ended before today")
    text = "show runs that wait or train until all have ended, refreshed every SECONDS (default: 2)"
    add_count(parser, "--watch", "SECONDS", text, nargs="?", const=2)
    add_json(parser)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``run`` that are about a cluster."""
    group = parser.add_argument_group("on a cluster")
    group.add_argument("--launcher", choices=LAUNCHERS, default="direct", help="default: direct")
    add_switch(group, "--one-job", "one Slurm job for the whole plan")
    add_switch(group, "--detach", "submit without waiting")
    add_switch(group, "--cancel-on-exit", "cancel the jobs when this command ends early")
    text = "option of sbatch, such as partition=gpu; an empty VALUE removes one"
    add_repeated(group, "--sbatch-option", "NAME=VALUE", text)
    add_path(group, "--setup", "FILE", "bash script that a job sources first")
    group.add_argument("--python", default="", help="interpreter on the nodes (default: this one)")
    add_switch(group, "--no-requeue", "do not let Slurm requeue the job")


def refuse_idle(options: argparse.Namespace) -> None:
    """Refuse options of a launcher that is not the one in use: they would do nothing.

    Raises:
        LaunchError: there is one.
    """
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    defaults = {} if options.launcher == "slurm" else vars(parser.parse_args([]))
    for name, default in defaults.items():
        if name != "launcher" and getattr(options, name) != default:
            raise LaunchError(
                f"--{name.replace('_', '-')} is an option of --launcher slurm; the launcher here "
                f"is {options.launcher}. Leave it out, or name the launcher."
            )


def run(options: argparse.Namespace, load: Load) -> int:
    """Run a plan through the scheduler that ``--launcher`` names."""
    from scalebook.facts import catalog
    from scalebook.running import todo

    if not options.platform:
        raise LaunchError(
            f"--launcher {options.launcher} needs --platform: this machine's devices say nothing "
            "about the cluster's nodes."
        )
    platform = catalog.platform(options.platform)
    plan = load(options, platform, options.gpus)
    runs = runs_folder(options.runs)
    if not options.dry_run:
        _settle(runs)
    entries = todo.survey(plan, runs, None, options.rerun, here=False)
    return _slurm(options, plan, entries, runs)


def _slurm(options: argparse.Namespace, plan: Plan, entries: tuple[Entry, ...], runs: Path) -> int:
    from scalebook.running import sweep
    from scalebook.running.cluster import submit, watch

    chosen = _slurm_options(options)
    order = submit.Order(plan, entries, options.one_job, options.prune, options.rerun)
    pruned = order.inferences(runs)
    left = [entry for entry in entries if entry.config.config_hash() not in pruned]
    jobs = submit.jobs(left, options.one_job)
    if options.dry_run:
        for number, job in enumerate(jobs):
            print(("\n" if number else "") + submit.preview(job, runs, chosen, order))
        _say_what_is_not_run(entries, pruned)
        return 0
    submit.require_slurm()
    if line := run_options.describe(plan):
        print(line, flush=True)
    if plan.schedule.cool_down and len(jobs) > 1:
        print("note: separate jobs do not wait for each other to cool down: use --one-job.")
    rest = _not_run(entries, pruned, runs)
    with sweep.stop_on_signals(options.budget_seconds) as stop:
        submitted: list[Submitted] = []
        for job in jobs:
            waiting = submit.submit(job, runs, chosen, order)
            submitted += waiting
            print(f"Submitted {submit.describe(waiting)}", flush=True)
        if not submitted:
            print(f"Nothing to submit: {len(entries)} runs in plan {plan.name!r}.")
        if options.detach:
            _say_how_to_follow(submitted, runs)
            return 0
        seconds = float(os.environ.get("SCALEBOOK_POLL_SECONDS", watch.POLL_SECONDS))
        results, why = watch.follow(submitted, Console(), stop, poll_seconds=seconds)
        if why is not None:
            _leave(submitted, results, why, options.cancel_on_exit, runs)
    results = [*results, *rest]
    print("\n".join(("", *sweep.summary(results))), flush=True)
    return sweep.exit_code(results, stop)


def _say_what_is_not_run(entries: tuple[Entry, ...], pruned: Mapping[str, Inference]) -> None:
    """Print a comment for each run that no script is made for."""
    from scalebook.running import todo

    for entry in entries:
        inference = pruned.get(entry.config.config_hash())
        reason = inference.sentence if inference else entry.reason or entry.action
        if inference or entry.action != "run":
            print(f"# not run: {todo.label(entry.config)}: {reason}")


def _not_run(
    entries: tuple[Entry, ...], pruned: Mapping[str, Inference], runs: Path
) -> list[Result]:
    """Return what becomes of the entries that no job is made for, with the records they get."""
    from scalebook.running import sweep

    found: list[Result] = []
    for entry in entries:
        inference = pruned.get(entry.config.config_hash())
        if inference is not None or entry.action == "illegal":
            found.append(sweep.unstarted(entry, runs, inference))
        elif entry.action != "run":
            found.append(sweep.Result(entry, None, entry.reason))
    return found


def _slurm_options(options: argparse.Namespace) -> Options:
    """Return how jobs are made, as the command line says."""
    from scalebook.running import launch
    from scalebook.running.cluster import slurm
    from scalebook.scrub import is_secret

    container = slurm.chosen(
        options.container, options.image, arguments=options.container_arg, ask=not options.dry_run
    )
    if not container.is_pinned:
        example = {"pyxis": "registry#name:sha256:...", "apptainer": "docker://name@sha256:..."}
        print(
            f"note: {container.image} is named by a tag, which can move. Name it by digest "
            f"({example[container.form]}) or as a file: otherwise no other run counts as a repeat."
        )
    run_options.set_variables(options)
    for name in filter(is_secret, slurm.asked(os.environ)):
        print(f"note: {name} is not written into a job's script; set it in the file of --setup.")
    python = options.python or sys.executable
    own = container.form == "none" and not options.python and not options.trainer
    if own and not options.dry_run:
        launch.require_trainer()
    return slurm.Options(
        container=container,
        python=python,
        sbatch=slurm.parse_options(options.sbatch_option),
        setup=options.setup,
        requeue=not options.no_requeue,
        trainer=options.trainer,
        force_platform=options.force_platform,
    )


def _leave(
    submitted: list[Submitted], results: list[Result], why: str, cancel: bool, runs: Path
) -> None:
    """Say what becomes of the jobs that are not followed any more, or cancel them."""
    from scalebook.running.cluster import watch

    followed = zip(submitted, results, strict=True)
    left = [run for run, result in followed if result.note is not None]
    print(f"\n{why}.", flush=True)
    if cancel and left:
        watch.cancel(left)
        ids = ", ".join(dict.fromkeys(run.job_id for run in left))
        print(f"Cancelled: {ids}. Their records follow with 'scalebook status'.", flush=True)
    else:
        _say_how_to_follow(left, runs)


def _say_how_to_follow(submitted: list[Submitted], runs: Path) -> None:
    ids = " ".join(dict.fromkeys(run.job_id for run in submitted))
    if ids:
        print(f"The jobs continue: {ids}. Follow: scalebook status --runs {short(runs)}", end="")
        print(f"   End them: scancel {ids}", flush=True)


def _settle(runs: Path, say: Callable[[str], None] = print) -> None:
    """Record the runs whose jobs have ended, and say so."""
    from scalebook.running.cluster import jobs

    for settled in jobs.settle(runs):
        what = "still to be run: its job ended before"
        if settled.problem is not None:
            what = f"cannot be recorded and stays as it is: {settled.problem}"
        elif settled.record is not None:
            what = f"{settled.record.status}. {settled.record.reason or ''}"
        say(f"{short(settled.path)}: {what}")


def status(options: argparse.Namespace) -> int:
    """Print the runs of a folder: waiting, training and ended."""
    from scalebook import store
    from scalebook.running.cluster import status_table

    if options.watch is not None:
        return _watch(options, existing_runs(options.runs))
    runs = existing_runs(options.runs)
    if not options.json:
        _settle(runs)
    rows = status_table.rows(runs, everything=options.all)
    if options.json:
        print_json(rows)
    elif rows:
        headers = ("run", "job", "state", "steps", "for", "what")
        print_table(headers, [row.cells() for row in rows])
    else:
        ended = sum(1 for _ in store.run_directories(runs))
        print(f"No run waits or trains in {runs}; {ended} have ended (--all shows them).")
    return 0


def _watch(options: argparse.Namespace, runs: Path) -> int:
    """Show the runs that wait or train until all have ended, or until Ctrl-C."""
    from scalebook.running import live

    if options.json or options.all:
        raise LaunchError("--watch shows runs that have not ended. Leave out --json and --all.")
    console = Console()
    try:
        ended = live.watch(
            live.Monitor(runs), console, options.watch, lambda: _settle(runs, console.say)
        )
    except KeyboardInterrupt:
        console.say("")
        return 0
    console.say(f"All {ended} runs have ended." if ended else f"No run waits or trains in {runs}.")
    return 0
