"""The order of a plan's runs on a cluster: their places, what is left out, and each run's turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalebook.facts.feasibility.order import growth
from scalebook.running import pruning
from scalebook.running.launch.shell import Expression
from scalebook.running.pruning import Inference
from scalebook.running.todo import Entry
from scalebook.running.waiting import Scheduled

OWN_JOBS = "Each run was a job of its own, submitted in this order: Slurm starts them as it can."


@dataclass(frozen=True, slots=True)
class Order:
    """A plan's schedule, and the place of each of its runs, by hash and counted from 1."""

    scheduled: Scheduled
    places: Mapping[str, int]
    one_job: bool
    prune: bool
    rerun: bool

    @classmethod
    def of(
        cls,
        entries: Sequence[Entry],
        scheduled: Scheduled,
        *,
        one_job: bool,
        prune: bool,
        rerun: bool,
    ) -> Order:
        """Return the order of these entries."""
        places = {entry.config.config_hash(): n for n, entry in enumerate(entries, start=1)}
        return cls(scheduled, places, one_job, prune, rerun)

    def record(self, entry: Entry) -> dict[str, Any]:
        """Return what the record of a run keeps of its place; empty without a plan."""
        kept = self.scheduled.place(self.places[entry.config.config_hash()], None)
        if kept and not self.one_job and len(self.places) > 1:
            kept["notes"] = [*kept["notes"], OWN_JOBS]
        return kept

    def inferences(self, entries: Sequence[Entry], runs: Path) -> dict[str, Inference]:
        """Return by hash the runs that records already show not to fit."""
        if not self.prune:
            return {}
        known = pruning.broken(runs, None, fresh=self.rerun)
        waiting = (entry.config for entry in entries if entry.action == "run")
        return pruning.inferences(waiting, known)

    def turn(self, entries: Sequence[Entry], number: int) -> tuple[str, ...]:
        """Return the arguments of what settles a run's turn in its job; empty: nothing does."""
        if number == 0:
            return ()
        cool_down = self.scheduled.cool_down
        words = ("--cool-down", str(cool_down)) if cool_down is not None else ()
        config = entries[number].config
        if self.prune and any(growth(e.config, config) is not None for e in entries[:number]):
            words += ("--prune",)
            words += ("--since", Expression('"$SLURM_JOB_ID"')) if self.rerun else ()
        return words


NO_ORDER = Order(Scheduled(), {}, one_job=False, prune=False, rerun=False)
