"""Diagnosis: each rule on a run made to show it and on one that must not, and sums that hold.

The runs are made up (source: simulated) around one healthy run, which no rule may find fault with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import config, write_run

from scalebook.cli import main
from scalebook.config import RunConfig
from scalebook.facts import catalog, traffic
from scalebook.facts.communication import CommunicationEstimate
from scalebook.facts.flops import flops_per_token
from scalebook.measure.anatomy import Breakdown
from scalebook.measure.diagnosis import (
    Diagnosis,
    Finding,
    diagnose,
    evidence,
    memory_use,
    network,
    pipeline,
    with_fitted,
)
from scalebook.measure.diagnosis import device as device_rules
from scalebook.measure.diagnosis.evidence import (
    Evidence,
    Split,
    gather,
    listed,
    percent,
    split_of,
)
from scalebook.measure.diagnosis.memory_use import Need
from scalebook.measure.diagnosis.pipeline import waiting_of
from scalebook.measure.diagnosis.waterfall import _elementwise, useful_work, waterfall
from scalebook.measure.metrics.recorded import parallelism_of
from scalebook.measure.metrics.step_anatomy import step_anatomy
from scalebook.measure.telemetry import Clocks
from scalebook.parallelism import Parallelism
from scalebook.record import StepRecord
from scalebook.report.base import frames
from scalebook.report.pages import throughput_page
from scalebook.settings import SWITCHES
from scalebook.step_columns import Steps
from scalebook.store import read_run, read_runs

H200 = "NVIDIA H200"
BIG: dict[str, Any] = {
    "platform": "h200",
    "model": "llama3.1-8b",
    "precision": "bf16",
    "world_size": 8,
    "sequence_length": 8192,
    "micro_batch_size": 2,
    "global_batch_size": 128,
}
SECONDS = 13.0
OBSERVED: dict[str, Any] = {
    "overlap_grad_reduce": True,
    "overlap_param_gather": True,
    "attention_kernel": "cudnn_attention",
}
ENVIRONMENT: dict[str, Any] = {
    "accelerator": H200,
    "accelerator_memory_gib": 139.8,
    "accelerators_per_node": 8,
    "backend": "nccl",
    "ceilings": {
        "matmul_tflops": {"bf16": 980.0},
        "model_matmul_tflops": {"llama3.1-8b/tp1/bf16": 950.0},
        "all_reduce_bus_gb_per_second": {"8": 400.0},
    },
}
HEALTHY = {
    "forward": 0.31, "backward": 0.62, "optimizer": 0.02, "exposed_communication": 0.03,
    "data": 0.005, "idle": 0.015,
}  # fmt: skip


def breakdown(gaps: float = 0.01, exposed: dict[str, float] | None = None, **shares: float) -> Any:
    """Return a profile of a step of SECONDS, given as shares; forward takes up what they change."""
    parts = HEALTHY | shares
    parts["forward"] += 1 - sum(parts.values())
    assert parts["forward"] > 0 or "forward" in shares  # or else no share of it counts
    return Breakdown(
        rank=0,
        device="gpu",
        steps=3,
        step_seconds=SECONDS,
        parts={f"{name}_seconds": share * SECONDS for name, share in parts.items()},
        communication_seconds=0.1 * SECONDS,
        exposed_by_collective={
            name: share * SECONDS for name, share in (exposed or {"all_reduce": 0.03}).items()
        },
        kernel_seconds=0.95 * SECONDS,
        launch_gap_seconds=gaps * SECONDS,
        kernels_per_step=50_000,
    )


def written(
    folder: Path,
    *,
    seconds: float = SECONDS,
    profile: Any = ...,
    observed: dict[str, Any] | None = None,
    environment: dict[str, Any] | None = None,
    ranks: tuple[float, ...] = (),
    parts: dict[str, float] | None = None,
    telemetry: list[dict[str, Any]] | None = None,
    peak_gib: float = 130.0,
    loads: float | None = None,
    device: str | None = H200,
    **changes: Any,
) -> Path:
    """Write a run like the healthy one, but for these things, and return its directory."""
    asked = RunConfig(**(BIG | changes))
    path = write_run(
        folder, "run", asked, seconds=seconds, source="measured",
        observed=OBSERVED | (observed or {}),
        environment=ENVIRONMENT | (environment or {}) | {"accelerator": device},
    )  # fmt: skip
    lines = [json.loads(line) for line in (path / "steps.jsonl").read_text().splitlines()]
    for line in lines:
        line |= {"step_seconds": seconds, "allocated_gib": peak_gib, "rank_step_seconds": ranks}
        line |= {"expert_load": loads}
        line |= {"part_seconds": parts or {}, "finished_at": _stamp(line["step"], seconds)}
    (path / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if profile is ...:
        profile = breakdown()
    if profile is not None:
        (path / "profile").mkdir()
        (path / "profile" / "breakdown.json").write_text(profile.model_dump_json())
    if telemetry is not None:
        text = "".join(json.dumps(line) + "\n" for line in telemetry)
        (path / "telemetry.jsonl").write_text(text)
    return path


def diagnosed(folder: Path, **changes: Any) -> Diagnosis:
    """Return the diagnosis of a run like the healthy one, but for these things."""
    return diagnose(read_run(written(folder, **changes)))


def _stamp(step: int, seconds: float) -> str:
    whole = int(step * seconds)
    return f"2026-11-27T{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}.000+00:00"


def rule(found: Diagnosis, name: str) -> Finding:
    """Return the finding of a rule, which must be there."""
    (finding,) = (one for one in found.findings if one.rule == name)
    return finding


def rules(found: Diagnosis) -> set[str]:
    """Return which rules found something."""
    return {finding.rule for finding in found.findings}


def shares(found: Diagnosis) -> dict[str, float | None]:
    """Return the parts of the waterfall."""
    assert found.waterfall is not None
    return {part.name: part.step_fraction for part in found.waterfall.parts}


def test_a_healthy_run_has_no_findings(tmp_path):
    found = diagnosed(tmp_path)
    assert found.findings == ()
    assert found.mfu is not None and 0.5 < found.mfu < 0.6
    assert found.missing == (
        "Clocks and power are not known: The run directory contains no telemetry: nothing sampled "
        "the devices.",
    )


def test_the_bubble_is_named_with_what_would_make_it_smaller(tmp_path):
    found = diagnosed(tmp_path, pipeline_parallel_size=4, global_batch_size=32, profile=None)
    bubble = rule(found, "pipeline_bubble")
    # 8 micro batches on 4 stages: 3 / (8 + 3); twice as many: 3 / 19; two chunks: 3 / 19
    assert bubble.step_fraction == pytest.approx(3 / 11)
    assert "leave 15.8 %" in bubble.advice[0]
    assert "virtual_pipeline_parallel_size=2" in bubble.advice[1]
    assert bubble.basis == "computed"


def test_a_schedule_with_many_micro_batches_has_no_finding_about_its_bubble(tmp_path):
    found = diagnosed(tmp_path, pipeline_parallel_size=2, global_batch_size=512, profile=None)
    assert "pipeline_bubble" not in rules(found)


def test_the_output_layer_of_the_last_stage_makes_the_others_wait(tmp_path):
    found = diagnosed(
        tmp_path, pipeline_parallel_size=4, global_batch_size=512, profile=None,
        sequence_length=4096,
    )  # fmt: skip
    waits = rule(found, "pipeline_imbalance")
    # By hand: a layer has 2 x 4096^2 + 2 x 4096 x 1024 + 3 x 4096 x 14336 = 218,103,808 weights,
    # attention of 4096 x 4096 = 16,777,216 (2 products with s/2 keys), the output layer 128,256
    # x 4096: 2.24 layers. Stages of 8 wait for one of 10.24: 1 - (34.24 / 4) / 10.24 = 0.164.
    in_layers = 128_256 * 4096 / (218_103_808 + 16_777_216)
    expected = 1 - (32 + in_layers) / 4 / (8 + in_layers)
    bubble = 3 / (128 + 3)
    assert waits.step_fraction == pytest.approx(expected * (1 - bubble), rel=1e-3)
    assert "2.2 layers more" in waits.says
    # 9, 9, 9 and 5 layers: stages of 7.24 and 9 wait for one of 9.
    assert "last_pipeline_stage_layers=5" in waits.advice[1]
    assert f"{100 * (1 - (32 + in_layers) / 4 / 9):.1f} %" in waits.advice[1]
    small = diagnosed(tmp_path / "b", model="llama3-70b", tensor_parallel_size=8, profile=None)
    assert "pipeline_imbalance" not in rules(small)


def test_a_proxy_with_few_layers_is_told_that_its_vocabulary_weighs_more(tmp_path):
    found = diagnosed(tmp_path, model="llama3.1-8b@4", seconds=2.0)
    assert "4 layers;" in rule(found, "vocabulary").says
    fused = "A fused cross entropy saves passes over the logits."
    assert fused in rule(found, "vocabulary").advice
    on = {"fused_cross_entropy": "on"}
    with_it = diagnosed(tmp_path / "on", model="llama3.1-8b@4", seconds=2.0, observed=on)
    assert fused not in rule(with_it, "vocabulary").advice
    one = diagnosed(tmp_path / "one", model="llama3.1-8b@1", seconds=2.0)
    assert "FLOPs with 1 layer;" in rule(one, "vocabulary").says


def test_exposed_communication_is_named_with_its_collective_and_its_rate(tmp_path):
    profile = breakdown(exposed={"all_gather": 0.2, "all_reduce": 0.05}, exposed_communication=0.25)
    found = diagnosed(tmp_path, profile=profile)
    exposed = rule(found, "exposed_communication")
    assert exposed.step_fraction == pytest.approx(0.25)
    assert "most of it all-gather." in exposed.says
    # 8.03e9 parameters, 6 bytes each (fp32 gradients, bf16 weights), 7/8 of them: 42.2 GB in 1.3 s
    assert "42.2 GB per step, 32.4 GB/s" in exposed.says
    assert "reached 400 GB/s" in exposed.says
    assert any("More micro batches" in advice for advice in exposed.advice)


def test_waits_between_stages_are_not_called_communication_where_the_bubble_explains_them(tmp_path):
    profile = breakdown(
        exposed={"send_receive": 0.3, "all_reduce": 0.02}, exposed_communication=0.32
    )
    found = diagnosed(
        tmp_path, profile=profile, pipeline_parallel_size=4, global_batch_size=32, seconds=4.5
    )
    assert "exposed_communication" not in rules(found)
    assert "waits_between_stages" not in rules(found)
    assert shares(found)["pipeline_bubble"] == pytest.approx(3 / 11)
    shares_of = {"exposed_communication": 0.6, "backward": 0.2, "idle": 0.0}
    more = breakdown(0.0, {"send_receive": 0.6}, **shares_of)
    slow = diagnosed(
        tmp_path / "b", profile=more, pipeline_parallel_size=4, global_batch_size=32, seconds=9.0
    )
    # the first of 4 stages has 8 layers, the last the output layer as well; sequences of 8,192
    in_layers = 128_256 * 4096 / (218_103_808 + 2 * 16_777_216)
    assert rule(slow, "waits_between_stages").step_fraction == pytest.approx(
        0.6 - 3 / 11 - 8 / 11 * in_layers / (8 + in_layers)
    )


EXPERTS_ON_TWO_GPUS = "20261129-173807-qwen3-30b-a3b-8-w2-0d25c1337bd1"


def test_experts_on_two_gpus_exchange_tokens_and_have_no_stages_that_wait():
    """Collectives without compute take 0.270 s of a step of 2.052 s, most of them sends."""
    run = Path(__file__).parents[2] / "runs" / "examples" / EXPERTS_ON_TWO_GPUS
    found = diagnose(read_run(run))
    assert "waits_between_stages" not in rules(found)
    exposed = rule(found, "exposed_communication")
    assert exposed.says.startswith(
        "Exposed communication takes 13.2 % of the step, most of it the all-to-all of experts."
    )
    kept = json.loads((run / "profile" / "breakdown.json").read_text())
    assert kept["exposed_by_collective"]["send_receive"] / kept["step_seconds"] > 0.1
    assert shares(found)["waits_between_stages"] == 0
    assert shares(found)["exposed_communication"] == pytest.approx(
        kept["parts"]["exposed_communication_seconds"] / 2.0522, rel=1e-4
    )
    (profile,) = step_anatomy(read_run(run)).profiles
    assert "send_receive" not in profile.exposed_by_collective


def test_waits_of_stages_with_experts_are_sure_only_where_the_trace_names_the_all_to_all(tmp_path):
    both = {"model": "mixtral-8x7b", "pipeline_parallel_size": 2, "expert_parallel_size": 4}
    mixed = breakdown(exposed={"send_receive": 0.6}, exposed_communication=0.6, backward=0.2)
    found = diagnosed(tmp_path / "old", profile=mixed, **both)
    assert "The all-to-all of experts is in it" in rule(found, "waits_between_stages").says
    named = {"send_receive": 0.5, "all_to_all": 0.1}
    exact = breakdown(exposed=named, exposed_communication=0.6, backward=0.2)
    found = diagnosed(tmp_path / "new", profile=exact, **both)
    assert rule(found, "waits_between_stages").says.endswith("the output layer explain.")
    assert "the all-to-all of experts" in rule(found, "exposed_communication").says
    plain = diagnosed(tmp_path / "plain", profile=mixed, pipeline_parallel_size=2)
    assert rule(plain, "waits_between_stages").says.endswith("the output layer explain.")


def test_overlap_that_is_off_is_named_where_replicas_exchange_something(tmp_path):
    off = {"overlap_grad_reduce": False}
    found = diagnosed(tmp_path, observed=off)
    assert rule(found, "overlap_off").advice == ("Turn overlap_grad_reduce on.",)
    alone = diagnosed(
        tmp_path / "b", observed=off, world_size=1, global_batch_size=16, profile=None
    )
    assert "overlap_off" not in rules(alone)


def test_tensor_parallelism_is_questioned_where_half_of_it_fits(tmp_path):
    wide = diagnosed(
        tmp_path, tensor_parallel_size=4, sequence_parallel=True, peak_gib=43.0, seconds=30.0
    )
    narrow = rule(wide, "tensor_parallel_size")
    assert "Try tensor_parallel_size=2" in narrow.advice[0]
    assert narrow.evidence["predicted_gib"] is not None
    small = {"accelerator_memory_gib": 79.2}
    full = diagnosed(
        tmp_path / "b", tensor_parallel_size=4, sequence_parallel=True, peak_gib=43.0,
        environment=small, seconds=30.0,
    )  # fmt: skip
    assert "tensor_parallel_size" not in rules(full)


def test_tensor_parallelism_across_nodes_and_without_sequence_parallelism_is_named(tmp_path):
    changes: dict[str, Any] = {"tensor_parallel_size": 8, "seconds": 60.0, "profile": None}
    across = diagnosed(tmp_path, environment={"accelerators_per_node": 4}, **changes)
    assert {"tensor_parallel_across_nodes", "sequence_parallel_off"} <= rules(across)
    inside = diagnosed(tmp_path / "b", sequence_parallel=True, **changes)
    assert not {"tensor_parallel_across_nodes", "sequence_parallel_off"} & rules(inside)


def test_collectives_through_the_host_are_named_on_gpus_alone(tmp_path):
    assert "collective_backend" in rules(diagnosed(tmp_path, environment={"backend": "gloo"}))
    on_cpu = write_run(tmp_path, "cpu", config(world_size=2), environment={"backend": "gloo"})
    assert "collective_backend" not in rules(diagnose(read_run(on_cpu)))


def test_recomputation_is_priced_and_less_of_it_offered_where_it_fits(tmp_path):
    roomy = {"accelerator_memory_gib": 190.0}
    found = diagnosed(tmp_path, recompute="full", peak_gib=74.0, environment=roomy, seconds=16.0)
    cost = rule(found, "recompute")
    # a forward pass of the layers is a third of their work, made again: nearly 1/4 of all
    assert cost.evidence["hfu"] > cost.evidence["mfu"]
    assert cost.step_fraction == pytest.approx(0.24 * 0.93, abs=0.015)
    assert "recompute=none" in cost.advice[0]
    small = {"accelerator_memory_gib": 79.2}
    tight = diagnosed(
        tmp_path / "b", recompute="full", peak_gib=74.0, environment=small, seconds=16.0
    )
    assert "not predicted to fit" in rule(tight, "recompute").advice[0]


def test_a_small_micro_batch_is_named_only_where_memory_is_left(tmp_path):
    small: dict[str, Any] = {"micro_batch_size": 1, "sequence_length": 4096, "seconds": 6.5}
    found = diagnosed(tmp_path, peak_gib=76.0, **small)
    assert "micro_batch_size=2" in rule(found, "micro_batch_size").advice[0]
    full = diagnosed(
        tmp_path / "b", peak_gib=76.0, environment={"accelerator_memory_gib": 85.0}, **small
    )
    assert "micro_batch_size" not in rules(full)
    # at 8 micro batches on 4 stages a larger one would cost more by its bubble than it gives
    stages = diagnosed(
        tmp_path / "c", peak_gib=42.0, pipeline_parallel_size=4, profile=None,
        **small | {"global_batch_size": 16},
    )  # fmt: skip
    assert "micro_batch_size" not in rules(stages)


def test_a_full_device_is_named(tmp_path):
    assert "memory_full" in rules(diagnosed(tmp_path, peak_gib=137.0))
    assert "memory_full" not in rules(diagnosed(tmp_path / "b", peak_gib=120.0))


def test_launch_gaps_are_named_with_the_length_of_a_kernel(tmp_path):
    found = diagnosed(tmp_path, profile=breakdown(gaps=0.2, idle=0.25))
    gaps = rule(found, "launch_gaps")
    assert gaps.step_fraction == pytest.approx(0.2)
    assert "50,000 kernels per step take 247 µs" in gaps.says  # 0.95 x 13 s over 50,000


def test_what_a_stage_waits_for_is_not_blamed_on_the_host(tmp_path):
    profile = breakdown(gaps=0.6, idle=0.6, backward=0.1)
    found = diagnosed(tmp_path, profile=profile, pipeline_parallel_size=4, global_batch_size=32)
    gaps = rule(found, "launch_gaps").step_fraction
    assert gaps == pytest.approx(shares(found)["idle_device"])
    assert gaps is not None and gaps < 0.6 - 3 / 11  # the bubble: 4 stages, 8 micro batches


def test_waiting_for_data_and_a_long_optimizer_are_named(tmp_path):
    found = diagnosed(tmp_path, profile=breakdown(data=0.1, optimizer=0.15))
    assert rule(found, "data").step_fraction == pytest.approx(0.1)
    assert "synthetic tokens" in rule(found, "data").says
    assert not any("dataset" in one or "synthetic" in one for one in rule(found, "data").advice)
    indexed = diagnosed(tmp_path / "b", profile=breakdown(data=0.1), data="tokens.bin")
    assert any("Compare with synthetic tokens" in one for one in rule(indexed, "data").advice)
    assert rule(found, "optimizer").step_fraction == pytest.approx(0.15)


def test_time_marks_tell_what_a_profile_would_where_there_is_none(tmp_path):
    marks = {"data": 0.7, "forward": 3.0, "backward": 6.0, "optimizer": 2.0, "gradients": 1.3}
    found = diagnosed(tmp_path, profile=None, parts=marks)
    assert rule(found, "data").step_fraction == pytest.approx(0.7 / 13)
    assert rule(found, "optimizer").step_fraction == pytest.approx(2 / 13)
    assert rule(found, "exposed_communication").step_fraction == pytest.approx(0.1)
    assert any("profile_steps=3" in sentence for sentence in found.missing)
    parts = shares(found)
    named = ("useful_work_at_peak", "products_below_peak", "elementwise", "other_kernels")
    assert sum(parts[name] or 0 for name in named) == pytest.approx(9 / 13)  # both passes
    assert parts["attention_below_peak"] is None  # which kernels ran, marks do not say


def test_the_waterfall_counts_the_clock_and_the_bytes_of_elementwise_kernels(tmp_path):
    marks = {"forward": 4.0, "backward": 8.4, "optimizer": 0.3, "gradients": 0.3}
    sampled = samples((1525,), ["power_cap"])
    found = diagnosed(
        tmp_path, profile=None, parts=marks, telemetry=sampled, environment={"ceilings": None}
    )
    parts, mfu = shares(found), found.mfu or 0
    assert parts["lower_clock"] == pytest.approx(mfu * (1830 / 1525 - 1))
    # 8B: per token and layer 10+12 accesses of 4,096 values, 4+4 of 40 heads x 128, 3+5 of 14,336;
    # 2 bytes each in 32 layers, and 8 per logit of 128,256; at 4.8 TB/s
    size = 2 * 32 * (22 * 4096 + 8 * 5120 + 8 * 14336) + 8 * 128256
    assert parts["elementwise"] == pytest.approx(128 * 8192 / 13 / 8 * size / 4.8e12)
    assert (parts["unexplained"] or 0) < 0.01


@pytest.mark.parametrize(
    "changes",
    [
        {"device": None},
        {"device": "A device of the next century"},
        {"model": "mixtral-8x7b"},
        {"model": "a-model-of-mine"},
    ],
)
def test_elementwise_kernels_are_not_counted_where_their_bytes_or_bandwidth_are_unknown(
    tmp_path, changes
):
    found = diagnosed(tmp_path, profile=None, environment={"ceilings": None}, **changes)
    if found.waterfall is not None:
        (part,) = (one for one in found.waterfall.parts if one.name == "elementwise")
        assert part.step_fraction is None
        assert part.reason is not None and "are not known" in part.reason
    else:
        assert found.mfu is None


def split_with(record, **changes):
    """Return the split of a run whose record says this instead."""
    observed = {name: one for name, one in record.observed.items() if name not in changes}
    asked = record.requested | changes
    return parallelism_of(record.model_copy(update={"requested": asked, "observed": observed}))


@pytest.mark.parametrize(("said", "read"), [(1, 1), (2**20, 2**20), (0, 1), (-2, 1), ("2", 1)])
def test_a_size_that_came_later_counts_where_it_is_one(healthy, said, read):
    split = split_with(healthy.record, virtual_pipeline_parallel_size=said)
    assert split is not None and split.virtual_pipeline_parallel_size == read


def test_a_split_into_more_than_any_machine_has_is_unknown(healthy):
    assert split_with(healthy.record, virtual_pipeline_parallel_size=2**20 + 1) is None


def test_more_processes_than_cores_are_named(tmp_path):
    host = {"host": {"cpu_cores": 2}}
    many = write_run(tmp_path, "many", config(world_size=4), environment=host)
    assert rule(diagnose(read_run(many)), "cpu_cores").step_fraction == pytest.approx(0.5)
    few = write_run(tmp_path, "few", config(world_size=2), environment=host)
    assert "cpu_cores" not in rules(diagnose(read_run(few)))


def test_a_machine_below_its_peak_and_slow_shapes_are_told_apart(tmp_path):
    slow = {
        "matmul_tflops": {"bf16": 700.0},
        "model_matmul_tflops": {"llama3.1-8b/tp1/bf16": 500.0},
    }
    found = diagnosed(tmp_path, environment={"ceilings": slow})
    mfu = found.mfu or 0
    ceiling, shapes = rule(found, "matmul_ceiling"), rule(found, "matmul_shapes")
    assert ceiling.step_fraction == pytest.approx(mfu * (989.4 / 700 - 1), rel=1e-3)
    assert shapes.step_fraction == pytest.approx(mfu * 989.4 * (1 / 500 - 1 / 700), rel=1e-3)


def samples(clocks: tuple[float, ...], reasons: list[str], fall: float = 0.0) -> Any:
    """Return telemetry of eight GPUs over the whole run, every five seconds."""
    begin = 1_795_737_600.0  # 2026-11-27 00:00 UTC
    devices = [{"gpu": gpu, "power_cap_watts": 700, "max_clock_mhz": 1980} for gpu in range(8)]
    head = {"kind": "sampler", "source": "test", "period_seconds": 5.0, "devices": devices}
    rows = [
        {
            "time": begin + 5 * number, "gpu": gpu, "power_watts": 690.0,
            "clock_mhz": clocks[gpu % len(clocks)] * (1 - fall * number / 84),
            "throttle_reasons": reasons,
        }
        for number in range(84)
        for gpu in range(8)
    ]  # fmt: skip
    return [head, *rows]


def test_the_power_cap_is_named_with_the_clock_that_it_leaves(tmp_path):
    found = diagnosed(tmp_path, telemetry=samples((1485.0,), ["sw_power_cap"]))
    clocks = rule(found, "clocks")
    assert "The power cap held clocks down in 100 % of the samples" in clocks.says
    assert clocks.step_fraction == pytest.approx((1 - 1485 / 1830) * 0.93)
    assert "The peak is stated at 1,830 MHz." in clocks.says  # 132 SM x 4096 FLOP x 1.83 GHz
    faster = diagnosed(tmp_path / "c", telemetry=samples((1900.0,), ["sw_power_cap"]))
    assert rule(faster, "clocks").step_fraction == 0
    assert rule(faster, "clocks").says.endswith("against the peak, nothing is lost.")
    assert f"would save up to {percent((1 - 1485 / 1830) * 0.93)} of the step" in clocks.says
    assert found.missing == ()
    assert rules(diagnosed(tmp_path / "b", telemetry=samples((1900.0,), []))) == set()


def test_falling_clocks_and_a_slow_device_are_named(tmp_path):
    falling = diagnosed(tmp_path, telemetry=samples((1900.0,), [], fall=0.1))
    assert "fell by" in rule(falling, "clocks").says
    slow = diagnosed(tmp_path / "b", telemetry=samples((1900.0,) * 7 + (1710.0,), []))
    assert "GPU 7 ran at 1,710 MHz" in rule(slow, "slow_device").says
    assert rule(slow, "slow_device").step_fraction == pytest.approx(0.1)


def test_a_straggler_is_named_and_even_ranks_are_not(tmp_path):
    found = diagnosed(tmp_path, ranks=(12.0,) * 5 + (13.0,) + (12.0,) * 2)
    assert rule(found, "straggler").evidence["slowest_rank"] == 5
    assert rule(found, "straggler").step_fraction == pytest.approx(1 / 13)
    even = diagnosed(tmp_path / "b", ranks=(13.0, 12.99) * 4)
    assert "straggler" not in rules(even)


MIXTURE: dict[str, Any] = {
    "model": "mixtral-8x7b", "sequence_length": 4096, "micro_batch_size": 1, "world_size": 8,
    "expert_parallel_size": 8, "global_batch_size": 128, "tensor_parallel_size": 1,
}  # fmt: skip


def test_uneven_experts_are_named_and_forced_ones_too(tmp_path):
    found = diagnosed(tmp_path / "a", loads=1.8, seconds=25.0, profile=None, **MIXTURE)
    finding = rule(found, "expert_load")
    assert "1.8 times the tokens" in finding.says
    # 12 of its 13 B active parameters lie in experts; the busiest do 0.8 of the mean more.
    assert finding.step_fraction == pytest.approx(found.mfu * 0.8 * 0.8, rel=0.2)
    assert "expert_load" not in rules(diagnosed(tmp_path / "b", loads=1.05, **MIXTURE))
    assert "expert_load" not in rules(diagnosed(tmp_path / "c", **MIXTURE))
    forced = diagnosed(tmp_path / "d", loads=1.02, expert_balance="forced", **MIXTURE)
    assert "at random" in rule(forced, "forced_balance").says


def test_fp32_on_a_device_with_a_faster_precision_is_named(tmp_path):
    fp32 = diagnosed(tmp_path, precision="fp32", seconds=300.0, profile=None)
    assert "bf16" in rule(fp32, "precision").says


def test_kernels_that_are_not_fused_are_named(tmp_path):
    plain = {"fused_rope": "off", "fused_norm": "on", "fused_attention": "off"}
    found = diagnosed(tmp_path, observed=plain, fused_rope="off")
    assert "separate products" in rule(found, "attention_kernel").says
    off = rule(found, "fusions_off")
    assert off.says == "Not in force in this run: fused_rope."
    assert off.advice == ("Leave fused_rope at 'auto', which is on where it can be.",)
    machine = diagnosed(tmp_path / "b", observed={**plain, "attention_kernel": "math"})
    assert rule(machine, "fusions_off").advice == ()
    assert not {"attention_kernel", "fusions_off"} & rules(diagnosed(tmp_path / "c"))


def test_findings_are_ordered_by_size_and_those_without_one_come_last(tmp_path):
    profile = breakdown(data=0.1, optimizer=0.15, gaps=0.2, idle=0.25, backward=0.4)
    off = {"attention_kernel": "math", "overlap_grad_reduce": False}
    found = diagnosed(tmp_path, profile=profile, observed=off, environment={"backend": "gloo"})
    sizes = [finding.step_fraction for finding in found.findings]
    known = [size for size in sizes if size is not None]
    assert known == sorted(known, reverse=True) and len(set(known)) > 2
    assert sizes[len(known) :] == [None] * (len(sizes) - len(known)) != []


def test_the_waterfall_of_a_profiled_run_adds_up_to_the_whole_step(tmp_path):
    found = diagnosed(tmp_path)
    parts = shares(found)
    assert sum(share or 0 for share in parts.values()) == pytest.approx(1)
    assert parts["useful_work_at_peak"] == found.mfu
    assert parts["products_below_peak"] == pytest.approx(
        (found.mfu or 0) * (989.4 / 980 - 1), rel=1e-2
    )
    assert parts["exposed_communication"] == pytest.approx(0.03)
    assert parts["unexplained"] == pytest.approx(0, abs=1e-9)


def test_what_was_not_measured_is_null_with_a_reason_in_the_waterfall(tmp_path):
    found = diagnosed(tmp_path, profile=None, environment={"ceilings": None})
    assert found.waterfall is not None
    for part in found.waterfall.parts:
        assert (part.step_fraction is None) == (part.reason is not None)


def test_parts_at_fitted_rates_come_out_of_what_has_no_name_and_change_no_measurement(tmp_path):
    known = {"fused_attention": "on"}
    found = diagnosed(tmp_path, profile=None, environment={"ceilings": None}, observed=known)
    before = found.waterfall
    assert before is not None
    rest = shares(found)["unexplained"]
    assert rest is not None
    assert rest > 0.2
    filled = with_fitted(before, {"products_below_peak": 0.1, "options_off": 0.05})
    after = {part.name: part for part in filled.parts}
    assert (after["options_off"].step_fraction, after["options_off"].basis) == (0.05, "fitted")
    # no clock was sampled, so that none of the products' 0.1 is counted as the clock's
    assert after["products_below_peak"].step_fraction == pytest.approx(0.1)
    assert after["unexplained"].step_fraction == pytest.approx(rest - 0.15)
    for part in before.parts:
        if part.basis is not None:
            assert after[part.name] == part


def test_fitted_rates_that_are_too_high_explain_no_more_than_the_step(tmp_path):
    known = {"fused_attention": "on"}
    found = diagnosed(tmp_path, profile=None, environment={"ceilings": None}, observed=known)
    assert found.waterfall is not None
    filled = with_fitted(found.waterfall, {"products_below_peak": 0.9, "options_off": 0.9})
    assert sum(part.step_fraction or 0 for part in filled.parts) == pytest.approx(1)
    assert filled.parts[-1].step_fraction == pytest.approx(0)


def test_a_profile_leaves_fitted_rates_no_waits_to_explain(tmp_path):
    found = diagnosed(tmp_path)
    assert found.waterfall is not None
    names = {"communication_in_passes": 0.1, "copies_and_waits": 0.1, "products_below_peak": 0.1}
    assert with_fitted(found.waterfall, names).parts == found.waterfall.parts


def test_an_fp8_run_counts_its_products_at_the_fp8_peak_and_the_rest_at_that_of_bf16(tmp_path):
    found = diagnosed(
        tmp_path, precision="fp8", model="llama3.1-8b", profile=None, device="NVIDIA H200"
    )
    assert found.mfu is None
    # per token: 32 layers of q and o (4,096 squared), k and v (1,024 wide) and an MLP of 14,336;
    # causal scores and values; the output layer of 128,256 rows
    layers = 6 * 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    core, logits = 6 * 32 * 4096 * 8192, 6 * 4096 * 128256
    each = 128 * 8192 / 13 / 8
    expected = each * (layers / 1978.9e12 + (core + logits) / 989.4e12)
    assert shares(found)["useful_work_at_peak"] == pytest.approx(expected, rel=1e-3)
    experts = diagnosed(tmp_path / "b", precision="fp8", model="mixtral-8x7b", profile=None)
    assert experts.waterfall is None  # whether their products ran in FP8 is not known


def test_a_run_without_options_and_profile_says_so_instead_of_a_rest(tmp_path):
    off = dict.fromkeys(n for n in SWITCHES if n.startswith("fused_"))
    found = diagnosed(tmp_path, profile=None, observed=off, environment={"ceilings": None})
    assert found.waterfall is not None
    last = found.waterfall.parts[-1]
    assert (last.name, last.step_fraction) == ("unexplained", None)
    assert with_fitted(found.waterfall, {"options_off": 0.05}) == found.waterfall
    assert last.reason is not None and "recorded neither its options nor a profile" in last.reason


def test_the_memory_of_a_run_is_predicted_with_the_kernels_and_recomputation_that_it_had(root):
    """Advice on memory scales this prediction: it must be of what ran, whatever was fused."""
    off = []
    for run in read_runs(root / "runs" / "examples")[0]:
        found = gather(run)
        need, peak = found.memory(), found.metrics.peak_memory_gib
        if need is not None and peak and found.metrics.platform != "cpu":
            off.append(abs(peak / need.total_gib - 1))
    assert len(off) > 150
    assert quantiles(off, n=20)[17] < 0.1


def test_less_than_a_tenth_of_the_record_runs_is_unexplained(root):
    data = frames.load(root / "runs" / "examples")
    records = {"f7a529f1dcbc", "46a79dab7d07", "526465224c44"}  # of the README's table
    records |= {"7b50643bc7a3", "ba87bd5010b0"}  # FP8, and experts
    seen = {
        one.run_id[-12:]: {part.name: part.step_fraction for part in one.waterfall.parts}
        for one in throughput_page.diagnoses(data)
        if one.waterfall is not None
    }
    assert seen.keys() >= records
    silent = {name for name, parts in seen.items() if parts["unexplained"] is None}
    assert len(silent) == 7  # of the first day: they recorded no options
    rest = {
        name: (parts["unexplained"] or 0) + (parts["other_kernels"] or 0)
        for name, parts in seen.items()
        if name not in silent
    }
    assert max(rest[name] for name in records) < 0.1
    assert max(seen[name]["unexplained"] or 0 for name in rest) < 0.13  # GPT-OSS: its mask and sink


share = st.floats(0, 1)


@settings(max_examples=60)
@given(
    st.lists(share, min_size=5, max_size=5), share, share, st.floats(3.0, 60.0),
    st.sampled_from([1, 2, 4, 8]), st.sampled_from([8, 32, 128]), st.floats(200.0, 1500.0),
    st.sampled_from(["none", "full"]),
)  # fmt: skip
def test_the_waterfall_never_explains_more_than_the_step(
    tmp_path_factory, cuts, gaps, between, seconds, stages, batch, ceiling, recompute
):
    names = ("backward", "optimizer", "exposed_communication", "data", "idle")
    ends = sorted(cuts)
    parts = dict(
        zip(names, (b - a for a, b in zip([0.0, *ends], ends, strict=False)), strict=False)
    )
    exposed = {"send_receive": between * parts["exposed_communication"]}
    profile = breakdown(gaps=gaps, exposed=exposed, forward=0.0, **parts)
    found = diagnosed(
        tmp_path_factory.mktemp("sum"), profile=profile, seconds=seconds,
        pipeline_parallel_size=stages, global_batch_size=2 * batch, recompute=recompute,
        environment={"ceilings": {"matmul_tflops": {"bf16": ceiling}}},
    )  # fmt: skip
    for finding in found.findings:
        assert finding.step_fraction is None or 0 <= finding.step_fraction <= 1
    if found.waterfall is None:
        assert found.mfu is None or found.mfu > 1
        return
    assert found.waterfall.explained <= 1 + 1e-9
    total = sum(part.step_fraction or 0 for part in found.waterfall.parts)
    assert total == pytest.approx(1)


@pytest.mark.parametrize(
    ("mfu", "known"), [(0.0, False), (0.001, True), (1.0, True), (1.001, False), (None, False)]
)
def test_a_step_is_explained_where_its_work_is_part_of_it(healthy, mfu, known):
    found = waterfall(with_metrics(healthy, mfu=mfu))
    assert (found is not None) is known
    assert found is None or found.parts[0].step_fraction == mfu


def test_a_single_stage_waits_for_none_whatever_the_model(healthy):
    for stages, waits in ((1, 0.0), (2, None)):
        unknown = replace(healthy, shape=None, parallelism=Parallelism(8, 1, stages))
        assert pipeline.imbalance_of(unknown) == waits


def test_a_failed_run_has_a_reason_and_no_diagnosis(tmp_path):
    path = write_run(tmp_path, "oom", RunConfig(**BIG), status="out_of_memory", device=H200)
    found = diagnose(read_run(path))
    assert found.findings == ()
    assert "out_of_memory" in (found.reason or "")


def test_a_broken_breakdown_is_a_reason_and_no_crash(tmp_path):
    found = diagnosed(tmp_path, profile=Breakdown(reason="The trace ends early"))
    assert any("The trace ends early" in sentence for sentence in found.missing)
    folder = tmp_path / "b"
    diagnosed(folder)
    (folder / "run" / "profile" / "breakdown.json").write_text('{"parts": [')
    again = diagnose(read_run(folder / "run"))
    assert any("breakdown" in sentence for sentence in again.missing)


def test_the_example_runs_are_diagnosed_by_what_their_layouts_did(root):
    examples = root / "runs" / "examples"

    def example(name: str) -> Diagnosis:
        (path,) = examples.glob(f"*-{name}")
        return diagnose(read_run(path))

    stages = example("24f22c14c363")  # Llama 3.1 8B, PP4, 32 micro batches
    assert rule(stages, "pipeline_bubble").step_fraction == pytest.approx(3 / 35)
    assert stages.findings[0].rule == "pipeline_imbalance"
    tensor = example("56379824a6f7")  # TP4; the TP2 run beside it measured 56.59 GiB
    assert rule(tensor, "tensor_parallel_size").evidence["predicted_gib"] == pytest.approx(
        56.59, rel=0.05
    )
    full = example("cd3e6a08d4e1")  # full recomputation
    assert full.findings[0].rule == "recompute"


def test_the_report_has_a_row_a_cause_and_escapes_what_a_profile_names(tmp_path):
    profile = breakdown(exposed={"<b>all</b>": 0.25}, exposed_communication=0.25)
    diagnosed(tmp_path, profile=profile)
    data = frames.load(tmp_path)
    found = throughput_page.diagnoses(data)
    assert [one.run_id for one in found] == ["run"]
    shown = throughput_page.causes(data, found)._repr_markdown_()
    assert "most of it &lt;b&gt;all&lt;/b&gt;" in shown
    assert "<b>all" not in shown
    assert 'data-value="0.25"' in shown  # the exact value, for sorting and for the CSV file
    assert "Exposed communication" in throughput_page.causes_overview(found)._repr_markdown_()
    assert 'data-key="unexplained"' in throughput_page.waterfalls(data, found)._repr_markdown_()


def test_a_report_without_a_cause_says_so(tmp_path):
    write_run(tmp_path, "cpu", config())
    found = throughput_page.diagnoses(frames.load(tmp_path))
    assert "No rule found a cause" in throughput_page.causes_overview(found)._repr_markdown_()


def test_the_command_prints_json_and_sentences(root, capsys):
    run = str(next((root / "runs" / "examples").glob("*-24f22c14c363")))
    assert main(["diagnose", run, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["mfu"] == pytest.approx(0.419, abs=1e-3)
    assert told["explained_fraction"] <= 1
    assert told["findings"][0]["rule"] == "pipeline_imbalance"
    # 10,682.4 tokens/s of 51.47 GFLOP each
    assert told["published"]["best_tflops"] == pytest.approx(549.8, abs=0.1)
    assert main(["diagnose", run]) == 0
    printed = capsys.readouterr().out
    said = " ".join(printed.split())
    assert "0.75 times the best published of llama3.1-8b on H100-SXM5-80GB in 16 bit" in said
    assert "4 pipeline stages with 32 micro batches per step" in printed
    first, second, *_ = printed.splitlines()
    assert first.endswith("-24f22c14c363: 8,591 tokens/s per GPU over 10 steps")
    assert second == "MFU 41.9 % of 989.4 TFLOP/s (dense bf16)"
    assert "?  unexplained: the run recorded neither its options nor a profile" in printed
    assert printed.count("not measured: run with profile_steps=3") == 1
    assert main(["diagnose", "…-24f22c14c363", "--runs", str(root / "runs")]) == 0
    assert capsys.readouterr().out == printed
    assert main(["diagnose", "no-such-run", "--runs", str(root / "runs" / "examples")]) == 2


# Rules by hand: the evidence of the healthy run with one thing changed, on both sides of a limit


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """Return what the rules see of the healthy run."""
    return evidence.gather(read_run(written(tmp_path_factory.mktemp("healthy"))))


Rule = Callable[[Evidence], Iterator[Finding]]


def finding(rule: Rule, found: Evidence) -> Finding | None:
    """Return what one rule finds, None where it finds nothing."""
    every = tuple(rule(found))
    assert len(every) < 2
    return every[0] if every else None


def with_split(found: Evidence, source: Any = "profile", **shares: Any) -> Evidence:
    """Return the evidence with a step that divides like this."""
    parts: dict[str, Any] = dict.fromkeys(
        ("compute", "optimizer", "communication", "between_stages", "data", "idle", "launch_gaps")
    )
    return replace(found, split=Split(source=source, **(parts | shares)))


def with_metrics(found: Evidence, **values: Any) -> Evidence:
    """Return the evidence with other numbers of the run."""
    if "hfu" in values:
        values["registered"] = {**found.metrics.registered, "hfu": values.pop("hfu")}
    return replace(found, metrics=replace(found.metrics, **values))


def with_record(found: Evidence, **values: Any) -> Evidence:
    """Return the evidence with other settings in force."""
    record = found.record.model_copy(update={"observed": found.record.observed | values})
    return replace(found, record=record)


@pytest.mark.parametrize(
    ("rule", "share", "limit"),
    [
        (network.exposed_communication_rule, "communication", 0.05),
        (network.waits_between_stages_rule, "between_stages", 0.05),
        (device_rules.launch_gaps_rule, "launch_gaps", 0.03),
        (device_rules.data_rule, "data", 0.02),
        (device_rules.optimizer_rule, "optimizer", 0.08),
    ],
)
def test_a_part_of_the_step_is_named_from_its_limit_on(healthy, rule, share, limit):
    at = finding(rule, with_split(healthy, **{share: limit}))
    assert at is not None
    assert (at.step_fraction, at.basis) == (limit, "measured")
    assert finding(rule, with_split(healthy, **{share: limit - 1e-6})) is None
    assert finding(rule, replace(healthy, split=None)) is None


def test_a_rank_that_sends_at_half_of_what_the_probe_reached_is_asked_why(healthy):
    """By hand: 8.03e9 parameters x 6 bytes x 7/8, 42.16 GB in a second, against 400 GB/s."""

    def says(ceiling: float | None, seconds: float | None = 1.0) -> str:
        changed = with_split(healthy, communication=0.1, collective_seconds=seconds)
        table = {"all_reduce_bus_gb_per_second": {"8": ceiling}}
        at = finding(network.exposed_communication_rule, replace(changed, ceilings=table))
        assert at is not None
        assert (at.evidence["sent_gb_per_second"] is None) == (seconds is None)
        return at.says

    slow = ": messages are small, or ranks wait for each other."
    assert "42.2 GB per step, 42.2 GB/s while communicating" in says(400.0)
    assert says(400.0).endswith(f"the probe of the machine reached 400 GB/s in an all-reduce{slow}")
    assert says(84.0).endswith("reached 84 GB/s in an all-reduce.")
    assert says(85.0).endswith(slow)
    assert says(None).endswith("while communicating.")
    assert says(400.0, None) == "Exposed communication takes 10 % of the step."


def test_time_marks_call_communication_what_they_saw(healthy):
    at = finding(
        network.exposed_communication_rule, with_split(healthy, "marks", communication=0.1)
    )
    assert at is not None
    assert at.says.startswith("The gradient all-reduce takes 10 % of the step.")


@pytest.mark.parametrize(
    ("split", "advised"),
    [
        (Parallelism(8), ["More micro batches"]),
        (Parallelism(8, tensor_parallel_size=8), ["tensor_parallel_size=8"]),
        (Parallelism(8, context_parallel_size=8), ["context_parallel_size"]),
        (Parallelism(8, expert_parallel_size=2), ["expert_parallel_size", "More micro batches"]),
        (
            Parallelism(8, tensor_parallel_size=2, context_parallel_size=2),
            ["tensor_parallel_size=2", "context_parallel_size", "More micro batches"],
        ),
        (None, ["smaller tensor and context"]),
    ],
)
def test_less_communication_is_advised_for_the_kinds_that_the_layout_has(healthy, split, advised):
    changed = with_split(replace(healthy, parallelism=split), communication=0.1)
    at = finding(network.exposed_communication_rule, changed)
    assert at is not None
    said = [line for line in at.advice if not line.startswith("Check the links")]
    assert [word in line for word, line in zip(advised, said, strict=True)] == [True] * len(said)
    assert len(at.advice) - len(said) == (split is not None)
    assert (f"(now {healthy.num_microbatches})" in "".join(said)) == ("More" in "".join(advised))


def test_an_overlap_counts_where_more_than_one_replica_exchanges_something(healthy):
    both = with_record(healthy, overlap_grad_reduce=False, overlap_param_gather=False)

    def found(changed: Evidence = both, split: Any = None, share: float | None = 0.01):
        split = split or Parallelism(8, data_parallel_sharding="optimizer")
        return finding(
            network.overlap_off_rule,
            with_split(replace(changed, parallelism=split), communication=share),
        )

    at = found()
    assert at is not None
    assert at.says.startswith("overlap_grad_reduce and overlap_param_gather are off: what the 8 ")
    assert (at.step_fraction, at.basis) == (0.01, "measured")
    assert at.evidence == {"overlap_grad_reduce": False, "overlap_param_gather": False}
    one = found(split=Parallelism(8, data_parallel_sharding="none"))
    assert one is not None
    assert one.says.startswith("overlap_grad_reduce is off")
    unknown = found(share=None)
    assert unknown is not None
    assert (unknown.step_fraction, unknown.basis) == (None, None)
    assert found(share=0.0099) is None
    assert found(with_record(healthy, overlap_grad_reduce=True, overlap_param_gather=True)) is None
    assert found(split=Parallelism(2, tensor_parallel_size=2)) is None
    context = found(split=Parallelism(2, context_parallel_size=2))
    assert context is not None


@pytest.mark.parametrize(
    ("split", "batches", "gib", "fits"),
    [
        (Parallelism(8, 4, sequence_parallel=True), 8, 92.0, True),
        (Parallelism(8, 2, sequence_parallel=True), 6, 92.0, True),
        (Parallelism(8, 4), 8, 92.1, False), (Parallelism(8, 4), 7, 50.0, False),
        (Parallelism(8, 4), None, 50.0, False), (Parallelism(8), 8, 50.0, False),
        (Parallelism(9, 3), 8, 50.0, False), (Parallelism(8, 4), 8, None, False),
    ],
)  # fmt: skip
def test_half_the_tensor_parallel_size_is_tried_where_it_fits(
    healthy, monkeypatch, split, batches, gib, fits
):
    tried: list[Any] = []

    def predicted(found: Evidence, **changes: Any) -> Need | None:
        tried.append((found.parallelism, changes["num_microbatches"]))
        return None if gib is None else Need(gib, 100.0)

    monkeypatch.setattr(network, "fits_with", predicted)
    sent = CommunicationEstimate(5e9, pipeline=0, context=0, expert=0, data=1e9, bubble=0)
    monkeypatch.setattr(Evidence, "sent", lambda _: sent)
    changed = replace(healthy, parallelism=split, num_microbatches=batches)
    at = finding(network.tensor_parallel_size_rule, changed)
    assert (at is not None) is fits
    if at is None:
        return
    size = split.tensor_parallel_size // 2
    assert tried == [
        (replace(split, tensor_parallel_size=size, sequence_parallel=size > 1), batches // 2)
    ]
    assert f"={2 * size} sends 5 GB per rank and step and cuts" in at.says
    assert at.says.endswith("92 of 100 GiB predicted.")
    assert at.advice[0] == f"Try tensor_parallel_size={size} with twice the data parallel size."
    assert at.evidence == {"predicted_gib": 92.0, "device_gib": 100.0, "tensor_parallel_gb": 5.0}


def test_what_leaves_a_node_and_what_every_rank_repeats_is_named_from_two_ranks_on(healthy):
    def rules_of(split: Parallelism) -> list[bool]:
        changed = replace(healthy, parallelism=split)
        return [
            finding(rule, changed) is not None
            for rule in (
                network.tensor_parallel_across_nodes_rule,
                network.sequence_parallel_off_rule,
            )
        ]

    assert rules_of(Parallelism(16, 8)) == [False, True]
    assert rules_of(Parallelism(16, 16)) == [True, True]
    assert rules_of(Parallelism(16, 2)) == [False, True]
    assert rules_of(Parallelism(16, 2, sequence_parallel=True)) == [False, False]
    assert rules_of(Parallelism(16)) == [False, False]
    silent = healthy.record.model_copy(update={"requested": {}, "observed": {}})
    log = replace(healthy, record=silent, parallelism=Parallelism(16, 2))
    assert finding(network.sequence_parallel_off_rule, log) is None


def test_what_a_log_says_of_sequence_parallelism_counts_for_elementwise_kernels(healthy):
    """Norms and residuals of an eighth of the sequence: fewer bytes than of the whole."""

    def seconds(on: bool) -> float:
        record = healthy.record.model_copy(
            update={"requested": {}, "observed": {"sequence_parallel": on}}
        )
        split = Parallelism(8, 8, sequence_parallel=on)
        found = _elementwise(replace(healthy, record=record, parallelism=split, split=None))[0]
        assert found is not None
        return found

    shape, rate = healthy.shape, healthy.metrics.tokens_per_second_per_gpu
    replicated = (
        traffic.layer_values(shape, tensor=8, replicated=r, moe=False) for r in (1, 1 / 8)
    )
    whole, eighth = (sum(values) for values in replicated)
    less = 2 * (whole - eighth) * shape.num_layers * 8 * rate / 4.8e12  # bytes/s of an H200
    assert seconds(False) - seconds(True) == pytest.approx(less)
    silent = healthy.record.model_copy(update={"requested": {}, "observed": {}})
    log = replace(healthy, record=silent, split=None)
    value, _, reason = _elementwise(replace(log, parallelism=Parallelism(8, 8)))
    assert value is None and reason and "does not say" in reason
    assert _elementwise(replace(log, parallelism=Parallelism(8)))[0] is not None


def test_gloo_between_gpus_is_named_from_two_gpus_on(healthy):
    gloo = healthy.record.model_copy(
        update={"environment": healthy.record.environment | {"backend": "gloo"}}
    )
    changed = replace(healthy, record=gloo)
    assert finding(network.collective_backend_rule, with_metrics(changed, world_size=2)) is not None
    assert finding(network.collective_backend_rule, with_metrics(changed, world_size=1)) is None
    assert finding(network.collective_backend_rule, with_metrics(changed, world_size=None)) is None
    assert finding(network.collective_backend_rule, healthy) is None


def test_a_machine_and_its_shapes_are_named_from_their_limits_on(healthy):
    """By hand: at an MFU of 0.6 and a peak of 1000, a best of 952.4 costs 0.6 x 0.05 = 0.03."""

    def ceiling(best: float, **values: Any) -> Finding | None:
        numbers = {"peak_tflops_per_second": 1000.0, "mfu": 0.6, "hfu": None} | values
        changed = with_metrics(healthy, measured_matmul_tflops=best, **numbers)
        return finding(device_rules.matmul_ceiling_rule, changed)

    at = ceiling(800.0)
    assert at is not None
    assert at.step_fraction == pytest.approx(0.6 * (1000 / 800 - 1))
    assert "an MFU above 80 % is out of reach here; this run is at 75 % of the reachable" in at.says
    assert ceiling(1000 / 1.0501) is not None
    assert ceiling(1000 / 1.0499) is None
    assert ceiling(1000.0) is None
    twice = ceiling(800.0, hfu=0.8)
    assert twice is not None and twice.step_fraction == pytest.approx(0.8 * 0.25)
    least = ceiling(1000.0, peak_tflops_per_second=1500.0, mfu=0.06)  # half of 0.06
    assert least is not None and least.step_fraction == 0.03
    most = ceiling(100.0)
    assert most is not None and most.step_fraction == 1

    def shapes(own: float, tensor: int = 1, hfu: float = 0.5) -> Finding | None:
        key = f"{healthy.metrics.model}/tp{tensor}/bf16"
        changed = with_metrics(
            replace(healthy, ceilings={"model_matmul_tflops": {key: own}}),
            measured_matmul_tflops=800.0, peak_tflops_per_second=1000.0, hfu=hfu,
            tensor_parallel_size=tensor,
        )  # fmt: skip
        return finding(device_rules.matmul_shapes_rule, changed)

    at = shapes(400.0)
    assert at is not None
    assert at.step_fraction == pytest.approx(0.5 * 1000 * (1 / 400 - 1 / 800))
    assert len(at.advice) == 1
    narrow = shapes(400.0, tensor=2)
    assert narrow is not None and len(narrow.advice) == 2
    assert shapes(0.93 * 800) is not None
    assert shapes(0.931 * 800) is None
    capped = shapes(100.0)
    assert capped is not None and capped.step_fraction == 1


def clocked(found: Evidence, *by_device: float, mean: float = 1600.0) -> Evidence:
    """Return the evidence with these clocks (MHz) of its devices."""
    names = tuple((f"GPU {number}", value) for number, value in enumerate(by_device))
    clocks = Clocks(mean, mean, 1980.0, None, names)
    told = {"sw_power_cap": 0.5}
    return replace(found, devices=replace(found.devices, clocks=clocks, throttle_fractions=told))


def test_clocks_cost_what_they_are_below_the_stated_one_while_products_run(healthy):
    at = finding(device_rules.clocks_rule, clocked(healthy, 1600.0))
    assert at is not None
    compute = healthy.split.compute if healthy.split else None
    assert at.step_fraction == pytest.approx((1 - 1600 / 1830) * (compute or 0))
    assert at.evidence == {
        "mean_clock_mhz": 1600.0, "max_clock_mhz": 1980.0, "peak_clock_mhz": 1830.0,
    }  # fmt: skip
    assert at.basis == "computed"
    (advice,) = at.advice
    assert advice.startswith("Raise the power cap")
    capped = clocked(healthy, 1600.0)  # an H200 has 700 W
    capped = replace(capped, devices=replace(capped.devices, power_cap_watts=700.0))
    own = finding(device_rules.clocks_rule, capped)
    assert own is not None and own.advice[0].startswith("The cap is the board's own")
    hot = replace(clocked(healthy, 1600.0).devices, throttle_fractions={"hw_thermal_slowdown": 1.0})
    cool = finding(device_rules.clocks_rule, replace(healthy, devices=hot))
    assert cool is not None and cool.advice[0].startswith("Improve the cooling")
    unknown = replace(hot, clocks=None)
    without = finding(device_rules.clocks_rule, replace(healthy, devices=unknown))
    assert without is not None
    assert (without.step_fraction, without.basis) == (None, None)
    whole = finding(device_rules.clocks_rule, replace(clocked(healthy, 1600.0), split=None))
    assert whole is not None and whole.step_fraction == pytest.approx(1 - 1600 / 1830)


def test_a_clock_costs_all_of_a_step_that_nobody_divided_and_no_more_than_all(healthy):
    slow = clocked(replace(healthy, split=None), mean=1464.0)  # 1 - 1464 / 1830 = 0.2
    for found, share in (
        (slow, 0.2), (with_split(slow, "marks", compute=1.3), 0.2),
        (with_split(slow, compute=0.5), 0.1),
    ):  # fmt: skip
        at = finding(device_rules.clocks_rule, found)
        assert at is not None and at.step_fraction == pytest.approx(share)


def test_products_below_the_peak_do_not_count_the_clock_a_second_time(healthy):
    """By hand: 0.5 of a step at 989.4; a probe's 900 cost 0.0497, a clock of 1,800 0.0083."""
    for mean, clock, below in (
        (1800.0, 0.5 / 60, 0.5 * 89.4 / 900 - 0.5 / 60),
        (1600.0, 0.5 * 23 / 160, 0.0),
    ):
        slow = with_metrics(
            clocked(healthy, mean=mean), mfu=0.5, hfu=None, measured_matmul_tflops=900.0
        )
        found = waterfall(slow)
        assert found is not None
        parts = {part.name: part.step_fraction for part in found.parts}
        assert parts["lower_clock"] == pytest.approx(clock)
        assert parts["products_below_peak"] == pytest.approx(below)


