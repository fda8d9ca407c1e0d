"""Folders of runs as one report: each run once, and where it came from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from simulated import config, write_run

from scalebook.errors import ReportError
from scalebook.report.base.frames import load, records
from scalebook.report.cleaned import copy
from scalebook.report.merged import labels, merge
from scalebook.report.pages import provenance_page


def test_a_run_of_two_folders_is_one_and_says_where_it_came_from(tmp_path: Path) -> None:
    one = write_run(tmp_path / "a", "one", config(), run_id="one", reason="/home/bob/x/y")
    write_run(tmp_path / "b/runs", "two", config(), run_id="two")
    copy(one, tmp_path / "b/runs/one", ())  # as a publication has it
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    data = load(tmp_path / "merged")
    assert dict(data.runs.select("run_id", "folder").iter_rows()) == {"one": "a", "two": "b"}
    shown = provenance_page.runs(data, records(data)).html
    assert "Folder" in shown


def test_the_folder_of_runs_that_are_not_merged_is_their_own(tmp_path: Path) -> None:
    write_run(tmp_path / "mine", "one", config())
    assert load(tmp_path / "mine").runs["folder"].to_list() == ["mine"]


def test_one_id_with_other_content_is_an_error_that_names_both(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "one", config(), run_id="one")
    write_run(tmp_path / "b", "one", config(), run_id="one", seconds=0.2)
    with pytest.raises(ReportError, match=r"/a/one and in .*/b/one with different content"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")


def test_equal_directory_names_of_different_runs_both_stay(tmp_path: Path) -> None:
    write_run(tmp_path / "x/runs", "one", config(), run_id="first")
    write_run(tmp_path / "y/runs", "one", config(), run_id="second")
    merge([tmp_path / "x/runs", tmp_path / "y/runs"], tmp_path / "merged")
    data = load(tmp_path / "merged")
    found = dict(data.runs.select("run_id", "folder").iter_rows())
    assert found == {"first": "x/runs", "second": "y/runs"}
    assert labels([tmp_path / "x/runs", tmp_path / "x/runs"]) == ["runs", "runs"]


def test_a_folder_without_runs_is_an_error(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "none", ignore_errors=True)
    with pytest.raises(ReportError, match="holds no run"):
        merge([tmp_path / "none"], tmp_path / "merged")
