"""What one node of a cluster's job does, and the template of a Kubernetes job that starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from training import FAKES, broke, two_nodes

from scalebook import store
from scalebook.config import RunConfig
from scalebook.facts import catalog, legality
from scalebook.running import finish_run, processes, runner
from scalebook.running.cluster import jobs, node, node_logs

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "containers" / "kubernetes" / "pytorchjob.yaml"
SCHEMA = json.loads((ROOT / "tests/golden/launch/pytorchjob.schema.json").read_text())

# Runs a node's part with the fake trainer as one process in place of torchrun.
PROGRAM = f"""
import sys
from scalebook.running import launch
from scalebook.running.launch import Launch
from scalebook.running.cluster import node
def direct(config, *, config_path, output, **_):
    fake = (sys.executable, {str(FAKES / "fake_trainer.py")!r})
    return Launch((*fake, "--config", str(config_path), "--output", str(output)), ())
launch.direct = direct
sys.exit(node.main(sys.argv[1:]))
"""


def start(directory: Path, number: int, *arguments: str, mode: str = "") -> subprocess.Popen[bytes]:
    """Start a node's part of a run."""
    environment = {**os.environ, "RANK": str(number), "SCALEBOOK_TELEMETRY_SECONDS": "0"}
    environment |= {"MASTER_ADDR": "first", "FAKE_TRAINER": mode}
    command = [sys.executable, "-c", PROGRAM, str(directory), "--trainer", "fake", *arguments]
    return subprocess.Popen(command, env=environment)


