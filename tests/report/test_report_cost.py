"""The cost page: answers from stated inputs alone, by the formulas of economics."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from simulated import H100, config, write_run

from scalebook.measure.economics import ANSWERS, answers
from scalebook.measure.intervals import Interval
from scalebook.report.base import comparisons, html_tables
from scalebook.report.base.frames import load
from scalebook.report.base.markup import Markup, raw_block
from scalebook.report.base.stated import Stated, read_stated
from scalebook.report.pages import cost_page
from scalebook.report.site.notebook import NotebookCell, prepare
from scalebook.report.site.rendering import ASSETS

MI300X = "AMD Instinct MI300X OAM"
JOB = {
    "model": "llama3.1-8b",
    "world_size": 8,
    "global_batch_size": 32,
    "sequence_length": 2048,
    "precision": "bf16",
}


def words(fragment: Any) -> str:
    text = Markup(re.sub(r"\s+", " ", str(fragment).replace("<", " <"))).striptags()
    return re.sub(r" +", " ", text.replace("\N{NO-BREAK SPACE}", " "))


@pytest.fixture
def two(tmp_path: Path) -> Path:
    write_run(tmp_path, "h", config(platform="h100", **JOB), seconds=1.0, device=H100)
    write_run(tmp_path, "m", config(platform="mi300x", **JOB), seconds=0.5, device=MI300X)
    return tmp_path


def test_without_stated_inputs_answers_are_empty_and_say_what_they_need(two: Path) -> None:
    data = load(two)
    html = str(cost_page.calculator(data, Stated()))
    cost = re.search(r'<tr data-answer="cost">(.*?)</tr>', html)
    assert cost is not None
    assert "needs: Price per GPU hour, on demand" in cost[1]
    assert 'class="num" data-value="–">–<' in cost[1]
    assert 'data-input="tokens" value="1T"' in html
    assert "No price or power is stated" in words(cost_page.overview(data, Stated()))


def test_stated_inputs_give_the_cost_by_hand(two: Path) -> None:
    (two / "economics.toml").write_text('tokens = "1T"\n[h100]\nprice_per_gpu_hour = 2.5\n')
    data, stated = load(two), read_stated(two)
    row = next(row for row in cost_page.choices(data) if row["run_id"] == "h")
    (cost,) = (one for one in answers(cost_page.inputs_of(row, stated)) if one.name == "cost")
    assert cost.value is not None
    by_hand = 1e12 / row["tokens_per_second"] / 3600 * 8 * 2.5
    assert cost.value.low < by_hand < cost.value.high
    assert cost.value.middle == pytest.approx(by_hand, rel=1e-12)


def test_the_script_gets_every_formula_and_run_of_the_page(two: Path) -> None:
    data = load(two)
    html = str(cost_page.calculator(data, Stated()))
    found = re.search(r'<script type="application/json">(.*?)</script>', html)
    assert found is not None
    payload = json.loads(found[1])
    assert [one["name"] for one in payload["answers"]] == [one.name for one in ANSWERS]
    rates = [row["tokens_per_second"] for row in cost_page.choices(data)]
    for rate, (low, high, mean) in zip(
        rates, (run["tokens_per_second"] for run in payload["runs"]), strict=True
    ):
        assert low < mean == rate < high
        assert abs((low + high) / 2 / rate - 1) > 1e-4  # lopsided: the middle is another rate
    for name in {n.removeprefix("1+") for one in ANSWERS for n in (*one.over, *one.under)}:
        assert f'data-input="{name}"' in html


TYPED = """<script>addEventListener("load", () => {
  const field = document.querySelector("[data-input=pue]");
  field.value = "TEXT"; field.dispatchEvent(new Event("input"));
});</script>"""


SHOWN = """<script>addEventListener("load", () => {
  document.body.title = document.querySelector("[data-input=tokens_per_second]").value;
});</script>"""


def in_a_browser(page: Path, html: str) -> str:
    """Return the page as it is after its script has run."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next((path for name in names if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip("Chromium is not installed")
    script = (ASSETS / "cost.js").read_text()
    page.write_text(f'<!DOCTYPE html><meta charset="utf-8">{html}<script>{script}</script>')
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
        f"--user-data-dir={page.parent / 'profile'}", "--dump-dom", page.as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def rows_in_a_browser(page: Path, html: str) -> dict[str, list[str]]:
    """Return the cells of each answer after the page's script has run."""
    return answer_rows(in_a_browser(page, html))


