"""The list of runs from the cache: the same rows, and damage or change costs only time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from simulated import write_sample

from scalebook.measure import metrics_cache
from scalebook.measure.metrics_cache import listed


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(metrics_cache, "_WORTH_SECONDS", 0.0)
    monkeypatch.setattr(metrics_cache.project, "root", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_sample(tmp_path / "runs")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories that were read and measured."""
    seen: list[str] = []
    real = metrics_cache._measured

    def noted(directory: Path, precision: str | None) -> metrics_cache.ListedRun | str:
        seen.append(directory.name)
        return real(directory, precision)

    monkeypatch.setattr(metrics_cache, "_measured", noted)
    return seen


def test_a_second_list_reads_no_run_and_says_the_same(runs, measured):
    first = list(listed(runs, None))
    assert len(measured) == len(first) > 3
    measured.clear()
    assert list(listed(runs, None)) == first
    assert measured == []
    assert len(list(listed(runs, "fp8"))) == len(first)
    assert len(measured) == len(first)  # another question is another list


def test_only_a_run_whose_files_changed_is_measured_again(runs, measured):
    first = list(listed(runs, None))
    measured.clear()
    path = runs / "cpu-one" / "steps.jsonl"
    about, text = path.stat(), path.read_text()
    path.write_text(text.replace('"measured"', '"profiled"', 3))  # the same size, the same date
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    again = list(listed(runs, None))
    assert measured == ["cpu-one"]
    assert [one for one in again if one not in first] == [
        one for one in again if not isinstance(one, str) and one.metrics.run_id == "cpu-one"
    ]


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "link"])
def test_a_damaged_cache_is_made_anew(runs, measured, tmp_path, damage):
    first = list(listed(runs, None))
    (path,) = (tmp_path / "cache" / "scalebook").iterdir()
    content = path.read_bytes()
    path.unlink()
    if damage == "link":
        path.symlink_to("/dev/zero")
    else:
        changed = {"cut": content[:-40], "flip": content.replace(b"cpu", b"gpu"), "empty": b""}
        path.write_bytes(changed[damage])
    measured.clear()
    assert list(listed(runs, None)) == first
    assert len(measured) == len(first)
    assert path.read_bytes() == content


def test_a_folder_that_cannot_be_written_to_costs_the_cache_only(runs, measured, tmp_path):
    (tmp_path / "cache").write_text("a file is in the way")
    assert list(listed(runs, None)) == list(listed(runs, None))
    assert measured
