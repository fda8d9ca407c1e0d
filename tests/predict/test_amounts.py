"""The work of a step, by hand: each kind at the figures of an H100 and the sizes of its model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from scalebook.config import RunConfig
from scalebook.facts import catalog
from scalebook.predict.amounts import Amounts, amounts
from scalebook.predict.kinds import KINDS, machine, unsure

H100 = machine(catalog.accelerator("H100-SXM5-80GB"), 8)
BANDWIDTH, LINK, NETWORK = 3.35e12, 450e9, 50e9  # bytes/s: memory, NVLink one way, 400 Gbit/s
PEAK = H100.flops("bf16")
TOKENS = 2 * 4096  # of a micro batch
# Llama 3.1 8B: matrices of a layer, of the output, and all of its parameters.
LAYER = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336
HEAD = 128256 * 4096


def words(tensor: int) -> int:
    """Return the rows of the vocabulary, which fill up 128 for each rank that shares them."""
    return -(-128256 // (128 * tensor)) * 128 * tensor


PARAMETERS = 32 * (LAYER + 2 * 4096) + 2 * HEAD + 4096
# The kinds that a step has once, whatever its number of micro batches.
ONCE = ("step", "optimizer", "data_exposed", "data_hidden", "waiting", "launch", "expert_launch")


def config(**fields: Any) -> RunConfig:
    base = {"platform": "h100", "model": "llama3.1-8b", "world_size": 1, "sequence_length": 4096}
    base |= {"micro_batch_size": 2, "global_batch_size": 2}
    return RunConfig(**(base | fields))


def work(**fields: Any) -> Amounts:
    asked = config(**fields)
    return amounts(asked, catalog.model(asked.model), H100)


def seconds(**fields: Any) -> dict[str, float]:
    return dict(work(**fields).seconds)


def believed(found: dict[str, float], without: Collection[str] = ()) -> float:
    return sum(KINDS[kind].slowness * value for kind, value in found.items() if kind not in without)


# Products and attention


@pytest.mark.parametrize(
    ("model", "modules", "forward"),
    [
        ("llama3.1-8b", "mlp", {"gemm": 32 * 3 * 4096 * 14336}),
        ("llama3.1-8b", "layernorm", {}),
        # per token 16 heads of 128 + 64 and 128 + 128, of a hidden state and 512 wide latents
        ("deepseek-v2-lite", "mla_up_proj", {"gemm": 27 * 16 * (2048 * 192 + 512 * 256)}),
        ("deepseek-v2-lite", "shared_experts", {"gemm": 26 * 3 * 2048 * 2 * 1408}),
        ("deepseek-v2-lite", "moe,mlp", {"gemm": 26 * 3 * 2048 * 2 * 1408 + 3 * 2048 * 10944}),
        ("deepseek-v2-lite", "moe_act", {}),
    ],
)
def test_recomputed_modules_add_their_forward_pass(
    model: str, modules: str, forward: dict[str, float]
) -> None:
    plain = seconds(model=model)
    again = seconds(model=model, recompute="selective", recompute_modules=modules)
    for kind in ("gemm", "attention"):
        added = 2 * TOKENS * forward.get(kind, 0) / PEAK
        assert again[kind] - plain[kind] == pytest.approx(added, abs=1e-12), kind
    routed = again.get("expert_gemm", 0) / plain.get("expert_gemm", 1)
    experts = 1 if "expert_gemm" in plain else 0
    assert routed == pytest.approx(4 / 3 if "moe," in modules else experts)
    light = modules in ("mlp", "layernorm", "moe,mlp", "moe_act")
    assert (again["elementwise"] > plain["elementwise"]) == light


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("modules", [1, 2])
def test_a_module_of_further_tokens_is_a_layer_a_joint_product_and_the_loss(
    modules: int, tensor: int
) -> None:
    """DeepSeek-V3 (arXiv 2412.19437, 2.2): its input is two hidden states, joined by a product."""
    size = {"world_size": tensor, "tensor_parallel_size": tensor, "global_batch_size": 6}
    plain, further = seconds(**size), seconds(**size, mtp_layers=modules)
    each = 6 * TOKENS * (LAYER + HEAD + 2 * 4096**2) / tensor
    assert further["gemm"] - plain["gemm"] == pytest.approx(3 * modules * each / PEAK)
    assert further["attention"] == pytest.approx((1 + modules / 32) * plain["attention"])


def test_products_of_a_plain_mlp_are_two_of_its_width_and_casts_to_fp8_four() -> None:
    """Nemotron-4 15B: 48 heads in 8 groups of 128, squared ReLU without a gate."""
    found = seconds(model="nemotron4-15b", precision="fp8", fp8_recipe="delayed")
    zeros = 1 - 0.05 * 4 / 6  # which are half of an operand of 4 of its 6 products
    layer = 6144 * (6144 + 2 * 1024) + 6144 * 6144 + zeros * 2 * 6144 * 24576
    assert found["gemm_fp8"] == pytest.approx(6 * TOKENS * 32 * layer / H100.flops("fp8"))
    width = 2 * 6144 + 4 * 6144 + 4 * 24576
    assert found["fp8_cast"] == pytest.approx(4 * TOKENS * 32 * width / BANDWIDTH)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
def test_products_run_at_the_peak_of_their_precision(precision: str) -> None:
    peak = catalog.accelerator("H100-SXM5-80GB").peak_tflops[precision] * 1e12
    found = seconds(precision=precision)
    attention = 6 * 2 * TOKENS * 4096 * 2048 * 32 / (peak if precision == "fp32" else PEAK)
    assert found["attention"] == pytest.approx(attention)
    layers = 6 * TOKENS * 32 * LAYER / peak
    head = 6 * TOKENS * HEAD / (peak if precision == "fp32" else PEAK)
    kind = "gemm_fp32" if precision == "fp32" else "gemm"  # which tensor cores do not compute
    assert found[kind] == pytest.approx(layers + head)


@pytest.mark.parametrize(
    ("fields", "factor"),
    [
        ({"recompute": "selective"}, 1 + 2 / 7),  # 2 of 7 products are those of the forward pass
        ({"recompute": "full"}, 1 + 2 / 7),
        ({"recompute": "pointwise"}, 1),
        ({"world_size": 2, "tensor_parallel_size": 2}, 1 / 2),
        ({"world_size": 2, "context_parallel_size": 2}, 1 / 2),
        ({"global_batch_size": 6}, 3),
    ],
)
def test_attention_is_recomputed_and_split_by_what_a_layout_says(
    fields: dict[str, Any], factor: float
) -> None:
    assert seconds(**fields)["attention"] == pytest.approx(factor * seconds()["attention"])


def test_products_write_their_results_in_two_bytes_each() -> None:
    """Per token of Llama 3.1 8B: what the products of a layer and of the output write, both ways.

    Forward queries, keys, values, attention, both halves of the MLP and its output; backward the
    gradients of what each product reads. What runs again writes again.
    """
    forward, backward = 4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096, 3 * 4096 + 14336
    each = 2 * TOKENS / BANDWIDTH
    found, head = seconds()["gemm_outputs"], 128256 + 4096
    assert found == pytest.approx(each * (32 * (forward + backward) + head))
    again = seconds(recompute="full")["gemm_outputs"]
    assert again - found == pytest.approx(each * 32 * forward)
    halves = seconds(world_size=2, tensor_parallel_size=2)["gemm_outputs"]
    whole = 2 * 4096 + 2 * 4096  # of the hidden state, which each rank writes in full
    cut = 32 * ((forward + backward - whole) / 2 + whole) + words(2) / 2 + 4096
    assert halves == pytest.approx(each * cut)


def test_latent_projections_write_what_they_make_of_latents() -> None:
    """DeepSeek-V2-Lite: latents of 512 and 64, 16 heads of 128 + 64 and 128, no query latents."""
    forward = 576 + 16 * (192 + 128 + 128) + 2048
    backward = 2 * 2048 + 512 + 16 * 128
    dense, shared = 2 * 10944 + 2048, 2 * 2 * 1408 + 2048  # of the first layer and the others
    ways = forward + backward + 2048
    head = 102400 + 2048
    layers = 27 * ways + dense + 10944 + 26 * (shared + 2 * 1408)
    found = seconds(model="deepseek-v2-lite")["gemm_outputs"]
    assert found == pytest.approx(2 * TOKENS / BANDWIDTH * (layers + head))


def test_heads_wider_than_128_take_longer_than_their_exponentials_say() -> None:
    """Gemma 2B: 8 heads of 256; 4.5 ms for a quarter of the products that take 14.3 ms at 128."""
    found = seconds(model="gemma-2b")["attention"]
    products = 12 * TOKENS * 2048 * 2048 * 18 / PEAK
    width = (1 + 38.125 / 256) / (1 + 38.125 / 128)
    measured = (4.5 / (14.3 / 4)) / width
    assert found == pytest.approx(measured * width * products, rel=0.002)


def test_narrow_heads_wait_for_their_exponentials() -> None:
    """16 exponentials and 4,270 FLOPs a clock: 2 of them take as long as a width of 38.125."""
    found = seconds(model="llama3.2-1b")["attention"]
    products = 12 * TOKENS * 2048 * 2048 * 16 / PEAK
    assert found == pytest.approx(products * (1 + 38.125 / 64) / (1 + 38.125 / 128))


def test_heads_of_80_take_nearly_as_long_as_heads_of_128() -> None:
    """GPT-3 2.7B: 32 layers of 32 heads. By cuDNN 1.1606 and 1.9768 ms, of 128 in the test."""
    found = seconds(
        model="gpt3-2.7b", sequence_length=2048, micro_batch_size=4, global_batch_size=4
    )
    flops = 12 * 32 * TOKENS * 32 * 128 * 1024
    measured = (1.1606 / 1.3435 + 1.9768 / 2.2188) / 2
    assert found["attention"] == pytest.approx(measured * flops / PEAK, rel=0.02)


def test_products_of_a_squared_relu_are_faster_where_half_of_an_operand_is_zero() -> None:
    """Nemotron 8B: 4 of the 6 products of its MLP, by 5 %; the others are as for any model."""
    mlp, others = 2 * 4096 * 16384 * (1 - 0.05 * 4 / 6), 4 * 4096**2
    flops = 6 * TOKENS * (32 * (mlp + others) + 4096 * 256000)
    assert seconds(model="nemotron-8b")["gemm"] == pytest.approx(flops / PEAK)


def test_every_other_layer_of_a_windowed_model_sees_its_window_only() -> None:
    """GPT-OSS 20B: 12 of 24 layers see 128 keys, the others 2,048 on average; heads of 64.

    The first 128 queries see half of a window: 126 on average. The trainer's kernel computes 128
    keys more, in 1.7 times the time.
    """
    for engine, inside in (("nemo", 128), ("megatron", 1.7 * (126 + 128))):
        found = seconds(model="gpt-oss-20b", engine=engine)["attention"]
        assert found == pytest.approx(gpt_oss(inside))


def test_under_a_mask_all_keys_are_computed_and_slowly() -> None:
    """Of runs before the kernel for windows: 4,096 keys, and 3.5 times the time for all layers."""
    asked = config(model="gpt-oss-20b")
    shape = catalog.model(asked.model)
    for ran in ({}, {"window_attention": "masked"}):
        found = amounts(asked, shape, H100, ran).seconds["attention"]
        assert found == pytest.approx(3.5 * gpt_oss(4096))
    fused = amounts(asked, shape, H100, {"window_attention": "fused"}).seconds
    assert fused["attention"] == seconds(model="gpt-oss-20b")["attention"]


def gpt_oss(inside: float) -> float:
    """Return seconds at the peak for 12 layers that see ``inside`` keys and 12 that see 2,048."""
    narrow = (1 + 38.125 / 64) / (1 + 38.125 / 128)
    return narrow * 12 * TOKENS * 64 * 64 * (12 * inside + 12 * 2048) / PEAK


def test_latent_attention_pays_for_two_widths_and_for_joining_its_parts() -> None:
    """DeepSeek-V2: 128 heads of 192 and 128; 1.28 times the time of a head of 160.

    Queries, keys and both gradients of 192, and one of 256, are read and written at a quarter of
    the bandwidth, two bytes each.
    """
    fields: dict[str, Any] = {"model": "deepseek-v2", "world_size": 8, "expert_parallel_size": 8,
                              "global_batch_size": 16}  # fmt: skip
    ours, vendors = seconds(**fields), seconds(**fields, engine="nemo")
    assert ours["attention"] == pytest.approx(1.28 * vendors["attention"])
    joined = 60 * TOKENS * 128 * (3 * 192 + 256) * 2 * 2 / BANDWIDTH
    assert ours["elementwise"] - vendors["elementwise"] == pytest.approx(4 * joined)


# Memory traffic


@pytest.mark.parametrize(
    ("recompute", "hidden", "rotary", "wide"),
    [("none", 22, 8, 8), ("selective", 22, 8, 8), ("full", 32, 12, 11), ("pointwise", 26, 8, 11)],
)
@pytest.mark.parametrize("parallel", [False, True])
def test_element_wise_kernels_move_two_bytes_for_each_access(
    recompute: str, hidden: int, rotary: int, wide: int, parallel: bool
) -> None:
    tensor = {"world_size": 4, "tensor_parallel_size": 4, "sequence_parallel": parallel}
    for fields, parts, share in (({}, 1, 1), (tensor, 4, 4 if parallel else 1)):
        found = seconds(recompute=recompute, **fields)["elementwise"]
        # Queries are turned where they are split: a read and a write less in each pass.
        turned = rotary * 40 - rotary / 2 * 32
        values = hidden * 4096 / share + (turned * 128 + wide * 14336) / parts
        logits = 8 * words(parts) / parts
        assert found == pytest.approx(TOKENS * (32 * 2 * values + logits) / BANDWIDTH)


ADDED = 2 * 3.7 / 1.4  # read and written at 1.4 TB/s instead of 3.7


@pytest.mark.parametrize(
    ("fields", "model", "values"),
    [
        # the gradients of queries, keys and values, of the projection, and of 4 and 1 in the MLP
        ({}, "gpt3-2.7b", 2560 * (3 + 1 + 4 + 1 + ADDED * 3)),
        ({"recompute": "full"}, "gpt3-2.7b", 2560 * (3 + 1 + 4 + 1 + 2 * ADDED * 3)),
        ({"tensor_parallel_size": 2, "world_size": 2}, "gpt3-2.7b",
         2560 * (7 / 2 + 2 + ADDED * 3 / 2)),
        ({"tensor_parallel_size": 2, "world_size": 2, "sequence_parallel": True}, "gpt3-2.7b",
         2560 * (9 + ADDED * 3) / 2),
        ({}, "qwen2.5-7b", (1 + ADDED) * (3584 + 2 * 4 * 128)),
        # its experts have their biases in a product
        ({}, "gpt-oss-20b", (1 + ADDED) * 64 * (64 + 2 * 8) + 2880),
        ({"layer_spec": "transformer_engine"}, "gpt3-2.7b", 0),
        ({"engine": "nemo"}, "gpt3-2.7b", 0),
    ],
)  # fmt: skip
def test_biases_are_added_and_their_gradients_summed_up_unless_products_do_it(
    fields: dict[str, Any], model: str, values: float
) -> None:
    asked = config(
        model=model, sequence_length=2048, micro_batch_size=4, global_batch_size=4, **fields
    )
    biased = catalog.model(model)
    plain = replace(biased, attention_bias="none", mlp_bias=False)
    more, less = (amounts(asked, one, H100).seconds["elementwise"] for one in (biased, plain))
    moved = 2 * biased.num_layers * TOKENS * values
    assert more - less == pytest.approx(moved / BANDWIDTH, rel=0.02, abs=1e-9)


@pytest.mark.parametrize(
    ("fields", "ran", "heads"),
    [
        ({}, {"rotary_embedding": "while_split"}, 0),
        ({}, {"rotary_embedding": None}, 32),
        ({"engine": "nemo"}, None, 32),
        ({"layer_spec": "transformer_engine"}, None, 32),
        ({"fused_rope": "off"}, None, 32),
    ],
)
def test_queries_are_copied_before_they_are_turned_unless_both_is_one_kernel(
    fields: dict[str, Any], ran: dict[str, Any] | None, heads: int
) -> None:
    asked = config(**fields)
    found = amounts(asked, catalog.model(asked.model), H100, ran).seconds["elementwise"]
    copied = 32 * 2 * 4 * heads * 128 * TOKENS / BANDWIDTH
    assert found - seconds()["elementwise"] == pytest.approx(copied)


def test_what_a_plain_mlp_recomputes_point_by_point_is_two_of_its_width() -> None:
    plain, again = (
        seconds(model="nemotron4-15b", recompute=one)["elementwise"]
        for one in ("none", "pointwise")
    )
    values = 4 * 6144 + 2 * 24576
    assert again - plain == pytest.approx(32 * 2 * TOKENS * values / BANDWIDTH)


@pytest.mark.parametrize(("ranks", "each"), [(1, 12), (2, 28)])
def test_routing_moves_rows_there_and_back_and_multiplies_in_fp32(ranks: int, each: int) -> None:
    """Mixtral: 2 of 8 experts per token.

    Per feature of a row, two gathers read and write 2 bytes each and two sums read them: 12. Where
    ranks exchange rows, four more gathers sort them. Sums write 4, and 24 are casts and a sum.
    """
    spread = {"world_size": ranks, "expert_parallel_size": ranks, "global_batch_size": 2 * ranks}
    found = seconds(model="mixtral-8x7b", **spread, expert_balance="forced")
    assert found["routing"] == pytest.approx(32 * TOKENS * (2 * each + 28) * 4096 / BANDWIDTH)
    peak = catalog.accelerator("H100-SXM5-80GB").peak_tflops["fp32"] * 1e12
    assert found["gemm_fp32"] == pytest.approx(32 * 6 * TOKENS * 4096 * 8 / peak)
    assert not {"routing", "gemm_fp32"} & set(seconds())


# Bytes of an option that is off, for a token or a parameter.
OFF = {
    "fused_norm": 32 * 60 * 4096 * TOKENS,
    "fused_rope": 32 * 20 * (32 + 8) * 128 * TOKENS,
    "fused_activation": 32 * 24 * 14336 * TOKENS,
    "fused_attention": 32 * 30 * 4096 * 32 * TOKENS,
    "fused_cross_entropy": 32 * 128256 * TOKENS,
    "fused_weight_gradient": 12 * PARAMETERS,
    "fused_optimizer": 40 * PARAMETERS,
}


@pytest.mark.parametrize("option", OFF)
def test_an_option_that_is_off_moves_more_bytes_in_each_micro_batch(option: str) -> None:
    times = 1 if option == "fused_optimizer" else 3
    found = seconds(global_batch_size=6, **{option: "off"})
    assert found[f"{option}_off"] == pytest.approx(times * OFF[option] / BANDWIDTH)
    assert [kind for kind in found if kind.endswith("_off")] == [f"{option}_off"]


@pytest.mark.parametrize("option", ["fused_rope", "fused_activation", "fused_attention"])
def test_ranks_of_tensor_parallelism_share_what_an_option_moves(option: str) -> None:
    for ranks in (2, 4):
        found = seconds(world_size=ranks, tensor_parallel_size=ranks, **{option: "off"})
        assert found[f"{option}_off"] == pytest.approx(OFF[option] / ranks / BANDWIDTH)


@pytest.mark.parametrize("sharding", ["none", "optimizer", "full"])
def test_an_unfused_optimizer_moves_forty_bytes_for_each_parameter_of_its_rank(
    sharding: str,
) -> None:
    found = seconds(world_size=2, global_batch_size=4, data_parallel_sharding=sharding,
                    fused_optimizer="off")  # fmt: skip
    own = PARAMETERS if sharding == "none" else PARAMETERS / 2
    assert found["fused_optimizer_off"] == pytest.approx(40 * own / BANDWIDTH)


@pytest.mark.parametrize(("gradients", "size"), [("fp32", 12), ("bf16", 8)])
def test_weights_are_read_and_gradients_added_in_each_micro_batch(
    gradients: str, size: int
) -> None:
    """Weights of 2 bytes are read forward and backward; the sum of gradients read and written."""
    found = seconds(global_batch_size=6, gradient_precision=gradients)
    assert found["gemm_traffic"] == pytest.approx(3 * size * PARAMETERS / BANDWIDTH)
    first = seconds(precision="fp8", fp8_primary_weights=True, gradient_precision=gradients)
    assert first["fp8_weights"] == pytest.approx(8 * PARAMETERS / BANDWIDTH)
    assert "fp8_weights" not in seconds(precision="fp8")


@pytest.mark.parametrize(("groups", "here"), [(4, 32), (8, 16)])
def test_gradients_of_more_than_sixteen_experts_are_made_first_and_added_then(
    groups: int, here: int
) -> None:
    """Qwen3 30B-A3B: 48 layers of 128 experts of 768; 2 bytes written and read, 8 of the sum."""
    fields = {"model": "qwen3-30b-a3b", "world_size": 8, "expert_parallel_size": groups}
    found = seconds(**fields, global_batch_size=48)
    experts = 48 * here * 3 * 2048 * 768
    dense = 48 * (2048 * (2 * 4096 + 2 * 4 * 128) + 128 * 2048) + 2 * 151936 * 2048
    alike = pytest.approx(3 * (12 * dense + (6 if here > 16 else 12) * experts) / BANDWIDTH, 1e-3)
    assert found["gemm_traffic"] == alike  # the product writes 2 bytes, not 8 of the sum
    if here > 16:
        assert found["expert_gradients"] == pytest.approx(3 * 10 * experts / BANDWIDTH)
    else:
        assert "expert_gradients" not in found


# The host


@pytest.mark.parametrize(("stages", "layers"), [(1, 4), (2, 2)])
def test_a_cpu_takes_its_calls_for_each_layer_of_its_longest_stage(
    stages: int, layers: int
) -> None:
    asked = config(platform="cpu", model="tiny-llama", world_size=stages, sequence_length=128,
                   pipeline_parallel_size=stages, global_batch_size=6, precision="fp32",
                   fused_norm="off")  # fmt: skip
    found = amounts(asked, catalog.model("tiny-llama"), machine(None, 8)).seconds
    bubble = stages - 1  # the other stage launches one micro batch while the pipeline fills
    assert found["launch"] == pytest.approx((3 + bubble) * layers * 0.0036)
    assert not any(kind.endswith("_off") for kind in found)  # of a CPU's there is no count


LAUNCH = 0.0020 - 2 * 108e-6  # of a layer whose norms are torch's


def busy(found: dict[str, float]) -> float:
    """Return seconds of layers and the output layer that hide launches."""
    kinds = ("gemm", "gemm_outputs", "attention", "elementwise", "kernels")
    return sum(KINDS[kind].slowness * found[kind] for kind in kinds)


def test_norms_and_positions_of_torch_take_the_host_less_than_compiled_ones() -> None:
    """GPT-3 2.7B: 32 layers with two LayerNorms and no rotary embedding of queries and keys."""
    found = seconds(model="gpt3-2.7b", micro_batch_size=1, sequence_length=64, cuda_graph="off")
    each = 0.0020 - 2 * 108e-6 - 2 * 85e-6
    assert found["launch"] + busy(found) == pytest.approx(2 * 2 * 32 * each)


@pytest.mark.parametrize(("kernel", "less"), [("torch", 2 * 108e-6), ("compiled", 0), (None, 0)])
def test_norms_of_a_run_are_launched_as_it_observed_them(kernel: str | None, less: float) -> None:
    """Older runs, whose norms were compiled, do not name the kernel."""
    asked = config(micro_batch_size=1, sequence_length=64, cuda_graph="off")
    ran = {"norm_kernel": kernel, "rotary_embedding": "while_split"}
    found = dict(amounts(asked, catalog.model(asked.model), H100, ran).seconds)
    assert found["launch"] + busy(found) == pytest.approx(2 * 2 * 32 * (0.0020 - less))


@pytest.mark.parametrize(("engine", "each"), [("megatron", LAUNCH), ("nemo", 0.0007)])
def test_a_vendors_engine_has_fewer_kernels_to_launch(engine: str, each: float) -> None:
    found = seconds(micro_batch_size=1, sequence_length=64, engine=engine, cuda_graph="off")
    assert found["launch"] + busy(found) == pytest.approx(2 * 2 * 32 * each)


def test_a_backward_pass_waits_for_its_launches_only_where_they_take_longer() -> None:
    """By hand: of 512 tokens forward passes wait, 1.8 ms for a layer less a third of its work."""
    fields = {"micro_batch_size": 1, "cuda_graph": "off", "model": "llama3.1-8b@8"}
    found = seconds(**fields, sequence_length=1344)
    head = 1.40 * 6 * 128256 * 4096 / PEAK + 1.25 * 8 * 128256 / BANDWIDTH
    head += 2 * (128256 + 4096) / BANDWIDTH  # what both its products write
    forward = (busy(found) - 2 * 1344 * head) / 3
    assert found["launch"] + forward == pytest.approx(2 * 8 * LAUNCH)
    assert 2 * forward > 2 * 8 * LAUNCH - 2 * 1344 * head > 0


@pytest.mark.parametrize(
    ("ran", "chunks", "engine", "waits"),
    [
        (None, 1, "megatron", False),
        ({"pipeline_transfers": "queued"}, 1, "megatron", False),
        ({}, 1, "megatron", True),
        (None, 2, "megatron", True),
        (None, 2, "nemo", False),  # 0.7 ms for each
    ],
)
def test_passes_of_a_pipeline_hide_each_others_launches_where_no_transfer_waits(
    ran: dict[str, Any] | None, chunks: int, engine: str, waits: bool
) -> None:
    """By hand: 4 layers of a stage launch for 7.1 ms forward, and again backward.

    Their products of 2,048 tokens take 15.2 ms, and some 3 ms the rest: a third is less than 7 ms.
    """
    products = 4 * 6 * 2048 * LAYER * 1.40 / PEAK
    assert products == pytest.approx(0.0152, abs=1e-4)
    asked = config(model="llama3.1-8b@8", world_size=2, pipeline_parallel_size=2, engine=engine,
                   virtual_pipeline_parallel_size=chunks, micro_batch_size=1, cuda_graph="off",
                   sequence_length=2048)  # fmt: skip
    found = amounts(asked, catalog.model(asked.model), H100, ran).seconds
    assert ("launch" in found) == waits


@pytest.mark.parametrize(
    ("model", "more", "count"),
    [
        ("llama3.1-8b", {}, 12 + 20),  # 4 products, 2 norms, 2 turned, 2 sums, 2 others; backward
        ("llama3.1-8b", {"micro_batch_size": 1, "sequence_length": 64}, 12 + 20),
        ("llama3.1-8b", {"recompute": "full"}, 12 + 12 + 20),
        ("qwen3-8b@32", {}, 12 + 20 + 2 + 4),  # norms of queries and keys: two kernels backward
        ("gpt3-2.7b", {}, 12 + 20 - 4),  # nothing is turned
        ("llama3.1-8b", {"engine": "nemo"}, 12 + 20),
    ],
)
def test_a_kernel_takes_time_however_small_it_is(model: str, more: Any, count: int) -> None:
    asked = {"sequence_length": 2048, "global_batch_size": 4} | more
    batches = 4 / asked.get("micro_batch_size", 2)
    found = seconds(model=model, **asked)
    assert found["kernels"] == pytest.approx(batches * 32 * count * 4e-6)


@pytest.mark.parametrize(("ranks", "each"), [(2, 0.0045), (4, 0.009)])
def test_overlapped_pieces_of_tensor_parallelism_are_launched_in_both_passes(
    ranks: int, each: float
) -> None:
    cut = {"tensor_parallel_size": ranks, "sequence_parallel": True, "world_size": ranks}
    fields = {"micro_batch_size": 1, "sequence_length": 512, "cuda_graph": "off", **cut}
    found = seconds(**fields, overlap_tensor_parallel="on")
    assert found["launch"] + busy(found) == pytest.approx(2 * 2 * 32 * each)
    whole = seconds(**fields)  # in pieces only where a graph launches them
    assert whole["launch"] + busy(whole) == pytest.approx(2 * 2 * 32 * (LAUNCH + 0.0014))


def test_the_slowest_stage_is_so_with_its_launches() -> None:
    """By hand: 16 layers on each of two stages wait as long; the last has the output layer too."""
    fields = {"world_size": 2, "pipeline_parallel_size": 2, "micro_batch_size": 1}
    found = work(**fields, sequence_length=64, global_batch_size=4, cuda_graph="off")
    stage = found.idle["launch"]  # of the first, once
    head = 1.40 * 6 * 128256 * 4096 / PEAK + 1.25 * 8 * 128256 / BANDWIDTH
    head += 2 * (128256 + 4096) / BANDWIDTH  # hides launches of the last
    assert found.seconds["launch"] == pytest.approx((4 + 1) * stage - 4 * 64 * head)
    assert 0 < stage < 2 * 16 * 0.0020
    # 5 layers that wait take longer than 3 and an output layer, which take the device longer
    uneven = {**fields, "model": "qwen2.5-1.5b@8", "last_pipeline_stage_layers": 3}
    found = work(**uneven, sequence_length=512, global_batch_size=4, cuda_graph="off")
    assert found.seconds["launch"] - found.idle["launch"] > 4 * 1.6 * found.idle["launch"]


def test_a_slow_first_stage_waits_for_what_its_next_micro_batch_does_not_hide() -> None:
    """By hand, 1F1B: the first of two stages runs a second forward pass while the last has one.

    So it waits for the last stage's passes less its own forward pass, and at the end for them less
    its own backward pass: 2 - t1 / t2 of the last stage's time t2, where the bubble was all of it.
    """
    fields = {"model": "llama3.1-8b@8", "cuda_graph": "on"}
    cut = {**fields, "world_size": 2, "pipeline_parallel_size": 2, "last_pipeline_stage_layers": 2}
    four, five = (work(**cut, global_batch_size=2 * many) for many in (4, 5))
    first = believed(dict(five.seconds), ONCE) - believed(dict(four.seconds), ONCE)
    whole = seconds(**fields, global_batch_size=4)
    last = believed(whole, ONCE) / 2 - first
    each = whole["attention"] / 2 / 8  # of a layer and micro batch
    assert last < first < 2 * last
    assert four.idle["attention"] == pytest.approx((2 - first / last) * 2 * each, rel=0.02)
    assert four.seconds["attention"] == pytest.approx(4 * 6 * each + four.idle["attention"])


@pytest.mark.parametrize(
    ("host", "busy", "waits"), [(4.0, 1.0, 0.6), (1.0, 4.0, 0.0), (2.0, 2.0, 0.1751), (0, 1, 0)]
)
def test_waits_are_as_unsure_as_hosts_differ(host: float, busy: float, waits: float) -> None:
    """15 % of the host where it is always late; half of a normal value where it is on time.

    The deviation of max(x, 0) of a normal x around 0 is sqrt(1/2 - 1/(2 pi)) = 0.5838 of its own.
    """
    assert unsure([(host, busy)]) == pytest.approx(waits, abs=1e-4)
    assert unsure([(host, busy)] * 2) == pytest.approx(2 * waits, abs=2e-4)


@pytest.mark.parametrize(
    ("model", "layers", "counted", "forward", "backward"),
    [
        ("mixtral-8x7b@4", 4, 0.0025, 0.0062, 0.0058),
        # More than 16 experts on one rank are computed without their numbers of tokens.
        ("deepseek-v2-lite@3", 2, 0, 0.0042 + 0.0015, 0.0058 + 0.0015),  # of 3, one is dense
        ("gpt-oss-20b@4", 4, 0, 0.0042, 0.0058),  # its experts have biases, and are one product too
    ],
)
def test_experts_are_launched_kernel_by_kernel_while_the_device_works(
    model: str, layers: int, counted: float, forward: float, backward: float
) -> None:
    fields = {"model": model, "micro_batch_size": 1, "sequence_length": 64, "cuda_graph": "off"}
    for length in (64, 1024, 4096):
        found = seconds(**fields | {"sequence_length": length}, global_batch_size=3)
        third = believed(found, ONCE) / 3
        late = max(3 * layers * forward - third, 0) + max(3 * layers * backward - 2 * third, 0)
        # What waits for the numbers of tokens hides behind nothing.
        assert found.get("expert_launch", 0) == pytest.approx(3 * layers * counted + late)
    assert "expert_launch" not in seconds(**fields, engine="nemo")


def test_a_run_of_a_trainer_that_counted_tokens_on_the_host_is_held_against_that() -> None:
    fields = {"model": "gpt-oss-20b@4", "micro_batch_size": 1, "sequence_length": 64}
    asked = config(**fields, cuda_graph="off", global_batch_size=3)
    shape = catalog.model(asked.model)
    ran = {"grouped_gemm": "on", "cuda_graph": "off"}
    now, then = (
        amounts(asked, shape, H100, ran | {"token_counts": place}).seconds["expert_launch"]
        for place in ("device", "host")
    )
    assert then - now == pytest.approx(3 * 4 * (0.0025 + 0.0062 - 0.0042))


def test_transformer_engine_launches_a_product_for_each_expert() -> None:
    """Two of DeepSeek-V2-Lite's first three layers have 64 experts of 0.3 ms, and wait 2.5 ms."""
    fields = {"model": "deepseek-v2-lite@3", "micro_batch_size": 1, "sequence_length": 64}
    found = seconds(**fields, precision="fp8", global_batch_size=3)
    launched = 3 * 2 * (64 * 0.0003 + 0.0025)
    assert found["expert_launch"] == pytest.approx(launched - believed(found, ONCE))


