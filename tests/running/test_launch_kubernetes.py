"""PyTorchJobs: what Kubernetes is asked for, and what a pod of one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from training import FAKES, small

from scalebook import store
from scalebook.errors import LaunchError
from scalebook.running.cluster import kubernetes, pod

GOLDEN = Path(__file__).parents[1] / "golden" / "launch"
SCHEMA = json.loads((GOLDEN / "pytorchjob.schema.json").read_text())
RUN = "20330102-030405-llama3.1-8b-w16-0123456789ab"


def job(run_id: str = RUN, options: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return the manifest of a configuration, as a reader of YAML sees it."""
    base: dict[str, Any] = {"platform": "h100", "model": "llama3.1-8b", "world_size": 16}
    config = small(**{**base, "nodes": 2, "precision": "bf16", "global_batch_size": 16, **changes})
    chosen = kubernetes.Options(**{"image": "registry/image:1", "claim": "runs", **(options or {})})
    made = kubernetes.manifest(config, run_id, chosen)
    (read,) = yaml.safe_load_all(kubernetes.text([made]))
    jsonschema.validate(read, SCHEMA)
    assert read == made
    return read


def container(manifest: dict[str, Any], replica: str = "Master") -> dict[str, Any]:
    """Return the container of a replica."""
    spec = manifest["spec"]["pytorchReplicaSpecs"][replica]["template"]["spec"]
    return spec["containers"][0]


PLATFORMS = ("cpu", "a100", "h100", "h200", "b200", "mi300x", "mi325x", "mi355x")


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_manifest_is_as_it_was(platform: str):
    """SCALEBOOK_WRITE_GOLDEN=1 writes the snapshots anew; read their difference."""
    found = kubernetes.text([job(platform=platform)])
    path = GOLDEN / f"kubernetes_{platform}.yaml"
    if os.environ.get("SCALEBOOK_WRITE_GOLDEN"):
        path.write_text(found)
    assert found == path.read_text()


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_manifest_of_every_platform_fits_the_schema(platform: str):
    resource = {"cpu": None, **dict.fromkeys(("mi300x", "mi325x", "mi355x"), "amd.com/gpu")}
    limits = container(job(platform=platform)).get("resources", {}).get("limits")
    name = resource.get(platform, "nvidia.com/gpu")
    assert limits == ({name: 8} if name else None)


def test_a_run_is_a_master_and_a_worker_for_each_further_node():
    replicas = job(nodes=4, world_size=32, global_batch_size=32)["spec"]["pytorchReplicaSpecs"]
    assert (replicas["Master"]["replicas"], replicas["Worker"]["replicas"]) == (1, 3)
    assert set(job(nodes=1, world_size=8)["spec"]["pytorchReplicaSpecs"]) == {"Master"}


def test_a_pod_that_failed_is_not_started_again():
    manifest = job(time_limit_seconds=600)
    assert manifest["spec"]["runPolicy"]["backoffLimit"] == 0
    assert manifest["spec"]["pytorchReplicaSpecs"]["Master"]["restartPolicy"] == "Never"
    assert manifest["spec"]["runPolicy"]["activeDeadlineSeconds"] == 600 + 1800


def test_the_whole_configuration_travels_in_one_argument():
    arguments = container(job(seed=77))["args"]
    fields = json.loads(arguments[arguments.index("--config") + 1])
    assert (fields["seed"], fields["world_size"]) == (77, 16)


def test_an_ordinary_user_stays_one_and_root_is_not_asked_for():
    manifest = job(options={"user": (1000, 100)})
    spec = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert spec["securityContext"] == {"runAsUser": 1000, "runAsGroup": 100, "fsGroup": 100}


def test_texts_that_yaml_would_read_as_something_else_stay_texts():
    given_ = {"NCCL_A": "no", "NCCL_B": "1e3", "NCCL_C": "a: b # c", "NCCL_D": "null"}
    shown = container(job(options={"environment": given_}))["env"]
    assert {one["name"]: one["value"] for one in shown if one["name"][:5] == "NCCL_"} == given_


def test_dollars_reach_the_pod_as_they_are():
    """Kubernetes expands $(NAME) in arguments and values, and reads $$ as one dollar."""
    variables = {"NCCL_DEBUG_FILE": "/tmp/$(HOME)/$$.log"}
    made = container(job(options={"environment": variables}, data="/d/$(x)"))
    values = {item["name"]: item["value"] for item in made["env"]}
    assert values["NCCL_DEBUG_FILE"] == "/tmp/$$(HOME)/$$$$.log"
    assert "/d/$$(x)" in made["args"][made["args"].index("--config") + 1]


def test_secrets_are_not_written_into_a_manifest():
    shown = container(job(options={"environment": {"NCCL_TOKEN": "x" * 9}}))["env"]
    assert not any(one["name"] == "NCCL_TOKEN" for one in shown)


