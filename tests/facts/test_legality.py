"""Rules of legality: each with its message, and the nearest legal configurations."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shapes import DENSE, SHAPES

from scalebook.config import RunConfig
from scalebook.facts import catalog, legality
from scalebook.facts.catalog import ModelShape
from scalebook.facts.legality import Problem, fit, neighbours
from scalebook.facts.legality.fit import verdict
from scalebook.facts.legality.untrained import untrained

H100 = catalog.accelerator("H100-SXM5-80GB")
A100 = catalog.accelerator("A100-SXM4-80GB")


def config(model: str = "llama3.1-8b", **changes: Any) -> RunConfig:
    fields = {"world_size": 8, "global_batch_size": 128, "sequence_length": 2048}
    return RunConfig.from_parameters({"platform": "h100", "model": model} | fields | changes)


def problems(asked: RunConfig, shape: ModelShape | None = None, **device: Any) -> list[Problem]:
    return list(legality.check(legality.Case(asked, shape or catalog.model(asked.model), **device)))


def message(asked: RunConfig, shape: ModelShape | None = None, **device: Any) -> str:
    """The only error's message."""
    (error,) = [one for one in problems(asked, shape, **device) if one.severity == "error"]
    return error.message


def test_a_tensor_size_that_does_not_fit_the_heads_names_those_that_do() -> None:
    assert message(config("qwen2.5-7b", tensor_parallel_size=8)) == (
        "tensor_parallel_size=8 does not fit qwen2.5-7b (28 heads, 4 key-value groups). "
        "Use 1, 2 or 4."
    )


def test_a_world_that_the_split_does_not_divide_names_its_multiple() -> None:
    asked = config(tensor_parallel_size=4, pipeline_parallel_size=2, world_size=12)
    assert message(asked) == (
        "tensor 4 x pipeline 2 x context 1 does not divide world_size=12. "
        "world_size must be a multiple of 8."
    )


def test_a_batch_that_is_not_whole_microbatches_shows_the_product() -> None:
    assert message(config(micro_batch_size=2, global_batch_size=100)) == (
        "global_batch_size=100 is not a multiple of micro_batch_size x data_parallel_size = "
        "2 x 8 = 16."
    )


def test_documents_that_do_not_fill_a_sequence_name_the_numbers_that_do() -> None:
    asked = config(sequence_length=8192, packed_documents=3)
    assert message(asked) == (
        "packed_documents=3 does not divide sequence_length=8192 into documents of equal length. "
        "Use 2 or 4."
    )
    first = legality.nearest(legality.Case(asked, catalog.model(asked.model)))[0]
    assert legality.changes(asked, first) == {"packed_documents": 4}
    # Learned positions restart in each document.
    assert problems(config("gpt3-6.7b", sequence_length=4096, packed_documents=2)) == []


