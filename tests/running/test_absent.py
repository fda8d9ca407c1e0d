"""What is said where a platform's GPUs are not to be seen: what is missing, and what helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebook.facts import catalog
from scalebook.running.launch import explain_missing_gpus

FILES = {"h100": "dev/nvidiactl", "mi300x": "dev/kfd"}


def said(platform: str, root: Path, *tools: str, **environment: str) -> str:
    """Return what is said on a machine with these files and tools."""
    found = {tool: f"/usr/bin/{tool}" for tool in tools}
    return explain_missing_gpus(catalog.platform(platform), environment, root, found.get)


@pytest.mark.parametrize("platform", FILES)
def test_a_bare_host_without_the_driver_is_told_so(platform: str, tmp_path: Path):
    text = said(platform, tmp_path)
    assert f"/{FILES[platform]} does not exist" in text
    assert "driver is not loaded" in text
    assert "Slurm" not in text


@pytest.mark.parametrize(("platform", "flag"), [("h100", "--gpus=all"), ("mi300x", "/dev/kfd")])
def test_in_a_container_the_flag_that_was_left_out_is_named(
    platform: str, flag: str, tmp_path: Path
):
    text = said(platform, tmp_path, container="podman")
    assert "is not in this container" in text
    assert flag in text


def test_a_login_node_is_told_how_to_submit(tmp_path: Path):
    assert "LAUNCHER=slurm" in said("mi300x", tmp_path, "sbatch")


@pytest.mark.parametrize("platform", FILES)
def test_a_driver_without_its_tools_and_one_that_names_nothing_differ(
    platform: str, tmp_path: Path
):
    (tmp_path / "dev").mkdir()
    (tmp_path / FILES[platform]).touch()
    assert "not found on PATH" in said(platform, tmp_path)
    assert "names no device" in said(platform, tmp_path, "nvidia-smi", "amd-smi")
