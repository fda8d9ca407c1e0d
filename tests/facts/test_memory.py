"""The memory estimate: hand-checkable numbers, and what must hold whatever the sizes."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebook import store
from scalebook.facts import catalog, memory
from scalebook.facts.catalog import ModelShape
from scalebook.facts.feasibility.known import config_of
from scalebook.facts.flops import padded_vocab_size, parameter_count
from scalebook.facts.legality import fit
from scalebook.facts.memory import activations
from scalebook.facts.memory.activations import Workload
from scalebook.facts.memory.parameters import Count, layer_count, stage_count, stage_layers
from scalebook.measure.metrics.recorded import run_shape
from scalebook.parallelism import Parallelism, Recomputed

GIB = 2**30
ALONE = Parallelism(1)
GOLDEN = Path(__file__).parents[1] / "golden"
EXAMPLES = Path(__file__).parents[2] / "runs" / "examples"
SIZES = {"micro_batch_size": 1, "num_microbatches": 8, "sequence_length": 2048}
DENSE = ("llama3.1-8b", "qwen2.5-7b", "gpt3-6.7b", "qwen2.5-3b")
EXPERT = ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite")


def total(shape: ModelShape, parallelism: Parallelism, **changes: object) -> float:
    return memory.estimate(shape, parallelism, **(SIZES | changes)).total_gib


@pytest.mark.parametrize("name", [*DENSE, *EXPERT, "deepseek-v3", "gpt-oss-20b", "gemma2-9b"])
def test_one_rank_holds_exactly_the_models_parameters(name: str) -> None:
    shape = catalog.model(name)
    rows = padded_vocab_size(shape.vocab_size)
    count = stage_count(shape, Parallelism(1), 0)
    assert count.total == parameter_count(shape, rows).total


def test_a_module_for_a_further_token_is_held_by_the_last_stage_and_split_as_its_layer_is() -> None:
    shape = catalog.model("deepseek-v3")
    alone = stage_count(shape, Parallelism(1), 0, mtp_layers=1).total
    count = parameter_count(shape, padded_vocab_size(shape.vocab_size))
    assert alone == count.total + count.mtp
    split = Parallelism(8, pipeline_parallel_size=2, expert_parallel_size=4)
    first, last = (
        stage_count(shape, split, stage, mtp_layers=1).total
        - stage_count(shape, split, stage).total
        for stage in range(2)
    )
    experts = 256 * 3 * 7168 * 2048
    assert (first, last) == (0, count.mtp - experts + experts / 4)
    plain, more = (
        memory.estimate(shape, Parallelism(1), **SIZES, mtp_layers=modules).worst
        for modules in (0, 1)
    )
    assert more.logits == 2 * plain.logits
    assert (more.parameters - plain.parameters) * GIB == pytest.approx(2 * count.mtp)


def test_a_last_stage_of_its_own_size_leaves_the_others_equal_parts() -> None:
    shape = catalog.model("llama3.1-8b")
    split = Parallelism(4, pipeline_parallel_size=4, last_pipeline_stage_layers=5)
    layers = [stage_layers(shape, split, stage) for stage in range(4)]
    assert [len(chunk) for (chunk,) in layers] == [9, 9, 9, 5]
    assert [layer for (chunk,) in layers for layer in chunk] == list(range(32))
    whole = parameter_count(shape).total
    assert sum(stage_count(shape, split, stage).total for stage in range(4)) == whole


def test_the_last_of_two_stages_has_a_size_of_its_own_and_one_stage_has_none() -> None:
    shape = catalog.model("llama3.1-8b")
    two = Parallelism(2, pipeline_parallel_size=2, last_pipeline_stage_layers=5)
    assert [len(chunk) for stage in (0, 1) for chunk in stage_layers(shape, two, stage)] == [27, 5]
    assert stage_layers(shape, Parallelism(1), 0) == [list(range(32))]


def test_chunks_of_a_smaller_last_stage_go_round_the_stages() -> None:
    shape = catalog.model("llama3.1-8b")  # 32 layers
    split = Parallelism(
        4,
        pipeline_parallel_size=4,
        virtual_pipeline_parallel_size=2,
        last_pipeline_stage_layers=2,
    )
    chunks = [stage_layers(shape, split, stage) for stage in range(4)]
    assert chunks[0] == [[0, 1, 2, 3, 4], [16, 17, 18, 19, 20]]
    assert chunks[3] == [[15], [31]]
    assert sorted(n for stage in chunks for chunk in stage for n in chunk) == list(range(32))


def test_the_optimizers_step_needs_room_that_activations_left() -> None:
    # measured on one H100: 2 of Llama 3.1 8B's layers, 27.8 GiB with bf16 gradients and 30.7 with
    # an unfused optimizer; 8 layers, 52.1 and 57.3
    for layers, halves, unfused in ((2, 27.8, 30.7), (8, 52.1, 57.3)):
        shape = catalog.model(f"llama3.1-8b@{layers}")
        sizes = SIZES | {"cross_entropy": "fused"}
        split = Parallelism(1, data_parallel_sharding="optimizer")
        got = memory.estimate(shape, split, **sizes, gradient_precision="bf16").total_gib
        assert got == pytest.approx(halves, rel=0.02)
        got = memory.estimate(shape, split, **sizes, optimizer="unfused").total_gib
        assert got == pytest.approx(unfused, rel=0.02)
    # with activations above it the step needs nothing more
    parts = memory.estimate(shape, split, **(sizes | {"micro_batch_size": 16})).parts_gib()
    assert parts["update"] == 0
    assert parts["total"] == pytest.approx(sum(parts.values()) - parts["total"])


@pytest.mark.parametrize(
    ("precision", "gradients", "optimizer", "size"),
    [
        # Gradients kept in bf16 are copied where the optimizer wants fp32 ones: 4 bytes each.
        ("bf16", "bf16", "fused", 4), ("fp8", "bf16", "fused", 4), ("bf16", "fp32", "fused", 0),
        ("fp32", "bf16", "fused", 0), ("fp16", "bf16", "fused", 0),
        ("fp32", "bf16", "unfused", 4), ("bf16", "bf16", "unfused", 8),
    ],
)  # fmt: skip
def test_the_optimizers_step_holds_so_many_bytes_of_a_parameter_more(
    precision: str, gradients: str, optimizer: memory.OptimizerKernel, size: int
) -> None:
    shape = catalog.model("llama3.1-8b@2")
    sizes = SIZES | {"sequence_length": 8, "num_microbatches": 1}  # next to no activations
    stage = memory.estimate(
        shape, Parallelism(1), **sizes, precision=precision, gradient_precision=gradients,
        optimizer=optimizer,
    ).worst  # fmt: skip
    parameters = stage_count(shape, Parallelism(1), 0).total
    room = stage.backward if size else 0.0  # gradients of activations are gone by then
    assert (stage.update + room) * GIB == pytest.approx(size * parameters, rel=0.01)


def test_gradients_in_bf16_take_half_and_offloaded_layers_leave_one_on_its_way() -> None:
    shape = catalog.model("tiny-llama")  # 4 layers, an FFN of 384
    sizes = SIZES | {"sequence_length": 64, "recompute": "pointwise"}
    plain = memory.estimate(shape, Parallelism(1), **sizes).worst
    saved = memory.estimate(
        shape, Parallelism(1), **sizes, gradient_precision="bf16", offload_layers=3
    ).worst
    assert saved.gradients == plain.gradients / 2
    assert (plain.activations - saved.activations) * GIB == 2 * 64 * 2 * 2 * 384
    sharded = Parallelism(2, data_parallel_sharding="full")
    kept = [
        memory.estimate(shape, sharded, **sizes, gradient_precision=one).worst.gradients
        for one in ("fp32", "bf16")
    ]
    assert kept[0] == kept[1]


@pytest.mark.parametrize(
    ("run", "locked", "shared"),
    [
        # Bytes that torch.cuda.host_memory_stats named at a rank's end, GiB of its RssShmem.
        ("20261130-192628-mistral-7b-12-w2-d8aa85d22772", 5_369_135_117, 5.02),
        ("20261130-193046-qwen2.5-7b-8-w1-5e2021dd9778", 17_180_655_629, 16.02),
    ],
)
def test_offloaded_layers_take_the_host_memory_that_two_runs_had(
    run: str, locked: int, shared: float
) -> None:
    """10 times 448 MiB in places of 512, and 8 times 1.16 GiB in places of 2."""
    record = store.read_run(EXAMPLES / run, brief=True).record
    config, (shape, _) = config_of(record), run_shape(record)
    assert config is not None and shape is not None
    found = fit.estimate(config, shape).host_gib
    assert found * GIB == pytest.approx(locked, rel=1e-4)
    assert found == pytest.approx(shared, abs=0.03)
    kept = fit.estimate(config.model_copy(update={"offload_layers": 0}), shape)
    assert kept.host_gib == 0


def test_states_of_a_toy_model_are_18_bytes_a_parameter() -> None:
    shape = catalog.model("tiny-llama")
    # 4 layers of 128 (128 + 2 * 64) + 128 * 128 + 3 * 128 * 384 + 2 * 128; norm; 2 tables.
    parameters = 4 * (128 * 256 + 128 * 128 + 3 * 128 * 384 + 256) + 128 + 2 * 1024 * 128
    worst = memory.estimate(shape, Parallelism(1), **SIZES).worst
    assert worst.parameters * GIB == 2 * parameters
    assert worst.gradients * GIB == 4 * parameters
    assert worst.optimizer * GIB == 12 * parameters


def test_fsdp_holds_a_layer_and_the_output_layer_or_all_that_it_gathered() -> None:
    shape, sharded = catalog.model("tiny-llama"), Parallelism(2, data_parallel_sharding="full")
    layer = 128 * 256 + 128 * 128 + 3 * 128 * 384 + 256
    for gather, held in (("pass", layer + 1024 * 128), ("step", 4 * layer + 128 + 2 * 1024 * 128)):
        split = replace(sharded, parameter_gather=gather)
        worst = memory.estimate(shape, split, **SIZES).worst
        assert worst.gathered * GIB == 2 * held
    first = memory.estimate(shape, replace(sharded, pipeline_parallel_size=2), **SIZES).stages[0]
    assert first.gathered * GIB == 2 * 2 * layer


def test_the_fullest_moment_is_that_of_the_output_layer_or_of_the_layer_with_most_gradients() -> (
    None
):
    """By hand, tiny-llama (h 128, FFN 384, 4 layers, vocabulary of 1,024) in 16 bit."""
    shape, layer = catalog.model("tiny-llama"), 128 * 256 + 128 * 128 + 3 * 128 * 384 + 256

    def found(tokens: int, split: Parallelism = ALONE, **changes: object) -> float:
        sizes = SIZES | {"sequence_length": tokens} | changes
        return memory.estimate(shape, split, **sizes).stages[0].backward * GIB

    # the gradient of the hidden state and one of the output layer's size, beside the logits
    assert found(2048) == 2048 * 2 * 128 + 2 * 1024 * 128
    assert found(2048, precision="fp32") == 2048 * 4 * 128 + 4 * 1024 * 128
    # a stage without logits: of the hidden state, of gate and up; with few tokens, the hidden
    # state's input and output, and one of the size of gate and up, less the product of both
    staged = Parallelism(2, pipeline_parallel_size=2)
    assert found(2048, staged) == 2048 * 2 * (128 + 2 * 384)
    assert found(64, staged) == 64 * 2 * (2 * 128 - 384) + 2 * 2 * 128 * 384
    # a layer that is recomputed comes back after the logits are gone
    whole = 2048 * (2 * (4 * 128 + 2 * 128 + 2 * 64 + 3 * 384) + 4 * 8)
    expected = whole - 2048 * 2 * 128 + 2048 * 2 * (128 + 2 * 384)
    assert found(2048, staged, recompute="full") == expected
    assert found(2048, recompute="full", cross_entropy="fused") == expected - 2048 * 2 * 1024
    # FSDP has gathered two layers in the place of one and the output layer
    sharded = Parallelism(2, data_parallel_sharding="full")
    more = 2 * (2 * layer) - 2 * (layer + 1024 * 128)
    assert found(2048, sharded, recompute="full", cross_entropy="fused") == (
        expected - 2048 * 2 * 1024 + more
    )
    # with few tokens it holds most where a gradient is reduced: 8 bytes per weight of the output
    # layer, whose gathered weights and the next layer's are counted, or of a layer, with the next
    gathered, logits = 2 * (layer + 1024 * 128), 16 * 2 * 1024
    kept = 16 * (2 * (4 * 128 + 2 * 128 + 2 * 64 + 3 * 384) + 4 * 8)  # of the layer: gone by then
    few = {"cross_entropy": "fused"}
    assert found(16, sharded, **few) == 8 * layer + 2 * layer - kept - logits - gathered
    shape = replace(shape, vocab_size=4096)
    logits, gathered = 16 * 2 * 4096, 2 * (layer + 4096 * 128)
    assert found(16, sharded, **few) == 8 * 4096 * 128 - logits - gathered
    once = replace(sharded, parameter_gather="step")  # all weights stay gathered
    assert found(16, once, **few) == 8 * 4096 * 128 - logits


def test_layers_that_are_recomputed_come_back_when_those_above_are_gone() -> None:
    """Tiny-llama's first two layers of four: at the third layer's gradients they are inputs."""
    fields = SIZES | {"sequence_length": 2048, "cross_entropy": "fused"}
    shape = catalog.model("tiny-llama")
    part = memory.estimate(shape, ALONE, **fields, recompute=Recomputed("full", layers=2)).stages[0]
    none = memory.estimate(shape, ALONE, **fields).stages[0]
    assert part.backward == none.backward
    every = memory.estimate(shape, ALONE, **fields, recompute="full").stages[0]
    assert every.backward > none.backward


def test_the_gradients_of_experts_are_of_all_on_a_rank_and_of_each_copy_of_a_token() -> None:
    """By hand, Grok-1 on 4,096 tokens: 8 experts of 32,768, 2 a token, h 6,144."""
    shape, work = catalog.model("grok-1"), Workload(4096, 4096, 2, "fused")
    each, experts = 4096 * 2, 8 * 6144 * 32768
    found = activations.backward_bytes(shape, ALONE, work, 2.0, moe=True)
    assert found == each * (6144 + 2 * 6144 - 2 * 32768) + 2 * 2 * experts
    split = Parallelism(4, expert_parallel_size=4)
    spread = activations.backward_bytes(shape, split, work, 2.0, moe=True)
    # of 2 experts, the last product's: its input is not gone yet
    assert spread == each * (6144 + 2 * 6144 + 2 * 32768) + 2 * experts / 4
    assert activations.backward_bytes(shape, split, work, 0.0, moe=True) == each * (
        6144 + 2 * 2 * 32768
    )


def test_norms_of_queries_and_keys_keep_what_they_are_given() -> None:
    """Qwen3 8B by hand: a copy of 4,096 queries, and the product of 4,096 and 2 x 1,024."""
    shape, work = catalog.model("qwen3-8b"), Workload(1000, 1000, 2, "fused")
    plain = replace(shape, qk_norm=False)
    kept = [activations.layer_bytes(one, ALONE, work, moe=False) for one in (shape, plain)]
    assert kept[0] - kept[1] == 2000 * (2 * 4096 + 2 * 1024)


@pytest.mark.parametrize(
    ("name", "width"), [("llama3.1-8b", 2 * 1024), ("tiny-mla", 8 * (24 + 16))]
)
def test_context_parallel_ranks_keep_the_keys_and_values_of_all(name: str, width: int) -> None:
    shape, work = catalog.model(name), Workload(1000, 4000, 2, "fused")
    kept = [
        activations.layer_bytes(
            shape, Parallelism(many, context_parallel_size=many), work, moe=False
        )
        for many in (1, 4)
    ]
    assert kept[1] - kept[0] == 2000 * 3 * width


def test_committed_runs_allocated_what_is_predicted() -> None:
    """The others ran before options were recorded, or are a model of 0.2 GiB."""
    errors: list[float] = []
    for directory in store.run_directories(EXAMPLES):
        run = store.read_run(directory, brief=True)
        config, (shape, _) = config_of(run.record), run_shape(run.record)
        peak = max((step.allocated_gib or 0.0 for step in run.steps), default=0.0)
        if config is not None and shape is not None and peak:
            errors.append(abs(fit.estimate(config, shape).total_gib / peak - 1))
    assert len(errors) >= 230
    assert sum(error <= 0.01 for error in errors) >= 200
    assert sum(error <= 0.05 for error in errors) >= 224


def test_activations_of_a_toy_model_are_counted_tensor_by_tensor() -> None:
    shape = catalog.model("tiny-llama")
    worst = memory.estimate(shape, Parallelism(1), **(SIZES | {"sequence_length": 64})).worst
    # In 16 bit: 4 h for the norms, 2 q + 2 k for attention, 3 f for the gated MLP; 8 heads' fp32
    # log-sum-exp; the last norm.
    layer = 64 * (2 * (4 * 128 + 2 * 128 + 2 * 64 + 3 * 384) + 4 * 8)
    assert worst.activations * GIB == 4 * layer + 64 * 2 * 2 * 128
    assert worst.logits * GIB == 64 * 1024 * 6


def test_a_gpt_layer_is_korthikantis_less_its_dropout_masks_with_values_held_twice() -> None:
    """Keys that nothing rotates are a view of a product that holds the values as well."""
    shape = catalog.model("megatron-22b")
    assert shape.ffn_hidden_size == 4 * shape.hidden_size
    parallelism = Parallelism(8, 8, sequence_parallel=True)
    whole, less = (
        memory.estimate(replace(shape, num_layers=count), parallelism, **SIZES).worst.activations
        for count in (48, 47)
    )
    published = 34 * 2048 * shape.hidden_size / 8  # arXiv 2205.05198, section 4: 34 s b h / t
    masks = values = 2 * 2048 * shape.hidden_size / 8
    softmax = 4 * 2048 * shape.num_attention_heads / 8
    assert (whole - less) * GIB == pytest.approx(published - masks + values + softmax, rel=1e-6)
    rotated = replace(shape, num_layers=48, learned_positions=0)
    per_stage = memory.estimate(rotated, parallelism, **SIZES).worst.activations
    assert (whole - per_stage) * GIB == pytest.approx(48 * values)


def test_unfused_attention_keeps_the_scores_that_selective_recomputation_drops() -> None:
    shape = catalog.model("megatron-22b")
    kept = [
        total(shape, Parallelism(8, 8), attention=kernel, recompute=mode)
        for kernel, mode in (("unfused", "none"), ("unfused", "selective"), ("fused", "none"))
    ]
    assert kept[0] > kept[1] > kept[2]


def test_partial_recomputation_keeps_the_other_layers_whole() -> None:
    """Llama 3.1 8B by hand: a layer keeps 4 h, 2 q + 2 kv and 3 f elements a token, and 4 a bytes.

    The first 10 of 32 layers keep h each.
    """
    shape = catalog.model("llama3.1-8b")
    layer = 2048 * (2 * (4 * 4096 + 2 * (4096 + 1024) + 3 * 14336) + 4 * 32)
    inputs = 2048 * 2 * 4096
    expected = 10 * inputs + 22 * layer + 2 * inputs  # and the last norm
    sizes = SIZES | {"micro_batch_size": 1, "num_microbatches": 1, "sequence_length": 2048}
    found = memory.estimate(shape, Parallelism(1), **sizes, recompute=Recomputed("full", 10))
    assert found.worst.activations * GIB == pytest.approx(expected, rel=1e-9)
    stages = Parallelism(2, 1, 2)
    every, some = (
        memory.estimate(shape, stages, **sizes, recompute=Recomputed("full", many))
        for many in (16, 4)
    )
    whole = memory.estimate(shape, stages, **sizes, recompute="full")
    assert every == whole  # 16 layers a stage
    assert (some.stages[1].activations - every.stages[1].activations) * GIB == pytest.approx(
        12 * (layer - inputs), rel=1e-9
    )


def test_groups_of_layers_keep_one_input_and_come_back_together() -> None:
    """Llama 3.1 8B by hand, 8 groups of 4 layers: 8 inputs, and 4 layers but for one input.

    These come back when the logits, 6 bytes each, are gone, next to the gradients of an MLP.
    """
    shape = catalog.model("llama3.1-8b")
    layer = 2048 * (2 * (4 * 4096 + 2 * (4096 + 1024) + 3 * 14336) + 4 * 32)
    inputs = 2048 * 2 * 4096
    sizes = SIZES | {"num_microbatches": 1}
    found = memory.estimate(shape, Parallelism(1), **sizes, recompute=Recomputed("full", 0, 4))
    assert found.worst.activations * GIB == pytest.approx(10 * inputs, rel=1e-9)  # last norm
    gradients = 2048 * 2 * (4096 + 2 * 14336)
    head = 2048 * 2 * 4096 + 2 * 128256 * 4096
    expected = max(4 * layer - inputs + gradients - 2048 * 6 * 128256, head)
    assert found.worst.backward * GIB == pytest.approx(expected, rel=1e-9)


def saved(name: str, *modules: str, split: Parallelism = ALONE) -> float:
    """Bytes that recomputing modules saves at the fullest moment of one micro batch."""
    shape, sizes = catalog.model(name), SIZES | {"num_microbatches": 1}
    chosen = Recomputed("selective", modules=modules)
    plain, less = (
        memory.estimate(shape, split, **sizes, recompute=mode).worst.activations * GIB
        for mode in ("none", chosen)
    )
    return plain - less


def test_of_modules_that_come_back_at_different_times_the_larger_counts() -> None:
    """Llama 3.1 8B by hand, of a stage without logits: its norms and MLPs are recomputed."""
    shape, split = catalog.model("llama3.1-8b"), Parallelism(2, pipeline_parallel_size=2)
    backward = [
        memory.estimate(shape, split, **SIZES, recompute=Recomputed("selective", modules=names))
        .stages[0]
        .backward
        for names in ((), ("layernorm",), ("layernorm", "mlp"))
    ]
    norm, inside = 2 * 2048 * 4096, 2 * 2048 * 3 * 14336
    assert (backward[1] - backward[0]) * GIB == pytest.approx(norm)
    assert (backward[2] - backward[0]) * GIB == pytest.approx(inside + norm)


def test_recomputed_modules_keep_their_inputs() -> None:
    """DeepSeek-V3 by hand, 2,048 tokens in 16 bit: 3 dense layers, 58 with 256 experts."""
    two = 2 * 2048
    heads = 128 * (2 * 192 + 128)  # queries, keys and values; their output stays
    assert saved("deepseek-v3", "mla_up_proj") == pytest.approx(61 * two * heads)
    assert saved("deepseek-v3", "mlp") == pytest.approx(3 * two * 3 * 18432)
    assert saved("deepseek-v3", "shared_experts") == pytest.approx(58 * two * 3 * 2048)
    assert saved("deepseek-v3", "moe_act") == pytest.approx(58 * two * 8 * 2048)
    experts = 8 * (7168 + 3 * 2048) + 3 * 2048 + 2 * 256
    assert saved("deepseek-v3", "moe") == pytest.approx(58 * two * experts)
    both = saved("deepseek-v3", "moe", "shared_experts", "moe_act")
    assert both == pytest.approx(58 * two * experts)  # whose parts they are
    assert saved("deepseek-v3", "layernorm") == pytest.approx(2 * 61 * two * 7168)
    apart = saved("deepseek-v3", "mla_up_proj", "moe_act")
    assert apart == pytest.approx(two * (61 * heads + 58 * 8 * 2048))


def test_recomputed_modules_save_a_share_per_gpu_of_what_tensor_parallelism_splits() -> None:
    """DeepSeek-V3 on 4 GPUs, whose norms all 4 compute whole."""
    split, two = Parallelism(4, 4), 2 * 2048
    assert saved("deepseek-v3", "mlp", split=split) == pytest.approx(3 * two * 3 * 18432 / 4)
    shared = saved("deepseek-v3", "shared_experts", split=split)
    assert shared == pytest.approx(58 * two * 3 * 2048 / 4)
    heads = 128 * (2 * 192 + 128) / 4
    assert saved("deepseek-v3", "mla_up_proj", split=split) == pytest.approx(61 * two * heads)
    norms = saved("deepseek-v3", "layernorm", split=split)
    assert norms == pytest.approx(2 * 61 * two * 7168)
    both = replace(split, sequence_parallel=True)
    assert saved("deepseek-v3", "layernorm", split=both) == pytest.approx(norms / 4)


def test_a_module_that_a_layer_does_not_have_saves_nothing_of_it() -> None:
    shape, work = catalog.model("deepseek-v3"), Workload(2048, 2048, 2, "fused")
    split = Parallelism(1)
    for module, moe in (("mlp", True), ("moe", False), ("moe_act", False)):
        assert activations.module_bytes(shape, split, work, module, moe=moe) == (0.0, 0.0)
    assert activations.module_bytes(shape, split, work, "core_attn", moe=True)[1] == 0.0


def test_the_kernels_of_an_estimate_are_fused_but_for_what_is_off_or_not_on_a_cpu() -> None:
    off = {"fused_optimizer"}.__contains__
    names = ("attention", "optimizer", "cross_entropy")
    assert memory.kernels(off, "h100") == dict.fromkeys(names, "fused") | {"optimizer": "unfused"}
    assert memory.kernels(off, "cpu") == dict.fromkeys(names, "unfused") | {"attention": "fused"}


def test_selective_recomputation_of_nothing_saves_nothing() -> None:
    assert saved("deepseek-v3") == 0
    assert saved("llama3.1-8b", "moe", "moe_act", "shared_experts", "mla_up_proj") == 0


@pytest.mark.parametrize("row", list(csv.DictReader((GOLDEN / "recompute.csv").open())))
def test_measured_savings_of_modules_are_predicted(row: dict[str, str]) -> None:
    """Of a hybrid stack as a whole no memory is predicted; of its layers with experts it is."""
    shape, tokens = catalog.model(row["model"]), int(row["sequence_length"])
    assert shape.hybrid is not None
    assert shape.hybrid.pattern.count("E") == int(row["layers"])
    work = Workload(tokens, tokens, 2, "fused")
    split = Parallelism(16, expert_parallel_size=8)
    _, inside = activations.module_bytes(shape, split, work, row["module"], moe=True)
    assert int(row["layers"]) * inside / 1e9 == pytest.approx(float(row["saved_gb"]), rel=0.002)


def test_full_recomputation_keeps_the_input_of_each_layer_and_one_layer_whole() -> None:
    shape = catalog.model("llama3.1-8b")
    none, full = (
        memory.estimate(shape, Parallelism(8), **SIZES, recompute=mode).worst.activations
        for mode in ("none", "full")
    )
    inputs = 32 * 2048 * 4096 * 2 / GIB
    assert inputs < full < inputs + none / 30


def test_the_first_stage_of_a_pipeline_is_the_fullest_and_is_named() -> None:
    shape = catalog.model("llama3.1-70b")
    estimate = memory.estimate(shape, Parallelism(32, 4, 8, sequence_parallel=True), **SIZES)
    assert estimate.worst.stage == 0
    assert len(estimate.stages) == 8
    kept = [stage.activations for stage in estimate.stages[:-1]]
    assert kept == sorted(kept, reverse=True)


def test_logits_lie_on_the_last_stage_alone() -> None:
    shape = catalog.model("llama3.1-8b")
    stages = memory.estimate(shape, Parallelism(4, 1, 4), **SIZES).stages
    assert [stage.logits > 0 for stage in stages] == [False, False, False, True]


def test_interleaving_costs_the_published_share_of_activations() -> None:
    shape = replace(catalog.model("megatron-22b"), vocab_size=128)
    plain = Parallelism(4, 1, 4)
    kept = [
        memory.estimate(shape, replace(plain, virtual_pipeline_parallel_size=chunks), **SIZES)
        .stages[0]
        .activations
        for chunks in (1, 3)
    ]
    assert kept[1] / kept[0] == pytest.approx(1 + 3 / (4 * 3))


def test_tied_embeddings_are_held_twice_by_a_pipeline() -> None:
    shape = catalog.model("qwen2.5-3b")
    assert shape.tied_embeddings
    counts = [stage_count(shape, Parallelism(2, 1, 2), stage).total for stage in (0, 1)]
    rows = padded_vocab_size(shape.vocab_size)
    whole = parameter_count(shape, rows)
    assert sum(counts) == whole.total + whole.embedding


def test_fp32_states_are_16_bytes_and_fp16_states_20() -> None:
    shape = catalog.model("llama3.1-8b")
    parameters = stage_count(shape, Parallelism(1), 0).total
    for precision, size in (("fp32", 16), ("fp16", 20), ("bf16", 18)):
        worst = memory.estimate(shape, Parallelism(1), **SIZES, precision=precision).worst
        states = worst.parameters + worst.gradients + worst.optimizer
        assert states * GIB == pytest.approx(size * parameters)


@pytest.mark.parametrize(
    ("chunks", "batches", "held"),
    [
        (1, 8, [4, 3, 2, 1]), (1, 2, [2, 2, 2, 1]),
        # 2 (p - stage - 1) + (v - 1) p + 1, and never more than v chunks of each micro batch
        (2, 8, [11, 9, 7, 5]), (2, 4, [8, 8, 7, 5]),
    ],
)  # fmt: skip
def test_a_stage_holds_the_passes_that_its_schedule_has_in_flight(
    chunks: int, batches: int, held: list[int]
) -> None:
    split = Parallelism(4, pipeline_parallel_size=4, virtual_pipeline_parallel_size=chunks)
    assert [memory.chunks_in_flight(split, stage, batches) for stage in range(4)] == held


def test_chunks_of_several_sizes_are_kept_in_the_order_in_which_they_run() -> None:
    """By hand, 2 stages of 2 chunks, 3 layers on the last: of 3 and 2, then 2 and 1 layers.

    The first stage keeps 5 chunks: the first of them for two micro batches, the second for two, the
    first for one; after a backward pass of the second, the first for a fourth: 4 x 3 + 2.
    """
    split = Parallelism(
        2,
        pipeline_parallel_size=2,
        virtual_pipeline_parallel_size=2,
        last_pipeline_stage_layers=3,
    )
    shape = replace(catalog.model("tiny-llama"), num_layers=8)
    assert [len(chunk) for chunk in stage_layers(shape, split, 0)] == [3, 2]
    found = memory.estimate(shape, split, **SIZES).stages[0].activations
    one = memory.estimate(shape, ALONE, **SIZES).stages[0]
    fewer = memory.estimate(replace(shape, num_layers=7), ALONE, **SIZES).stages[0]
    assert found == pytest.approx(14 * (one.activations - fewer.activations))


def test_kept_tensors_of_fp32_take_twice_those_of_16_bit_but_the_softmaxs_own() -> None:
    """By hand: the softmax's 4 bytes a query and head are fp32 in every precision."""
    shape = catalog.model("tiny-llama")
    single, half = (
        memory.estimate(shape, Parallelism(1), **SIZES, precision=precision).worst
        for precision in ("fp32", "bf16")
    )
    softmax = shape.num_layers * 4 * shape.num_attention_heads * 2048 / GIB
    assert single.activations - softmax == pytest.approx(2 * (half.activations - softmax))
    assert single.logits * GIB == pytest.approx(4 * 2048 * 1024)
    assert half.logits * GIB == pytest.approx(6 * 2048 * 1024)


