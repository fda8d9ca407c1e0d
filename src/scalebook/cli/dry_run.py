"""What ``run --dry-run`` prints: every configuration, its memory, its command and variables."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scalebook.running.pruning import Inference
    from scalebook.running.todo import Entry


def pruned(
    entries: tuple[Entry, ...], runs: Path, options: argparse.Namespace
) -> dict[str, Inference]:
    """Return what records already show to need too much memory."""
    from scalebook.running import pruning

    if not options.prune:
        return {}
    known = pruning.broken(runs, None, fresh=options.rerun)
    return pruning.inferences((entry.config for entry in entries), known)


def show(
    entries: tuple[Entry, ...],
    runs: Path,
    pruned: Mapping[str, Inference],
    budget_seconds: float | None = None,
) -> int:
    """Print what would be run, how, with which variables, and how long it is likely to take."""
    from scalebook.cli.predict import duration, forecast, rate_line, short_value, total_line
    from scalebook.running.todo import label

    predicted = forecast(entries[0].config.platform, runs) if entries else None
    starts = {e.config.config_hash(): _start(e, runs) for e in entries if e.action == "run"}
    shared = _shared(starts.values())
    for line in ("Every run:", *(f"    {line}" for line in shared)) if shared else ():
        print(line)
    seconds: list[float | None] = []
    for entry in entries:
        inference = pruned.get(entry.config.config_hash()) if entry.action == "run" else None
        if inference is not None:
            print(f"{'inferred':<13} {label(entry.config)}: {inference.sentence}")
            continue
        reason = f": {entry.reason}" if entry.reason else ""
        print(f"{entry.action.replace('_', ' '):<13} {label(entry.config)}{reason}")
        for warning in entry.warnings:
            print(f"    note: {warning}")
        if entry.action != "run":
            continue
        if entry.memory_gib is not None:
            print(f"    predicted memory: {entry.memory_gib:.2f} GiB on the most loaded rank")
        if predicted and (found := predicted(entry.config)):
            seconds.append(found[1])
            line = rate_line(**short_value(found[0]))
            print(f"    predicted rate: {line}, about {duration(found[1])} in all")
        for line in starts[entry.config.config_hash()]:
            if line not in shared:
                print(f"    {line}")
    if seconds:
        print(total_line(seconds, budget_seconds))
    return 0


def _start(entry: Entry, runs: Path) -> tuple[str, ...]:
    """Return the variables of a run, each with its reason, and its command."""
    from scalebook.project import short
    from scalebook.running import launch

    directory = short(runs) / "RUN_ID"
    plan = launch.direct(entry.config, config_path=directory / "config.json", output=directory)
    variables = (f"{one.name}={one.value}  # {one.reason}" for one in plan.variables)
    return *variables, shlex.join(plan.command)


def _shared(starts: Collection[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the lines that all of several runs have, in their order."""
    if len(starts) < 2:
        return ()
    first, *others = starts
    return tuple(line for line in first if all(line in other for other in others))
