"""The page of what changed since older runs: it says what ``scalebook gate`` says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated import H100, VERSIONS, config, write_run

from scalebook.cli import main
from scalebook.errors import ReportError
from scalebook.measure.verdicts import Verdict
from scalebook.report import PAGES, Places, build, check
from scalebook.report.base.against import kind_of, read_against
from scalebook.report.base.frames import load
from scalebook.report.base.markup import Markup
from scalebook.report.charts.figure import Figures
from scalebook.report.pages import changes_page
from scalebook.report.site import build_cache
from scalebook.store import write_json

BIG: dict[str, Any] = {
    "platform": "h100", "model": "llama3.1-8b", "precision": "bf16", "sequence_length": 8192,
    "world_size": 8, "global_batch_size": 16,
}  # fmt: skip
KINDS = {
    "unexplained speed-up": "faster", "regression": "slower", "pass": "unchanged",
    "missing": "gone", "new": "new", "cannot tell": "cannot tell", "no baseline": "no baseline",
}  # fmt: skip


def add(folder: Path, name: str, seconds: float, commit: str, day: int, **changes: Any) -> None:
    more = {key: changes.pop(key) for key in ("status", "reason") if key in changes}
    write_run(
        folder, name, config(**(BIG | changes)), seconds=seconds, steps=80, device=H100, **more,
        environment=VERSIONS | {"accelerator": H100, "git_commit": commit, "nccl": f"2.{day}"},
        started_at=f"2026-01-{day:02}T00:00:00Z",
    )  # fmt: skip


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Older and newer runs: a slower, a faster, a failed, a gone and a new configuration."""
    old, new = tmp_path / "old", tmp_path / "new"
    splits: dict[str, dict[str, Any]] = {
        "dp": {}, "tp": {"tensor_parallel_size": 2}, "pp": {"pipeline_parallel_size": 2},
        "tp4": {"tensor_parallel_size": 4},
    }  # fmt: skip
    for name, split in splits.items():
        add(old, f"{name}-old", 2.0, "b" * 40, 1, **split)
    add(new, "dp-new", 2.2, "a" * 40, 2)
    add(new, "tp-new", 1.8, "a" * 40, 2, **splits["tp"])
    add(new, "pp-new", 2.0, "a" * 40, 2, **splits["pp"], status="failed", reason="it broke")
    add(new, "tp8-new", 2.0, "a" * 40, 2, tensor_parallel_size=8)
    (new / "pp-new" / "steps.jsonl").write_text("")
    return old, new


def test_folders_that_share_nothing_make_a_page_that_says_in_what_they_differ(
    tmp_path: Path,
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    add(old, "far", 2.0, "b" * 40, 1, model="llama3.1-70b", tensor_parallel_size=8)
    add(old, "near", 2.0, "b" * 40, 1)
    add(new, "other", 2.0, "a" * 40, 2, sequence_length=4096, tensor_parallel_size=2)
    found = read_against(old, new)
    assert sorted(map(kind_of, found.checks)) == ["gone", "gone", "new"]
    assert found.apart.startswith("No configuration of the baseline (2) is among the runs (1). ")
    assert "tensor parallel size (2, was 1)" in found.apart
    assert "sequence length (4096, was 8192)" in found.apart
    assert "model" not in found.apart  # that is of the other, which is further away
    page = str(changes_page.summary(found))
    assert "no configuration is in both folders" in page
    assert "sequence length (4096, was 8192)" in page
    data, _ = build_cache.load(new, tmp_path / "cache", old)
    assert data.against is not None and data.against.apart == found.apart


def test_the_page_and_the_gate_agree(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = folders
    found = read_against(old, new)
    main(["gate", "--baseline", str(old), "--runs", str(new), "--json"])
    told = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert {one.name for one in found.checks} == set(told)
    for one in found.checks:
        expected = KINDS[told[one.name]["outcome"]]
        failed = expected == "slower" and told[one.name]["verdict"] is None
        assert kind_of(one) == ("failure" if failed else expected)
        if one.verdict is not None:
            assert one.verdict.low == pytest.approx(told[one.name]["verdict"]["low"])
    kinds = sorted(map(kind_of, found.checks))
    assert kinds == ["failure", "faster", "gone", "new", "slower"]


def test_the_sentence_on_top_has_at_most_25_words(folders: tuple[Path, Path]) -> None:
    said = changes_page.sentence(read_against(*folders))
    assert said == (
        "New runs against the old ones: 1 faster, 1 slower, 0 cannot tell, 0 unchanged within "
        "5\N{NO-BREAK SPACE}%, 1 new failure, 1 new, 1 gone."
    )
    assert len(said.split(" ")) <= 25


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ((1.014, 0.986, 1.042), "new is 1.4 % faster (−1.4 to +4.2 %)"),
        ((1.0001, 0.9997, 1.0003), "new is as fast (0.0 to 0.0 %)"),
        ((0.9, 0.88, 0.92), "new is 10.0 % slower (−12.0 to −8.0 %)"),
    ],
)
def test_a_change_is_told_in_one_direction(ends: tuple[float, float, float], words: str) -> None:
    assert changes_page.change_words(Verdict("cannot tell", *ends)) == words


