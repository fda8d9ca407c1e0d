"""Sampling beside a run: what each reader of devices says, and that it never hurts or outlives it.

No GPU is needed: NVML is a small C library of our own with the same functions, and amdsmi is a
module with the functions that ours calls.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from training import FAKES, small, wait_for

from scalebook.running import runner
from scalebook.running.devices import nvml, sampler, sensor, telemetry
from scalebook.running.devices.amd import AMDSMI
from scalebook.running.devices.rapl import RAPL
from scalebook.running.devices.sensor import SensorError

GPU_RUN = {"platform": "h100", "precision": "bf16", "world_size": 2}


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libnvidia-ml.so.1 that shows two GPUs."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler for the stand-in of NVML")
    folder = tmp_path_factory.mktemp("nvml")
    command = [
        "cc",
        "-shared",
        "-fPIC",
        "-o",
        str(folder / "libnvidia-ml.so.1"),
        str(FAKES / "nvml.c"),
    ]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture
def driver(library: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of a process that finds the stand-in; this process finds it too."""
    pynvml = pytest.importorskip("pynvml")
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(library / "libnvidia-ml.so.1")))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return {**os.environ, "LD_LIBRARY_PATH": str(library)}


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a telemetry file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def samples(path: Path) -> list[dict[str, Any]]:
    """Return the samples of a telemetry file."""
    return [line for line in lines(path) if "kind" not in line]


@pytest.mark.parametrize(
    ("vendor", "environment", "expected"),
    [
        ("nvidia", {}, (0, 1, 2, 3)),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "2,0"}, (2, 0)),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "1,-1,2"}, (1,)),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "0,9,1"}, (0,)),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": ""}, ()),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "GPU-c,GPU-a"}, (2, 0)),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "GPU-"}, ()),  # fits several: it names none
        ("amd", {"ROCR_VISIBLE_DEVICES": "1,2,3", "HIP_VISIBLE_DEVICES": "2,0"}, (3, 1)),
        ("amd", {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}, (1,)),
        ("amd", {"CUDA_VISIBLE_DEVICES": "3"}, (3,)),
    ],
)
def test_visible_devices_are_taken_in_the_order_of_the_list(vendor, environment, expected):
    names = ("GPU-a1", "GPU-b2", "GPU-c3", "GPU-d4")
    assert sensor.chosen(vendor, names, environment) == expected


def test_nvml_tells_every_quantity_in_its_unit_and_leaves_out_what_a_device_lacks(driver):
    reader = nvml.NVML({})
    first, second = reader.read()
    assert first == {
        "gpu": 0,
        "power_watts": 500.0,
        "energy_joules": 5_000_250.0,  # beyond 32 bits of millijoules
        "temperature_celsius": 61,
        "gpu_busy_fraction": 0.98,
        "memory_busy_fraction": 0.41,
        "memory_used_gib": 60.0,
        "clock_mhz": 1755,
        "memory_clock_mhz": 2619,
        "throttle_reasons": ["sw_power_cap", "sw_thermal_slowdown"],
    }
    assert second["power_watts"] == 300.25
    assert second["throttle_reasons"] == []  # idle is no reason to report
    assert not {"energy_joules", "temperature_celsius"} & second.keys()
    assert reader.devices()[0] == {
        "gpu": 0,
        "name": "NVIDIA Stand-in",
        "power_cap_watts": 700.0,
        "max_clock_mhz": 1980,
    }
    reader.close()


def test_only_the_gpus_of_the_run_are_read_in_the_order_of_its_ranks(driver):
    both = nvml.NVML({"CUDA_VISIBLE_DEVICES": "1,0"}, 2).read()
    one = nvml.NVML({"CUDA_VISIBLE_DEVICES": "1,0"}, 1).read()
    assert [row["gpu"] for row in both] == [1, 0]
    assert [row["gpu"] for row in one] == [1]
    with pytest.raises(SensorError, match="CUDA_VISIBLE_DEVICES"):
        nvml.NVML({"CUDA_VISIBLE_DEVICES": ""})


def test_a_driver_that_refuses_or_is_lost_is_a_reason_and_no_crash(driver, monkeypatch):
    monkeypatch.setenv("FAKE_NVML_REFUSES", "1")
    with pytest.raises(SensorError, match="does not start"):
        nvml.NVML({})
    monkeypatch.delenv("FAKE_NVML_REFUSES")
    reader = nvml.NVML({"CUDA_VISIBLE_DEVICES": "0"})
    reader.read()
    monkeypatch.setenv("FAKE_NVML_LOST_AFTER", "0")
    with pytest.raises(SensorError, match="answers no question"):
        reader.read()


