"""Communication volumes and bubbles: golden values by formula, and what must hold of them."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from scalebook import catalog, communication
from scalebook.errors import ConfigError
from scalebook.flops import parameter_count
from scalebook.parallelism import Parallelism

Row = dict[str, str]
MIB, GIB = 2**20, 2**30
DATA = {
    "DP ddp fp32": "ddp_fp32",
    "DP ddp bf16": "ddp_bf16",
    "DP zero1/distopt fp32 grad": "distributed_optimizer_fp32",
    "DP zero2 bf16": "zero_2_bf16",
    "DP zero3/fsdp bf16": "fsdp_bf16",
    "DP zero3/fsdp bf16, fp32 reduce": "fsdp_bf16_reduce_fp32",
}


def model(row: Row) -> catalog.ModelShape:
    name = row["model"].lower().replace(" ", "-")
    return catalog.model({"gpt-3-175b": "gpt3-175b"}.get(name, name))


def number(row: Row, name: str) -> int:
    found = re.search(rf"\b{name}=(\d+)", row["config"])
    assert found, row
    return int(found[1])


def tokens(row: Row) -> int:
    return number(row, "s") * number(row, "b")


def bubble(of: str) -> Callable[[Row], float]:
    return lambda row: communication.pipeline_bubble(
        number(row, "p"), number(row, "m"), number(row, "v"), of=of
    )


def tensor_layer(row: Row) -> float:
    return communication.tensor_bytes(model(row), number(row, "t"), tokens(row)) / MIB


def tensor_model(*, sequence_parallel: bool) -> Callable[[Row], float]:
    def value(row: Row) -> float:
        shape = model(row)
        layer = communication.tensor_bytes(
            shape, number(row, "t"), tokens(row), sequence_parallel=sequence_parallel
        )
        return shape.num_layers * layer / GIB

    return value


def data(row: Row) -> float:
    parameters = parameter_count(model(row)).total
    return communication.data_bytes(parameters, number(row, "d"), DATA[row["kind"]]) / 1e9


def pipeline(row: Row) -> float:
    return communication.pipeline_bytes(model(row), tokens(row), tensor=number(row, "t")) / MIB


def ring(row: Row) -> float:
    return communication.context_ring_bytes(model(row), number(row, "c"), tokens(row)) / MIB


def ulysses(row: Row) -> float:
    return communication.context_all_to_all_bytes(model(row), number(row, "c"), tokens(row)) / MIB


def expert(row: Row) -> float:
    return communication.expert_bytes(model(row), number(row, "e"), tokens(row)) / MIB


KINDS: dict[str, Callable[[Row], float]] = {
    "pipeline bubble (of ideal)": bubble("ideal"),
    "pipeline bubble (of total)": bubble("total"),
    "TP all-reduce": tensor_layer,
    "TP all-reduce, all layers": tensor_model(sequence_parallel=False),
    "TP+SP incl. backward re-gather, all layers": tensor_model(sequence_parallel=True),
    **dict.fromkeys(DATA, data),
    "PP p2p": pipeline,
    "CP ring": ring,
    "CP all-to-all (Ulysses)": ulysses,
    "EP all-to-all": expert,
}


def test_every_golden_row_is_reproduced(shared: Path) -> None:
    with (shared / "facts" / "comm_golden.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) > 70
    wrong = [
        (row["kind"], row["model"], row["config"], row["value"], value)
        for row in rows
        if (value := KINDS[row["kind"]](row)) != pytest.approx(float(row["value"]), rel=1e-9)
    ]
    assert wrong == []


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