def wait_for(condition: Callable[[], bool]) -> None:
    """Return when a condition holds, or fail after a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(FileNotFoundError):
            if condition():
                return
        time.sleep(0.05)
    raise AssertionError("waited a minute in vain")


def run_nodes(directory: Path, *modes: str, **changes: Any) -> list[int]:
    """Run a part for each mode at the same time, the last node first; return their codes."""
    fields = json.dumps(two_nodes(**changes).model_dump(exclude_defaults=True))
    codes = [-1 for _ in modes]

    def part(number: int, mode: str) -> None:
        process = start(directory, number, "--config", fields, mode=mode)
        codes[number] = process.wait(120)

    threads = [threading.Thread(target=part, args=item) for item in reversed([*enumerate(modes)])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return codes


def test_the_first_node_writes_one_record_with_both_logs(tmp_path: Path):
    assert run_nodes(tmp_path / ".partial-two", "", "") == [0, 0]
    run = store.read_run(tmp_path / "two")
    assert run.record.status == "completed"
    assert "===== node 1 of 2 =====" in (run.path / "train.log").read_text()
    names = {path.name for path in run.path.iterdir()}
    assert not names & {"job.json", "exit.json", "exit.node1.json", "train.log.node1"}


@pytest.mark.parametrize("ends", [("hang", "raise"), ("raise", "hang")])
def test_a_nodes_failure_ends_the_other_and_is_the_runs_reason(
    tmp_path: Path, ends: tuple[str, str]
):
    assert run_nodes(tmp_path / ".partial-two", *ends) == [1, 0]
    record = store.read_record(tmp_path / "two")
    assert (record.status, record.exit_code) == ("failed", 1)
    assert "ValueError" in str(record.reason)


def test_nodes_without_progress_end_with_their_limit_as_the_reason(tmp_path: Path):
    codes = run_nodes(tmp_path / ".partial-two", "hang", "hang", progress_limit_seconds=2)
    record = store.read_record(tmp_path / "two")
    assert (record.status, record.cause) == ("timeout", "no_progress")
    assert str(record.reason).startswith("No step for 2 s")
    assert codes == [record.exit_code, 0]


def test_the_limit_that_another_node_reached_first_is_the_runs_reason(tmp_path: Path):
    limit = ("timeout", "No step for 2 s", "no_progress")
    finish_run.write_exit(tmp_path, finish_run.Ended(143, node_logs.FOLLOWED))
    assert node_logs.own_stop(tmp_path) is None
    finish_run.write_exit(tmp_path, finish_run.Ended(143, limit), 1)
    assert node_logs.own_stop(tmp_path) == limit


@pytest.mark.parametrize("whole_group", [False, True])
def test_a_job_that_is_asked_to_end_leaves_the_record_to_who_knows_why(
    whole_group: bool, tmp_path: Path
):
    partial = waits(tmp_path, 4, nodes=1, world_size=1)
    process = start(partial, 0, "--job", "7", mode="hang")
    wait_for(lambda: len((partial / "steps.jsonl").read_text().splitlines()) == 2)
    if whole_group:  # as a scheduler does: the ranks may be gone before their owner looks
        processes.send(finish_run.run_id(partial), signal.SIGTERM)
    process.terminate()
    assert process.wait(60) == 143
    end = finish_run.read_exit(partial)
    assert end is not None and end.stop == node.ASKED


def test_a_run_without_a_scheduler_to_ask_is_recorded_as_interrupted(tmp_path: Path):
    partial = waits(tmp_path, 4, nodes=1, world_size=1)
    process = start(partial, 0, mode="hang")
    wait_for(lambda: len((partial / "steps.jsonl").read_text().splitlines()) == 2)
    process.terminate()
    assert process.wait(60) == 143
    record = store.read_record(tmp_path / "20340102-030405-4")
    assert (record.status, record.reason) == (
        "interrupted",
        "The job was asked to end (after step 2 of 5).",
    )


def test_a_run_that_a_node_cannot_start_is_a_failed_run_with_the_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    partial = waits(tmp_path, 4)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.setattr(node.signal, "signal", lambda *_: None)
    assert node.main([str(partial), "--trainer", "fake"]) == 2
    record = store.read_record(tmp_path / "20340102-030405-4")
    assert record.status == "failed"
    assert "MASTER_ADDR is not set" in str(record.reason)


def test_a_node_without_its_number_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    partial = waits(tmp_path, 4)
    for number in ("", "2", "x"):
        monkeypatch.setenv("RANK", number)
        assert node.main([str(partial)]) == 2
        assert "is not one of the run's 2 nodes" in capsys.readouterr().err
    assert partial.is_dir()


@pytest.mark.parametrize("name", ["new", ".partial-old"])
def test_a_node_creates_only_new_runs(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setenv("RANK", "0")
    (tmp_path / "old").mkdir()
    assert node.main([str(tmp_path / name), "--config", "{}"]) == 2
    assert "is not a new run's .partial-NAME" in capsys.readouterr().err


def part(directory: Path, number: int, **options: Any) -> node.NodePart:
    """Return a node's part of a run of two nodes with two ranks each."""
    known = {"rendezvous": "", "job": "", "restart": 0, "trainer": "", **options}
    settings = two_nodes(world_size=4)
    return node.NodePart(directory, settings, number, node.argparse.Namespace(**known))


def test_torchrun_meets_where_an_operator_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MASTER_ADDR", "job-master-0")
    monkeypatch.setenv("MASTER_PORT", "23456")
    given = dict(pairwise(part(tmp_path, 1).launch().command))
    assert (given["--master-addr"], given["--master-port"]) == ("job-master-0", "23456")
    names = ("--nnodes", "--node-rank", "--nproc-per-node")
    assert [given[name] for name in names] == ["2", "1", "2"]


def test_torchrun_meets_at_the_jobs_first_node_under_the_name_of_this_attempt(tmp_path: Path):
    command = part(tmp_path, 1, rendezvous="first:2", job="7", restart=1).launch().command
    given = dict(pairwise(command))
    assert (given["--rdzv-endpoint"], given["--rdzv-id"]) == ("first:2", "7.1")
    assert given["--rdzv-backend"] == "c10d" and "--standalone" not in command


# Whether and when a run of a job starts.


