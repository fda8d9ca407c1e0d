"""A run's numbers: what is averaged, what is null and why, and how sure a rate is."""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from scalebook import identity
from scalebook.errors import ConfigError
from scalebook.facts import catalog
from scalebook.facts.flops import flops_per_token, hardware_flops_per_token
from scalebook.measure.metrics import loss_fell, measure, peak, window
from scalebook.measure.metrics.recorded import count
from scalebook.measure.metrics.repeats import (
    Estimate,
    Spread,
    _measured_starts,
    _most_by_chance,
    _with_starts,
    of_configuration,
    pool,
    spread,
    start_spread,
    with_repeats,
)
from scalebook.measure.metrics.stability import MINIMUM_STEPS
from scalebook.measure.metrics.steady import Steady
from scalebook.measure.telemetry.summary import Settling
from scalebook.record import RunRecord, StepRecord
from scalebook.store import Run

H100 = "NVIDIA H100 80GB HBM3"
SETTINGS = {
    "platform": "h100",
    "model": "llama3.1-8b",
    "world_size": 8,
    "nodes": 1,
    "engine": "megatron",
    "strategy": "balanced",
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 1,
    "context_parallel_size": 1,
    "expert_parallel_size": 1,
    "micro_batch_size": 1,
    "global_batch_size": 128,
    "sequence_length": 2048,
    "precision": "bf16",
}
TOKENS = 128 * 2048
VERSIONS = {"torch": "2.11.0", "megatron_core": "0.16.1"}
# The fields that scripts rely on.
FIELDS = (
    "run_id",
    "status",
    "reason",
    "source",
    "platform",
    "accelerator",
    "world_size",
    "nodes",
    "engine",
    "model",
    "num_layers",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "context_parallel_size",
    "expert_parallel_size",
    "data_parallel_size",
    "micro_batch_size",
    "global_batch_size",
    "sequence_length",
    "precision",
    "strategy",
    "measured_steps",
    "step_seconds_median",
    "tokens_per_second",
    "tokens_per_second_per_gpu",
    "model_tflops_per_second_per_gpu",
    "mfu",
    "mfu_low",
    "mfu_high",
    "peak_memory_gib",
    "loss_first",
    "loss_last",
)


def steps(seconds, phase="measured", first=1, **fields):
    return [
        StepRecord(step=first + index, phase=phase, step_seconds=value, tokens=TOKENS, **fields)
        for index, value in enumerate(seconds)
    ]


def test_the_mfu_by_hand_in_the_readme_is_the_measured_one(root):
    text = (root / "src" / "scalebook" / "measure" / "README.md").read_text(encoding="utf-8")
    block = text.split("```python\n")[1].split("```")[0]
    found: dict[str, Any] = {}
    exec(block, found)
    assert found["tokens"] == TOKENS
    item = measure(make_run(steps(found["step_seconds"])))
    assert item.mfu == pytest.approx(found["mfu"], rel=1e-9)
    assert item.model_tflops_per_second_per_gpu == pytest.approx(found["tflops"], rel=1e-9)
    said = f"{found['tflops']:.0f} TFLOP/s per GPU and an MFU of {100 * found['mfu']:.1f} %"
    assert said in text.replace("\n", " ")


def test_a_rate_does_not_leave_out_the_time_that_a_restart_took():
    before, after = steps([8.0] * 12), steps([8.0] * 12, first=9, restart=1)
    item = measure(make_run([*before, *after]))
    assert item.tokens_per_second is None
    assert "started again" in item.throughput_reason
    warm = steps([8.0] * 2, phase="warmup")
    assert measure(make_run([*warm, *after])).tokens_per_second == pytest.approx(TOKENS / 8)


def make_run(
    series=None, *, status="completed", device: object = H100, observed=None, environment=None,
    **settings,
):  # fmt: skip
    record = RunRecord(
        run_id="20260101-x",
        config_hash="0123456789ab",
        status=status,
        requested=SETTINGS | settings,
        observed=observed or {},
        environment={"accelerator": device} | VERSIONS | (environment or {}),
    )
    return Run(Path("x"), record, tuple(steps([8.0] * 20) if series is None else series))


def test_every_field_that_scripts_rely_on_is_there():
    assert set(FIELDS) <= set(asdict(measure(make_run())))


def test_rates_follow_from_tokens_and_time_alone():
    found = measure(make_run(steps([8.0, 10.0, 6.0, 8.0] * 5)))
    assert found.step_seconds_median == 8.0
    assert found.tokens_per_second == pytest.approx(TOKENS / 8)
    assert found.tokens_per_second_per_gpu == pytest.approx(TOKENS / 64)
    counted = flops_per_token(catalog.model("llama3.1-8b"), 2048)
    assert found.model_tflops_per_second_per_gpu == pytest.approx(TOKENS / 64 * counted / 1e12)
    assert found.mfu == pytest.approx(TOKENS / 64 * counted / 1e12 / 989.4)
    assert (found.peak_tflops_per_second, found.peak_precision) == (989.4, "bf16")
    assert found.data_parallel_size == 4
    assert found.num_layers == 32


def test_a_rate_is_total_tokens_over_total_time_not_a_mean_of_rates():
    found = measure(make_run(steps([1.0, 9.0, 1.0, 9.0])))
    assert found.tokens_per_second == pytest.approx(4 * TOKENS / 20)