shapes = st.sampled_from([*DENSE, *EXPERT]).map(catalog.model)
powers = st.sampled_from([1, 2, 4])
booleans = st.booleans()
modes = st.sampled_from(["none", "selective", "full"])
shardings = st.sampled_from(["none", "optimizer", "full"])


@given(shapes, powers, powers, powers, booleans, modes, shardings)
def test_memory_never_rises_with_tensor_parallelism(
    shape: ModelShape, tensor: int, stages: int, data: int, sp: bool, mode: str, sharding: str
) -> None:
    totals = [
        total(
            shape,
            Parallelism(
                size * stages * data,
                size,
                stages,
                sequence_parallel=sp and size > 1,
                data_parallel_sharding=sharding,
            ),
            recompute=mode,
        )
        for size in (tensor, 2 * tensor)
    ]
    assert totals[1] <= totals[0]


@given(shapes, powers, powers, powers, modes, shardings)
def test_memory_never_rises_with_pipeline_stages(
    shape: ModelShape, tensor: int, stages: int, data: int, mode: str, sharding: str
) -> None:
    totals = [
        total(
            shape,
            Parallelism(tensor * size * data, tensor, size, data_parallel_sharding=sharding),
            recompute=mode,
        )
        for size in (stages, 2 * stages)
    ]
    assert totals[1] <= totals[0]


