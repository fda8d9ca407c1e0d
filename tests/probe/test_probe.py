"""A probe measures for real on the CPU, its result reaches the runs, and drivers' text is read."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from scalebook import cli, store
from scalebook.errors import LaunchError
from scalebook.facts import catalog
from scalebook.measure.metrics import measure
from scalebook.measure.probes import (
    Ceilings,
    Collective,
    Copy,
    MachineIdentity,
    Matmul,
    Probe,
    ProbeRequest,
)
from scalebook.measure.probes.files import ceilings, model_rates, read_probes, summarise
from scalebook.measure.probes.lines import left_out, summary
from scalebook.measure.probes.shapes import products, tensor_sizes
from scalebook.measure.probes.topology import (
    pairs_by_link,
    parse_matrix,
    parse_nvidia_matrix,
    parse_nvlink,
    parse_rocm_matrix,
)
from scalebook.probe import probing
from scalebook.record import RunRecord, StepRecord
from scalebook.report.base import frames
from scalebook.running.devices import detect, sampler

REQUEST = ProbeRequest(
    platform="h100", world_size=2, models=("tiny-llama",), seconds=1.0, sequence_length=128
)
HERE = MachineIdentity(host="a", devices=("d0", "d1"), accelerator="X", torch="2.9", cuda="13.0")


def matmul(**changes: Any) -> Matmul:
    base: dict[str, Any] = {"precision": "bf16", "m": 8, "n": 8, "k": 8, "tflops": 100.0}
    return Matmul(**{**base, "tflops_best": 110.0, "spread": 0.01, "calls": 9, **changes})


def probe(**changes: Any) -> Probe:
    base: dict[str, Any] = {
        "probe_id": "p1",
        "status": "completed",
        "started_at": "2026-11-01T00:00:00+00:00",
        "request": REQUEST,
        "identity": HERE,
        "matmuls": (matmul(),),
    }
    made = Probe(**{**base, **changes})
    return made.model_copy(update={"ceilings": summarise(made)})


def write(runs: Path, *probes: Probe) -> Path:
    for item in probes:
        folder = runs / "probes" / item.probe_id
        folder.mkdir(parents=True)
        store.write_json(folder / "probe.json", item.model_dump(mode="json"))
    return runs


# ---- a real probe on the CPU


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Probe]:
    """Return a folder of runs with a probe by two processes, which lack Megatron, and the probe."""
    runs = tmp_path_factory.mktemp("runs")
    asked = probing.request("cpu", world_size=2, models=("tiny-llama@1",), seconds=1.5)
    lacking = tmp_path_factory.mktemp("lacking")
    (lacking / "megatron.py").write_text("raise ImportError('Megatron-Core is not installed')")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(lacking), prepend=os.pathsep)
        return runs, probing.probe(asked, str(runs))


def test_a_probe_on_the_cpu_measures_products_copies_and_collectives(
    made: tuple[Path, Probe],
) -> None:
    _, found = made
    assert found.status == "completed", found.log_tail
    assert {row.precision for row in found.sweep} >= {"fp32"}
    assert all(row.tflops_best >= row.tflops > 0 for row in found.matmuls)
    assert {row.operation for row in found.collectives} >= {"all_reduce", "all_gather"}
    assert {row.group_size for row in found.collectives} == {2}
    assert len(found.sustained[0].rank_tflops) == 2
    assert found.ceilings is not None
    fastest = max(row.tflops for row in found.matmuls if row.precision == "fp32")
    assert found.ceilings.matmul_tflops["fp32"] == fastest
    assert "the CPU is the device" in " ".join(left_out(found))
    assert found.environment["variables"]["OMP_NUM_THREADS"] == "1"


def test_a_probe_lies_among_the_runs_and_counts_as_none(made: tuple[Path, Probe]) -> None:
    runs, found = made
    assert [item.probe_id for item in read_probes(runs)[0]] == [found.probe_id]
    assert list(store.run_directories(runs)) == []
    assert not list((runs / "probes").glob(".partial-*"))


def test_no_name_of_the_host_is_kept(made: tuple[Path, Probe]) -> None:
    import socket

    runs, found = made
    text = (runs / "probes" / found.probe_id / "probe.json").read_text()
    assert socket.gethostname() not in text


def test_a_probe_is_found_again_by_what_a_training_process_knows_of_itself(
    made: tuple[Path, Probe],
) -> None:
    from scalebook.train.world import identity

    runs, found = made
    known = ceilings(runs, identity(processes=2))["ceilings"]
    assert known["probe"] == found.probe_id
    # with another number of processes each has another part of the cores
    assert ceilings(runs, identity(processes=1))["ceilings"] is None


def test_the_command_says_what_a_probe_that_broke_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["probe", "--platform", "cpu", "--runs", str(tmp_path), "--module", "no.such"]
    assert cli.main([*arguments, "--json"]) == 1
    value = json.loads(capsys.readouterr().out)
    assert value["status"] == "failed"
    assert any("no.such" in line or "No module" in line for line in value["log_tail"])
    assert ceilings(tmp_path, HERE)["ceilings"] is None


def test_a_probe_that_is_interrupted_is_kept_and_shows_no_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(partial: Path, *_: Any) -> tuple[int, str]:
        (partial / probing.LOG).write_text("SignalException\n")
        return 1, "interrupted"

    monkeypatch.setattr(probing, "_run", interrupted)
    assert cli.main(["probe", "--platform", "cpu", "--runs", str(tmp_path)]) == 130
    out, err = capsys.readouterr()
    assert out == "The probe was interrupted by hand.\n"
    assert err.endswith("scalebook: Interrupted.\n")
    assert len(list((tmp_path / "probes").glob("*/probe.json"))) == 1


# ---- what is asked


def test_a_platform_of_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "detect", lambda: detect.Machine("cpu", None, 0))
    with pytest.raises(LaunchError, match="h100"):
        probing.request("h100")


def test_more_processes_than_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = detect.Machine("nvidia", "NVIDIA H100 80GB HBM3", 2)
    monkeypatch.setattr(detect, "detect", lambda: machine)
    assert probing.request("h100").world_size == 2
    with pytest.raises(LaunchError, match="at most 2"):
        probing.request("h100", world_size=3)


def test_more_processes_than_a_cpu_can_share_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "detect", lambda: detect.Machine("cpu", None, 0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert probing.request("cpu", world_size=16).world_size == 16
    with pytest.raises(LaunchError, match=r"2 cores can share\. Use at most 16"):
        probing.request("cpu", world_size=17)


def test_a_request_that_is_no_request_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from scalebook.probe.measurement.__main__ import main

    request = tmp_path / "request.json"
    request.write_text('{"platform": 1}')
    assert main(["--request", str(request), "--output", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"{request} cannot be read" in said and said.count("\n") == 1


# ---- which products, and their rates


def test_the_products_of_a_dense_model_hold_its_matrix_parameters() -> None:
    shape = catalog.model("llama3.1-8b")
    found = {item.layer: item for item in products(shape, 4096, 1)}
    # 4096 wide, 32 heads and 8 groups of 128, MLP 14336, vocabulary 128256
    assert (found["qkv"].outputs, found["qkv"].inputs) == (6144, 4096)
    assert (found["fc1"].outputs, found["fc2"].inputs) == (28672, 14336)
    assert found["logits"].outputs == 128256
    weights = sum(item.outputs * item.inputs * item.count for item in found.values())
    assert weights == 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336) + 128256 * 4096


@pytest.mark.parametrize("size", [2, 4, 8])
def test_tensor_parallel_ranks_share_the_work_of_a_dense_model(size: int) -> None:
    shape = catalog.model("llama3.1-8b")
    whole, part = (
        sum(item.rows * item.outputs * item.inputs * item.count for item in products(shape, 64, n))
        for n in (1, size)
    )
    assert part * size == pytest.approx(whole, rel=0.01)  # the vocabulary's padding differs


def test_experts_share_the_tokens() -> None:
    shape = catalog.model("tiny-moe")
    experts = [item for item in products(shape, 128, 1) if item.layer.startswith("expert")]
    assert {item.rows for item in experts} == {128 * 2 // 8}
    assert {item.count for item in experts} == {4 * 8}


def test_a_tensor_size_divides_heads_and_groups() -> None:
    assert tensor_sizes(catalog.model("qwen2.5-7b")) == (1, 2, 4)  # 28 heads, 4 groups


def test_the_rate_of_a_model_is_total_work_over_total_time_and_needs_every_product() -> None:
    layers = {item.layer for item in products(catalog.model("tiny-llama"), 1, 1)}
    rows = [
        matmul(model="tiny-llama", layer=layer, layout=layout, tensor_parallel_size=1, count=1)
        for layer in layers
        for layout in ("forward", "dgrad", "wgrad")
    ]
    slow = [*rows[:-1], rows[-1].model_copy(update={"tflops": 50.0})]
    assert model_rates(rows) == {"tiny-llama/tp1/bf16": pytest.approx(100.0)}
    count = len(rows)
    assert model_rates(slow) == {
        "tiny-llama/tp1/bf16": pytest.approx(count / ((count - 1) / 100 + 1 / 50))
    }
    assert model_rates(rows[:-1]) == {}


def test_the_summary_takes_the_best_of_each_kind() -> None:
    def reduce(group: int, rate: float) -> Collective:
        fixed = {"bytes": 8, "seconds": 1.0, "algorithm_gb_per_second": 1.0, "spread": 0.0}
        names = {"operation": "all_reduce", "group_size": group, "bus_gb_per_second": rate}
        return Collective.model_validate({**fixed, **names})

    copies = [
        Copy(kind=kind, bytes=1, gib_per_second=rate, gib_per_second_best=rate, spread=0.0)
        for kind, rate in (("device_to_device", 5.0), ("host_to_device", 9.0))
    ]
    found = probe(
        matmuls=(matmul(tflops=1.0), matmul(tflops=3.0), matmul(precision="fp8", tflops=4.0)),
        copies=tuple(copies),
        collectives=(reduce(2, 7.0), reduce(2, 8.0), reduce(4, 6.0)),
    ).ceilings
    assert found is not None
    assert found.matmul_tflops == {"bf16": 3.0, "fp8": 4.0}
    assert found.copy_gib_per_second == 5.0
    assert found.all_reduce_bus_gb_per_second == {"2": 8.0, "4": 6.0}


@pytest.mark.parametrize(
    ("name", "group", "factor"),
    [
        # nccl-tests, doc/PERFORMANCE.md: 2 (n - 1) / n, (n - 1) / n and 1
        ("all_reduce", 4, 1.5),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 8, 0.875),
        ("all_to_all", 2, 0.5),
        ("send_receive", 8, 1.0),
    ],
)
def test_bus_rates_follow_nccl_tests(name: str, group: int, factor: float) -> None:
    from scalebook.probe.measurement.transfers import OPERATIONS

    (found,) = [item for item in OPERATIONS if item.name == name]
    assert found.bus(group) == factor


def test_groups_are_powers_of_two_and_the_world_that_divide_it() -> None:
    from scalebook.probe.measurement.transfers import group_sizes

    assert group_sizes(1) == []
    assert group_sizes(8) == [2, 4, 8]
    assert group_sizes(6) == [2, 6]


def test_the_spread_is_the_quartiles_distance_over_the_median() -> None:
    from scalebook.probe.measurement.timing import summarised

    found = summarised([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 70)
    assert (found.seconds, found.best, found.calls) == (4.0, 1.0, 70)
    assert found.spread == pytest.approx((6.0 - 2.0) / 4.0)


@pytest.mark.parametrize("layout", ["plain", "forward", "dgrad", "wgrad"])
def test_a_layout_multiplies_what_its_name_says(layout: str) -> None:
    import torch

    from scalebook.probe.measurement import compute

    buffer = torch.randn(4 * 3 + 3 * 5 + 2 * compute.ALIGNMENT)
    seen: list[tuple[Any, ...]] = []
    original = torch.mm

    def spy(left: Any, right: Any, out: Any) -> Any:
        seen.append((left.shape, right.shape, left.is_contiguous(), right.is_contiguous()))
        return original(left, right, out=out)

    torch.mm = spy
    try:
        compute.product(buffer, compute.FP32, layout, m=4, n=5, k=3)(0)
    finally:
        torch.mm = original
    stored = {"plain": (True, True), "forward": (True, False), "dgrad": (True, True)}
    assert seen == [((4, 3), (3, 5), *stored.get(layout, (False, True)))]


# ---- which probe belongs to a run


def test_the_newest_completed_probe_of_the_machine_and_software_counts(tmp_path: Path) -> None:
    later = "2026-11-02T00:00:00+00:00"
    runs = write(
        tmp_path,
        probe(),
        probe(probe_id="p2", started_at=later, matmuls=(matmul(tflops=120.0),)),
        probe(probe_id="p3", started_at="2026-11-03T00:00:00+00:00", status="failed"),
        probe(probe_id="p4", started_at="2026-11-03T00:00:00+00:00", identity=None),
    )
    found = ceilings(runs, HERE.model_copy(update={"devices": ("d1",), "host": "container"}))
    assert found["ceilings"]["probe"] == "p2"
    assert found["ceilings"]["matmul_tflops"] == {"bf16": 120.0}


@pytest.mark.parametrize(
    "changes",
    [{"torch": "2.10"}, {"devices": ("d9",)}, {"accelerator": "Y"}, {"cuda": None, "rocm": "7.0"}],
)
def test_a_probe_of_another_machine_or_software_does_not_count(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    found = ceilings(write(tmp_path, probe()), HERE.model_copy(update=changes))
    assert found["ceilings"] is None
    assert "scalebook probe" in found["ceilings_reason"]


def test_a_probe_that_cannot_be_read_is_a_problem_and_no_more(tmp_path: Path) -> None:
    runs = write(tmp_path, probe())
    for name, text in (("p0", "{"), ("p9", '{"schema_version": 99}')):
        (runs / "probes" / name).mkdir()
        (runs / "probes" / name / "probe.json").write_text(text)
    newer = {**probe().model_dump(mode="json"), "schema_version": 99, "probe_id": "p8"}
    (runs / "probes" / "p8").mkdir()
    (runs / "probes" / "p8" / "probe.json").write_text(json.dumps(newer))
    found, problems = read_probes(runs)
    assert [item.probe_id for item in found] == ["p1"]
    assert len(problems) == 3
    assert "Update scalebook" in problems[1]


# ---- the fraction in a run's metrics


def run(environment: dict[str, Any], **settings: Any) -> store.Run:
    requested = {
        "platform": "h100",
        "model": "llama3.1-8b",
        "world_size": 1,
        "sequence_length": 4096,
        "precision": "bf16",
        **settings,
    }
    record = RunRecord(
        run_id="r", config_hash=None, status="completed", requested=requested,
        environment={"accelerator": "NVIDIA H100 80GB HBM3", **environment},
    )  # fmt: skip
    step = StepRecord(step=2, phase="measured", step_seconds=1.0, tokens=8000)
    return store.Run(Path("r"), record, (step,) * 12)


def test_the_fraction_is_the_achieved_rate_over_the_best_product() -> None:
    known = Ceilings(probe="p", matmul_tflops={"bf16": 800.0}).model_dump()
    found = measure(run({"ceilings": known}))
    assert found.measured_matmul_tflops == 800.0
    assert found.model_tflops_per_second_per_gpu is not None and found.mfu is not None
    assert found.matmul_fraction == pytest.approx(found.model_tflops_per_second_per_gpu / 800)
    assert found.matmul_fraction == pytest.approx(found.mfu * 989.4 / 800, rel=1e-3)
    assert found.matmul_fraction_reason is None


@pytest.mark.parametrize(
    ("environment", "settings", "reason"),
    [
        ({}, {}, "no probe"),
        ({"ceilings": None, "ceilings_reason": "None here"}, {}, "None here."),
        ({"ceilings": {"matmul_tflops": {"fp32": 1.0}}}, {}, "no matrix product in bf16"),
        ({"ceilings": {"matmul_tflops": {"bf16": "fast"}}}, {}, "no matrix product in bf16"),
        ({"ceilings": {"matmul_tflops": {"bf16": 1.0}}}, {"precision": "fp8"}, "FP8 run"),
        ({"ceilings": {"matmul_tflops": {"bf16": 1.0}}}, {"model": None}, "no model"),
    ],
)
def test_a_fraction_that_does_not_exist_has_a_reason(
    environment: dict[str, Any], settings: dict[str, Any], reason: str
) -> None:
    found = measure(run(environment, **settings))
    assert found.matmul_fraction is None
    assert reason in (found.matmul_fraction_reason or "")


def test_the_frames_know_the_fraction(tmp_path: Path) -> None:
    known = {"ceilings": {"matmul_tflops": {"bf16": 800.0}}}
    data = frames.collect(tmp_path, [run(known)], ())
    assert not math.isnan(data.runs["matmul_fraction"][0])
    assert data.runs["measured_matmul_tflops"][0] == 800.0


# ---- what drivers print

NVIDIA_TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPIX\t0-51\t0\t\tN/A
GPU1\tNV18\t X \tNODE\t0-51\t0\t\tN/A
NIC0\tPIX\tNODE\t X \t\t\t

Legend:

  X    = Self
"""
ROCM_TOPOLOGY = """\
============================ ROCm System Management Interface ============================
=============================== Link Type between two GPUs ===============================
       GPU0         GPU1
GPU0   0            XGMI
GPU1   XGMI         0
======================================= Numa Nodes =======================================
"""


