"""How a trainer ended -> the status and the sentence in the record."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from scalebook.logs import causes
from scalebook.running import processes
from scalebook.running.outcome import (
    LINE_CHARACTERS,
    LOG_TAIL_LINES,
    EndEvidence,
    RootCause,
    classify,
    informative,
    root_cause,
)


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


def evidence(*log: str, code: int | None = 1, **changes: object) -> EndEvidence:
    """Return the evidence of a run that ended after step 3 of 20."""
    values: dict[str, object] = {"steps_done": 3, "steps_asked": 20, "log": log}
    return EndEvidence(exit_code=code, **{**values, **changes})


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
            "GPU's memory ran out on rank 5: 3.50 GiB more did not fit in the 79.11 GiB",
        ),
        (
            "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 96.00 MiB. GPU 0 has a "
            "total capacity of 191.98 GiB of which 12.00 MiB is free.",
            "GPU's memory ran out: 96.00 MiB more did not fit in the 191.98 GiB",
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


@pytest.mark.parametrize("code", [1, 137, 143])
def test_a_log_that_tells_of_divergence_wins_over_every_other_end(code: int):
    lines = ["DIVERGED: the loss of step 4 is not finite", *traceback("ValueError: b")]
    found = classify(evidence(*lines, code=code))
    assert (found.status, found.cause, found.reason) == (
        "diverged",
        "not_finite",
        "Training diverged: the loss of step 4 is not finite (after step 3 of 20).",
    )
    assert found.log_tail[0] == lines[0]


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


def traceback(*lines: str, rank: int | None = None) -> list[str]:
    """Return a traceback that ends in the given lines, as a rank prints it."""
    text = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "    g()", *lines]
    return text if rank is None else [f"[rank{rank}]: {line}" for line in text]


CLOSED = "RuntimeError: [x/gloo/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:3"


def test_an_exception_that_another_ranks_end_caused_is_not_the_reason():
    log = [*traceback("KeyError: 'a'", rank=1), *traceback(CLOSED, rank=0)]
    outcome = classify(evidence(*log, *torchrun_report(rank=0, code=1)))
    assert outcome.reason.startswith("The trainer failed on rank 1: KeyError: 'a'")
    assert outcome.cause == "python_error"


@pytest.mark.parametrize(
    ("first", "told"), [(0, "rank 0: KeyError: 'a'"), (1, "rank 1: ValueError")]
)
def test_of_two_ranks_exceptions_that_of_the_rank_that_failed_first_is_told(first, told):
    log = [*traceback("KeyError: 'a'", rank=0), *traceback("ValueError: b", rank=1)]
    assert told in classify(evidence(*log, *torchrun_report(rank=first, code=1))).reason


@pytest.mark.parametrize("rank", [None, 1])
def test_an_exception_that_another_ranks_end_caused_is_told_where_nothing_else_is(rank):
    found = classify(evidence(*traceback("BrokenPipeError: [Errno 32] Broken pipe", rank=rank)))
    where = "" if rank is None else " on rank 1"
    assert (found.status, found.cause, found.reason) == (
        "failed",
        "python_error",
        f"The trainer failed{where}: BrokenPipeError: [Errno 32] Broken pipe (after step 3 of 20).",
    )


def test_of_chained_exceptions_the_one_that_ended_the_rank_is_told():
    first, last = traceback("KeyError: 'a'", rank=1), traceback("ValueError: b", rank=1)
    log = [*first, "[rank1]: During handling of the above exception, another occurred:", *last]
    assert "rank 1: ValueError: b" in classify(evidence(*log)).reason


def test_an_exception_of_any_name_is_told_where_it_ends_a_traceback():
    assert ": mine.Trouble: here (" in classify(evidence(*traceback("mine.Trouble: here"))).reason
    assert classify(evidence("Trouble: here")).cause == "exit_code"


def test_memory_that_was_short_for_a_while_does_not_explain_another_error():
    tuner = "autotuner: CUDA out of memory. Tried to allocate 2.00 GiB; next choice"
    outcome = classify(evidence(tuner, *traceback("ValueError: a is not b")))
    assert (outcome.status, outcome.cause) == ("failed", "python_error")


def test_a_library_that_hides_memory_behind_its_own_error_is_out_of_memory():
    hidden = "torch.distributed.DistBackendError: NCCL error in: x.cpp:9, unhandled cuda error"
    warned = "n:1:2 [0] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'"
    assert classify(evidence(warned, *traceback(hidden))).cause == "gpu_memory"
    follows = [hidden, "ncclUnhandledCudaError: Call to CUDA failed.", "Last error:",
               "Cuda failure 2 'out of memory'"]  # fmt: skip
    assert classify(evidence(*traceback(*follows))).cause == "gpu_memory"


def test_a_kill_is_not_explained_by_what_the_log_told_before():
    log = ["WARNING CUDA out of memory. Tried to allocate 1.00 GiB", *torchrun_report(1, -9)]
    assert classify(evidence(*log)).cause == "signal"


@pytest.mark.parametrize("code", [-9, -15])
def test_a_kill_is_explained_by_a_host_whose_memory_was_short(code: int):
    log = ["OSError: [Errno 12] Cannot allocate memory", *torchrun_report(1, code)]
    for known in (evidence(*log), evidence(log[0], code=128 - code)):
        outcome = classify(known)
        assert (outcome.status, outcome.cause) == ("out_of_memory", "host_memory")
    gpu = "CUDA out of memory. Tried to allocate 1.00 GiB"  # of some time before the kill
    assert classify(evidence(gpu, code=128 - code)).cause != "gpu_memory"
    assert classify(evidence(gpu, code=1)).cause == "gpu_memory"


def test_the_root_cause_may_stand_in_the_first_line():
    report = torchrun_report(3, -9)
    first = next(at for at, line in enumerate(report) if line.startswith("Root Cause"))
    found = root_cause(report[first:])
    assert found is not None and (found.rank, found.code, found.process_id) == (3, -9, 9)
    assert root_cause(report[first + 1 :]) is None


def test_a_kill_is_the_systems_only_with_its_word_for_it():
    report = torchrun_report(rank=1, code=-9)
    assert classify(evidence(*report)).status == "failed"
    assert classify(evidence(*report, memory_killed=frozenset({8}))).status == "failed"
    outcome = classify(evidence(*report, memory_killed=frozenset({9})))
    assert (outcome.status, outcome.cause) == ("out_of_memory", "host_memory")


def test_a_process_that_the_system_ended_beside_the_run_does_not_explain_its_error():
    outcome = classify(evidence(*traceback("ValueError: a"), host_memory_kills=1))
    assert outcome.cause == "python_error"
    worker = "RuntimeError: DataLoader worker (pid 3) is killed by signal: Killed."
    outcome = classify(evidence(*traceback(worker), host_memory_kills=1))
    assert outcome.cause == "host_memory"


def test_the_line_that_tells_is_in_the_tail_however_much_follows_it():
    line = "RuntimeError: CUDA error: out of memory"
    tail = classify(evidence(line, *(f"note {number}" for number in range(99)))).log_tail
    assert (len(tail), tail[0], tail[1], tail[-1]) == (
        LOG_TAIL_LINES,
        line,
        "[86 lines left out]",
        "note 98",
    )


def test_the_second_line_of_a_message_that_tells_is_the_line_of_the_tail():
    telling = "CUDA out of memory. Tried to allocate 3.50 GiB."
    log = ["Traceback (most recent call last):", '  File "a.py", line 1, in f',
           "my.WrappedError: the step failed because", telling]  # fmt: skip
    outcome = classify(evidence(*log, *(f"note {number}" for number in range(99))))
    assert (outcome.status, outcome.cause) == ("out_of_memory", "gpu_memory")
    assert outcome.log_tail[:2] == (telling, "[86 lines left out]")


def test_colours_and_long_lines_do_not_reach_the_record():
    outcome = classify(evidence("\x1b[31mValueError: red\x1b[0m", "x" * 99_999))
    assert "failed: ValueError: red (" in outcome.reason
    assert max(map(len, outcome.log_tail)) == LINE_CHARACTERS


HOSTILE = [
    "Root Cause\n" * 40_000,
    "a" * 400_000,
    "a." * 200_000 + "Error",
    "NCCL WARN " * 40_000,
    "CUDA out of memory. Tried to allocate 1 G " * 9_000,
    "Watchdog caught collective operation timeout" * 9_000,
    "Traceback (most recent call last):\n" * 12_000,
    "\x1b[" + "1;" * 200_000,
    "[rank1]:" * 50_000,
    "  rank      : " + "9" * 400_000,
    " torch/distributed/elastic/" * 15_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_text_costs_more_than_its_length(text: str):
    """A factor of 100 over an ordinary log of the same size would be a blow-up."""
    ordinary = [f"step {number} loss 3.2 and so on" for number in range(2000)]
    seconds: list[float] = []
    for log in (ordinary, text.split("\n")[-2000:]):
        start = time.process_time()
        classify(evidence(*log))
        seconds.append(time.process_time() - start)
    assert seconds[1] < 100 * max(seconds[0], 0.01)


@pytest.mark.parametrize(
    "piece",
    [
        "ncclncclnccl",
        "NCCL WARN ",
        "NCCL error unhandled aaaaaaaaa",
        "ibv_create_",
        "ibv_create_" + "a" * 1980,
        "ibv_reg_mr failed ",
        "CUDA out of memory. Tried to allocate 1",
        "[rank1]:",
        "what(): ",
        " ",
    ],
)
def test_no_line_costs_much_more_than_a_plain_one_of_its_length(piece: str):
    """The end of a log, 512 KB: a pattern that starts anew at each place took 100 times as long."""
    seconds: list[float] = []
    for text in ("step 12 loss 3.2 and so on ", piece):
        line = (text * LINE_CHARACTERS)[:LINE_CHARACTERS]
        start = time.process_time()
        causes.search([line] * 256)
        seconds.append(time.process_time() - start)
    assert seconds[1] < 10 * max(seconds[0], 0.01)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("NCCL WARN NCCL version 2 ncclAllocate_some_buffer: out of memory", "gpu_memory"),
        ("ibv_create_cq_ex failed with error Cannot allocate memory", "collective_error"),
        ("NCCL WARN x NCCL WARN Call to ibv_modify_qp failed", "collective_error"),
        ("ProcessGroupNCCL.cpp:1275 NCCL error in: unhandled system error", "collective_error"),
    ],
)
def test_a_cause_is_found_behind_several_words_of_its_library(line: str, cause: str):
    found = causes.search([line])
    assert found and found.rule.cause == cause


def test_the_systems_kills_are_counted_in_the_group_of_the_process(tmp_path: Path):
    own, root = tmp_path / "own", tmp_path / "fs"
    second = root / "a" / "b"
    second.mkdir(parents=True)
    own.write_text("0::/a/b\n")
    (second / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    (root / "memory.events").write_text("oom_kill 9\n")
    assert processes.memory_kills(own, root) == 2
    own.write_text("0::/elsewhere\n")  # the path of the host, seen in a container
    assert processes.memory_kills(own, root) == 9
    first = root / "memory" / "job"
    first.mkdir(parents=True)
    (root / "memory.events").unlink()
    own.write_text("4:cpu:/\n5:memory:/job\n0::/\n")
    (first / "memory.oom_control").write_text("under_oom 0\noom_kill 4\n")
    assert processes.memory_kills(own, root) == 4
    assert processes.memory_kills(tmp_path / "none", tmp_path) == 0


def test_the_kernels_log_names_whom_it_ended_since_the_start(tmp_path: Path):
    log = tmp_path / "kmsg"
    killed = "Out of memory: Killed process {} (python) total-vm:9kB"
    group = "Memory cgroup out of memory: Killed process {} (python)"
    log.write_text(
        f"6,1,{50 * 10**6},-;{killed.format(1)}\n6,2,{99 * 10**6},-;{killed.format(2)}\n"
        f"6,3,{120 * 10**6},-;{group.format(3)}\n6,x\n6,4,y,-;{killed.format(4)}\n"
    )
    assert processes.killed_for_memory(99.5, log) == {2, 3}
    assert processes.killed_for_memory(0, tmp_path / "none") == frozenset()


KILLED = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. "


@pytest.mark.parametrize(
    ("log", "known", "status", "cause", "reason"),
    [
        ([], {"code": 0, "steps_done": 1, "steps_asked": None}, "completed", None, None),
        ([], {"code": 0, "steps_done": 21}, "completed", None, None),
        ([], {"code": 0, "steps_done": 0, "steps_asked": None}, "failed", "ended_early",
         "The trainer ended without an error, but early (before the first step)."),
        ([], {"code": 0, "steps_done": 5, "steps_asked": 6}, "failed", "ended_early",
         "The trainer ended without an error, but early (after step 5 of 6)."),
        ([], {"code": 7, "steps_asked": None}, "failed", "exit_code",
         "The trainer ended with exit code 7, without a message (after step 3)."),
        ([], {"code": 128}, "failed", "exit_code",
         "The trainer ended with exit code 128, without a message (after step 3 of 20)."),
        ([], {"code": None}, "failed", "exit_code",
         "The trainer ended with exit code None, without a message (after step 3 of 20)."),
        ([], {"code": 3}, "diverged", "not_finite",
         "Training diverged: loss or gradient was not finite (after step 3 of 20)."),
        ([], {"code": 130}, "interrupted", "stopped",
         "The run was asked to end from outside (SIGTERM or SIGINT) (after step 3 of 20)."),
        ([], {"code": 131}, "failed", "signal",
         "The launcher (torchrun) was ended by SIGQUIT (after step 3 of 20)."),
        ([], {"code": 227}, "failed", "signal",
         "The launcher (torchrun) was ended by signal 99 (after step 3 of 20)."),
        (torchrun_report(2, 7), {}, "failed", "exit_code",
         "The trainer ended with exit code 7 on rank 2, without a message (after step 3 of 20)."),
        (torchrun_report(2, 7), {"code": 137}, "failed", "exit_code",
         "The trainer ended with exit code 7 on rank 2, without a message (after step 3 of 20)."),
        (torchrun_report(2, -9), {}, "failed", "signal",
         "Rank 2 was ended by SIGKILL (by a person, or by the system because memory ran out) "
         "(after step 3 of 20)."),
        (torchrun_report(2, -6), {}, "failed", "signal",
         "Rank 2 was ended by SIGABRT (after step 3 of 20)."),
        # The kernel's word counts where it is about this run: a rank's number, or the launcher's.
        (torchrun_report(2, -9), {"memory_killed": frozenset({9})}, "out_of_memory", "host_memory",
         "The host's memory ran out: the kernel's OOM killer ended rank 2 (after step 3 of 20)."),
        (torchrun_report(2, -9), {"memory_killed": frozenset({8})}, "failed", "signal",
         "Rank 2 was ended by SIGKILL (by a person, or by the system because memory ran out) "
         "(after step 3 of 20)."),
        ([], {"code": 137, "host_memory_kills": 1}, "out_of_memory", "host_memory",
         "The host's memory ran out: the kernel's OOM killer ended a process (after step 3 of "
         "20)."),
        ([KILLED], {"host_memory_kills": 1}, "out_of_memory", "host_memory",
         "The host's memory ran out: the kernel's OOM killer ended a process (after step 3 of "
         "20)."),
        ([], {"code": 7, "host_memory_kills": 1}, "failed", "exit_code",
         "The trainer ended with exit code 7, without a message (after step 3 of 20)."),
        # The last save, an export or the shutdown of a run that trained to its end.
        (["OSError: [Errno 28] No space left on device: '/c'"], {"steps_done": 20}, "completed",
         "no_space", "Every step was trained; what came after them failed. The file system is "
         "full."),
        (["OSError: [Errno 28] No space left on device: '/c'"], {"steps_done": 19}, "failed",
         "no_space", "The file system is full (after step 19 of 20)."),
        ([], {"code": 7, "steps_done": 20}, "completed", "exit_code", "Every step was trained; "
         "what came after them failed. The trainer ended with exit code 7, without a message."),
        ([], {"code": 3, "steps_done": 20}, "diverged", "not_finite",
         "Training diverged: loss or gradient was not finite (after step 20 of 20)."),
    ],
)  # fmt: skip
def test_each_end_has_its_status_cause_and_sentence(log, known, status, cause, reason):
    found = classify(evidence(*log, **known))
    assert (found.status, found.cause, found.reason) == (status, cause, reason)


@pytest.mark.parametrize(
    ("skipped", "lost", "status", "reason"),
    [
        (5, None, "completed", None),
        (6, None, "diverged",
         "The optimizer refused 6 of 10 measured steps, whose gradients were not finite (after "
         "step 20 of 20)."),
        (0, 4, "diverged",
         "Training diverged: the loss of step 4 is not finite (after step 20 of 20)."),
        (0, 0, "diverged",
         "Training diverged: the loss of step 0 is not finite (after step 20 of 20)."),
    ],
)  # fmt: skip
def test_a_run_with_all_its_steps_has_diverged_where_most_of_them_taught_nothing(
    skipped, lost, status, reason
):
    found = classify(evidence(
        code=0, steps_done=20, measured_steps=10, skipped_steps=skipped, loss_lost_at=lost
    ))  # fmt: skip
    assert (found.status, found.reason) == (status, reason)


@pytest.mark.parametrize(
    ("status", "cause", "started", "reason"),
    [
        ("timeout", "time_limit", True, "Why (after step 3 of 20)."),
        ("interrupted", "stopped", True, "Why (after step 3 of 20)."),
        ("illegal", "rules", True, "Why."),
        ("out_of_memory", "inferred", False, "Why."),
        ("failed", "stopped", True, "Why (after step 3 of 20)."),
    ],
)
def test_what_the_launcher_decided_has_its_own_cause(status, cause, started, reason):
    found = classify(evidence(stop=(status, "Why."), started=started))
    assert (found.status, found.cause, found.reason) == (status, cause, reason)


@pytest.mark.parametrize("after", [14, 15, 16, 30])
def test_the_line_that_tells_stands_in_the_tail_wherever_it_was(after):
    telling = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB."
    rest = [f"line {number}" for number in range(after)]
    found = classify(evidence("before", telling, *rest)).log_tail
    assert telling in found
    assert found[-1] == rest[-1]
    left_out = [line for line in found if "left out" in line]
    assert left_out == ([f"[{after - 13} lines left out]"] if after > 14 else [])
    assert len(found) == LOG_TAIL_LINES
