"""A step's anatomy, from traces made by hand whose answers were worked out on paper."""

from __future__ import annotations

import gzip
import json
import random
import time
from dataclasses import replace
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import AUTOGRAD, MAIN, host, kernel, launch, op, text, write

from scalebook.errors import TraceError
from scalebook.facts import catalog, communication
from scalebook.measure import anatomy
from scalebook.measure.anatomy import Breakdown, read_breakdown
from scalebook.measure.anatomy.breakdown import (
    Task,
    length,
    reduce_file,
    self_times,
    together,
    union,
)
from scalebook.measure.anatomy.events import EventReader
from scalebook.measure.anatomy.kinds import collective_of, kind_of, of_layout
from scalebook.measure.anatomy.trace import Trace
from scalebook.measure.metrics.step_anatomy import marked_steps, step_anatomy
from scalebook.parallelism import Parallelism
from scalebook.record import RunRecord, StepRecord
from scalebook.store import Run

US = 1e-6


def reduced(tmp_path: Path, *events: dict[str, Any], **options: Any) -> Breakdown:
    return reduce_file(write(tmp_path / "trace.json", *events), **options)


def parts(found: Breakdown) -> dict[str, float | None]:
    """The parts in microseconds, rounded to a millionth."""
    values = found.parts.model_dump()
    return {
        name.removesuffix("_seconds"): None if value is None else round(value / US, 6)
        for name, value in values.items()
    }


def a_step() -> list[dict[str, Any]]:
    """One step of 1,000 us: the answers are in the test below.

    Host: data 0-50, forward 0-300 (around data), backward 300-600 (kernels launched by autograd's
    thread), optimizer 600-700. Device, stream 7: a copy of input 20-40, GEMMs 100-300 and 310-500,
    Adam 800-900. Stream 20: an all-reduce 450-750.
    """
    return [
        host("scalebook.step", 0, 1000),
        host("scalebook.forward", 0, 300),
        host("scalebook.data", 0, 50),
        host("scalebook.backward", 300, 600),
        host("scalebook.optimizer", 600, 700),
        launch(1, 10, name="cudaMemcpyAsync"),
        launch(2, 90),
        launch(3, 305, AUTOGRAD),
        launch(4, 400, AUTOGRAD, "cuLaunchKernelEx"),
        launch(5, 650),
        kernel("Memcpy HtoD (Pinned -> Device)", 20, 40, 1, cat="gpu_memcpy"),
        kernel("nvjet_tst_128x256", 100, 300, 2),
        kernel("sm90_xmma_gemm_bf16", 310, 500, 3),
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", 450, 750, 4, stream=20),
        kernel("multi_tensor_apply_kernel<adam>", 800, 900, 5),
    ]


def test_every_moment_of_a_step_goes_to_one_part(tmp_path: Path):
    found = reduced(tmp_path, *a_step())
    assert found.reason is None
    assert (found.device, found.rank, found.steps) == ("gpu", 0, 1)
    assert parts(found) == {
        "forward": 200,  # 100-300
        "backward": 190,  # 310-500, launched on autograd's thread
        "optimizer": 100,  # 800-900
        "exposed_communication": 250,  # 500-750: 450-500 lies behind the GEMM
        "data": 50,  # 20-40 copied; 0-20 and 40-50 idle while the host fetched
        "idle": 210,  # 50-100, 300-310, 750-800, 900-1000
    }
    assert found.step_seconds == pytest.approx(1000 * US)
    assert found.communication_seconds == pytest.approx(300 * US)
    assert found.overlapped_communication_seconds == pytest.approx(50 * US)
    assert found.exposed_by_collective == {"all_reduce": pytest.approx(250 * US)}
    assert found.kernel_seconds == pytest.approx(510 * US)
    assert found.uncorrelated_kernels == 0


def test_the_rank_that_a_caller_names_counts_before_that_of_the_file(tmp_path: Path):
    assert reduced(tmp_path, *a_step(), rank=5).rank == 5


def test_a_span_of_no_length_is_none():
    assert union([(1, 1), (2, 3), (4, 4), (3, 3)]) == [(2, 3)]
    assert union([(0, 9), (1, 2), (9, 10)]) == [(0, 10)]


def test_a_gap_counts_as_a_late_launch_only_where_the_device_had_run_dry(tmp_path: Path):
    # 0-20: launched at 10, so late. 40-100: launched at 90. 300-310: launched at 305. 750-800:
    # Adam was launched at 650, before: not late. 900-1000: nothing follows.
    found = reduced(tmp_path, *a_step())
    assert found.launch_gap_seconds == pytest.approx((20 + 60 + 10 + 100) * US)


