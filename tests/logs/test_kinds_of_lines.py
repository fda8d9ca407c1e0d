"""Rates since a start, ends that follow from another, settings that belong to the next job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from log_texts import jobs, read

from scalebook import logs
from scalebook.logs.ingest.ingestion import summaries


def iteration(n: int, *, total: int = 4, batch: int = 16, loss: float | None = None) -> str:
    return (
        f" iteration {n}/ {total} | consumed samples: {n * batch} | elapsed time per iteration "
        f"(ms): 2000.0 | global batch size: {batch} | lm loss: {loss or 9 - n} |\n"
    )


def of_factory(n: int, tokens: int, since: int) -> str:
    """Return a record of LLaMA-Factory: its rate is the tokens in all over this start's seconds."""
    return json.dumps({
        "current_steps": n, "total_steps": 100, "loss": 3 - n / 100, "lr": 1e-5, "epoch": n / 100,
        "elapsed_time": f"0:{since // 60:02}:{since % 60:02}", "remaining_time": "0:00:00",
        "throughput": round(tokens / since, 2), "total_tokens": tokens,
    }) + "\n"  # fmt: skip


def test_a_rate_since_the_start_is_not_that_of_a_step(tmp_path):
    """Both starts train 6,000 tokens of 5 steps: in 60 s, and in 50 s."""
    first = "".join(of_factory(50 + 5 * k, 60_000 + 6000 * k, 600 + 60 * k) for k in range(4))
    again = "".join(of_factory(40 + 5 * k, 48_000 + 6000 * k, 50 + 50 * k) for k in range(4))
    both = jobs(tmp_path, first + again, "trainer_log.jsonl")
    assert [found["tokens_per_second_median"] for found in both] == [100, 120]
    assert [found["step_seconds_median"] for found in both] == [12, 10]


def test_a_printed_rate_that_is_not_since_the_start_counts(tmp_path):
    text = "".join(of_factory(5 * k, 6000 * k, 60 * k) for k in (1, 2, 3))
    text = text.replace('"throughput": 100.0', '"throughput": 130.0')
    assert read(tmp_path, text, "trainer_log.jsonl")["tokens_per_second_median"] == 130


def test_the_last_line_of_llama_factory_names_the_last_step(tmp_path):
    last = json.loads(of_factory(100, 120_000, 1200)) | {"loss": None}
    text = of_factory(90, 108_000, 1080) + of_factory(95, 114_000, 1140) + json.dumps(last) + "\n"
    found = read(tmp_path, text, "trainer_log.jsonl")
    assert (found["n_records"], found["last_step"], found["loss_last"]) == (2, 100, 2.05)


WATCHDOG = (
    "[rank3]:[E1 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, Timeout(ms)=60000) ran for 60012 milliseconds.\n"
)
ASKED = "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {}\n"


@pytest.mark.parametrize(
    ("size", "status"),
    [
        ("more than 1EB memory.", "timeout"),
        ("17179869184.00 GiB. GPU 5 has 3.00 GiB free.", "timeout"),
        ("3.00 GiB. GPU 5 has 1.00 GiB free.", "out_of_memory"),
    ],
)
def test_an_impossible_size_follows_from_the_collective_that_was_given_up(tmp_path, size, status):
    text = iteration(1) + iteration(2) + WATCHDOG + ASKED.format(size)
    assert read(tmp_path, text)["status"] == status


def test_memory_did_not_run_out_where_an_impossible_size_was_asked_for(tmp_path):
    found = read(tmp_path, iteration(1) + ASKED.format("more than 1EB memory."))
    assert found["status"] == "failed"
    assert "impossible size was asked for on rank 5: more than 1EB" in found["reason"]


def test_a_watchdog_that_sees_no_output_ends_a_run(tmp_path):
    ended = "[E][launch] Watchdog: no output for 1800.0s (timeout=1800s). Sending SIGTERM to 9.\n"
    found = read(tmp_path, iteration(1) + iteration(2) + ended)
    assert found["status"] == "timeout"
    assert "printed nothing for too long and was ended (1800 s)" in found["reason"]