RULES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("sequence_parallel", "llama3.1-8b", {"sequence_parallel": True}),
    ("context_parallel", "llama3.1-8b", {"context_parallel_size": 2, "sequence_length": 2046}),
    (
        "sequence_parallel",
        "llama3.1-8b",
        {"tensor_parallel_size": 4, "sequence_parallel": True, "sequence_length": 2046},
    ),
    ("layers", "llama3.1-70b", {"world_size": 3, "pipeline_parallel_size": 3}),
    ("layers", "llama3.1-8b", {"last_pipeline_stage_layers": 4}),
    ("layers", "llama3.1-8b", {"pipeline_parallel_size": 4, "last_pipeline_stage_layers": 6}),
    (
        "layers",
        "llama3.1-8b",
        {"pipeline_parallel_size": 2, "virtual_pipeline_parallel_size": 3},
    ),
    ("virtual_pipeline", "llama3.1-8b", {"virtual_pipeline_parallel_size": 2}),
    (
        "virtual_pipeline",
        "llama3.1-8b",
        {
            "pipeline_parallel_size": 4,
            "virtual_pipeline_parallel_size": 2,
            "global_batch_size": 12,
        },
    ),
    ("experts", "llama3.1-8b", {"expert_parallel_size": 2}),
    ("experts", "llama3.1-8b", {"expert_tensor_parallel_size": 2}),
    ("experts", "llama3.1-8b", {"expert_balance": "forced"}),
    ("mtp_layers", "llama3.1-8b", {"mtp_layers": 1}),
    ("mtp_layers", "deepseek-v3", {"mtp_layers": 2}),
    ("experts", "mixtral-8x7b", {"expert_parallel_size": 3, "world_size": 9}),
    ("experts", "mixtral-8x7b", {"expert_parallel_size": 8, "world_size": 4}),
    ("experts", "mixtral-8x7b", {"tensor_parallel_size": 2, "expert_parallel_size": 2}),
    (
        "expert_gradients",
        "mixtral-8x7b",
        {"tensor_parallel_size": 2, "sequence_parallel": True},
    ),
    ("expert_gradients", "mixtral-8x7b", {"expert_tensor_parallel_size": 2}),
    ("sequence_length", "gpt3-6.7b", {"sequence_length": 4096}),
    ("recompute_layers", "llama3.1-8b", {"recompute_layers": 4}),
    ("recompute_layers", "llama3.1-8b", {"recompute_method": "uniform"}),
    (
        "recompute_layers",
        "llama3.1-8b",
        {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 3},
    ),
    ("recompute_modules", "llama3.1-8b", {"recompute_modules": "mlp"}),
    ("recompute_modules", "llama3.1-8b", {"recompute": "full", "recompute_modules": "mlp"}),
    *(
        ("recompute_modules", "llama3.1-8b", {"recompute": "selective", "recompute_modules": name})
        for name in ("moe_act", "mla_up_proj", "mlps")
    ),
    (
        "recompute_modules",
        "llama3.1-8b",
        {"recompute": "selective", "recompute_modules": "layernorm", "precision": "fp8"},
    ),
    ("packed_documents", "llama3.1-8b", {"packed_documents": 3}),
    ("packed_documents", "llama3.1-8b", {"packed_documents": 2, "engine": "nemo"}),
    ("context_parallel", "llama3.1-8b", {"packed_documents": 1024, "context_parallel_size": 2}),
    ("steps", "llama3.1-8b", {"steps": 5, "warmup_steps": 5}),
    ("nodes", "llama3.1-8b", {"nodes": 3}),
)


@pytest.mark.parametrize(("rule", "model", "changes"), RULES)
def test_each_rule_speaks_by_itself(rule: str, model: str, changes: dict[str, Any]) -> None:
    batch = {"global_batch_size": 9 * 3 * 4 * 8}
    found = problems(config(model, **(batch | changes)))
    assert [(one.rule, one.severity) for one in found] == [(rule, "error")]
    assert "\n" not in found[0].message


@pytest.mark.parametrize(
    ("last", "chunks", "most"),
    [(0, 1, 8), (0, 2, 4), (5, 1, 5), (5, 2, 2), (11, 1, 7)],  # (32 - 11) / 3 = 7 on the others
)
def test_full_recomputation_covers_at_most_the_smallest_stage(
    last: int, chunks: int, most: int
) -> None:
    asked = {"pipeline_parallel_size": 4, "last_pipeline_stage_layers": last, "recompute": "full"}
    asked |= {"virtual_pipeline_parallel_size": chunks, "global_batch_size": 32, "world_size": 4}
    assert problems(config("llama3.1-8b", **asked, recompute_layers=most)) == []
    (found,) = problems(config("llama3.1-8b", **asked, recompute_layers=most + 1))
    assert f"Use recompute_layers={most}, or 0" in found.message
    assert found.severity == "warning"  # megatron-core recomputes what there is