@pytest.mark.parametrize(("launched", "late"), [(9, False), (10, True), (11, True)])
def test_a_kernel_is_late_from_the_moment_on_at_which_the_device_was_free(
    tmp_path: Path, launched: int, late: bool
):
    found = reduced(
        tmp_path, host("scalebook.step", 0, 40), launch(1, 0), kernel("gemm_a", 0, 10, 1),
        launch(2, launched), kernel("gemm_b", 15, 40, 2),
    )  # fmt: skip
    assert found.launch_gap_seconds == pytest.approx(5 * US if late else 0)


def test_a_trace_keeps_twenty_thousand_names_and_counts_what_has_no_time():
    trace = Trace()
    for number in range(20_002):
        trace.add(kernel(f"kernel {number}", number, number + 1, number + 1))
    assert len(trace.names) == 20_001
    assert (trace.names[-2:], trace.kernels.name[-1]) == (
        ["kernel 19999", "(other names)"], 20_000
    )  # fmt: skip
    assert (trace.timed, trace.invalid, trace.invalid_kernels, trace.dropped) == (20_002, 0, 0, 0)
    trace.add(kernel("bad", 1, 0, 1))
    trace.add(op("bad", 1, 0))
    assert (trace.timed, trace.invalid, trace.invalid_kernels) == (20_002, 2, 1)


def test_kernels_are_named_counted_and_sorted_by_time(tmp_path: Path):
    found = reduced(tmp_path, *a_step())
    longest = found.top_kernels[0]
    assert longest.name.startswith("ncclDevKernel_AllReduce")
    assert (longest.kind, longest.calls) == ("communication", 1)
    assert longest.seconds == pytest.approx(300 * US)
    assert found.kinds == {
        "gemm": pytest.approx(390 * US),
        "communication": pytest.approx(300 * US),
        "optimizer": pytest.approx(100 * US),
        "copy": pytest.approx(20 * US),
    }


def test_seconds_are_those_of_one_step(tmp_path: Path):
    second = [
        event | {"ts": event["ts"] + 5000}
        | ({"args": event["args"] | {"correlation": event["args"]["correlation"] + 100}}
           if "args" in event else {})
        for event in a_step()
    ]  # fmt: skip
    one, two = reduced(tmp_path, *a_step()), reduced(tmp_path, *a_step(), *second)
    assert two.steps == 2
    assert parts(two) == parts(one)
    assert two.step_seconds == pytest.approx(one.step_seconds)
    assert two.launch_gap_seconds == pytest.approx(one.launch_gap_seconds)
    assert two.top_kernels[0].calls == 1
    assert (one.kernels_per_step, two.kernels_per_step) == (5, 5)
    assert two.kinds == pytest.approx(one.kinds)
    assert two.kernel_seconds == pytest.approx(one.kernel_seconds)
    assert two.each_step_seconds == pytest.approx([1000 * US] * 2)


def test_times_since_1970_lose_no_microsecond(tmp_path: Path):
    far = [event | {"ts": event["ts"] + 1.79e15} for event in a_step()]
    found = reduced(tmp_path, *far)
    assert parts(found)["exposed_communication"] == pytest.approx(250, abs=1)
    assert sum(found.parts.model_dump().values()) == pytest.approx(found.step_seconds, rel=1e-9)


def test_two_compute_streams_count_their_common_time_once(tmp_path: Path):
    found = reduced(
        tmp_path,
        host("scalebook.step", 0, 100),
        host("scalebook.forward", 0, 10),
        host("scalebook.backward", 10, 20),
        launch(1, 5),
        launch(2, 6),
        launch(3, 15),
        kernel("gemm_a", 10, 40, 1, stream=7),
        kernel("gemm_b", 20, 50, 2, stream=8),  # 20-40 beside gemm_a
        kernel("gemm_c", 45, 65, 3, stream=9),  # 45-50 beside gemm_b, of another phase
        kernel("ncclDevKernel_SendRecv", 30, 80, stream=20),
    )
    # forward 10-45 and half of 45-50; backward 50-65 and the other half.
    assert parts(found)["forward"] == 37.5
    assert parts(found)["backward"] == 17.5
    assert parts(found)["exposed_communication"] == 15  # 65-80
    assert found.kernel_seconds == pytest.approx(55 * US)
    assert found.overlapped_communication_seconds == pytest.approx(35 * US)  # 30-65
    assert found.kinds["gemm"] == pytest.approx(80 * US)  # a sum over kernels


def test_the_innermost_range_of_nested_ones_counts(tmp_path: Path):
    found = reduced(
        tmp_path,
        host("scalebook.step", 0, 100),
        host("scalebook.backward", 0, 60),
        host("scalebook.forward", 10, 30),  # as recomputation by a user's own range
        host("scalebook.data", 15, 20),
        host("scalebook.optimizer", 25, 30),  # ends with its parent
        *(launch(n, at) for n, at in enumerate((5, 12, 17, 27, 40), start=1)),
        *(kernel("gemm", 20 * n - 20, 20 * n, n) for n in range(1, 6)),
    )
    assert parts(found) == {
        "backward": 40, "forward": 20, "data": 20, "optimizer": 20,
        "exposed_communication": 0, "idle": 0,
    }  # fmt: skip