def test_overlapped_attention_before_experts_is_launched_in_pieces() -> None:
    """Half of a layer's products: 2 ranks x 2.25 ms / 2, in each of both passes."""
    fields = {"model": "mixtral-8x7b@4", "micro_batch_size": 1, "sequence_length": 64}
    fields |= {"world_size": 2, "tensor_parallel_size": 2, "sequence_parallel": True}
    fields |= {"expert_tensor_parallel_size": 2, "global_batch_size": 3}
    shown = []
    for overlap in ("on", "off"):
        found = seconds(**fields, overlap_tensor_parallel=overlap)
        shown.append(found["expert_launch"] + believed(found, ONCE))
    assert shown[0] - shown[1] == pytest.approx(3 * 4 * 2 * 2 * 0.00225 / 2)


def test_two_stages_launch_their_experts_at_the_same_time() -> None:
    fields = {"model": "mixtral-8x7b@4", "micro_batch_size": 1, "sequence_length": 64}
    one = seconds(**fields, global_batch_size=4)
    two = seconds(**fields, global_batch_size=4, world_size=2, pipeline_parallel_size=2)
    shown = [found["expert_launch"] + believed(found, ONCE) for found in (one, two)]
    assert shown == pytest.approx([4 * 4 * 0.0145, 4 * 2 * 0.0145])