@pytest.mark.parametrize(
    ("last", "chunks", "groups"), [(0, 1, "1, 2, 4 or 8"), (0, 2, "1, 2 or 4"), (5, 2, "1")]
)
def test_groups_of_recomputed_layers_divide_every_stage(
    last: int, chunks: int, groups: str
) -> None:
    asked = {"pipeline_parallel_size": 4, "last_pipeline_stage_layers": last, "recompute": "full"}
    asked |= {"virtual_pipeline_parallel_size": chunks, "global_batch_size": 32, "world_size": 4}
    asked |= {"recompute_method": "uniform"}
    for size in groups.replace(" or", ",").split(","):
        assert problems(config("llama3.1-8b", **asked, recompute_layers=int(size))) == []
    (found,) = problems(config("llama3.1-8b", **asked, recompute_layers=3))
    assert found.message.endswith(f"Use {groups}.")


def test_modules_that_a_model_lacks_are_named_and_only_some_are_fatal() -> None:
    asked = {"recompute": "selective", "recompute_modules": "core_attn,moe,shared_experts"}
    found = problems(config("llama3.1-8b", **asked))
    assert [one.severity for one in found] == ["warning", "warning"]
    assert "no experts. Leave it out." in found[0].message
    whole = "core_attn,mla_up_proj,layernorm,mlp,moe,moe_act,shared_experts"
    everything = config("deepseek-v3", recompute="selective", recompute_modules=whole)
    assert not [one for one in problems(everything) if one.rule == "recompute_modules"]


def test_every_broken_rule_is_named_not_only_the_first() -> None:
    asked = config(
        "qwen2.5-7b",
        tensor_parallel_size=8,
        pipeline_parallel_size=3,
        sequence_length=2047,
        sequence_parallel=True,
    )
    rules = [one.rule for one in problems(asked)]
    assert rules == ["attention_heads", "sequence_parallel", "layers", "world_size"]


def test_key_value_groups_may_divide_the_tensor_size_from_0_16_on_and_that_is_said() -> None:
    shape = SHAPES["dense"]  # 8 heads, 2 groups
    (problem,) = problems(config("dense", tensor_parallel_size=4, sequence_length=64), shape)
    assert (problem.rule, problem.severity) == ("key_value_groups", "warning")


def test_repeated_groups_do_not_widen_a_projection_that_does_not_split() -> None:
    found = problems(
        config("odd-groups", tensor_parallel_size=12, world_size=12, global_batch_size=12),
        SHAPES["odd-groups"],
    )
    assert [one.rule for one in found if one.severity == "error"] == ["key_value_groups"]
    assert "12 + 2 x 4 heads of 8" in found[0].message


def test_a_device_without_the_format_is_a_problem() -> None:
    assert "fp8 is not known for A100-SXM4-80GB" in message(
        config(precision="fp8"), accelerator=A100
    )
    assert legality.is_legal(tuple(problems(config(precision="fp8"), accelerator=H100)))
    assert "fp4 is not known for H100" in message(config(precision="fp4"), accelerator=H100)
    cpu = config(platform="cpu", precision="fp8")
    assert "needs a GPU with Transformer Engine" in message(cpu)


def test_fp8_needs_dimensions_in_whole_blocks() -> None:
    shape = replace(DENSE, name="dense", hidden_size=72)
    assert "hidden_size 72 / 1 = 72 of dense is not a multiple of 16" in message(
        config("dense", precision="fp8", sequence_length=64), shape
    )


def test_a_tensor_group_across_nodes_is_a_warning() -> None:
    asked = config(world_size=12, nodes=2, tensor_parallel_size=4, global_batch_size=12)
    (problem,) = problems(asked, gpus_per_node=8)
    assert (problem.rule, problem.severity) == ("tensor_inside_node", "warning")


def test_more_processes_than_a_node_has_devices_are_refused() -> None:
    assert message(config(world_size=16), gpus_per_node=8) == (
        "world_size=16 on nodes=1 needs 16 devices per node; h100 has 8. Use nodes=2 or "
        "world_size=8."
    )


def test_a_short_pipeline_batch_is_a_warning_with_its_bubble() -> None:
    asked = config(pipeline_parallel_size=8, global_batch_size=1)
    (problem,) = problems(asked)
    assert problem.severity == "warning"
    assert "at least 88% of the step is idle" in problem.message


def test_a_sequence_beyond_rotary_positions_is_a_warning_alone() -> None:
    (problem,) = problems(config("llama2-7b", sequence_length=8192))
    assert (problem.rule, problem.severity) == ("sequence_length", "warning")