def test_a_pipeline_that_interleaves_forward_and_backward_is_told_apart_by_launches(
    tmp_path: Path,
):
    events = [host("scalebook.step", 0, 400)]
    for number in range(8):
        name = "scalebook.forward" if number % 2 == 0 else "scalebook.backward"
        at = 10 * number
        events += [host(name, at, at + 10), launch(number + 1, at + 5)]
        # The device lags far behind the host: by its own time every kernel would be in no range.
        size = 20 if number % 2 == 0 else 25
        events += [kernel("gemm", 100 + 30 * number, 100 + 30 * number + size, number + 1)]
    found = reduced(tmp_path, *events)
    assert (parts(found)["forward"], parts(found)["backward"]) == (80, 100)


def test_kernels_that_overlap_on_their_own_stream_leave_no_negative_gap(tmp_path: Path):
    found = reduced(
        tmp_path,
        host("scalebook.step", 0, 100),
        launch(1, 1),
        launch(2, 2),
        kernel("gemm", 10, 50, 1),
        kernel("gemm", 49.5, 80, 2),  # begins before the last one ended: the clocks jitter
        kernel("gemm", 60, 70, 2),
    )
    assert parts(found)["forward"] == 70
    assert parts(found)["idle"] == 30
    assert found.launch_gap_seconds == pytest.approx(30 * US)  # 0-10 and 80-100
    assert found.unmarked_seconds == pytest.approx(70 * US)


def test_a_kernel_without_its_launch_takes_the_phase_before_it_on_its_stream(tmp_path: Path):
    found = reduced(
        tmp_path,
        host("scalebook.step", 0, 100),
        host("scalebook.backward", 0, 50),
        launch(1, 5),
        kernel("gemm", 10, 20, 1),
        kernel("gemm", 20, 40, 99),  # its launch is not in the trace
        kernel("gemm", 40, 45),  # it names none
        kernel("gemm", 50, 60, stream=8),  # nothing before it
    )
    assert found.uncorrelated_kernels == 3
    assert (parts(found)["backward"], parts(found)["forward"]) == (35, 10)


