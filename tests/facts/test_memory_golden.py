"""Megatron-LM's own function gives the model states that are predicted, at its two decimals."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from scalebook.facts import catalog, memory
from scalebook.parallelism import Parallelism

GOLDEN = Path(__file__).parents[1] / "golden" / "memory.csv"
Row = dict[str, str]


def rows() -> list[Row]:
    with GOLDEN.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize(
    "row", rows(), ids=lambda row: "-".join(word for word in list(row.values())[:9] if word)
)
def test_the_model_states_of_a_rank_are_what_megatrons_function_gives(row: Row) -> None:
    tensor, stages, chunks, data = (
        int(row[name]) for name in ("tensor", "pipeline", "chunks", "data")
    )
    worst = memory.estimate(
        catalog.model(row["model"]),
        Parallelism(
            tensor * stages * data, tensor, stages, chunks, data_parallel_sharding="optimizer"
        ),
        micro_batch_size=1,
        num_microbatches=8,
        sequence_length=2048,
    ).stages[0]
    # It leaves biases out.
    states = worst.parameters + worst.gradients + worst.optimizer
    assert states == pytest.approx(float(row["value"]), rel=0.01)