@pytest.mark.parametrize(("best", "again"), [(None, 0.1), (900.0, 0.1 * 989.4 / 900)])
def test_recomputation_takes_its_flops_at_the_best_rate_that_is_known(healthy, best, again):
    """By hand: an HFU of 0.5 at an MFU of 0.4 is 0.1 of the step at the peak."""
    full = healthy.record.model_copy(
        update={"requested": healthy.record.requested | {"recompute": "full"}}
    )
    changed = replace(healthy, record=full)
    found = waterfall(with_metrics(changed, mfu=0.4, hfu=0.5, measured_matmul_tflops=best))
    assert found is not None
    parts = {part.name: part.step_fraction for part in found.parts}
    assert parts["recomputation"] == pytest.approx(again)


@pytest.mark.parametrize(
    "unknown",
    [
        {"tokens_per_second_per_gpu": None},
        {"accelerator": None},
    ],
)
def test_the_work_of_an_fp8_run_is_known_with_its_rate_and_peaks(healthy, unknown):
    eight = {"precision": "fp8", "mfu": None, "peak_tflops_per_second": None}
    assert useful_work(with_metrics(healthy, **eight)) is not None
    assert useful_work(with_metrics(healthy, **eight | unknown)) is None


def test_one_device_is_slow_from_three_percent_below_the_median_on(healthy):
    at = finding(device_rules.slow_device_rule, clocked(healthy, 1000.0, 1000.0, 970.0))
    assert at is not None
    assert at.says.startswith("GPU 2 ran at 970 MHz, the median of the other devices was 1,000 MHz")
    assert at.step_fraction == pytest.approx(0.03)
    two = finding(device_rules.slow_device_rule, clocked(healthy, 900.0, 1000.0))
    assert two is not None
    assert two.step_fraction == pytest.approx(0.1)
    assert healthy.parallelism is not None
    staged = replace(healthy, parallelism=replace(healthy.parallelism, pipeline_parallel_size=2))
    assert finding(device_rules.slow_device_rule, clocked(staged, 900.0, 1000.0)) is None
    assert finding(device_rules.slow_device_rule, clocked(healthy, 1000.0, 1000.0, 971.0)) is None
    assert finding(device_rules.slow_device_rule, clocked(healthy, 100.0)) is None
    assert finding(device_rules.slow_device_rule, clocked(healthy, 1000.0, 500.0)) is not None


