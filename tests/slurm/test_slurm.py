"""Plans on a real Slurm cluster of two hosts: every way in which a job can end, as a record.

All jobs are submitted at the start and train at the same time; each test waits for its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, cluster, missing

from scalebook import store
from scalebook.config import RunConfig
from scalebook.plan import load_plan
from scalebook.record import RunRecord
from scalebook.report.base.frames import load
from scalebook.report.base.scaling_series import scaling_series
from scalebook.report.pages import scaling_page

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).resolve().parents[2]
SCALEBOOK = (sys.executable, "-m", "scalebook")
WAIT_SECONDS = 180.0

PLAN = """
[plan]
name = "{name}"
description = "a run of two nodes"

[defaults]
model = "tiny-llama"
world_size = 2
nodes = 2
sequence_length = 64
micro_batch_size = 2
global_batch_size = 4
precision = "fp32"
steps = {steps}
warmup_steps = 1

[[runs]]
seed = {seed}
{more}
"""

ONE_JOB = ("--one-job",)
IN_TURN = ("--one-job", "--order-seed", "3", "--cool-down", "1s")
TWO_SIZES = "micro_batch_size = [1, 2]"

APPTAINER = """#!/bin/bash
# Stands for apptainer --cleanenv: notes how it was called, and runs the command here with nothing
# of the environment but what is passed on by name.
printf '%s\\n' "$@" >"$(mktemp {calls}/XXXXXX)"  # two nodes call at once: a file for each call
while [[ ${{1-}} == exec || ${{1-}} == --* ]]; do shift; done
given=()
for name in ${{!APPTAINERENV_*}}; do given+=("${{name#APPTAINERENV_}}=${{!name}}"); done
shift  # the image
exec env -i "PATH={bin}:$PATH" "HOME=$HOME" "${{given[@]}}" "$@"
"""


@dataclass(slots=True)
class Site:
    """The cluster and a folder that all its hosts see."""

    slurm: Cluster
    folder: Path

    def submit(
        self,
        name: str,
        *,
        trainer: str = "",
        steps: int = 3,
        seed: int | list[int],
        more: str = "",
        **options: Any,
    ) -> Path:
        """Submit a plan of one run and return the folder that its run will be in."""
        plan = self.folder / f"{name}.toml"
        plan.write_text(PLAN.format(name=name, steps=steps, seed=seed, more=more))
        runs = self.folder / f"{name} runs"  # every path of these jobs has a blank
        done = self.slurm.run(*self.command(plan, runs, trainer, **options), cwd=Path("/"))
        assert done.returncode == 0, done.stderr + done.stdout
        return runs

    def command(
        self,
        plan: Path,
        runs: Path,
        mode: str = "",
        detach: bool = True,
        extra: tuple[str, ...] = (),
    ) -> tuple[str, ...]:
        """Return the command line that runs a plan here, with a trainer that misbehaves."""
        where = (
            "--launcher",
            "slurm",
            "--platform",
            "cpu",
            "--plan",
            str(plan),
            "--runs",
            str(runs),
        )
        setup = self.folder / f"{plan.stem}.sh"
        fakes = ROOT / "tests" / "fakes"
        setup.write_text(
            f"export PYTHONPATH={fakes} FAKE_TRAINER={mode}\n{os.environ.get('X', '')}"
        )
        trainer = ("--trainer", "fake_trainer", "--setup", str(setup)) if mode else ()
        return (*SCALEBOOK, "run", *where, *trainer, *(("--detach",) if detach else ()), *extra)

    def job_of(self, runs: Path) -> str:
        """Return the id of the one job that a folder's run waits for."""
        shown = self.slurm.run("squeue", "-h", "-o", "%i %o").stdout.splitlines()
        return next(line.split()[0] for line in shown if str(runs) in line)

    def record(self, runs: Path) -> RunRecord:
        """Return the record of a folder's one run, when its job has ended."""
        return self.records(runs, 1)[0]

    def records(self, runs: Path, count: int) -> list[RunRecord]:
        """Return the records of a folder's runs, when there are so many."""

        def found() -> list[RunRecord]:
            self.slurm.run(*SCALEBOOK, "status", "--runs", str(runs))
            done = list(store.run_directories(runs))
            return [store.read_record(path) for path in done] if len(done) >= count else []

        return wait(found, seconds=2.0)


def wait(condition: Callable[[], Any], seconds: float = 0.3) -> Any:
    """Return the first true answer of a condition that is asked now and then, or fail."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        answer = condition()
        if answer:
            return answer
        time.sleep(seconds)
    raise AssertionError(f"waited {WAIT_SECONDS:.0f} s in vain")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Generator[Site]:
    """A cluster that every job of this module is submitted to."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("site")
    with cluster(tmp_path_factory.mktemp("slurm")) as slurm:
        yield Site(slurm, folder)


