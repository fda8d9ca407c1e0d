"""Folders of runs as one report: each run once, and where it came from."""

from __future__ import annotations

import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest
from simulated import config, write_run

from scalebook import untrusted
from scalebook.audit import sample_text
from scalebook.cli import main
from scalebook.errors import ReportError
from scalebook.measure.intervals import Interval
from scalebook.measure.probes.files import read_probes
from scalebook.report.base.frames import load, records
from scalebook.report.base.stated import FILE, read_stated
from scalebook.report.cleaned import copy
from scalebook.report.merged import labels, merge, one_folder
from scalebook.report.pages import method_page, published_page
from scalebook.report.site import build_cache
from scalebook.store import entries

ROOT = Path(__file__).parents[2]


def test_a_run_of_two_folders_is_one_and_says_where_it_came_from(tmp_path: Path) -> None:
    one = write_run(tmp_path / "a", "one", config(), run_id="one", reason="/home/bob/x/y")
    write_run(tmp_path / "b/runs", "two", config(), run_id="two")
    copy(one, tmp_path / "b/runs/one", ())  # as a publication has it
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    data = load(tmp_path / "merged")
    assert dict(data.runs.select("run_id", "folder").iter_rows()) == {"one": "a", "two": "b"}
    shown = method_page.runs(data, records(data))
    assert "Folder" in shown


def test_prices_and_claims_of_merged_folders_are_read(tmp_path: Path) -> None:
    prices = {"a": 'tokens = "1T"\n[h100]\nprice_per_gpu_hour = 2\nwatts_per_gpu = 900\n',
              "b": "[h100]\nprice_per_gpu_hour = 3\n[h200]\nprice_per_gpu_hour = 4\n"}  # fmt: skip
    for name, text in prices.items():
        write_run(tmp_path / name, name, config(), run_id=name)
        (tmp_path / name / FILE).write_text(text)
        (tmp_path / name / "claims").mkdir()
        (tmp_path / name / "claims/slides.toml").write_text(sample_text("example"))
    for _ in range(2):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
        found = read_stated(tmp_path / "merged")
        assert (found.of("h100", "tokens"), found.of("h200", "price_per_gpu_hour")) == (
            Interval(1e12, 1e12), Interval(4, 4),
        )  # fmt: skip
        assert found.of("h100", "watts_per_gpu") == Interval(900, 900)
        assert found.of("h100", "price_per_gpu_hour") is None
        said = f"{FILE}: [h100] price_per_gpu_hour differs between the folders and is left out."
        assert found.problems == (said,)
        audits, problems = published_page.audits(tmp_path / "merged")
        assert [one.claims.title for one in audits] == ["An example"] * 2
        assert problems == ()
        assert load(tmp_path / "merged").runs.height == 2


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
    with pytest.raises(ReportError, match="contains no run"):
        merge([tmp_path / "none"], tmp_path / "merged")


LOG = (  # as Megatron-LM prints a step
    " [2026-11-01 10:00:{second:02d}] iteration {step:8d}/     100 | consumed samples: "
    "{samples:12d} | elapsed time per iteration (ms): {ms:.1f} | learning rate: 3.0E-04 | global "
    "batch size:   128 | lm loss: {loss:.4E} | grad norm: 1.0 | number of skipped iterations:   0 "
    "| number of nan iterations:   0 |\n"
)


@pytest.mark.slow
def test_a_log_and_our_runs_make_one_report_in_the_commands_of_the_readme(tmp_path: Path) -> None:
    """8 x H100, Llama 3.1 8B, 128 samples of 8,192 tokens in 12.4 s: 10,571 tokens/s a GPU."""
    noise = random.Random(1)
    log = tmp_path / "train.log"
    log.write_text(
        "".join(
            LOG.format(
                second=step % 60, step=step, samples=128 * step, loss=9 - step / 20,
                ms=12_400 * noise.gauss(1, 0.002),
            )
            for step in range(1, 61)
        )
    )  # fmt: skip
    mine, ours, site = tmp_path / "mine", tmp_path / "ours", tmp_path / "site"
    words = ["--model", "llama3.1-8b", "--platform", "h100", "--gpus", "8"]
    words += ["--sequence-length", "8192", "--precision", "bf16"]
    assert main(["ingest", str(log), "--runs", str(mine), *words]) == 0
    example = next(ROOT.glob("runs/examples/*-7b50643bc7a3"))
    shutil.copytree(example, ours / example.name)
    assert main(["report", str(mine), str(ours), "--output", str(site)]) == 0
    runs = pl.read_csv(site / "data/runs.csv").sort("source")
    assert runs["source"].to_list() == ["ingested", "measured"]
    assert runs["folder"].to_list() == ["mine", "ours"]
    rate = runs["tokens_per_second_per_gpu"][0]
    assert rate == pytest.approx(128 * 8192 / 12.4 / 8, rel=0.002)