def test_a_trace_that_is_cut_off_has_no_numbers_but_a_reason(tmp_path: Path):
    whole = text(*a_step())
    for size in (len(whole) // 2, len(whole) - 60):
        path = tmp_path / "cut.json"
        path.write_text(whole[:size])
        found = reduce_file(path)
        assert found.step_seconds is None
        assert set(parts(found).values()) == {None}
        assert "ends early" in (found.reason or "")
    packed = gzip.compress(whole.encode())
    (tmp_path / "cut.json.gz").write_bytes(packed[: len(packed) // 2])
    assert "ends early" in (reduce_file(tmp_path / "cut.json.gz").reason or "")


def test_an_event_that_is_no_json_makes_the_sums_unusable_and_says_so(tmp_path: Path):
    path = tmp_path / "broken.json"
    path.write_text(text(*a_step()).replace('"nvjet_tst_128x256"', "nvjet"))
    found = reduce_file(path)
    assert "1 events of the trace are not JSON" in (found.reason or "")
    values = found.model_dump(exclude={"schema_version", "rank", "reason", "parts"})
    assert not any(values.values())  # no step, no second, no kernel
    assert set(parts(found).values()) == {None}


@pytest.mark.parametrize("size", [7, 1 << 20])
def test_events_that_are_no_json_are_counted_with_their_lines(size: int):
    """Two of five, on the lines 2 and 4, in whatever pieces the file comes."""
    lines = ['{"traceEvents": [{"name": "a"},', "{oops},", '{"name": "b"},', "{oops},"]
    whole = "\n".join([*lines, '{"name": "c"}', "]}"])
    reader = EventReader(whole[at : at + size] for at in range(0, len(whole), size))
    assert [event["name"] for event in reader.events()] == ["a", "b", "c"]
    assert (reader.broken, reader.broken_lines, reader.complete) == (2, [2, 4], True)


@pytest.mark.parametrize(
    "whole", ["", "{}", '{"name": "a", "ph": "X"}', '{"events": [{"name": "a"}]}']
)
def test_a_file_without_a_list_of_events_has_none(whole: str):
    reader = EventReader(iter([whole]))
    assert (list(reader.events()), reader.complete, reader.broken) == ([], False, 0)


def test_values_of_wrong_types_are_passed_over(tmp_path: Path):
    odd = {"ph": "X", "cat": "cpu_op", "name": "odd", "ts": 0, "dur": 10, "pid": 1, "tid": 1}
    found = reduced(
        tmp_path,
        *a_step(),
        *[odd] * 300,
        odd | {"ts": "soon"},
        odd | {"dur": -5},
        odd | {"dur": float("nan")},
        odd | {"ts": 10**400},
        odd | {"dur": True},
        odd | {"name": 7},
        odd | {"cat": None},
        odd | {"ph": ["X"]},
        odd | {"args": [], "ts": 10**9},
        {"ph": "X"},
    )
    assert parts(found)["forward"] == 200
    assert "5 events without a valid time were left out." in found.notes


@pytest.mark.parametrize("times", [{"ts": 0, "dur": 0}, {"ts": "12.5", "dur": "3"}])
def test_a_trace_of_many_events_without_a_time_has_no_numbers(tmp_path: Path, times: Any):
    """One in three kernels has none: the parts of the step would be too small without a word."""
    kernels = [kernel("gemm", 120 * n, 120 * n + 100, n) for n in range(1, 41)]
    bad = [kernel("gemm", 0, 10, 1) | times for _ in range(20)]
    found = reduced(tmp_path, *kernels, *bad)
    assert (found.step_seconds, found.parts.forward_seconds) == (None, None)
    assert "20 of 60 device events have no valid time" in (found.reason or "")
    assert reduced(tmp_path, *kernels).step_seconds is not None


def test_a_gzip_file_reads_like_the_plain_one(tmp_path: Path):
    path = write(tmp_path / "t.json", *a_step(), rank=3)
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert reduce_file(packed) == reduce_file(path)
    assert reduce_file(path).rank == 3


def test_a_list_without_a_document_around_it_is_a_trace_too(tmp_path: Path):
    path = tmp_path / "list.json"
    path.write_text(json.dumps(a_step()))
    assert parts(reduce_file(path))["backward"] == 190


def test_a_trace_of_another_program_is_split_by_the_marks_that_torch_makes(tmp_path: Path):
    found = reduced(
        tmp_path,
        host("ProfilerStep#7", 0, 200),
        host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 20),
        host("autograd::engine::evaluate_function: MmBackward0", 50, 90, AUTOGRAD, "cpu_op"),
        host("Optimizer.step#AdamW.step", 100, 120),
        launch(1, 30),
        launch(2, 60, AUTOGRAD, "hipExtModuleLaunchKernel"),
        launch(3, 110, name="hipLaunchKernel"),
        kernel("Cijk_Ailk_Bljk_BBS_BH", 40, 80, 1),
        kernel("Cijk_Ailk_Bjlk_BBS_BH", 90, 140, 2),
        kernel("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", 100, 160, stream=3),
        kernel("multi_tensor_apply_kernel", 170, 180, 3),
    )
    assert parts(found) == {
        "forward": 40, "backward": 50, "optimizer": 10, "exposed_communication": 20, "data": 20,
        "idle": 60,
    }  # fmt: skip


def test_steps_are_of_some_length_and_do_not_overlap(tmp_path: Path):
    """Marks at 0-100, 90-200 and 200-200 us: two steps, of 100 us each."""
    marks = [host("scalebook.step", *ends) for ends in ((0, 100), (90, 200), (200, 200))]
    work = [launch(1, 10), kernel("gemm", 20, 60, 1)]
    found = reduced(tmp_path, *marks, *work)
    assert (found.steps, found.each_step_seconds) == (2, pytest.approx((100 * US, 100 * US)))
    assert found.kernels_per_step == 0.5


def test_a_trace_without_steps_counts_as_one_and_says_so(tmp_path: Path):
    found = reduced(tmp_path, kernel("gemm", 100, 150), kernel("gemm", 170, 200))
    assert (found.steps, found.step_seconds) == (1, pytest.approx(100 * US))
    assert any("marks no steps" in note for note in found.notes)


def test_only_one_device_of_several_is_told(tmp_path: Path):
    found = reduced(
        tmp_path,
        host("scalebook.step", 0, 100),
        *(kernel("gemm", 10 * n, 10 * n + 10, device=1) for n in range(3)),
        kernel("gemm", 50, 90, device=0),
    )
    assert parts(found)["forward"] == 30
    assert found.notes == ("The trace holds 2 devices; this is device 1.",)


def test_a_gpu_run_whose_trace_holds_no_kernel_has_no_breakdown(tmp_path: Path):
    events = (host("scalebook.step", 0, 100), op("aten::mm", 10, 20))
    assert "saw no kernel" in (reduced(tmp_path, *events, device="gpu").reason or "")
    assert reduced(tmp_path, *events, device="cpu").reason is None
    empty = reduced(tmp_path, host("scalebook.step", 0, 100))
    assert "No kernel and no operator" in (empty.reason or "")
    assert "no kernel and no operator" in (reduced(tmp_path).reason or "")


def test_on_a_cpu_operators_stand_for_kernels_and_gloo_for_communication(tmp_path: Path):
    found = reduced(
        tmp_path,
        host("scalebook.step", 0, 200),
        host("scalebook.forward", 0, 60),
        host("scalebook.data", 0, 10),
        op("aten::randn", 2, 8),
        op("aten::linear", 20, 60),
        op("aten::addmm", 25, 55),  # inside of aten::linear
        op("autograd::engine::evaluate_function: AddmmBackward0", 60, 100),
        op("aten::mm", 70, 95),
        host("gloo:all_reduce", 90, 120, 555),
        host("scalebook.pipeline", 130, 150),
        host("scalebook.optimizer", 150, 200),
        op("aten::_fused_adamw_", 160, 195),
    )
    assert found.device == "cpu"
    assert parts(found) == {
        "data": 10,
        "forward": 40,
        "backward": 25,
        "optimizer": 35,
        "exposed_communication": 25 + 20,  # 95-120, and the wait 130-150
        "idle": 10 + 10 + 10 + 15,  # 10-20, 60-70, 120-130, 150-160 and 195-200
    }
    assert found.overlapped_communication_seconds == pytest.approx(5 * US)
    assert found.launch_gap_seconds is None
    times = {top.name: round(top.seconds / US, 6) for top in found.top_kernels}
    assert (times["aten::linear"], times["aten::addmm"]) == (10, 30)  # without nested ones


def test_operators_that_touch_a_step_alone_are_not_in_it(tmp_path: Path):
    found = reduced(
        tmp_path,
        host("scalebook.step", 100, 200),
        host("scalebook.forward", 100, 150),
        host("scalebook.backward", 150, 200),
        op("aten::before", 50, 100),
        op("aten::mm", 100, 150),
        op("aten::after", 200, 220),
    )
    assert [top.name for top in found.top_kernels] == ["aten::mm"]
    assert (found.kernels_per_step, found.uncorrelated_kernels) == (1, 0)
    assert (parts(found)["forward"], parts(found)["idle"]) == (50, 50)


def test_the_times_of_nested_tasks_without_what_is_in_them_add_up_to_the_whole():
    # On one thread 0-100 holds 0-60 and 60-100, and 0-60 holds 0-10; another thread has 0-30.
    spans = {"whole": (0, 100), "first": (0, 60), "inner": (0, 10), "last": (60, 100)}
    tasks = [Task(*span, at, 1, None, None) for at, span in enumerate(spans.values())]
    tasks.append(Task(0, 30, 4, 2, None, None))
    for order in permutations(tasks):
        times = {task.name: time for task, time in self_times(order)}
        assert times == {0: 0, 1: 50, 2: 10, 3: 40, 4: 30}


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12))
def test_a_union_covers_each_moment_once(spans: list[tuple[int, int]]):
    merged = union(spans)
    covered = {moment for start, stop in spans for moment in range(start, stop)}
    assert length(merged) == len(covered)
    assert all(one[1] < two[0] for one, two in pairwise(merged))


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=6),
        min_size=1,
        max_size=4,
    )
)
def test_combinations_of_tracks_are_counted_moment_by_moment(tracks: list[list[tuple[int, int]]]):
    found = together([union(track) for track in tracks])
    expected: dict[int, float] = {}
    for moment in range(40):
        key = sum(
            1 << index
            for index, track in enumerate(tracks)
            if any(start <= moment < stop for start, stop in track)
        )
        if key:
            expected[key] = expected.get(key, 0) + 1
    assert found == expected


