"""Logs of other trainers in the report: marked, recounted, and contradicted where they differ."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from simulated import config, write_run
from test_tables import Tags

from scalebook.logs.ingest.ingestion import ingest
from scalebook.report import Places, build, check
from scalebook.report.base import sections
from scalebook.report.base.frames import load
from scalebook.report.pages import front, reliability_page, throughput_page
from scalebook.store import read_run, write_record

LOG = Path(__file__).parents[1] / "logs" / "megatron_2024.log"
TITLE = "What the logs print next to our count"
EVIL = "<script>alert(1)</script>"


def words(text: object) -> str:
    return re.sub(r"\s+", " ", Tags(str(text)).text.replace("\N{NO-BREAK SPACE}", " "))


def write_ingested(runs: Path, log: Path = LOG, **supplied: object) -> str:
    (run,), _ = ingest([log], runs, {"platform": "h100"} | supplied)
    return run.path.name


def change(runs: Path, run_id: str, **changes: object) -> None:
    """Give what ingest found other values."""
    record = read_run(runs / run_id).record
    found = record.environment["ingest"] | changes
    environment = record.environment | {"ingest": found}
    write_record(runs / run_id, record.model_copy(update={"environment": environment}))


def test_a_log_that_just_stops_is_not_a_failure(tmp_path: Path) -> None:
    write_ingested(tmp_path)
    lines = LOG.read_text().splitlines(keepends=True)
    cut, ended = tmp_path / "cut.log", tmp_path / "ended.log"
    cut.write_text("".join(lines[: len(lines) * 3 // 4]))
    ended.write_text(f"{cut.read_text()}CANCELLED AT 2026-01-01\n")
    names = [write_ingested(tmp_path, log) for log in (cut, ended)]
    statuses = [read_run(tmp_path / name).record for name in names]
    assert [(one.status, one.cause) for one in statuses] == [
        ("interrupted", None), ("interrupted", "stopped"),
    ]  # fmt: skip
    data = load(tmp_path)
    nameless = load(tmp_path).runs.with_columns(platform=pl.lit(None, pl.String))
    assert "3 runs on 1 platform" in words(sections.foot(data))
    assert "3 runs on 0 platforms" in words(sections.foot(replace(data, runs=nameless)))
    assert sections.failed(data)["run_id"].to_list() == [names[1]]
    failed = words(front.screen(data)).partition("What failed")[2]
    assert failed.startswith("1 of 3 runs: 1 interrupted. 1 log does not say how its run ended.")
    one = replace(data, runs=data.runs.filter(pl.col("run_id") == names[0]))
    assert "No run is known to have failed. 1 log does not" in words(" ".join(front._failed(one)))
    assert "1 log does not say how its run ended" in words(reliability_page.statuses(data))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, root: Path) -> str:
    """The throughput page of one measured and one ingested run, and the site's own check."""
    folder = tmp_path_factory.mktemp("ingested")
    runs = folder / "runs"
    write_run(runs, "own", config(), source="measured")
    change(runs, write_ingested(runs), warnings=[EVIL, "Printed TFLOP/s are too high."])
    index = build(Places(runs, folder / "site", root), "preview", print)
    assert check(index.parent) == ()
    return (index.parent / "throughput.html").read_text()


def cells(page: str) -> dict[str, tuple[str, str]]:
    """The one row of the table: the value and the text of each cell by its heading's key."""
    table = page[page.index('data-name="ingested"') :].partition("</table>")[0]
    keys = re.findall(r'<th [^>]*data-key="(\w+)"', table)
    (row,) = re.findall(r"<tr [^>]*class=.*?</tr>", table, re.DOTALL)
    found = re.findall(r'<td class="[^"]*" data-value="(.*?)">(.*?)</td>', row, re.DOTALL)
    return dict(zip(keys, found, strict=True))


