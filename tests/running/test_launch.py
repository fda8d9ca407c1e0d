"""RunConfig -> argv and environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scalebook import host
from scalebook.config import RunConfig
from scalebook.errors import LaunchError
from scalebook.running import launch
from scalebook.running.container import engines


def config(**changes: Any) -> RunConfig:
    """Return a small configuration."""
    base = {"platform": "cpu", "model": "tiny-llama", "world_size": 2}
    return RunConfig(**{**base, "global_batch_size": 8, "sequence_length": 128, **changes})


def direct(platform: str = "cpu", **changes: Any) -> launch.Launch:
    """Return the launch of a small configuration."""
    paths = {"config_path": Path("r/config.json"), "output": Path("r")}
    return launch.direct(config(platform=platform, **changes), **paths)


def names(platform: str, **changes: Any) -> set[str]:
    """Return the names of the variables that are set."""
    return {variable.name for variable in direct(platform, **changes).variables}


def test_the_command_is_torchrun_of_this_python_with_one_process_a_rank():
    python, *command = direct().command
    assert python == sys.executable
    assert " ".join(command) == (
        "-m torch.distributed.run --standalone --nproc-per-node 2 -m scalebook.train "
        "--config r/config.json --output r"
    )


def test_another_trainer_is_started_in_place_of_ours():
    paths = {"config_path": Path("c"), "output": Path("o")}
    plan = launch.direct(config(), trainer="mine", **paths)
    assert plan.command[plan.command.index("mine") - 1] == "-m"


def test_cpu_ranks_get_one_thread_each():
    assert "OMP_NUM_THREADS" in names("cpu")
    assert "OMP_NUM_THREADS" not in names("h100")


def test_one_hardware_queue_is_asked_for_tensor_parallelism_up_to_hopper_alone():
    queue = "CUDA_DEVICE_MAX_CONNECTIONS"
    assert queue in names("h100", tensor_parallel_size=2)
    assert queue in names("h100", context_parallel_size=2)
    assert queue not in names("h100")
    assert queue not in names("b200", tensor_parallel_size=2)
    assert queue not in names("mi300x", tensor_parallel_size=2)
    assert queue not in names("h100", tensor_parallel_size=2, data_parallel_sharding="full")


def test_what_the_user_set_wins():
    assert direct().environment({"OMP_NUM_THREADS": "4"})["OMP_NUM_THREADS"] == "4"
    assert direct().environment({})["OMP_NUM_THREADS"] == "1"


def test_every_variable_has_a_reason():
    for platform in ("cpu", "h100", "mi300x"):
        assert all(variable.reason for variable in direct(platform).variables)


def test_more_gpus_than_the_machine_has_are_refused_in_words():
    assert launch.unavailable(config(world_size=4), devices=1) == (
        "needs 4 GPUs, the limit is 1 (--gpus or this machine's)"
    )
    assert launch.unavailable(config(world_size=4), devices=None) is None


@pytest.mark.parametrize("changes", [{"nodes": 2}, {"engine": "nemo"}])
def test_what_needs_another_launcher_is_refused(changes: dict[str, Any]):
    assert (launch.unavailable(config(**changes)) or "").startswith("needs ")


def test_only_variables_that_change_speed_are_kept():
    environment = {"NCCL_DEBUG": "INFO", "HOME": "/home/a", "OMP_NUM_THREADS": "1"}
    assert set(host.performance_variables(environment)) == {"NCCL_DEBUG", "OMP_NUM_THREADS"}


def test_the_run_path_loads_neither_torch_nor_polars():
    code = (
        "import sys, scalebook.cli.runs, scalebook.running.todo; "
        "import scalebook.running.sweep, scalebook.running.runner; "
        "print({'torch', 'polars', 'numpy', 'papermill'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("missing", ["torch", "megatron"])
def test_a_machine_without_the_trainer_is_told_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engines, "find_spec", lambda name: None if name == missing else object())
    with pytest.raises(LaunchError, match=rf"{missing}.* is not installed.*pip install"):
        launch.require_trainer()