def amdsmi_module(**more: Any) -> ModuleType:
    """Return a module with the functions of amdsmi for two MI300X, the second without most."""
    module: Any = ModuleType("amdsmi")
    module.AmdSmiException = type("AmdSmiException", (Exception,), {})
    metrics = {
        "current_socket_power": 712,
        "temperature_hotspot": 83,
        "average_gfx_activity": 99,
        "average_umc_activity": 35,
        "current_gfxclks": [1300, 1302, 0, 0],
        "current_uclk": 1300,
        "ppt_residency_acc": 10,
        "hbm_thm_residency_acc": 5,
    }
    told = {"first": metrics, "second": {"current_socket_power": 0xFFFF, "current_gfxclks": "N/A"}}

    def energy(handle: str) -> dict[str, Any]:
        if handle == "second":
            raise module.AmdSmiException("not supported")
        return {"energy_accumulator": 2_000_000, "counter_resolution": 15.259, "timestamp": 1}

    module.told = told
    module.amdsmi_init = lambda: None
    module.amdsmi_shut_down = lambda: None
    module.amdsmi_get_processor_handles = lambda: ["first", "second"]
    module.amdsmi_get_gpu_metrics_info = lambda handle: told[handle]
    module.amdsmi_get_energy_count = energy
    module.amdsmi_get_gpu_vram_usage = lambda _: {"vram_used": 2048, "vram_total": 196592}
    module.amdsmi_get_power_cap_info = lambda _: {"power_cap": 750_000_000}
    module.amdsmi_get_gpu_asic_info = lambda _: {"market_name": "AMD Stand-in"}
    return module


def test_amdsmi_tells_every_quantity_in_its_unit_and_which_limit_was_met(monkeypatch):
    module: Any = amdsmi_module()
    monkeypatch.setitem(sys.modules, "amdsmi", module)
    reader = AMDSMI({})
    assert reader.devices()[0] == {
        "gpu": 0, "name": "AMD Stand-in", "power_cap_watts": 750.0
    }  # fmt: skip
    first, second = reader.read()
    assert first == {
        "gpu": 0,
        "power_watts": 712.0,
        "energy_joules": pytest.approx(30.518),
        "temperature_celsius": 83.0,
        "gpu_busy_fraction": 0.99,
        "memory_busy_fraction": 0.35,
        "memory_used_gib": 2.0,
        "clock_mhz": 1301.0,
        "memory_clock_mhz": 1300.0,
    }
    assert second == {"gpu": 1, "memory_used_gib": 2.0}
    module.told["first"]["ppt_residency_acc"] = 11
    assert reader.read()[0]["throttle_reasons"] == ["ppt_power"]


def rapl_package(root: Path, energy: int) -> Path:
    """Write the files of one CPU package and of a part of it."""
    for name, text in (
        ("intel-rapl:0", "package-0"),
        ("intel-rapl:0:0", "core"),
        ("intel-rapl:1", "psys"),
    ):
        (root / name).mkdir(parents=True)
        (root / name / "name").write_text(text)
        (root / name / "max_energy_range_uj").write_text("1000000")
        (root / name / "energy_uj").write_text(str(energy))
    return root / "intel-rapl:0" / "energy_uj"


def test_the_energy_counter_of_a_cpu_is_followed_over_its_end(tmp_path):
    counter = rapl_package(tmp_path, 900_000)
    reader = RAPL(tmp_path)
    assert reader.read() == [{"cpu": 0, "energy_joules": 0.0}]
    counter.write_text("200000")  # 0.1 J to the end and 0.2 J from there
    assert reader.read() == [{"cpu": 0, "energy_joules": pytest.approx(0.3)}]
    with pytest.raises(SensorError, match="no energy counter"):
        RAPL(tmp_path / "nothing")
    counter.unlink()
    with pytest.raises(SensorError, match="cannot be read"):
        RAPL(tmp_path)


def test_samples_are_on_disk_while_the_run_goes_and_a_last_one_comes_after_it(
    driver, tmp_path, monkeypatch
):
    path = tmp_path / telemetry.FILE
    environment = driver | {telemetry.PERIOD_VARIABLE: "0.05"}
    with telemetry.sampling(tmp_path, small(**GPU_RUN), environment):
        wait_for(lambda: len(samples(path)) >= 6)
        before_the_end = time.time()
    first, *rows, last = lines(path)
    assert first["source"] == "nvml"
    assert first["period_seconds"] == 0.05
    assert [device["gpu"] for device in first["devices"]] == [0, 1]
    assert rows[-1]["time"] >= before_the_end - 0.001  # stamps have milliseconds
    assert last["samples"] == len(rows)
    assert last["reason"] is None
    assert 0 < last["cpu_seconds"] < 10


def test_a_driver_lost_in_the_middle_ends_the_samples_with_a_reason(driver, tmp_path):
    path = tmp_path / telemetry.FILE
    more = {telemetry.PERIOD_VARIABLE: "0.05", "FAKE_NVML_LOST_AFTER": "3"}
    with telemetry.sampling(tmp_path, small(**GPU_RUN), driver | more):
        wait_for(lambda: lines(path) and lines(path)[-1].get("kind") == "end")
    assert "answers no question" in lines(path)[-1]["reason"]
    powers = [row.get("power_watts") for row in samples(path) if row["gpu"] == 0]
    assert powers == [500.0] * 3 + [None]  # the fourth reading was lost halfway