@given(shapes, powers, st.sampled_from([1, 2, 4, 8, 64]), modes)
def test_memory_never_rises_with_sharding_or_with_more_replicas(
    shape: ModelShape, tensor: int, data: int, mode: str
) -> None:
    totals = [
        total(
            shape,
            Parallelism(tensor * data, tensor, data_parallel_sharding=sharding),
            recompute=mode,
        )
        for sharding in ("none", "optimizer", "full")
    ]
    # FSDP gathers whole layers: with few replicas that can cost more than it shares out.
    assert totals[1] <= totals[0]
    if data >= 8:
        assert totals[2] <= totals[1]
    for sharding, before in zip(("none", "optimizer", "full"), totals, strict=True):
        wider = Parallelism(2 * tensor * data, tensor, data_parallel_sharding=sharding)
        if data > 1 or sharding != "full":
            assert total(shape, wider, recompute=mode) <= before


@given(shapes, powers, st.sampled_from([1, 2, 4]), modes)
def test_memory_never_rises_with_context_or_expert_parallelism_or_recomputation(
    shape: ModelShape, context: int, expert: int, mode: str
) -> None:
    base = Parallelism(8 * context, context_parallel_size=context)
    wide = Parallelism(16 * context, context_parallel_size=2 * context)
    assert total(shape, wide, recompute=mode) <= total(shape, base, recompute=mode)
    if shape.moe is not None:
        spread = [replace(base, expert_parallel_size=size) for size in (expert, 2 * expert)]
        assert total(shape, spread[1]) <= total(shape, spread[0])
    assert total(shape, base, recompute="full") <= total(shape, base, recompute="none")


