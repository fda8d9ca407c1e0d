"""The report of a great many runs: measured once, drawn as a sample, tables in files beside it."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from simulated import H100, config, write_run, write_sample

from scalebook import host
from scalebook.report import PAGES
from scalebook.report.base import frames, html_tables, scaling_series
from scalebook.report.base.markup import MOST_ITEMS, MOST_NAMED, anchor, bullets, run_links
from scalebook.report.charts.figure import MOST_RUNS, sample
from scalebook.report.charts.scaling_charts import by_size
from scalebook.report.pages import scaling_page
from scalebook.report.site import build_cache, rendering, site_files
from scalebook.report.site.notebook import NotebookCell
from scalebook.report.site.site_check import check
from scalebook.report.site.site_files import write_assets
from scalebook.store import Run, read_runs


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return write_sample(tmp_path / "runs")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories whose runs were measured."""
    seen: list[str] = []
    real = build_cache.measured

    def noted(run: Run) -> build_cache.Result:
        seen.append(run.path.name)
        return real(run)

    monkeypatch.setattr(build_cache, "measured", noted)
    return seen


def rewrite_like_before(path: Path, old: str, new: str) -> None:
    """Change a file, but neither its size nor its date."""
    about, text = path.stat(), path.read_text()
    assert old in text
    assert len(old) == len(new)
    path.write_text(text.replace(old, new))
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert path.stat().st_size == about.st_size
    assert path.stat().st_mtime_ns == about.st_mtime_ns


def test_each_run_is_measured_once_and_again_only_when_a_file_of_it_has_changed(
    runs: Path, tmp_path: Path, measured: list[str]
) -> None:
    cache = tmp_path / "cache"
    first, _ = build_cache.load(runs, cache)
    assert sorted(measured) == sorted(first.runs["run_id"])
    measured.clear()
    rewrite_like_before(runs / "cpu-one" / "steps.jsonl", '"tokens": 1024', '"tokens": 2048')
    write_run(runs, "new", config(), seconds=0.3)
    shutil.rmtree(runs / "cpu-pp2")
    second, _ = build_cache.load(runs, cache)
    assert sorted(measured) == ["cpu-one", "new"]
    now, before = (
        data.runs.filter(run_id="cpu-one")["tokens_per_second"][0] for data in (second, first)
    )
    assert now == pytest.approx(2 * before)
    assert set(second.runs["run_id"]) == {*first.runs["run_id"], "new"} - {"cpu-pp2"}
    measured.clear()
    build_cache.load(runs, cache)
    assert measured == []


def test_only_builds_of_some_time_ago_are_forgotten(tmp_path: Path):
    """Another process may be at a younger one."""
    for number in range(6):
        folder = tmp_path / f"build{number}"
        folder.mkdir()
        (folder / "page.ipynb").write_text("{}")
        age = build_cache.BUSY_SECONDS * (2 if number < 4 else 0)
        os.utime(folder, (time.time() - age + number,) * 2)
    build_cache.forget_old(tmp_path / "build5")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["build3", "build4", "build5"]
    for number in range(6, 9):
        (tmp_path / f"build{number}").mkdir()
    build_cache.forget_old(tmp_path / "build8")
    left = [f"build{number}" for number in range(4, 9)]
    assert sorted(path.name for path in tmp_path.iterdir()) == left


def test_what_is_kept_of_runs_gives_the_same_data_as_reading_them(
    runs: Path, tmp_path: Path, measured: list[str]
) -> None:
    cache = tmp_path / "cache"
    build_cache.load(runs, cache)
    (runs / "economics.toml").write_text('tokens = "1T"\n')
    measured.clear()
    kept, _ = build_cache.load(runs, cache)
    read = frames.read(runs)
    assert measured == []
    assert kept.runs.equals(read.runs)
    assert kept.diagnoses == read.diagnoses
    assert kept.anatomies == read.anatomies