@pytest.mark.parametrize("seed", range(5))
def test_parts_add_up_to_the_step_whatever_ran(seed: int, tmp_path: Path):
    generator = random.Random(seed)
    events = [host("scalebook.step", 0, 1000), host("scalebook.step", 1000, 2000)]
    names = ("scalebook.forward", "scalebook.backward", "scalebook.optimizer", "scalebook.data")
    for number in range(1, 200):
        at, begin = generator.uniform(0, 2000), generator.uniform(-50, 2050)
        name = generator.choice(("gemm", "ncclDevKernel_AllGather", "elementwise"))
        span = (begin, begin + generator.expovariate(0.1))
        events += [
            host(generator.choice(names), at, at + 5),
            launch(number, at + 2, generator.choice((MAIN, AUTOGRAD))),
            kernel(name, *span, number, stream=generator.choice((7, 8, 20))),
        ]
    found = reduced(tmp_path, *events)
    values = found.parts.model_dump().values()
    assert min(values) >= 0
    assert sum(values) == pytest.approx(found.step_seconds, rel=1e-9)
    assert found.communication_seconds == pytest.approx(
        found.parts.exposed_communication_seconds + found.overlapped_communication_seconds
    )
    assert 0 <= found.launch_gap_seconds <= found.parts.idle_seconds + found.parts.data_seconds


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT", "gemm"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "gemm"),
        ("void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<...>>", "gemm"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64", "gemm"),
        ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<...>>>",
         "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", "attention"),
        ("pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>", "attention"),
        ("void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<...>>", "attention"),
        ("void transformer_engine::normalization::rmsnorm_fwd_general_kernel<...>", "norm"),
        ("void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel<float>", "norm"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::"
         "launch_clamp_scalar(at::TensorIteratorBase&)::{lambda()#1}>", "elementwise"),
        ("triton_poi_fused_mul_silu_0", "elementwise"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<..., "
         "FusedAdamMathFunctor<float, 4>>", "optimizer"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
         "communication"),
        ("rcclGenericKernel", "communication"),
        ("Memcpy DtoD (Device -> Device)", "copy"),
        ("CopyDeviceToDevice", "copy"),
        ("aten::mm", "gemm"),
        ("aten::mul", "elementwise"),
        ("gloo:all_gather", "communication"),
        ("my_own_kernel", "other"),
        ("Memcpy PtoP (Device -> Device)", "communication"),
        ("Memcpy DtoD (Device -> Device)", "copy"),
    ],
)  # fmt: skip
def test_a_kernel_is_sorted_by_its_name(name: str, kind: str):
    assert kind_of(name) == kind