def test_the_nearest_configuration_changes_one_field() -> None:
    asked = config("qwen2.5-7b", tensor_parallel_size=8)
    found = legality.nearest(legality.Case(asked, catalog.model("qwen2.5-7b"), gpus_per_node=8))
    assert [legality.changes(asked, one) for one in found] == [
        {"tensor_parallel_size": 4},
        {"tensor_parallel_size": 2},
        {"tensor_parallel_size": 1},
    ]


def test_the_nearest_of_a_strategy_is_no_longer_called_by_its_name() -> None:
    asked = config("qwen2.5-7b", tensor_parallel_size=8, strategy="mine")
    found = legality.nearest(legality.Case(asked, catalog.model("qwen2.5-7b")))
    assert {one.strategy for one in found} == {"custom"}


def test_a_legal_configuration_has_no_neighbours() -> None:
    assert legality.nearest(legality.Case(config(), catalog.model("llama3.1-8b"))) == ()


sizes = st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12])
any_config = st.fixed_dictionaries(
    {
        "model": st.sampled_from(sorted(SHAPES)),
        "world_size": st.integers(1, 48),
        "nodes": st.integers(1, 3),
        "tensor_parallel_size": sizes,
        "pipeline_parallel_size": sizes,
        "virtual_pipeline_parallel_size": sizes,
        "context_parallel_size": sizes,
        "expert_parallel_size": sizes,
        "expert_tensor_parallel_size": sizes,
        "sequence_parallel": st.booleans(),
        "micro_batch_size": sizes,
        "global_batch_size": st.integers(1, 200),
        "sequence_length": st.integers(1, 128),
        "precision": st.sampled_from(["bf16", "fp32", "fp8"]),
        "warmup_steps": st.integers(0, 30),
    }
)


@given(any_config)
def test_neighbours_are_legal_and_exist_for_any_configuration(fields: dict[str, Any]) -> None:
    asked, shape = config(**fields), SHAPES[fields["model"]]
    device = {"accelerator": A100, "gpus_per_node": 8}
    if legality.is_legal(legality.check(legality.Case(asked, shape, **device))):
        return
    found = legality.nearest(legality.Case(asked, shape, **device))
    assert found
    for one in found:
        assert legality.is_legal(legality.check(legality.Case(one, shape, **device)))
        assert one.model == asked.model


@given(
    st.sampled_from([4, 6, 8, 12]),
    st.tuples(*[st.sampled_from([1, 2, 3, 4, 6])] * 3),
    st.integers(1, 3),
)
def test_legality_does_not_change_when_sizes_of_equal_dimensions_trade_places(
    size: int, split: tuple[int, int, int], data: int
) -> None:
    # As many layers as heads, groups and FFN columns, and twice as many tokens.
    shape = replace(
        DENSE,
        num_layers=size,
        num_attention_heads=size,
        num_query_groups=size,
        ffn_hidden_size=size,
    )
    world = split[0] * split[1] * split[2] * data
    verdicts = {
        legality.is_legal(
            legality.check(
                legality.Case(
                    config(
                        "dense",
                        world_size=world,
                        tensor_parallel_size=tensor,
                        pipeline_parallel_size=stages,
                        context_parallel_size=context,
                        global_batch_size=12 * data,
                        sequence_length=2 * size,
                    ),
                    shape,
                )
            )
        )
        for tensor, stages, context in permutations(split)
    }
    assert len(verdicts) == 1


def test_memory_is_judged_with_room_for_what_is_not_predicted() -> None:
    assert verdict(40, H100).fits is True
    assert verdict(79, H100).fits is None
    assert verdict(87, H100).fits is None  # predictions were up to 9.4 % too high
    assert verdict(89, H100).fits is False
    assert verdict(1, None).fits is None