def test_one_rank_is_slow_from_two_percent_above_the_median_on(healthy):
    def straggler(*seconds: float) -> Finding | None:
        return finding(device_rules.straggler_rule, replace(healthy, rank_seconds=seconds))

    at = straggler(0.98, 1.0, 0.98)
    assert at is not None
    assert at.step_fraction == pytest.approx(0.02)
    assert "Steps of rank 1 take 1 s on average, those of the median rank 0.98 s." in at.says
    assert straggler(0.981, 1.0, 0.981) is None
    assert straggler(1.0) is None
    assert straggler(0.0, 0.0) is None
    assert straggler(0.5, 1.0) is not None


def test_fp32_is_questioned_where_bf16_has_half_as_much_again(healthy):
    """The H200 has 989.4 TFLOP/s in bf16."""

    def precise(peak: float | None, precision: str = "fp32") -> Finding | None:
        changed = with_metrics(healthy, precision=precision, peak_tflops_per_second=peak)
        return finding(device_rules.precision_rule, changed)

    at = precise(494.7)
    assert at is not None
    assert "fp32 has a peak of 494.7 TFLOP/s" in at.says
    assert "one of 989.4: 2 times as much" in at.says
    assert precise(989.4 / 1.501) is not None
    assert precise(989.4 / 1.499) is None
    assert precise(494.7, "bf16") is None
    assert precise(None) is None