def test_collectives_are_told_from_names():
    names = {
        "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL": "reduce_scatter",
        "ncclDevKernel_AllGather_RING_LL": "all_gather",
        "ncclDevKernel_AllReduce_Sum_bf16_TREE_LL": "all_reduce",
        "ncclDevKernel_SendRecv": "send_receive",
        "ncclDevKernel_Generic_1": "other",
        "gloo:recv": "send_receive",
        "Memcpy PtoP (Device -> Device)": "peer_copy",
        "c10d::alltoall_base_": "all_to_all",
    }
    assert {name: collective_of(name) for name in names} == names


def test_torchs_name_of_a_collective_counts_before_the_kernels(tmp_path: Path):
    """An all-to-all and a send run as one kernel: 100, 50 and 20 us of a step, none hidden."""
    both = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    names: tuple[Any, ...] = ("all_to_allv", "send", None, "coalesced", "gather", 7)
    spans = ((100, 200), (200, 250), (300, 310), (400, 410), (500, 520), (600, 605))
    events = [host("scalebook.step", 0, 1000), kernel("nvjet", 0, 90, 1)]
    for number, (name, (start, stop)) in enumerate(zip(names, spans, strict=True), 2):
        events.append(kernel(both, start, stop, number, stream=20))
        events[-1]["args"] |= {} if name is None else {"Collective name": name}
    found = {
        name: round(seconds / US, 6)
        for name, seconds in reduced(tmp_path, *events).exposed_by_collective.items()
    }
    assert found == {"all_to_all": 100, "send_receive": 50 + 10 + 10 + 5, "other": 20}


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ({"expert_parallel_size": 2}, {"expert_all_to_all": 3.0, "all_reduce": 4.0}),
        ({"context_parallel_size": 2}, {"all_to_all": 1.0, "context_ring": 2.0, "all_reduce": 4.0}),
        ({"expert_parallel_size": 2, "context_parallel_size": 2},
         {"all_to_all": 1.0, "other": 2.0, "all_reduce": 4.0}),
        ({}, {"all_to_all": 1.0, "other": 2.0, "all_reduce": 4.0}),
        ({"pipeline_parallel_size": 2, "expert_parallel_size": 2},
         {"expert_all_to_all": 1.0, "send_receive": 2.0, "all_reduce": 4.0}),
        ({"pipeline_parallel_size": 2, "context_parallel_size": 2},
         {"all_to_all": 1.0, "send_receive": 2.0, "all_reduce": 4.0}),
    ],
)  # fmt: skip
def test_exchanges_are_named_by_what_the_layout_uses_them_for(
    sizes: dict[str, int], found: dict[str, float]
):
    exposed = {"all_to_all": 1.0, "send_receive": 2.0, "all_reduce": 4.0}
    assert of_layout(exposed, Parallelism(8, **sizes)) == found


def test_a_trace_with_too_many_events_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("scalebook.measure.anatomy.trace.MOST_EVENTS", 3)
    assert "events too many. Profile fewer steps." in (reduced(tmp_path, *a_step()).reason or "")


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("scalebook.measure.anatomy.events.MOST_BYTES", 4 << 20)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (8 << 20)))
    with pytest.raises(TraceError, match="unpacks to more than"):
        reduce_file(path)


@pytest.mark.parametrize(
    "content", [b"", b"\x1f\x8b", b"{}", b"[[[[[", b"\xff\xfe\x00", b"{" * 9999]
)
def test_a_file_that_is_no_trace_has_a_reason(content: bytes, tmp_path: Path):
    path = tmp_path / "none.json"
    path.write_bytes(content)
    assert reduce_file(path).reason


def test_a_missing_file_is_an_error_in_one_line(tmp_path: Path):
    with pytest.raises(TraceError, match=r"nothing\.json cannot be read: No such file"):
        reduce_file(tmp_path / "nothing.json")