def test_folders_are_merged_into_one_place_that_follows_their_runs(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        write_run(folder, folder.name, config(), run_id=folder.name)
        shutil.copytree(next(ROOT.glob("runs/examples/probes/*")), folder / "probes" / folder.name)
    place = one_folder(folders, tmp_path / "cache")
    before = entries(place)
    assert set(before) == {"a", "b", "probes"}
    assert len(read_probes(place)[0]) == 2
    assert one_folder(folders, tmp_path / "cache") == place
    assert entries(place) == before
    assert one_folder(folders[::-1], tmp_path / "cache") != place  # whose labels may be others
    write_run(tmp_path / "a", "c", config(), run_id="c")
    shutil.rmtree(tmp_path / "b/probes")
    shutil.move(tmp_path / "b/b", tmp_path / "b/d")
    assert one_folder(folders, tmp_path / "cache") == place
    assert set(entries(place)) == {"a", "c", "d", "probes"}
    assert len(read_probes(place)[0]) == 1
    shutil.rmtree(tmp_path / "b")
    with pytest.raises(ReportError, match="contains no run"):
        one_folder(folders, tmp_path / "cache")


def test_a_single_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    write_run(tmp_path / "a/runs", "one", config())
    for named in ("a", "a/runs"):
        assert one_folder([tmp_path / named] * 2, tmp_path / "cache") == tmp_path / "a/runs"
    assert not (tmp_path / "cache").exists()


def test_merging_removes_nothing_that_a_link_in_the_cache_leads_to(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        write_run(folder, folder.name, config(), run_id=folder.name)
    place = one_folder(folders, tmp_path / "cache")
    mine = tmp_path / "mine"
    (mine / "probes").mkdir(parents=True)
    for link in (place / "probes", place, place.parent):
        untrusted.remove(link)
        link.symlink_to(mine, target_is_directory=True)
        assert one_folder(folders, tmp_path / "cache") == place
        assert [path.name for path in mine.iterdir()] == ["probes"]
        assert not link.is_symlink()
    (place / "a").unlink()
    (place / "a/x").mkdir(parents=True)
    (place / "stray").symlink_to(mine, target_is_directory=True)
    one_folder(folders, tmp_path / "cache")
    assert (place / "a").resolve() == tmp_path / "a/a"
    assert set(entries(place)) == {"a", "b", "probes"}
    assert mine.is_dir()


def test_builds_at_the_same_time_merge_into_the_same_folder(tmp_path: Path) -> None:
    for folder in "ab":
        for number in range(8):
            write_run(tmp_path / folder, f"{folder}{number}", config(), run_id=f"{folder}{number}")
    folders = [tmp_path / "a", tmp_path / "b"]
    for _ in range(5):
        with ThreadPoolExecutor(4) as pool:
            places = set(pool.map(one_folder, [folders] * 4, [tmp_path / "cache"] * 4))
        assert len(places) == 1
        assert len(load(next(iter(places))).runs) == 16
        shutil.rmtree(tmp_path / "cache")


def test_links_among_folders_are_followed_in_as_many_steps_as_there_are_folders(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path / "a", "one", config())
    for level in range(40):
        (tmp_path / f"x/{level}").mkdir(parents=True)
        for name in ("left", "right"):
            (tmp_path / f"x/{level}" / name).symlink_to(tmp_path / f"x/{level + 1}")
    (run / "x").symlink_to(tmp_path / "x/0")
    assert set(entries(tmp_path / "a")) == {"one"}


@pytest.mark.slow
def test_a_second_report_of_the_same_folders_executes_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in "ab":
        write_run(tmp_path / folder, folder, config(), run_id=folder)
    words = ["report", str(tmp_path / "a"), str(tmp_path / "b"), "--output", str(tmp_path / "site")]
    assert main(words) == 0
    assert "runs in a, b." in (tmp_path / "site/index.html").read_text()

    def again(*_: object) -> None:
        raise AssertionError("a page or a run is computed again")

    monkeypatch.setattr(build_cache, "_execute", again)
    monkeypatch.setattr(build_cache.frames, "read", again)
    assert main(words) == 0