def test_a_short_window_whose_halves_are_unlike_is_not_averaged():
    """The router of a mixture learns: 8 s a step become 13 s while a few are measured."""
    learning = measure(make_run(steps([8, 8, 8.1, 13, 13.1, 13])))
    assert (learning.tokens_per_second, learning.mfu) == (None, None)
    assert "later half of the steps takes 62 % more than the earlier" in learning.throughput_reason
    spike = measure(make_run(steps([8, 8, 8.1, 8, 31, 8.1])))
    assert spike.tokens_per_second == pytest.approx(6 * TOKENS / 71.2)
    assert spike.tokens_per_second_low is None
    assert "Too short to say" in spike.interval_reason


def test_only_measured_steps_count():
    series = [
        *steps([500.0], "startup"),
        *steps([90.0] * 4, "warmup", 2),
        *steps([8.0] * 12, first=6),
        *steps([70.0], "profiled", 18),
    ]
    found = measure(make_run(series))
    assert found.measured_steps == 12
    assert found.step_seconds_median == 8.0
    assert found.tokens_per_second == TOKENS / 8


def test_a_step_that_waits_for_a_checkpoint_is_not_measured():
    plain = {"checkpoint_seconds": 1e-4}  # an asynchronous save was asked whether it is done
    series = [
        *steps([8.0] * 12, **plain),
        *steps([28.0], first=13, checkpoint_seconds=20.0),
        *steps([8.0] * 12, first=14, **plain),
    ]
    found = measure(make_run(series))
    assert found.measured_steps == 24
    assert found.tokens_per_second == TOKENS / 8
    saving = steps([28.0] * 12, checkpoint_seconds=20.0)
    assert "waited for a checkpoint" in measure(make_run(saving)).throughput_reason


RATES = (
    "step_seconds_median",
    "tokens_per_second",
    "tokens_per_second_per_gpu",
    "model_tflops_per_second_per_gpu",
    "mfu",
    "mfu_low",
    "mfu_high",
)


def assert_no_rate(found, reason):
    for name in RATES:
        assert getattr(found, name) is None, name
    for name in ("throughput_reason", "model_tflops_reason", "mfu_reason", "mfu_interval_reason"):
        assert reason in getattr(found, name), name


@pytest.mark.parametrize("series", [[], steps([9.0] * 5, "warmup"), steps([9.0], "startup")])
def test_a_run_that_measured_nothing_has_no_rate(series):
    found = measure(make_run(series))
    assert found.measured_steps == 0
    assert_no_rate(found, "No step was measured")


@pytest.mark.parametrize(
    "status", ["failed", "interrupted", "timeout", "out_of_memory", "diverged", "illegal"]
)
def test_a_run_that_did_not_complete_is_not_averaged(status):
    found = measure(make_run(status=status))
    assert found.measured_steps == 20
    assert_no_rate(found, status)


@pytest.mark.parametrize("bad", [0.0, -1.0, 1e-300, 1e300, math.nan, math.inf])
def test_a_step_without_a_time_makes_no_rate(bad):
    series = steps([8.0] * 12)
    series[-1] = series[-1].model_copy(update={"step_seconds": bad})
    assert_no_rate(measure(make_run(series)), "no time above zero")


@pytest.mark.parametrize("tokens", [0, -5, 10**400])
def test_a_step_without_tokens_makes_no_rate(tokens):
    series = [*steps([8.0] * 11), StepRecord(step=12, phase="measured", step_seconds=8.0, tokens=1)]
    series[-1] = series[-1].model_copy(update={"tokens": tokens})
    assert_no_rate(measure(make_run(series)), "no usable number of tokens")


def test_mfu_is_none_on_a_cpu():
    found = measure(make_run(platform="cpu", device=None, model="tiny-llama", precision="fp32"))
    assert found.model_tflops_per_second_per_gpu is not None
    assert found.mfu is None
    assert found.mfu_reason == "A CPU has no peak in the catalog: MFU is left empty."


def test_mfu_is_none_for_an_unknown_device():
    found = measure(make_run(device="NVIDIA H100"))
    assert found.tokens_per_second is not None
    assert found.mfu is None
    assert "'NVIDIA H100'" in found.mfu_reason
    assert measure(make_run(device=None)).mfu is None
    assert measure(make_run(device=["x"])).accelerator is None


def test_mfu_is_none_for_a_slice_of_a_device():
    found = measure(make_run(device="NVIDIA H100 80GB HBM3 MIG 1g.10gb"))
    assert found.tokens_per_second is not None
    assert found.mfu is None
    assert "MIG slice" in found.mfu_reason


def test_mfu_is_none_for_fp8_without_named_denominator():
    run = make_run(precision="fp8")
    found = measure(run)
    assert found.mfu is None
    assert "--peak-precision" in found.mfu_reason
    assert found.model_tflops_per_second_per_gpu is not None
    by_bf16, by_fp8 = (measure(run, peak_precision=name) for name in ("bf16", "fp8"))
    assert by_bf16.mfu == pytest.approx(by_fp8.mfu * 1978.9 / 989.4)


def test_a_named_denominator_changes_only_fp8_runs():
    assert measure(make_run(), peak_precision="fp8") == measure(make_run())


def test_mfu_is_none_where_the_device_lacks_the_precision():
    found = measure(make_run(device="NVIDIA A100-SXM4-80GB", precision="fp8"), peak_precision="fp8")
    assert found.mfu is None
    assert "No dense peak" in found.mfu_reason


def test_an_fp32_run_with_tensor_cores_is_held_against_their_peak():
    plain = measure(make_run(precision="fp32"))
    assert (plain.peak_tflops_per_second, plain.peak_precision) == (67.0, "fp32")
    fast = measure(make_run(precision="fp32", observed={"float32_matmul": "high"}))
    assert (fast.peak_tflops_per_second, fast.peak_precision) == (494.7, "tf32")
    amd = measure(make_run(precision="fp32", device="AMD Instinct MI250X"))
    assert (amd.peak_tflops_per_second, amd.peak_precision) == (47.9, "fp32_matrix")