@pytest.mark.parametrize(
    ("platform", "variables", "reason"),
    [
        ("h100", {}, "there is no NVIDIA driver"),
        ("mi300x", {}, "amdsmi"),
        ("h100", {telemetry.PERIOD_VARIABLE: "0"}, "is 0"),
        ("h100", {telemetry.PERIOD_VARIABLE: "fast"}, "'fast' is not between"),
    ],
)
def test_where_nothing_can_be_read_the_file_says_why(tmp_path, platform, variables, reason):
    path = tmp_path / telemetry.FILE
    bare = {**os.environ, "PATH": "", **variables}
    with telemetry.sampling(tmp_path, small(**GPU_RUN | {"platform": platform}), bare):
        wait_for(lambda: lines(path))
    (only,) = lines(path)
    assert only["source"] is None
    assert reason in only["reason"]


def test_each_node_writes_a_file_of_its_own(tmp_path):
    off = {**os.environ, telemetry.PERIOD_VARIABLE: "0"}
    with telemetry.sampling(tmp_path, small(**GPU_RUN), off, 3):
        pass
    (only,) = lines(tmp_path / "telemetry.node3.jsonl")
    assert only["node"] == 3


OWNER = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from training import small
from scalebook.running.devices import telemetry
config = small(platform="h100", precision="bf16", world_size=2)
with telemetry.sampling(Path(sys.argv[1]), config, dict(os.environ)):
    time.sleep(600)
"""


def descendants(process_id: int) -> set[int]:
    """Return the processes below a process."""
    pairs = [
        path.read_text().rpartition(")")[2].split()[1] + " " + path.parent.name
        for path in Path("/proc").glob("[0-9]*/stat")
        if path.exists()
    ]
    parents = {int(pair.split()[1]): int(pair.split()[0]) for pair in pairs}
    found, grown = {process_id}, True
    while grown:
        more = {child for child, parent in parents.items() if parent in found}
        grown, found = not more <= found, found | more
    return found - {process_id}


def alive(process_id: int) -> bool:
    """Return whether a process runs; one that waits for its parent to notice its end does not."""
    try:
        text = Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("victims", [("owner",), ("sampler",), ("sampler", "owner")])
def test_no_kill_leaves_the_sampler_behind(driver, tmp_path, victims):
    command = (sys.executable, "-c", OWNER, str(tmp_path), str(Path(__file__).parents[1]))
    environment = {**driver, telemetry.PERIOD_VARIABLE: "0.05"}
    owner = subprocess.Popen(command, env=environment)
    try:
        wait_for(lambda: samples(tmp_path / telemetry.FILE))
        below = descendants(owner.pid)
        (reader,) = (pid for pid in below if b"scalebook.running.devices.sampler" in _command(pid))
        for name in victims:
            os.kill({"owner": owner.pid, "sampler": reader}[name], signal.SIGKILL)
        wait_for(lambda: not alive(reader))
        if victims == ("sampler",):
            assert owner.poll() is None
    finally:
        owner.kill()
        owner.wait()


def _command(process_id: int) -> bytes:
    try:
        return Path(f"/proc/{process_id}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_run_completes_and_is_recorded_when_its_sampler_is_killed(driver, tmp_path, monkeypatch):
    from training import without_torchrun

    monkeypatch.setattr("scalebook.running.launch.direct", without_torchrun)
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0.2")
    started: list[subprocess.Popen[bytes]] = []
    start = telemetry._start

    def start_and_kill(*arguments: Any) -> Any:
        process = start(tmp_path, small(**GPU_RUN), driver, 0)
        assert process is not None
        process.kill()
        started.append(process)
        return process

    monkeypatch.setattr(telemetry, "_start", start_and_kill)
    record = runner.train(small(), runner.RunOptions(runs=str(tmp_path), trainer="fake_trainer"))
    assert record.status == "completed"
    assert started[0].returncode == -signal.SIGKILL


def test_a_slow_reading_leaves_samples_out_instead_of_piling_them_up(tmp_path, monkeypatch):
    class Slow:
        source = "slow"
        calls = 0

        def read(self):
            self.calls += 1
            time.sleep(0.12)
            return [{"gpu": 0}]

    slow, waits = Slow(), []

    def gone(seconds: float) -> bool:
        waits.append(seconds)
        time.sleep(max(0.0, seconds))
        return len(waits) == 4

    monkeypatch.setattr(sampler, "_owner_gone", gone)
    with (tmp_path / "file").open("w") as stream:
        count, reason = sampler.sample(slow, stream, 0.1, 0)
    assert (count, reason) == (5, None)  # four and the one after the owner is gone
    assert all(wait >= 0 for wait in waits)


def test_the_hottest_visible_gpu_tells_when_a_machine_has_cooled_down(driver):
    assert telemetry.temperature_celsius({}) == 61
    assert telemetry.temperature_celsius({"CUDA_VISIBLE_DEVICES": "1"}) is None  # it has no sensor
