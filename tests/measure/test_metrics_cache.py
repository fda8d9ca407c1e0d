"""The list of runs from the cache: the same rows, and damage or change costs only time."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from simulated import write_sample

from scalebook import host, store
from scalebook.measure import metrics_cache
from scalebook.measure.metrics_cache import listed
from scalebook.measure.row import PRINTED


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
    real = store.read_run

    def noted(directory: Path, **asked: Any) -> store.Run:
        seen.append(directory.name)
        return real(directory, **asked)

    monkeypatch.setattr(store, "read_run", noted)
    return seen


def test_a_second_list_reads_no_run_and_says_the_same(runs, measured):
    first = list(listed(runs, None))
    assert len(measured) == len(first) > 3
    measured.clear()
    assert list(listed(runs, None)) == first
    assert measured == []
    assert len(list(listed(runs, "fp8"))) == len(first)
    assert len(measured) == len(first)  # another question is another list


def test_a_brief_list_has_what_is_printed_and_opens_two_files_of_a_run(runs, measured, monkeypatch):
    opened: list[str] = []
    real = os.open

    def noted(path, *more, **named):
        opened.append(Path(os.fsdecode(path)).name)
        return real(path, *more, **named)

    whole = listed(runs, None)
    monkeypatch.setattr(os, "open", noted)
    monkeypatch.setattr(
        os, "scandir", lambda at, real=os.scandir: opened.append(str(at)) or real(at)
    )
    brief = listed(runs, None, brief=True)
    assert {"record.json", "steps.jsonl"} == {name for name in opened if "json" in name}
    assert [at for at in opened if at.startswith(f"{runs}{os.sep}")] == []  # telemetry is found so
    for one, other in zip(brief, whole, strict=True):
        short, long = one.metrics.as_dict(), other.metrics.as_dict()
        assert {name: short[name] for name in PRINTED} == {name: long[name] for name in PRINTED}
        assert not any(value for name, value in short.items() if name not in PRINTED)
    measured.clear()
    assert listed(runs, None, brief=True) == brief
    assert measured == []


@pytest.mark.parametrize("file", ["record.json", "steps.jsonl"])
def test_a_brief_list_measures_again_what_changed(runs, measured, file):
    listed(runs, None, brief=True)
    measured.clear()
    (runs / "cpu-one" / "telemetry.jsonl").write_text("{}\n")
    listed(runs, None, brief=True)
    assert measured == []
    (runs / "cpu-one" / file).touch()
    listed(runs, None, brief=True)
    assert measured == ["cpu-one"]


def test_several_processes_say_the_same_as_one(runs, measured, monkeypatch):
    monkeypatch.setattr(metrics_cache, "_WORTH_SECONDS", 1e9)  # nothing is kept
    alone = list(listed(runs, None))
    assert len(measured) == len(alone)
    measured.clear()
    monkeypatch.setattr(metrics_cache, "_CHUNK", 1)
    monkeypatch.setattr(host, "available_cores", lambda: 2)
    monkeypatch.setattr(host.threading, "active_count", lambda: 1)
    assert list(listed(runs, None)) == alone
    # the first one in this process, whose forks share what it imported
    assert measured == [next(store.run_directories(runs)).name]


@pytest.mark.parametrize(("threads", "forked"), [(1, True), (2, False)])
def test_items_are_spread_over_processes_but_not_beside_threads(monkeypatch, threads, forked):
    monkeypatch.setattr(host, "available_cores", lambda: 2)
    monkeypatch.setattr(host.threading, "active_count", lambda: threads)
    found = list(host.by_processes(_square_of, range(9), chunk=2))
    assert [square for square, _ in found] == [number**2 for number in range(9)]
    assert all((process != os.getpid()) is forked for _, process in found)


@pytest.mark.parametrize(("cores", "pieces", "count"), [(128, 50, 8), (4, 50, 4), (4, 3, 3)])
def test_there_is_a_process_for_each_core_and_piece_up_to_eight(
    cores: int, pieces: int, count: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(host, "available_cores", lambda: cores)
    assert host.at_once(pieces) == count


def _square_of(number: int) -> tuple[int, int]:
    return number**2, os.getpid()


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


def test_a_second_list_opens_the_cache_and_no_file_of_a_run(runs, tmp_path, monkeypatch):
    opened: list[Path] = []
    real = os.open

    def noted(path, *more, **named):
        opened.append(Path(os.fsdecode(path)))
        return real(path, *more, **named)

    monkeypatch.setattr(os, "open", noted)
    first = listed(runs, None)
    assert {path.name for path in opened} >= {"record.json", "steps.jsonl"}
    opened.clear()
    assert listed(runs, None) == first
    assert [path.parent for path in opened] == [tmp_path / "cache" / "scalebook"]


def test_a_second_list_does_not_import_what_validates_or_measures(runs):
    listed(runs, None)
    code = (
        "import sys; from scalebook.measure import metrics_cache as cache; "
        "cache.project.root = lambda: None; "
        f"print(len(cache.listed(cache.Path({str(runs)!r}), None)), "
        "*{'pydantic', 'pydantic_core', 'scalebook.store'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(listed(runs, None)))]


def test_kept_rows_hold_the_repeats_of_the_runs_that_are_there_now(runs, measured):
    for name in ("one", "two", "three"):
        shutil.copytree(runs / "cpu-one", runs / f"cpu-{name}-again")
        path = runs / f"cpu-{name}-again" / "record.json"
        path.write_text(path.read_text().replace('"run_id": "cpu-one"', f'"run_id": "{name}"'))
    repeats = {one.metrics.run_id: one.metrics.repeats for one in listed(runs, None)}
    assert repeats["two"] == 4
    shutil.rmtree(runs / "cpu-two-again")
    measured.clear()
    fewer = listed(runs, None)
    assert measured == []
    assert {one.metrics.repeats for one in fewer if one.metrics.run_id == "three"} == {3}
    next((runs.parent / "cache" / "scalebook").iterdir()).unlink()
    assert listed(runs, None) == fewer
    assert listed(runs, None) == fewer


def test_another_spread_of_starts_is_another_list(runs, measured, monkeypatch):
    before = listed(runs, None)
    monkeypatch.setenv("SCALEBOOK_START_SPREAD", "7%")
    assert {one.metrics.start_spread for one in listed(runs, None)} > {0.07}
    monkeypatch.delenv("SCALEBOOK_START_SPREAD")
    measured.clear()
    assert listed(runs, None) == before
    assert measured == []


@pytest.mark.parametrize("row", ["[1]", '["a", [], [], null, {}, []]', "{}", "[", ""])
def test_a_whole_file_of_something_else_is_made_anew(runs, measured, tmp_path, row):
    first = listed(runs, None)
    (path,) = (tmp_path / "cache" / "scalebook").iterdir()
    whole, *lines = path.read_bytes().split(b"\n")[1:]
    content = b"\n".join([whole, *(b'["' + line[2:34] + row.encode() for line in lines)])
    path.write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
    assert listed(runs, None) == first


def test_a_file_and_a_folder_without_a_record_are_no_runs(runs):
    before = len(listed(runs, None))
    (runs / "notes.txt").write_text("record.json")
    (runs / "unfinished").mkdir()
    (runs / "unfinished" / "steps.jsonl").write_text("")
    assert len(listed(runs, None)) == before