@pytest.fixture(scope="module")
def runs(site: Site) -> dict[str, Path]:
    """The folders of the runs that are submitted at the start, the longest job first."""
    minute = ("--sbatch-option", "time=1")
    return {
        "slurm_limit": site.submit("slurm_limit", trainer="hang", steps=9, seed=1, extra=minute),
        "requeued": site.submit("requeued", trainer="hang_until_requeued", steps=4, seed=2),
        "completed": site.submit("completed", seed=3),
        "one_job": site.submit("one_job", trainer="none", seed=[10, 11], extra=IN_TURN),
        "pruned": site.submit("pruned", trainer="oom", seed=12, more=TWO_SIZES, extra=ONE_JOB),
        "failing": site.submit("failing", trainer="raise", seed=4),
        "own_limit": site.submit(
            "own_limit", trainer="hang", steps=9, seed=5, more="time_limit_seconds = 20"
        ),
    }


def test_a_run_of_two_nodes_is_one_directory_with_both_logs(site: Site, runs: dict[str, Path]):
    record = site.record(runs["completed"])
    assert (record.status, record.reason) == ("completed", None)
    assert record.observed["world_size"] == 2
    run = store.read_run(runs["completed"] / record.run_id)
    assert [step.step for step in run.steps] == [1, 2, 3]
    assert all(len(step.rank_step_seconds) == 2 for step in run.steps)
    log = (run.path / "train.log").read_text()
    assert log.index("===== node 0 of 2") < log.index("===== node 1 of 2")
    assert record.environment["slurm"]["requeued"] == 0


def test_nothing_of_the_job_is_left_in_a_run_directory(site: Site, runs: dict[str, Path]):
    record = site.record(runs["completed"])
    names = {path.name for path in (runs["completed"] / record.run_id).iterdir()}
    telemetry = {"telemetry.jsonl", "telemetry.node1.jsonl"}
    whole = {"config.json", "observed.json", "record.json", "steps.jsonl", "train.log"}
    assert names - telemetry == whole


def test_a_failing_rank_ends_the_job_and_its_reason_is_recorded(site: Site, runs: dict[str, Path]):
    record = site.record(runs["failing"])
    assert record.status == "failed"
    assert record.reason and "ValueError" in record.reason
    assert record.exit_code not in (None, 0)
    assert "srun" not in record.reason


def test_a_runs_own_limit_ends_it_as_timeout(site: Site, runs: dict[str, Path]):
    record = site.record(runs["own_limit"])
    assert record.status == "timeout"
    assert record.reason and record.reason.startswith("The time limit of 20 s ran out")


def test_a_requeued_job_takes_its_directory_up_again(site: Site, runs: dict[str, Path]):
    folder = runs["requeued"]
    wait(lambda: any(folder.glob(".partial-*/steps.jsonl")))
    job = site.job_of(folder)
    assert site.slurm.run("scontrol", "requeue", job).returncode == 0
    (partial,) = store.partial_directories(folder)

    def runs_again() -> bool:  # Slurm lets a requeued job wait for two minutes, unless it is told
        site.slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        return site.slurm.job(job).get("JobState") == "RUNNING"

    wait(runs_again, seconds=1.0)
    record = site.record(folder)
    assert record.status == "completed"
    assert record.environment["slurm"]["requeued"] == 1
    assert any("requeued the job once" in note for note in record.notes)
    run = store.read_run(folder / record.run_id)
    assert [step.step for step in run.steps] == [1, 2, 3, 4]
    assert (run.path / "attempts" / "1" / "steps.jsonl").exists()
    assert run.path.name == partial.name.removeprefix(store.PARTIAL_PREFIX)


def test_one_job_trains_a_whole_plan(site: Site, runs: dict[str, Path]):
    first, second = site.records(runs["one_job"], 2)
    assert (first.status, second.status) == ("completed", "completed")
    assert first.environment["slurm"]["job_id"] == second.environment["slurm"]["job_id"]
    assert {first.requested["seed"], second.requested["seed"]} == {10, 11}
    first, second = sorted((first, second), key=lambda record: record.schedule["place"])
    assert (first.schedule["order"], first.schedule["seed"]) == ("random", 3)
    assert first.started_at and second.started_at and first.started_at < second.started_at
    assert first.schedule["cool_down"] is None
    assert second.schedule["cool_down"]["seconds"] >= 1


