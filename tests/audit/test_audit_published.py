"""Claims about the audit of the catalog's published results."""

from __future__ import annotations

import csv
from importlib.resources import files
from pathlib import Path

import pytest

from scalebook.audit import against_published, audit, parse_claims, sample_text
from scalebook.audit.claimed_rows import Claims, Row, Table
from scalebook.audit.fields import field
from scalebook.audit.printed import Printed, read_printed
from scalebook.facts import catalog

WRONG = ("contradicts", "impossible")
RENAMED = {
    "world_size": "gpus",
    "claimed_tflops_per_second_per_gpu": "model_tflops_per_second_per_gpu",
    "claimed_mfu": "mfu",
}
PRECISIONS = ("bf16", "fp16", "fp8", "fp4", "fp32", "tf32")


def claim_of(cells: dict[str, str]) -> Row:
    """The claim that a row of the catalog's file makes, digit by digit."""
    values: dict[str, Printed] = {}
    for column, text in cells.items():
        item = field(RENAMED.get(column, column))
        if item is not None and text:
            least = ">" if cells["caveat"] == "test threshold" and not item.exact else ""
            values[item.name] = read_printed(f"{least}{text}", exact=item.exact, scale=item.scale)
    words = {key: cells[key] for key in ("model", "accelerator") if cells[key]}
    named = [name for name in PRECISIONS if name in cells["precision"].lower()]
    words |= {"precision": named[0]} if len(named) == 1 else {}
    words |= {"trained": "lora"} if cells["task"] == "LoRA" else {}
    return Row("Published", cells["id"], None, values, words)


def rows() -> list[dict[str, str]]:
    text = files("scalebook.facts.catalog").joinpath("published.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def accused(chosen: list[dict[str, str]]) -> dict[str, str]:
    """The accused rows and the cause that the audit names for each."""
    table = Table("Published", tuple(map(claim_of, chosen)))
    found: dict[str, str] = {}
    for check in audit(Claims("published", "published", (table,))).checks:
        if check.verdict in WRONG:
            found[check.label] = check.note.partition("the claim fits ")[2].partition(", ")[0]
    return found


@pytest.fixture(scope="module")
def golden(root: Path) -> dict[str, str]:
    with (root / "tests/golden/audit_published.csv").open(newline="") as stream:
        return {row["id"]: row["cause"] for row in csv.DictReader(stream)}


def test_these_published_rows_are_accused_and_why_and_no_tenth_of_the_others(
    golden: dict[str, str],
):
    chosen = [row for row in rows() if row["id"] in golden or int(row["id"]) % 10 == 0]
    assert accused(chosen) == golden


def test_a_threshold_is_no_measurement():
    (row,) = (row for row in rows() if row["id"] == "606")
    assert row["caveat"] == "test threshold"
    assert accused([row]) == {}
    assert "606" in accused([row | {"caveat": ""}])


def test_wrong_shapes_are_named():
    # gpt-oss-120b at 4,096 tokens: 34.33 GFLOP, less a third of 21.5 of the experts
    shape = catalog.model("gpt-oss-120b")
    experts = 6 * 36 * 3 * 2880 * 2880 * 4
    assert (shape.num_layers, shape.hidden_size) == (36, 2880)
    rate = (34_330_853_376 - experts / 3) * 19_200 / 1e12
    cells = {"id": "1", "caveat": "", "model": shape.name, "accelerator": "GB300", "task": ""}
    cells |= {"precision": "BF16", "sequence_length": "4096"}
    cells |= {"tokens_per_second_per_gpu": "19200"}
    cells |= {"claimed_tflops_per_second_per_gpu": f"{rate:.1f}"}
    assert accused([cells]) == {"1": "megatron_causal with a gated MLP counted as a plain one"}


def test_no_published_result_stands_above_the_best_of_its_kind() -> None:
    """Each row of the catalog as a claim is at most the best, and the best of each kind is one."""
    counted = [
        row
        for row in rows()
        if row["tokens_per_second_per_gpu"] and row["task"] == "pretrain"
        if row["mtp_layers"] in ("", "0") and "INT8" not in row["precision"]
    ]
    table = Table("Published", tuple(map(claim_of, counted)))
    found = against_published(Claims("published", "published", (table,)))
    assert len(found) > 300
    assert all(one.tflops <= one.best_tflops * (1 + 1e-9) for _, one in found)
    assert len({one.best.id for row, one in found if row.label == one.best.id}) > 50


def test_a_claim_stands_next_to_the_best_published_of_its_model_device_and_width() -> None:
    """72,000 tokens/s on 8 H100 are 9,000 each, of 51.4704 GFLOP: 463 of 550 TFLOP/s."""
    found = {
        row.label: one for row, one in against_published(parse_claims(sample_text("example"), "x"))
    }
    mine = found["Llama 3.1 8B on H100"]
    assert mine.tflops == pytest.approx(463.23, abs=0.01)
    assert mine.best_tflops == pytest.approx(10682.4 * 51.4704e-3, rel=1e-4)
    assert mine.where.startswith("BF16, sequence 8,192, 8 GPUs; NVIDIA DGX Cloud")
    text = """
[[claims]]
label = "{}"
model = "llama3.1-8b"
accelerator = "h100"
tokens_per_second_per_gpu = "9,000"
sequence_length = "8192"
"""
    without, lora = text.format("no precision"), text.format("LoRA") + 'precision = "bf16"\n'
    assert against_published(parse_claims(without + lora, "x")) == ()
    only = text.format("TFLOP/s").replace(
        "tokens_per_second_per_gpu", "model_tflops_per_second_per_gpu"
    )
    ((_, stated),) = against_published(
        parse_claims(only.replace("9,000", "400") + 'precision = "bf16"\n', "x")
    )
    assert stated.tflops == 400