@given(shapes, st.integers(1, 4), st.integers(1, 64))
def test_memory_grows_with_the_micro_batch_and_not_with_microbatches_beyond_the_stages(
    shape: ModelShape, micro: int, count: int
) -> None:
    parallelism = Parallelism(4, 1, 4)
    small, large = (total(shape, parallelism, micro_batch_size=size) for size in (micro, micro + 1))
    assert large > small
    many = total(shape, parallelism, num_microbatches=4 + count)
    assert many == total(shape, parallelism, num_microbatches=4)


# Worked by hand for tiny-mla: h 128, FFN 384, 8 heads of 16 + 8 (values 16), latents of 48 and 32,
# 16 experts of 64 (4 a token) and a shared one of 128. 10 tokens in 16 bit.
LATENT = catalog.model("tiny-mla")
PLAIN_MLP = replace(LATENT, gated_mlp=False)
WORK = Workload(10, 64, 2, "fused")
PAIR = Parallelism(4, 2, sequence_parallel=True, expert_tensor_parallel_size=3)
REPEATED = replace(PAIR, sequence_parallel=False)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        # Attention 4 heads (2 x 24 + 2 x 16) + (2 x 48 + 2 x 32 + 8) / 2 = 404; norms 4 x 128 / 2;
        # experts 4 (128 x 3 + 3 x 64) / 2 + 3 x 128 / 2 + 2 x 16 / 2; softmax 4 x 4 x 10.
        (
            activations.layer_bytes(LATENT, PAIR, WORK, moe=True),
            20 * (404 + 256 + 1152 + 192 + 16) + 160,
        ),
        (activations.layer_bytes(LATENT, PAIR, WORK, moe=False), 20 * (404 + 256 + 576) + 160),
        (
            activations.layer_bytes(LATENT, REPEATED, WORK, moe=True),
            20 * (320 + 168 + 512 + 2304 + 192 + 32) + 160,
        ),
        (
            activations.layer_bytes(PLAIN_MLP, PAIR, WORK, moe=True),
            20 * (404 + 256 + 1024 + 128 + 16) + 160,
        ),
        (activations.layer_bytes(PLAIN_MLP, PAIR, WORK, moe=False), 20 * (404 + 256 + 384) + 160),
        # One key-value group a rank where there are more ranks than groups: 2 x 16 + 2 x 16.
        (
            activations.layer_bytes(
                catalog.model("tiny-llama"), Parallelism(8, 8), WORK, moe=False
            ),
            20 * (64 + 512 + 3 * 384 / 8) + 4 * 10,
        ),
        (activations.softmax_bytes(LATENT, PAIR, replace(WORK, attention="unfused")), 12800),
        (activations.softmax_bytes(LATENT, PAIR, replace(WORK, element_bytes=4)), 160),
        (activations.pointwise_bytes(LATENT, PAIR, WORK, moe=True), 20 * 64),
        (activations.pointwise_bytes(LATENT, PAIR, WORK, moe=False), 20 * (2 * 64 + 192)),
        (activations.pointwise_bytes(LATENT, REPEATED, WORK, moe=False), 20 * (2 * 128 + 192)),
        (activations.pointwise_bytes(PLAIN_MLP, PAIR, WORK, moe=False), 20 * 2 * 64),
        (activations.gate_and_up_bytes(LATENT, PAIR, WORK), 20 * 384),
        (activations.checkpoint_bytes(LATENT, PAIR, WORK), 20 * 64),
        (activations.head_bytes(LATENT, PAIR, WORK), (2 * 20 * 64, 10 * 512 * 6)),
        (
            activations.head_bytes(LATENT, PAIR, replace(WORK, cross_entropy="fused")),
            (2 * 20 * 64, 10 * 512 * 2),
        ),
        (
            activations.head_bytes(LATENT, PAIR, replace(WORK, element_bytes=4)),
            (2 * 40 * 64, 10 * 512 * 4),
        ),
        (activations.further_token_bytes(LATENT, PAIR, WORK), 5 * 20 * 64),
    ],
)
def test_each_kept_tensor_is_counted_as_by_hand(found: object, expected: object) -> None:
    assert found == expected