def test_layers_that_stages_do_not_share_evenly_are_offered_a_last_stage_of_its_own() -> None:
    def message(model: str, world: int, **changes: object) -> str:
        asked = config(model, world_size=world, **changes)
        shape = catalog.model(model)
        found = [
            p.message for p in legality.check(legality.Case(asked, shape)) if p.rule == "layers"
        ]
        return found[0] if found else ""

    # 61 = 15 x 4 + 1; with 2 chunks none of the sizes is even on both sides: 61 is odd
    said = message("deepseek-v3", 16, pipeline_parallel_size=16)
    assert "this trainer splits evenly except for the last stage" in said
    assert "Use last_pipeline_stage_layers=1 (4 on the other stages)" in said
    # 94 = 3 x 24 + 22; a stage needs a layer for each chunk, not equal chunks
    more = {"pipeline_parallel_size": 4, "virtual_pipeline_parallel_size": 2}
    said = message("qwen3-235b-a22b", 4, **more)
    assert "Use last_pipeline_stage_layers=22 (24 on the other stages)" in said
    for last, legal in ((22, True), (16, True), (19, True), (1, False), (18, False)):
        found = message("qwen3-235b-a22b", 4, **more, last_pipeline_stage_layers=last)
        assert (found == "") is legal, (last, found)


def test_advice_for_a_run_that_does_not_fit_makes_it_fit() -> None:
    asked = config(sequence_length=16384, global_batch_size=8)
    shape = catalog.model("llama3.1-8b")
    _, found = legality.fitting(legality.Case(asked, shape, accelerator=H100, gpus_per_node=8))
    assert found.fits is False
    assert "tensor_parallel_size=4, sequence_parallel=true (40.9 GiB)" in found.advice


def test_a_model_too_large_for_its_gpus_is_advised_more_of_them() -> None:
    asked = config("llama3.1-70b", global_batch_size=128)
    shape = catalog.model("llama3.1-70b")
    _, found = legality.fitting(legality.Case(asked, shape, accelerator=H100, gpus_per_node=8))
    assert found.fits is False
    assert found.advice[0].startswith("world_size=")
    assert "tensor_parallel_size=32" not in found.advice[0]


def test_an_odd_head_cannot_turn() -> None:
    shape = replace(DENSE, name="dense", head_dim=7)
    assert "head_dim=7 of dense is odd" in message(config("dense", sequence_length=64), shape)


def test_heads_that_their_groups_do_not_divide_are_a_problem_of_the_model() -> None:
    shape = replace(DENSE, name="dense", num_query_groups=3)
    asked = config("dense", sequence_length=64)
    assert "8 heads, not a multiple of its 3 key-value groups" in message(asked, shape)
    assert legality.nearest(legality.Case(asked, shape)) == ()


def test_a_vocabulary_that_padding_inflates_is_a_warning() -> None:
    shape = replace(DENSE, name="dense", vocab_size=130)
    (problem,) = problems(config("dense", sequence_length=64), shape)
    assert (problem.rule, problem.severity) == ("vocabulary", "warning")
    said = "from 130 to 256 rows at tensor_parallel_size=1: 97% more work"  # 256 / 130 = 1.969
    assert said in problem.message


def broken(shape: ModelShape, asked: RunConfig) -> set[str]:
    """The model's rules that a configuration breaks, stated a second time."""
    tensor, stages, chunks = (
        asked.tensor_parallel_size,
        asked.pipeline_parallel_size,
        asked.virtual_pipeline_parallel_size,
    )
    context, length, last = (
        asked.context_parallel_size,
        asked.sequence_length,
        asked.last_pipeline_stage_layers,
    )
    groups, moe = shape.num_query_groups, shape.moe
    rules = set()
    if shape.num_attention_heads / tensor not in range(1, 99):
        rules.add("attention_heads")
    repeats = tensor / groups in range(2, 99)
    fused = (shape.num_attention_heads + 2 * groups) * shape.head_dim
    if groups / tensor not in range(1, 99):
        heads_fit = "attention_heads" not in rules
        if not repeats or (heads_fit and fused / tensor not in range(1, 9999)):
            rules.add("key_value_groups")
    widths = [] if moe and not moe.first_dense_layers else [shape.ffn_hidden_size]
    widths += [moe.shared_ffn_hidden_size] if moe else []
    if any(width / tensor not in range(9999) for width in widths):
        rules.add("ffn")
    if asked.sequence_parallel and tensor == 1:
        rules.add("sequence_parallel")
    if context > 1 and length / (2 * context) not in range(9999):
        rules.add("context_parallel")
    elif asked.sequence_parallel and length // context / tensor not in range(9999):
        rules.add("sequence_parallel")
    if last:
        others = (shape.num_layers - last) / (stages - 1) if stages > 1 else 0
        # Every stage holds at least one layer for each of its virtual chunks.
        if others not in range(1, 99) or min(last, others) < chunks:
            rules.add("layers")
    elif shape.num_layers / stages / (chunks if stages > 1 else 1) not in range(99):
        rules.add("layers")
    rules |= broken_by_experts(shape, asked)
    return rules