def waits(runs: Path, size: int, **changes: Any) -> Path:
    """Return a directory that waits for its turn in job 7."""
    runs.mkdir(parents=True, exist_ok=True)
    partial = store.partial_path(runs, f"20340102-030405-{size}")
    partial.mkdir()
    store.write_json(partial / "config.json", two_nodes(size, **changes).model_dump())
    store.write_json(partial / "schedule.json", {"plan": "plan", "place": 2, "notes": ["random"]})
    jobs.write_job(partial, "7", 2)
    return partial


class StartedError(Exception):
    """The run was to be started."""


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    """Return a function that runs a first node's part up to its ranks: whether they start."""

    def check(*_: Any, **__: Any) -> None:
        raise StartedError

    def lead(directory: Path, *arguments: str) -> bool:
        try:
            assert node.main([str(directory), "--trainer", "fake", "--job", "7", *arguments]) == 0
        except StartedError:
            return True
        return False

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(runner, "check", check)
    monkeypatch.setattr(node.signal, "signal", lambda *_: None)
    return lead


def test_a_run_that_cannot_fit_gets_its_record_in_the_job(
    tmp_path: Path, starts: Callable[..., bool]
):
    partial, shows = waits(tmp_path, 4), broke(tmp_path, 2)
    assert not starts(partial, "--prune", "--cool-down", "900s")
    record = store.read_record(tmp_path / "20340102-030405-4")
    assert (record.status, record.source) == ("out_of_memory", "inferred")
    assert record.inferred_from == shows
    assert record.schedule["place"] == 2
    assert record.command == ()
    left = {path.name for path in (tmp_path / record.run_id).iterdir()}
    assert left == {"config.json", "record.json"}


def test_what_another_job_showed_does_not_count_in_a_rerun(
    tmp_path: Path, starts: Callable[..., bool]
):
    partial = waits(tmp_path, 4)
    broke(tmp_path, 2, "6")
    assert starts(partial, "--prune", "--fresh")
    broke(tmp_path, 2, "7")
    assert not starts(partial, "--prune", "--fresh")


def test_a_wait_is_noted_beside_what_the_schedule_says(tmp_path: Path, starts: Callable[..., bool]):
    partial = waits(tmp_path, 4)
    assert starts(partial, "--cool-down", "0.2s")
    kept = json.loads((partial / "schedule.json").read_text())
    assert (kept["place"], kept["notes"]) == (2, ["random"])
    assert kept["cool_down"]["asked"] == "0.2s"
    assert kept["cool_down"]["seconds"] >= 0.2


# The template for Kubernetes.


def test_the_template_is_a_pytorchjob_whose_numbers_agree_with_its_run():
    (job,) = yaml.safe_load_all(TEMPLATE.read_text())
    jsonschema.validate(job, SCHEMA)
    replicas = job["spec"]["pytorchReplicaSpecs"]
    container = replicas["Master"]["template"]["spec"]["containers"][0]
    named = {one["name"]: one["value"] for one in container["env"]}
    assert named["SCALEBOOK_IMAGE"] == container["image"]
    directory, flag, fields = container["args"]
    settings = RunConfig.from_parameters(json.loads(fields))
    problems = legality.check(legality.Case(settings, catalog.model(settings.model)))
    assert [one for one in problems if one.severity == "error"] == []
    ranks = settings.world_size // settings.nodes
    assert flag == "--config"
    assert Path(directory).name.startswith(store.PARTIAL_PREFIX)
    assert sum(one["replicas"] for one in replicas.values()) == settings.nodes
    assert job["spec"]["nprocPerNode"] == str(ranks)
    assert container["resources"]["limits"] == {"nvidia.com/gpu": ranks}
    assert job["spec"]["runPolicy"]["activeDeadlineSeconds"] > settings.time_limit_seconds
    assert all(one["restartPolicy"] == "Never" for one in replicas.values())
    assert len(TEMPLATE.read_text().splitlines()) < 150