def test_hfu_counts_what_was_recomputed():
    none, full = (measure(make_run(recompute=mode)) for mode in ("none", "full"))
    assert none.hfu == pytest.approx(none.mfu)
    shape = catalog.model("llama3.1-8b")
    factor = hardware_flops_per_token(shape, 2048, "full") / flops_per_token(shape, 2048)
    assert full.mfu == none.mfu
    assert full.hfu == pytest.approx(factor * full.mfu)
    some = measure(make_run(recompute="full", recompute_layers=8))
    added = full.hfu - none.hfu
    assert some.hfu - none.hfu == pytest.approx(added * 8 / 32)


def test_hfu_counts_the_modules_that_were_recomputed():
    shape = catalog.model("llama3.1-8b")
    mlp = 2 * 32 * 3 * 4096 * 14336  # FLOPs of its forward pass per token, by hand
    found = measure(make_run(recompute="selective", recompute_modules="mlp layernorm"))
    assert found.hfu / found.mfu - 1 == pytest.approx(mlp / flops_per_token(shape, 2048))
    groups = measure(
        make_run(recompute="full", recompute_method="uniform", recompute_layers=8)
    )  # all of them, eight at a time
    assert groups.hfu == pytest.approx(measure(make_run(recompute="full")).hfu)
    odd = measure(make_run(recompute="selective", observed={"recompute_modules": "mlps"}))
    assert odd.hfu is None
    assert "not known" in odd.hfu_reason


def test_hfu_is_mfu_where_nothing_was_recomputed_whatever_the_convention():
    """Mistral 7B's MFU counts the pairs inside its windows of 4,096 tokens; so must its HFU."""
    found = measure(make_run(model="mistral-7b", sequence_length=32768, recompute="none"))
    assert found.flops_convention == "sliding_window"
    assert found.hfu == pytest.approx(found.mfu)


def test_a_module_for_a_further_token_is_work_that_counts():
    """DeepSeek-V3 with its module: 259,992,950,784 FLOPs a token (facts, megatron+MTP)."""
    shape = catalog.model("deepseek-v3")
    slow = steps([80.0] * 20)
    plain, more = (
        measure(
            make_run(slow, model=shape.name, sequence_length=4096, recompute="full", mtp_layers=n)
        )
        for n in (0, 1)
    )
    per_token = [flops_per_token(shape, 4096, mtp_layers=n) for n in (0, 1)]
    assert per_token[1] == 259_992_950_784
    assert more.mfu / plain.mfu == pytest.approx(per_token[1] / per_token[0])
    hardware = hardware_flops_per_token(shape, 4096, "full", mtp_layers=1)
    assert more.hfu / more.mfu == pytest.approx(hardware / per_token[1])


def test_attention_of_packed_documents_is_counted_inside_each():
    """Llama 3.1 8B (facts/flops): 6 x 7,504,658,432 and 6 x 32 layers x 2,048 x 4,096 a token."""
    per_token = 6 * 7_504_658_432 + 6 * 32 * 2048 * 4096
    found = measure(make_run(sequence_length=8192, packed_documents=4, recompute="selective"))
    assert found.model_tflops_per_second_per_gpu == pytest.approx(TOKENS / 64 * per_token / 1e12)
    assert found.mfu == pytest.approx(TOKENS / 64 * per_token / 1e12 / 989.4)
    # The core's forward pass, a third of its FLOPs, runs twice.
    assert found.hfu / found.mfu == pytest.approx(1 + 2 * 32 * 2048 * 4096 / per_token)
    whole = measure(make_run(sequence_length=8192))
    assert whole.mfu > found.mfu


def test_hfu_is_none_where_nobody_says_what_was_recomputed():
    for mode in (None, "some", ["full"]):
        found = measure(make_run(recompute=mode))
        assert found.mfu is not None
        assert found.hfu is None
        assert "recomputed" in found.hfu_reason


def test_a_rate_above_the_peak_of_the_device_is_void_with_its_reason():
    found = measure(make_run(steps([0.01] * 20)))
    assert (found.status, found.mfu, found.mfu_low, found.tokens_per_second) == (
        "void", None, None, None,
    )  # fmt: skip
    for reason in (found.reason, found.mfu_reason, found.throughput_reason):
        assert "times the dense bf16 peak" in reason


def test_one_loss_is_not_accused_of_standing_still_and_noise_is_not_a_rise():
    assert loss_fell([2.0]) is None
    assert loss_fell([2.0, 2.0]) is False
    assert loss_fell([10.0, 10.2]) is None  # two steps of a start
    assert loss_fell([10.0, 10.21]) is False
    assert loss_fell([10.0] * 9 + [10.1]) is False
    assert loss_fell([2.0, 1.9, 1.8, 1.7, 1.75, 2.01]) is True
    assert loss_fell([2.0, 2.1, 2.2, 2.3]) is False
    assert loss_fell([0.0, 0.001, 0.003]) is None  # of a policy, as GRPO begins
    assert loss_fell([-0.05, 0.7, 0.6]) is None
    assert loss_fell([0.01, 0.04, 0.08]) is None
    assert loss_fell([0.4, 0.6, 0.9]) is False


def test_what_ran_counts_before_what_was_asked_for():
    found = measure(make_run(observed={"world_size": 4, "tensor_parallel_size": 4}))
    assert (found.world_size, found.tensor_parallel_size, found.data_parallel_size) == (4, 4, 1)