def test_one_job_leaves_out_what_is_larger_than_a_run_that_broke(site: Site, runs: dict[str, Path]):
    small, large = sorted(
        site.records(runs["pruned"], 2), key=lambda record: record.requested["micro_batch_size"]
    )
    assert (small.status, small.source) == ("out_of_memory", "measured")
    assert (large.status, large.source) == ("out_of_memory", "inferred")
    assert large.inferred_from == small.run_id
    assert large.started_at is None
    assert not list((runs["pruned"] / large.run_id).glob("train.log*"))


def test_cancelling_a_job_leaves_an_interrupted_run(site: Site):
    folder = site.submit("cancelled", trainer="hang", steps=9, seed=6)
    wait(lambda: any(folder.glob(".partial-*/steps.jsonl")))
    site.slurm.run("scancel", site.job_of(folder))
    record = site.record(folder)
    assert (record.status, record.reason) == (
        "interrupted",
        "The job was cancelled (scancel) (after step 2 of 9).",
    )


def test_a_job_that_never_starts_says_what_it_waits_for_and_is_recorded_when_cancelled(site: Site):
    beyond = ("--sbatch-option", "begin=now+1hour")
    folder = site.submit("waiting", seed=7, extra=beyond)
    shown = site.slurm.run(*SCALEBOOK, "status", "--runs", str(folder)).stdout
    assert "queued" in shown and "0/3" in shown
    site.slurm.run("scancel", site.job_of(folder))
    record = site.record(folder)
    assert (record.status, record.started_at) == ("interrupted", None)
    assert record.reason == "The job was cancelled (scancel) (before the first step)."


def test_ending_the_submitter_leaves_its_jobs_and_says_so(site: Site):
    plan = site.folder / "left.toml"
    plan.write_text(PLAN.format(name="left", steps=3, seed=8, more=""))
    folder = site.folder / "left runs"
    extra = ("--sbatch-option", "begin=now+1hour")
    command = site.command(plan, folder, "hang", detach=False, extra=extra)
    process = subprocess.Popen(
        site.slurm.on("ctl", *command),
        env=site.slurm.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    wait(lambda: any(folder.glob(".partial-*/job.json")) and site.slurm.run("squeue").stdout)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    job = site.job_of(folder)
    assert process.returncode == 130
    assert f"The jobs continue: {job}" in output and f"scancel {job}" in output
    site.slurm.run("scancel", job)


def test_a_container_gets_the_variables_and_the_command_of_the_run(site: Site):
    calls, tools = site.folder / "calls", site.folder / "tools"
    calls.mkdir()
    tools.mkdir()
    program = tools / "apptainer"
    program.write_text(APPTAINER.format(calls=calls, bin=Path(sys.executable).parent))
    program.chmod(0o755)
    runs = site.folder / "image_runs"
    plan = site.folder / "image.toml"
    plan.write_text(PLAN.format(name="image", steps=3, seed=9, more=""))
    setup = site.folder / "image.sh"
    setup.write_text(f"export PATH={tools}:$PATH APPTAINERENV_PYTHONPATH={ROOT}/tests/fakes\n")
    where = ("--launcher", "slurm", "--platform", "cpu", "--plan", str(plan), "--runs", str(runs))
    how = ("--container", "apptainer", "--image", "/images/a.sif", "--setup", str(setup))
    done = site.slurm.run(
        *SCALEBOOK,
        "run",
        *where,
        *how,
        "--trainer",
        "fake_trainer",
        "--detach",
        OMP_NUM_THREADS="2",
    )
    assert done.returncode == 0, done.stderr
    record = site.record(runs)
    assert (record.status, record.reason) == ("completed", None)
    assert record.environment["variables"]["OMP_NUM_THREADS"] == "2"
    made = [path.read_text().splitlines() for path in calls.iterdir()]
    assert len(made) == 2  # one per node, the first of which writes the record
    assert all(f"--bind={runs}:{runs}" in call for call in made)


def test_a_job_whose_nodes_cannot_start_the_run_says_why(site: Site):
    extra = ("--python", str(site.folder / "absent" / "python"))
    folder = site.submit("broken", trainer="none", seed=13, extra=extra)
    record = site.record(folder)
    assert (record.status, record.started_at) == ("failed", None)
    assert any("absent/python" in line for line in record.log_tail), record.log_tail


def nodes_plan(path: Path) -> Path:
    """Write the plan nodes.toml at an eighth of its size: nodes of one process, up to two nodes.

    What it asks for stays: weak and strong scaling over the border of a node.
    """
    plan = tomllib.loads((ROOT / "runs/plans/nodes.toml").read_text())
    lines = ["[plan]", f"name = {json.dumps(plan['plan']['name'])}", 'kind = "scaling"']
    small = {"model": "tiny-llama", "sequence_length": 64, "steps": 12, "warmup_steps": 2}
    small |= {"micro_batch_size": 8}
    each = plan["defaults"]["global_batch_size_per_gpu"]
    defaults = plan["defaults"] | small | {"precision": "fp32"}
    lines += ["[defaults]", *(f"{name} = {json.dumps(value)}" for name, value in defaults.items())]
    for run in plan["runs"]:
        sizes, nodes = run["world_size"], run.get("nodes", 1)
        sizes = [size for size in (sizes if isinstance(sizes, list) else [sizes]) if size >= 8]
        for size in sizes if nodes <= 2 else []:
            lines += ["[[runs]]", f"world_size = {size // 8}", f"nodes = {nodes}"]
            if "global_batch_size" in run:
                assert run["global_batch_size"] == 8 * each, "the strong arm starts at one node"
                lines.append(f"global_batch_size = {each}")
    path.write_text("\n".join(lines) + "\n")
    return path


def sizes_of(records: list[RunRecord]) -> list[tuple[int, int, int]]:
    """Return nodes, processes and global batch of completed runs, smallest first."""
    assert [(one.status, one.reason) for one in records] == [("completed", None)] * len(records)
    found = [
        (one.requested["nodes"], one.observed["world_size"], one.observed["global_batch_size"])
        for one in records
    ]
    return sorted(found)


BOTH_ARMS = [(1, 1, 32), (2, 2, 32), (2, 2, 64)]


def border_of(runs: Path) -> list[float]:
    """Return where the page Scaling draws the border of a node, by its charts.

    A loaded machine has no steady rate: the steps get the same time each, and nothing else.
    """
    for path in runs.glob("2*/steps.jsonl"):
        steps = [json.loads(line) | {"step_seconds": 0.5} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(step) + "\n" for step in steps))
    found = scaling_series(load(runs).ranked)
    drawn = scaling_page.charts(found)
    layers = drawn.parts[0][1].spec()["layer"] if drawn else []
    rules = [one for one in layers if one["mark"]["type"] == "rule" and "x" in one["encoding"]]
    return [one["data"]["values"][0]["world_size"] for one in rules]