def test_what_stands_behind_the_last_record_of_a_job_is_of_the_next(tmp_path):
    """A device line, weak settings and LoRA come before the sizes that show another job."""
    first = "NVIDIA H100 80GB HBM3\nmicro_batch_size: 2\n" + iteration(1) + iteration(2, total=2)
    second = (
        "AMD Instinct MI300X\nmicro_batch_size: 4\nSetting up LoRA\n"
        "using world size: 8, data-parallel size: 8\n"
    )
    one, other = jobs(tmp_path, first + second + iteration(1, loss=5) + iteration(2, loss=4))
    assert (one["device"], one["micro_batch_size"]) == ("NVIDIA H100 80GB HBM3", 2)
    assert (other["device"], other["micro_batch_size"]) == ("AMD Instinct MI300X", 4)
    assert one["world_size"] is None
    assert [found["provenance"].get("trained") for found in (one, other)] == [None, "told"]


def test_the_replicas_follow_from_micro_batch_and_accumulation(tmp_path):
    """16 samples are 2 of each of 4 replicas, twice."""
    said = "MICRO_BATCH_SIZE:  2\nGRADIENT_ACCUMULATION_STEPS:  2\n"
    found = read(tmp_path, said + iteration(1) + iteration(2))
    assert (found["data_parallel_size"], found["world_size"]) == (4, None)
    split = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 1\n"
    found = read(tmp_path, said + split + iteration(1) + iteration(2))
    assert (found["data_parallel_size"], found["world_size"]) == (4, 8)
    odd = said.replace("ACCUMULATION_STEPS:  2", "ACCUMULATION_STEPS:  3")
    assert read(tmp_path, odd + iteration(1) + iteration(2))["data_parallel_size"] is None


@pytest.mark.parametrize(
    ("said", "gpus"),
    [
        ("SLURM_GPUS_PER_NODE:  4\nSLURM_JOB_NUM_NODES:  3\nNUM_GPUS:  12\n", 12),
        ("NUM_GPUS:  12\n", 12),
        ("NUM_GPUS:  12\nSLURM_JOB_NUM_NODES:  3\n", None),  # of a node, or of all
    ],
)
def test_slurm_says_the_nodes_and_a_script_the_gpus(tmp_path, said, gpus):
    assert read(tmp_path, said + iteration(1) + iteration(2))["world_size"] == gpus


def test_a_rate_of_the_whole_run_on_its_own_line_gives_the_gpus(tmp_path):
    """16 x 512 tokens in 2 s are 4096 a second: of 4 GPUs, each 1010 over all steps."""
    text = "TE_FP8=1 \\\nSEQ_LENGTH=512 \\\n" + iteration(1) + iteration(2)
    found = read(tmp_path, text + "tokens/GPU/s: 1010.5\n")
    assert (found["world_size"], found["tokens_per_second_per_gpu_median"]) == (4, 1024)
    assert found["provenance"]["fp8"] == "told"
    assert read(tmp_path, text + "tokens/GPU/s: nan\n")["world_size"] is None
    assert read(tmp_path, text + "tokens/GPU/s: 900.0\n")["world_size"] is None


STEPS = "| Step | Loss | Step time (s) |\n|---|---|---|\n" + "".join(
    f"| {n} | {3 - n / 100:.2f} | 8.0 |\n" for n in (10, 20, 30)
)


@pytest.mark.parametrize(
    "table",
    [
        "| GPUs | TP | Seq length | Global batch size |\n|---|---|---|---|\n| 8 | 2 | 512 | 16 |\n",
        "| GPUs | 8 |\n|---|---|\n| TP | 2 |\n| Seq length | 512 |\n| Global batch size | 16 |\n",
        "  gpus  tp  seq_length  global_batch_size\n  8     2   512         16\n",
    ],
)
def test_a_table_of_settings_is_for_the_table_of_steps_behind_it(tmp_path, table):
    found = read(tmp_path, f"{table}\n{STEPS}")
    assert (found["n_records"], found["tensor_parallel_size"]) == (3, 2)
    assert (found["world_size"], found["tokens_per_second_median"]) == (8, 16 * 512 / 8)


def test_settings_of_several_runs_in_one_table_are_of_none(tmp_path):
    table = "| GPUs | TP | Seq length |\n|---|---|---|\n| 8 | 2 | 512 |\n| 8 | 4 | 512 |\n"
    found = read(tmp_path, f"{table}\n{STEPS}")
    assert (found["tensor_parallel_size"], found["sequence_length"]) == (None, 512)


