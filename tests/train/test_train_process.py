"""A training process: what it records, how it fails, and how it leaves."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from train_forked import trained
from train_worlds import SMALL, Finished, environment, torchrun

from scalebook.config import RunConfig
from scalebook.store import read_steps
from scalebook.train import pack, world

LONG = {**SMALL, "steps": 10_000}


TEXT = "\n\n".join(f"The number {n} comes before {n + 1}." for n in range(400))
RUNS: dict[str, dict[str, Any]] = {
    "finished": {"world_size": 2, "steps": 4, "data_parallel_sharding": "optimizer"},
    "odd vocabulary": {
        "model": "gpt3-125m@2", "steps": 1, "warmup_steps": 0,
        "sequence_length": 16, "global_batch_size": 1,
    },
    "twenty steps": {
        "micro_batch_size": 4, "global_batch_size": 8, "sequence_length": 128,
        "steps": 20, "learning_rate": 3e-3,
    },
    "diverged": {"learning_rate": 1e30, "steps": 50},
    "text": {"world_size": 2, "steps": 8},
}  # fmt: skip
REFUSED: dict[str, dict[str, Any]] = {
    "precision='fp16' is not supported by engine 'megatron'": {"precision": "fp16"},
    "data_parallel_sharding='full' (FSDP)": {
        "data_parallel_sharding": "full",
        "model": "tiny-moe",
    },
    "fused_attention='off' is not possible with multi-latent attention": {
        "model": "tiny-mla",
        "fused_attention": "off",
    },
    "fused_norm='on' is not possible here: it is made for GPUs": {"fused_norm": "on"},
    "recompute='pointwise' is made for layer_spec 'torch'": {
        "recompute": "pointwise",
        "layer_spec": "transformer_engine",
    },
    "mtp_layers=1 (multi-token prediction) is trained by engine 'megatron' without": {
        "model": "tiny-mla",
        "mtp_layers": 1,
        "world_size": 2,
        "pipeline_parallel_size": 2,
    },
    "Did you mean 'tiny-llama'?": {"model": "tiny-lama"},
    "nowhere.idx does not exist": {"data": "nowhere"},
    "torchrun started 1 processes, but world_size=2": {"world_size": 2, "started": 1},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finished]:
    """Every run of this file that no signal ends, by name or by what it is refused with."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text(TEXT)
    assert pack.main([str(folder / "text.txt"), str(folder / "data")]) == 0
    text = RUNS["text"] | {"data": str(folder / "data")}
    return trained(folder, {**RUNS, "text": text, **REFUSED})


@pytest.fixture
def finished(runs: dict[str, Finished]) -> Finished:
    """Two data-parallel ranks, to the end."""
    return runs["finished"]


def test_each_step_is_one_record_with_the_times_of_all_ranks(finished: Finished):
    assert finished.code == 0, finished.log
    assert [step.step for step in finished.steps] == [1, 2, 3, 4]
    assert [step.phase for step in finished.steps] == ["startup", "warmup", "measured", "measured"]
    for step in finished.steps:
        assert len(step.rank_step_seconds) == 2
        assert step.step_seconds == max(step.rank_step_seconds) > 0
        assert step.tokens == 4 * 32
        assert step.allocated_gib is None
        assert not step.skipped


def test_progress_is_one_line_a_step(finished: Finished):
    lines = [line for line in finished.log.splitlines() if line.startswith("step ")]
    assert len(lines) == 4
    assert lines[0].startswith("step 1/4 loss ")
    assert lines[0].endswith(" tokens/s")


def test_the_configuration_is_read_back_from_megatron(finished: Finished):
    observed = finished.observed
    asked = {**SMALL, "world_size": 2, "data_parallel_sharding": "optimizer"}
    assert {name: asked[name] for name in observed if name in asked} == {
        name: observed[name] for name in observed if name in asked
    }
    assert observed["data_parallel_size"] == 2
    assert observed["num_microbatches"] == 2
    assert observed["num_layers"] == 4
    assert observed["padded_vocab_size"] == 1024


def test_parameters_are_counted_as_the_architecture_says(finished: Finished):
    layer = 128 * (128 + 2 * 64) + 128 * 128 + 3 * 128 * 384 + 2 * 128
    assert finished.observed["parameter_count"] == 4 * layer + 128 + 2 * 1024 * 128


