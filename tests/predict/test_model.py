"""The pieces of a prediction, by hand: what is known, believed, fitted, and how sure it is."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from scalebook.config import RunConfig
from scalebook.facts import catalog
from scalebook.measure.probes import Probe
from scalebook.predict import fit as fit_module
from scalebook.predict import kinds as kinds_module
from scalebook.predict import predictor, slower_than_parts
from scalebook.predict.amounts import amounts
from scalebook.predict.fit import NOISE, RateFit, StepSample, fit, least_squares
from scalebook.predict.kinds import KINDS, Belief, belief, machine
from scalebook.predict.known import KnownRate, _around, _node, configuration, layout, narrowest
from scalebook.predict.model import _suspect
from scalebook.record import StepRecord

DEVICE = catalog.accelerator("H100-SXM5-80GB")
SHAPE = catalog.model("llama3.1-8b")
FOUR = 2.131847 / 1.645  # Student's t of 4 over the normal quantile, both of 90 %


def config(**fields: Any) -> RunConfig:
    base = {"platform": "h100", "model": "llama3.1-8b", "world_size": 8, "sequence_length": 4096}
    base |= {"micro_batch_size": 2, "global_batch_size": 64}
    return RunConfig(**(base | fields))


def known(name: str, seconds: float, around: float | None = None, **fields: Any) -> KnownRate:
    asked = config(**fields)
    return KnownRate(name, asked, catalog.model(asked.model), DEVICE, {}, seconds, around)


# What is known


@pytest.mark.parametrize(
    ("fields", "side"),
    [
        ({}, 4096),  # hidden, below an MLP of 14,336
        ({"tensor_parallel_size": 4}, 1024),
        ({"model": "qwen3-30b-a3b"}, 768),  # of an expert
        ({"model": "qwen3-30b-a3b", "expert_tensor_parallel_size": 2}, 384),
        ({"model": "qwen3-30b-a3b", "tensor_parallel_size": 4}, 512),
        ({"model": "mixtral-8x7b"}, 4096),
    ],
)
def test_the_narrowest_side_of_a_ranks_products(fields: dict[str, Any], side: float) -> None:
    asked = config(**fields)
    assert narrowest(asked, catalog.model(asked.model)) == side


@pytest.mark.parametrize(
    ("fields", "family"),
    [
        ({"world_size": 1}, "one device"),
        ({}, "data"),
        ({"tensor_parallel_size": 2}, "tensor"),
        ({"tensor_parallel_size": 2, "context_parallel_size": 2}, "context"),
        ({"context_parallel_size": 2, "pipeline_parallel_size": 2}, "pipeline"),
        ({"pipeline_parallel_size": 2, "data_parallel_sharding": "full"}, "fully sharded"),
        ({"data_parallel_sharding": "full", "precision": "fp8"}, "fp8"),
        ({"precision": "fp8", "model": "mixtral-8x7b"}, "experts"),
        ({"model": "qwen3-30b-a3b", "expert_parallel_size": 2}, "experts"),
        ({"model": "qwen3-30b-a3b"}, "data"),
    ],
)
def test_a_layouts_family_is_its_rarest_kind_of_parallelism(
    fields: dict[str, Any], family: str
) -> None:
    asked = config(**fields)
    assert layout(asked) == layout(asked, {"fused_norm": "on"}) == family
    assert layout(asked, {"fused_norm": "off"}) == "options off"
    assert layout(asked.model_copy(update={"platform": "cpu"}), {"fused_norm": "off"}) == family


def test_repeats_on_any_device_are_one_configuration_and_other_work_is_another() -> None:
    same = [{"seed": 3}, {"steps": 7}, {"repeat": 2}, {"platform": "h200"}, {"profile_steps": 2},
            {"fused_norm": "on"}]  # fmt: skip
    others = [{"micro_batch_size": 1}, {"precision": "fp8"}, {"world_size": 4},
              {"recompute": "full"}, {"model": "llama3.1-8b@4"}]  # fmt: skip
    ran = {"fused_norm": "on"}
    for fields in same:
        assert configuration(config(**fields), ran) == configuration(config(), ran)
    for fields in others:
        assert configuration(config(**fields), ran) != configuration(config(), ran)
    assert configuration(config(), {"fused_norm": True}) == configuration(config(), ran)
    assert configuration(config(), {"fused_norm": "off"}) != configuration(config(), ran)


@pytest.mark.parametrize(
    ("end", "around"), [("00:01:00", 53.0), ("00:00:07", 0.0), ("00:00:06", None), (None, None)]
)
def test_what_a_run_took_around_its_steps_includes_the_first(
    end: str | None, around: float | None
) -> None:
    """By hand: steps of 4 and 3 s count, the first of 30 s compiles."""
    times = enumerate((30.0, 4.0, None, 3.0), 1)
    steps = [
        StepRecord(step=number, phase="measured", step_seconds=one, tokens=8)
        for number, one in times
    ]
    finished = end and f"2026-01-01T{end}Z"
    record = SimpleNamespace(started_at="2026-01-01T00:00:00Z", finished_at=finished)
    assert _around(SimpleNamespace(record=record, steps=steps)) == around


# What is believed


def probe(name: str, started: str, tflops: float = 800.0, **fields: Any) -> Probe:
    base: dict[str, Any] = {
        "probe_id": name,
        "status": "completed",
        "started_at": started,
        "request": {"platform": "h100", "world_size": 1, "seconds": 1.0, "sequence_length": 8},
        "identity": {"host": "x", "accelerator": "NVIDIA H100 80GB HBM3", "torch": "2"},
        "ceilings": {"probe": name, "matmul_tflops": {"bf16": tflops}},
    }
    return Probe(**(base | fields))


def test_work_on_a_device_is_believed_to_reach_two_fifths_of_its_figures_or_more() -> None:
    part = {"gemm_traffic", "tensor_latency", "fp8_blockwise", "uneven_experts", "offload",
            "context", "tensor_overlapped", "tensor_hidden", "data_hidden",
            "network_hidden", "context_attention"}  # fmt: skip
    for name, kind in KINDS.items():
        assert kind.slowness < (1 if name in part else 2.5), name
        assert kind.slowness >= 1 or name in part, name
        assert kind.deviation < 1.25 and kind.deviation < 1.25 * kind.slowness + 0.01, name
    assert KINDS["attention"].deviation < KINDS["attention"].slowness / 2


def test_a_cpus_figures_are_guesses_of_which_each_may_be_some_times_slower() -> None:
    vague = belief(machine(None, 8))
    for name, kind in KINDS.items():
        assert vague.mean[name] == kind.slowness
        assert vague.deviation[name] == 1.5 * max(kind.slowness, 1.0)


def test_tensor_cores_that_reach_less_of_their_peak_are_believed_slower_by_as_much() -> None:
    """Best products: H100 794.5 of 989.4, MI300X 668.4 of 1307.4, B200 3432.5 of 4500 in FP8."""
    found = {
        name: belief(machine(catalog.accelerator(name), 8))
        for name in ("H100-SXM5-80GB", "MI300X", "B200-SXM-180GB", "H20-96GB")
    }
    assert found["H100-SXM5-80GB"].mean == pytest.approx(found["H20-96GB"].mean)  # nobody measured
    slower = (794.5 / 989.4) / (668.4 / 1307.4)
    for kind in ("gemm", "gemm_fp8", "expert_gemm", "attention"):
        assert found["MI300X"].mean[kind] == pytest.approx(slower * KINDS[kind].slowness)
        assert found["MI300X"].deviation[kind] == pytest.approx(slower * KINDS[kind].deviation)
    assert found["MI300X"].mean["elementwise"] == KINDS["elementwise"].slowness
    eight = (1402.6 / 1978.9) / (3432.5 / 4500)
    assert found["B200-SXM-180GB"].mean["gemm_fp8"] == pytest.approx(eight * 1.55)


def test_a_probes_rates_are_the_belief_with_a_few_percent_for_training() -> None:
    """By hand, of an H100: 989.4 and 1978.9 TFLOP/s, 3.35 TB/s; a copy reads and writes."""
    made = {
        "probe": "p",
        "matmul_tflops": {"bf16": 900.0},
        "model_matmul_tflops": {"a/tp1/bf16": 600.0, "b/tp1/bf16": 700.0, "b/tp1/fp8": 1000.0},
        "copy_gib_per_second": 2500.0,
    }
    reference = machine(DEVICE, 8)
    found = belief(reference, probe("p", "2026", ceilings=made))
    bf16, fp8 = DEVICE.peak_tflops["bf16"], DEVICE.peak_tflops["fp8"]
    copies = 1.1 * 3.35e12 / (2500 * 2**30)
    for name, mean, share in (
        ("gemm", 1.05 * bf16 / 700, 0.08),  # of a model's products, not of the sweep
        ("gemm_fp8", 1.1 * fp8 / 1000, 0.15),
        ("elementwise", copies, 0.25),
        ("optimizer", copies, 0.25),
    ):
        assert found.mean[name] == pytest.approx(mean)
        assert found.deviation[name] == pytest.approx(share * mean)
    assert found.probe_id == "p"
    rest = set(KINDS) - {"gemm", "gemm_fp8", "elementwise", "optimizer"}
    assert all(found.mean[name] == KINDS[name].slowness for name in rest)
    sweep = belief(reference, probe("q", "2026", 800.0))
    assert sweep.mean["gemm"] == pytest.approx(1.05 * bf16 / 800)
    assert sweep.mean["gemm_fp8"] == KINDS["gemm_fp8"].slowness


def test_a_device_without_a_figure_gets_an_ordinary_one() -> None:
    """2 TB/s, 64 GB/s both ways; 55 GB/s of a PCIe 5.0 slot, 400 Gbit/s of a network."""
    bare = machine(replace(DEVICE, memory_bandwidth_tb_per_second=None,
                           interconnect_gb_per_second=None), 4)  # fmt: skip
    assert (bare.memory_bytes_per_second, bare.link_bytes_per_second) == (2e12, 32e9)
    assert (bare.host_bytes_per_second, bare.network_bytes_per_second) == (55e9, 50e9)
    assert (bare.gpus_per_node, bare.is_gpu) == (4, True)
    assert machine(None, 4) is kinds_module.CPU and not kinds_module.CPU.is_gpu


def test_the_newest_completed_probe_of_the_architecture_is_believed() -> None:
    others = [
        probe("old", "2026-01-01", 500.0),
        probe("new", "2026-03-01", 600.0),
        probe("broken", "2026-04-01", 700.0, status="failed"),
        probe("b200", "2026-05-01", 700.0,
              identity={"host": "x", "accelerator": "NVIDIA B200", "torch": "2"}),
        probe("unknown", "2026-06-01", 700.0, identity=None),
    ]  # fmt: skip
    for mixed in (others, others[::-1]):
        made = predictor("h100", (), mixed)
        assert (made.basis.probe, made.foreign) == ("new", False)
        assert made.fitted.belief.mean["gemm"] == pytest.approx(1.05 * 989.4 / 600, rel=1e-3)
    assert predictor("b200", (), others).basis.probe == "b200"
    assert predictor("mi300x", (), others).foreign


# The fit


def test_a_sample_weighs_as_much_as_its_noise_and_doubt_say() -> None:
    sample = StepSample(10.0, {"gemm": 3.0}, "a", "x", doubt=4.0)
    assert sample.scale == pytest.approx(10 * 0.02 * 4)
    # 1.2 % of the 2 % is what it shares with others of a node
    assert replace(sample, node="n").scale == pytest.approx(10 * 0.016 * 4)


def test_what_a_fit_does_not_know_is_its_covariance_and_the_belief_in_other_kinds() -> None:
    """By hand: a step of 2 x 1 + 1 x 2 s; a quarter of it by a, 0.5 x 2 s unsure by b."""
    made = RateFit(Belief({}, {"b": 0.5}), ("a",), {"a": 2.0, "b": 1.0}, [[0.01]], ())
    assert made.seconds({"a": 1.0, "b": 2.0}) == 4.0
    assert made.variance({"a": 1.0, "b": 2.0}) == pytest.approx(0.01 / 16 + (0.5 * 2 / 4) ** 2)
    assert made.variance({"a": 3.0}) == pytest.approx(0.01 / 4)
    impossible = replace(made, covariance=np.array([[-1.0]]))
    assert impossible.variance({"a": 1.0}) == 0


def test_one_sample_moves_the_belief_by_the_weight_of_its_noise() -> None:
    """By hand: a belief of 1 +- 0.1 and a step of 3 s for 2 s of work, known to 2 %.

    Its slowness is 1.5 +- 0.03: weights 100 and 1111.1.
    """
    sample = StepSample(3.0, {"gemm": 2.0}, "a", "x")
    made = least_squares((sample,), Belief({"gemm": 1.0, "step": 7.0}, {"gemm": 0.1, "step": 9.0}))
    weight = 1 / 0.03**2
    assert made.slowness["gemm"] == pytest.approx((100 * 1 + weight * 1.5) / (100 + weight))
    assert made.covariance[0][0] == pytest.approx(1 / (100 + weight))
    assert made.slowness["step"] == 7.0 and made.kinds == ("gemm",)


@pytest.mark.parametrize(("seconds", "doubt"), [(1.0, 1.0), (1.05, 1.0), (1.2, None)])
def test_beyond_six_percent_a_sample_is_doubted_by_its_error(
    seconds: float, doubt: float | None
) -> None:
    usual = [StepSample(1.0, {"gemm": 1.0}, str(i), "x") for i in range(60)]
    made = fit([*usual, StepSample(seconds, {"gemm": 1.0}, "odd", "x")],
               Belief({"gemm": 1.0}, {"gemm": 9.0}))  # fmt: skip
    (odd,) = (one for one in made.samples if one.configuration == "odd")
    error = abs(made.seconds(odd.work) / seconds - 1)
    assert odd.doubt == pytest.approx(doubt or error / 0.06, rel=0.01)
    assert all(one.doubt == 1 for one in made.samples if one is not odd)


def test_an_interval_grows_with_the_work_that_the_runs_most_like_it_do_not_have() -> None:
    """Shares of gemm 1, 0.75, 0.5 and 0: of a step of gemm alone, the three nearest lack 0.25."""
    work = [{"gemm": share, "step": 1 - share} for share in (1.0, 0.75, 0.5, 0.0)]
    samples = [StepSample(1.0, one, str(one), "x") for one in work for _ in range(2)]
    made = least_squares(tuple(samples), Belief({"gemm": 1, "step": 1}, {"gemm": 1, "step": 1}))
    assert made.slowness == pytest.approx({"gemm": 1, "step": 1})
    alone = made._shares({"gemm": 1.0})
    assert made.unlike(alone) == pytest.approx((0 + 0.25 + 0.5) / 3)
    assert made.unlike(alone, {str(work[0])}) == pytest.approx((0.25 + 0.5 + 1) / 3)
    unlike = made.variance({"gemm": 2.0}) - made.covariance[0][0]
    assert unlike == pytest.approx((0.15 * 0.25) ** 2)


ROWS = [(1.0, 0.2, 1.63), (0.5, 0.4, 1.1), (2.0, 0.1, 3.2), (2.0, 0.1, 3.1), (0.3, 0.9, 1.5)]


@pytest.mark.parametrize(
    ("nodes", "devices"), [("     ", "ddddd"), ("aabbb", "ddddd"), ("aab b", "ddede")]
)
def test_a_left_out_error_is_exactly_that_of_a_fit_without_its_node_or_all_repeats(
    nodes: str, devices: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # How unlike steps are is judged at the rates of the whole fit.
    monkeypatch.setattr(fit_module, "_UNLIKE", 0.0)
    samples = [
        StepSample(seconds, {"gemm": a, "step": b}, str((a, b)), "x", doubt=1.0 + a,
                   unsure=0.03, node=node.strip(), device=device)
        for (a, b, seconds), node, device in zip(ROWS, nodes, devices, strict=True)
    ]  # fmt: skip
    made = least_squares(tuple(samples), Belief({"gemm": 1, "step": 1}, {"gemm": 3, "step": 3}))
    for sample, found in zip(made.samples, made.left_out, strict=True):
        key = (sample.node, sample.node or sample.configuration)
        others = [one for one in samples if (one.node, one.node or one.configuration) != key]
        without = least_squares(tuple(others), made.belief)
        if without.devices != made.devices:
            continue
        # a node that it does not know is in the noise of 2 %
        predicted = without.seconds(sample.work, sample.device)
        unknown = without.variance(sample.work, sample.device) * (predicted / sample.seconds) ** 2
        deviation = math.hypot(0.02, sample.unsure, math.sqrt(unknown))
        error = (1 - predicted / sample.seconds) / without.device_factor(sample.device)
        # what devices differ by is relative to the step, predicted here and measured there
        rounded = 1e-2 if made.devices else 1e-6
        assert found == pytest.approx(error / deviation, rel=rounded)


def test_what_a_node_is_slower_by_is_not_taken_for_the_work() -> None:
    """By hand: of 20 runs of a slow node and 2 of others, each of known error, the mean is 1.04.

    A node of n runs weighs 1 / (0.012^2 + 0.016^2 / n): 4,808 and twice 2,500.
    """
    slow = [StepSample(1.06, {"gemm": 1.0}, f"s{i}", "x", node="slow") for i in range(20)]
    others = [StepSample(1.0, {"gemm": 1.0}, f"o{i}", "x", node=f"n{i}") for i in range(2)]
    vague = Belief({"gemm": 1.0}, {"gemm": 1e3})
    made = least_squares((*slow, *others), vague)
    # relative errors: a slow run says 1.06 of the work with a deviation in proportion to it
    weights = [(0.012**2 + 0.016**2 / n) ** -1 for n in (20, 1, 1)]
    shares = [weight / seconds for weight, seconds in zip(weights, (1.06, 1.0, 1.0), strict=True)]
    squares = [
        weight / seconds**2 for weight, seconds in zip(weights, (1.06, 1.0, 1.0), strict=True)
    ]
    assert made.slowness["gemm"] == pytest.approx(sum(shares) / sum(squares))
    assert made.variance({"gemm": 1.0}) == pytest.approx(
        1 / sum(squares) / made.slowness["gemm"] ** 2
    )
    # on that node steps take longer by most of what its runs do, and less is unknown
    usual = made.seconds({"gemm": 1.0})
    assert usual < made.seconds({"gemm": 1.0}, node="slow") < 1.06
    assert made.seconds({"gemm": 1.0}, node="another") == usual
    known = made.variance({"gemm": 1.0}, node="slow")
    assert known == pytest.approx(0.016**2 / 20 - 0.012**2, abs=2e-6)


def test_devices_differ_from_their_figures_by_what_their_nodes_share() -> None:
    work = {"gemm": 1.0}
    samples = [
        StepSample(seconds, work, f"{name}{i}", "x", device=name, node=f"{name}{i}")
        for name, seconds in (("h100", 1.0), ("h200", 1.04))
        for i in range(30)
    ]
    made = least_squares(tuple(samples), Belief({"gemm": 1.0}, {"gemm": 1e3}))
    assert made.devices == ("h100", "h200")
    assert made.seconds(work, "h200") / made.seconds(work, "h100") == pytest.approx(1.04, abs=0.004)
    assert made.seconds(work, "h100") < made.seconds(work) < made.seconds(work, "h200")
    assert made.variance(work, "gh200") == pytest.approx(made.variance(work))
    assert made.variance(work, "gh200") > made.variance(work, "h100") + 0.9 * 0.012**2
    alone = least_squares(tuple(samples[:30]), made.belief)
    assert alone.devices == () and alone.device_factor("h100") == alone.device_factor("h200") == 1


# The prediction


@pytest.mark.parametrize(
    ("fields", "larger", "outside", "other"),
    [
        ({"world_size": 4}, 0, 0, 0),
        ({"world_size": 1}, 0, 0, 0),
        ({"world_size": 16}, 2, 0, 0),
        ({"world_size": 4, "tensor_parallel_size": 4}, 0, 1, 0),  # 1,024 below 2,048
        ({"world_size": 4, "model": "llama3.1-70b"}, 0, 1, 1),  # 8,192 above 4,096
        ({"world_size": 32, "model": "llama2-7b", "tensor_parallel_size": 8}, 3, 2, 1),
        ({"world_size": 4, "model": "llama3.1-8b@2"}, 0, 0, 0),
        ({"world_size": 4, "precision": "fp8"}, 0, 0, 1),  # of which no run knows this precision
    ],
)
def test_a_configuration_is_as_unsure_as_it_is_far_from_every_run(
    fields: dict[str, Any], larger: int, outside: int, other: int
) -> None:
    """1 % for each doubling of ranks, 2 % of widths beyond the measured, 2.5 % of a new model."""
    made, asked = predictor("h100"), config(**fields)
    seen = [StepSample(1.0, {}, "a", "x", ranks, "llama3.1-8b bf16", width)
            for ranks, width in ((4, 2048.0), (2, 4096.0))]  # fmt: skip
    known_runs: Any = SimpleNamespace(samples=seen)
    found = replace(made, fitted=known_runs).distance(asked, catalog.model(asked.model))
    assert found == pytest.approx(math.hypot(0.01 * larger, 0.02 * outside, 0.025 * other))
    assert made.distance(asked, catalog.model(asked.model)) == 0


def test_without_runs_a_prediction_is_the_belief_and_as_unsure() -> None:
    made, asked = predictor("h100"), config(pipeline_parallel_size=2)
    work = amounts(asked, SHAPE, made.machine)
    parts, deviation = made.step(asked, SHAPE)
    total = sum(KINDS[kind].slowness * value for kind, value in work.seconds.items())
    assert sum(parts.values()) == pytest.approx(total)
    idle = sum(KINDS[kind].slowness * value for kind, value in work.idle.items())
    assert parts["bubble"] == pytest.approx(idle) and idle > 0
    busy = work.seconds["gemm"] - work.idle["gemm"]
    assert parts["gemm"] == pytest.approx(1.4 * busy)
    unknown = sum((KINDS[kind].deviation * value / total) ** 2
                  for kind, value in work.seconds.items())  # fmt: skip
    # as wide as the four runs that a layout without any counts as; a quarter for the device
    assert deviation**2 == pytest.approx(FOUR**2 * (NOISE**2 + unknown) + 0.25**2)
    found = made.predict(asked)
    rate = 64 * 4096 / 8 / total
    spread = math.exp(1.645 * deviation)
    assert found.tokens_per_second_per_gpu == pytest.approx(rate)
    assert found.low == pytest.approx(rate / spread)
    assert found.mfu_low == pytest.approx((found.mfu or 0) / spread)
    assert found.high == pytest.approx(rate * spread)
    assert found.mfu_high == pytest.approx((found.mfu or 0) * spread)
    shown = sum(parts.get(kind, 0.0) for kind in kinds_module.COMMUNICATION)
    assert found.parts["exposed_communication"] == pytest.approx(shown) and shown > 0
    assert not set(found.parts) & set(kinds_module.COMMUNICATION)
    faster = {kind: 0.5 * value for kind, value in made.fitted.slowness.items()}
    most = replace(made, fitted=replace(made.fitted, slowness=faster)).predict(asked)
    assert most.mfu_high == pytest.approx(1)  # nothing is faster than the peak
    assert most.high == pytest.approx(most.tokens_per_second_per_gpu / (most.mfu or 0))


def test_what_waits_for_a_host_is_as_unsure_as_hosts_differ() -> None:
    """By hand: 15 % of the 1.8 ms that each of 32 layers takes the host both ways, always late."""
    made = predictor("h100")
    asked = config(micro_batch_size=1, sequence_length=64, cuda_graph="off")
    parts, deviation = made.step(asked, SHAPE)
    total = sum(parts.values())
    assert parts["launch"] > 0.1 * total
    work = amounts(asked, SHAPE, made.machine).seconds
    known = FOUR**2 * (NOISE**2 + made.fitted.variance(work)) + 0.25**2
    host = 0.15 * asked.num_microbatches * 2 * 32 * (0.0020 - 2 * 108e-6)
    assert deviation**2 == pytest.approx(known + (host / total) ** 2, rel=1e-3)


def test_mfu_is_the_models_flops_at_the_predicted_rate_over_the_peak() -> None:
    """By hand: 6 FLOPs a weight and token and half of 12 x layers x width x length."""
    found = predictor("h100").predict(config())
    weights = 32 * (4096 * 6144 + 4096**2 + 3 * 4096 * 14336) + 128256 * 4096
    flops = 6 * weights + 6 * 32 * 4096 * 4096
    expected = flops * found.tokens_per_second_per_gpu / 989.4e12
    assert found.mfu == pytest.approx(expected, rel=1e-3)


def said(asked: RunConfig, **fields: Any) -> list[str]:
    return [one.split()[0] for one in predictor("h100", **fields).predict(asked).warnings]


def test_each_warning_is_said_where_it_holds_and_nowhere_else() -> None:
    runs = [known(f"r{n}", 2.0, world_size=8, micro_batch_size=n) for n in (1, 2, 4)]
    small = {"model": "llama3.1-8b@8"}
    assert said(config(**small)) == ["No"]  # run and no probe
    assert said(config(**small), rates=runs) == []
    whole = config(model="llama3.1-70b")
    assert said(whole, rates=runs)[0] == "Memory:"
    assert (
        said(config(**small, engine="nemo"), rates=runs)[-1] == "The"
    )  # runs are of another engine
    assert "MFU" in said(config(**small, precision="fp8"), rates=runs)
    # of what no run measured, a two hundredth of the step is not worth a word
    staged = config(**small, pipeline_parallel_size=2)
    parts, _ = predictor("h100", runs).step(staged, catalog.model(staged.model))
    assert 0 < parts["pipeline"] < 0.005 * sum(parts.values())
    assert predictor("h100", runs).predict(staged).warnings == ()
    plain = predictor("h100", runs).predict(config(**small, fused_attention="off"))
    share = 100 * plain.parts["fused_attention_off"] / plain.step_seconds
    assert plain.warnings == (
        f"Never measured by these runs: attention that is not fused ({share:.2g} % of the step).",
    )


def test_a_predictor_says_what_it_learned_from_and_what_taught_nothing() -> None:
    runs = [known("a", 2.0, 10.0), known("b", 2.1, 30.0), known("c", 2.0, None, seed=2),
            known("d", 3.0, 80.0, platform="dgx_h100")]  # fmt: skip
    other = replace(runs[0], run_id="e", accelerator=catalog.accelerator("B200-SXM-180GB"))
    made = predictor("h100", [*runs, other], without=3, folders=["here"])
    basis = made.basis
    assert (basis.runs, basis.configurations, basis.without) == (4, 2, 4)
    assert basis.platforms == ("dgx_h100", "h100") and basis.folders == ("here",)
    assert made.start_seconds == 30.0  # the median of 10, 30 and 80
    fewer = predictor("h100", runs, leave_out=lambda one: one.run_id == "d").basis
    assert (fewer.runs, fewer.configurations, fewer.without) == (3, 1, 1)
    assert predictor("h100").start_seconds == 60.0
    assert predictor("cpu").start_seconds == 20.0
    assert predictor("h100", network_gbps=800.0).machine.network_bytes_per_second == 100e9


def test_a_run_is_slower_by_its_time_over_that_of_its_parts() -> None:
    runs = [known(f"r{n}", 2.0 + n / 50, micro_batch_size=n) for n in (1, 2, 4)]
    found = slower_than_parts(runs[1], runs, ())
    taught = predictor("h100", [runs[0], runs[2]])
    assert found is not None
    sample = runs[1].sample
    seconds = taught.fitted.seconds(sample.work)
    wide = taught.widths["data"] * math.sqrt(NOISE**2 + taught.fitted.variance(sample.work))
    assert found["predicted_seconds"] == pytest.approx(seconds)
    assert found["fraction"] == pytest.approx(2.04 / seconds - 1)
    assert found["high"] == pytest.approx(math.exp(1.645 * wide) - 1)
    assert found["low"] == pytest.approx(math.exp(-1.645 * wide) - 1)
    assert (found["measured_seconds"], found["runs"]) == (2.04, 2)
    assert slower_than_parts(runs[1], [runs[1]], ()) is None


def test_a_run_is_compared_with_its_parts_on_its_own_node() -> None:
    runs = [replace(known(f"{node}{n}", slower * (2.0 + n / 50), micro_batch_size=n), node=node)
            for node, slower in (("a", 1.0), ("b", 1.04)) for n in (1, 2, 4)]  # fmt: skip
    odd = replace(known("odd", 1.04 * 2.16, micro_batch_size=8), node="b")
    there = slower_than_parts(odd, [*runs, odd], ())
    elsewhere = slower_than_parts(replace(odd, node=""), [*runs, odd], ())
    assert there is not None and elsewhere is not None
    # a node 4 % slower than the other is 2 % slower than both, less what three runs leave open
    slower = there["predicted_seconds"] / elsewhere["predicted_seconds"] - 1
    assert slower == pytest.approx(0.02 / (1 + 0.016**2 / 3 / 0.012**2), rel=0.1)
    assert there["high"] < elsewhere["high"]


@pytest.mark.parametrize(
    ("changes", "node"),
    [
        ({"device_ids": "1a 2b"}, "1a"),
        ({}, "c0ffee 2026-11-29 2 NVIDIA H200"),
        ({"git_commit": None}, ""),
    ],
)
def test_runs_are_of_one_node_by_its_first_device_or_by_commit_and_day(
    changes: dict[str, Any], node: str
) -> None:
    ran = {"git_commit": "c0ffee", "accelerator": "NVIDIA H200", "accelerators_per_node": 2}
    record: Any = SimpleNamespace(environment=ran | changes, started_at="2026-11-29T21:28:14+00:00")
    assert _node(record) == node
    record.started_at = None
    assert _node(record) == (node if "device_ids" in changes else "")


@pytest.mark.parametrize(
    ("work", "missing", "suspect"),
    [
        # moves of a fitted kind: (0.09 x its seconds + 0.01 x the other's) x its seconds
        ({"gemm": 1.0, "attention": 1.0}, 1.0, "gemm"),  # 0.1 against 0.05
        ({"gemm": 1.0, "attention": 2.0}, 1.0, "attention"),  # 0.11 against 0.18
        # of one that was never measured: (deviation x seconds) ** 2 = 0.49
        ({"gemm": 1.0, "launch": 1.0}, 1.0, "launch"),
        ({"gemm": 3.0, "launch": 1.0}, 1.0, "gemm"),  # 0.81
        ({"gemm": 1.0}, 0.0, None),
        ({"gemm": 1.0}, -1.0, None),
    ],
)
def test_the_suspect_is_the_kind_that_explains_missing_seconds_most_cheaply(
    work: dict[str, float], missing: float, suspect: str | None
) -> None:
    covariance = np.array([[0.09, 0.01], [0.01, 0.04]])
    fitted = RateFit(belief(machine(DEVICE, 8)), ("gemm", "attention"), {}, covariance, ())
    found = _suspect(fitted, StepSample(1.0, work, "a", "x"), missing)
    assert found == (KINDS[suspect].words if suspect else None)


def test_a_vague_belief_keeps_kinds_that_the_samples_would_make_cost_nothing() -> None:
    """More matrix products in less time: small models say nothing about their rate."""
    samples = tuple(
        StepSample(seconds, {"gemm": gemm, "launch": 1.0}, str(gemm), "tp1")
        for seconds, gemm in ((1.0, 0.2), (0.9, 0.4))
    )
    means, deviations = {"gemm": 1.0, "launch": 1.0}, {"gemm": 1.5, "launch": 1.5}
    sure = least_squares(samples, Belief(means, deviations))
    assert sure.slowness["gemm"] == 0
    made = least_squares(samples, Belief(means, deviations, vague=True))
    assert (made.kinds, made.slowness["gemm"]) == (("launch",), 1.0)
    # What is left of the samples is 0.8 and 0.5 s, weighed by 1 / (0.02 x seconds)^2.
    weights = [(0.02 * 1.0) ** -2, (0.02 * 0.9) ** -2]
    launch = (0.8 * weights[0] + 0.5 * weights[1] + 1.5**-2) / (sum(weights) + 1.5**-2)
    assert made.slowness["launch"] == pytest.approx(launch)
    small, large = ({"gemm": gemm, "launch": 1.0} for gemm in (0.1, 100.0))
    assert made.variance(small) < 0.1 < 2 < made.variance(large)  # 1.5^2 at most