def broken_by_experts(shape: ModelShape, asked: RunConfig) -> set[str]:
    moe, tensor = shape.moe, asked.tensor_parallel_size
    size, inner = asked.expert_parallel_size, asked.expert_tensor_parallel_size
    if moe is None:
        return {"experts"} if size > 1 or inner > 1 else set()
    rules = set()
    ranks = asked.world_size / asked.pipeline_parallel_size
    if (
        moe.num_experts / size not in range(99)
        or moe.ffn_hidden_size / inner not in range(9999)
        or (ranks in range(999) and ranks / size / inner not in range(999))
        or (tensor > 1 and not asked.sequence_parallel)
    ):
        rules.add("experts")
    if size == 1 and inner != tensor:
        rules.add("expert_gradients")
    return rules


MODEL_RULES = {
    "attention_heads", "key_value_groups", "ffn", "sequence_parallel", "context_parallel",
    "layers", "experts", "expert_gradients",
}  # fmt: skip


@given(
    st.sampled_from([*SHAPES.values(), replace(SHAPES["moe"], moe=replace(
        SHAPES["moe"].moe, first_dense_layers=1))]),
    st.fixed_dictionaries(
        {
            "world_size": st.sampled_from([1, 2, 4, 6, 8, 12, 24]),
            "tensor_parallel_size": st.sampled_from([1, 2, 3, 4, 6, 8]),
            "pipeline_parallel_size": st.sampled_from([1, 2, 3, 4, 6]),
            "virtual_pipeline_parallel_size": st.sampled_from([1, 1, 2, 3]),
            "context_parallel_size": st.sampled_from([1, 2, 4]),
            "expert_parallel_size": st.sampled_from([1, 1, 2, 3, 4]),
            "expert_tensor_parallel_size": st.sampled_from([1, 1, 2, 4]),
            "sequence_parallel": st.booleans(),
            "sequence_length": st.sampled_from([12, 16, 24, 30, 64]),
            "last_pipeline_stage_layers": st.sampled_from([0, 0, 0, 1, 2, 3]),
        }
    ),
)  # fmt: skip
@settings(max_examples=400)
def test_the_rules_of_the_model_are_broken_exactly_where_something_does_not_divide(
    shape: ModelShape, fields: dict[str, Any]
) -> None:
    asked = config(**fields)
    found = {
        one.rule for one in problems(asked, shape)
        if one.severity == "error" and one.rule in MODEL_RULES
    }  # fmt: skip
    assert found == broken(shape, asked)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"context_parallel_size": 2, "sequence_length": 2046},
            "sequence_length=2046 is not a multiple of 2 x context_parallel_size = 4:",
        ),
        (
            {"tensor_parallel_size": 4, "sequence_parallel": True, "sequence_length": 2046},
            "sequence_length / context_parallel_size = 2046 is not a multiple of "
            "tensor_parallel_size=4",
        ),
        (
            {"pipeline_parallel_size": 2, "virtual_pipeline_parallel_size": 3},
            "Use virtual_pipeline_parallel_size=1, 2, 4, 8 or 16.",
        ),
        (
            {"pipeline_parallel_size": 4, "last_pipeline_stage_layers": 6},
            "does not leave the 3 other stages an equal part of the 32 layers",
        ),
        ({"model": "deepseek-v3", "mtp_layers": 2}, "than deepseek-v3 has. Use 0 or 1."),
        (
            {"model": "mixtral-8x7b", "expert_parallel_size": 8, "world_size": 4},
            "expert 8 x expert tensor 1 does not divide the 4 ranks of a pipeline stage",
        ),
        (
            {"model": "mixtral-8x7b", "expert_parallel_size": 3, "world_size": 9},
            "expert_parallel_size=3 does not divide the 8 experts of mixtral-8x7b. "
            "Use 1, 2, 4 or 8.",
        ),
    ],
)
def test_an_error_has_the_numbers_that_do_not_fit(changes: dict[str, Any], said: str) -> None:
    asked = config(**({"global_batch_size": 9 * 3 * 4 * 8} | changes))
    assert said in " ".join(one.message for one in problems(asked))