def test_the_layers_that_ran_are_counted():
    whole, part = measure(make_run()), measure(make_run(observed={"num_layers": 8}))
    proxy = measure(make_run(model="llama3.1-8b@8"))
    assert part.num_layers == proxy.num_layers == 8
    rate = "model_tflops_per_second_per_gpu"
    assert getattr(part, rate) == getattr(proxy, rate) < getattr(whole, rate)


@pytest.mark.parametrize("value", [0, 1, 2, 2**53, 2**53 + 1])
def test_a_count_is_from_one_to_what_a_float_holds_exactly(value):
    expected = value if 1 <= value <= 9_007_199_254_740_992 else None
    assert count(make_run(world_size=value).record, "world_size") == expected


@pytest.mark.parametrize(
    ("observed", "layers"),
    [
        ({"trained": "lora"}, 32),  # those of the model
        ({"trained": "lora", "num_layers": 8}, 8),
        ({"trained": "lora", "model": "secret-9b"}, None),
        ({"trained": "lora", "model": "secret-9b", "num_layers": 8}, 8),
        ({"model": "secret-9b", "num_layers": 8}, 8),
        ({"sequence_length": "x"}, 32),
    ],
)
def test_the_layers_are_known_where_the_flops_are_not(observed, layers):
    found = measure(make_run(observed=observed))
    assert (found.num_layers, found.model_tflops_per_second_per_gpu) == (layers, None)
    assert found.model_tflops_reason


def test_a_shape_that_is_not_the_named_models_has_no_flops():
    found = measure(make_run(observed={"hidden_size": 2048}))
    assert found.model_tflops_per_second_per_gpu is None
    assert "hidden_size=2048, but llama3.1-8b has 4096" in found.model_tflops_reason
    assert measure(make_run(observed={"hidden_size": 4096})).mfu is not None


def test_an_unknown_model_has_tokens_but_no_flops():
    found = measure(make_run(model="secret-9b"))
    assert found.tokens_per_second is not None
    assert found.model_tflops_per_second_per_gpu is None
    assert found.mfu is None
    assert "secret-9b" in found.model_tflops_reason
    assert found.mfu_reason == found.model_tflops_reason


@pytest.mark.parametrize("value", [None, "8", 8.0, True, 0, -1, 10**400, [8], {}])
def test_a_setting_of_the_wrong_kind_is_no_setting(value):
    found = measure(make_run(world_size=value, sequence_length=value))
    assert found.world_size is None
    assert found.tokens_per_second is not None
    assert found.tokens_per_second_per_gpu is None
    assert found.model_tflops_reason == "The run names no sequence_length."
    json.dumps(found.as_dict(), allow_nan=False)


def test_peak_memory_is_the_most_allocated_in_any_phase():
    series = [
        *steps([9.0], "warmup", allocated_gib=70.5, reserved_gib=75.0),
        *steps([8.0] * 10, first=2, allocated_gib=60.0, reserved_gib=75.0),
    ]
    assert measure(make_run(series)).peak_memory_gib == 70.5
    assert measure(make_run(steps([8.0], reserved_gib=75.0))).peak_memory_gib == 75.0


def test_memory_that_nobody_recorded_is_none_with_a_reason():
    assert measure(make_run()).peak_memory_gib is None
    told = make_run(environment={"memory_reason": "the CPU has no device allocator"})
    assert measure(told).peak_memory_reason == "the CPU has no device allocator"


def test_first_and_last_loss_skip_what_is_no_number():
    losses = [None, 11.5, 9.0, math.nan, 7.25, None]
    series = [
        StepRecord(step=index, phase="warmup", step_seconds=1.0, tokens=1, loss=loss)
        for index, loss in enumerate(losses, start=1)
    ]
    found = measure(make_run(series))
    assert (found.loss_first, found.loss_last) == (11.5, 7.25)
    assert measure(make_run([])).loss_first is None


def test_too_few_steps_have_no_interval_but_a_rate():
    found = measure(make_run(steps([8.0] * (MINIMUM_STEPS - 1))))
    assert found.mfu is not None
    assert found.mfu_low is None
    assert "at least 10 are needed" in found.mfu_interval_reason
    enough = measure(make_run(steps([8.0] * MINIMUM_STEPS)))
    # a step of twice the length may come once in 45 steps, and what a start changes
    starts = math.hypot(math.log(1 + 1 / 45), 1.959964 * 0.005)
    assert enough.mfu_low == pytest.approx(enough.mfu * math.exp(-starts))
    assert enough.mfu_interval_reason is None


def test_the_interval_holds_the_value_and_is_the_same_every_time():
    generator = random.Random(1)
    run = make_run(steps([generator.gauss(8, 0.4) for _ in range(60)]))
    first, second = measure(run), measure(run)
    assert first == second
    assert first.mfu_low < first.mfu < first.mfu_high
    assert first.mfu_high / first.mfu_low == pytest.approx(
        first.tokens_per_second_high / first.tokens_per_second_low
    )


SECONDS = st.lists(st.floats(4, 400), min_size=MINIMUM_STEPS, max_size=40)


@given(SECONDS, st.floats(0.5, 2))
def test_mfu_is_linear_in_tokens_per_second(seconds, factor):
    slow = measure(make_run(steps(seconds)))
    fast = measure(make_run(steps([value / factor for value in seconds])))
    if slow.mfu is None or slow.mfu_low is None:
        assert (fast.mfu is None, fast.mfu_low) == (slow.mfu is None, None)
        return
    assert fast.mfu == pytest.approx(factor * slow.mfu)
    assert fast.mfu_low == pytest.approx(factor * slow.mfu_low)
    assert fast.tokens_per_second == pytest.approx(factor * slow.tokens_per_second)


