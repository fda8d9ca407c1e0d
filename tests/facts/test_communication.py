"""Communication volumes and bubbles: golden values by formula, and what must hold of them."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from scalebook.facts import catalog, communication
from scalebook.facts.flops import parameter_count
from scalebook.parallelism import Parallelism, Recomputed

Row = dict[str, str]
NOTHING = Recomputed()
GOLDEN = Path(__file__).parents[1] / "golden" / "communication.csv"
MIB, GIB = 2**20, 2**30


def rows() -> list[Row]:
    with GOLDEN.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def value(row: Row) -> float:
    """What the project says of a golden row, in the row's unit."""
    ranks, named = int(row["ranks"]), row["convention"]
    if row["quantity"] == "bubble":
        idle = communication.pipeline_bubble(ranks, int(row["microbatches"]), int(row["chunks"]))
        return idle / (1 - idle) if named == "ideal" else idle  # over busy time, or over all
    shape = catalog.model(row["model"])
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
    kept = estimate(replace(parallelism, parameter_gather="step"), num_microbatches=8)
    assert kept.data / many.data == pytest.approx((8 * 4 + 2) / (8 * (4 + 2 * 2)))


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


def test_an_estimate_is_the_sum_of_its_kinds_worked_by_hand() -> None:
    """tiny-llama (h 128, 4 layers, 4 groups of 16) over 2 x 2 x 2 x 2 ranks; 2 x 64 tokens."""
    split = Parallelism(16, 2, 2, context_parallel_size=2, sequence_parallel=True)
    shape = catalog.model("tiny-llama")
    sizes = {"micro_batch_size": 2, "num_microbatches": 3, "sequence_length": 64}
    found = communication.estimate(shape, split, **sizes)
    layers, own = 2, 2 * 64 / 2
    # Halves: 10 (t - 1) / t for sequence parallelism; the ring sends keys and values thrice.
    assert found.tensor == 3 * layers * 10 / 2 * own * 128 * 2
    assert found.pipeline == 3 * own * 128 * 2 / 2
    assert found.context == 3 * layers * 3 * 2 * own * 64 * 2 / 2
    assert found.expert == 0
    # 4 bytes of gradients and 2 of weights, for 3 of 4 parts; both stages hold a table of 1024
    # rows and 2 layers, the last one the last norm.
    layer = (128 * (128 + 64) * 2 + 3 * 128 * 384) / 2 + 256
    assert found.data == (4 + 2) * 3 / 4 * (2 * layer + 1024 * 128 / 2 + 128)
    assert found.bubble == 1 / (3 + 1)
    parts = (found.tensor, found.pipeline, found.context, found.expert, found.data)
    assert found.total == sum(parts)


@pytest.mark.parametrize(
    ("precision", "gradients", "sharding", "per_parameter"),
    [
        ("bf16", "fp32", "none", 2 * 4),
        ("bf16", "bf16", "none", 2 * 2),
        ("fp16", "fp32", "none", 2 * 2),
        ("fp32", "fp32", "none", 2 * 4),
        ("fp32", "bf16", "none", 2 * 4),
        ("bf16", "fp32", "optimizer", 4 + 2),
        ("fp32", "fp32", "optimizer", 4 + 4),
        ("bf16", "fp32", "full", 4 + 2 * 2),
        ("fp32", "fp32", "full", 4 + 2 * 4),
        ("fp16", "fp32", "full", 2 + 2 * 2),
    ],
)
def test_data_parallelism_moves_the_bytes_of_its_numbers(
    precision: str, gradients: str, sharding: str, per_parameter: int
) -> None:
    shape = catalog.model("tiny-llama")
    found = communication.estimate(
        shape,
        Parallelism(4, data_parallel_sharding=sharding),
        micro_batch_size=1,
        num_microbatches=1,
        sequence_length=64,
        precision=precision,
        gradient_precision=gradients,
    )
    assert found.data == per_parameter * 3 / 4 * parameter_count(shape).total


@pytest.mark.parametrize(
    ("stages", "chunks", "crossings"),
    [(1, 1, [0]), (2, 1, [1, 1]), (4, 1, [1, 2, 2, 1]), (2, 2, [3, 3])],
)
def test_a_stage_sends_activations_on_and_gradients_back(
    stages: int, chunks: int, crossings: list[int]
) -> None:
    """Only the ends of a pipeline have nobody to send one of the two to."""
    split = Parallelism(
        stages, pipeline_parallel_size=stages, virtual_pipeline_parallel_size=chunks
    )
    shape = catalog.model("tiny-llama")
    found = communication.estimate(
        shape, split, micro_batch_size=1, num_microbatches=5, sequence_length=64
    )
    assert found.pipeline == 5 * max(crossings) * 64 * 128 * 2
    sent = [
        communication._stage(shape, split, stage, (64, "bf16", NOTHING), (4, 5)).pipeline
        for stage in range(stages)
    ]
    assert sent == [count * 64 * 128 * 2 for count in crossings]