# Up-projections 48 x 8 x 24 + 32 x 8 x 32 and the output 128 x 128; down 128 (48 + 32 + 8).
UP, DOWN, EXPERTS, SHARED = 9216 + 8192 + 16384, 11264, 16 * 3 * 128 * 64, 3 * 128 * 128
BIASED = replace(
    catalog.model("tiny-llama"),
    attention_bias="all",
    mlp_bias=True,
    qk_norm=True,
    normalization="layer",
)


@pytest.mark.parametrize(
    ("shape", "moe", "split", "whole", "experts"),
    [
        (LATENT, True, UP + SHARED, 256 + 2048 + DOWN + 80, EXPERTS),
        (
            replace(LATENT, normalization="layer"),
            True,
            UP + SHARED,
            512 + 2048 + DOWN + 160,
            EXPERTS,
        ),
        (LATENT, False, UP + 3 * 128 * 384, 256 + DOWN + 80, 0),
        # Biases of q, k, v and of gate and up are split; those of the outputs and norms are whole.
        (BIASED, False, 49152 + 256 + 147456 + 768, 512 + 128 + 128 + 64, 0),
        (
            replace(BIASED, qk_norm_full_width=True),
            False,
            49152 + 256 + 147456 + 768 + 2 * (128 + 64),
            512 + 128 + 128,
            0,
        ),
    ],
    ids=["latent", "latent, layer norm", "latent, dense", "biases", "wide norm of queries"],
)
def test_a_rank_holds_its_part_of_products_and_the_whole_of_what_is_repeated(
    shape: ModelShape, moe: bool, split: int, whole: int, experts: int
) -> None:
    parallelism = Parallelism(16, 2, expert_parallel_size=4, expert_tensor_parallel_size=2)
    count = layer_count(shape, parallelism, moe=moe)
    assert count == Count(split / 2 + whole, experts / 8, split / 2 + experts / 8)
    further = (
        stage_count(shape, parallelism, 0, mtp_layers=1).total
        - stage_count(shape, parallelism, 0).total
    )
    if moe or shape.moe is None:
        norms = 3 * 128 * (2 if shape.normalization == "layer" else 1)
        assert further == count.total + 2 * 128**2 / 2 + norms


