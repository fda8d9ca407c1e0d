"""What ``make mutate`` lists: modules and tests that exist, and exceptions that are changes."""

from __future__ import annotations

import importlib.util
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
