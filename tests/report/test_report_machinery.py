"""What pages share: the facts that filters go by, long tables, the cache, the one file for mail."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from simulated import H100, config, write_run, write_sample

from scalebook.report import PAGES, Places, build
from scalebook.report.base import frames, html_tables
from scalebook.report.base.frames import load
from scalebook.report.base.markup import anchor
from scalebook.report.base.quantities import percent
from scalebook.report.charts import throughput
from scalebook.report.charts.figure import data_rows, sources_note
from scalebook.report.site import build_cache, builder, execute, run_details
from scalebook.report.site.menu import Page
from scalebook.report.site.rendering import local_addresses
from scalebook.report.site.site_check import check
from scalebook.report.site.site_files import run_facts

SUMMARY = PAGES[0]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of simulated runs."""
    return write_sample(tmp_path_factory.mktemp("machinery") / "runs")


@pytest.fixture(scope="module")
def one_file(runs: Path, root: Path) -> Path:
    """The report of these runs in one file."""
    places = Places(runs, runs.parent / "site", root)
    return build(places, "preview", print, one_file=True)


def test_the_filter_knows_the_facets_of_every_run(runs: Path) -> None:
    data = load(runs)
    facts = json.loads(run_facts(data.runs))
    known = {run: [facts["values"][i][p] for i, p in enumerate(at)] for run, *at in facts["runs"]}
    assert known["h100-oom"] == ["h100", "llama3.1-8b", "custom", "simulated"]
    assert known["cpu-moe-ep2"][:2] == ["cpu", "tiny-moe"]
    assert set(known) == set(data.runs["run_id"])


def test_no_run_name_can_end_the_script_of_facts() -> None:
    evil = "</script><script>alert(1)</script>"
    row = {"run_id": evil, "platform": evil, "model": None, "strategy": "a", "source": "b"}
    text = run_facts(pl.DataFrame([row], schema=dict.fromkeys(row, pl.String)))
    assert "</" not in text
    assert json.loads(text)["values"][0] == [evil]


def test_a_chart_says_how_many_of_its_runs_were_not_measured_here(runs: Path) -> None:
    figures = throughput(load(runs).completed)
    assert figures is not None
    for _, figure in figures.parts:
        note = str(sources_note(figure.spec()))
        count = len({row["run_id"] for row in data_rows(figure.spec())})
        assert f'<span class="badge source">simulated</span> {count}' in note
        assert note in str(figure.html)


def test_a_chart_of_measured_runs_alone_carries_no_mark(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "a", config(), source="measured")
    figures = throughput(load(tmp_path / "runs").completed)
    assert figures is not None
    assert "sb-sources" not in str(figures.parts[0][1].html)


def test_a_long_table_keeps_every_row_and_anchor(tmp_path: Path) -> None:
    many = [{"run_id": f"run <{i}>", "world_size": i, "status": "completed"} for i in range(1000)]
    html = str(html_tables.table(many, (html_tables.RUN, html_tables.WORLD), "long", anchors=True))
    assert html.count("<tr ") == html_tables.FIRST
    rows = json.loads(re.search(r'class="sb-rows">(.*?)</script>', html, re.DOTALL)[1])
    assert len(rows) == 1000 - html_tables.FIRST
    assert rows[-1][1:3] == [anchor("run <999>"), "run <999>"]
    assert rows[-1][4] == ["999"]
    assert "run &lt;999&gt;" in rows[-1][3][1]
    assert "<9" not in rows[-1][3][1]
    link = f'<a href="#{anchor("run <999>")}">x</a><a href="#run-nowhere">x</a>'
    (tmp_path / "throughput.html").write_text(html + link)
    problem = "throughput.html: links to #run-nowhere, but nothing there has this id"
    assert check(tmp_path) == (problem,)


def test_addresses_of_the_one_file_stay_apart() -> None:
    html = (
        '<h2 id="findings">x <a href="#findings">#</a></h2><a href="method.html">m</a>'
        '<a href="throughput.html#run-1">1</a><a href="https://example.org/a">e</a>'
        '<script type="application/json" class="sb-spec">{"a":" id=\\"b\\" "}</script>'
    )
    assert local_addresses(html, "index") == (
        '<h2 id="index--findings">x <a href="#index--findings">#</a></h2>'
        '<a href="#page-method">m</a><a href="#throughput--run-1">1</a>'
        '<a href="https://example.org/a">e</a>'
        '<script type="application/json" class="sb-spec">{"a":" id=\\"b\\" "}</script>'
    )