@given(SECONDS)
def test_the_interval_is_ordered_around_the_value(seconds):
    found = measure(make_run(steps(seconds)))
    if found.tokens_per_second is None:
        assert "not averaged" in found.throughput_reason
        return
    slowest, fastest = TOKENS / max(seconds), TOKENS / min(seconds)
    assert slowest * (1 - 1e-9) <= found.tokens_per_second <= fastest * (1 + 1e-9)
    if found.mfu_low is None:
        assert found.mfu_interval_reason
    else:
        assert 0 < found.mfu_low <= found.mfu <= found.mfu_high


def drifting(count=40):
    return [8.0 + at / 10 + (0.01 if at % 3 else 0.0) for at in range(count)]


def test_a_window_that_drifts_is_said_and_not_averaged():
    found = measure(make_run(steps(drifting())))
    assert_no_rate(found, "Still drifting")
    assert found.measured_steps == 40
    assert found.steady is None
    assert "drifting" in found.steady_reason


def test_too_few_steps_are_a_total_without_an_interval_or_a_steady_state():
    found = measure(make_run(steps([8.0, 9.0, 8.5])))
    assert found.tokens_per_second == pytest.approx(3 * TOKENS / 25.5)
    assert (found.steady, found.step_seconds_mean, found.tokens_per_second_low) == (
        False, None, None,
    )  # fmt: skip
    assert "Too short to say" in found.interval_reason


def test_a_longer_warm_up_than_recorded_is_left_out():
    generator = random.Random(4)
    series = [12.0, 11.0, 10.0, 9.0] + [generator.gauss(8, 0.02) for _ in range(40)]
    found = measure(make_run(steps(series, first=6)))
    assert (found.measured_steps, found.steady_steps, found.steady_first_step) == (44, 40, 10)
    assert found.step_seconds_mean == pytest.approx(sum(series[4:]) / 40)
    assert found.tokens_per_second == pytest.approx(TOKENS / found.step_seconds_mean)
    assert found.step_seconds_low < found.step_seconds_mean < found.step_seconds_high
    ends = (found.run_tokens_per_second_low, found.run_tokens_per_second_high)
    assert found.tokens_per_second_low < ends[0] < ends[1] < found.tokens_per_second_high
    assert ends == pytest.approx(
        (TOKENS / found.step_seconds_high, TOKENS / found.step_seconds_low)
    )
    assert found.step_seconds_p10 < found.step_seconds_median < found.step_seconds_p99


def test_steps_of_unequal_tokens_are_compared_by_the_time_of_a_token():
    tokens = [TOKENS, 2 * TOKENS] * 10
    series = [
        step.model_copy(update={"tokens": amount, "step_seconds": 8.0 * amount / TOKENS})
        for step, amount in zip(steps([8.0] * 20), tokens, strict=True)
    ]
    found = measure(make_run(series))
    assert found.tokens_per_second == pytest.approx(TOKENS / 8)
    seen = (found.run_tokens_per_second_low, found.run_tokens_per_second_high)
    assert seen == pytest.approx((TOKENS / 8, TOKENS / 8))


def test_the_straggler_is_the_rank_that_is_slower_over_the_window():
    series = steps([8.0] * 12, rank_step_seconds=(8.0, 7.0, 8.4, 7.5))
    found = measure(make_run(series))
    assert (found.rank_seconds_fastest, found.rank_seconds_slowest) == (7.0, pytest.approx(8.4))
    assert found.slowest_rank == 2
    assert found.straggler_spread == pytest.approx(0.2)
    assert measure(make_run()).straggler_spread is None
    alone = measure(make_run(steps([8.0] * 12, rank_step_seconds=(8.0,))))
    assert "one rank" in alone.straggler_reason


def repeated(means, **settings):
    pairs = []
    for repeat, mean in enumerate(means):
        generator = random.Random(repeat)
        run = make_run(
            steps([generator.gauss(mean, 0.01) for _ in range(30)]), repeat=repeat, **settings
        )
        pairs.append((run.record, measure(run)))
    return pairs


def test_repeats_are_pooled_with_the_spread_between_runs():
    """Three runs whose steps are far quieter than the runs differ: Student's interval of means."""
    pooled = with_repeats(repeated([8.0, 8.2, 8.1]))
    assert [item.repeats for item in pooled] == [3, 3, 3]
    logs = [math.log(item.tokens_per_second) for item in pooled]
    mean = sum(logs) / 3
    deviation = math.sqrt(sum((value - mean) ** 2 for value in logs) / 2)
    # They differ by far more than the assumed 0.5 %, which then does not count, but measure the
    # spread of starts that the interval of each run has.
    half = 4.302653 * deviation / math.sqrt(3)
    for item in pooled:
        assert item.start_spread == pytest.approx(deviation, rel=1e-3)
        assert item.start_spread_runs == 3
        wider = math.log(item.tokens_per_second / item.tokens_per_second_low)
        assert wider > 1.95 * deviation
        assert item.pooled_tokens_per_second == pytest.approx(math.exp(mean))
        assert item.pooled_tokens_per_second_low == pytest.approx(math.exp(mean - half))
        assert item.pooled_tokens_per_second_high == pytest.approx(math.exp(mean + half))


def test_a_run_alone_and_a_run_of_another_configuration_are_not_pooled():
    (alone,) = with_repeats(repeated([8.0]))
    assert (alone.repeats, alone.pooled_tokens_per_second) == (1, None)
    assert "two runs" in alone.pooled_reason
    others = with_repeats([*repeated([8.0]), *repeated([8.0], micro_batch_size=2)])
    assert [item.repeats for item in others] == [1, 1]


