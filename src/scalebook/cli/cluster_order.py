"""The order of a plan's runs on a cluster, and what becomes of those that get no job."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scalebook.plan import Plan
    from scalebook.running.cluster.slurm_order import Order
    from scalebook.running.pruning import Inference
    from scalebook.running.sweep import Result
    from scalebook.running.todo import Entry


def of(options: argparse.Namespace, plan: Plan, entries: tuple[Entry, ...]) -> Order:
    """Return the order of a plan's runs on the cluster, as the command line says."""
    from scalebook.running.cluster.slurm_order import Order
    from scalebook.running.waiting import Scheduled

    return Order.of(
        entries,
        Scheduled.of(plan),
        one_job=options.one_job,
        prune=options.prune,
        rerun=options.rerun,
    )


def say_what_is_not_run(entries: tuple[Entry, ...], pruned: Mapping[str, Inference]) -> None:
    """Print a comment for each run that no script is made for."""
    from scalebook.running import todo

    for entry in entries:
        inference = pruned.get(entry.config.config_hash())
        reason = inference.sentence if inference else entry.reason or entry.action
        if inference or entry.action != "run":
            print(f"# not run: {todo.label(entry.config)}: {reason}")


def not_run(
    entries: tuple[Entry, ...], pruned: Mapping[str, Inference], runs: Path
) -> list[Result]:
    """Return what becomes of the entries that no job is made for, with the records they get."""
    from scalebook.running import pruning, sweep

    known = pruning.broken(runs, None)
    found: list[Result] = []
    for entry in entries:
        inference = pruned.get(entry.config.config_hash())
        if inference is not None:
            sentence, fresh = inference.sentence, not known.is_recorded(entry.config)
            record = sweep.record_inferred(entry.config, inference, runs) if fresh else None
            found.append(sweep.Result(entry, record, sentence, inferred=True))
        elif entry.action == "illegal":
            found.append(sweep.Result(entry, sweep.record_illegal(entry, runs)))
        elif entry.action != "run":
            found.append(sweep.Result(entry, None, entry.reason))
    return found