def test_links_in_a_long_table_of_the_one_file_stay_inside() -> None:
    many = [{"run_id": f"r{i}"} for i in range(400)]
    html = str(html_tables.table(many, (html_tables.RUN,), "long", anchors=True))
    local = local_addresses(html, "throughput")
    rows = json.loads(re.search(r'class="sb-rows">(.*?)</script>', local, re.DOTALL)[1])
    assert rows[0][1] == "throughput--run-r100"
    assert 'href="#throughput--run-r100"' in rows[0][3][1]


def test_the_one_file_holds_every_page_and_needs_no_other_file(one_file: Path) -> None:
    text = one_file.read_text()
    assert re.findall(r'<section class="page" id="page-([a-z_-]+)"', text) == [
        p.slug for p in PAGES
    ]
    assert not re.search(r"<script[^>]* src=|<link[^>]*stylesheet", text)
    assert "data:text/csv;base64," in text
    assert "window.SCALEBOOK_RUNS=" in text
    ids = re.findall(r' id="([^"]+)"', re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL))
    assert len(ids) == len(set(ids))


def test_the_one_file_lets_its_own_scripts_run_and_no_other(one_file: Path) -> None:
    text = one_file.read_text()
    policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]+)">', text)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    assert rules["default-src"] == "'none'"
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    assert len(scripts) > 2
    assert rules["script-src"].split() == [f"'sha256-{one}'" for one in digests]
    assert not re.search(r"<[a-z][^>]* on[a-z]+=", text[: text.index("<script>")])


def test_the_one_file_is_small_enough_for_mail_or_says_that_it_is_not(one_file: Path) -> None:
    said: list[str] = []
    builder.weigh(one_file, said.append)
    assert one_file.stat().st_size < 5_000_000 and not said
    builder.weigh(one_file, said.append, most=1_000_000)
    assert f"has {one_file.stat().st_size / 1e6:.1f} MB" in said[0]