def test_a_breakdown_is_read_back_as_it_was_written(tmp_path: Path):
    found = reduced(tmp_path, *a_step())
    path = tmp_path / anatomy.BREAKDOWN_FILE
    path.write_text(found.model_dump_json())
    assert read_breakdown(path) == found
    exposed = {"exposed_by_collective": {"all_to_all": 1.0, "send_receive": 2.0}}
    path.write_text(found.model_copy(update=exposed).model_dump_json())
    named = {"exposed_by_collective": {"expert_all_to_all": 3.0}}
    layout = Parallelism(8, expert_parallel_size=2)
    assert read_breakdown(path, layout) == found.model_copy(update=named)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"parts": 3}',
        '{"step_seconds": NaN}',
        '{"top_kernels": [{"name": "x"}]}',
        '{"parts": {"idle_seconds": Infinity}}',
        '{"step_seconds": -Infinity}',
        '{"top_kernels": [{"name": "x", "seconds": NaN, "calls": 1, "kind": "gemm"}]}',
    ],
)
def test_a_file_that_is_no_breakdown_is_refused_in_one_line(content: str, tmp_path: Path):
    path = tmp_path / "breakdown.json"
    path.write_text(content)
    with pytest.raises(TraceError, match="contains no breakdown") as error:
        read_breakdown(path)
    assert "\n" not in str(error.value)


def test_reading_a_trace_takes_few_times_as_long_as_parsing_it(tmp_path: Path):
    body = ",".join(
        json.dumps(
            {"ph": "X", "cat": "kernel", "name": f"gemm_{n % 50}", "pid": 0, "tid": 7,
             "ts": n * 10, "dur": 9, "args": {"correlation": n + 1, "stream": 7, "device": 0,
             "grid": [1, 2, 3], "block": [128, 1, 1], "registers per thread": 255}}
        )
        for n in range(8_000)
    )  # fmt: skip
    whole = '{"traceEvents": [' + body + "]}"
    path = tmp_path / "large.json"
    path.write_text(whole)
    start = time.process_time()  # a busy machine slows neither
    json.loads(whole)
    parsed = time.process_time()
    found = reduce_file(path)
    assert found.kernels_per_step == 8_000
    assert time.process_time() - parsed < 15 * (parsed - start) + 1


# What a run left: time marks, profiles of ranks, and what theory says beside them


def marked(seconds: float, phase: str = "measured", **parts: float) -> StepRecord:
    return StepRecord.model_validate(
        {"step": 1, "phase": phase, "step_seconds": seconds, "tokens": None, "part_seconds": parts}
    )


RECORD = RunRecord(run_id="r", config_hash=None, status="completed", requested={})


def test_marks_are_means_over_the_steps_that_have_them_and_add_up_with_what_is_outside():
    """By hand: 0.5 and 0.7 s of forward in two steps of 2 and 3 s; one of them has a backward."""
    found = marked_steps(RECORD, [
        marked(9.0, "warmup", forward=9.0),
        marked(2.0, forward=0.5, backward=1.0), marked(3.0, forward=0.7), marked(50.0),
    ])  # fmt: skip
    assert found is not None
    assert (found.steps, found.step_seconds) == (2, 2.5)
    assert found.parts["forward"] == pytest.approx(0.6)
    assert sum(found.parts.values()) == pytest.approx(2.5)
    assert set(found.parts) == {"forward", "backward", "outside"}
    over = marked_steps(RECORD, [marked(1.0, forward=0.8, backward=0.4)])
    assert over is not None
    assert over.parts["outside"] == 0
    assert marked_steps(RECORD, [marked(1.0)]) is None
    assert marked_steps(RECORD, [marked(9.0, "warmup", forward=9.0)]) is None


def run_of(folder: Path, **requested: Any) -> Run:
    record = RunRecord(run_id="r", config_hash=None, status="completed", requested=requested)
    return Run(folder, record, ())


def test_profiles_are_read_by_rank_and_those_without_numbers_are_named(tmp_path: Path):
    folder = tmp_path / "profile"
    assert step_anatomy(run_of(tmp_path)).profiles == ()
    folder.mkdir()

    def leave(name: str, found: Breakdown) -> None:
        (folder / name).write_text(found.model_dump_json())

    leave("breakdown.json", Breakdown(rank=2, step_seconds=1.0))
    leave("breakdown-rank0.json", Breakdown(rank=0, step_seconds=3.0))
    leave("breakdown-rank3.json", Breakdown(rank=3, step_seconds=0.0, reason="It is empty."))
    leave("breakdown-rank4.json", Breakdown(step_seconds=None))
    (folder / "breakdown-rank5.json").write_text("{")
    found = step_anatomy(run_of(tmp_path))
    assert [(one.rank, one.step_seconds) for one in found.profiles] == [(0, 3.0), (2, 1.0)]
    of_three, of_none, broken = found.problems
    assert of_three == "The profile of rank 3 has no numbers. It is empty."
    assert of_none == "The profile has no numbers."
    assert broken.startswith("profile/breakdown-rank5.json")
    (folder / "breakdown.json").unlink()
    for rank in range(70):
        leave(f"breakdown-rank{rank}.json", Breakdown(rank=rank, step_seconds=1.0))
    assert len(step_anatomy(run_of(tmp_path)).profiles) == 63  # besides that of the first