def test_the_row_has_what_was_printed_beside_our_count(page: str) -> None:
    found = cells(page)
    # 96 samples of 2,048 tokens in a median of 2.001 s on 32 GPUs
    assert found["logged"] == ("135.7", "135.7")
    assert float(found["recounted"][0]) == pytest.approx(126.666, rel=1e-4)
    assert found["factor"][1] == "1.071×"
    assert found["fits"][1] == "PaLM 6N"
    assert found["family"][1] == "megatron-lm"
    assert float(found["mfu"][0]) == pytest.approx(126.6 / 989.4, rel=1e-2)


def test_the_run_is_marked_and_stands_in_the_table_of_all_runs(page: str) -> None:
    assert '<span class="badge source">ingested</span>' in cells(page)["status"][1]
    every = page[page.index('data-name="runs"') :].partition("</table>")[0]
    assert every.count("from-ingested") == 1
    assert every.count("from-measured") == 1


def test_warnings_are_shown_as_text(page: str) -> None:
    _, shown = cells(page)["said"]
    assert shown == f"{html.escape(EVIL)}<br>Printed TFLOP/s are too high."
    assert EVIL not in page


def test_a_sentence_says_the_disagreement(page: str) -> None:
    text = words(page)
    assert TITLE in text
    assert "1 run comes from logs of other trainers, marked ingested." in text
    assert "1 of them prints TFLOP/s that can be compared" in text
    assert "0 agree within 2.5 %, 1 not." in text
    assert "prints 135.7 TFLOP/s per GPU, 1.071× our 126.7: that is the count by PaLM 6N" in text


def test_without_ingested_runs_there_is_nothing(tmp_path: Path) -> None:
    write_run(tmp_path, "own", config(), source="measured")
    data = load(tmp_path)
    assert str(throughput_page.ingested_overview(data)) == ""
    assert str(throughput_page.ingested_table(data)) == ""


def test_a_log_that_agrees_is_counted_and_not_listed(tmp_path: Path) -> None:
    text = LOG.read_text()
    for printed, right in (("134.9", "125.9"), ("135.", "126.")):
        text = text.replace(f"(TFLOP/s/GPU): {printed}", f"(TFLOP/s/GPU): {right}")
    (tmp_path / "agrees.log").write_text(text)
    write_ingested(tmp_path / "runs", tmp_path / "agrees.log")
    said = words(throughput_page.ingested_overview(load(tmp_path / "runs")))
    assert "1 agrees within 2.5 %, 0 not." in said
    assert "prints 1" not in said


def test_a_run_that_cannot_be_recounted_says_why(tmp_path: Path) -> None:
    text = "".join(
        line for line in LOG.read_text().splitlines(keepends=True) if "hidden_size" not in line
    )
    (tmp_path / "short.log").write_text(text)
    write_ingested(tmp_path / "runs", tmp_path / "short.log")
    data = load(tmp_path / "runs")
    assert "None of these logs has enough" in words(throughput_page.ingested_overview(data))
    shown = words(throughput_page.ingested_table(data))
    assert "No count of ours: The log names no model and does not state hidden size" in shown


@pytest.mark.parametrize(
    "broken",
    [
        {"tflops": None, "warnings": None},
        {"tflops": {"logged": "fast", "recounted": [1], "logged_over_recounted": -1}},
        {"tflops": {"logged": 10**400, "logged_over_recounted": True}, "warnings": [3]},
        {"tflops": {"convention_that_fits": 7, "reason": {}}, "family": EVIL},
    ],
)
def test_a_record_with_values_of_another_type_stops_no_page(
    tmp_path: Path, broken: dict[str, object]
) -> None:
    run_id = write_ingested(tmp_path)
    change(tmp_path, run_id, **broken)
    data = load(tmp_path)
    assert run_id in words(throughput_page.ingested_table(data))
    assert EVIL not in str(throughput_page.ingested_table(data))
    assert throughput_page.ingested_overview(data)


def test_an_ingested_run_of_an_older_record_has_a_row(tmp_path: Path) -> None:
    run_id = write_ingested(tmp_path)
    path = tmp_path / run_id / "record.json"
    record = json.loads(path.read_text())
    record["environment"] = {}
    path.write_text(json.dumps(record))
    assert run_id in words(throughput_page.ingested_table(load(tmp_path)))