def test_the_plan_of_many_nodes_runs_as_a_job_and_its_page_shows_the_border(site: Site):
    runs = site.folder / "nodes runs"
    plan = nodes_plan(site.folder / "nodes.toml")
    done = site.slurm.run(*site.command(plan, runs, extra=ONE_JOB), cwd=Path("/"))
    assert done.returncode == 0, done.stderr + done.stdout
    records = site.records(runs, 3)
    assert sizes_of(records) == BOTH_ARMS
    assert {one.schedule["plan"] for one in records} == {"nodes"}
    assert border_of(runs) == [pytest.approx(2**0.5)]


def test_the_plan_of_many_nodes_runs_by_torchrun_alone_on_two_hosts(site: Site):
    runs = site.folder / "torchrun runs"
    runs.mkdir()
    plan = load_plan(nodes_plan(site.folder / "by_hand.toml"), platform="cpu")
    for place, planned in enumerate(plan.runs):
        started = [
            start_node(site, host, rank, planned.config, runs / f".partial-2033-{place}")
            for rank, host in enumerate(("node1", "node2")[: planned.config.nodes])
        ]
        outputs = [process.communicate(timeout=WAIT_SECONDS)[0] for process in started]
        assert [process.returncode for process in started] == [0] * len(started), outputs
    records = [store.read_record(path) for path in store.run_directories(runs)]
    assert sizes_of(records) == BOTH_ARMS
    assert border_of(runs) == [pytest.approx(2**0.5)]
    two = next(one for one in records if one.requested["nodes"] == 2)
    log = (runs / two.run_id / "train.log").read_text()
    assert log.index("===== node 0 of 2") < log.index("===== node 1 of 2")


def start_node(
    site: Site, host: str, rank: int, config: RunConfig, directory: Path
) -> subprocess.Popen[str]:
    """Start a node's part of a run on a host, as README.md of containers/slurm says by hand."""
    fields = json.dumps(config.model_dump(exclude_defaults=True))
    meeting = {"RANK": str(rank), "MASTER_ADDR": "node1", "MASTER_PORT": "29517"}
    program = (sys.executable, "-m", "scalebook.running.cluster.node", str(directory))
    return subprocess.Popen(
        site.slurm.on(host, *program, "--config", fields),
        env={**os.environ, **meeting},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_time_limit_of_slurm_is_a_timeout(site: Site, runs: dict[str, Path]):
    record = site.record(runs["slurm_limit"])
    assert (record.status, record.reason) == (
        "timeout",
        "The job's time limit in Slurm ran out (after step 2 of 9).",
    )