def answer_rows(html: str) -> dict[str, list[str]]:
    rows = re.findall(r'<tr data-answer="(\w+)">(.*?)</tr>', html)
    return {name: re.findall(r"<td[^>]*>(.*?)</td>", row) for name, row in rows}


def test_ranges_give_one_result_with_the_script_and_without_it(two: Path, tmp_path: Path) -> None:
    (two / "economics.toml").write_text(
        'tokens = "1T"\npue = "1.15..1.3"\ngrid_kg_per_kwh = 0.000035\n'
        '[h100]\nprice_per_gpu_hour = "2.1..2.6"\nwatts_per_gpu = 900\n'
        'spot_price_per_gpu_hour = 1.2\npreemption_overhead = "5%..10%"\n'
        '[mi300x]\nprice_per_gpu_hour = "2.1..2.6"\nwatts_per_gpu = 900\n'
        'spot_price_per_gpu_hour = 1.2\npreemption_overhead = "5%..10%"\n'
    )
    data, stated = load(two), read_stated(two)
    html = str(cost_page.calculator(data, stated))
    without = answer_rows(html)
    assert without["energy"][1].count(" to ") == without["cost"][1].count(" to ") == 1
    assert rows_in_a_browser(tmp_path / "page.html", html) == without
    rate = cost_page.inputs_of(cost_page.choices(data)[0], stated).stated()["tokens_per_second"]
    shown = in_a_browser(tmp_path / "page.html", html + SHOWN)
    assert f'title="{rate.low:.6g}..{rate.high:.6g}"' in shown  # as a reader would type it
    known = cost_page.inputs_of(cost_page.choices(data)[0], stated)
    other = dataclasses.replace(known, pue=Interval(1.4, 1.5))
    typed = rows_in_a_browser(tmp_path / "page.html", html + TYPED.replace("TEXT", "1.4..1.5"))
    expected = {one.name: cost_page.shown(one.value) for one in answers(other)}
    assert {name: row[1] for name, row in typed.items()} == expected
    refused = rows_in_a_browser(tmp_path / "page.html", html + TYPED.replace("TEXT", "1.5..1.4"))
    assert refused["energy"][4] == "needs: PUE of the site"


def test_the_break_even_price_is_the_ratio_of_throughputs(two: Path) -> None:
    (two / "economics.toml").write_text("[h100]\nprice_per_gpu_hour = 2.0\n")
    pairs = comparisons.platform_pairs(comparisons.ranked(load(two)))
    assert {pair.a.row["platform"] for pair in pairs} == {"h100"}
    rows = list(cost_page._break_even(pairs, read_stated(two)))
    for row in rows:
        assert row["factor_low"] < 2 < row["factor_high"]
        assert row["even"].low < 4 < row["even"].high
    for pair, row in zip(pairs, rows, strict=True):
        rates = [side.rate for side in (pair.b, pair.a)]
        assert row["factor"] == pytest.approx(rates[0] / rates[1], rel=1e-9)
        assert row["even"].middle == pytest.approx(2 * rates[0] / rates[1], rel=1e-9)
    empty = list(cost_page._break_even(pairs, Stated()))
    assert [row["even"] for row in empty] == [None, None]
    assert empty[0]["reason"] == "no price of H100 is stated"


def test_a_run_without_telemetry_says_why_it_has_no_energy(two: Path) -> None:
    data = load(two)
    assert cost_page.energy_chart(data) is None
    text = words(cost_page.overview(data, Stated()))
    assert "No energy per token of" in text
    assert str(data.runs["energy_reason"][0]) in text
    for said in ("no counter under /sys/class/powercap", "It has none."):
        given = dataclasses.replace(data, runs=data.runs.with_columns(energy_reason=pl.lit(said)))
        (found,) = cost_page.energy_findings(given)
        assert str(found).endswith(f"</a>: {said.removesuffix('.')}.")