def test_experts_trade_tokens_and_their_gradients_go_to_those_who_hold_the_same() -> None:
    """tiny-moe: 4 layers of 8 experts (3 x 128 x 192), 2 a token; 64 tokens on each of 8 ranks."""
    shape = catalog.model("tiny-moe")
    sizes = {"micro_batch_size": 1, "num_microbatches": 2, "sequence_length": 64}
    experts = 4 * 8 * 3 * 128 * 192
    rest = parameter_count(shape).total - experts
    spread = communication.estimate(shape, Parallelism(8, expert_parallel_size=4), **sizes)
    assert spread.expert == 2 * 4 * 4 * 3 / 4 * 64 * 128 * 2 * 2
    assert spread.data == (4 + 2) * (7 / 8 * rest + 1 / 2 * experts / 4)
    # Two tensor-parallel ranks: each holds a half of every one of its experts, or half of them.
    for split, copies in (
        (Parallelism(8, 2, expert_parallel_size=4, expert_tensor_parallel_size=2), 1),
        (Parallelism(8, 2, expert_parallel_size=4), 2),
        (Parallelism(8, 2, expert_parallel_size=2), 4),
    ):
        held = experts / split.expert_parallel_size / split.expert_tensor_parallel_size
        whole = 4 * (256 + 128 * 8) + 128
        dense = (rest - whole) / 2 + whole
        found = communication.estimate(shape, split, **sizes)
        assert found.data == (4 + 2) * (3 / 4 * dense + (copies - 1) / copies * held)
    shared = Parallelism(8, 2, expert_parallel_size=4, sequence_parallel=True)
    assert communication.estimate(shape, shared, **sizes).expert == spread.expert / 2


RING = 2 * 64 / 2 * 64 * 2 / 2  # keys and values of half the tokens, once, on one of two tp ranks


@pytest.mark.parametrize(
    ("again", "tensor", "context", "expert"),
    [
        (NOTHING, 8, 3, 4),
        # ZeRO (arXiv 1910.02054, section 8): 12 b s h of a block whose forward pass runs again.
        (Recomputed("full"), 12, 4, 6),
        (Recomputed("full", layers=1), 10, 3.5, 5),  # of the two layers of each stage
        (Recomputed("selective", modules=("core_attn",)), 8, 4, 4),
        (Recomputed("selective", modules=("moe", "layernorm")), 8, 3, 6),
        (Recomputed("pointwise"), 8, 3, 4),
    ],
)
def test_what_runs_again_exchanges_again(
    again: Recomputed, tensor: float, context: float, expert: float
) -> None:
    """tiny-moe (h 128, 4 groups of 16, 2 experts a token), 64 tokens over 2 x 2 x 2 ranks and 2.

    Half of the tensor-parallel passes are the MLP's, which routed experts do not make. Half of a
    rank's rows go to the other expert rank, and all to the rank with the other half of an expert.
    """
    split = Parallelism(
        16, 2, 2, context_parallel_size=2, expert_parallel_size=2, expert_tensor_parallel_size=2
    )
    found = communication.estimate(
        catalog.model("tiny-moe"),
        split,
        micro_batch_size=1,
        num_microbatches=1,
        sequence_length=64,
        recompute=again,
    )
    own = 64 / 2 * 128 * 2
    assert found.tensor == 2 * tensor / 2 * own / 2
    assert found.context == 2 * context * RING
    assert found.expert == 2 * expert * own * 2 * (1 / 2 + 1)


def test_a_shared_expert_is_gathered_like_an_mlp_and_routed_ones_are_not() -> None:
    """Layers of 10 gathers and scatters of 64 x h, half of them around the MLP."""
    for name, passes in (("deepseek-v2-lite", 10), ("mixtral-8x7b", 5), ("llama3.1-8b", 10)):
        shape = catalog.model(name)
        sent = communication.tensor_bytes(shape, 2, 64, sequence_parallel=True, moe=True)
        assert sent == passes / 2 * 64 * shape.hidden_size * 2


def test_a_model_without_experts_trades_no_tokens() -> None:
    assert communication.expert_bytes(catalog.model("tiny-llama"), 8, 64) == 0


def test_a_pipeline_has_one_chunk_a_stage_by_default() -> None:
    assert communication.pipeline_bubble(4, 8) == communication.pipeline_bubble(4, 8, 1)
