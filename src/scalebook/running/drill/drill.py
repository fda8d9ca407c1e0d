"""The recovery drill: a rank is killed, torchrun starts all again, the last checkpoint is loaded.

Two runs of one configuration: one to the end as a reference, and one whose rank is killed. Both
are run directories like any other; the second has drill.json beside its record.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from scalebook import ownership, store
from scalebook.config import RunConfig
from scalebook.errors import ConfigError, LaunchError
from scalebook.measure.reliability import DRILL_FILE, DrillRecord
from scalebook.record import RunRecord
from scalebook.running import finish_run, runner
from scalebook.running.drill.drill_result import assess, sentence
from scalebook.running.drill.kill_rank import Killer, KillOrder
from scalebook.running.kernel import RunOptions

DEFAULTS = RunOptions()


@dataclass(frozen=True, slots=True)
class Drilled:
    """What became of a drill: the record of the run whose rank was killed, and its timings."""

    record: RunRecord
    drill: DrillRecord
    path: Path


def ordered(config: RunConfig, rank: int | None, step: int | None, during_save: bool) -> KillOrder:
    """Return an order that this configuration can show something by.

    By default the last rank dies in the middle between its second checkpoint and the third, or,
    for a kill in a save, in the second save.

    Raises:
        ConfigError: there is no such rank or step, or nothing would be loaded or done afterwards.
    """
    interval = config.checkpoint_interval
    if not 0 < interval < config.steps:
        raise ConfigError(
            f"checkpoint_interval={interval} saves nothing that a drill of steps={config.steps} "
            "could go on from. Use a number of steps below it."
        )
    middle = min(interval + (interval + 1) // 2, config.steps - 1)
    chosen = step if step is not None else interval + 1 if during_save else middle
    victim = rank if rank is not None else config.world_size - 1
    if not 0 <= victim < config.world_size:
        raise ConfigError(
            f"--kill-rank {victim} is no rank of world_size={config.world_size}. Ranks count from "
            f"0 to {config.world_size - 1}."
        )
    if not 1 <= chosen < config.steps:
        raise ConfigError(
            f"--kill-step {chosen} leaves no step to go on with. Use 1 to {config.steps - 1}."
        )
    return KillOrder(victim, chosen, during_save)


def reference(config: RunConfig, runs: Path, options: RunOptions = DEFAULTS) -> store.Run:
    """Train the configuration of a drill without a kill and return the published run.

    Raises:
        ConfigError: the configuration is illegal.
        LaunchError: this machine cannot run it, or it did not complete.
    """
    runner.check(config, force_platform=options.force_platform)
    same = config.model_copy(update={"strategy": "drill_reference"})
    partial = store.create_partial(runs, same, datetime.now(UTC))
    with ownership.owned(partial):
        record = runner.train(same, _into(options, partial))
        path = store.publish(partial)
    if record.status != "completed":
        raise LaunchError(f"The reference run did not complete: {record.reason} See {path}.")
    return store.read_run(path)


def drill(
    config: RunConfig,
    order: KillOrder,
    runs: Path,
    *,
    options: RunOptions = DEFAULTS,
    undisturbed: store.Run | None = None,
) -> Drilled:
    """Train, kill and return what was measured; the run is published under ``runs``.

    Losses are compared with those of ``undisturbed``, and between steps that were done twice.

    Raises:
        ConfigError: the configuration is illegal.
        LaunchError: this machine cannot run it, or has no /proc to find a rank in.
    """
    if not sys.platform.startswith("linux"):
        raise LaunchError("The drill finds the rank to kill in /proc, which only Linux has.")
    runner.check(config, force_platform=options.force_platform)
    config = config.model_copy(update={"strategy": "drill", "max_restarts": 1})
    partial = store.create_partial(runs, config, datetime.now(UTC))
    with ownership.owned(partial):
        killer = Killer(partial, finish_run.run_id(partial), order)
        killer.start()
        try:
            record = runner.train(config, _into(options, partial))
        finally:
            killer.end()
        if killer.killed_at is None:
            raise LaunchError(_too_early(record, order, store.publish(partial)))
        result = assess(partial, record, killer, undisturbed)
        record = record.model_copy(update={"notes": (*record.notes, sentence(result))})
        store.write_json(partial / DRILL_FILE, result.model_dump(mode="json"))
        store.write_record(partial, record)
        return Drilled(record, result, store.publish(partial))


def _too_early(record: RunRecord, order: KillOrder, path: Path) -> str:
    """Return why there is nothing to measure: the run was over before the kill."""
    why = record.reason or "Raise steps, or lower --kill-step."
    return f"The run was {record.status} before rank {order.rank} was killed. {why} See {path}."


def _into(options: RunOptions, partial: Path) -> RunOptions:
    return RunOptions(
        run_directory=str(partial),
        trainer=options.trainer,
        force_platform=options.force_platform,
    )