def test_a_report_without_telemetry_has_no_heading_of_its_results(two: Path, root: Path) -> None:
    data, text = load(two), (root / "notebooks/31_cost.ipynb").read_text()
    assert not cost_page.device_findings(data)
    assert not cost_page.device_table(data)
    assert "## Energy, power and clocks as measured" in text
    heading = NotebookCell("markdown", "## Energy")
    silent = NotebookCell("code", "figure()", texts=(raw_block(""),))
    told = NotebookCell("code", "table()", texts=(raw_block("<p>One</p>"),))
    words = NotebookCell("markdown", "## Method\n\nBy counters.")
    for cells, left in (
        ((heading, silent, silent, words), 3),
        ((heading, silent, told), 3),
        ((words, silent, heading), 3),
    ):
        assert len(prepare(cells, {})) == left


def test_measured_energy_is_shown_with_the_least_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html_tables, "LONG", 10_000)  # all rows on the page
    data = load(root / "runs" / "examples")
    measured = data.completed.drop_nulls("energy_joules_per_token")
    # The first layers of a model take little because they are few, and a model made for a CPU too.
    whole = measured.filter(~pl.col("model").str.contains("@", literal=True))
    known = whole.filter(~pl.col("model").str.starts_with("tiny-"))
    assert known.height < whole.height
    known = known.sort("energy_joules_per_token")
    figures = cost_page.energy_chart(data)
    assert figures is not None
    assert str(known["run_id"][0])[-12:] in words(cost_page.overview(data, Stated()))
    assert str(cost_page.device_table(data)).count("<tr ") == measured.height


def test_no_run_with_a_rate_is_a_sentence(tmp_path: Path) -> None:
    write_run(tmp_path, "none", config(), status="failed", reason="It broke.")
    data = load(tmp_path)
    assert "No run has a throughput" in words(cost_page.calculator(data, Stated()))
    assert "no break-even price" in words(cost_page.break_even((), Stated()))


def test_a_hostile_run_id_stays_text(two: Path) -> None:
    evil = "</option></script><img src=x onerror=alert(1)>"
    write_run(two, "x", config(platform="h100", **JOB), device=H100, run_id=evil)
    assert "<img" not in str(cost_page.calculator(load(two), Stated()))


def test_the_token_budget_takes_the_hours_of_the_fastest_runs(two: Path) -> None:
    data = load(two)
    found = cost_page.budgets(data, Stated())
    hours = {row["run_id"]: row["gpu_hours"].middle for row in found}
    # 32 samples of 2,048 tokens a step of 1 s and of 0.5 s, on 8 GPUs, for 1e12 tokens
    assert hours == {name: pytest.approx(1e12 / 65536 * seconds / 3600 * 8, rel=0.01)
        for name, seconds in (("m", 0.5), ("h", 1.0))}  # fmt: skip
    said = words(cost_page.overview(data, Stated(), found))
    assert re.search(
        r"1 trillion tokens of Llama 3.1 8B take 1[67],\d{3} GPU hours \(.*?\) on MI300X in BF16, "
        r"sequence 2,048 \( m \); 3[34],\d{3} GPU hours \(.*?\) on H100",
        said,
    )
    assert 'data-key="cost"' not in str(cost_page.budget_table(found))  # no price was stated
    (two / "economics.toml").write_text('tokens = "2T"\n[h100]\nprice_per_gpu_hour = 2.5\n')
    priced = cost_page.budgets(data, read_stated(two))
    (cost,) = (row["cost"] for row in priced if row["run_id"] == "h")
    assert cost.middle == pytest.approx(2 * hours["h"] * 2.5)
    table = str(cost_page.budget_table(priced))
    assert f'data-value="{cost.middle}"' in table
    assert "Interval" not in table


def test_the_first_layers_of_a_model_have_no_token_budget(tmp_path: Path) -> None:
    write_run(
        tmp_path, "p", config(platform="h100", **JOB | {"model": "llama3.1-8b@8"}), device=H100
    )
    assert cost_page.budgets(load(tmp_path), Stated()) == []
    assert cost_page.budget_table([]) is None
