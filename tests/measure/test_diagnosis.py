"""Diagnosis: each rule on a run made to show it and on one that must not, and sums that hold.

The runs are made up (source: simulated) around one healthy run, which no rule may find fault with.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import config, write_run

from scalebook.cli import main
from scalebook.config import RunConfig
from scalebook.measure.anatomy import Breakdown
from scalebook.measure.diagnosis import Diagnosis, Finding, diagnose, evidence
from scalebook.record import RunRecord
from scalebook.report.base import frames
from scalebook.report.pages import throughput_page
from scalebook.store import read_run

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


def diagnosed(
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
) -> Diagnosis:
    """Return the diagnosis of a run like the healthy one, but for these things."""
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
    return diagnose(read_run(path))


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
    one = diagnosed(tmp_path / "one", model="llama3.1-8b@1", seconds=2.0)
    assert "FLOPs with 1 layer;" in rule(one, "vocabulary").says


def test_exposed_communication_is_named_with_its_collective_and_its_rate(tmp_path):
    profile = breakdown(exposed={"all_gather": 0.2, "all_reduce": 0.05}, exposed_communication=0.25)
    found = diagnosed(tmp_path, profile=profile)
    exposed = rule(found, "exposed_communication")
    assert exposed.step_fraction == pytest.approx(0.25)
    assert "most of it all_gather" in exposed.says
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
    more = breakdown(exposed={"send_receive": 0.6}, exposed_communication=0.6, backward=0.2)
    slow = diagnosed(
        tmp_path / "b", profile=more, pipeline_parallel_size=4, global_batch_size=32, seconds=9.0
    )
    assert rule(slow, "waits_between_stages").step_fraction == pytest.approx(
        0.6 - 3 / 11 - (shares(slow)["unequal_stages"] or 0)
    )


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


def test_waiting_for_data_and_a_long_optimizer_are_named(tmp_path):
    found = diagnosed(tmp_path, profile=breakdown(data=0.1, optimizer=0.15))
    assert rule(found, "data").step_fraction == pytest.approx(0.1)
    assert "synthetic tokens" in rule(found, "data").says
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


@pytest.mark.parametrize(
    ("said", "read"), [(1, 1), (2**20 - 1, 2**20 - 1), (2**20, 7), (0, 7), (-2, 7), ("2", 7)]
)
def test_a_size_of_a_record_counts_where_it_is_plausible(said, read):
    record = RunRecord(
        run_id="a", config_hash="0", status="completed", source="measured",
        requested={"virtual_pipeline_parallel_size": said},
    )  # fmt: skip
    assert evidence._whole(record, "virtual_pipeline_parallel_size", 7) == read


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
    profile = breakdown(data=0.1, optimizer=0.15, gaps=0.2, idle=0.25)
    found = diagnosed(tmp_path, profile=profile, observed={"attention_kernel": "math"})
    sizes = [finding.step_fraction for finding in found.findings]
    known = [size for size in sizes if size is not None]
    assert known == sorted(known, reverse=True)
    assert sizes[len(known) :] == [None] * (len(sizes) - len(known))


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
    assert main(["diagnose", run]) == 0
    printed = capsys.readouterr().out
    assert "4 pipeline stages with 32 micro batches per step" in printed
    assert "30.3%  unexplained" in printed
    assert main(["diagnose", "…-24f22c14c363", "--runs", str(root / "runs")]) == 0
    assert capsys.readouterr().out == printed
    assert main(["diagnose", "no-such-run", "--runs", str(root / "runs" / "examples")]) == 2
