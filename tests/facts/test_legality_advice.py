"""What is advised instead of a configuration that is illegal or too large: cases worked by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from shapes import DENSE, SHAPES

from scalebook.config import RunConfig
from scalebook.facts import catalog, legality
from scalebook.facts.catalog.types import Accelerator, ModelShape
from scalebook.facts.legality import fit, neighbours
from scalebook.facts.legality.rules_model import tensor_sizes
from scalebook.facts.legality.untrained import untrained

H100 = catalog.accelerator("H100-SXM5-80GB")
A100 = catalog.accelerator("A100-SXM4-80GB")
LLAMA, MIXTRAL = catalog.model("llama3.1-8b"), catalog.model("mixtral-8x7b")


def config(**changes: Any) -> RunConfig:
    fields = {"platform": "h100", "model": "llama3.1-8b", "world_size": 8}
    fields |= {"global_batch_size": 128, "sequence_length": 2048}
    return RunConfig.from_parameters(fields | changes)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"fused_attention": "off"}, "activations"),  # the scores of every head are kept
        ({"fused_cross_entropy": "off"}, "logits"),  # so are the logits in fp32
        ({"fused_optimizer": "off"}, "update"),  # a step holds one more value per parameter
        ({"platform": "cpu"}, "logits"),
    ],
)
def test_what_is_not_fused_needs_more_of_its_own_part(changes: dict[str, Any], part: str):
    layout = {"data_parallel_sharding": "none"}
    fused = fit.estimate(config(**layout), LLAMA).parts_gib()
    plain = fit.estimate(config(**layout, **changes), LLAMA).parts_gib()
    assert [name for name in fused if plain[name] > fused[name]] == [part, "total"]
    assert [name for name in fused if plain[name] < fused[name]] == []


@pytest.mark.parametrize(
    ("length", "device", "fits", "advised"),
    [
        (2048, H100, True, False), (16384, H100, False, True), (16384, None, None, False),
        (16384, replace(H100, memory_gb=130), None, True),
    ],
)  # fmt: skip
def test_advice_is_for_a_known_device_that_a_run_does_not_surely_fit(
    length: int, device: Accelerator | None, fits: bool | None, advised: bool
):
    asked = config(sequence_length=length, global_batch_size=8)
    needed, found = legality.fitting(
        legality.Case(asked, LLAMA, accelerator=device, gpus_per_node=8)
    )
    assert needed == fit.estimate(asked, LLAMA)
    assert (found.fits, bool(found.advice)) == (fits, advised)
    assert len(found.advice) <= 4


def test_the_advice_is_every_mild_change_that_fits_inside_a_node():
    asked = config(
        world_size=16, nodes=2, tensor_parallel_size=4, sequence_parallel=True,
        sequence_length=65536, global_batch_size=4,
    )  # fmt: skip
    device = {"accelerator": H100, "gpus_per_node": 8}
    _, found = legality.fitting(legality.Case(asked, LLAMA, **device))
    expected = []
    for change in fit._single_changes(asked, LLAMA):
        one = asked.model_copy(update=change)
        legal = all(
            problem.severity == "warning" for problem in legality.check(legality.Case(one, LLAMA))
        )
        needed = fit.estimate(one, LLAMA).total_gib if legal else 999.0
        if needed <= 72 and one.tensor_parallel_size <= 8:  # nine tenths of 80 GB
            expected.append(fit.describe(asked, one, needed))
    assert list(found.advice) == expected[:4]
    assert len(expected) > 1


def test_sizes_that_are_there_already_are_multiplied():
    sizes = dict.fromkeys(
        [f"{one}_parallel_size" for one in ("tensor", "pipeline", "context", "expert")], 2
    )
    asked = config(model="mixtral-8x7b", world_size=16, **sizes, micro_batch_size=4)
    found = list(fit._single_changes(asked, MIXTRAL))
    assert [one["micro_batch_size"] for one in found if "micro_batch_size" in one] == [2]
    for name, factors in zip(
        sizes, ((2, 4, 8), (2, 4), (2, 4), (2, 4, 8, 16, 32, 64)), strict=True
    ):
        assert [one[name] for one in found if name in one] == [2 * factor for factor in factors]


@pytest.mark.parametrize(
    ("model", "tensor", "sequence", "found"),
    [
        ("llama3.1-8b", 2, True, {True, False}), ("llama3.1-8b", 2, False, {False}),
        ("llama3.1-8b", 1, True, {False}), ("mixtral-8x7b", 2, False, {True}),
        ("mixtral-8x7b", 2, True, {True}), ("mixtral-8x7b", 1, True, {False}),
    ],
)  # fmt: skip
def test_sequence_parallelism_goes_with_tensor_parallelism_and_must_with_experts(
    model: str, tensor: int, sequence: bool, found: set[bool]
):
    asked = config(model=model, sequence_parallel=sequence)
    change = {"world_size": 8, "tensor_parallel_size": tensor}
    change |= {"pipeline_parallel_size": 1, "context_parallel_size": 1}
    repaired = neighbours._repaired(legality.Case(asked, catalog.model(model)), change)
    assert {one.sequence_parallel for one in repaired} == found


def test_another_number_of_gpus_is_a_last_resort():
    asked = config(model="qwen2.5-7b", tensor_parallel_size=8)
    shape = catalog.model("qwen2.5-7b")

    def search(accepts: Any) -> set[int]:
        return {one.world_size for one in neighbours.search(legality.Case(asked, shape), accepts)}

    assert search(lambda one: True) == {8}
    assert search(lambda one: one.world_size != 8) == {16}


@pytest.mark.parametrize(
    ("nodes", "world", "room", "change"),
    [
        (2, 16, 8, {}), (1, 8, 8, {}), (3, 16, 8, {"nodes": 2}), (1, 24, 8, {"nodes": 3}),
        (1, 9, 8, {"nodes": 3}), (4, 16, None, {}), (3, 16, None, {"nodes": 1}),
    ],
)  # fmt: skip
def test_a_world_has_the_fewest_nodes_that_divide_and_hold_it(
    nodes: int, world: int, room: int | None, change: dict[str, int]
):
    assert neighbours._machine(config(nodes=nodes, world_size=48), world, room) == change


@pytest.mark.parametrize(
    ("wanted", "stages", "chunks"),
    [(3, 4, 4), (16, 4, 8), (2, 4, 2), (5, 32, 1), (5, 1, 1), (11, 2, 8), (12, 2, 16)],
)
def test_chunks_divide_the_layers_of_a_stage_and_are_nearest_in_doublings(
    wanted: int, stages: int, chunks: int
):
    asked = config(virtual_pipeline_parallel_size=wanted)
    assert neighbours._pipeline(asked, LLAMA, {"pipeline_parallel_size": stages}) == {
        "virtual_pipeline_parallel_size": chunks,  # of the 32 layers
        "last_pipeline_stage_layers": 0,
    }


@pytest.mark.parametrize(
    ("wanted", "chunks", "last"),
    [(7, 1, 8), (3, 1, 2), (4, 1, 5), (30, 1, 29), (2, 4, 5), (0, 4, 0)],
)
def test_the_nearest_last_stage_leaves_the_others_equal_parts(wanted: int, chunks: int, last: int):
    # of 32 layers the three others hold 3, 6, ... 27 together: 29, 26, ... 5 or 2 are left
    asked = config(virtual_pipeline_parallel_size=chunks, last_pipeline_stage_layers=wanted)
    found = neighbours._pipeline(asked, LLAMA, {"pipeline_parallel_size": 4})
    assert found["last_pipeline_stage_layers"] == last


def test_a_pipeline_that_only_its_last_stage_makes_legal_is_kept():
    # 32 layers do not divide by 5; 4 x 7 + 4 do
    asked = config(world_size=5, pipeline_parallel_size=5, last_pipeline_stage_layers=5)
    first = legality.nearest(legality.Case(asked, LLAMA))[0]
    assert legality.changes(asked, first) == {"last_pipeline_stage_layers": 4}


@pytest.mark.parametrize(
    ("wanted", "tensor", "stages", "world", "found"),
    [
        ((3, 2), 2, 1, 16, (4, 2)),  # 3 is 0.42 doublings from 4 and 0.58 from 2
        ((6, 1), 1, 1, 8, (8, 1)),
        ((6, 1), 1, 2, 8, (4, 1)),  # 4 ranks of a stage
        ((16, 1), 1, 1, 8, (8, 1)),
        ((1, 1), 2, 1, 16, (2, 1)),  # one expert rank takes the tensor size, or is two
        ((8, 3), 2, 1, 16, (8, 2)),  # 14,336 columns are not divided by 3
        ((2, 8), 8, 1, 8, (1, 8)),
        ((2, 1), 3, 1, 3, (1, 3)),  # none fits: as without expert parallelism
    ],
)
def test_experts_have_the_nearest_sizes_that_divide_them_and_their_ranks(
    wanted: tuple[int, int], tensor: int, stages: int, world: int, found: tuple[int, int]
):
    asked = config(expert_parallel_size=wanted[0], expert_tensor_parallel_size=wanted[1])
    change = {"world_size": world, "pipeline_parallel_size": stages, "tensor_parallel_size": tensor}
    names = ("expert_parallel_size", "expert_tensor_parallel_size")
    assert neighbours._experts(asked, MIXTRAL, change) == dict(zip(names, found, strict=True))
    assert neighbours._experts(asked, LLAMA, change) == dict.fromkeys(names, 1)


@pytest.mark.parametrize(
    ("changes", "device", "change"),
    [
        ({"precision": "fp8"}, A100, {"precision": "bf16"}), ({"precision": "fp8"}, H100, {}),
        ({"precision": "bf16"}, A100, {}), ({"precision": "fp8"}, None, {}),
        ({"precision": "fp8", "platform": "cpu"}, None, {"precision": "bf16"}),
        ({"precision": "bf16", "platform": "cpu"}, None, {}),
        ({"precision": "fp8"}, replace(A100, peak_tflops={"fp32": 1.0}), {"precision": "fp32"}),
        ({"precision": "fp8"}, replace(A100, peak_tflops={}), {"precision": "fp32"}),
    ],
)  # fmt: skip
def test_a_format_that_a_device_lacks_becomes_one_that_it_has(
    changes: dict[str, Any], device: Accelerator | None, change: dict[str, str]
):
    assert neighbours._format(config(**changes), device) == change


@pytest.mark.parametrize(
    ("length", "context", "tensor", "documents", "found"),
    [
        (100, 2, 3, 1, [100, 96, 108]),  # multiples of 2 x 2 and of 2 x 3
        (100, 2, 4, 1, [100, 96, 104]),  # a rank's half is a multiple of 4
        (102, 1, 4, 1, [102, 100, 104]), (103, 1, 1, 1, [103, 102, 104]),
        (104, 2, 4, 1, [104, 112]), (100, 1, 4, 3, [100, 96, 108]), (1, 2, 4, 1, [1, 8]),
        (4096, 1, 1, 1, [2048, 2050]),  # the positions that were learned
    ],
)  # fmt: skip
def test_lengths_are_the_asked_one_and_the_whole_ones_around_it(
    length: int, context: int, tensor: int, documents: int, found: list[int]
):
    asked = config(
        sequence_length=length, context_parallel_size=context, tensor_parallel_size=tensor,
        packed_documents=documents,
    )  # fmt: skip
    shape = catalog.model("gpt3-6.7b") if length == 4096 else LLAMA
    assert shape.learned_positions == (2048 if length == 4096 else 0)
    assert neighbours._lengths(asked, shape) == found


@pytest.mark.parametrize(
    ("batch", "micro", "stages", "chunks", "found"),
    [
        (128, 2, 1, 1, [{}]),
        # 8 replicas of 2 samples: 96 and 112 are whole; 104 / 8 = 13 leaves micro batches of 1
        (104, 2, 1, 1,
         [{"global_batch_size": 96}, {"global_batch_size": 112}, {"micro_batch_size": 1}]),
        (10, 2, 1, 1, [{"global_batch_size": 16}]),
        (120, 4, 1, 1,
         [{"global_batch_size": 96}, {"global_batch_size": 128}, {"micro_batch_size": 3}]),
        # 2 replicas of 4 stages: with chunks in rounds of 4 microbatches, else any number
        (36, 1, 4, 2, [{"global_batch_size": 32}, {"global_batch_size": 40}]),
        (36, 1, 4, 1, [{}]),
        (24, 2, 4, 2,
         [{"global_batch_size": 16}, {"global_batch_size": 32}, {"micro_batch_size": 1}]),
    ],
)  # fmt: skip
def test_a_batch_becomes_whole_microbatches_by_itself_or_by_their_size(
    batch: int, micro: int, stages: int, chunks: int, found: list[dict[str, int]]
):
    asked = config(
        global_batch_size=batch, micro_batch_size=micro, pipeline_parallel_size=stages,
        virtual_pipeline_parallel_size=chunks,
    )  # fmt: skip
    assert list(neighbours._batches(asked)) == found


@pytest.mark.parametrize(
    ("world", "found"), [(12, [12, 8, 16]), (8, [8, 16]), (4, [4, 8]), (16, [16, 24])]
)
def test_worlds_are_the_asked_one_and_the_multiples_of_a_replica_around_it(
    world: int, found: list[int]
):
    asked = config(world_size=world, tensor_parallel_size=4, pipeline_parallel_size=2)
    assert neighbours._worlds(asked) == found


@pytest.mark.parametrize("shape", SHAPES.values(), ids=lambda one: one.name)
@pytest.mark.parametrize(("world", "context"), [(1, 1), (8, 1), (8, 2), (12, 3), (24, 4)])
def test_splits_are_all_sizes_that_divide_the_model_and_the_world(
    shape: ModelShape, world: int, context: int
):
    sizes = range(1, 25)
    contexts = {1, context, 2 * context} | ({context // 2} if context > 1 else set())
    found = [
        tuple(change[f"{name}_parallel_size"] for name in ("tensor", "pipeline", "context"))
        for change in neighbours._splits(config(context_parallel_size=context), shape, world)
    ]
    assert len(found) == len(set(found))
    assert set(found) == {
        (tensor, stages, one)
        for tensor, stages, one in product(sizes, sizes, contexts)
        if tensor in tensor_sizes(shape)
        and shape.num_layers / stages in range(1, 99)
        and world / (tensor * stages * one) in range(1, 99)
    }


@pytest.mark.parametrize(
    ("steps", "changes"), [(5, [{"steps": 15}]), (6, []), (3, [{"steps": 15}])]
)
def test_a_run_without_measured_steps_gets_ten(steps: int, changes: list[dict[str, int]]):
    asked = config(steps=steps, warmup_steps=5)
    found = legality.nearest(legality.Case(asked, catalog.model(asked.model)))
    assert [legality.changes(asked, one) for one in found] == changes


def test_a_last_stage_is_offered_without_interleaving_where_no_size_leaves_a_layer_a_chunk():
    # 5 layers on 3 stages: 2, 2 and 1, or 1, 1 and 3: 2 chunks have no layer each in either.
    shape = replace(DENSE, num_layers=5)
    asked = config(
        model="dense", world_size=3, pipeline_parallel_size=3, virtual_pipeline_parallel_size=2,
        global_batch_size=12, sequence_length=64,
    )  # fmt: skip
    (found,) = [
        one.message for one in legality.check(legality.Case(asked, shape)) if one.rule == "layers"
    ]
    assert (
        "Use last_pipeline_stage_layers=1 with virtual_pipeline_parallel_size=1 (2 on the other "
        "stages). Or: " in found
    )


@pytest.mark.parametrize(("interval", "said"), [(49, []), (50, []), (51, ["checkpoint_interval"])])
def test_a_checkpoint_may_be_due_at_the_last_step(interval: int, said: list[str]):
    asked = config(steps=50, checkpoint_interval=interval)
    assert [one.rule for one in legality.check(legality.Case(asked, LLAMA))] == said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"checkpoint_interval": 10}, "checkpoint_interval=10 is not supported"),
        ({"load_checkpoint": "/x"}, "load_checkpoint='/x' is not supported"),
        ({}, ""),
    ],
)
def test_checkpoints_of_fsdp_are_refused(changes: dict[str, Any], said: str):
    for sharding, refused in (("full", bool(said)), ("optimizer", False), ("none", False)):
        asked = config(data_parallel_sharding=sharding, **changes)
        found = [
            one
            for one in legality.check(legality.Case(asked, LLAMA))
            if one.rule == "checkpoint_sharding"
        ]
        assert [one.severity for one in found] == ["error"] * refused
        assert all(one.message.startswith(said) for one in found)


def test_only_fsdp_gathers_weights_once_per_step():
    for sharding, refused in (("full", False), ("optimizer", True), ("none", True)):
        asked = config(data_parallel_sharding=sharding, parameter_gather="step")
        found = [
            one
            for one in legality.check(legality.Case(asked, LLAMA))
            if one.rule == "parameter_gather"
        ]
        assert [one.severity for one in found] == ["error"] * refused


@pytest.mark.parametrize(
    ("nodes", "tensor", "said"), [(1, 8, 0), (2, 8, 1), (2, 6, 0), (2, 4, 1), (2, 2, 0)]
)
def test_tensor_groups_cross_nodes_only_where_there_are_several(nodes: int, tensor: int, said: int):
    asked = config(world_size=12, nodes=nodes, tensor_parallel_size=tensor)
    rules = [one.rule for one in legality.check(legality.Case(asked, LLAMA))]
    assert rules.count("tensor_inside_node") == said


@pytest.mark.parametrize(
    ("tensor", "width", "said"), [(4, 96, "FFN width 96 / 4 = 24"), (4, 64, "")]
)
def test_fp8_needs_whole_blocks_of_what_one_rank_holds(tensor: int, width: int, said: str):
    shape = replace(
        DENSE, num_attention_heads=8, head_dim=16, hidden_size=64, ffn_hidden_size=width
    )
    asked = config(model="dense", precision="fp8", tensor_parallel_size=tensor, sequence_length=64)
    found = [
        one.message
        for one in legality.check(legality.Case(asked, shape))
        if one.rule == "quantised_shapes"
    ]
    assert len(found) == bool(said)
    assert all(one.startswith(said) for one in found)


@pytest.mark.parametrize(
    ("bias", "moe", "inner", "said"),
    [(True, True, 2, 1), (True, True, 1, 0), (False, True, 2, 0), (True, False, 2, 0)],
)
def test_experts_with_biases_are_not_split(bias: bool, moe: bool, inner: int, said: int):
    shape = replace(SHAPES["moe"] if moe else DENSE, mlp_bias=bias)
    asked = config(model=shape.name, expert_tensor_parallel_size=inner, sequence_length=64)
    found = [one for one in untrained(asked, shape) if "have biases" in one]
    assert len(found) == said


EVERY = {"global_batch_size": 288}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"world_size": 32, "nodes": 2},
         "world_size=32 on nodes=2 needs 16 devices per node; h100 has 8. Use nodes=4 or "
         "world_size=16."),
        ({"world_size": 9, "nodes": 2},
         "world_size=9 does not spread evenly over nodes=2. Use nodes=1, 3 or 9."),
        ({"world_size": 12, "nodes": 2, "tensor_parallel_size": 4},
         "tensor_parallel_size=4 crosses nodes of 6 processes: every layer's all-reduce uses the "
         "network. Use 1, 2, 3 or 6."),
        ({"world_size": 4, "pipeline_parallel_size": 4, "virtual_pipeline_parallel_size": 2,
          "global_batch_size": 18, "micro_batch_size": 3},
         "num_microbatches=6 is not a multiple of pipeline_parallel_size=4, as interleaving needs. "
         "Use a global_batch_size that is a multiple of 12, or virtual_pipeline_parallel_size=1."),
        ({"world_size": 4, "pipeline_parallel_size": 4, "last_pipeline_stage_layers": 6},
         "last_pipeline_stage_layers=6 does not leave the 3 other stages an equal part of the 32 "
         "layers of llama3.1-8b. Use 2, 5, 8, 11, 14, 17, 20, 23, 26 or 29."),
        ({"model": "mixtral-8x7b", "world_size": 6, "expert_parallel_size": 2,
          "expert_tensor_parallel_size": 3},
         "expert_tensor_parallel_size=3 does not divide the expert FFN width 14336 of "
         "mixtral-8x7b."),
        ({"precision": "fp8", "sequence_length": 2044, "micro_batch_size": 3},
         "6132 tokens per rank are not a multiple of 8, as fp8 needs. Change sequence_length."),
        ({"precision": "fp8", "sequence_length": 2044, "context_parallel_size": 2,
          "micro_batch_size": 2, "global_batch_size": 288},
         "2044 tokens per rank are not a multiple of 8, as fp8 needs. Change sequence_length."),
        ({"packed_documents": 2, "engine": "nemo"},
         "packed_documents=2 is not supported by engine 'nemo'. Use 1, or engine 'megatron'."),
        ({"sequence_length": 90, "packed_documents": 7},
         "packed_documents=7 does not divide sequence_length=90 into documents of equal length. "
         "Use 6 or 9."),
        ({"context_parallel_size": 2, "sequence_length": 2046, "packed_documents": 2},
         "sequence_length / packed_documents=1023 is not a multiple of 2 x context_parallel_size "
         "= 4: each rank holds two equal pieces of the sequence."),
        ({"recompute_layers": 3}, "recompute_layers=3 needs recompute='full', not 'none'. Use 0."),
    ],
)  # fmt: skip
def test_a_message_has_the_numbers_of_what_does_not_fit_and_of_what_would(
    changes: dict[str, Any], said: str
):
    asked = config(**EVERY | changes)
    found = legality.check(legality.Case(asked, catalog.model(asked.model), gpus_per_node=8))
    assert said in [one.message for one in found]


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ("dense", [1, 2, 4, 8]),  # 8 heads in 2 groups
        ("odd-groups", [1, 2, 4]),  # 12 in 4: 3 and 6 share no groups, 12 splits no 20 x 8
        ("odd-ffn", [1]),  # 12 in 3, and 88 columns
        ("moe", [1, 2, 4, 8]), ("shared", [1, 2]),  # a shared expert of 50 columns
    ],
)  # fmt: skip
def test_tensor_sizes_divide_heads_groups_and_columns(shape: str, sizes: list[int]):
    assert tensor_sizes(SHAPES[shape]) == sizes


@pytest.mark.parametrize(
    ("device", "known"), [(A100, "bf16 or fp16 or fp32"), (H100, "bf16 or fp16 or fp8 or fp32")]
)
def test_a_device_says_which_formats_it_has(device: Accelerator, known: str):
    found = legality.check(legality.Case(config(precision="fp4"), LLAMA, accelerator=device))
    said = f"precision=fp4 is not known for {device.name}. Use {known}."
    assert said in [one.message for one in found]


@pytest.mark.parametrize(
    ("norms", "wide", "said"),
    [(2, False, None), (4, False, "other norms per layer"), (2, True, "full-width query-key norms"),
     (1, True, "full-width query-key norms")],
)  # fmt: skip
def test_other_norms_than_two_of_a_layer_are_not_trained(norms: int, wide: bool, said: str | None):
    shape = replace(DENSE, norms_per_layer=norms, qk_norm_full_width=wide)
    found = list(untrained(config(model="dense"), shape))
    assert len(found) == (said is not None)
    assert all(one.startswith(f"dense has {said}, which engine") for one in found)


def test_whole_documents_are_for_any_engine():
    assert legality.check(legality.Case(config(engine="nemo"), LLAMA, gpus_per_node=8)) == ()


def test_the_smallest_changes_go_all_the_way():
    asked = config(micro_batch_size=2, recompute="full", recompute_layers=4)
    found = list(fit._single_changes(asked, LLAMA))
    assert {"micro_batch_size": 1} in found and {"recompute_layers": 0} in found
    done = config(micro_batch_size=1, recompute="full")
    changed = {name for one in fit._single_changes(done, LLAMA) for name in one}
    assert not changed & {"micro_batch_size", "recompute_layers"}


@pytest.mark.parametrize(
    ("sizes", "advice"),
    [
        ({"pipeline_parallel_size": 4, "last_pipeline_stage_layers": 3}, "Use 2, 5, 8, 11, "),
        (
            {
                "pipeline_parallel_size": 4, "last_pipeline_stage_layers": 3,
                "virtual_pipeline_parallel_size": 16,
            },
            "Use virtual_pipeline_parallel_size=1 and 2, 5, ",
        ),
        (
            {"pipeline_parallel_size": 40, "last_pipeline_stage_layers": 3, "world_size": 40},
            "Use pipeline_parallel_size=1, 2, 4, 8, 16 or 32 and 0.",
        ),
    ],
)  # fmt: skip
def test_a_last_stage_that_no_size_fits_is_told_what_to_change(sizes: dict[str, int], advice: str):
    problems = legality.check(legality.Case(config(**sizes), LLAMA))
    assert any(advice in one.message for one in problems if one.rule == "layers")