@pytest.mark.slow  # each process imports the package
def test_several_processes_find_the_same_numbers_in_the_same_order(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read_runs(runs)[0]
    alone = build_cache._each(found)
    monkeypatch.setattr(build_cache, "PARALLEL_RUNS", 1)
    monkeypatch.setattr(build_cache, "CHUNK", 2)
    monkeypatch.setattr(host, "available_cores", lambda: 2)
    assert build_cache._each(found) == alone


def key(runs: Path) -> str:
    """Return what names the place of a build's pages in the cache."""
    return f"{build_cache._code(runs)}-{frames.together(frames.entries(runs))}"


@pytest.mark.parametrize(
    "name", ["economics.toml", "claims/mine.toml", "cpu-one/profile/breakdown.json", "a run/x"]
)
def test_pages_are_made_anew_when_any_file_below_the_runs_changes(runs: Path, name: str) -> None:
    before = key(runs)
    path = runs / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("a = 1\n")
    there = key(runs)
    rewrite_like_before(path, "1", "2")
    changed = key(runs)
    path.unlink()
    assert len({before, there, changed, key(runs)}) >= 3
    assert changed != there != before
    assert key(runs) != changed


def test_a_changed_price_is_on_the_cost_page_of_the_next_build(
    runs: Path, tmp_path: Path, root: Path
) -> None:
    cost = next(page for page in PAGES if page.slug == "cost")

    def text() -> str:
        data, folder = build_cache.load(runs, tmp_path / "cache")
        shutil.rmtree(tmp_path / "stage", ignore_errors=True)
        (tmp_path / "stage").mkdir()
        build_cache.make([cost], root / "notebooks", data, folder, tmp_path / "stage")
        return (tmp_path / "stage" / "cost.ipynb").read_text()

    assert "7.125" not in text()
    (runs / "economics.toml").write_text('tokens = "1T"\n[h100]\nprice_per_gpu_hour = 7.125\n')
    assert "7.125" in text()
    rewrite_like_before(runs / "economics.toml", "7.125", "8.125")
    assert "8.125" in text()


def test_pages_are_made_anew_when_a_run_behind_a_link_changes(runs: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.move(runs / "cpu-one", elsewhere)
    (runs / "cpu-one").symlink_to(elsewhere)
    before = key(runs)
    rewrite_like_before(elsewhere / "record.json", "completed", "cancelled")
    assert key(runs) != before


def test_a_link_to_a_folder_above_comes_to_an_end(runs: Path) -> None:
    (runs / "cpu-one" / "again").symlink_to(runs)
    assert set(frames.entries(runs)) == {path.name for path in runs.iterdir()}


def test_a_run_that_is_being_written_changes_no_page(runs: Path) -> None:
    before = key(runs)
    (runs / ".partial-x").mkdir()
    (runs / ".partial-x" / "train.log").write_text("step 1\n")
    assert key(runs) == before


def test_pages_are_made_anew_when_the_users_catalog_changes(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key(runs)
    own = tmp_path / "own.toml"
    own.write_text("# 1\n")
    monkeypatch.setenv("SCALEBOOK_CATALOG", str(own))
    named = key(runs)
    rewrite_like_before(own, "1", "2")
    assert len({before, named, key(runs)}) == 3


@pytest.mark.parametrize("name", ["a.py", "catalog/b.toml", "catalog/c.csv", "base/d.html"])
def test_pages_are_made_anew_when_the_package_changes(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    own = tmp_path / "package" / name
    own.parent.mkdir(parents=True)
    own.write_text("a = 1\n")
    place = SimpleNamespace(__file__=str(tmp_path / "package" / "__init__.py"))
    monkeypatch.setattr(build_cache, "scalebook", place)
    before = build_cache._code(runs)
    rewrite_like_before(own, "1", "2")
    assert build_cache._code(runs) != before


def test_the_report_starts_without_the_grammar_that_takes_seconds() -> None:
    program = (
        "import sys, scalebook.report, scalebook.report.charts\n"
        "assert 'jsonschema' in sys.modules\n"
        "print(*(name for name in sys.modules if name.startswith('rfc3987_syntax')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("\n", "")


def points(count: int) -> pl.DataFrame:
    """Return made-up runs; the slowest of each layout is in the middle, the fastest at its end."""
    each = [
        {
            "run_id": f"run-{i:05d}", "layout": f"TP{2 ** (i % 3)}", "split": f"s{i}",
            "source": "simulated", "world_size": 8, "nodes": 1,
            "tokens_per_second": float((i - count // 2) ** 2),
            "scaling_efficiency": 0.5, "speedup": 1.0 + i,
            "ideal_speedup": 2.0,
        }
        for i in range(count)
    ]  # fmt: skip
    return pl.DataFrame(each)


def test_of_many_runs_a_chart_draws_so_many_with_the_ends_of_every_kind() -> None:
    data = points(3000)
    drawn = sample(data)
    assert drawn["run_id"].n_unique() == MOST_RUNS
    for _, members in data.group_by("layout"):
        ranked = members.sort("tokens_per_second")
        assert ranked["run_id"][0] in set(drawn["run_id"])
        assert ranked["run_id"][-1] in set(drawn["run_id"])
    assert drawn["run_id"].to_list() == sorted(drawn["run_id"])  # in the order of before


def test_charts_of_the_same_runs_draw_the_same_ones() -> None:
    data = points(3000).with_columns(flat=pl.lit(1.0)).select("run_id", "flat")
    one, two = sample(data), sample(data.reverse())
    shared = set(one["run_id"]) & set(two["run_id"])
    assert len(shared) >= MOST_RUNS - 4  # at most the two ends that a column brings in each


def test_a_few_results_of_another_source_are_all_drawn_among_many_runs() -> None:
    rare = pl.when(pl.int_range(pl.len()) % 10 == 7).then(pl.lit("published"))
    data = points(3000).with_columns(source=rare.otherwise("source"))
    drawn = sample(data)
    assert drawn.filter(pl.col("source") == "published").height == 300
    assert drawn.height == MOST_RUNS


def test_all_rows_of_a_drawn_run_are_drawn() -> None:
    parts = pl.concat([points(1500), points(1500)])
    drawn = sample(parts).group_by("run_id").len()
    assert set(drawn["len"]) == {2}


def test_a_sampled_chart_says_how_many_of_how_many_it_draws() -> None:
    figure = by_size(points(2000), "GPUs")
    assert "Drawn: 1,000 of 2,000 runs, the highest and lowest of each kind" in str(figure.html)
    assert "Drawn:" not in str(by_size(points(1000), "GPUs").html)


def test_rows_that_layers_share_are_in_a_specification_once() -> None:
    text = str(by_size(points(900), "GPUs").html)
    assert text.count('"run-00500"') == 1


def test_long_lists_end_with_how_many_more_there_are() -> None:
    text = str(bullets(f"<{i}>" for i in range(MOST_ITEMS + 34)))
    assert text.count("<li>") == MOST_ITEMS + 1
    assert "And 34 more like these." in text
    assert f"<summary>{MOST_ITEMS - 4} more</summary>" in text  # five are open
    assert "and 2 more" in str(run_links(f"r{i}" for i in range(MOST_NAMED + 2)))
    assert "and 0 more" not in str(run_links(f"r{i}" for i in range(MOST_NAMED)))
    assert "more" not in str(run_links(f"r{i}" for i in range(4)))


def test_laws_that_are_not_drawn_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tensor in (1, 2):
        for gpus in (8, 16, 32):
            made_up = config(
                platform="h100", model="llama3.1-8b", precision="bf16", sequence_length=8192,
                world_size=gpus, nodes=gpus // 8, tensor_parallel_size=tensor,
                global_batch_size=16 * gpus,
            )  # fmt: skip
            write_run(tmp_path, f"{tensor}-{gpus}", made_up, seconds=16 + gpus / 64, device=H100)
    found = scaling_series.scaling_series(frames.load(tmp_path).completed)
    assert "Drawn are" not in str(scaling_page.findings(found))
    monkeypatch.setattr(scaling_page, "MOST_DRAWN", 1)
    figures = scaling_page.figures(found)
    assert figures is not None
    assert len(figures.parts) == 1
    assert "Drawn are 1 of 2 laws" in str(scaling_page.findings(found))
    assert str(scaling_page.projections(found)).count("<tr ") == 2 * 3


def long_table(count: int) -> NotebookCell:
    rows = [
        {"run_id": f"r{i}", "world_size": i, "status": "completed", "source": "simulated"}
        for i in range(count)
    ]
    html_ = html_tables.table(rows, (html_tables.RUN, html_tables.WORLD), "runs", anchors=True)
    return NotebookCell(
        "code", "x", texts=(f"```{{=html}}\n{html_}\n```\n",), options=(("echo", False),)
    )


def test_rows_of_a_heavy_table_are_in_a_file_and_their_anchors_are_known(tmp_path: Path) -> None:
    (cell,) = site_files.move_out((long_table(3000),), "throughput", tmp_path)
    assert len(cell.texts[0]) < 60_000
    assert (
        'data-src="data/rows/throughput-1.js" data-rows="2900" data-anchors="yes"'
        in (cell.texts[0])
    )
    found = list(site_files.anchors_of_rows(tmp_path / "data" / "rows" / "throughput-1.js"))
    assert found == [anchor(f"r{i}") for i in range(html_tables.FIRST, 3000)]
    link = f'<a href="#{anchor("r2999")}">x</a>'
    (tmp_path / "throughput.html").write_text(cell.texts[0] + link)
    assert check(tmp_path) == ()
    (tmp_path / "data" / "rows" / "throughput-1.js").unlink()
    assert any("reads rows from data/rows/throughput-1.js" in one for one in check(tmp_path))


def test_rows_of_a_light_table_stay_in_the_page(tmp_path: Path) -> None:
    cells = (long_table(400),)
    assert site_files.move_out(cells, "throughput", tmp_path) == cells
    assert not list(tmp_path.iterdir())


LOOK = """setTimeout(async function () {
  const wait = ms => new Promise(done => setTimeout(done, ms));
  const box = document.querySelector(".sb-table"), body = box.querySelector("tbody");
  const first = () => body.rows[0].dataset.run, out = {seen: []};
  addEventListener("error", event => out.seen.push(event.message));
  for (let i = 0; i < 100 && !document.querySelector("tr.is-target"); i++) await wait(50);
  out.target = (document.querySelector("tr.is-target") || {id: null}).id;
  out.where = box.querySelector(".pager span").textContent;
  out.csv = box.scalebook.csv().split("\\r\\n").length - 2;
  box.querySelector("th[data-key=world_size] button").click();
  out.sorted = first();
  const search = box.querySelector("input[type=search]");
  search.value = "r1234"; search.dispatchEvent(new Event("input"));
  out.searched = [first(), body.rows.length, search.placeholder];
  document.getElementById("found").textContent = JSON.stringify(out);
}, 0);"""


@pytest.mark.slow
def test_a_browser_reads_the_rows_beside_a_page_and_goes_to_the_one_that_a_link_means(
    tmp_path: Path,
) -> None:
    names: Sequence[str] = ("chromium", "chromium-browser", "google-chrome")
    browser = next((path for name in names if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip("Chromium is not installed")
    page = next(page for page in PAGES if page.slug == "throughput")
    cells = site_files.move_out((long_table(3000),), page.slug, tmp_path)
    facts = {
        "run_id": "r0",
        "platform": "h100",
        "model": "m",
        "strategy": "s",
        "source": "simulated",
    }
    write_assets(tmp_path, b"", pl.DataFrame([facts]))
    text = rendering.render(cells, page, PAGES, "Now.")
    # a file, because the pages' policy lets no script run that is written into them
    (tmp_path / "look.js").write_text(LOOK)
    tag = '<pre id="found"></pre><script src="look.js"></script></body>'
    (tmp_path / page.html).write_text(text.replace("</body>", tag))
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'profile'}",
        "--virtual-time-budget=20000", "--dump-dom",
        f"{(tmp_path / page.html).as_uri()}#{anchor('r2950')}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    match = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert match and match[1], done.stderr[-2000:]
    found: dict[str, Any] = json.loads(html.unescape(match[1]))
    assert found == {
        "seen": [],
        "target": anchor("r2950"),
        "where": "2901 to 3000 of 3000",
        "csv": 3000,
        "sorted": "r2999",
        "searched": ["r1234", 1, "Search 3000 rows"],
    }
