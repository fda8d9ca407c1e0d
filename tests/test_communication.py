"""Communication volumes and bubbles: golden values by formula, and what must hold of them."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from scalebook import catalog, communication
from scalebook.errors import ConfigError
from scalebook.flops import parameter_count
from scalebook.parallelism import Parallelism

Row = dict[str, str]
GOLDEN = Path(__file__).parent / "golden" / "communication.csv"
MIB, GIB = 2**20, 2**30


def rows() -> list[Row]:
    with GOLDEN.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def value(row: Row) -> float:
    """What the project says of a golden row, in the row's unit."""
    ranks, named = int(row["ranks"]), row["convention"]
    if row["quantity"] == "bubble":
        return communication.pipeline_bubble(
            ranks, int(row["microbatches"]), int(row["chunks"]), of=named
        )
    shape = catalog.model(row["model"])
    if row["quantity"] == "data":
        return communication.data_bytes(parameter_count(shape).total, ranks, named) / 1e9
    tokens = int(row["tokens"])
    if row["quantity"] == "pipeline":
        return communication.pipeline_bytes(shape, tokens, tensor=ranks) / MIB
    if row["quantity"] == "tensor_model":
        layer = communication.tensor_bytes(
            shape, ranks, tokens, sequence_parallel=named == "sequence_parallel"
        )
        return shape.num_layers * layer / GIB
    layer = {
        "tensor_layer": communication.tensor_bytes,
        "context_ring": communication.context_ring_bytes,
        "context_all_to_all": communication.context_all_to_all_bytes,
        "expert": communication.expert_bytes,
    }[row["quantity"]]
    return layer(shape, ranks, tokens) / MIB


@pytest.mark.parametrize(
    "row", rows(), ids=lambda row: "-".join(word for word in list(row.values())[:7] if word)
)
def test_a_golden_figure_of_communication_is_reproduced(row: Row) -> None:
    assert value(row) == pytest.approx(float(row["value"]), rel=1e-9)


SIZES = {"micro_batch_size": 1, "num_microbatches": 8, "sequence_length": 4096}


def estimate(parallelism: Parallelism, **sizes: int) -> communication.CommunicationEstimate:
    shape = catalog.model("llama3.1-8b")
    return communication.estimate(shape, parallelism, **(SIZES | sizes))


def test_a_single_process_sends_nothing() -> None:
    alone = estimate(Parallelism(1))
    assert alone.total == 0
    assert alone.bubble == 0


def test_each_kind_of_parallelism_sends_its_own_kind_of_bytes_alone() -> None:
    kinds = {"tensor": 2, "pipeline": 2, "context": 2}
    for kind, size in kinds.items():
        parallelism = Parallelism(2, **{f"{kind}_parallel_size": size})
        sent = estimate(parallelism)
        assert getattr(sent, kind) > 0
        others = {"tensor", "pipeline", "context", "expert"} - {kind}
        assert [getattr(sent, other) for other in others] == [0, 0, 0]


def test_context_parallel_ranks_synchronise_gradients_like_replicas() -> None:
    assert estimate(Parallelism(2, context_parallel_size=2)).data == estimate(Parallelism(2)).data


def test_gradients_in_bf16_travel_as_half_of_those_in_fp32() -> None:
    shape, split = catalog.model("llama3.1-8b"), Parallelism(4)
    sent = [
        communication.estimate(shape, split, **SIZES, gradient_precision=one).data
        for one in ("fp32", "bf16")
    ]
    # The distributed optimizer scatters gradients (4 or 2 bytes) and gathers bf16 weights (2).
    assert sent[1] / sent[0] == pytest.approx((2 + 2) / (4 + 2))


def test_gradients_travel_once_a_step_and_activations_once_a_microbatch() -> None:
    parallelism = Parallelism(4, 2)
    few, many = (estimate(parallelism, num_microbatches=count) for count in (4, 8))
    assert many.tensor == 2 * few.tensor
    assert many.data == few.data


def test_fsdp_gathers_once_a_microbatch() -> None:
    parallelism = Parallelism(8, data_parallel_sharding="full")
    few, many = (estimate(parallelism, num_microbatches=count) for count in (4, 8))
    assert many.data == 2 * few.data


def test_interleaving_shrinks_the_bubble_and_adds_crossings() -> None:
    plain = Parallelism(4, pipeline_parallel_size=4)
    interleaved = replace(plain, virtual_pipeline_parallel_size=2)
    assert estimate(interleaved).bubble < estimate(plain).bubble
    assert estimate(interleaved).pipeline > estimate(plain).pipeline


def test_experts_are_synchronised_only_among_the_ranks_that_hold_the_same_ones() -> None:
    shape = catalog.model("mixtral-8x7b")
    spread, everywhere = (
        communication.estimate(shape, Parallelism(8, expert_parallel_size=size), **SIZES)
        for size in (8, 1)
    )
    assert spread.expert > 0
    assert everywhere.expert == 0
    assert spread.data < everywhere.data


def test_an_unknown_convention_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'ddp_fp32'"):
        communication.data_bytes(1e9, 8, "ddp_fp23")
