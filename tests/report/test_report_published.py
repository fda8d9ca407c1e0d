"""Published results stand beside ours under one convention, marked, with their source."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated import H100, config, write_run

from scalebook.facts import catalog
from scalebook.facts.flops import DEFAULT_CONVENTION, flops_per_token, published_tflops
from scalebook.report.base.frames import load
from scalebook.report.base.markup import Markup
from scalebook.report.pages import published_page

OTHERS = published_page.results()


def marks(html: str) -> int:
    """Count the marks of published rows, on the first page of a table and on those to come."""
    return html.count(">published</span>") + html.count("\\u003epublished\\u003c/span")


def words(fragment: Any) -> str:
    text = Markup(re.sub(r"\s+", " ", str(fragment).replace("</li>", " "))).striptags()
    return text.replace("\N{NO-BREAK SPACE}", " ")


def ours(folder: Path, **record: Any) -> tuple[Any, ...]:
    settings = config(
        platform="h100",
        model="llama3.1-8b",
        world_size=8,
        global_batch_size=64,
        sequence_length=8192,
        precision="bf16",
        tensor_parallel_size=2,
    )
    write_run(folder, "h100-run", settings, seconds=7.0, device=H100, **record)
    return published_page.own(load(folder))


def test_megatron_claims_agree_with_the_count_of_their_own_tokens() -> None:
    """The source counts by the same convention, so claimed over counted is one, up to rounding."""
    rows = [r for r in OTHERS if r["convention"] == "megatron_causal" and r["factor"]]
    assert len(rows) > 100
    close = [row for row in rows if abs(row["factor"] - 1) < 0.05]
    assert len(close) > 0.9 * len(rows)


def test_a_claim_without_tokens_is_converted_from_its_convention() -> None:
    row = next(r for r in catalog.published() if r.model == "llama3.1-8b" and r.sequence_length)
    bare = replace(
        row,
        task="pretrain",
        tokens_per_second=None,
        tokens_per_second_per_gpu=None,
        claimed_tflops_per_second_per_gpu=400.0,
        flops_convention="full_attention",
        mtp_layers=0,
    )
    value, how = published_tflops(bare)
    shape, length = catalog.model("llama3.1-8b"), float(row.sequence_length or 0)
    ratio = flops_per_token(shape, length, DEFAULT_CONVENTION) / flops_per_token(
        shape, length, "full_attention"
    )
    assert value == pytest.approx(400 * ratio)
    assert ratio < 1
    assert how == "rate: from TFLOP/s by full_attention"


def test_a_result_that_cannot_be_counted_is_left_out_with_its_reason() -> None:
    for row in OTHERS:
        assert row["how"]
        assert (row["mfu"] is None) == bool(row["mfu_reason"])
    assert any("shape" in row["how"] for row in OTHERS if row["tflops"] is None)


def test_no_mfu_of_mixed_widths_and_none_above_the_peak() -> None:
    assert all(row["mfu"] is None for row in OTHERS if "FP8" in (row["precision"] or ""))
    assert all(row["mfu"] < 1 for row in OTHERS if row["mfu"] is not None)


def test_the_sentence_counts_what_the_table_holds(tmp_path: Path) -> None:
    mine = ours(tmp_path)
    text = words(published_page.overview(mine, OTHERS))
    known = [row for row in OTHERS if row["tflops"] is not None]
    assert f"{len(known)} of {len(OTHERS)} published results" in text
    same = [
        row["tflops"]
        for row in known
        if (row["model"], row["accelerator"], row["family"])
        == ("llama3.1-8b", "H100-SXM5-80GB", "16 bit")
    ]
    above = sum(value > mine[0]["tflops"] for value in same)
    assert f"{len(same)} published results from {min(same):.0f} to {max(same):.0f}, median" in text
    assert f"{above} above ours" in text
    assert marks(str(published_page.listing(mine, OTHERS))) == len(known)


def test_published_rows_are_marked_in_the_table_and_the_chart(tmp_path: Path) -> None:
    mine = ours(tmp_path, source="measured")
    html = str(published_page.listing(mine, OTHERS))
    known = sum(row["tflops"] is not None for row in OTHERS)
    assert marks(html) == known
    assert "<strong>ours</strong>" in html
    figure = published_page.chart(mine, OTHERS)
    assert figure is not None
    assert "triangle-up" in str(figure.spec())
    assert "1 of them ours" in figure.description


def test_the_reader_filters_by_model_and_accelerator(tmp_path: Path) -> None:
    figure = published_page.chart(ours(tmp_path), OTHERS)
    assert figure is not None
    menus = {item["name"]: item for item in figure.spec()["params"] if "bind" in item}
    for name in ("model", "accelerator"):
        (bind,) = [b["bind"] for key, b in menus.items() if key == f"pick_{name}"]
        shown = bind.get(name, bind)
        assert shown["labels"][0] == "all"
        assert {"Llama 3.1 8B", "H100-SXM5-80GB"} & set(shown["options"])


def test_without_own_gpu_runs_the_page_says_so(tmp_path: Path) -> None:
    write_run(tmp_path, "cpu", config())
    mine = published_page.own(load(tmp_path))
    assert mine == ()
    assert "No run here is on a device" in words(published_page.overview(mine, OTHERS))


def test_runs_with_published_counterparts_come_first() -> None:
    ours = [{"model": name, "accelerator": "H100", "family": "16 bit", "tflops": rate,
             "run_id": name} for name, rate in (("alone", 100.0), ("known", 200.0))]  # fmt: skip
    said = list(published_page._standing(tuple(ours), [ours[1] | {"tflops": 300.0, "where": "W"}]))
    assert "200 TFLOP/s per GPU" in words(said[0])
    assert "0.67 times the best published (W)" in words(said[0])
    assert ["no published result" in one for one in said] == [False, True]
    many = [{**ours[0], "model": name} for name in ("b", "a")]  # one sentence, not one each
    (alone,) = published_page._standing(tuple(many), [])
    assert alone == "The catalog has no published result on H100 in 16 bit of a and b."


def test_a_model_cut_to_its_first_layers_is_not_set_next_to_whole_ones(tmp_path: Path) -> None:
    mine = ({**ours(tmp_path)[0], "model": "llama3.1-8b@8"},)
    text = words(published_page.overview(mine, OTHERS))
    assert "published results from" not in text
    assert "1 run with fewer layers than the model is only in the table" in text
    figure = published_page.chart(mine, OTHERS)
    assert figure is not None
    assert "0 of them ours" in figure.description
    mine += ({**mine[0], "model": "mistral-7b"},)
    table = str(published_page.listing(mine, OTHERS))
    assert 0 < table.index("mistral-7b") < table.index("llama3.1-8b@8")


def test_a_hostile_name_or_address_is_text(tmp_path: Path) -> None:
    mine = ours(tmp_path, run_id="<script>alert(1)</script>")
    row = next(row for row in OTHERS if row["tflops"] is not None)
    bad = {**row, "where": "<b>x</b>", "url": "javascript:alert(1)"}
    html = str(published_page.listing(mine, (bad,)))
    assert "<script" not in html
    assert "<b>" not in html
    assert "javascript:" not in html