STAGED = Parallelism(8, pipeline_parallel_size=4)


@given(st.floats(0, 0.5), st.floats(0, 0.5), st.sampled_from([4, 8, 32, 512]))
def test_waits_of_a_profile_are_divided_and_never_added_to(healthy, between, idle, batches):
    staged = replace(healthy, parallelism=STAGED, num_microbatches=batches)
    found = waiting_of(with_split(staged, between_stages=between, idle=idle))
    assert found is not None
    parts = (found.bubble, found.imbalance, found.stages, found.idle or 0.0)
    # the profile's rank is in the first of 4 stages, which waits longer than the mean of them
    in_layers = 128_256 * 4096 / (218_103_808 + 2 * 16_777_216)
    assert between + idle >= sum(parts) - 1e-9
    assert min(parts) >= 0
    theory = pipeline.bubble_of(staged) or 0.0
    uneven = (1 - theory) * (pipeline.imbalance_of(staged) or 0.0)
    assert found.bubble == pytest.approx(min(theory, between + idle))
    assert found.imbalance == pytest.approx(min(uneven, between + idle - found.bubble))
    first = (1 - theory) * in_layers / (8 + in_layers)
    assert found.stages == pytest.approx(max(between - theory - first, 0.0), abs=1e-9)


def test_waits_of_time_marks_are_beyond_what_theory_explains(healthy):
    """By hand: 8 micro batches on 4 stages idle for 3/11; what stages wait beyond is theirs."""
    staged = replace(healthy, parallelism=STAGED, num_microbatches=8)
    uneven = 8 / 11 * (pipeline.imbalance_of(staged) or 0.0)
    assert uneven > 0
    marks = waiting_of(with_split(staged, "marks", between_stages=0.9))
    assert marks is not None
    assert (marks.bubble, marks.imbalance) == pytest.approx((3 / 11, uneven))
    assert marks.stages == pytest.approx(0.9 - 3 / 11 - uneven)
    assert marks.idle is None
    alone = waiting_of(replace(staged, split=None))
    assert alone is not None
    assert (alone.bubble, alone.stages, alone.idle) == (pytest.approx(3 / 11), 0.0, None)
    assert waiting_of(replace(staged, num_microbatches=None)) is None
    assert waiting_of(replace(staged, parallelism=None)) is None