SIZES: dict[str, Any] = {
    "model": "llama3.1-8b", "world_size": 16, "tensor_parallel_size": 2,
    "pipeline_parallel_size": 2, "micro_batch_size": 2, "global_batch_size": 64,
    "sequence_length": 4096, "precision": "bf16", "gradient_precision": "fp32",
}  # fmt: skip


def test_theory_beside_the_marks_is_that_of_the_runs_sizes(tmp_path: Path):
    """By hand: 16 GPUs over 2 x 2 are 4 replicas, so 64 samples are 8 micro batches of 2."""
    found = step_anatomy(run_of(tmp_path, **SIZES)).theory
    by_hand = communication.estimate(
        catalog.model("llama3.1-8b"), Parallelism(16, 2, 2), micro_batch_size=2,
        num_microbatches=8, sequence_length=4096, precision="bf16", gradient_precision="fp32",
    )  # fmt: skip
    assert found == by_hand
    whole = step_anatomy(run_of(tmp_path, **SIZES | {"data_parallel_sharding": "full"})).theory
    plain = step_anatomy(run_of(tmp_path, **SIZES | {"data_parallel_sharding": "none"})).theory
    assert whole is not None and plain is not None
    assert len({found.data, whole.data, plain.data}) == 3
    unsaid = {name: one for name, one in SIZES.items() if "precision" not in name}
    assert step_anatomy(run_of(tmp_path, **unsaid)).theory == by_hand


def test_there_is_no_theory_of_gradients_in_a_precision_that_a_log_does_not_say(tmp_path: Path):
    whole = SIZES | {"context_parallel_size": 1, "expert_parallel_size": 1}
    said = {name: one for name, one in whole.items() if name != "gradient_precision"}

    def theory(**sizes: Any) -> communication.CommunicationEstimate | None:
        run = run_of(tmp_path, **sizes)
        record = run.record.model_copy(update={"source": "ingested"})
        return step_anatomy(replace(run, record=record)).theory

    assert theory(**whole) is not None
    assert theory(**said) is None
    alone = said | {"world_size": 4, "global_batch_size": 16}  # one replica sends no gradients
    assert theory(**alone) == theory(**alone, gradient_precision="bf16") is not None
    assert theory(**alone | {"precision": None}) is None  # of 2 or of 4 bytes


@pytest.mark.parametrize(
    "change",
    [
        {"world_size": None}, {"model": "no-such"}, {"micro_batch_size": None},
        {"sequence_length": 0}, {"pipeline_parallel_size": 33, "world_size": 66},
        {"virtual_pipeline_parallel_size": 33}, {"world_size": 2}, {"global_batch_size": 7},
    ],
)  # fmt: skip
def test_there_is_no_theory_of_a_run_whose_sizes_are_unknown_or_do_not_fit(
    tmp_path: Path, change: dict[str, Any]
):
    assert step_anatomy(run_of(tmp_path, **SIZES | change)).theory is None
    least = {"global_batch_size": 8, "pipeline_parallel_size": 2}
    assert step_anatomy(run_of(tmp_path, **SIZES | least)).theory is not None


@pytest.mark.parametrize(("length", "known"), [(20.0, True), (900.0, False)])
def test_a_kernel_whose_length_covers_others_of_its_stream_gives_no_anatomy(
    length: float, known: bool, tmp_path: Path
):
    """One length that overflows covers the rest of its stream; kernels of a stream run in turn."""
    others = [kernel("gemm", at, at + 20) for at in range(100, 900, 25)]
    events = [host("scalebook.step", 0, 1000), kernel("attention", 70, 70 + length), *others]
    found = reduced(tmp_path, *events)
    assert (found.kernel_seconds is not None) is known
    assert ("32 of 33" in (found.reason or "")) is not known


def test_kernels_of_one_graph_may_run_within_one_another(tmp_path: Path):
    others = [kernel("gemm", at, at + 20, 5) for at in range(100, 900, 25)]
    events = [host("scalebook.step", 0, 1000), launch(5, 10), kernel("comm", 70, 970, 5), *others]
    assert reduced(tmp_path, *events).reason is None


def test_launches_without_a_kernel_give_no_anatomy(tmp_path: Path):
    calls = [launch(number, 10 * number) for number in range(1, 50)]
    found = reduced(tmp_path, host("scalebook.step", 0, 1000), op("aten::mm", 5, 900), *calls)
    assert found.parts.idle_seconds is None and "no kernel" in (found.reason or "")