def test_a_last_stage_may_hold_more_layers_than_the_others() -> None:
    shape = catalog.model("llama3.1-8b")
    split = Parallelism(4, pipeline_parallel_size=4, last_pipeline_stage_layers=14)
    assert [len(stage_layers(shape, split, stage)[0]) for stage in range(4)] == [6, 6, 6, 14]


@pytest.mark.parametrize(
    ("recipe", "bytes_per_token"),
    # Of Llama 3.1 8B: outputs of two norms (4,096 each) and of SwiGLU (14,336) in a byte instead of
    # two, the attention's output once more; an fp32 scale for 128 elements.
    [("delayed", 22528 - 4096), ("tensorwise", 22528), ("blockwise", 22528 * (1 - 4 / 128))],
)
def test_fp8_keeps_inputs_of_products_in_a_byte(recipe: str, bytes_per_token: float) -> None:
    shape = catalog.model("llama3.1-8b@8")
    plain, low = (
        memory.estimate(shape, ALONE, **SIZES, precision=name, fp8_recipe=recipe).worst.activations
        for name in ("bf16", "fp8")
    )
    assert (plain - low) * GIB == pytest.approx(8 * 2048 * bytes_per_token)


def test_fp8_keeps_routed_rows_in_a_byte_and_what_the_router_reads_in_two() -> None:
    """Mixtral, 2 of 8 experts per token: their rows and activations, and one norm's output."""
    shape = catalog.model("mixtral-8x7b@2")
    plain, low = (
        memory.estimate(shape, ALONE, **SIZES, precision=name, fp8_recipe="tensorwise")
        for name in ("bf16", "fp8")
    )
    saved = 2 * 2048 * (4096 + 2 * (4096 + 14336))
    assert (plain.worst.activations - low.worst.activations) * GIB == pytest.approx(saved)