def test_ranks_that_share_experts_exchange_their_rows() -> None:
    """Of Mixtral (2 experts a token, h 4096), 32 tokens a rank: 4 passes of their rows in bf16."""
    fields = {"model": "mixtral-8x7b@1", "micro_batch_size": 1, "sequence_length": 64}
    fields |= {"world_size": 2, "tensor_parallel_size": 2, "sequence_parallel": True}
    found = seconds(**fields, expert_tensor_parallel_size=2)
    rows = 32 * 2 * 4096 * 2
    assert found["expert_exchange"] == pytest.approx(2 * 4 * rows / LINK)  # 2 micro batches


@pytest.mark.parametrize(("world", "deviations"), [(1, 0), (8, 1.4236), (40, 2.1608)])
def test_a_step_waits_for_the_slowest_of_its_devices(world: int, deviations: float) -> None:
    """The largest of so many normal values, from tables of order statistics; one is 1.2 %."""
    found = seconds(world_size=world, nodes=-(-world // 8), global_batch_size=2 * world)
    rest = believed(found, ("waiting", "launch"))
    assert found.get("waiting", 0) == pytest.approx(deviations * 0.012 * rest, rel=0.01)
    assert found["step"] == 0.005


# Links


@pytest.mark.parametrize(
    ("ran", "ranks", "passes"),
    [(None, 2, 0), ({"tensor_pieces": "exchanged"}, 2, 0), ({}, 2, 4), (None, 4, 4)],
)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_pieces_are_summed_up_unless_two_ranks_exchange_them(
    ran: dict[str, Any] | None, ranks: int, passes: int, recompute: str
) -> None:
    """A pass has two sums, which read r pieces of a row and write one; again forward if remade."""
    asked = config(tensor_parallel_size=ranks, world_size=ranks, sequence_parallel=True,
                   overlap_tensor_parallel="on", recompute=recompute)  # fmt: skip
    on = None if ran is None else {"overlap_tensor_parallel": "on", **ran}
    found = amounts(asked, catalog.model(asked.model), H100, on).seconds
    passes += 2 * (recompute == "full" and passes > 0)
    size = 32 * passes * 2 * TOKENS * 4096 * (ranks + 1) / ranks
    assert found.get("tensor_sums", 0.0) == pytest.approx(size / BANDWIDTH)


@pytest.mark.parametrize(("parallel", "passes"), [(False, 8), (True, 10)])
@pytest.mark.parametrize("ranks", [2, 4])
def test_collectives_of_tensor_parallelism_are_hidden_by_what_the_engine_has(
    ranks: int, parallel: bool, passes: int
) -> None:
    fields = {"world_size": ranks, "tensor_parallel_size": ranks, "sequence_parallel": parallel,
              "global_batch_size": 6}  # fmt: skip
    size = 3 * 32 * passes * (ranks - 1) / ranks * TOKENS * 4096 * 2 / LINK
    ours = seconds(**fields, overlap_tensor_parallel="off")
    assert ours["tensor_hidden"] == pytest.approx(4 / passes * size)  # of the backward pass
    assert ours["tensor_exposed"] == pytest.approx((1 - 4 / passes) * size)
    eight = seconds(**fields, overlap_tensor_parallel="off", precision="fp8")
    # Of 10, 6 are gathers of half the bytes: 2 of these and 2 scatters are hidden.
    hidden, shown = (3, 4) if parallel else (4, 4)
    assert eight["tensor_hidden"] == pytest.approx(hidden / passes * size)
    assert eight["tensor_exposed"] == pytest.approx(shown / passes * size)
    theirs = seconds(**fields, engine="nemo")
    assert theirs["tensor_unhidden"] == pytest.approx(0.6 * size / (ranks - 1))
    assert theirs["tensor_hidden"] + theirs["tensor_unhidden"] == pytest.approx(size)
    assert not {"tensor_latency", "tensor_exposed"} & set(theirs)


@pytest.mark.parametrize(("engine", "kind", "passes"), [("megatron", "context", 2),
                                                         ("nemo", "context", 3)])  # fmt: skip
@pytest.mark.parametrize(("ranks", "tensor"), [(2, 1), (4, 1), (2, 2)])
def test_keys_and_values_go_around_the_ranks_that_share_a_sequence(
    engine: str, kind: str, passes: int, ranks: int, tensor: int
) -> None:
    found = seconds(world_size=ranks * tensor, context_parallel_size=ranks, engine=engine,
                    tensor_parallel_size=tensor, sequence_length=4096)  # fmt: skip
    size = passes * (ranks - 1) * 2 * TOKENS / ranks * 1024 / tensor * 2
    assert found[kind] == pytest.approx(32 * size / LINK)


def test_runs_before_keys_travelled_behind_attention_waited_for_them() -> None:
    asked = config(world_size=2, context_parallel_size=2)
    shape = catalog.model(asked.model)
    before, now = (
        amounts(asked, shape, H100, {"context_parallel_communication": name}).seconds
        for name in ("all_gather", "overlapped_all_gather")
    )
    assert before["context_exposed"] == now["context"] > 0
    assert before["context_attention"] == before["attention"] == now["attention"]
    assert "context" not in before and not {"context_attention", "context_exposed"} & set(now)


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        ({"tensor_parallel_size": 2}, ("tensor_exposed",)),
        ({"tensor_parallel_size": 2, "sequence_parallel": True},
         ("tensor_exposed", "tensor_overlapped", "tensor_piece")),
        ({"context_parallel_size": 2}, ("context",)),
        ({"context_parallel_size": 2, "model": "deepseek-v2-lite"}, ("context_exposed",)),
        ({"context_parallel_size": 2, "engine": "nemo"}, ("context",)),
        ({"pipeline_parallel_size": 2}, ("pipeline",)),
        ({"model": "mixtral-8x7b", "expert_parallel_size": 2}, ("expert_exchange",)),
    ],
)  # fmt: skip
def test_activations_of_fp32_are_sent_in_four_bytes(
    fields: dict[str, Any], kinds: tuple[str, ...]
) -> None:
    half, whole = (
        seconds(world_size=2, global_batch_size=8, precision=precision, **fields)
        for precision in ("bf16", "fp32")
    )
    times = [sum(found.get(kind, 0.0) for kind in kinds) for found in (half, whole)]
    assert times[1] == pytest.approx(2 * times[0])
    assert times[0] > 0


