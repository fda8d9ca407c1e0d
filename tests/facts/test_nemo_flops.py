"""NeMo's own FLOPs formulas beside ours: figures of nemo-toolkit 2.7.3 in golden/nemo_flops.csv."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from scalebook.facts import catalog, flops

ROWS = list(csv.DictReader((Path(__file__).parents[1] / "golden" / "nemo_flops.csv").open()))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']}-{row['sequence_length']}")
def test_ours_is_nemos_formula_or_the_difference_has_a_reason(row: dict[str, str]):
    shape, length = catalog.model(row["model"]), int(row["sequence_length"])
    ours = flops.flops_per_token(shape, length, vocab_size=shape.vocab_size) / 1e9
    theirs = float(row["nemo_gflops_per_token"])
    if row["reason"]:
        assert 100 * (theirs / ours - 1) == pytest.approx(
            float(row["difference_percent"]), abs=2e-3
        )
    else:
        assert ours == pytest.approx(theirs, rel=1e-5)


def test_nemos_gpt3_differs_by_the_padding_of_its_vocabulary_alone():
    row = next(row for row in ROWS if row["model"] == "gpt3-175b")
    shape = catalog.model("gpt3-175b")
    padded = flops.flops_per_token(shape, int(row["sequence_length"]), vocab_size=51200)
    assert padded / 1e9 == pytest.approx(float(row["nemo_gflops_per_token"]), rel=1e-5)


def test_nemos_general_formula_lacks_one_matrix_of_a_gated_mlp():
    row = next(row for row in ROWS if row["model"] == "qwen2.5-7b")
    shape, length = catalog.model("qwen2.5-7b"), int(row["sequence_length"])
    ours = flops.flops_per_token(shape, length, vocab_size=shape.vocab_size)
    third = 6 * shape.num_layers * shape.hidden_size * shape.ffn_hidden_size
    assert (ours - third) / 1e9 == pytest.approx(float(row["nemo_gflops_per_token"]), rel=1e-5)
