"""The provenance page: how each run was made, what differs, what is broken."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from simulated import config, write_run

from scalebook.report.base.frames import load
from scalebook.report.base.markup import Markup
from scalebook.report.pages import method_page


def words(fragment: Any) -> str:
    text = Markup(re.sub(r"\s+", " ", str(fragment).replace("<", " <"))).striptags()
    return re.sub(r" +", " ", text.replace("\N{NO-BREAK SPACE}", " "))


def made(folder: Path, name: str, torch: str, **more: Any) -> None:
    environment = {"torch": torch, "git_commit": "abcdef1", "variables": {"NCCL_DEBUG": "WARN"}}
    write_run(
        folder,
        name,
        config(),
        **({"source": "measured", "environment": environment, "command": ("python", "a b")} | more),
    )


def test_each_run_shows_command_versions_variables_commit_and_how_to_repeat(tmp_path: Path) -> None:
    made(tmp_path, "one", "2.11.0")
    data = load(tmp_path)
    text = words(method_page.runs(data, method_page.read(data)))
    for part in ("abcdef1", "torch 2.11.0", "python 'a b'", "NCCL_DEBUG=WARN"):
        assert part in text
    assert "scalebook reproduce one" in text


def test_each_run_shows_its_image_and_unknown_ones_are_counted(tmp_path: Path) -> None:
    names = {"SCALEBOOK_IMAGE": "localhost/scalebook-cpu:0.1.0"}
    for run_id, more in (("a", {"SCALEBOOK_IMAGE_ID": f"sha256:{'ab' * 32}"}), ("b", {})):
        made(tmp_path, run_id, "2.11.0", environment={"container": names | more})
    made(tmp_path, "c", "2.11.0")
    data = load(tmp_path)
    found = method_page.read(data)
    said = words(method_page.overview(data, found))
    assert "3 runs of 1 commit and 1 image." in said
    assert "1 run names no image" in said
    assert "1 run names an image by a tag only" in said
    text = words(method_page.runs(data, found))
    shown = "abababababab SCALEBOOK_IMAGE=localhost/scalebook-cpu:0.1.0, SCALEBOOK_IMAGE_ID=sha256:"
    assert shown + "ab" * 32 in text
    assert "not known SCALEBOOK_IMAGE=localhost/scalebook-cpu:0.1.0" in text
    assert "abababababab (1 run)" in words(method_page.unequal(found))


def test_what_is_not_equal_between_runs_is_listed_with_its_counts(tmp_path: Path) -> None:
    for name, torch in (("a", "2.11.0"), ("b", "2.11.0"), ("c", "2.13.0")):
        made(tmp_path, name, torch)
    text = words(method_page.unequal(method_page.read(load(tmp_path))))
    assert "2.11.0 (2 runs); 2.13.0 (1 run)" in text
    assert "git_commit" not in text


def test_equal_runs_are_said_to_be_equal(tmp_path: Path) -> None:
    made(tmp_path, "a", "2.11.0")
    made(tmp_path, "b", "2.11.0")
    text = words(method_page.unequal(method_page.read(load(tmp_path))))
    assert "are equal over the runs" in text


def test_machines_of_the_same_links_are_one_table_row_per_gpu(tmp_path: Path) -> None:
    linked = {"devices": ["GPU0", "GPU1"], "links": [["X", "NV18"], ["NV18", "X"]]}
    around = {"accelerator": "NVIDIA H100 80GB HBM3", "topology": linked}
    for name in ("a", "b"):
        made(tmp_path, name, "2.11.0", environment=around)
    odd = {"devices": ["<b>"], "links": [["<i>", "SYS"], 7]}
    made(tmp_path, "odd", "2.11.0", environment={"topology": odd})
    made(tmp_path, "none", "2.11.0", environment={"topology": None})
    text = words(method_page.links(method_page.read(load(tmp_path))))
    assert text.count("NVIDIA H100 80GB HBM3 GPU") == 2
    assert "GPU0 X NV18" in text
    assert "GPU1 NV18 X" in text
    assert "SYS" not in text


def test_where_no_run_recorded_its_links_the_reason_is_given(tmp_path: Path) -> None:
    made(tmp_path, "a", "2.11.0")
    text = words(method_page.links(method_page.read(load(tmp_path))))
    assert "No run recorded how its GPUs are linked. Runs on a CPU, ingested logs" in text


def test_a_broken_directory_is_listed_with_its_reason(tmp_path: Path) -> None:
    made(tmp_path, "good", "2.11.0")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "record.json").write_text("{")
    data = load(tmp_path)
    assert "bad/record.json cannot be read" in words(method_page.broken(data))
    assert "1 part of the run files" in words(method_page.overview(data, method_page.read(data)))


def test_only_broken_directories_leave_sentences(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "record.json").write_text("{")
    data = load(tmp_path)
    found = method_page.read(data)
    assert "No run could be read" in words(method_page.overview(data, found))
    assert words(method_page.runs(data, found)) == ""


def test_a_simulated_run_has_no_command_to_repeat_it(tmp_path: Path) -> None:
    made(tmp_path, "one", "2.11.0", source="simulated")
    data = load(tmp_path)
    text = words(method_page.runs(data, method_page.read(data)))
    assert "no command of Scalebook made it" in text


def test_markup_in_ids_commands_and_variables_is_text(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>"
    environment = {"torch": evil, "git_commit": evil, "variables": {evil: evil}, "container": evil}
    made(tmp_path, "x", "1", run_id=evil, command=(evil,), environment=environment)
    made(tmp_path, "y", "2")
    data = load(tmp_path)
    found = method_page.read(data)
    html = str(method_page.runs(data, found)) + str(method_page.unequal(found))
    assert "<img" not in html
    assert "&lt;img" in html


def test_a_commit_that_is_no_text_counts_as_none(tmp_path: Path) -> None:
    for name, commit in (("list", [1]), ("mapping", {}), ("text", "a" * 40)):
        write_run(tmp_path, name, config(), environment={"git_commit": commit})
    data = load(tmp_path)
    found = method_page.read(data)
    text = words(method_page.overview(data, found))
    assert "3 runs of 1 commit" in text
    assert "2 runs record no commit" in text
    assert "aaaaaaaaaaaa" in words(method_page.runs(data, found))