def test_stages_wait_for_the_longest_also_where_the_bubble_is_unknown(healthy):
    staged = replace(healthy, parallelism=STAGED)
    waits = pipeline.imbalance_of(staged)
    for batches, beside in ((None, 0.0), (8, 3 / 11)):
        at = finding(pipeline.pipeline_imbalance_rule, replace(staged, num_microbatches=batches))
        assert at is not None and at.step_fraction == pytest.approx(waits * (1 - beside))


def test_waits_that_nobody_measured_are_unknown_however_many_theory_expects(healthy):
    for split in (None, Parallelism(8)):
        bare = replace(healthy, split=None, parallelism=split or STAGED, num_microbatches=8)
        found = waterfall(bare)
        assert found is not None
        parts = {part.name: part.step_fraction for part in found.parts}
        assert parts["pipeline_bubble"] == (0 if split else pytest.approx(3 / 11))
        for name in ("waits_between_stages", "exposed_communication", "optimizer", "idle_device"):
            assert parts[name] is None


def test_a_bubble_is_named_from_three_percent_on_with_what_halves_it(healthy):
    def bubble(stages: int, batches: int, chunks: int = 1) -> Finding | None:
        split = Parallelism(8, 1, stages, virtual_pipeline_parallel_size=chunks)
        changed = replace(healthy, parallelism=split, num_microbatches=batches)
        return finding(pipeline.pipeline_bubble_rule, changed)

    at = bubble(4, 8)
    assert at is not None
    assert (at.step_fraction, len(at.advice)) == (pytest.approx(3 / 11), 3)
    assert "(16, by a larger" in at.advice[0] and "leave 15.8 %" in at.advice[0]  # 3 / 19
    assert "virtual_pipeline_parallel_size=2 " in at.advice[1]
    assert "leaves 15.8 %" in at.advice[1]
    assert "chunks" not in at.says
    chunked = bubble(4, 8, 2)
    assert chunked is not None
    assert chunked.step_fraction == pytest.approx(3 / 19)
    assert " and 2 chunks per stage are idle" in chunked.says
    assert "virtual_pipeline_parallel_size=4 " in chunked.advice[1]
    assert "leaves 8.57 %" in chunked.advice[1]  # 3 / 35
    assert bubble(2, 33) is None  # 1 / 34 is below 3 %
    under = bubble(2, 32)
    assert under is not None and under.step_fraction == pytest.approx(1 / 33)
    uneven = bubble(4, 6)  # an interleaved schedule needs batches that stages divide
    assert uneven is not None and len(uneven.advice) == 2
    assert bubble(1, 8) is None
    # 9, 9, 9 and 5 layers: 4 chunks of each stage have a layer each, 8 have not; so of 6, 6, 6, 14
    for chunks, layers, advised in ((2, 5, 3), (4, 5, 2), (2, 14, 3), (4, 14, 2)):
        split = Parallelism(
            8, 1, 4, virtual_pipeline_parallel_size=chunks, last_pipeline_stage_layers=layers
        )
        changed = replace(healthy, parallelism=split, num_microbatches=8)
        last = finding(pipeline.pipeline_bubble_rule, changed)
        assert last is not None and len(last.advice) == advised
    # 32 layers: 2 each in 4 x 4 chunks can be halved, 1 each in 4 x 8 not
    for chunks, advised in ((4, 3), (8, 2)):
        deep = bubble(4, 8, chunks)
        assert deep is not None and len(deep.advice) == advised


