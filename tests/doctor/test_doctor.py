"""doctor: facts of faked machines, and what each check says of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scalebook.cli import main
from scalebook.doctor import checks, gather
from scalebook.doctor.checks import CheckResult, examine, exit_code
from scalebook.doctor.gather import GpuState, MachineFacts, Node

GIB = 2**30
H100 = "NVIDIA H100 80GB HBM3"

GPU = GpuState(0, H100, 81559.0, 4.0, 700.0, 700.0, persistent=True, partitioned=False)
GOOD = MachineFacts(
    vendor="nvidia",
    devices=(GPU, replace(GPU, index=1)),
    cards_on_bus={"nvidia": 2},
    driver="580.95",
    links={"NV18": 1},
    nodes=(Node("/dev/nvidia0", True, "root"),),
    processes=(),
    shm_bytes=64 * GIB,
    memlock=None,
    stack=8 * 2**20,
    open_files=1048576,
    numa_balancing="0",
    numa_nodes=2,
    governor="performance",
    memory_available=500 * GIB,
    runs_free=100 * GIB,
    versions={"python": "3.12.3", "torch": "2.12.0", "megatron_core": "0.18.0", "cuda": "13.2"},
    engines={"docker": None},
    known_device=True,
)


def level(check: str, **changes: Any) -> str | None:
    """Return how bad one check finds a good machine with some facts changed; None: not asked."""
    return next((f.level for f in examine(replace(GOOD, **changes)) if f.check == check), None)


def advice(check: str, **changes: Any) -> str:
    """Return what a check advises."""
    found = [f.advice for f in examine(replace(GOOD, **changes)) if f.check == check]
    return found[0] or ""


def both(**changes: Any) -> tuple[GpuState, ...]:
    """Return the two devices with the second one changed."""
    return GPU, replace(GPU, index=1, **changes)


def test_a_good_machine_has_no_finding_but_ok():
    assert {finding.level for finding in examine(GOOD)} == {"ok"}
    assert exit_code(examine(GOOD), strict=True) == 0


def test_a_laptop_without_a_gpu_is_good():
    versions = {"python": "3.11.2", "torch": "2.13.0", "megatron_core": "0.16.1"}
    laptop = MachineFacts("cpu", shm_bytes=8 * GIB, memory_available=8 * GIB, runs_free=50 * GIB)
    findings = examine(replace(laptop, versions=versions, open_files=4096))
    assert {finding.level for finding in findings} == {"ok"}
    assert not {"locked memory", "numa balancing", "power cap"} & {f.check for f in findings}


@pytest.mark.parametrize(
    ("check", "changes", "expected"),
    [
        ("devices", {"devices": (), "vendor": "cpu"}, "problem"),  # cards on the bus, no driver
        ("driver", {"driver": None}, "unknown"),
        ("links", {"links": None}, "unknown"),
        ("links", {"links": {"NV18": 4, "SYS": 24}}, "warning"),
        ("links", {"links": None, "devices": (GPU,)}, None),
        ("access", {"nodes": (Node("/dev/kfd", False, "render"),)}, "problem"),
        ("alike", {"devices": both(name="NVIDIA H200")}, "warning"),
        ("peak", {"known_device": False}, "warning"),
        ("free memory", {"devices": both(memory_used_mib=2000.0)}, "warning"),
        ("free memory", {"devices": both(memory_used_mib=60000.0)}, "problem"),
        ("other processes", {"processes": (4242,)}, "warning"),
        ("other processes", {"processes": None}, "unknown"),
        ("power cap", {"devices": both(power_cap_watts=500.0)}, "warning"),
        ("power cap", {"devices": (replace(GPU, power_cap_watts=None),)}, "unknown"),
        ("clocks", {"devices": both(slowdown=("hw thermal slowdown",))}, "problem"),
        ("clocks", {"devices": both(performance_level="manual")}, "warning"),
        ("modes", {"devices": both(partitioned=True)}, "problem"),
        ("modes", {"devices": both(persistent=False)}, "warning"),
        ("shared memory", {"shm_bytes": 4 * GIB}, "warning"),
        ("shared memory", {"shm_bytes": 64 * 2**20}, "problem"),
        ("shared memory", {"shm_bytes": None}, "problem"),
        ("locked memory", {"memlock": 8 * 2**20}, "warning"),
        ("stack", {"stack": 2**20}, "warning"),
        ("open files", {"open_files": 1024}, "warning"),
        ("numa balancing", {"numa_balancing": "1"}, "warning"),
        ("numa balancing", {"numa_balancing": None}, "unknown"),
        ("numa balancing", {"numa_balancing": "1", "numa_nodes": 1}, None),
        ("cpu governor", {"governor": "powersave"}, "warning"),
        ("cpu governor", {"governor": None}, None),
        ("host memory", {"memory_available": 4 * GIB}, "warning"),
        ("host memory", {"memory_available": None}, "unknown"),
        ("disk", {"runs_free": 5 * GIB}, "warning"),
        ("disk", {"runs_free": 2**20}, "problem"),
        ("disk", {"runs_free": None}, "unknown"),
        ("disk", {"runs_writable": False}, "problem"),
        ("trainer", {"versions": {"python": "3.12"}}, "ok"),  # docker has the image
        ("trainer", {"versions": {"python": "3.12"}, "engines": {}}, "problem"),
        ("trainer", {"versions": {"python": "3.12"}, "inside": "docker"}, "problem"),
        ("torch build", {"versions": {**GOOD.versions, "cuda": None}}, "problem"),
        ("container engine", {"engines": {}}, "warning"),
        ("container engine", {"engines": {"docker": "docker has no image x."}}, "warning"),
        ("container engine", {"inside": "docker"}, None),
        ("device interface", {"engines": {"podman": None}}, "warning"),
        (
            "device interface",
            {"engines": {"podman": None}, "device_specs": ("/etc/cdi/nvidia.yaml",)},
            "ok",
        ),
    ],
)
def test_each_check_finds_what_is_wrong(check: str, changes: dict[str, Any], expected: str | None):
    assert level(check, **changes) == expected
    if expected in ("warning", "problem") and check != "container engine":
        assert advice(check, **changes)


def test_advice_on_the_trainer_installs_all_that_is_missing():
    versions = {"python": "3.12", "torch": "2.13.0"}
    for inside in (None, "docker"):
        more = {"engines": {}, "inside": inside}
        assert "'.[train]'" in advice("trainer", versions={"python": "3.12"}, **more)
        assert advice("trainer", versions=versions, **more).endswith("--no-deps megatron-core.")


def test_advice_inside_a_container_is_about_the_container():
    assert "--ipc=host" in advice("shared memory", shm_bytes=1, inside="docker")
    assert "remount" in advice("shared memory", shm_bytes=1)
    assert "--ulimit=memlock=-1" in advice("locked memory", memlock=1, inside="docker")
    closed = (Node("/dev/kfd", False, "render"),)
    assert "usermod --append --groups render" in advice("access", nodes=closed)
    assert "--group-add" in advice("access", nodes=closed, inside="docker")
    assert "Start the container" in advice("devices", devices=(), inside="docker")


def test_only_a_problem_fails_unless_warnings_shall_too():
    warned = examine(replace(GOOD, open_files=1024))
    assert exit_code(warned) == 0
    assert exit_code(warned, strict=True) == 1
    assert exit_code(examine(replace(GOOD, runs_free=0))) == 1


# What tools print, in the forms of nvidia-smi 580 (fields of NVIDIA_FIELDS, numbers of our own)

SMI = (
    f"0, {H100}, 580.95, 81559, 4, 700.00, 700.00, Enabled, Disabled, Not Active, Not Active, "
    "Not Active\n"
    f"1, {H100}, 580.95, 81559, 70210, 500.00, 700.00, Disabled, [N/A], Active, Not Active, "
    "[N/A]\n"
)


def test_nvidia_devices_are_read_with_their_gaps():
    devices, driver = gather.nvidia_devices(SMI)
    assert driver == "580.95"
    assert devices[0] == replace(GPU, memory_total_mib=81559.0, memory_used_mib=4.0)
    assert devices[1].slowdown == ("hw thermal slowdown",)
    assert (devices[1].persistent, devices[1].partitioned) == (False, None)
    assert gather.nvidia_devices("No devices were found\n") == ((), None)


def test_processes_are_listed_without_our_own():
    assert gather.process_ids("17\n4242\n[N/A]\n", own=(17,)) == (4242,)


def files(root: Path, texts: dict[str, str]) -> Path:
    """Write files below a root and return it."""
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


AMD_FILES = {
    "sys/class/drm/card1/device/vendor": "0x1002\n",
    "sys/class/drm/card1/device/mem_info_vram_total": str(192 * GIB),
    "sys/class/drm/card1/device/mem_info_vram_used": str(GIB),
    "sys/class/drm/card1/device/hwmon/hwmon3/power1_cap": "650000000",
    "sys/class/drm/card1/device/hwmon/hwmon3/power1_cap_default": "750000000",
    "sys/class/drm/card1/device/power_dpm_force_performance_level": "auto\n",
    "sys/class/drm/card0/device/vendor": "0x1a03\n",  # the board's own display
    "sys/class/drm/card1-DP-1/device/vendor": "0x1002\n",
    "sys/class/kfd/kfd/topology/nodes/1/properties": "cpu_cores_count 0\nsimd_count 1216\n",
    "sys/class/kfd/kfd/proc/4242/pasid": "1",
    "sys/bus/pci/devices/0000:05:00.0/vendor": "0x1002\n",
    "sys/bus/pci/devices/0000:05:00.0/class": "0x120000\n",
    "sys/bus/pci/devices/0000:06:00.0/vendor": "0x1002\n",
    "sys/bus/pci/devices/0000:06:00.0/class": "0x060400\n",  # a bridge of the same vendor
    "sys/devices/system/node/node0/cpulist": "0",
    "sys/devices/system/node/node1/cpulist": "1",
    "sys/module/amdgpu/version": "6.16.6\n",
    "proc/sys/kernel/numa_balancing": "1\n",
    "proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 2097152 kB\n",
    "etc/cdi/nvidia.yaml": "",
    "run/.containerenv": "",
}


def gathered(root: Path, answers: dict[str, str], runs: Path) -> MachineFacts:
    """Return the facts of a machine below a root whose tools give these answers."""

    def query(command: Sequence[str]) -> str | None:
        return next((text for part, text in answers.items() if part in " ".join(command)), None)

    return gather.gather(runs, root / "images", gather.FactSource(root, query, {}))


def test_an_amd_machine_is_read_from_the_kernels_files(tmp_path: Path):
    name = '{"card0": {"Card Series": "AMD Instinct MI300X OAM"}}'
    facts = gathered(files(tmp_path, AMD_FILES), {"rocm-smi": name}, tmp_path)
    assert facts.vendor == "amd"
    assert facts.devices == (
        GpuState(0, "AMD Instinct MI300X OAM", 196608.0, 1024.0, 650.0, 750.0, (), "auto"),
    )
    assert facts.processes == (4242,)
    assert facts.cards_on_bus == {"amd": 1}
    assert (facts.driver, facts.inside, facts.numa_balancing) == ("6.16.6", "podman", "1")
    assert (facts.numa_nodes, facts.memory_available) == (2, 2 * GIB)
    assert facts.device_specs == ("/etc/cdi/nvidia.yaml",)
    assert facts.known_device is True


def test_an_nvidia_machine_is_read_from_its_tool(tmp_path: Path):
    answers = {"compute-apps": "4242\n", "persistence_mode": SMI, "--query-gpu=name": f"{H100}\n"}
    facts = gathered(tmp_path, answers, tmp_path)
    assert facts.vendor == "nvidia"
    assert len(facts.devices) == 2
    assert facts.processes == (4242,)
    assert facts.driver == "580.95"


def test_the_links_of_two_gpus_are_read_and_one_gpu_has_none(tmp_path: Path):
    matrix = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSYS\t0-51\nGPU1\tSYS\t X \t0-51\n"
    two = {"--query-gpu=name": f"{H100}\n{H100}\n", "topo -m": matrix}
    facts = gathered(tmp_path, two, tmp_path)
    assert facts.links == {"SYS": 1}
    assert gathered(tmp_path, {**two, "topo -m": "N/A"}, tmp_path).links is None
    assert gathered(tmp_path, {**two, "--query-gpu=name": H100}, tmp_path).links is None


def test_a_driver_that_tells_names_alone_gives_devices_without_numbers(tmp_path: Path):
    facts = gathered(tmp_path, {"--query-gpu=name": f"{H100}\n"}, tmp_path)
    assert facts.devices == (GpuState(0, H100),)
    assert facts.processes is None


def test_a_bare_root_gives_a_machine_that_tells_nothing(tmp_path: Path):
    facts = gathered(tmp_path, {}, tmp_path / "runs")
    assert (facts.vendor, facts.devices, facts.shm_bytes) == ("cpu", (), None)
    assert (facts.memory_available, facts.governor, facts.numa_nodes) == (None, None, 1)
    assert {f.level for f in examine(facts) if f.check == "shared memory"} == {"problem"}


def test_the_command_prints_json_and_changes_nothing(tmp_path: Path, capsys: Any):
    runs = tmp_path / "runs"
    code = main(["doctor", "--json", "--runs", str(runs)])
    body = json.loads(capsys.readouterr().out)
    assert code == body["exit_code"]
    assert {finding["level"] for finding in body["findings"]} <= {
        "ok",
        "warning",
        "problem",
        "unknown",
    }
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_a_line_a_check_and_the_counts(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
):
    found = [CheckResult("python", "problem", "3.10.1"), CheckResult("stack", "ok", "8 MiB")]
    monkeypatch.setattr(checks, "examine", lambda _: found)
    assert main(["doctor", "--runs", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "PROBLEM  python  3.10.1",
        "ok       stack   8 MiB",
        "",
        "1 problem, 0 warnings.",
    ]
