"""Order, pruning and cool-down of a plan whose runs are jobs of a cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from training import broke, two_nodes

from scalebook import store
from scalebook.config import RunConfig
from scalebook.plan import Plan, Schedule, load_plan
from scalebook.plan.schedule import CoolDown
from scalebook.query import CommandAnswer
from scalebook.record import RunRecord
from scalebook.running.cluster import slurm, submit
from scalebook.running.cluster.submit import Order
from scalebook.running.todo import Entry

RANDOM = Plan("plan", "", (), Schedule(None, "random", 5, CoolDown(seconds=30)))


def entries(*sizes: int) -> tuple[Entry, ...]:
    """Return runs that differ in the micro batch alone."""
    return tuple(Entry(two_nodes(size), "run") for size in sizes)


def order(of: tuple[Entry, ...], plan: Plan = RANDOM, **changes: bool) -> Order:
    """Return the order of some runs, as one job unless the changes say otherwise."""
    return Order(plan, of, **{"one_job": True, "prune": True, "rerun": False, **changes})


def test_a_record_keeps_its_place_seed_and_order():
    kept = order(entries(1, 2)).record(entries(1, 2)[1])
    assert (kept["place"], kept["seed"], kept["order"]) == (2, 5, "random")
    assert submit.OWN_JOBS not in kept["notes"]


def test_runs_that_are_jobs_of_their_own_say_that_slurm_starts_them():
    kept = order(entries(1, 2), one_job=False).record(entries(1, 2)[0])
    assert submit.OWN_JOBS in kept["notes"]


def test_the_first_run_of_a_job_starts_at_once_and_the_others_have_a_turn():
    runs = entries(1, 2)
    assert order(runs).turn(0) == ()
    assert order(runs).turn(1) == ("--cool-down", "30s", "--prune")
    assert order(runs, prune=False).turn(1) == ("--cool-down", "30s")


def test_a_rerun_counts_the_jobs_own_runs_alone():
    runs = entries(1, 2)
    assert order(runs, Plan("plan", "", ()), rerun=True).turn(1) == ("--prune", "--fresh")


def test_what_records_show_not_to_fit_is_not_submitted(tmp_path: Path):
    runs = entries(1, 4)
    broke(tmp_path, 2)
    assert list(order(runs).inferences(tmp_path)) == [runs[1].config.config_hash()]
    assert order(runs, prune=False).inferences(tmp_path) == {}
    assert order(runs, rerun=True).inferences(tmp_path) == {}


def test_the_script_asks_before_the_second_run_alone(tmp_path: Path):
    text = ""

    def ask(command: Any) -> CommandAnswer:
        nonlocal text
        text = Path(command[2]).read_text()
        return CommandAnswer(0, "7\n", "")

    runs = entries(1, 2)
    submit.submit(runs, tmp_path, slurm.Options(python="py"), order(runs), ask)
    first, second = [line for line in text.splitlines() if line.startswith("COMMAND=")]
    assert first.startswith("COMMAND=(py -m scalebook.running.cluster.node ")
    assert first.endswith(' --restart "$RESTART")')
    assert second.endswith(' --restart "$RESTART" --cool-down 30s --prune)')
    kept = [json.loads(path.read_text()) for path in tmp_path.glob(".partial-*/schedule.json")]
    assert sorted(one["place"] for one in kept) == [1, 2]


@pytest.mark.parametrize(("flag", "scripts"), [((), 1), (("--no-prune",), 2)])
def test_a_dry_run_names_what_it_leaves_out(flag: tuple[str, ...], scripts: int, tmp_path: Path):
    plan = tmp_path / "plan.toml"
    given = two_nodes(1).model_dump(include={"model", "world_size", "nodes", "global_batch_size"})
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in given.items())
    rest = 'sequence_length = 32\nprecision = "fp32"\nsteps = 3\nwarmup_steps = 1\n'
    plan.write_text(
        f'[plan]\nname = "p"\ndescription = "d"\n\n[defaults]\n{lines}\n{rest}\n'
        "[[runs]]\nmicro_batch_size = [1, 4]\n"
    )
    runs = tmp_path / "runs"
    command = (
        *(sys.executable, "-m", "scalebook", "run", "--launcher", "slurm", "--dry-run"),
        *("--platform", "cpu", "--plan", str(plan), "--runs", str(runs)),
    )
    shown = subprocess.run((*command, *flag), capture_output=True, text=True, check=True).stdout
    assert shown.count("#!/bin/bash") == 2, "nothing is known yet"
    hashes = dict(zip((1, 4), _configs(plan), strict=True))
    record = RunRecord(
        run_id="20330102-030405-x",
        config_hash=hashes[1].config_hash(),
        source="measured",
        status="out_of_memory",
        cause="gpu_memory",
        requested={**hashes[1].model_dump(), "micro_batch_size": 2},
    )
    (runs / record.run_id).mkdir(parents=True)
    store.write_record(runs / record.run_id, record)
    shown = subprocess.run((*command, *flag), capture_output=True, text=True, check=True).stdout
    assert shown.count("#!/bin/bash") == scripts
    assert shown.count("Not run, inferred: 20330102-030405-x ran out of memory") == 2 - scripts


def _configs(plan: Path) -> list[RunConfig]:
    loaded = load_plan(plan, platform="cpu", world_size=None, overrides={}, scheduled={})
    return [planned.config for planned in loaded.runs]
