"""Failures provoked for real, each recorded with the right status, cause and reason.

What only a GPU can do is a stand-in: the trainer prints the text of CUDA, ROCm, NCCL or RCCL.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from training import FAKES, small, without_torchrun

from scalebook import store
from scalebook.record import RunRecord
from scalebook.running import launch, processes, runner
from scalebook.running.kernel import RunOptions
from scalebook.running.outcome import EndEvidence, classify


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the fake trainer without torchrun, and be impatient."""
    monkeypatch.setattr(launch, "direct", without_torchrun)
    impatient(monkeypatch)


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torchrun find the fake trainers, and be impatient."""
    monkeypatch.setenv("PYTHONPATH", str(FAKES))
    impatient(monkeypatch)


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEBOOK_TELEMETRY_SECONDS", "0")
    monkeypatch.setattr(runner, "GRACE_SECONDS", 1.0)
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.05)


def train(runs: Path, mode: str, trainer: str = "fake_trainer", **changes: Any) -> RunRecord:
    """Train a small configuration with a trainer that misbehaves as told."""
    os.environ["FAKE_TRAINER"] = os.environ["GLOO_TRAINER"] = mode
    try:
        return runner.train(small(**changes), RunOptions(runs=str(runs), trainer=trainer))
    finally:
        del os.environ["FAKE_TRAINER"], os.environ["GLOO_TRAINER"]


def end_of(record: RunRecord) -> tuple[str, str | None]:
    return record.status, record.cause


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("signal", "words"),
    [("SIGSEGV", "SIGSEGV"), ("SIGABRT", "SIGABRT"), ("SIGKILL", "by a person, or by the system")],
)
def test_a_signal_that_ends_the_trainer_is_named(tmp_path: Path, signal: str, words: str):
    record = train(tmp_path, f"signal:{signal}")
    assert end_of(record) == ("failed", "signal")
    assert words in record.reason


@pytest.mark.usefixtures("fake")
def test_a_bus_error_points_at_shared_memory(tmp_path: Path):
    record = train(tmp_path, "bus")
    assert end_of(record) == ("failed", "signal")
    assert "SIGBUS" in record.reason
    assert "--shm-size" in record.reason


@pytest.mark.usefixtures("fake")
def test_memory_that_the_system_refuses_is_the_hosts(tmp_path: Path):
    record = train(tmp_path, "memory")
    assert end_of(record) == ("out_of_memory", "host_memory")
    assert record.log_tail[-1] == "MemoryError"


@pytest.mark.usefixtures("fake")
def test_the_time_limit_ends_also_processes_that_left_their_session_and_hear_nothing(
    tmp_path: Path,
):
    record = train(tmp_path, "tree", time_limit_seconds=2)
    assert end_of(record) == ("timeout", "time_limit")
    assert not processes.marked(record.run_id)


@pytest.mark.usefixtures("fake")
def test_a_run_that_lost_its_loss_diverged_though_it_ended_well(tmp_path: Path):
    record = train(tmp_path, "lose")
    assert (*end_of(record), record.exit_code) == ("diverged", "not_finite", 0)
    assert "the loss of step 4 is not finite (after step 5 of 5)" in record.reason


@pytest.mark.usefixtures("fake")
def test_a_run_whose_steps_were_refused_diverged(tmp_path: Path):
    record = train(tmp_path, "skip_all")
    assert end_of(record) == ("diverged", "skipped_steps")
    assert "refused 5 of 5 measured steps" in record.reason


@pytest.mark.usefixtures("fake")
def test_a_step_that_was_refused_is_a_note(tmp_path: Path):
    record = train(tmp_path, "skip_one")
    assert end_of(record) == ("completed", None)
    assert "refused 1 of 5 measured steps" in record.notes[0]


SAID = [
    ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total "
     "capacity of 191.98 GiB of which 3.12 GiB is free.", "out_of_memory", "gpu_memory"),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
     "out_of_memory", "gpu_memory"),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "out_of_memory", "gpu_memory"),
    ("RuntimeError: HIP error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
     "out_of_memory", "gpu_memory"),
    ("node:7:9 [0] include/alloc.h:99 NCCL WARN Cuda failure 2 'out of memory'",
     "out_of_memory", "gpu_memory"),
    ("node:7:9 [0] include/alloc.h:88 NCCL WARN HIP failure 'out of memory'",
     "out_of_memory", "gpu_memory"),
    ("node:7:9 [3] include/alloc.h:185 NCCL WARN Failed to CUDA calloc 6291456 bytes",
     "out_of_memory", "gpu_memory"),
    ("[rank2]:[E1 ProcessGroupNCCL.cpp:632] [Rank 2] Watchdog caught collective operation timeout: "
     "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=60000) ran for 60012 "
     "milliseconds before timing out.", "timeout", "collective_timeout"),
    ("[rank0]:[E1 ProcessGroupNCCL.cpp:1316] [PG 0 Rank 0] Heartbeat monitor timed out!",
     "timeout", "collective_timeout"),
    ("torch.distributed.DistStoreError: Timed out after 31 seconds waiting for clients. 1/2 "
     "clients joined.", "timeout", "rendezvous_timeout"),
    ("RuntimeError: found NaN in local grad norm for bucket #0 in backward pass before data-"
     "parallel communication collective.", "diverged", "not_finite"),
    ("Memory access fault by GPU node-3 (Agent handle: 0x5a5c) on address 0x7098. Reason: Unknown.",
     "failed", "gpu_fault"),
    ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
     "failed", "gpu_fault"),
    ("RuntimeError: HIP error: invalid device function", "failed", "gpu_code"),
    ("node:7:9 [0] misc/shmutils.cc:72 NCCL WARN Error while creating shared memory segment "
     "/dev/shm/nccl-bX3 (size 9637888), error: No space left on device (28)",
     "failed", "shared_memory"),
    ("ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient "
     "shared memory (shm).", "failed", "shared_memory"),
    ("OSError: [Errno 28] No space left on device", "failed", "no_space"),
    ("Message: The node was low on resource: ephemeral-storage.", "failed", "no_space"),
    ("node:7:9 [0] misc/ibvwrap.cc:101 NCCL WARN Call to ibv_reg_mr failed with error Cannot "
     "allocate memory", "failed", "collective_error"),
    ("scalebook.train: precision='fp8' needs Transformer Engine.", "failed", "refused"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "status", "cause"), SAID, ids=range(len(SAID)))
def test_what_only_a_gpu_can_do_is_told_by_its_text(text: str, status: str, cause: str):
    outcome = classify(EndEvidence(1, 2, 5, ["step 1", "step 2", text]))
    assert (outcome.status, outcome.cause) == (status, cause)
    assert text in outcome.log_tail
    assert "\n" not in outcome.reason


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(("text", "status", "cause"), SAID[::8], ids=["hip", "nccl", "shm"])
def test_such_a_text_of_a_trainer_reaches_its_record(
    tmp_path: Path, text: str, status: str, cause: str
):
    record = train(tmp_path, f"say:{text}")
    assert end_of(record) == (status, cause)
    assert text in record.log_tail


@pytest.mark.usefixtures("torchrun")
def test_the_rank_that_failed_is_named_not_the_one_that_lost_its_peer(tmp_path: Path):
    record = train(tmp_path, "raise", "gloo_trainer", world_size=2)
    assert end_of(record) == ("failed", "python_error")
    assert record.reason.startswith(
        "The trainer failed on rank 1: LookupError: rank 1 lost its way"
    )


@pytest.mark.usefixtures("torchrun")
def test_a_collective_over_gloo_that_waits_in_vain_is_a_timeout(tmp_path: Path):
    record = train(tmp_path, "hang", "gloo_trainer", world_size=2)
    assert end_of(record) == ("timeout", "collective_timeout")
    assert "(recv, 2 s)" in record.reason or "(send, 2 s)" in record.reason
    assert not processes.marked(record.run_id)


def test_an_allocation_that_torch_cannot_make_on_the_host_is_out_of_memory():
    done = subprocess.run(
        [sys.executable, "-c", "import torch; torch.empty(2**58)"],
        capture_output=True,
        text=True,
        check=False,
    )
    outcome = classify(EndEvidence(done.returncode, 0, 5, done.stderr.splitlines()))
    assert (outcome.status, outcome.cause) == ("out_of_memory", "host_memory")


@pytest.fixture
def limited() -> Iterator[Path]:
    """A control group for memory with 200 MiB, which processes may be put into."""
    mine = next(
        (
            line.split(":", 2)
            for line in Path("/proc/self/cgroup").read_text().splitlines()
            if "memory" in line.split(":")[1].split(",") or line.startswith("0::")
        ),
        None,
    )
    if mine is None:
        pytest.skip("no control group for memory")
    first = "memory" in mine[1]
    root = Path("/sys/fs/cgroup") / ("memory" if first else "")
    group = root / mine[2].lstrip("/") / f"scalebook-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("control groups cannot be made here")
    try:
        limit = "memory.limit_in_bytes" if first else "memory.max"
        (group / limit).write_text(str(200 * 2**20))
        yield group
    except OSError:
        pytest.skip("control groups cannot be limited here")
    finally:
        group.rmdir()


def test_the_kernels_oom_killer_is_told_from_a_kill_by_hand(tmp_path: Path, limited: Path):
    (tmp_path / "config.json").write_text(small().model_dump_json())
    code = (
        "import os, sys, json, pathlib\n"
        f"pathlib.Path({str(limited / 'cgroup.procs')!r}).write_text(str(os.getpid()))\n"
        f"sys.path.insert(0, {str(FAKES.parent)!r})\n"
        "from training import small, without_torchrun\n"
        "from scalebook.running import launch\n"
        "from scalebook.running import runner\n"
        "from scalebook.running.kernel import RunOptions\n"
        "launch.direct = without_torchrun\n"
        f"options = RunOptions(runs={str(tmp_path / 'runs')!r}, trainer='fake_trainer')\n"
        "runner.train(small(), options)\n"
    )
    environment = {**os.environ, "FAKE_TRAINER": "eat", "SCALEBOOK_TELEMETRY_SECONDS": "0"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=60)
    (directory,) = store.run_directories(tmp_path / "runs")
    record = store.read_record(directory)
    assert end_of(record) == ("out_of_memory", "host_memory")
    assert "kernel's OOM killer" in record.reason
    assert json.loads((directory / "record.json").read_text())["exit_code"] == 137