def test_the_links_of_nvidia_and_rocm_tools_are_read() -> None:
    assert parse_nvidia_matrix(NVIDIA_TOPOLOGY) == {
        "devices": ["GPU0", "GPU1"],
        "links": [["X", "NV18"], ["NV18", "X"]],
    }
    assert parse_rocm_matrix(ROCM_TOPOLOGY) == {
        "devices": ["GPU0", "GPU1"],
        "links": [["X", "XGMI"], ["XGMI", "X"]],
    }
    text = "GPU 0: NVIDIA (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\nGPU 1: N\n"
    assert parse_nvlink(text) == {"GPU0": [26.562]}


def test_pairs_are_counted_once_by_the_link_that_joins_them() -> None:
    rows = [["X", "NV18", "SYS"], ["NV18", "X", "SYS"], ["SYS", "SYS", "X"]]
    assert pairs_by_link({"links": rows}) == {"SYS": 2, "NV18": 1}
    assert pairs_by_link(parse_matrix("amd", ROCM_TOPOLOGY)) == {"XGMI": 1}
    assert pairs_by_link(parse_matrix("nvidia", NVIDIA_TOPOLOGY)) == {"NV18": 1}
    assert parse_matrix("nvidia", None) == {}


@pytest.mark.parametrize(
    "odd", [None, 4, {}, {"links": 3}, {"links": [["X", "A"], 7]}, {"links": [[]]}]
)
def test_a_record_s_topology_of_another_form_has_no_pairs(odd: object) -> None:
    assert pairs_by_link(odd) == {}