@pytest.mark.parametrize(
    ("needed", "fits"),
    [(72.0, True), (72.01, None), (88.0, None), (88.01, False)],
)
def test_a_run_is_said_to_fit_up_to_nine_tenths_and_not_to_fit_a_tenth_above_the_whole(
    needed: float, fits: bool | None
) -> None:
    found = verdict(needed, H100)
    assert (found.fits, found.capacity_gib) == (fits, 80)
    if fits is None:
        assert "nearly all measured runs are within 10% of the prediction" in found.reason


@pytest.mark.parametrize(("tensor", "warned"), [(4, False), (8, True), (16, True)])
def test_repeated_groups_are_warned_of_from_more_ranks_than_groups(
    tensor: int, warned: bool
) -> None:
    shape = replace(DENSE, num_attention_heads=16, num_query_groups=4, head_dim=16)
    asked = config(tensor_parallel_size=tensor, world_size=16, sequence_length=64)
    found = [one for one in problems(asked, shape) if one.rule == "key_value_groups"]
    assert [one.severity for one in found] == ["warning"] * warned


def test_the_single_changes_that_save_memory_are_all_tried_mildest_first() -> None:
    asked = config(tensor_parallel_size=2, micro_batch_size=6, data_parallel_sharding="none")
    found = list(fit._single_changes(asked, catalog.model("llama3.1-8b")))
    assert found == [
        {"sequence_parallel": True},
        {"data_parallel_sharding": "optimizer"},
        {"micro_batch_size": 3},
        *({"tensor_parallel_size": size, "sequence_parallel": True} for size in (4, 8, 16)),
        {"pipeline_parallel_size": 2},
        {"context_parallel_size": 2},
        {"pipeline_parallel_size": 4},
        {"context_parallel_size": 4},
        {"recompute": "pointwise"},
        {"recompute": "full"},
        {"recompute": "pointwise", "offload_layers": 16},
        {"gradient_precision": "bf16"},
        {"data_parallel_sharding": "full"},
    ]


def test_what_is_done_already_is_not_advised_again() -> None:
    asked = config(
        "mixtral-8x7b", tensor_parallel_size=2, sequence_parallel=True, recompute="full",
        gradient_precision="bf16", expert_tensor_parallel_size=2,
    )  # fmt: skip
    found = list(fit._single_changes(asked, catalog.model("mixtral-8x7b")))
    experts = [one["expert_parallel_size"] for one in found if "expert_parallel_size" in one]
    assert experts == [2, 4, 8, 16, 32, 64]
    changed = {name for one in found for name in one}
    assert not changed & {
        "micro_batch_size", "recompute", "gradient_precision", "data_parallel_sharding",
        "offload_layers",
    }  # fmt: skip
    assert {"sequence_parallel": True} not in found


