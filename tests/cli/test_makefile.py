"""What a person gives to make reaches the command line as one word, whatever is in it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def printed(root: Path, target: str, **variables: str) -> list[str]:
    """Return the words of the last command that make would run."""
    given = [f"{name}={value.replace('$', '$$')}" for name, value in variables.items()]
    # What `make test ARGS=...` was given must not reach the make that is tested.
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    done = subprocess.run(
        ("make", "--dry-run", "--no-print-directory", target, *given),
        cwd=root,
        env=kept,
        capture_output=True,
        text=True,
        check=True,
    )
    return shlex.split(done.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize("name", ["a b", "a'b", 'a"b', "$(touch x)", "`id`", "a;b", "a&b", "a\\b"])
def test_a_name_is_one_word_of_the_command(name: str, root: Path):
    words = printed(root, "plan", RUNS=name, PLAN=name, MODEL=name, IMAGE=name, CONTAINER="none")
    for option in ("--runs", "--plan", "--model", "--image"):
        assert words[words.index(option) + 1] == name


def test_what_is_not_given_is_not_said(root: Path):
    assert printed(root, "image")[-3:] == ["image", "--platform", "cpu"]
    assert "--model" not in printed(root, "tune")


def test_the_home_folder_can_be_written_short(root: Path):
    words = printed(root, "list", RUNS="~/runs", HOME="/home/ada")
    assert words[words.index("--runs") + 1] == "/home/ada/runs"


def test_arguments_for_the_command_are_read_by_the_shell(root: Path):
    assert printed(root, "list", ARGS="--all 'a b'")[-2:] == ["--all", "a b"]


def test_clean_removes_the_cache_of_reports_and_no_run(root: Path):
    words = printed(root, "clean")
    assert "reports/.cache" in words
    assert not any(word.startswith("runs") for word in words)


def test_help_and_readme_say_how_the_commands_get_into_the_path(root: Path):
    line = ". .venv/bin/activate"
    command = ["make", "--no-print-directory", "-C", str(root), "help"]
    kept = {"PATH": os.environ["PATH"]}
    done = subprocess.run(command, env=kept, capture_output=True, text=True, check=True)
    assert line in done.stdout
    assert line in (Path(__file__).parents[2] / "README.md").read_text()