def test_a_run_that_asked_for_nothing_is_no_repeat():
    assert identity.repeat(RunRecord(run_id="x", config_hash=None, status="completed")) is None


def test_repeats_from_before_and_after_a_setting_came_are_pooled():
    old, new = ({"model": "tiny-llama"}, {"model": "tiny-llama", "gradient_precision": "fp32"})
    other = new | {"gradient_precision": "bf16"}
    keys = [identity.repeat(make_run([], **asked).record) for asked in (old, new, other)]
    assert keys[0] == keys[1] != keys[2]


def test_two_repeats_do_not_count_on_their_one_difference_alone():
    same = [Estimate.of(100.0, 99.9, 100.1, 50)] * 2
    pooled = pool(same, 0.005)
    least = 1.959964 * 0.9 * 0.005 / math.sqrt(2)
    assert math.log(pooled.high / pooled.rate) > least


def test_pooled_intervals_hold_the_truth_of_runs_that_differ():
    generator, held = random.Random(6), {}
    for runs in (3, 5):
        hits = 0
        for _ in range(400):
            means = [math.exp(generator.gauss(0, 0.02)) for _ in range(runs)]
            pooled = pool([Estimate.of(m, m * 0.999, m * 1.001, 50) for m in means])
            hits += pooled.low <= 1 <= pooled.high
        held[runs] = hits / 400
    # 2 % is four times what is assumed: three repeats do not always show that they contradict it
    assert all(0.88 <= share <= 0.98 for share in held.values()), held


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=3,
)


@given(
    st.dictionaries(st.sampled_from([*SETTINGS, "num_layers", "recompute"]), ANYTHING),
    ANYTHING,
    st.lists(st.builds(StepRecord.model_construct, step=st.integers(), phase=st.just("measured"),
                       step_seconds=st.floats(), tokens=st.integers(), loss=st.floats(),
                       allocated_gib=st.floats()), max_size=12),
)  # fmt: skip
def test_whatever_a_record_holds_is_measured_or_null(settings, device, series):
    run = make_run(series, device=device, observed=settings, environment={"memory_reason": device})
    json.dumps(measure(run).as_dict(), allow_nan=False)


# The parts of a window, worked by hand


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ([1.0, 1.0, 1.09, 1.09], None),
        ([1.0, 1.0, 0.91, 0.91], None),
        ([1.0, 1.0, 1.2, 1.2], "The later half of the steps takes 20 % more than the earlier."),
        ([1.0, 1.0, 0.8, 0.8], "The later half of the steps takes 20 % less than the earlier."),
        ([1.0, 1.0, 1.0, 9.0, 1.0, 1.0], None),  # one slow step is not the half
        ([1.0], None),
        ([1.0, 2.0], "The later half of the steps takes 100 % more than the earlier."),
    ],
)
def test_halves_are_unlike_above_a_tenth(seconds, words):
    assert window._apart(seconds) == words


def test_the_interval_of_a_rate_is_that_of_the_time_turned_round():
    known = Steady(20, None, None, mean=2.0)
    assert window._rate_interval(100.0, known, (1.6, 2.5)) == (80.0, 125.0)
    for ends in ((None, 2.5), (1.6, None), (0.0, 2.5)):
        assert window._rate_interval(100.0, known, ends) is None
    assert window._rate_interval(100.0, replace(known, mean=None), (1.6, 2.5)) is None


def test_steps_of_other_tokens_are_evened_to_the_mean():
    assert window._evened([1.0, 2.0], [100, 100]) == [1.0, 2.0]
    assert window._evened([1.0, 2.0], [100, 300]) == [2.0, pytest.approx(4 / 3)]


@pytest.mark.parametrize(
    ("ranks", "expected", "reason"),
    [
        ((2.0, 3.0), (2.0, 3.0, 1, 0.5), None),
        ((3.0, 2.0, 2.5), (2.0, 3.0, 0, 0.5), None),
        ((2.0, 2.0), (2.0, 2.0, 0, 0.0), None),
        ((2.0,), (None,) * 4, "No straggler can be named: one rank."),
        ((0.0, 2.0), (None,) * 4, "A rank has no time above zero."),
        ((2.0, 1e9), (None,) * 4, "A rank has no time above zero."),
        ((), (None,) * 4, "No straggler can be named: not every step has a time of every rank."),
    ],
)
def test_the_spread_of_ranks_is_the_slowest_over_the_fastest(ranks, expected, reason):
    found = window.stragglers(steps([8.0] * 3, rank_step_seconds=ranks))
    assert list(found.values()) == [*expected, reason]


def test_the_load_of_experts_is_the_mean_over_steps_that_all_tell_it():
    def loads(*values):
        return window.expert_load([replace_load(value) for value in values])

    def replace_load(value):
        return steps([1.0])[0].model_copy(update={"expert_load": value})

    assert loads(1.0, 1.5) == {"expert_load": 1.25, "expert_load_reason": None}
    assert loads(1.5, None)["expert_load"] is None
    assert loads(0.5)["expert_load"] is None
    assert loads(1e6)["expert_load"] is None
    assert loads()["expert_load_reason"].startswith("The steps do not show")