def test_the_vocabulary_of_a_small_model_is_named_from_its_share_on(healthy, monkeypatch):
    for head, said in ((0.15, True), (0.1499, False)):
        monkeypatch.setattr(pipeline, "head_fraction", lambda _found, head=head: head)
        assert (finding(pipeline.vocabulary_rule, healthy) is not None) is said


def test_a_split_of_a_profile_is_its_seconds_over_those_of_the_step():
    told = breakdown(gaps=0.2).model_copy(
        update={"kinds": {"elementwise": 1.3, "norm": 0.65, "attention": 2.6, "gemm": 5.0}}
    )
    found = split_of(told, ())
    assert found is not None
    assert found.elementwise == pytest.approx(1.95 / SECONDS)
    assert found.attention == pytest.approx(2.6 / SECONDS)
    assert found.compute == pytest.approx(0.93)
    assert found.launch_gaps == pytest.approx(0.015)  # no more than nothing ran
    assert found.collective_seconds == pytest.approx(1.3)
    plain = split_of(breakdown(exposed={"send_receive": 0.02, "all_reduce": 0.0}), ())
    assert plain is not None
    assert (plain.elementwise, plain.attention, plain.largest_collective) == (None, None, None)
    assert plain.between_stages == pytest.approx(0.02)
    assert plain.communication == pytest.approx(0.01)
    all_of_it = split_of(breakdown(exposed={"send_receive": 0.5}), ())
    assert all_of_it is not None
    assert (all_of_it.between_stages, all_of_it.communication) == (pytest.approx(0.03), 0)
    assert split_of(Breakdown(reason="none"), ()) is None


