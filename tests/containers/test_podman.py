"""Real containers: built, verified, trained in, killed; nothing of them stays."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from podman_engine import ROOT, USER, Engine, Registry

from scalebook.running.container import rules

PLAN = Path(__file__).parent / "two.toml"
SECRET = "hunter2-of-the-token"


def wait_for(condition: Callable[[], Any], seconds: float = 120) -> Any:
    """Return the first true answer of a condition; fail if none comes in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := condition():
            return answer
        time.sleep(0.1)
    raise AssertionError(f"waited {seconds} s in vain")


def command(runs: Path, *arguments: str) -> list[str]:
    """Return the arguments of a plan in a container."""
    base = ["run", "--platform", "cpu", "--container", "podman", "--plan", str(PLAN)]
    return [*base, "--runs", str(runs), *arguments]


def record(runs: Path) -> dict[str, Any]:
    """Return the record of the only run."""
    (path,) = runs.glob("2*/record.json")
    return json.loads(path.read_text())


def copied(folder: Path, base: str) -> Path:
    """Copy what images are built from, with another base of the CPU platform."""
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info", "images")
    for name in ("src", "containers", "notebooks", "runs/plans", ".github"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=skip)
    files = ("pyproject.toml", "README.md", "LICENSE", "requirements.lock", "requirements.sha256")
    for name in files:
        shutil.copy(ROOT / name, folder)
    table = folder / "containers/cpu/image.toml"
    text = table.read_text().replace('base = "docker.io/library/python"', f'base = "{base}"')
    text = text.replace("\ndigest =", "\n# digest =")
    table.write_text(text.replace('tag = "3.12-slim-bookworm"', 'tag = "1"'))
    return folder


def test_the_build_leaves_the_base_as_it_is_and_needs_no_root(engine: Engine, built: str):
    code = (
        "import json, os; from importlib.metadata import version as v; "
        "from scalebook.running.container import images, rules; "
        "names = ['torch', 'megatron-core', 'pyzmq', 'scalebook', 'papermill']; "
        "print(json.dumps([os.getuid(), images.image('amd').name, len(rules.rules('amd')), "
        "os.environ['PIP_CONSTRAINT'], *map(v, names)]))"
    )
    done = engine.podman("run", "--rm", built, "python3", "-c", code)
    uid, name, count, constraint, torch, megatron, pyzmq, *_ = json.loads(done.stdout)
    assert uid == 65534
    assert (name, count) == ("scalebook-amd", len(rules.rules("amd"))), "the wheel has the tables"
    assert (torch, megatron) == ("2.12.0a0+0291f960b6", "0.18.0")
    assert constraint == "/opt/standin/constraint.txt"
    assert pyzmq.startswith("26."), "the image's own constraint holds for what is added"
    label = '{{index .Config.Labels "scalebook.security-policy"}}'
    policy = engine.podman("image", "inspect", "--format", label, built).stdout.strip()
    said = engine.podman("run", "--rm", "--entrypoint=cat", built, policy).stdout
    assert "## Report a vulnerability" in said
    files = engine.podman("run", "--rm", built, "find", "/opt/scalebook", "-name", "*.toml")
    assert "/opt/scalebook/runs/plans/quick.toml" in files.stdout


def test_verify_says_what_is_not_as_image_toml_states(engine: Engine, built: str):
    options = ("verify", "--container", "podman", "--image", built, "--json")
    cpu = engine.scalebook(*options, "--platform", "cpu")
    assert cpu.returncode == 1, cpu.stderr
    body = json.loads(cpu.stdout)
    verdicts = {row["component"]: row["verdict"] for row in body["findings"]}
    assert verdicts["torch"] == "different"
    assert verdicts["papermill"] == "present"
    assert body["torch"] == {"starts": True, "devices": 0, "reason": None}
    # In versions the stand-in pretends to be NVIDIA's, whose own run flags need a GPU.
    stated = {"torch": "2.12.0", "cuda": "13.2", "megatron_core": "0.18.0"}
    assert all(body["versions"][name].startswith(value) for name, value in stated.items())


def test_two_processes_train_as_an_ordinary_user_whose_files_they_are(
    engine: Engine, built: str, runs: Path, trainer_inside: list[str], tmp_path: Path
):
    engine.environment["HF_TOKEN"] = SECRET
    engine.environment["NCCL_DEBUG"] = "INFO"
    done = engine.scalebook(*command(runs, "--env=HF_TOKEN", *trainer_inside))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Not passed into the container: NCCL_DEBUG" in done.stdout
    found = record(runs)
    assert found["status"] == "completed"
    owners = {path.stat().st_uid for path in runs.rglob("*")}
    assert owners == {USER}
    container = found["environment"]["container"]
    assert container["SCALEBOOK_CONTAINER"] == "podman"
    assert container["SCALEBOOK_IMAGE"] == built
    image_id = engine.podman("image", "inspect", "--format={{.Id}}", built).stdout.strip()
    assert container["SCALEBOOK_IMAGE_ID"] == f"sha256:{image_id}"
    listed = (ROOT / "containers/images/scalebook-cpu-0.1.0.cdx.json").read_bytes()
    assert container["packages_sha256"] == hashlib.sha256(listed).hexdigest()
    assert container["SCALEBOOK_BASE_IMAGE"] == "localhost/standin"
    variables = found["environment"]["variables"]
    assert variables["OMP_NUM_THREADS"] == "1"
    assert variables["HF_TOKEN"] == "***"
    assert "NCCL_DEBUG" not in variables
    texts = [path.read_bytes() for path in runs.rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in text for text in texts)
    assert engine.containers() == []