@given(st.text(min_size=1, max_size=200))
def test_every_name_becomes_one_that_dns_takes(text: str):
    name = kubernetes.dns_name(text)
    assert kubernetes._DNS.fullmatch(name) and len(name) <= 50 and name[0].isalpha()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"image": ""}, "--image '' names no image"),
        ({"image": "a b"}, "--image 'a b' names no image"),
        ({"claim": "My_Claim"}, "--claim 'My_Claim' is no name in Kubernetes"),
        ({"namespace": "a/b"}, "--namespace 'a/b' is no name"),
    ],
)
def test_what_the_cluster_would_refuse_is_refused_here(options: dict[str, str], words: str):
    with pytest.raises(LaunchError, match=words):
        job(options=options)


def test_the_command_prints_manifests_and_applies_nothing():
    command = [sys.executable, "-m", "scalebook", "run", "--launcher", "kubernetes"]
    plan = ["--platform", "cpu", "--image", "registry/image:1", "--runs", "/nonexistent"]
    shown = subprocess.run(
        [*command, *plan, "--dry-run"], capture_output=True, text=True, check=True, timeout=120
    )
    made = list(yaml.safe_load_all(shown.stdout))
    assert len(made) == 5
    for one in made:
        jsonschema.validate(one, SCHEMA)
    refused = subprocess.run([*command, *plan], capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "kubectl apply -f -" in refused.stderr


# What a pod does.


def without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every pod run the fake trainer as one process."""

    def command(config: Any, directory: Path, number: int, *_: Any) -> tuple[str, ...]:
        program = ("env", f"RANK={number}", sys.executable, str(FAKES / "fake_trainer.py"))
        return (*program, "--config", str(directory / "config.json"), "--output", str(directory))

    monkeypatch.setattr(pod, "command_of", command)
    monkeypatch.setenv("SCALEBOOK_TELEMETRY_SECONDS", "0")


def test_a_pod_leaves_the_record_of_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    without_torchrun(monkeypatch)
    monkeypatch.delenv("RANK", raising=False)
    assert pod.run(small(), tmp_path, "20330102-030405-a") == 0
    run = store.read_run(tmp_path / "20330102-030405-a")
    assert (run.record.status, len(run.steps)) == ("completed", 5)
    names = {path.name for path in run.path.iterdir()}
    assert not names & {"job.json", "node0.json", "train.log.node0"}


def test_the_first_pod_waits_for_the_others_and_tells_which_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = small(world_size=2, nodes=2)
    fields = json.dumps(config.model_dump(exclude_defaults=True))
    code = (
        "import sys; from scalebook.running.cluster import pod\n"
        "def command(config, directory, number, *_):\n"
        f"    return (sys.executable, {str(FAKES / 'fake_trainer.py')!r}, '--config',\n"
        "            str(directory / 'config.json'), '--output', str(directory))\n"
        "pod.command_of = command\n"
        "sys.exit(pod.main(sys.argv[1:]))"
    )
    codes: list[int] = []

    def start(rank: int) -> None:
        environment = {**os.environ, "RANK": str(rank), "SCALEBOOK_TELEMETRY_SECONDS": "0"}
        environment["FAKE_TRAINER"] = "raise" if rank else ""
        arguments = ("--runs", str(tmp_path), "--run-id", "two", "--config", fields)
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], env=environment, check=False, timeout=120
        )
        codes.append(done.returncode)

    pods = [threading.Thread(target=start, args=(rank,)) for rank in (1, 0)]
    for one in pods:
        one.start()
    for one in pods:
        one.join()
    record = store.read_record(tmp_path / "two")
    assert sorted(codes) == [0, 1]
    assert (record.status, record.exit_code) == ("failed", 1)
    assert "ValueError" in str(record.reason)


def test_a_pod_without_its_place_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(LaunchError, match="no place among 2 pods"):
        pod.run(small(world_size=2, nodes=2), tmp_path, "x")


def test_a_run_id_cannot_leave_the_claim(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    fields = json.dumps(small().model_dump(exclude_defaults=True))
    arguments = ("--runs", str(tmp_path), "--run-id", "../x", "--config", fields)
    assert pod.main(arguments) == 2
    assert "no name of a folder" in capsys.readouterr().err


def test_torchrun_in_a_pod_meets_where_the_operator_says(tmp_path: Path):
    environment = {"MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
    command = pod.command_of(small(world_size=4, nodes=2), tmp_path, 1, environment)
    given_ = dict(pairwise(command))
    assert (given_["--master-addr"], given_["--master-port"]) == ("job-master-0", "23456")
    names = ("--nnodes", "--node-rank", "--nproc-per-node")
    assert [given_[name] for name in names] == ["2", "1", "2"]