def test_the_environment_names_versions_and_no_host(finished: Finished):
    values = finished.environment
    assert values["accelerator"] is None
    assert values["accelerator_reason"]
    assert (values["topology"], values["topology_reason"]) == (None, "trained on the CPU")
    assert values["megatron_core"]
    assert values["torch"]
    assert values["variables"]["OMP_NUM_THREADS"] == "1"
    # Megatron-Core sets these itself; nobody asked for them.
    assert not [name for name in values["variables"] if name.startswith("NVTE_")]
    assert values["host"]["cpu_cores"] == os.cpu_count()
    assert socket.gethostname() not in [*values["host"].values()]


def test_the_vocabulary_is_padded_for_tensor_parallelism(runs: dict[str, Finished]):
    run = runs["odd vocabulary"]
    assert run.code == 0, run.log
    assert run.observed["padded_vocab_size"] == 50304  # 50257 to a multiple of 128


def test_twenty_steps_halve_the_loss_of_a_guess(runs: dict[str, Finished]):
    run = runs["twenty steps"]
    assert run.code == 0, run.log
    assert run.losses[-1] < 6.93 / 2  # ln(1024) / 2


def test_a_loss_that_is_not_finite_ends_the_run_as_diverged(runs: dict[str, Finished]):
    run = runs["diverged"]
    assert run.code != 0
    assert "DIVERGED: the loss of step" in run.log
    assert run.steps[-1].loss is None
    assert len(run.steps) < 50


def test_a_text_in_indexed_format_is_learnt_and_its_fingerprint_kept(runs: dict[str, Finished]):
    run = runs["text"]
    assert run.code == 0, run.log
    assert run.losses[-1] < run.losses[0] - 1
    assert len(run.environment["data"]["index_sha256"]) == 64


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_run_is_refused_in_one_line(message: str, runs: dict[str, Finished]):
    run = runs[message]
    assert run.code == 2
    lines = run.log.splitlines()
    # Each rank says it; torchrun shows the first.
    asked = REFUSED[message]
    assert len(lines) == asked.get("started", asked.get("world_size", 1))
    assert all(line.startswith("scalebook.train: ") and message in line for line in lines)


def alone(config: RunConfig, output: Path) -> subprocess.Popen[str]:
    """Start one rank without torchrun, so that its own exit code is seen."""
    trainer = torchrun(config, output)[torchrun(config, output).index("scalebook.train") :]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return subprocess.Popen(
        [sys.executable, "-m", *trainer],
        env={**environment(), **place, **address},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_a_step(output: Path, process: subprocess.Popen[str]) -> None:
    path = output / "steps.jsonl"
    while not (path.exists() and path.read_text().count("\n")):
        assert process.poll() is None, "training ended before its first step"
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"]
)
def test_a_signal_ends_a_rank_at_once_and_keeps_its_steps(
    number: signal.Signals, code: int, tmp_path: Path
):
    process = alone(RunConfig(**LONG), tmp_path)
    wait_for_a_step(tmp_path, process)
    process.send_signal(number)
    process.communicate(timeout=10)
    assert process.returncode == code
    steps, problems = read_steps(tmp_path / "steps.jsonl")
    assert steps
    assert not problems


def test_a_signal_to_torchrun_leaves_no_rank_behind(tmp_path: Path):
    config = RunConfig(**{**LONG, "world_size": 2, "tensor_parallel_size": 2})
    process = subprocess.Popen(
        torchrun(config, tmp_path),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    wait_for_a_step(tmp_path, process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode != 0
    assert (tmp_path / "observed.json").exists()
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


class TwoDevices:
    """Stands in for torch.cuda: two devices, each with a serial number of its own."""

    def get_device_properties(self, number: int) -> Any:
        return type("Properties", (), {"uuid": f"GPU-{number}"})()


def test_the_devices_that_ran_are_digests_in_which_no_serial_number_is_seen(
    monkeypatch: pytest.MonkeyPatch,
):
    """The digests are those of ``printf GPU-0 | sha256sum``."""
    monkeypatch.setattr(world, "_cuda", TwoDevices())
    monkeypatch.setattr(world.torch.cuda, "device_count", lambda: 2)
    assert world._device_ids() == "742563b1"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert world._device_ids() == "742563b1 9207b013"
    monkeypatch.setattr(TwoDevices, "get_device_properties", lambda *_: object())
    assert world._device_ids() is None
