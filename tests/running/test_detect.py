"""What drivers say -> the machine, without a driver."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from scalebook import query
from scalebook.errors import LaunchError
from scalebook.facts import catalog
from scalebook.query import printed
from scalebook.running.devices import detect
from scalebook.running.devices.detect import Machine


def tools(**answers: str) -> Callable[[Sequence[str]], str | None]:
    """Return a query function for a machine that has the named tools alone."""
    return lambda command: answers.get(command[0].replace("-", "_"))


def machine(tmp_path: Path, environment: dict[str, str] | None = None, **answers: str) -> Machine:
    """Return what is detected where the tools give these answers."""
    return detect.detect(tools(**answers), environment or {}, tmp_path)


def test_a_machine_without_tools_and_drivers_is_a_cpu(tmp_path: Path):
    found = machine(tmp_path)
    assert found == Machine("cpu", None, 0)
    assert detect.platform_of(found).name == "cpu"


def test_nvidia_gpus_are_counted_and_named_as_the_driver_does(tmp_path: Path):
    found = machine(tmp_path, nvidia_smi="NVIDIA H100 80GB HBM3\n" * 4)
    assert found == Machine("nvidia", "NVIDIA H100 80GB HBM3", 4)
    assert detect.platform_of(found).name == "h100"
    assert found.describe() == "4 x NVIDIA H100 80GB HBM3"


def test_gpus_that_the_environment_hides_do_not_count(tmp_path: Path):
    two = {"CUDA_VISIBLE_DEVICES": "0,3"}
    none = {"CUDA_VISIBLE_DEVICES": ""}
    text = "NVIDIA H200\n" * 8
    assert machine(tmp_path, two, nvidia_smi=text).count == 2
    assert machine(tmp_path, none, nvidia_smi=text).vendor == "cpu"


@pytest.mark.parametrize(
    ("value", "count"),
    [("0,-1,1", 1), ("0,9,1", 1), ("2,", 1), ("GPU-5a,GPU-7c", 2), ("-1", 0)],
)
def test_cuda_sees_the_devices_before_an_entry_that_is_none(tmp_path: Path, value: str, count: int):
    """CUDA C++ Programming Guide, CUDA_VISIBLE_DEVICES: only those before an invalid index."""
    found = machine(tmp_path, {"CUDA_VISIBLE_DEVICES": value}, nvidia_smi="NVIDIA H200\n" * 8)
    assert found.count == count


def test_hip_does_not_read_cudas_list_where_it_has_its_own(tmp_path: Path):
    both = {"HIP_VISIBLE_DEVICES": "0,1,2", "CUDA_VISIBLE_DEVICES": "0"}
    cards = [{"gpu": n, "asic": {"market_name": "AMD Instinct MI300X"}} for n in range(8)]
    assert machine(tmp_path, both, amd_smi=json.dumps(cards)).count == 3


@pytest.mark.parametrize("wrap", [lambda cards: cards, lambda cards: {"gpu_data": cards}])
def test_amd_smi_is_understood_in_both_forms(tmp_path: Path, wrap: Callable[[object], object]):
    cards = [{"gpu": n, "asic": {"market_name": "AMD Instinct MI300X"}} for n in range(8)]
    found = machine(tmp_path, amd_smi=json.dumps(wrap(cards)))
    assert found == Machine("amd", "AMD Instinct MI300X", 8)
    assert detect.platform_of(found).name == "mi300x"


def test_rocm_smi_is_asked_where_amd_smi_is_missing(tmp_path: Path):
    cards = {f"card{n}": {"Card Series": "AMD Instinct MI325X"} for n in range(2)}
    found = machine(tmp_path, rocm_smi=json.dumps({**cards, "system": {"Driver": "6"}}))
    assert found == Machine("amd", "AMD Instinct MI325X", 2)


def test_broken_output_of_a_tool_is_no_gpu(tmp_path: Path):
    assert machine(tmp_path, amd_smi="not json", rocm_smi="[1]").vendor == "cpu"


def test_the_kernel_driver_tells_of_amd_gpus_without_any_tool(tmp_path: Path):
    for node, simds in enumerate((0, 1216, 1216)):
        folder = tmp_path / f"class/kfd/kfd/topology/nodes/{node}"
        folder.mkdir(parents=True)
        (folder / "properties").write_text(f"cpu_cores_count 0\nsimd_count {simds}\n")
    assert machine(tmp_path) == Machine("amd", None, 2)


def test_an_unknown_device_is_not_guessed():
    with pytest.raises(LaunchError, match=r"RTX 9999.*not in the catalog"):
        detect.platform_of(Machine("nvidia", "NVIDIA RTX 9999", 1))


def test_a_platform_of_another_device_is_refused_with_both_names():
    refusal = detect.refusal(catalog.platform("h100"), Machine("nvidia", "NVIDIA H100 PCIe", 2))
    assert "H100-SXM5-80GB" in refusal
    assert "2 x NVIDIA H100 PCIe" in refusal
    assert "--force-platform" in refusal


def test_the_right_device_and_the_cpu_are_not_refused():
    h100 = Machine("nvidia", "NVIDIA H100 80GB HBM3", 1)
    assert detect.refusal(catalog.platform("h100"), h100) is None
    assert detect.refusal(catalog.platform("cpu"), h100) is None


@pytest.mark.parametrize("asic", ["N/A", None, [], 3])
def test_an_amd_gpu_whose_chip_is_not_told_counts_without_a_name(tmp_path: Path, asic: object):
    found = machine(tmp_path, amd_smi=json.dumps([{"gpu": 0, "asic": asic}]))
    assert found == Machine("amd", None, 1)


def test_an_answer_that_is_no_utf_8_is_read_with_a_mark_for_what_is_none():
    assert printed(("printf", r"NVIDIA\377 H100")) == "NVIDIA\ufffd H100"


def test_a_tool_whose_child_holds_its_output_is_waited_for_a_few_seconds(monkeypatch):
    monkeypatch.setattr(query, "_LAST_SECONDS", 0.2)
    start = time.monotonic()
    answer = query.ask(("sh", "-c", "sleep 30 & sleep 30"), seconds=0.2)
    assert (answer.code, answer.errors) == (None, "no answer within 0 s")
    assert time.monotonic() - start < 10


def test_a_tool_that_is_missing_or_fails_answers_nothing():
    assert printed(("no-such-tool-anywhere",)) is None
    assert printed(("false",)) is None
    assert printed(("echo", "yes")) == "yes\n"