@pytest.mark.parametrize(("precision", "copies"), [("fp8", 2), ("fp4", 0.5 + 0.5 + 2 / 16)])
def test_low_precision_adds_two_copies_of_each_linear_weight(precision: str, copies: float) -> None:
    """FP8 has a byte an element; FP4 half a byte, and an 8-bit scale for each 16 of them."""
    shape = catalog.model("tiny-llama")
    plain = memory.estimate(shape, Parallelism(1), **SIZES).worst
    low = memory.estimate(shape, Parallelism(1), **SIZES, precision=precision).worst
    linear = 4 * (49152 + 147456)
    assert (low.parameters - plain.parameters) * GIB == pytest.approx(copies * linear)
    same = {"parameters": 0, "activations": 0}
    assert replace(low, **same) == replace(plain, **same)
    # FP8 keeps inputs in a byte: both norms' outputs and the activation (h 128, f 384, 4 layers);
    # the delayed recipe keeps those of the attention's projection twice.
    saved = (2 * 128 + 384 - 128) * 4 * SIZES["micro_batch_size"] * SIZES["sequence_length"]
    saved *= precision == "fp8"
    assert (plain.activations - low.activations) * GIB == pytest.approx(saved)
    # kept in FP8 only, both copies take the two bytes of the weights
    only = memory.estimate(shape, ALONE, **SIZES, precision=precision, fp8_primary_weights=True)
    assert replace(only.worst, activations=0) == replace(plain, activations=0)