def test_the_variance_of_repeats_is_at_least_what_their_steps_explain():
    """By hand: two runs 0.02 apart have squares of 0.0002; steps of +-3.92 % explain 0.0004."""
    runs = [Estimate(0.0, 0.0, 9), Estimate(0.02, 0.0, 9)]
    # 8 x the assumed 0.5 % squared: it contradicts, and counts once beside one difference
    assert spread([runs], 0.005) == Spread(pytest.approx((0.0002 + 2.5e-5) / 2), 2)
    assert spread([runs], 0.05) == Spread(pytest.approx((0.0002 + 8 * 0.0025) / 9), 9)
    assert spread([runs[:1], runs[:1]], 0.005) is None
    assert spread([[runs[0]] * 2], 0.0) == Spread(0.0, 9)  # no spread at all was assumed
    three = [*runs, Estimate(0.01, 0.0, 9)]
    assert spread([three], 0.001) == Spread(pytest.approx(0.0001), 2)
    wide = [Estimate(one.log_rate, 1.959964 * 0.02, 9) for one in three]
    assert spread([wide], 0.0) == Spread(pytest.approx(0.0004, rel=1e-5), 10)
    assert spread([three, runs], 0.001) == Spread(pytest.approx(0.0004 / 3), 3)


@pytest.mark.parametrize("freedom", [1, 2, 5, 20])
def test_repeats_contradict_a_spread_beyond_the_90_percent_point_of_chi_square(freedom):
    assert _most_by_chance(freedom) == pytest.approx(stats.chi2.ppf(0.9, freedom), rel=0.03)


def test_repeats_of_a_configuration_do_not_exclude_each_other():
    """Two H100 repeats whose steps give 37,306 to 37,365 and 37,478 to 37,635 tokens/s."""
    ends = [of_configuration(rate, *seen, 0.005)
            for rate, seen in ((37335, (37306, 37365)), (37556, (37478, 37635)))]  # fmt: skip
    assert ends[0][1] > ends[1][0]
    assert math.log(ends[0][1] / 37335) == pytest.approx(
        math.hypot(math.log(37365 / 37335), 1.959964 * 0.005)
    )


@pytest.mark.parametrize(("text", "value"), [("0.01", 0.01), ("1%", 0.01), ("0", 0.0)])
def test_the_assumed_spread_of_starts_can_be_stated(monkeypatch, text, value):
    monkeypatch.setenv("SCALEBOOK_START_SPREAD", text)
    assert start_spread("h100") == start_spread("cpu") == value


@pytest.mark.parametrize("text", ["half", "-1%", "100%", "nan"])
def test_a_spread_of_starts_that_is_no_fraction_is_refused(monkeypatch, text):
    monkeypatch.setenv("SCALEBOOK_START_SPREAD", text)
    with pytest.raises(ConfigError, match="from 0 to below 1"):
        start_spread("h100")


def test_an_estimate_has_the_wider_half_of_its_interval():
    found = Estimate.of(100.0, 90.0, 105.0, 7)
    assert (found.log_rate, found.half) == (math.log(100), pytest.approx(math.log(100 / 90)))
    assert Estimate.of(100.0, 99.0, 110.0, 7).half == pytest.approx(math.log(1.1))
    assert found.variance == pytest.approx((found.half / 1.959964) ** 2)
    pooled = pool([Estimate(math.log(rate), 0.0, 9) for rate in (100, 102, 104)])
    assert (pooled.runs, pooled.rate) == (3, pytest.approx((100 * 102 * 104) ** (1 / 3)))
    assert math.sqrt(pooled.low * pooled.high) == pytest.approx(pooled.rate)


def test_a_rate_without_a_best_product_says_why_there_is_no_fraction():
    environment = {"ceilings": {"matmul_tflops": {"bf16": 800.0}}, "accelerator": H100}
    probed = RunRecord(run_id="a", config_hash=None, status="completed", requested=SETTINGS,
                       environment=environment)  # fmt: skip
    plain = probed.model_copy(update={"environment": {"accelerator": H100}})
    found = peak.matmul_fraction(400.0, probed, None, None)
    assert found == {
        "measured_matmul_tflops": 800.0, "matmul_fraction": 0.5, "matmul_fraction_reason": None,
    }  # fmt: skip
    assert (
        peak.matmul_fraction(None, probed, None, "No rate.")["matmul_fraction_reason"] == "No rate."
    )
    without = peak.matmul_fraction(400.0, plain, None, None)
    assert (without["matmul_fraction"], without["measured_matmul_tflops"]) == (None, None)
    assert without["matmul_fraction_reason"] == f"{peak.NOT_PROBED}."


@pytest.mark.parametrize(
    ("seconds", "settled", "accepted", "note"),
    [
        (59.9, None, True, "The window lasts 60 s, less than a minute: a slow change"),
        (59.9, True, True, "The window lasts 60 s, less than a minute; the clocks"),
        (60.0, None, True, None), (60.0, True, True, None), (60.0, False, True, "They fall."),
        (20.0, False, True, "They fall."), (20.0, True, False, "They fall."),
    ],
)  # fmt: skip
def test_a_short_window_is_noted_unless_the_devices_say_more(seconds, settled, accepted, note):
    steady = Steady(60, None if accepted else "drift", None)
    found = window._note(seconds, steady, Settling(settled, "They fall."))
    assert (found or "").startswith(note or "")
    assert (found is None) is (note is None)


def run_with(recorded, **fields):
    fields = {"status": "completed", "requested": SETTINGS} | fields
    record = RunRecord(run_id="a", config_hash=None, environment={"accelerator": H100}, **fields)
    return Run(Path("/nowhere"), record, tuple(recorded))