@pytest.mark.parametrize("text", ["", "No devices", "\tGPU0\tGPU1\nGPU0\t X \tNV18\n", "GPU0"])
def test_text_of_another_form_gives_no_links(text: str) -> None:
    assert parse_nvidia_matrix(text) == {}
    assert parse_rocm_matrix(text) == {}
    assert parse_nvlink(text) == {}


@pytest.mark.parametrize(("hip", "vendor"), [(None, "nvidia"), ("7.0", "amd")])
def test_clocks_and_power_are_those_that_the_sensor_of_a_run_reads(
    monkeypatch: pytest.MonkeyPatch, hip: str | None, vendor: str
) -> None:
    from scalebook.probe.measurement import probe_run

    class Reader:
        def read(self) -> list[dict[str, Any]]:
            return [{"gpu": 1, "clock_mhz": 2100.0, "power_watts": 702.0}]

        def devices(self) -> list[dict[str, Any]]:
            return [{"gpu": 1, "max_clock_mhz": 2100.0}]

        def close(self) -> None:
            pass

    opened: list[str] = []
    monkeypatch.setattr(sampler, "open_sensor", lambda name, *_: opened.append(name) or Reader())
    assert probe_run.samples("idle") == probe_run.limits() == []  # a CPU has no such reader
    monkeypatch.setattr(probe_run.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(probe_run.torch.version, "hip", hip)
    (found,) = probe_run.samples("loaded")
    assert (found.device, found.moment, found.clock_mhz, found.power_watts) == (
        1, "loaded", 2100.0, 702.0
    )  # fmt: skip
    assert found.temperature_celsius is None
    assert probe_run.limits() == [{"gpu": 1, "max_clock_mhz": 2100.0}]
    assert set(opened) == {vendor}


def test_a_probe_in_words_names_what_was_left_out() -> None:
    text = summary(
        probe(
            status="timeout",
            reason="It took too long",
            log_tail=("last",),
            skipped=({"what": "a", "reason": "no time."}, {"what": "b", "reason": "no time"}),
        )
    )
    assert text.splitlines()[:3] == ["probe p1: timeout", "  It took too long.", "  | last"]
    assert "  not measured: a and 1 more: no time." in text.splitlines()


# ---- the page


def test_the_page_says_what_part_of_the_dense_peak_a_product_reaches(tmp_path: Path) -> None:
    from scalebook.report.pages import predicted_page

    known = HERE.model_copy(update={"accelerator": "NVIDIA H100 80GB HBM3"})
    layer = matmul(model="tiny-llama", layer="qkv", tensor_parallel_size=1, tflops=494.7)
    runs = write(tmp_path, probe(identity=known, matmuls=(matmul(tflops=791.5), layer)))
    data = frames.collect(runs, [], ())
    probes = predicted_page.load(data)
    # 989.4 TFLOP/s dense in bf16
    assert "80.0" in str(predicted_page.overview(probes, data))
    assert 'data-value="0.5"' in str(predicted_page.layers(probes))
    figures = predicted_page.sweep(probes)
    assert "989.4" in json.dumps(figures.parts[0][1].spec())


def test_the_page_escapes_what_a_probe_says(tmp_path: Path) -> None:
    from scalebook.report.pages import predicted_page

    bad = "<script>x</script>"
    links = {"devices": [bad], "links": [[bad]]}
    skipped = ({"what": bad, "reason": bad},)
    identity = HERE.model_copy(update={"accelerator": bad})
    runs = write(
        tmp_path,
        probe(topology=links, skipped=skipped, identity=identity),
        probe(probe_id="p2", status="failed", reason=bad),
    )
    data = frames.collect(runs, [], ())
    probes = predicted_page.load(data)
    parts = (
        *(predicted_page.overview(probes, data), predicted_page.links(probes)),
        *(
            predicted_page.missing(probes),
            predicted_page.summary(probes),
            predicted_page.sweep(probes),
        ),
    )
    for part in parts:
        assert bad not in part._repr_markdown_()


def test_the_newest_probe_of_each_machine_is_shown(tmp_path: Path) -> None:
    from scalebook.report.pages import predicted_page

    other = HERE.model_copy(update={"host": "b", "devices": ("d7",)})
    later = "2026-11-02T00:00:00+00:00"
    runs = write(
        tmp_path,
        probe(),
        probe(probe_id="p2", started_at=later),
        probe(probe_id="p3", identity=other),
    )
    shown = predicted_page.load(frames.collect(runs, [], ()))
    assert [item.probe_id for item in shown] == ["p2", "p3"]
    assert "scalebook probe" in str(
        predicted_page.overview((), frames.collect(tmp_path / "none", [], ()))
    )