def test_a_plan_without_a_completed_run_fails_outside_too(
    engine: Engine, built: str, runs: Path, trainer_inside: list[str]
):
    done = engine.scalebook(*command(runs, "--trainer", "not_a_module", *trainer_inside))
    assert done.returncode == 1, done.stderr
    assert record(runs)["status"] == "failed"
    assert engine.containers() == []


def start(engine: Engine, runs: Path, options: list[str]) -> subprocess.Popen[bytes]:
    """Start a plan whose trainer hangs after two steps, and return when it has made them."""
    hanging = ("--trainer", "fake_trainer", "--env=FAKE_TRAINER=hang")
    process = subprocess.Popen(
        (sys.executable, "-m", "scalebook", *command(runs, *hanging, *options)),
        env=engine.environment,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: [p for p in runs.glob(".partial-*/steps.jsonl") if p.stat().st_size])
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_launcher_ends_the_run_and_leaves_a_record_and_no_container(
    number: signal.Signals,
    engine: Engine,
    built: str,
    runs: Path,
    trainer_inside: list[str],
):
    process = start(engine, runs, trainer_inside)
    assert len(engine.containers()) == 1
    process.send_signal(number)
    code = process.wait(timeout=90)
    wait_for(lambda: list(runs.glob("2*/record.json")))
    wait_for(lambda: engine.containers() == [])
    assert code == (143 if number == signal.SIGTERM else -signal.SIGKILL)
    found = record(runs)
    assert found["status"] == "interrupted"
    assert "ended by SIGTERM" in found["reason"]
    assert not list(runs.glob(".partial-*"))


def test_nothing_but_the_runs_can_be_written_and_codes_pass(engine: Engine, built: str, runs: Path):
    code = (
        "import sys, json; from pathlib import Path; "
        "from scalebook.running.container import follow as container, nested; "
        "runs = Path(sys.argv[1]); host = nested.describe(Path(sys.argv[2]), runs); "
        "request = nested.ContainerRequest('podman', 'cpu', sys.argv[3]); "
        "command = nested.command(request, host, [], writes=[runs]); "
        "argv = list(command.argv); argv[argv.index('python3'):] = ['sh', '-c', sys.argv[4], 'sh', "
        "str(runs), sys.argv[2]]; "
        "from dataclasses import replace; command = replace(command, argv=tuple(argv)); "
        "sys.exit(container.run(command, ('podman', 'rm', '--force', host.name)))"
    )
    script = (
        'for place in / /opt "$2" "$2/src" /usr/bin; do touch "$place/new" 2>/dev/null && exit 1; '
        'done; touch "$1/new" /tmp/new && exit 7'
    )
    done = subprocess.run(
        (sys.executable, "-c", code, str(runs), str(ROOT), built, script),
        env=engine.environment,
        check=False,
        timeout=60,
    )
    assert done.returncode == 7
    assert (runs / "new").stat().st_uid == USER
    assert not (ROOT / "new").exists()
    assert [path.name for path in runs.iterdir()] == ["new"]


def test_a_pinned_base_stays_where_its_tag_moves(
    engine: Engine, standin: str, registry: Registry, tmp_path: Path
):
    base = f"{registry.address}/team/base"
    first = registry.push(engine, standin, f"{base}:1")
    checkout = copied(tmp_path / "checkout", base)
    options = ("image", "--platform", "cpu", "--container", "podman")
    pinned = engine.scalebook(*options, "--pin", **registry.variables(checkout))
    assert pinned.returncode == 0, pinned.stderr
    table = checkout / "containers/cpu/image.toml"
    assert f'digest = "{first}"' in table.read_text()
    engine.podman("run", "--name=other", "--entrypoint=touch", standin, "/other")
    engine.podman("commit", "--quiet", "other", "localhost/other")
    engine.podman("rm", "other")
    assert registry.push(engine, "localhost/other", f"{base}:1") != first
    named = ("--image", "localhost/pinned:1")
    done = engine.scalebook(*options, *named, **registry.variables(checkout))
    assert done.returncode == 0, done.stderr
    assert "is named by a tag" not in done.stderr
    label = '{{index .Config.Labels "org.opencontainers.image.base.name"}}'
    found = engine.podman("image", "inspect", "--format", label, "localhost/pinned:1").stdout
    assert found.strip() == f"{base}@{first}"
    seen = engine.podman("run", "--rm", "--entrypoint=ls", "localhost/pinned:1", "/").stdout
    assert "opt" in seen.split() and "other" not in seen.split()
    assert (checkout / "containers/images/pinned-1.cdx.json").is_file()
    registry.stop()
    lost = engine.scalebook(*options, "--pin", **registry.variables(checkout))
    assert lost.returncode == 2
    assert f"got no digest of {base}:1" in lost.stderr
    assert f'digest = "{first}"' in table.read_text()


def test_an_image_goes_to_another_machine_as_a_file(engine: Engine, built: str):
    archive = engine.folder / "image.tar"
    engine.podman("save", "--quiet", f"--output={archive}", built)
    engine.podman("rmi", "--force", built)
    missing = engine.scalebook("verify", "--platform", "cpu", "--container", "podman")
    assert missing.returncode == 2
    assert "podman has no image localhost/scalebook-cpu:0.1.0. Build it" in missing.stderr
    source = f"docker-archive:{archive}"
    options = ("image", "--platform", "cpu", "--container", "podman", "--from", source)
    loaded = engine.scalebook(*options)
    assert loaded.returncode == 0, loaded.stderr
    assert engine.podman("image", "exists", built, check=False).returncode == 0
    archive.unlink()