def test_steps_that_were_held_up_count_in_a_rate_of_their_own():
    """By hand: 20 steps of 10 s and one of 50 s have 21 times the tokens of a step in 250 s."""
    held = measure(run_with([*steps([10.0] * 20), *steps([50.0], "stalled", first=21)]))
    assert held.tokens_per_second == pytest.approx(TOKENS / 10)
    assert (held.stalled_steps, held.measured_steps) == (1, 20)
    assert held.tokens_per_second_with_stalls == pytest.approx(21 * TOKENS / 250)
    plain = measure(run_with(steps([10.0] * 20)))
    assert (plain.stalled_steps, plain.tokens_per_second_with_stalls) == (0, None)
    failed = run_with([*steps([10.0] * 20), *steps([50.0], "stalled")], status="failed", reason="x")
    assert measure(failed).tokens_per_second_with_stalls is None


def test_a_rate_of_one_gpu_is_no_rate_of_the_job():
    alone = [one.model_copy(update={"tokens": None, "tokens_per_gpu": 5000})
             for one in steps([2.0] * 20)]  # fmt: skip
    found = measure(run_with(alone))
    assert (found.tokens_per_second, found.tokens_per_second_per_gpu) == (None, 2500)
    assert found.throughput_reason == "The number of GPUs is unknown: the rate is that of one GPU."
    assert found.interval_reason is not None
    one_gpu = measure(run_with(steps([100.0] * 20), requested=SETTINGS | {"world_size": 1}))
    times = 2500 / one_gpu.tokens_per_second
    assert found.mfu == pytest.approx(one_gpu.mfu * times)


@pytest.mark.parametrize(
    ("wait", "second", "counts"),
    [(0.0099, 1.0, True), (0.0101, 1.0, False), (0.01, 1.0, True), (0.0, 1.0, True),
     (None, 1.0, True), (0.019, 2.0, True)],
)  # fmt: skip
def test_a_step_waits_for_a_checkpoint_above_a_hundredth_of_it(wait, second, counts):
    one, other = steps([second, 1.0])
    waited = one.model_copy(update={"checkpoint_seconds": wait})
    assert len(window.measured_steps([waited, other])) == 1 + counts


def test_a_chosen_window_holds_both_its_ends():
    run = run_with(steps([1.0] * 40), window=(11, 30))
    found, _ = window.throughput(run.record, run.steps)
    assert [found.steps[at].step for at in (0, -1)] == [11, 30]
    assert found.note.startswith("The reader chose steps 11 to 30 as the window. The window lasts")


def test_the_spread_of_measured_starts_replaces_the_assumed_one_in_every_interval():
    """By hand: squares of distances on logarithms differ by 1.96 squared times those of starts."""
    item = measure(run_with(steps([10.0, 10.1] * 30)))
    assert item.start_spread == 0.005

    def ends(start: float) -> list[float]:
        found = item.changed(_with_starts(item, {"h100": (start, 6)}))
        assert (found.start_spread, found.start_spread_runs) == (start, 6)
        pairs = [(found.tokens_per_second_low, found.tokens_per_second),
                 (found.tokens_per_second_high, found.tokens_per_second),
                 (found.mfu_low, found.mfu), (found.mfu_high, found.mfu)]  # fmt: skip
        return [math.log(end / value) for end, value in pairs]

    own = math.log(item.tokens_per_second_high / item.tokens_per_second)
    wider = math.sqrt(own**2 + 1.959964**2 * (0.02**2 - 0.005**2))
    assert ends(0.02)[1] == pytest.approx(wider, rel=1e-5)
    low, high, mfu_low, mfu_high = ends(0.02)
    assert low < 0 < high
    assert (mfu_low, mfu_high) == pytest.approx((low, high))
    assert ends(0.001)[1] < own
    assert _with_starts(item, {"h100": (0.005, 6)}) == {}
    assert _with_starts(item, {"cpu": (0.02, 6)}) == {}
    assert _with_starts(item.changed({"start_spread": None}), {"h100": (0.02, 6)}) == {}


def test_starts_are_measured_by_repeats_alone_and_less_what_steps_explain():
    """By hand: three runs 0.01 apart have a variance of 0.0001, of which steps explain 0.00002."""
    explained = math.sqrt(2e-5) * 1.959964
    three = [Estimate(rate, explained, 9) for rate in (0.0, 0.01, 0.02)]
    single = [Estimate(5.0, 0.0, 9)]
    spread_of, runs = _measured_starts([three, single], 0.0)
    assert runs == 3
    assert spread_of == pytest.approx(math.sqrt(1e-4 - 2e-5), rel=1e-4)
    assert _measured_starts([single], 0.005) == (0.005, 0)
    noisy = [Estimate(rate, 0.1, 9) for rate in (0.0, 0.0001)]
    assert _measured_starts([noisy], 0.0) == (0.0, 2)


def test_a_short_window_is_brief_unless_its_devices_had_settled():
    record = run_with(()).record
    short = steps([1 + n % 3 / 100 for n in range(30)])

    def brief(settled):
        found, _ = window.throughput(record, short, Settling(settled, "Clocks fall."))
        return found.steady.brief, found.interval is None

    assert brief(True) == (False, False)
    assert brief(None) == (True, False)
    assert brief(False) == (True, True)


@pytest.mark.parametrize(
    ("seconds", "known"), [((math.inf, 2.0, 4.0, 0.0), 3.0), ((math.inf,), None)]
)
def test_without_tokens_the_step_time_is_the_middle_of_the_times_that_can_be(seconds, known):
    series = [
        StepRecord.model_construct(
            step=number, phase="measured", step_seconds=one, tokens=0, loss=1.0, allocated_gib=1.0
        )
        for number, one in enumerate(seconds)
    ]
    assert measure(make_run(series, device=None)).step_seconds_median == known