@pytest.mark.parametrize("front", ["[rank{r}]: ", ""])
def test_ranks_that_print_line_by_line_are_no_restarts(tmp_path, front):
    line = front + "step {n} | loss {loss:.4f} | step time {t:.3f} s | tok/s {rate}\n"
    text = "".join(
        line.format(r=r, n=n, loss=2.5 - n / 100 + r / 1000, t=1.5 + r / 1000, rate=1000 + r)
        for n in range(1, 7)
        for r in (2, 0, 3, 1)
    )
    found = read(tmp_path, text)
    assert (found["n_records"], found["not_used"]) == (6, {"other_rank_records": 18})
    assert found["tokens_per_second_median"] == 1002


def test_lines_that_are_alike_say_nothing_new_and_those_of_the_next_job_do(tmp_path):
    noise = "loader 7: global_batch_size=16 of micro batch size {n} at step of the loader {n}\n"
    first = "micro_batch_size: 2\n" + iteration(1)
    first += "".join(noise.format(n=n) for n in range(300)) + iteration(2, total=2)
    second = "using world size: 8\nmicro_batch_size: 4\n" + iteration(1, loss=5)
    one, other = jobs(tmp_path, first + second)
    assert (one["micro_batch_size"], other["micro_batch_size"]) == (2, 4)


@pytest.mark.parametrize(
    ("said", "sizes"),
    [("TP=4/PP=2/MBS=1/Nodes=24", (4, 2, 1)), ("DP=0|TP=3|PP=1", (None, None, None))],
)
def test_sizes_may_stand_behind_a_stroke(tmp_path, said, sizes):
    found = read(tmp_path, f"{said}\n" + iteration(1) + iteration(2))
    names = ("tensor_parallel_size", "pipeline_parallel_size", "micro_batch_size")
    assert tuple(found[name] for name in names) == sizes


def test_a_device_in_small_letters_has_its_drivers_name(tmp_path):
    said = "UserWarning: gpu_flop count not found for nvidia h100 nvl with precision=amp_bf16\n"
    assert read(tmp_path, said + iteration(1))["device"] == "NVIDIA H100 NVL"


def test_a_bar_behind_the_first_record_gives_the_steps_of_part_of_an_epoch(tmp_path):
    """18 steps are 0.00748 of an epoch: 0.007895 are 19."""
    text = (
        "{'loss': '14.88', 'learning_rate': '0.000156', 'epoch': '0.00748'}\n"
        " 60%|######    | 18/30 [01:50<00:19,  1.65s/it]\n"
        "{'loss': '14.64', 'learning_rate': '0.000144', 'epoch': '0.007895'}\n"
    )
    found = read(tmp_path, text)
    assert (found["first_step"], found["last_step"]) == (18, 19)


def test_memory_may_stand_before_that_of_the_device(tmp_path):
    line = (
        "12:54:2{n} SUCCESS Step {n} | Time: 0.58s | Loss: 2.5 | Throughput: 3537 tokens/s | "
        "Peak Mem.: 7.8/23.7 GiB (32.9%)\n"
    )
    path = tmp_path / "a.log"
    path.write_text(line.format(n=1) + line.format(n=2))
    (job,) = logs.read(path).jobs
    assert job.table.values("allocated_gib") == [7.8, 7.8]


def of_trainer(n: int, seconds: int, **more: float) -> str:
    """Return a record of the Trainer and its bar behind it, 10 steps after the one before."""
    row = {"loss": 3 - n / 100, "learning_rate": 1e-5, "epoch": n / 100, **more}
    return f"{row}\n {n}%|# | {n}/100 [{seconds // 60:02}:{seconds % 60:02}<01:00,  2.00s/it]\n"


TRAINER = (
    "***** Running training *****\n  Instantaneous batch size per device = 1\n"
    "  Total train batch size (w. parallel, distributed & accumulation) = 4\n"
    "  Gradient Accumulation steps = 1\n  Total optimization steps = 100\n"
)