FSDP = "data_parallel_sharding='full' (FSDP)"


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        ("tiny-llama", {}, []),
        ("tiny-llama", {"precision": "fp16"}, ["precision='fp16'"]),
        ("tiny-llama", {"data_parallel_sharding": "full"}, []),
        ("tiny-llama", {"data_parallel_sharding": "full", "pipeline_parallel_size": 2}, [FSDP]),
        ("tiny-moe", {"data_parallel_sharding": "full"}, [FSDP]),
        ("tiny-mla", {"mtp_layers": 1}, []),
        ("tiny-mla", {"mtp_layers": 1, "context_parallel_size": 2}, ["mtp_layers=1"]),
        ("tiny-mla", {"mtp_layers": 1, "pipeline_parallel_size": 2}, ["mtp_layers=1"]),
        ("tiny-llama", {"recompute": "pointwise"}, []),
        ("tiny-llama", {"layer_spec": "transformer_engine"}, []),
        (
            "tiny-llama",
            {"recompute": "pointwise", "layer_spec": "transformer_engine"},
            ["recompute='pointwise' is made for"],
        ),
        ("tiny-llama", {"recompute": "pointwise", "offload_layers": 4}, []),
        (
            "tiny-llama",
            {"recompute": "pointwise", "offload_layers": 5},
            ["offload_layers=5 needs as many layers (tiny-llama has 4). "],
        ),
        (
            "tiny-moe",
            {"offload_layers": 1, "pipeline_parallel_size": 2},
            [
                "offload_layers=1 needs recompute='pointwise' and no pipeline stages and a gated "
                "MLP without experts. "
            ],
        ),
    ],
)
def test_what_the_own_trainer_does_not_train_is_said(
    model: str, changes: dict[str, Any], said: list[str]
) -> None:
    found = list(untrained(config(model, **changes), catalog.model(model)))
    assert len(found) == len(said)
    assert all(sentence.startswith(start) for sentence, start in zip(found, said, strict=True))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 0.0),
        ({"tensor_parallel_size": 4}, 1 + 2 / 2),  # a factor of 4 is two doublings
        ({"world_size": 4}, 3 * (1 + 1 / 2)),
        ({"precision": "fp16"}, 2),
        ({"sequence_length": 4096}, 2 * 1.5),
        ({"steps": 40}, 0.5 * 1.5),
        ({"global_batch_size": 256, "micro_batch_size": 2}, 1.5 + 1.5),
        ({"virtual_pipeline_parallel_size": 2}, 0.5 * 1.5),
        ({"sequence_parallel": True}, 0.25),
        ({"world_size": 16, "nodes": 2}, 3 * 1.5 + 0.25 * 1.5),
        ({"last_pipeline_stage_layers": 3}, 1),  # from nothing: no factor
    ],
)
def test_a_distance_weighs_each_field_and_grows_with_its_factor(
    changes: dict[str, Any], expected: float
) -> None:
    asked = config()
    assert neighbours.distance(asked, asked.model_copy(update=changes)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        # 8 x 2 samples a microbatch: 96 and 112 are the whole ones around 100; 1 divides it too.
        ({"micro_batch_size": 2, "global_batch_size": 104},
         [{"micro_batch_size": 1}, {"global_batch_size": 96}, {"global_batch_size": 112}]),
        ({"steps": 5, "warmup_steps": 5}, [{"steps": 15}]),
        ({"nodes": 3}, [{"nodes": 1}]),
        ({"world_size": 24, "nodes": 2, "global_batch_size": 96}, [{"nodes": 3}]),
        ({"precision": "fp8"}, [{"precision": "bf16"}]),
        ({"context_parallel_size": 2, "sequence_length": 2046, "global_batch_size": 128},
         [{"context_parallel_size": 1}, {"sequence_length": 2044}, {"sequence_length": 2048}]),
        ({"pipeline_parallel_size": 2, "virtual_pipeline_parallel_size": 3},
         [{"virtual_pipeline_parallel_size": 4}]),
    ],
)  # fmt: skip
def test_the_nearest_are_the_smallest_repairs(
    changes: dict[str, Any], fields: list[dict[str, Any]]
) -> None:
    asked, shape = config(**changes), catalog.model("llama3.1-8b")
    found = legality.nearest(legality.Case(asked, shape, accelerator=A100, gpus_per_node=8))
    said = [legality.changes(asked, one) for one in found]
    for one in fields:
        assert one in said