def test_what_profiling_adds_to_a_step_is_no_idle_time_of_the_measured_ones():
    """Of 13 s, 4 are idle; the measured step takes 10, of which 9 are busy."""
    told = breakdown(gaps=3.5 / SECONDS, idle=4 / SECONDS)
    found = split_of(told, (), 10.0)
    assert found is not None
    assert found.idle == pytest.approx(1 / 10)
    assert found.launch_gaps == pytest.approx(0.5 / 10)
    assert found.optimizer == pytest.approx(HEALTHY["optimizer"] * SECONDS / 10)
    parts = (found.compute, found.optimizer, found.communication, found.data, found.idle)
    assert sum(part or 0.0 for part in parts) == pytest.approx(1)
    # A step cannot be shorter than what was busy in it, and no profile is stretched.
    shortest = split_of(told, (), 8.0)
    assert shortest is not None
    assert shortest.idle == 0
    assert split_of(told, (), 14.0) == split_of(told, ())


def marked(seconds: float, ranks: tuple[float, ...] = (), **parts: float) -> StepRecord:
    """Return a step with time marks."""
    return StepRecord(
        step=1,
        phase="measured",
        step_seconds=seconds,
        tokens=None,
        loss=None,
        grad_norm=None,
        learning_rate=None,
        allocated_gib=None,
        reserved_gib=None,
        part_seconds=parts,
        rank_step_seconds=ranks,
    )


def test_a_split_of_marks_is_their_sum_over_the_time_of_the_marked_steps():
    steps = [
        marked(2.0, forward=0.5, backward=1.0, data=0.1),
        marked(2.0, forward=0.7),
        marked(9.0),
    ]
    found = split_of(None, steps)
    assert found is not None
    assert found.compute == pytest.approx(2.2 / 4)
    assert found.data == pytest.approx(0.1 / 4)
    assert (found.optimizer, found.communication, found.idle) == (None, None, None)
    assert split_of(None, [marked(9.0)]) is None


def test_ranks_have_mean_times_where_every_step_tells_those_of_all():
    def means(*steps: StepRecord) -> list[float] | None:
        return Steps.of(steps).rank_means()

    assert means(marked(1.0, (1.0, 2.0)), marked(1.0, (3.0, 2.0))) == [2.0, 2.0]
    assert means(marked(1.0, (1.0, 2.0)), marked(1.0, (3.0,))) is None
    assert means(marked(1.0), marked(1.0)) is None is means()
    assert means(marked(1.0, (1.0,)), marked(1.0, (3.0,))) == [2.0]


def test_attention_costs_what_its_kernels_take_beyond_their_flops_at_the_clock(healthy):
    """By hand: 6 x 4096 x 8192 FLOPs a token and layer, half of the scores, in 32 layers."""
    changed = with_split(healthy, compute=0.9, attention=0.2, between_stages=0.0, idle=0.0)
    rate, peak = healthy.metrics.tokens_per_second_per_gpu, healthy.metrics.peak_tflops_per_second
    at_peak = (rate or 0) * 6 * 4096 * 8192 * 32 / ((peak or 0) * 1e12)
    assert 0 < at_peak < 0.15

    def share(found: Evidence, name: str = "attention_below_peak") -> float | None:
        whole = waterfall(found)
        assert whole is not None
        return next(part.step_fraction for part in whole.parts if part.name == name)

    assert share(changed) == pytest.approx(0.2 - at_peak)
    slower = clocked(changed, mean=1700.0)
    assert share(slower) == pytest.approx(0.2 - at_peak * 1830 / 1700)
    assert share(with_split(healthy, compute=0.9, attention=at_peak / 2, idle=0.0)) == 0
    assert share(with_split(healthy, compute=0.9, idle=0.0)) is None
    done = healthy.metrics.hfu or healthy.metrics.mfu
    assert share(slower, "lower_clock") == pytest.approx((done or 0) * (1830 / 1700 - 1))
    assert share(clocked(changed, mean=1900.0), "lower_clock") == 0


def test_other_kernels_have_what_the_named_ones_leave_of_both_passes(healthy):
    whole = waterfall(with_split(healthy, compute=0.9, elementwise=0.05, idle=0.0))
    assert whole is not None
    parts = {part.name: part.step_fraction or 0.0 for part in whole.parts}
    named = sum(parts[name] for name in ("useful_work_at_peak", "products_below_peak"))
    assert parts["other_kernels"] == pytest.approx(0.9 - named - 0.05)
    assert parts["unexplained"] == pytest.approx(0.1)
    assert whole.explained == pytest.approx(0.9)
    assert whole.notes == ()


def test_a_part_that_is_larger_than_what_is_left_is_cut_and_said(healthy):
    whole = waterfall(with_split(healthy, compute=0.5, optimizer=0.3, data=0.3, idle=0.0))
    assert whole is not None
    parts = {part.name: part.step_fraction for part in whole.parts}
    taken = sum(parts[name] or 0.0 for name in ("useful_work_at_peak", "products_below_peak"))
    assert parts["data"] == pytest.approx(1 - taken - 0.3)
    left = percent(1 - taken - 0.3)
    assert whole.notes[0].startswith(f"data would be 30 %, but {left} of the step is left")
    for more, said in ((0.004, 0), (0.006, 1)):
        changed = with_split(healthy, compute=0.5, optimizer=1 - taken + more, elementwise=0.0)
        beyond = waterfall(changed)
        assert beyond is not None and len(beyond.notes) == said