def test_an_evaluation_between_records_is_not_in_the_rate(tmp_path):
    """Four steps take 20 s; every fifth record holds 25 s of an evaluation."""
    text, seconds = TRAINER, 0
    for n in range(4, 101, 4):
        text += "{'eval_loss': 2.0, 'eval_runtime': 25.0}\n" * (n % 20 == 0)
        seconds += 45 if n % 20 == 0 else 20
        text += of_trainer(n, seconds)
    (found,) = summaries(_file(tmp_path, text), {"sequence_length": 512, "world_size": 4})
    assert found["tokens_per_second_per_gpu"] == 4 * 512 / 5.0 / 4


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "a.log"
    path.write_text(text)
    return path


def test_how_a_model_is_split_counts_for_the_gpus_that_a_log_implies(tmp_path):
    """A batch of 4 of micro batches of 1 has 4 replicas, of 2 GPUs each."""
    text = TRAINER + "".join(of_trainer(n, 2 * n) for n in range(10, 60, 10))
    (found,) = summaries(_file(tmp_path, text), {"tensor_parallel_size": 2, "world_size": 8})
    assert (found["world_size"], found["data_parallel_size"]) == (8, 4)


@pytest.mark.parametrize(("of", "trained"), [("2,000", "part"), ("1,000", "all")])
def test_a_log_that_counts_what_is_trained_says_whether_it_is_all(tmp_path, of, trained):
    said = f"Trainable parameters = 1,000 of {of} (100.00% trained)\n"
    text = said + TRAINER + of_trainer(10, 20) + of_trainer(20, 40)
    (job,) = logs.read(_file(tmp_path, text)).jobs
    assert job.settings["trained"] == trained


def test_tests_of_verl_are_not_in_the_rate(tmp_path):
    """A step of 60 s has 600,000 tokens on 8 GPUs; every fifth takes 40 s more to test."""
    text = ""
    for n in range(1, 21):
        tested, rate = ("timing_s/testing:40.0 - ", 750) if n % 5 == 0 else ("", 1250)
        seconds = 100 if tested else 60
        text += f"step:{n} - actor/pg_loss:0.1 - {tested}timing_s/step:{seconds}.0 - "
        text += f"perf/total_num_tokens:600000 - perf/throughput:{rate}\n"
    (found,) = summaries(_file(tmp_path, text), {"world_size": 8})
    assert found["tokens_per_second_per_gpu"] == pytest.approx(1250, rel=1e-3)


def test_the_rate_of_axolotl_is_that_of_its_totals(tmp_path):
    """The printed rate is of one of 4 micro batches; a step trains 8,000 tokens in 2 s."""
    more = "tokens/train_per_sec_per_gpu"
    rows = (
        of_trainer(n, 2 * n, **{more: 1000, "tokens/total": 800 * n}) for n in range(10, 60, 10)
    )
    found = read(tmp_path, TRAINER + "".join(rows))
    assert found["tokens_per_second_median"] == 400


def test_a_table_of_lightning_has_rates_of_a_device_and_the_time_since_the_start(tmp_path):
    head = "epoch,step,train/device/items_per_sec,train/device/flops_per_sec,train/device/mfu"
    rows = [f"0,{n},4096.0,2.0e14,0.2,{30 + n},{9 - n / 10}" for n in range(5, 60, 5)]
    found = read(tmp_path, "\n".join([f"{head},train/time,train_loss", *rows]) + "\n", "m.csv")
    names = ("step_seconds_median", "tokens_per_second_per_gpu_median", "mfu_logged_median")
    assert [found[name] for name in names] == [1, 4096, 0.2]
    assert found["tflops_per_second_per_gpu_logged_median"] == 200


def test_a_rate_without_mfu_says_why(tmp_path):
    text = "  seq_length ... 2048\n  fp8 ............ hybrid\n" + "".join(
        map(iteration, (1, 2, 3, 4))
    )
    told = {"model": "llama3.1-8b", "platform": "h100", "world_size": 8, "precision": "fp8"}
    (found,) = summaries(_file(tmp_path, text), {**told, "sequence_length": 2048})
    assert any(one.startswith("No MFU: An FP8 run") for one in found["warnings"])


def test_a_step_time_of_two_levels_without_tokens_has_no_median(tmp_path):
    text = "".join(
        f"step {n} loss {9 - n / 50:.2f} step_time {(0.1 if n < 60 else 0.3) + n % 3 / 1000}s\n"
        for n in range(1, 121)
    )
    assert read(tmp_path, text)["step_seconds_median_of_rate"] is None