def test_tokens_go_to_their_experts_and_back_forward_and_backward() -> None:
    found = seconds(model="mixtral-8x7b", world_size=8, expert_parallel_size=8,
                    global_batch_size=16)  # fmt: skip
    assert found["expert_exchange"] == pytest.approx(32 * 4 * 7 / 8 * TOKENS * 2 * 4096 * 2 / LINK)


@pytest.mark.parametrize(("parallel", "share"), [(False, 1), (True, 2)])
def test_each_stage_passes_activations_on_and_gradients_back(parallel: bool, share: int) -> None:
    """The last of 4 stages sets the pace; the first sends one way, the two others both."""
    found = seconds(world_size=8, pipeline_parallel_size=4, tensor_parallel_size=2,
                    sequence_parallel=parallel, global_batch_size=16)  # fmt: skip
    once = TOKENS * 4096 * 2 / share / LINK
    assert found["pipeline"] == pytest.approx((8 + 1 + 2 + 2) * once)


def sent(found: dict[str, float], place: str) -> float:
    return found.get(f"{place}_exposed", 0.0) + found.get(f"{place}_hidden", 0.0)


@pytest.mark.parametrize(
    ("world", "nodes", "tensor", "devices"),
    [
        (16, 2, 1, 8),  # a ring of 16 enters and leaves a node once: 8 devices of the network
        (32, 4, 1, 8),
        (16, 2, 4, 2),  # 2 ranks of each ring in a node
        (16, 2, 8, 1),
        (8, 2, 1, 4),  # 4 devices a node
    ],
)
def test_a_ring_across_nodes_shares_the_network_devices_of_its_ranks(
    world: int, nodes: int, tensor: int, devices: int
) -> None:
    found = seconds(world_size=world, nodes=nodes, tensor_parallel_size=tensor,
                    global_batch_size=2 * world // tensor)  # fmt: skip
    head = words(tensor) * 4096
    held = 32 * (LAYER / tensor + 2 * 4096) + 2 * head / tensor + 4096
    ranks = world // tensor
    moved = (4 + 2) * held * (ranks - 1) / ranks  # gradients are reduced, weights gathered
    assert sent(found, "network") == pytest.approx(moved / (devices * NETWORK), rel=1e-6)
    assert sent(found, "data") == 0


def test_a_ring_is_never_faster_than_the_link_inside_a_node() -> None:
    asked = config(world_size=16, nodes=2, global_batch_size=32)
    quick = machine(catalog.accelerator("H100-SXM5-80GB"), 8, 1600.0)
    found = dict(amounts(asked, catalog.model(asked.model), quick).seconds)
    assert sent(found, "network") == pytest.approx(6 * 15 / 16 * PARAMETERS / LINK)


def test_stages_on_two_nodes_pass_activations_over_one_network_device() -> None:
    found = seconds(world_size=16, nodes=2, pipeline_parallel_size=2, tensor_parallel_size=8,
                    sequence_parallel=True, global_batch_size=16)  # fmt: skip
    assert found["network_exposed"] == pytest.approx((8 + 1) * TOKENS * 4096 * 2 / 8 / NETWORK)
    assert "pipeline" not in found


@pytest.mark.parametrize(
    ("nodes", "kind", "rate"), [(1, "pipeline", 5e9), (2, "network_exposed", 1e9)]
)
def test_processes_of_cpus_pass_activations_at_5_gb_a_second_and_at_1_across_nodes(
    nodes: int, kind: str, rate: float
) -> None:
    asked = config(platform="cpu", model="tiny-llama", world_size=2, nodes=nodes, precision="fp32",
                   pipeline_parallel_size=2, global_batch_size=16, sequence_length=128)  # fmt: skip
    shape = catalog.model("tiny-llama")
    found = amounts(asked, shape, machine(None, 8)).seconds
    passed = (8 + 1) * 2 * 128 * shape.hidden_size * 4
    assert found[kind] == pytest.approx(passed / rate)


@pytest.mark.parametrize(
    ("fields", "bytes_each"),
    [
        ({"data_parallel_sharding": "optimizer"}, 4 + 2),
        ({"data_parallel_sharding": "none"}, 4 + 4),  # an all-reduce is a reduction and a gather
        ({"data_parallel_sharding": "optimizer", "gradient_precision": "bf16"}, 2 + 2),
        ({"data_parallel_sharding": "none", "gradient_precision": "bf16"}, 2 + 2),
        ({"data_parallel_sharding": "full"}, 3 * (2 + 2 + 4)),  # gathered twice a micro batch
        ({"data_parallel_sharding": "full", "gradient_precision": "bf16"}, 3 * (2 + 2 + 2)),
        ({"data_parallel_sharding": "optimizer", "precision": "fp32"}, 4 + 4),
        ({"data_parallel_sharding": "none", "precision": "fp32"}, 4 + 4),
        ({"data_parallel_sharding": "full", "precision": "fp32"}, 3 * (4 + 4 + 4)),
        ({"data_parallel_sharding": "full", "parameter_gather": "step"}, 2 + 3 * 4),
    ],
)
def test_replicas_send_what_their_sharding_says(fields: dict[str, Any], bytes_each: int) -> None:
    found = seconds(world_size=8, global_batch_size=48, **fields)
    assert sent(found, "data") == pytest.approx(bytes_each * 7 / 8 * PARAMETERS / LINK)


@pytest.mark.parametrize("length", [64, 512, 4096])
@pytest.mark.parametrize("sharding", ["optimizer", "none", "full"])
def test_transfers_show_beyond_the_work_that_they_run_behind_or_by_a_twentieth(
    length: int, sharding: str
) -> None:
    """Behind a micro batch: its backward pass is two thirds of it, its forward pass one."""
    fields = {"world_size": 8, "micro_batch_size": 1, "global_batch_size": 8, "cuda_graph": "off"}
    found = seconds(sequence_length=length, data_parallel_sharding=sharding, **fields)
    busy = believed(found, (*ONCE, "sharding", "sharded_optimizer"))
    unit = 7 / 8 * PARAMETERS / LINK
    parts = {"optimizer": ((4, 2 / 3), (2, 1 / 3)), "none": ((4, 2 / 3), (4, 1 / 3)),
             "full": ((8, 1),)}[sharding]  # fmt: skip
    shown = sum(max(size * unit - share * busy, 0.05 * size * unit) for size, share in parts)
    assert found["data_exposed"] == pytest.approx(shown)


@pytest.mark.parametrize(("engine", "parts"), [("megatron", 1), ("nemo", 3)])
def test_full_sharding_copies_what_it_gathers_and_steps_a_share(engine: str, parts: int) -> None:
    found = seconds(world_size=8, global_batch_size=48, data_parallel_sharding="full",
                    engine=engine)  # fmt: skip
    assert found["sharding"] == pytest.approx(3 * 12 * PARAMETERS / parts / BANDWIDTH)
    assert found["sharded_optimizer"] == pytest.approx(100 * PARAMETERS / 8 / BANDWIDTH)


@pytest.mark.parametrize(("sharding", "ranks"), [("none", 1), ("optimizer", 8), ("full", 8)])
def test_the_optimizer_steps_its_share_after_all_gradients_were_added(
    sharding: str, ranks: int
) -> None:
    found = seconds(world_size=8, global_batch_size=16, data_parallel_sharding=sharding)
    assert found["optimizer"] == pytest.approx((42 / ranks + 4) * PARAMETERS / BANDWIDTH)


def test_offloading_is_of_the_same_layers_however_many_there_are() -> None:
    """Gate and up of 14,336 features, 2 bytes each, to the host and back at 55 GB/s."""
    for layers in (8, 32, 64):
        found = seconds(offload_layers=layers)["offload"]
        assert found == pytest.approx(min(layers, 32) * 8 * TOKENS * 14336 / 55e9)
