"""How a trainer ended -> the status and the sentence in the record."""

from __future__ import annotations

import pytest

from scalebook.running.outcome import LOG_TAIL_LINES, Evidence, classify
from scalebook.running.torchrun import RootCause, informative, root_cause


def torchrun_report(rank: int, code: int) -> list[str]:
    """Return lines in the form in which torchrun reports a rank that failed."""
    return [
        "W1 1 torch/distributed/elastic/x.py:1028] Sending process 7 closing signal SIGTERM",
        f"E1 1 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code})",
        "Traceback (most recent call last):",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "Failures:",
        "[1]:",
        "  rank      : 0 (local_rank: 0)",
        "  exitcode  : -15 (pid: 8)  (SIGTERM)",
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2026-11-27_22:14:06",
        "  host      : localhost",
        f"  rank      : {rank} (local_rank: {rank})",
        f"  exitcode  : {code} (pid: 9)",
        "  error_file: <N/A>",
    ]


def evidence(*log: str, code: int | None = 1, **changes: object) -> Evidence:
    """Return the evidence of a run that ended after step 3 of 20."""
    values: dict[str, object] = {"steps_done": 3, "steps_asked": 20, "log": log}
    return Evidence(exit_code=code, **{**values, **changes})


def test_a_run_with_all_its_steps_is_completed_without_a_reason():
    outcome = classify(evidence("fine", code=0, steps_done=20))
    assert (outcome.status, outcome.reason, outcome.log_tail) == ("completed", None, ())


def test_exit_code_0_with_missing_steps_is_a_failure():
    outcome = classify(evidence("fine", code=0))
    assert outcome.status == "failed"
    assert "early (after step 3 of 20)" in outcome.reason


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB. "
            "GPU 5 has a total capacity of 79.11 GiB of which 1.20 GiB is free.",
            "GPU's memory ran out on rank 5: 3.50 GiB more did not fit of 79.11 GiB",
        ),
        (
            "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 96.00 MiB. GPU 0 has a "
            "total capacity of 191.98 GiB of which 12.00 MiB is free.",
            "GPU's memory ran out: 96.00 MiB more did not fit of 191.98 GiB",
        ),
        ("RuntimeError: CUDA error: out of memory", "GPU's memory ran out"),
        ("RuntimeError: HIP error: out of memory", "GPU's memory ran out"),
        ("hipErrorOutOfMemory: out of memory", "GPU's memory ran out"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling", "GPU's memory"),
        ("ncclUnhandledCudaError: Call to CUDA failed: out of memory", "GPU's memory ran out"),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried", "host's memory"),
        ("OSError: [Errno 12] Cannot allocate memory", "host's memory ran out"),
    ],
)
def test_memory_that_ran_out_is_recognised_in_every_dialect(line: str, words: str):
    outcome = classify(evidence("step 3", line))
    assert outcome.status == "out_of_memory"
    assert words in outcome.reason


def test_a_killed_rank_is_named_with_its_signal():
    outcome = classify(evidence("step 3", *torchrun_report(rank=1, code=-9)))
    assert outcome.status == "failed"
    assert outcome.reason.startswith("Rank 1 was ended by SIGKILL")
    assert outcome.reason.endswith("(after step 3 of 20).")


def test_a_kill_by_the_kernels_oom_killer_is_out_of_memory():
    report = torchrun_report(rank=1, code=-9)
    outcome = classify(evidence("step 3", *report, host_memory_kills=1))
    assert outcome.status == "out_of_memory"
    assert "OOM killer ended rank 1" in outcome.reason


def test_a_segmentation_fault_is_named():
    outcome = classify(evidence(*torchrun_report(rank=3, code=-11)))
    assert "Rank 3 was ended by SIGSEGV" in outcome.reason


def test_a_killed_launcher_is_named():
    outcome = classify(evidence("step 3", code=137))
    assert outcome.status == "failed"
    assert "launcher (torchrun) was ended by SIGKILL" in outcome.reason


@pytest.mark.parametrize(
    "log",
    [
        ["DIVERGED: the loss of step 4 is not finite", *torchrun_report(rank=0, code=3)],
        torchrun_report(rank=0, code=3),
    ],
)
def test_the_trainers_word_for_divergence_is_its_line_or_its_exit_code(log: list[str]):
    assert classify(evidence(*log)).status == "diverged"


def test_a_collective_that_timed_out_is_named_with_its_rank():
    line = (
        "[rank2]:[E ProcessGroupNCCL.cpp:616] [Rank 2] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
        "Timeout(ms)=600000) ran for 600021 milliseconds before timing out."
    )
    outcome = classify(evidence(line))
    assert (outcome.status, outcome.cause) == ("timeout", "collective_timeout")
    assert "collective did not finish in time" in outcome.reason
    assert "rank 2 (ALLREDUCE, 600 s)" in outcome.reason


def test_a_signal_from_outside_is_an_interruption():
    line = "torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal, shutting"
    assert classify(evidence("step 3", f"{line} down workers")).status == "interrupted"
    assert classify(evidence("step 3", code=143)).status == "interrupted"


def test_what_the_launcher_decided_wins_over_the_log():
    stop = ("timeout", "The time limit of 5 s ran out")
    outcome = classify(evidence("CUDA out of memory. Tried to allocate 1 GiB", stop=stop))
    assert outcome.status == "timeout"
    assert outcome.reason == "The time limit of 5 s ran out (after step 3 of 20)."


def test_an_exception_is_told_with_its_rank_and_text():
    log = ["Traceback (most recent call last):", "[rank1]: ValueError: a is not b"]
    outcome = classify(evidence(*log, *torchrun_report(rank=1, code=1), steps_done=0))
    assert outcome.reason == (
        "The trainer failed on rank 1: ValueError: a is not b (before the first step)."
    )


def test_a_missing_module_is_told_by_name():
    outcome = classify(evidence("ModuleNotFoundError: No module named 'megatron'"))
    assert "module is missing" in outcome.reason
    assert "megatron" in outcome.reason


def test_the_tail_of_the_log_leaves_out_torchruns_own_traceback():
    lines = [f"line {number}" for number in range(40)]
    tail = classify(evidence(*lines, *torchrun_report(rank=0, code=1))).log_tail
    assert len(tail) == LOG_TAIL_LINES
    assert tail[-1] == "line 39"


def test_a_log_of_nothing_but_torchruns_report_is_kept():
    assert informative(torchrun_report(rank=0, code=1))


def test_the_root_cause_is_the_rank_that_failed_first_not_the_one_told_to_end():
    assert root_cause(torchrun_report(rank=6, code=-7)) == RootCause(6, -7, 9)
    assert root_cause(["nothing"]) is None


def test_every_reason_is_one_line():
    for log in (["ValueError: a\nb"], torchrun_report(rank=0, code=1), []):
        assert "\n" not in classify(evidence(*log)).reason
