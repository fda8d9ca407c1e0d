"""What ``make mutate`` lists: modules and tests that exist, and exceptions that are changes."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
spec = importlib.util.spec_from_file_location("mutate", HERE / "mutate.py")
assert spec is not None and spec.loader is not None
mutate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mutate)


@pytest.mark.parametrize("part", mutate.CORE)
def test_a_part_has_its_modules_and_tests(part: str):
    sources, tests = (words.split() for words in mutate.CORE[part])
    for source in sources:
        found = mutate.SOURCE / source
        assert found.is_file() or any(found.rglob("*.py")), source
    for test in tests:
        assert Path(mutate.test_file(test)).is_file(), test


@pytest.mark.parametrize("change", sorted(mutate.EQUIVALENT))
def test_a_change_that_alters_nothing_is_one_that_is_left_out(
    change: str, monkeypatch: pytest.MonkeyPatch
):
    file, _, words = change.partition(": ")
    path = mutate.SOURCE / file
    left = [text for _, _, text in mutate.mutants(path)]
    monkeypatch.setattr(mutate, "EQUIVALENT", frozenset())
    every = [text for _, _, text in mutate.mutants(path)]
    assert [text for text in every if text.endswith(f": {words}")]
    assert not [text for text in left if text.endswith(f": {words}")]


def test_lines_that_changed_since_a_commit_are_those_of_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    file = tmp_path / "a.py"
    file.write_text("one\ntwo\nthree\nfour\n")
    git("init")
    git("add", "a.py")
    git("commit", "-m", "first")
    assert mutate.changed_lines(file, "HEAD") == set()
    file.write_text("one\n2\nthree\nfive\nsix\n")
    assert mutate.changed_lines(file, "HEAD") == {2, 4, 5}