@pytest.mark.parametrize(
    ("world", "tensor", "expert", "inner", "dense_ranks", "expert_ranks"),
    [(16, 2, 4, 2, 8, 2), (16, 2, 16, 1, 8, 1), (8, 1, 2, 1, 8, 4)],
)
def test_optimizer_states_are_shared_out_among_the_ranks_that_hold_the_same_parameters(
    world: int, tensor: int, expert: int, inner: int, dense_ranks: int, expert_ranks: int
) -> None:
    split = Parallelism(
        world,
        tensor,
        context_parallel_size=2,
        expert_parallel_size=expert,
        expert_tensor_parallel_size=inner,
    )
    count = stage_count(LATENT, split, 0)
    worst = memory.estimate(LATENT, split, **SIZES).worst
    held = count.dense / dense_ranks + count.expert / expert_ranks
    assert worst.optimizer * GIB == pytest.approx(12 * held)
    assert worst.gradients * GIB == pytest.approx(4 * count.total)
    full = memory.estimate(LATENT, replace(split, data_parallel_sharding="full"), **SIZES).worst
    assert full.gradients * GIB == pytest.approx(4 * held)
    assert full.parameters * GIB == pytest.approx(4 * held)  # fp32, which the optimizer changes
    assert full.optimizer * GIB == pytest.approx(8 * held)


def test_fsdp_gathers_in_the_precision_of_the_run_on_one_rank_as_well() -> None:
    shape = catalog.model("tiny-llama")
    layer, head = 49152 + 147456 + 256, 1024 * 128
    for precision, size in (("bf16", 2), ("fp32", 4)):
        for ranks in (1, 2):
            split = Parallelism(ranks, data_parallel_sharding="full")
            worst = memory.estimate(shape, split, **SIZES, precision=precision).worst
            assert worst.gathered * GIB == (layer + head) * size


def test_each_module_for_a_further_token_keeps_a_layer_and_five_hidden_states() -> None:
    kept = [
        memory.estimate(LATENT, Parallelism(1), **SIZES, mtp_layers=modules).worst.activations
        for modules in (0, 1, 2)
    ]
    work = Workload(2048, 2048, 2, "fused")
    module = activations.layer_bytes(LATENT, Parallelism(1), work, moe=True) + 5 * 2048 * 2 * 128
    assert (kept[1] - kept[0]) * GIB == pytest.approx(module)
    assert (kept[2] - kept[0]) * GIB == pytest.approx(2 * module)


@given(shapes, powers, modes, shardings)
def test_the_parts_of_the_fullest_stage_add_up_to_its_total(
    shape: ModelShape, stages: int, mode: str, sharding: str
) -> None:
    split = Parallelism(4 * stages, 1, stages, data_parallel_sharding=sharding)
    found = memory.estimate(shape, split, **SIZES, recompute=mode)
    parts = found.parts_gib()
    whole = parts.pop("total")
    assert whole == pytest.approx(sum(parts.values()))
    assert whole == found.total_gib == max(stage.total for stage in found.stages)


def test_a_notebook_shows_each_part_in_gib_with_two_digits():
    found = memory.estimate(
        catalog.model("tiny-llama"), Parallelism(1), micro_batch_size=4, num_microbatches=2,
        sequence_length=128,
    )  # fmt: skip
    shown = found._repr_html_()
    assert shown.count("<tr>") == len(found.parts_gib()) == 9
    assert f"<td>{found.total_gib:,.2f} GiB</td>" in shown