@pytest.mark.parametrize(
    ("peak", "device", "named"), [(95.0, 100.0, True), (94.9, 100.0, False), (None, 100.0, False)]
)
def test_a_device_is_full_from_ninety_five_percent_on(healthy, peak, device, named):
    environment = healthy.record.environment | {"accelerator_memory_gib": device}
    record = healthy.record.model_copy(update={"environment": environment})
    changed = with_metrics(replace(healthy, record=record), peak_memory_gib=peak)
    assert (finding(memory_use.memory_full_rule, changed) is not None) is named


def test_a_prediction_is_scaled_by_what_was_measured_and_refused_where_it_is_far_off(healthy):
    predicted = healthy.memory()
    assert predicted is not None
    total = predicted.total_gib

    def need(times: float) -> Need | None:
        return memory_use.fits_with(with_metrics(healthy, peak_memory_gib=times * total))

    for times, gib in ((0.81, total), (1.0, total), (1.5, 1.5 * total), (1.99, 1.99 * total)):
        at = need(times)
        assert at is not None
        assert (at.gib, at.of_gib) == (pytest.approx(gib), 139.8)
    assert need(0.79) is None
    assert need(2.01) is None
    assert Need(92.0, 100.0).fits
    assert not Need(92.1, 100.0).fits


@pytest.mark.parametrize(
    ("mfu", "hfu", "share"),
    [(0.49, 0.5, 0.02), (0.4901, 0.5, None), (0.5, 0.5, None), (0.3, 0.4, 0.25), (0.3, None, None)],
)
def test_recomputation_costs_the_products_that_are_made_again(healthy, mfu, hfu, share):
    changed = with_metrics(with_split(healthy, compute=0.8), mfu=mfu, hfu=hfu)
    at = finding(memory_use.recompute_rule, changed)
    assert (at is None) is (share is None)
    if at is not None and share is not None:
        assert at.step_fraction == pytest.approx(0.8 * share)
        whole = finding(memory_use.recompute_rule, replace(changed, split=None))
        assert whole is not None and whole.step_fraction == pytest.approx(share)


def test_the_first_mode_with_less_recomputation_that_fits_is_advised():
    less = memory_use._less_recomputation
    assert less({"none": Need(93.0, 100.0), "selective": Need(80.0, 100.0)}) == (
        "recompute=selective: 80 of 100 GiB predicted."
    )
    assert "not predicted to fit" in less({"none": Need(93.0, 100.0), "selective": None})
    assert "no prediction fits what was measured" in less({"none": None})


@pytest.mark.parametrize(
    ("micro", "batches", "split", "gib", "named"),
    [
        (1, 8, Parallelism(8), 92.0, True), (1, 8, Parallelism(8), 93.0, False),
        (1, 7, Parallelism(8), 50.0, False), (1, 6, Parallelism(8), 50.0, True),
        (2, 8, Parallelism(8), 50.0, False),  # 16,384 rows
        (2, 8, Parallelism(8, context_parallel_size=2), 50.0, True),
        # one stage more: 3/(32+3) against 3/(16+3) costs more than 2 %, 1/(64+1) does not
        (1, 32, Parallelism(8, 1, 4), 50.0, False), (1, 64, Parallelism(8, 1, 2), 50.0, True),
        (1, 68, Parallelism(8, 1, 2, virtual_pipeline_parallel_size=2), 50.0, True),
        (1, 66, Parallelism(8, 1, 2, virtual_pipeline_parallel_size=2), 50.0, False),
        (1, 8, Parallelism(8), None, False),
    ],
)  # fmt: skip
def test_a_larger_micro_batch_is_tried_where_rows_are_few_and_it_fits(
    healthy, monkeypatch, micro, batches, split, gib, named
):
    tried: list[Any] = []

    def predicted(_found: Evidence, **changes: Any) -> Need | None:
        tried.append(changes)
        return None if gib is None else Need(gib, 100.0)

    monkeypatch.setattr(memory_use, "fits_with", predicted)
    changed = replace(healthy, parallelism=split, num_microbatches=batches)
    at = finding(memory_use.micro_batch_size_rule, with_metrics(changed, micro_batch_size=micro))
    assert (at is not None) is named
    if at is not None:
        assert tried == [{"micro_batch_size": 2 * micro, "num_microbatches": batches // 2}]
        assert f"Try micro_batch_size={2 * micro}: {gib:.3g} GiB" in at.advice[0]
        assert "8,192 rows" in at.says


@pytest.mark.parametrize(("load", "named"), [(1.1, True), (1.09, False), (None, False)])
def test_experts_are_uneven_from_a_tenth_above_the_mean_on(healthy, load, named):
    at = finding(pipeline.expert_load_rule, with_metrics(healthy, expert_load=load))
    assert (at is not None) is named
    assert at is None or at.step_fraction is None  # a dense model has none that wait


@pytest.mark.parametrize(
    ("sizes", "split"),
    [
        ({"expert_parallel_size": None}, Parallelism(8, 2)),
        ({"expert_parallel_size": 4}, Parallelism(8, 2, expert_parallel_size=4)),
        ({"world_size": None}, None), ({"tensor_parallel_size": 3}, None),
    ],
)  # fmt: skip
def test_a_split_is_known_where_its_sizes_are_and_fit_together(healthy, sizes, split):
    found = split_with(healthy.record, **{"tensor_parallel_size": 2} | sizes)
    assert found == (split and replace(split, data_parallel_sharding=found.data_parallel_sharding))


def test_a_log_that_names_no_chunks_and_no_split_of_experts_has_none(healthy):
    sizes = {"world_size": 8, "tensor_parallel_size": 2}
    of_log = {"source": "ingested", "observed": {}}
    log = healthy.record.model_copy(update=of_log | {"requested": sizes})
    assert parallelism_of(log) is None  # nothing says how many stages there are
    sizes |= {"pipeline_parallel_size": 1, "context_parallel_size": 1}
    log = healthy.record.model_copy(update=of_log | {"requested": sizes})
    assert parallelism_of(log) == Parallelism(8, 2)


def test_uneven_experts_cost_what_their_products_take_beyond_the_mean(healthy):
    """DeepSeek V2 Lite: 26 of 27 layers have experts, 6 of them a token, of 3 x 2048 x 1408."""
    shape = catalog.model("deepseek-v2-lite")
    changed = with_metrics(replace(healthy, shape=shape), expert_load=1.5, mfu=0.4)
    at = finding(pipeline.expert_load_rule, changed)
    experts = 6 * 26 * 6 * 3 * 2048 * 1408 / flops_per_token(shape, 8192)
    assert at is not None and at.step_fraction == pytest.approx(0.4 * experts * 0.5)
    assert "1.5 times the tokens" in at.says


@pytest.mark.parametrize(("sequence", "whole"), [(True, 1 / 4), (False, 1)])
def test_ranks_of_tensor_parallelism_share_the_bytes_that_are_split(healthy, sequence, whole):
    """Norms and residuals (22 accesses of 4,096 values) are shared by sequence parallelism only."""
    record = healthy.record.model_copy(
        update={"requested": healthy.record.requested | {"sequence_parallel": sequence}}
    )
    split = Parallelism(8, 4, sequence_parallel=sequence)
    changed = replace(healthy, record=record, parallelism=split, split=None)
    values = 22 * 4096 * whole + (8 * 5120 + 8 * 14336) / 4
    size = 2 * 32 * values + 8 * 128256 / 4
    rate = healthy.metrics.tokens_per_second_per_gpu * 4  # tokens that pass through a rank
    share, basis, _ = _elementwise(changed)
    assert (share, basis) == (pytest.approx(rate * size / 4.8e12), "computed")


@pytest.mark.parametrize(
    ("split", "advised"),
    [
        (Parallelism(8, data_parallel_sharding="none"), True),
        (Parallelism(8, 8, data_parallel_sharding="none"), False),
        (Parallelism(8, data_parallel_sharding="optimizer"), False),
        (None, False),
    ],
)
def test_a_long_optimizer_is_shared_where_replicas_hold_it_whole(healthy, split, advised):
    changed = with_split(replace(healthy, parallelism=split), optimizer=0.1)
    at = finding(device_rules.optimizer_rule, changed)
    assert at is not None
    assert any("data_parallel_sharding=optimizer" in line for line in at.advice) is advised
    assert f"(now {healthy.num_microbatches})" in at.advice[0]


def test_kernels_have_their_mean_length_where_both_figures_are_known(healthy):
    gaps = {"launch_gaps": 0.1, "kernels_per_step": 2000.0, "kernel_seconds": 0.5}
    at = finding(device_rules.launch_gaps_rule, with_split(healthy, **gaps))
    assert at is not None and at.says.endswith(" 2,000 kernels per step take 250 µs on average.")
    for name in ("kernels_per_step", "kernel_seconds"):
        without = finding(device_rules.launch_gaps_rule, with_split(healthy, **gaps | {name: None}))
        assert without is not None and without.says.endswith("its next kernel.")


def test_names_and_shares_are_worded_as_a_sentence_needs_them():
    assert [listed(names) for names in (["a"], ["a", "b"], ["a", "b", "c"])] == [
        "a", "a and b", "a, b and c",
    ]  # fmt: skip
    assert [percent(share) for share in (0.12345, 1.0, 0.00123)] == ["12.3 %", "100 %", "0.123 %"]


@pytest.mark.parametrize(
    ("value", "found"),
    [(1, 1.0), (0.5, 0.5), (0, None), (-1.0, None), (True, None), ("1", None), (1e300, None)],
)
def test_a_number_of_a_record_counts_where_it_is_one_above_zero(value, found):
    assert evidence.number(value) == found


@pytest.mark.parametrize(
    ("batch", "micro", "replicas", "found"),
    [(128, 2, 8, 8), (16, 2, 8, 1), (120, 2, 8, None), (None, 2, 8, None), (8, 2, 8, None)],
)
def test_micro_batches_are_counted_where_they_divide_the_batch(
    healthy, batch, micro, replicas, found
):
    metrics = replace(healthy.metrics, global_batch_size=batch, micro_batch_size=micro,
                      data_parallel_size=replicas)  # fmt: skip
    assert evidence._num_microbatches(metrics) == found


@pytest.mark.parametrize(
    ("counted", "platform", "found"),
    [(4, "h200", 4), (None, "h200", 8), (0, "h200", 8), (True, "h200", 8), (None, "no-such", None)],
)
def test_a_node_has_the_gpus_that_were_counted_else_those_of_its_platform(
    healthy, counted, platform, found
):
    environment = healthy.record.environment | {"accelerators_per_node": counted}
    record = healthy.record.model_copy(update={"environment": environment})
    changed = with_metrics(replace(healthy, record=record), platform=platform)
    assert changed.gpus_per_node == found