def test_the_history_is_in_the_order_of_the_first_run_at_each_commit(
    folders: tuple[Path, Path],
) -> None:
    old, new = folders
    add(new, "dp-again", 2.2, "a" * 40, 3)
    points = read_against(old, new).history
    first = points[0].configuration
    assert [(one.commit, one.runs) for one in points if one.configuration == first] == [
        ("b" * 12, 1),
        ("a" * 12, 2),
    ]
    assert all(one.low < one.rate < one.high for one in points)
    assert first == "Llama 3.1 8B on H100 (BF16, sequence 8,192) · 8 GPUs"
    # those that ran at one commit only have no history
    assert len({one.configuration for one in points}) == 2


def test_a_page_of_changes_has_no_hash_but_in_links_and_names_versions_in_words(
    folders: tuple[Path, Path],
) -> None:
    data = replace(load(folders[1]), against=read_against(*folders))
    assert data.against
    shown = str(changes_page.changes(data.against, data))
    gone = re.search("Llama 3.1 8B on 8 x h100 TP4</td>", shown)
    assert gone and "H100 <span" in shown and "TP8" in shown
    assert ">1\N{NO-BREAK SPACE}run</td>" in shown
    text = shown + str(changes_page.versions(data.against))
    text += str(changes_page.others(data.against))
    words = Markup(re.sub("<a .*?</a>", "", text)).striptags()
    assert "git commit" in words
    assert "_" not in words
    assert re.findall(r"\b[0-9a-f]{13,}\b", words) == re.findall(r"\[[0-9a-f]{12}", words) == []


def test_a_configuration_has_one_chart_over_its_commits(folders: tuple[Path, Path]) -> None:
    old, new = folders
    for path in (old / "dp-old", new / "dp-new"):  # as a record of another version has it
        record = json.loads((path / "record.json").read_text())
        write_json(path / "record.json", record | {"config_hash": path.name})
    drawn = changes_page.history(read_against(old, new))
    assert isinstance(drawn, Figures)
    names = [name for name, _ in drawn.parts]
    assert names == ["Llama 3.1 8B on H100 (BF16, sequence 8,192) · 8 GPUs",
                     "Llama 3.1 8B on H100 (BF16, sequence 8,192) · TP2 on 8 GPUs"]  # fmt: skip


def test_the_page_is_in_the_menu_only_where_it_was_asked_for(
    folders: tuple[Path, Path], tmp_path: Path, root: Path
) -> None:
    old, new = folders
    index = build(Places(new, tmp_path / "site", root, old), "preview", lambda _: None)
    assert check(index.parent) == ()
    front, page = index.read_text(), (index.parent / "changes.html").read_text()
    assert '<a href="changes.html">New runs against the old ones: 1 faster' in front
    links = re.findall(r'<a href="([a-z]+\.html)"(?: aria-current="page")?>', page)
    assert links[: len(PAGES) + 1].count("changes.html") == 1
    assert re.search(r"new is \d+\.\d % slower \(−\d+\.\d to −\d+\.\d %\)", page)
    assert "git commit" in page
    assert "2.1" in page
    assert "sb-spec" in page
    plain = build(Places(new, tmp_path / "site", root), "preview", lambda _: None)
    assert "changes.html" not in plain.read_text()
    assert not (plain.parent / "changes.html").exists()


def test_other_older_runs_make_another_report(folders: tuple[Path, Path], tmp_path: Path) -> None:
    old, new = folders
    first, _ = build_cache.load(new, tmp_path / "cache", old)
    again, _ = build_cache.load(new, tmp_path / "cache", old)
    assert again.against == first.against
    add(old, "dp-older", 2.0, "c" * 40, 1)
    later, _ = build_cache.load(new, tmp_path / "cache", old)
    assert later.against != first.against
    without, _ = build_cache.load(new, tmp_path / "cache")
    assert without.against is None


def test_a_folder_that_is_not_there_is_named(folders: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="--against"):
        read_against(tmp_path / "nowhere", folders[1])