def test_an_unchanged_page_is_not_executed_again(
    runs: Path, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed: list[str] = []
    real = execute.execute

    def counted(pages: list[Page], *rest: Path) -> dict[Page, str]:
        executed.extend(page.slug for page in pages)
        return real(pages, *rest)

    monkeypatch.setattr(execute, "execute", counted)
    mine = shutil.copytree(runs, tmp_path / "runs")
    notebooks = tmp_path / "notebooks"
    notebooks.mkdir()
    shutil.copy(root / "notebooks" / SUMMARY.notebook, notebooks)

    def once() -> str:
        executed.clear()
        stage = tmp_path / "stage"
        shutil.rmtree(stage, ignore_errors=True)
        stage.mkdir()
        data, folder = build_cache.load(mine, tmp_path / "cache")
        build_cache.make([SUMMARY], notebooks, data, folder, stage)
        return (stage / f"{SUMMARY.slug}.ipynb").read_text()

    first = once()
    assert executed == [SUMMARY.slug]
    assert once() == first
    assert executed == []
    os.utime(mine / "cpu-one" / "steps.jsonl", ns=(1, 1))
    once()
    assert executed == [SUMMARY.slug]
    text = (notebooks / SUMMARY.notebook).read_text().replace("What is fastest", "What is best")
    (notebooks / SUMMARY.notebook).write_text(text)
    assert "What is best" in once()
    assert executed == [SUMMARY.slug]


def test_damage_anywhere_in_what_is_kept_costs_only_the_time_to_make_it_again(
    runs: Path, tmp_path: Path, root: Path
) -> None:
    cache, method = tmp_path / "cache", next(page for page in PAGES if page.slug == "method")

    def once() -> tuple[frames.ReportData, str]:
        data, folder = build_cache.load(runs, cache)
        build_cache.make([method], root / "notebooks", data, folder, tmp_path)
        return data, (tmp_path / "method.ipynb").read_text()

    data, page = once()
    files = [path for path in cache.rglob("*") if path.is_file()]
    assert len(files) >= 4
    assert not [path for path in files if b"cscalebook" in path.read_bytes()]  # no pickle
    for damage in (lambda whole: whole[: len(whole) // 2], lambda whole: b"", lambda whole: b"[1]"):
        for path in files:
            path.write_bytes(damage(path.read_bytes()))
        again, now = once()
        assert again.runs.equals(data.runs)
        assert again.diagnoses == data.diagnoses
        assert now.count('"cell_type"') == page.count('"cell_type"')


def test_the_page_of_a_run_names_its_work_and_the_interval_of_its_mfu(tmp_path: Path) -> None:
    made = config(platform="h100", model="llama3.1-8b", precision="bf16", sequence_length=8192)
    write_run(tmp_path / "runs", "one", made, seconds=12, device=H100, source="measured")
    data = frames.load(tmp_path / "runs")
    run_details.write_details(data, tmp_path / "site", tmp_path / "cache")
    text = (tmp_path / "site/data/run/0.js").read_text().partition("\n")[2]
    (found,) = json.loads(text.rstrip(";\n"))
    assert found["subtitle"] == "BF16, sequence 8,192 · 1 GPU"
    assert found["status"] == "Completed · measured"
    assert ["Sequence length", "8,192"] in found["settings"]
    row = data.runs.row(0, named=True)
    ends = " to ".join(percent(row[name]) for name in ("mfu_low", "mfu_high"))
    # of the data sheet of the H100 SXM5, without sparsity
    peak = "of the dense BF16 peak, 989.4 TFLOP/s"
    assert ["MFU", f"{percent(row['mfu'])} ({ends}) {peak}"] in found["results"]
    assert ["Convention", "Megatron causal"] in found["results"]
    assert found["results"][0][1].endswith(f", {row['measured_steps']} measured steps")


def test_the_curve_of_power_is_the_mean_of_the_readings_during_each_step(tmp_path: Path) -> None:
    """Steps end at 10, 20 and 40 s and take 5 s each: what is read between them is of no step."""
    began = datetime(2026, 1, 1, tzinfo=UTC)

    def at(*seconds: float) -> list[datetime]:
        return [began + timedelta(seconds=one) for one in seconds]

    steps = pl.DataFrame({"run_id": "a", "step": [1, 2, 3], "step_seconds": 5.0,
                          "finished_at": at(10, 20, 40)})  # fmt: skip
    watts = [100.0, 300.0, 500.0, 600.0, 900.0, 900.0]
    readings = pl.DataFrame({"run_id": [*"aaaaab"], "time": at(4, 6, 9, 19, 30, 39),
                             "power_watts": watts})  # fmt: skip
    found = run_details.power_by_step(steps, readings).sort("step").rows()
    assert found == [("a", 1, 400.0), ("a", 2, 600.0)]

    data = frames.load(write_run(tmp_path / "runs", "one", config(), steps=3).parent)
    run_details.write_details(data, tmp_path / "site", tmp_path / "cache")
    text = (tmp_path / "site/data/run/0.js").read_text().partition("\n")[2]
    (shown,) = json.loads(text.rstrip(";\n"))
    assert "power_watts" not in shown["curves"]  # no reading, no curve
    assert len(shown["curves"]["loss"]) == 3


def test_a_change_of_what_predictions_learn_from_makes_pages_anew(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = tmp_path / "examples"
    write_run(examples, "one", config())
    monkeypatch.setattr(build_cache.predict, "folders", lambda place: (place, examples))
    before = build_cache.load(runs, tmp_path / "cache")[1]
    assert build_cache.load(runs, tmp_path / "cache")[1] == before
    write_run(examples, "two", config())
    assert build_cache.load(runs, tmp_path / "cache")[1] != before


def test_pages_of_many_runs_are_executed_by_several_processes(
    runs: Path, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_cache, "PARALLEL_PAGES", 1)
    pages = [page for page in PAGES if page.slug in ("scaling", "method")]
    data, folder = build_cache.load(runs, tmp_path / "cache")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    here: list[object] = []
    monkeypatch.setattr(frames, "HELD", here)  # this process holds no data meanwhile
    build_cache.make(pages, root / "notebooks", data, folder, tmp_path)
    for page in pages:
        assert '"output_type": "display_data"' in (tmp_path / f"{page.slug}.ipynb").read_text()
