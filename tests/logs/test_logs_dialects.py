"""What each dialect's excerpt tells, value by value. The excerpts are written for these tests."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from log_texts import read

from scalebook import logs, store
from scalebook.cli import main
from scalebook.errors import IngestError
from scalebook.logs.dialects.registry import dialects, recognise
from scalebook.logs.ingest.ingestion import ingest, summaries
from scalebook.logs.ingest.log_config import observe
from scalebook.logs.ingest.write import observed_settings

LOGS = Path(__file__).parents[1] / "logs"

# (file, family, records, first step, last step, log interval, median step time, the same without
# the first record, logged TFLOP/s, first loss, last loss)
RECORDS = [
    ("megatron_2024.log", "megatron-lm", 6, 1, 6, 1, 2.00225, 2.001, 135.6, 10.9, 8.2),
    ("megatron_2021_windows.log", "megatron-lm", 3, 5, 15, 5, 0.7004, 0.7, None, 10.55, 9.875),
    ("megatron_2020_effective.log", "megatron-lm", 2, 20, 40, 20, 1.45, 1.4, 18.0, 8.125, 7.25),
    ("megatron_deepspeed_2021.log", "megatron-deepspeed", 2, 1, 2, 1, 2.4, 1.6, None, 11.0, 10.5),
    ("megatron_deepspeed_seconds.log", "megatron-deepspeed", 3, 700, 702, 1, 41.0, 41.5, 119.0, 3.5,
     3.3),
    ("primus_ansi.log", "primus-megatron", 4, 1, 4, 1, 4.536, 3.072, 232.5, 8.9, 8.6),
    ("primus_new_keys.log", "primus-megatron", 2, 8, 9, 1, 3.036, 3.072, 311.25, 8.2, 8.1),
    ("bridge_wrapped.log", "megatron-bridge", 2, 4, 8, 4, 4.9965, 4.9803, 333.5, 6.5, 5.25),
    ("bridge_step_time_only.log", "megatron-bridge", 3, None, None, None, 5.25, 5.125, 240.0, None,
     None),
    ("gpt_neox.log", "gpt-neox", 2, 10, 20, 10, 4.048, 4.096, 50.74, 9.5, 8.5),
    ("torchtitan.log", "torchtitan", 4, 1, 30, 10, 1.1, 1.1, 302.0, 11.5, 8.25),
    ("prime_rl.log", "prime-rl", 3, 0, 2, 1, 2.0, 1.95, None, 11.0, 10.0),
    ("prime_rl_comma.log", "prime-rl", 2, 40, 41, 1, None, None, None, 2.5, 2.4),
    ("nemo2.log", "nemo2", 2, 3, 4, 1, 11.375, 11.25, 411.5, 9.5, 9.25),
    ("nemo1.log", "nemo1", 2, 39, 40, 1, 9.8, 9.85, None, 3.15, 3.05),
    ("nemo_automodel.log", "nemo-automodel", 2, 8, 9, 1, None, None, None, 0.75, 0.7),
    ("nanotron.log", "nanotron", 2, 101, 102, 1, 2.62, 2.62, 210.0, 5.25, 5.12),
    ("nanotron.csv", "nanotron-csv", 3, 1, 3, 1, 3.01, 3.005, 146.0, 11.1, 9.83),
    ("composer.log", "composer", 3, 11, 31, 10, 2.0, 2.0, 250.0, 7.9, 5.9),
    ("hf_trainer.log", "hf-trainer", 3, 10, 30, 10, 4.85, 4.85, None, 3.5, 3.0),
    ("hf_metrics.txt", "hf-trainer", 0, None, None, None, None, None, None, None, None),
    ("llama_factory.jsonl", "hf-trainer", 3, 20, 60, 20, 13.5, 13.5, None, 3.0, 1.0),
    ("deepspeed_timer.log", "deepspeed", 2, 10, 20, 10, 3.875, 3.75, None, None, None),
    ("deepspeed_pipeline.log", "deepspeed", 3, 1, 3, 1, 30.2, 30.25, None, 0.89, 0.87),
    ("sat.log", "swissarmytransformer", 1, 50, 50, None, 2.0, None, None, 4.5, 4.5),
    ("deepspeed_profiler.txt", "deepspeed", 0, None, None, None, None, None, None, None, None),
    ("mlperf.log", "mlperf", 0, None, None, None, None, None, None, None, None),
    ("torchtune.log", "torchtune", 4, 1, 4, 1, None, None, None, 2.375, 2.0),
    ("litgpt.log", "litgpt", 2, 100, 120, 20, None, None, None, 3.5, 3.25),
    ("litgpt_single.log", "litgpt", 2, 10, 20, 10, 1.55, 1.6, None, 3.5, 3.25),
    ("maxtext.log", "maxtext", 3, 0, 2, 1, 5.0, 5.0625, 200.0, 10.25, 8.25),
    ("tprimat_new.json", "tprimat", 4, 1, 4, 1, 2.25, 2.0, None, 10.0, 8.5),
    ("tprimat_old.json", "tprimat", 3, 1, 3, 1, 2.0, 2.0, None, None, None),
    ("nanochat.log", "nanochat", 3, 0, 2, 1, 1.3, 1.29, None, 10.5, 8.5),
    ("nanogpt.log", "nanogpt", 3, 0, 20, 10, 0.26, 0.255, None, 10.5, 8.5),
    ("verl.log", "verl", 2, 1, 2, 1, 18.0, 16.0, None, 0.25, 0.125),
    ("slime.log", "slime", 2, 0, 1, 1, 36.0, 32.0, 155.0, 0.5, 0.25),
    ("nemo_rl.log", "nemo-rl", 2, 1, 2, 1, 41.0, 40.0, None, 0.75, 0.625),
    ("olmo_core.log", "olmo-core", 2, 1, 2, 1, 3.0, 2.0, None, 11.0, 10.5),
    ("megatron_progress.txt", "megatron-progress", 2, 900, 1800, 900, 4.0, 4.0, 404.0, None, None),
    ("trainer_state.json", "hf-trainer-state", 2, 20, 40, 20, 2.5, 2.5, None, 3.5, 3.25),
    ("golden_values.json", "megatron-golden-values", 4, 1, 4, 1, 0.26, 0.26, None, 10.5, 10.0),
    ("autotuning_metrics.json", "deepspeed-autotuning", 1, None, None, None, 0.128, None, 55.0,
     None, None),
    ("tracker.jsonl", "rows", 2, 7, 8, 1, 0.51, 0.52, None, 5.5, 5.25),
    ("wandb_export.csv", "rows", 3, 10, 30, 10, 3.0, 3.0, None, 4.5, 4.125),
    ("key_value.log", "key-value", 3, 0, 2, 1, 2.0, 2.0, 192.0, 10.5, 8.5),
    ("instructlab.log", "json-blocks", 3, 1, 3, 1, 2.5, 2.5, None, 3.5, 3.0),
    ("kineto.json", "kineto", 0, None, None, None, None, None, None, None, None),
]  # fmt: skip
NAMES = (
    "family", "n_records", "first_step", "last_step", "log_interval", "step_seconds_median",
    "step_seconds_median_excluding_first", "tflops_per_second_per_gpu_logged_median",
    "loss_first", "loss_last",
)  # fmt: skip

W, T, P, C, E, D, G, M, S = (
    "world_size", "tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size",
    "expert_parallel_size", "data_parallel_size", "global_batch_size", "micro_batch_size",
    "sequence_length",
)  # fmt: skip
SIZES: dict[str, dict[str, int]] = {
    "megatron_2024.log": {W: 32, T: 2, P: 2, C: 2, E: 1, D: 4, G: 96, M: 3, S: 2048},
    "megatron_2021_windows.log": {W: 12, G: 24, M: 2, S: 512},
    "megatron_2020_effective.log": {W: 8, M: 4, S: 1024},
    "megatron_deepspeed_2021.log": {W: 8, T: 1, P: 4, D: 2, G: 64, M: 4, S: 256},
    "megatron_deepspeed_seconds.log": {G: 512, S: 1024, W: 64},
    "primus_ansi.log": {W: 16, G: 48, S: 4096},
    "primus_new_keys.log": {W: 16, G: 48, S: 4096},
    "bridge_wrapped.log": {G: 32},
    "bridge_step_time_only.log": {},
    "gpt_neox.log": {W: 8, T: 2, P: 1, D: 4, G: 64, M: 8, S: 2048},
    "torchtitan.log": {W: 8, T: 2, D: 4, G: 12, M: 3, S: 4096},
    "nemo2.log": {G: 128},
    "nanochat.log": {W: 8, D: 8, G: 64, M: 4, S: 1024},
    "verl.log": {W: 8},
    "olmo_core.log": {W: 8},
    "megatron_progress.txt": {W: 16},
    "trainer_state.json": {G: 3, M: 3},
    "autotuning_metrics.json": {W: 4, G: 32},
    "nemo1.log": {G: 64},
    "nemo_automodel.log": {W: 4},
    "nanotron.log": {W: 32, G: 512, S: 2048},
    "nanotron.csv": {W: 8, G: 512, S: 2048},
    "composer.log": {W: 8, G: 64, M: 4},
    "hf_trainer.log": {W: 4, D: 4, G: 32, M: 2, S: 512},
    "hf_metrics.txt": {G: 16, S: 2048},
    "deepspeed_timer.log": {G: 96},
    "deepspeed_pipeline.log": {G: 8},
    "sat.log": {W: 4, G: 64},
    "deepspeed_profiler.txt": {W: 24, T: 4, D: 6, M: 5},
    "mlperf.log": {G: 48},
    "maxtext.log": {W: 4},
    "litgpt.log": {},
    "tprimat_new.json": {W: 4, T: 2, P: 1, D: 2, G: 16, M: 2, S: 1024},
    "tprimat_old.json": {W: 2, G: 4, M: 1, S: 2048},
}


def summary(name: str) -> dict[str, Any]:
    found = summaries(LOGS / name, {})
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("row", RECORDS, ids=lambda row: row[0])
def test_an_excerpt_gives_its_records(row):
    found = summary(row[0])
    assert [found[name] for name in NAMES[:5]] == list(row[1:6])
    for name, expected in zip(NAMES[5:], row[6:], strict=True):
        assert found[name] == (None if expected is None else pytest.approx(expected, rel=1e-6)), (
            name
        )


@pytest.mark.parametrize(("name", "sizes"), SIZES.items(), ids=list(SIZES))
def test_an_excerpt_gives_its_sizes_and_no_others(name, sizes):
    found = summary(name)
    assert {size: found[size] for size in (W, T, P, C, E, D, G, M, S) if found[size]} == sizes


@pytest.mark.parametrize(
    ("name", "total", "each"),
    [
        ("megatron_2024.log", 96 * 2048 / 2.001, 96 * 2048 / 2.001 / 32),
        ("megatron_deepspeed_seconds.log", 512 * 1024 / 41.5, 512 * 1024 / 41.5 / 64),
        ("prime_rl.log", 4148.0, None),  # the first one, 0, is not a rate
        ("nemo_automodel.log", 12200.0, 3050.0),
        ("composer.log", 65536.0, 8192.0),
        ("torchtune.log", None, 410.5),
        ("tprimat_new.json", 8192.0, 2048.0),  # of the file's own summary
        ("hf_metrics.txt", 65536.0, None),
        ("nanochat.log", 65536 / 1.29, 65536 / 1.29 / 8),
        ("nanogpt.log", (32768 / 0.25 + 32768 / 0.26) / 2, None),  # without iteration 0
        ("verl.log", 5120.0, 640.0),
        ("olmo_core.log", 65536.0, 8192.0),
        ("megatron_progress.txt", 250_000.0, 15_625.0),  # 0.9 billion in an hour
        ("key_value.log", None, 4096.0),
        ("trainer_state.json", 800.0, None),  # 40,000 in 20 steps of 2.5 s
    ],
)
def test_token_rates_are_of_the_job_and_of_a_gpu(name, total, each):
    found = summary(name)
    assert found["tokens_per_second_median"] == pytest.approx(total) if total else total is None
    assert found["tokens_per_second_per_gpu_median"] == (pytest.approx(each) if each else None)


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("megatron_2024.log", "completed"),
        ("megatron_2021_windows.log", "interrupted"),
        ("primus_ansi.log", "completed"),
        ("prime_rl.log", "completed"),
        ("mlperf.log", "completed"),
        ("hf_metrics.txt", "completed"),
        ("oom_only.log", "out_of_memory"),
        ("nccl_timeout.log", "timeout"),
        ("kineto.json", None),
        ("nvidia_smi.csv", None),
    ],
)
def test_the_status_is_read_from_the_log(name, status):
    assert summary(name)["status"] == status


def test_skipped_iterations_are_summed_over_windows_and_running_totals_are_not():
    assert summary("megatron_2021_windows.log")["skipped_iterations"] == 7
    assert summary("deepspeed_timer.log")["skipped_iterations"] == 4
    assert summary("sat.log")["skipped_iterations"] == 1
    assert summary("nemo2.log")["skipped_iterations"] is None


def test_a_restart_keeps_the_last_attempt_and_counts_the_repeat():
    found = summary("restart.log")
    assert (found["n_records"], found["first_step"], found["last_step"]) == (11, 1, 40)
    assert found["not_used"] == {"repeated_steps": 3, "restarts": 1}
    assert any("Gaps in the step numbers" in warning for warning in found["warnings"])


def test_two_jobs_of_one_file_stay_apart():
    first, second = summaries(LOGS / "primus_two_jobs.log", {})
    assert (first["world_size"], first["n_records"]) == (16, 1)
    assert (second["world_size"], second["n_records"]) == (8, 2)


def test_records_of_other_ranks_are_counted_not_mixed_in():
    assert summary("torchtitan.log")["not_used"] == {"other_rank_records": 2}


def test_an_mfu_above_one_is_flagged():
    assert any("MFU" in warning for warning in summary("prime_rl_comma.log")["warnings"])


def test_a_micro_batch_time_is_no_step_time():
    found = summary("litgpt.log")
    assert found["step_seconds_median"] is None
    assert any("micro batch" in warning for warning in found["warnings"])


def test_what_is_derived_says_from_what():
    found = summary("primus_ansi.log")
    assert found["provenance"]["sequence_length"] == "derived"
    assert found["provenance"]["global_batch_size"] == "told"
    assert "step time" in found["derived_from"]["sequence_length"]


def test_a_record_that_every_rank_prints_is_one_record(tmp_path):
    stamp = "[titan] 2031-02-24 19:46:1{0},000 - root - INFO - "
    row = (
        "step:  {0}  loss:  7.5000  memory: 10.00GiB(12.50%)  tps: {1}  tflops: 100.00  mfu: 10.00%"
    )
    text = "".join(
        stamp.format(step) + row.format(step, f"2,04{rank}") + "\n"
        for step in (4, 5, 6)
        for rank in range(4)
    )
    found = read(tmp_path, text)
    assert (found["n_records"], found["not_used"]) == (3, {"duplicate_records": 9})
    assert found["step_seconds_median"] == pytest.approx(1.0)


def test_litgpt_lines_of_finetuning_are_records(tmp_path):
    text = (
        "iter 1760 | step 220: loss 1.5000, iter time: 263.85 ms (optimizer.step)\n"
        "iter 1770 | step 221: loss 1.4000, iter time: 89.96 ms\n"
        "Ep 1 | iter 1780 | step 222: loss train (curr): 1.25, val (prev val iter): None "
        "| iter time: 181.34 ms (opt.step)\n"
    )
    found = read(tmp_path, text)
    assert (found["n_records"], found["first_step"], found["last_step"]) == (3, 220, 222)
    assert (found["loss_first"], found["loss_last"]) == (1.5, 1.25)


def test_the_oldest_deepspeed_timer_is_read(tmp_path):
    text = "".join(
        f"[2031-03-11 02:06:58,985] [INFO] [timer.py:189:stop] 0/{step}, SamplesPerSec=64.0, "
        "MemAllocated=0.25GB, MaxMemAllocated=9.5GB\n"
        for step in (40, 50)
    )
    found = read(tmp_path, text)
    assert (found["n_records"], found["log_interval"]) == (2, 10)
    assert found["step_seconds_median"] is None


def test_an_epoch_of_few_digits_leaves_the_step_to_the_bar(tmp_path):
    text = "".join(
        f" 30%|###    | {step}/900 [20:00<40:00,  4.50s/it]\n"
        f"{{'loss': {loss}, 'learning_rate': 0.0001, 'epoch': {step / 300:.2f}}}\n"
        for step, loss in ((261, 1.5), (262, 1.25), (263, 1.0))
    )
    found = read(tmp_path, text)
    assert (found["first_step"], found["last_step"], found["log_interval"]) == (261, 263, 1)
    assert found["step_seconds_median"] == 4.5


@pytest.mark.parametrize(
    ("record", "seconds", "rate"),
    [
        ("step  {n}/19560 | loss 10.5 (+nanz)| norm 1.5 (+nanz)| lr 8.57e-07 | 500.00 ms | 55.0% "
         "bf16 MFU | 65536 tok/s", 0.5, 65536),
        ("step  {n}/19560 | train loss 10.5 | norm 1.5 | lr 2.36e-06 | 500.00 ms | -100.0% bf16 "
         "MFU | 65,536 tok/s", 0.5, 65536),
        ("step     {n} | loss: 10.5 | lr 6.0000e-04 | norm: 1.5 | dt: 500.00ms | tok/sec: "
         "65536.00", 0.5, 65536),
        ("step:{n}/1750 train_loss:10.5 train_time:{n}40ms step_avg:140.00ms", 0.1, None),
    ],
)  # fmt: skip
def test_a_line_of_a_trainer_that_came_of_nanogpt_is_a_record(tmp_path, record, seconds, rate):
    found = read(tmp_path, "".join(record.format(n=n) + "\n" for n in range(1, 9)))
    assert (found["family"], found["n_records"], found["last_step"]) == ("nanogpt", 8, 8)
    assert found["step_seconds_median_excluding_first"] == pytest.approx(seconds)
    assert found["tokens_per_second_median"] == rate
    assert found["loss_last"] == 10.5


@pytest.mark.parametrize(
    ("record", "seconds", "total", "each"),
    [
        ("iteration: {n} | loss: 8.5 | iteration time (ms): 1400.25", 1.40025, None, None),
        ("step={n},loss=8.5,tgs (tokens/gpu/second)=4096.5,tflops=180.5,iter_time=0.5", 0.5, None,
         4096.5),
        ("Iter {n}: Train loss 8.5, Learning Rate 1.0e-05, It/sec 0.800, Tokens/sec 1,600.5", 1.25,
         1600.5, None),
        ("epoch 1 | Step {n}/8 | val loss: 9.5 | train_loss: 8.5 | dt: 250ms | tok/s: 65536", 0.25,
         65536.0, None),
    ],
)  # fmt: skip
def test_lines_of_pairs_in_any_format_are_records(tmp_path, record, seconds, total, each):
    found = read(tmp_path, "".join(record.format(n=n) + "\n" for n in range(1, 9)))
    assert (found["family"], found["n_records"], found["last_step"]) == ("key-value", 8, 8)
    assert found["step_seconds_median"] == pytest.approx(seconds)
    assert found["tokens_per_second_median"] == total
    assert found["tokens_per_second_per_gpu_median"] == each
    assert found["loss_last"] == 8.5


@pytest.mark.parametrize(
    "text",
    [
        "step 1 loss 3.5 step time 1.5s\n",  # one is no log
        "loss 3.5 step time 1.5s\nloss 3.25 step time 1.5s\n",  # nor are two without a step
        "step 2 loss 3.5 step time 1.5s\n" * 5,  # the same step in prose, again and again
        "".join(f"step {n}: loss 3.5\n" for n in range(9)),  # nothing measured
        "".join(f"step {n}: val loss 3.5, dt: 2 s\n" for n in range(9)),
    ],
)
def test_lines_that_mention_a_step_are_not_yet_a_log(tmp_path, text):
    with pytest.raises(IngestError, match="not a known log"):
        read(tmp_path, text)


def test_nemo_automodel_says_per_gpu_behind_a_single_figure(tmp_path):
    line = (
        "step {n:2d} | epoch 0 | loss 1.25 | mem 34.5 GiB | tps {rate}/gpu | num_label_tokens 9\n"
    )
    found = read(tmp_path, "".join(line.format(n=n, rate=2048.5) for n in range(8, 12)))
    assert (found["family"], found["n_records"]) == ("nemo-automodel", 4)
    assert found["tokens_per_second_per_gpu_median"] == 2048.5
    assert found["tokens_per_second_median"] is None


def test_nemo_automodels_json_has_the_rate_of_the_job_and_of_a_gpu(tmp_path):
    row = (
        '{{"step": {n}, "epoch": 0, "timestamp": "2026-04-01T16:06:{n:02d}.250Z", "loss": 2.5, '
        '"lr": 1e-05, "mem": 8.25, "tps": 32768.0, "tps_per_gpu": 4096.0, "mfu": 4.5, '
        '"num_tokens_per_step": 8192, "num_label_tokens": 17}}\n'
    )
    found = read(tmp_path, "".join(row.format(n=n) for n in range(10, 14)))
    assert (found["family"], found["world_size"]) == ("rows", 8)
    assert found["step_seconds_median"] == pytest.approx(0.25)  # 8,192 / 32,768: not the stamps
    assert found["tokens_per_second_per_gpu_median"] == 4096.0


def test_dllogger_lines_hold_the_configuration_and_the_steps(tmp_path):
    head = (
        'DLLL {"timestamp": "1727.5", "type": "LOG", "step": "PARAMETER", "data": {'
        '"cfg/global_batch_size": 256, "cfg/micro_batch_size": 2, "cfg/encoder_seq_length": 1024}}'
    )
    row = (
        'DLLL {{"timestamp": "1800.5", "type": "LOG", "step": {n}, "data": '
        '{{"reduced_train_loss": 9.5, "train_step_timing in s": 12.5, "global_step": {n}.0}}}}'
    )
    found = read(tmp_path, "\n".join([head, *(row.format(n=n) for n in range(5))]) + "\n")
    assert (found["family"], found["n_records"], found["last_step"]) == ("rows", 5, 4)
    assert found["step_seconds_median"] == 12.5
    assert (found["global_batch_size"], found["micro_batch_size"]) == (256, 2)
    assert found["sequence_length"] == 1024


def test_a_bar_of_nemo_without_a_total_is_a_record(tmp_path):
    bar = (
        "Epoch 1: : {n}it [00:04,  4.36s/it, v_num=a1, reduced_train_loss=0.675, "
        "global_step={n}.000, consumed_samples=128.0, train_step_timing in s=3.375]\n"
    )
    found = read(tmp_path, "".join(bar.format(n=n) for n in range(4)))
    assert (found["family"], found["n_records"], found["step_seconds_median"]) == (
        "nemo1", 4, 3.375,
    )  # fmt: skip


def test_a_record_of_maxtext_that_is_broken_behind_commas_is_whole(tmp_path):
    record = (
        "completed step: {n}, seconds: 5.5, TFLOP/s/device: 216.5,\n"
        "Tokens/s/device: 5632.5, total_weights: 1048576, loss: 13.5,\n"
        "lm_loss: 12.25, perplexity: 9000.5\n"
    )
    found = read(tmp_path, "".join(record.format(n=n) for n in range(3)))
    assert (found["n_records"], found["tokens_per_second_per_gpu_median"]) == (3, 5632.5)
    assert found["loss_last"] == 13.5


def test_llama_factory_has_ended_at_its_last_step_which_has_no_loss(tmp_path):
    row = (
        '{{"current_steps": {n}, "total_steps": 22, "loss": {loss}, "lr": 1e-5, "epoch": 0.5, '
        '"percentage": 99.0, "elapsed_time": "0:0{n2}:00", "remaining_time": "0:00:00"}}\n'
    )
    told = [(5, 2.5, 1), (10, 2.25, 2), (15, 2.0, 3), (20, 1.5, 4)]
    text = "".join(row.format(n=n, loss=loss, n2=n2) for n, loss, n2 in told)
    assert read(tmp_path, text)["status"] == "interrupted"
    assert read(tmp_path, text + row.format(n=22, loss="null", n2=5))["status"] == "completed"


def test_totals_of_tokens_in_few_digits_give_no_rate(tmp_path):
    """0.05 billion more in 180 s may be 0.04 or 0.06: 35,000 tokens/s of a GPU, or 28,000."""
    line = (
        "2025-02-24 17:{m}:03\tJob ID: 7\t# GPUs: 8\tSaving checkpoint\tIteration: {n}\t"
        "Job throughput: 384.8 TFLOP/s/GPU\tTokens (in billions): {tokens}\n"
    )
    told = [line.format(m=35, n=100, tokens="0.05"), line.format(m=38, n=200, tokens="0.10")]
    found = read(tmp_path, "".join(told))
    assert (found["step_seconds_median"], found["tokens_per_second_median"]) == (1.8, None)
    assert "too coarsely" in " ".join(found["warnings"] + found["notes"])
    finer = "".join(told).replace("0.05", "0.0524").replace("0.10", "0.1049")
    assert read(tmp_path, finer)["tokens_per_second_median"] == pytest.approx(52_500_000 / 180)


def test_nanotron_is_read_by_the_name_of_its_time_since_2025(tmp_path):
    row = (
        "iteration: {} / 90 | consumed_tokens: 1.05M | time_per_iteration_ms: 2.12K | lm_loss: 5\n"
    )
    found = read(tmp_path, row.format(1) + row.format(2))
    assert (found["family"], found["n_records"], found["step_seconds_median"]) == (
        "nanotron", 2, pytest.approx(2.12),
    )  # fmt: skip


def test_a_bar_that_is_drawn_again_behind_a_record_gives_its_step(tmp_path):
    """6,470 steps make an epoch, of which 60 are trained: epochs of two digits say nothing."""
    banner = (
        "   \\\\   /|    Num examples = 51,760 | Num Epochs = 1 | Total steps = 60\n"
        "O^O/ \\_/ \\    Batch size per device = 2 | Gradient accumulation steps = 4\n"
        "\\        /    Data Parallel GPUs = 1 | Total batch size (2 x 4 x 1) = 8\n"
        ' "-____-"     Trainable parameters = 41,943,040 of 8,072,204,288 (0.52% trained)\n'
    )
    rows = "".join(
        f"{{'loss': 1.5, 'grad_norm': 0.5, 'learning_rate': 0.0002, 'epoch': {step / 6470:.2f}}}\n"
        f" {step}/60 [00:{4 * step:02d}<03:00,  4.00s/it]\n"
        for step in range(1, 13)
    )
    found = read(tmp_path, banner + rows)
    assert (found["n_records"], found["first_step"], found["last_step"]) == (12, 1, 12)
    assert (found["global_batch_size"], found["micro_batch_size"], found["world_size"]) == (8, 2, 1)
    assert "(part)" in found["tflops"]["reason"]


def test_an_epoch_whose_last_zero_is_not_printed_is_as_fine_as_the_others(tmp_path):
    """Epoch 0.1 stands for 0.10 among 0.09 and 0.11: step 10 of 100, not 5 to 15."""
    text = "".join(
        f"{{'loss': 1.5, 'learning_rate': 0.0001, 'epoch': {round(step / 100, 2)}}}\n"
        f"  1%|1 | {step}/1000 [00:{4 * step:02d}<1:03:00,  4.00s/it]\n"
        for step in range(1, 13)
    )
    found = read(tmp_path, text)
    assert (found["n_records"], found["last_step"], found["log_interval"]) == (12, 12, 1)


def test_steps_that_trainers_print_at_multiples_tell_the_interval(tmp_path):
    row = (
        " iteration {0}/ 900 | elapsed time per iteration (ms): 1000.0 | "
        "tokens-per-second-per-gpu: 2048.0 | global batch size: 8 | lm loss: 2.5E+00 |\n"
    )
    found = read(tmp_path, row.format(100) + row.format(300))
    assert found["log_interval"] == 100
    assert found["tokens_per_second_per_gpu_median"] == 2048.0


@pytest.mark.parametrize(
    ("excerpt", "lines", "sizes"),
    [
        (
            "megatron_2021_windows.log",
            "using world size: 12, data-parallel-size: 2, tensor-model-parallel size: 3, "
            "pipeline-model-parallel size: 2 \n",
            {W: 12, D: 2, T: 3, P: 2},
        ),
        (
            "prime_rl_comma.log",
            "using world size: 12, data-parallel size: 2, hierarchical context-parallel sizes: None"
            "tensor-model-parallel size: 6, encoder-tensor-model-parallel size: 4\n",
            {W: 12, D: 2, T: 6},
        ),
        (
            "torchtitan.log",
            "Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=2, cp=1, tp=2, "
            "ep=2, etp=1\n",
            {P: 2, D: 2, C: 1, T: 2, E: 2},
        ),
        ("bridge_wrapped.log", "model:\n  seq_length: 4096\n", {S: 4096}),
        ("composer.log", "max_seq_len: 2048\nn_gpus: 8\n", {S: 2048, W: 8}),
        ("torchtune.log", "tokenizer:\n  max_seq_len: 2048\n", {S: None}),  # a cap, not a length
        ("hf_trainer.log", "Num processes: 4\n", {W: 4}),
        ("deepspeed_timer.log", '  "train_micro_batch_size_per_gpu": 3, \n', {M: 3}),
        ("maxtext.log", "Config param max_target_length: 8192\nNum_devices: 4\n", {S: 8192, W: 4}),
        ("nemo2.log", "0: tensor_model_parallel_size: 4\n", {T: 4}),  # a task prefix
        ("nemo2.log", "    tensor_model_parallel_size: 4\n", {T: 4}),
    ],
)
def test_lines_about_the_configuration_are_read_in_every_dialect(tmp_path, excerpt, lines, sizes):
    found = read(tmp_path, lines + (LOGS / excerpt).read_text())
    assert {name: found[name] for name in sizes} == sizes


TELEMETRY = [
    ("nvidia_smi.csv", 3, [0, 1], {"power_watts": 615.5, "memory_used_gib": 241 / 3}),
    ("nvidia_dmon.txt", 2, [0, 1], {"power_watts": 505.0, "memory_used_gib": 2.5}),
    ("dcgmi.txt", 3, [0, 1], {"power_watts": 601.5, "tensor_active_fraction": 0.35}),
    ("nvidia_smi_table.txt", 2, [0, 1], {"power_watts": 385.5, "gpu_busy_fraction": 0.975}),
    ("rocm_smi_table.txt", 1, [0], {"power_watts": 512.0, "gpu_busy_fraction": 0.99}),
    ("rocm_smi.txt", 3, [0, 1], {"power_watts": 700.0, "gpu_busy_fraction": 0.99}),
    ("rocm_smi.csv", 2, [0, 1], {"power_watts": 705.0, "memory_used_gib": 100.0}),
    ("amd_smi.csv", 2, [0], {"power_watts": 1010.0, "clock_mhz": 2105.0}),
    ("amd_smi_monitor.txt", 2, [0, 1], {"power_watts": 182.0, "temperature_celsius": 41.0}),
]


@pytest.mark.parametrize("row", TELEMETRY, ids=lambda row: row[0])
def test_telemetry_has_samples_and_no_training_steps(row):
    name, samples, devices, means = row
    found = summary(name)
    assert found["n_records"] == 0
    assert found["world_size"] is None
    assert found["telemetry"]["samples"] == samples
    assert found["telemetry"]["devices"] == devices
    for quantity, mean in means.items():
        assert found["telemetry"]["mean"][quantity] == pytest.approx(mean), quantity


def test_a_missing_reading_is_not_zero():
    found = summary("dcgmi.txt")["telemetry"]["mean"]
    assert found["gpu_busy_fraction"] == pytest.approx(0.8)
    assert "memory_busy_fraction" not in found


def test_a_trace_gives_the_anatomy_of_a_step_and_the_longest_kernels():
    trace = summary("kineto.json")["trace"]
    assert trace["communication_seconds"] == pytest.approx(250e-6)
    assert trace["step_seconds"] == pytest.approx(1e-3)
    assert trace["top_kernels"][0]["name"] == "gemm"


def test_a_broken_trace_names_the_line_and_has_no_anatomy(tmp_path):
    text = (LOGS / "kineto.json").read_text().replace('"gemm"', "gemm")
    path = tmp_path / "trace.json"
    path.write_text(text)
    found = summaries(path, {})[0]
    line = text[: text.index("gemm")].count("\n") + 1
    assert any(f"line {line}" in warning for warning in found["warnings"])
    assert found["trace"]["reason"].startswith("1 events of the trace are not JSON")


def test_every_dialect_has_its_own_name():
    names = [dialect.name for dialect in dialects()]
    assert len(set(names)) == len(names)


def test_every_dialect_is_recognised_in_some_excerpt():
    seen = {logs.read(path).dialect.name for path in LOGS.iterdir() if path.is_file()}
    assert {dialect.name for dialect in dialects()} <= seen


def test_a_forced_dialect_is_used_and_an_unknown_one_refused():
    assert logs.read(LOGS / "sat.log", "deepspeed").dialect.name == "deepspeed"
    with pytest.raises(IngestError, match=r"Unknown dialect .megatronlm.*Did you mean"):
        logs.read(LOGS / "sat.log", "megatronlm")


def test_output_of_a_monitoring_tool_before_the_records_does_not_decide():
    tool = (LOGS / "rocm_smi.txt").read_text()
    records = (LOGS / "restart.log").read_text()
    assert recognise([tool, "setting up\n", records]).name == "megatron-lm"
    assert recognise([tool, "setting up\n"]).name == "rocm-smi"


def test_prose_about_a_dialect_is_not_a_log_of_it():
    prose = "The iteration time was 3 s. Step 3 of the tutorial: train loss: see below.\n"
    assert recognise([prose]).name == "unknown"


KINDS = [  # a line, seconds, tokens/s of all and of one, what its steps are multiples of
    ("10:00:00 - mmengine - INFO - Iter(train) [{n}0/900]  lr: 1e-05  eta: 0:29:39  time: 2.5000  "
     "data_time: 0.5000  loss: 8.5", 2.5, None, None, 10),
    ("| epoch 001:  {n}0 / 900 loss=8.5, ppl=9.5, wps=52000, ups=0.5, wpb=104000, bsz=64, "
     "num_updates={n}0, wall=882", 2.0, 52000.0, None, 10),
    ("train step: {n}  acc: 0  loss: 8.5  grad: 5.0e+00  flops: 1.50e+14  wps: 1.2e+04  iter: 2.0",
     None, None, 12000.0, 1),
    ("loss: 8.5, learning_rate: 2e-06, global_step: {n}, interval_runtime: 5.0, "
     "interval_tokens_per_second_per_device: 4000.5, interval_steps_per_second: 0.4", 2.5, None,
     4000.5, 1),
    ("INFO | step 0000{n}/00090 | step-time 2.5 sec | cross-entropy-loss 8.5 | "
     "load-balance-loss 0.5 | tokens-per-second 28,500", 2.5, 28500.0, None, 1),
    ("[r 2] Step: {n} | Loss: 8.5 | Tokens/s:  10.5K | Tokens/s/GPU:   1.5K | Memory usage: 2GB",
     None, 10500.0, 1500.0, 1),
    ("Train step of epoch 0:  9%|#| {n}/90 [09:20<00:04,  2.50s/it, gpt_loss=8.5, lr=6e-7]", 2.5,
     None, None, 1),
]  # fmt: skip


@pytest.mark.parametrize(("line", "seconds", "total", "each", "times"), KINDS)
@pytest.mark.parametrize("steps", [2, 5])
def test_lines_of_other_trainers_are_records_even_where_there_are_two(
    tmp_path, line, seconds, total, each, times, steps
):
    found = read(tmp_path, "".join(line.format(n=n) + "\n" for n in range(1, steps + 1)))
    assert (found["family"], found["n_records"]) == ("key-value", steps)
    assert (found["first_step"], found["last_step"]) == (times, times * steps)
    assert found["step_seconds_median"] == (seconds and pytest.approx(seconds))
    if total or each:  # of wps by the words around it, of K and device by the name
        assert found["tokens_per_second_median"] == total
        assert found["tokens_per_second_per_gpu_median"] == each
    assert found["loss_last"] == 8.5


def test_a_speed_is_of_what_its_unit_says(tmp_path):
    line = "10:00 I Batch {n} Loss: 8.5, Speed: 16.0 {unit}, lr: 0.1\n"
    text = "".join(line.format(n=n, unit="tokens/s") for n in range(3))
    assert read(tmp_path, text)["tokens_per_second_median"] == 16.0
    text = "".join(line.format(n=n, unit="samples/sec") for n in range(3))
    assert read(tmp_path, text)["tokens_per_second_median"] is None
    found = read(tmp_path, "".join(line.format(n=n, unit="") for n in range(3)))  # of what?
    assert (found["tokens_per_second_median"], found["loss_last"]) == (None, 8.5)


def test_records_without_a_step_are_counted_and_that_is_said(tmp_path):
    found = read(tmp_path, "loss: 8.5 | step time: 2.5 s\n" * 3 + "train done, loss: 1.5\n")
    assert (found["n_records"], found["first_step"], found["loss_last"]) == (3, None, 8.5)
    assert any("counted in file order" in text for text in found["warnings"])


def test_an_end_told_behind_records_that_wait_for_their_numbers_counts(tmp_path):
    record = (
        "{'loss': 3.5, 'learning_rate': 1e-05, 'epoch': 0.5, 'global_step/max_steps': '%d/9'}\n"
    )
    end = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    assert read(tmp_path, record % 1 + record % 2 + end)["status"] == "out_of_memory"
    assert read(tmp_path, record % 1 + end + record % 2)["status"] == "interrupted"


def test_a_paste_that_ends_inside_a_record_did_not_diverge(tmp_path):
    record = (
        " iteration {n}/ 9 | consumed samples: 8 | elapsed time per iteration (ms): 2500.0 | "
        "learning rate: 1E-5 | global batch size: 8 | lm lo"
    )
    text = record.format(n=1) + "ss: 8.5E+00 |\n" + record.format(n=2) + "ss: 8.0E+00 |\n"
    found = read(tmp_path, text + record.format(n=3) + "\n")
    assert (found["n_records"], found["status"], found["loss_last"]) == (3, "interrupted", 8.0)


def test_records_that_a_terminal_wrapped_are_put_together(tmp_path):
    record = (
        "01/17/2024 13:47:2{n} [INFO|DP=0|PP=0|TP=0]: iteration: 99{n} / 1000 | tokens: 64K "
        "| elapsed_time_per_iteration_ms: 2.5K | tokens_per_sec: 14.5K | global_batch_size: 20 | "
        "lm_loss: 8.5 | lr: 1e-05 | grad_norm: 0.5\n"
    )
    lines = "".join(record.format(n=n) for n in range(1, 4)).splitlines()
    text = "".join(line[at : at + 70] + "\n" for line in lines for at in range(0, len(line), 70))
    found = read(tmp_path, text)
    assert (found["family"], found["n_records"], found["loss_last"]) == ("nanotron", 3, 8.5)
    assert found["step_seconds_median"] == 2.5
    dicts = (
        "{'loss': 3.5, 'learning_rate': 1e-05, 'global_step/max_steps': '1/9\n0', 'epoch': 0.1}\n"
    )
    assert read(tmp_path, dicts * 2)["loss_last"] == 3.5


def test_what_a_launcher_or_a_copy_leaves_in_a_line_is_no_part_of_it(tmp_path):
    titan = "00:00:0{n},500 - \x1b[36mstep: {n} \x1b[32mloss: 8.5 \x1b[34mtps: 4,096\x1b[39m\n"
    text = "".join(titan.format(n=n) for n in range(1, 4))
    for one in (text, text.replace("\x1b", "")):
        found = read(tmp_path, one)
        assert (found["n_records"], found["loss_last"]) == (3, 8.5)
    block = "[step=1/9]\n    train/CE loss=8.5\n    throughput/device/TPS=4,096\n"
    text = "".join(f"worker-0 | {line}\n" for line in block.splitlines())
    assert read(tmp_path, text)["loss_last"] == 8.5


def test_a_step_that_a_bar_rounds_is_taken_from_its_count(tmp_path):
    bar = "3%|#| {n}/900 [5:28<1:22,  2.00it/s, reduced_train_loss=8.5, global_step=3.1e+4]\n"
    found = read(tmp_path, "".join(bar.format(n=n) for n in (103, 106)))
    assert (found["n_records"], found["first_step"], found["last_step"]) == (2, 102, 105)


def test_group_sizes_are_read_with_blanks_too(tmp_path):
    line = "launch -- data parallel size: 3, pipeline parallel size: 2, tensor parallel size: 4\n"
    found = read(tmp_path, line + "step=1 loss=8.5 tgs=500\nstep=2 loss=8.5 tgs=500\n")
    assert {name: found[name] for name in (D, P, T)} == {D: 3, P: 2, T: 4}


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "it is empty"), (b"\n \n", "it is empty"), (bytes(range(128, 256)), "not text")],
)
def test_a_file_that_cannot_be_a_log_says_what_it_is(tmp_path, content, said):
    (tmp_path / "a.log").write_bytes(content)
    with pytest.raises(IngestError, match=f"{said}.*[Nn]ame a log"):
        summaries(tmp_path / "a.log", {})


def test_llama2c_names_no_step(tmp_path):
    line = "{n}0 | loss 8.5 | lr 4.9e-05 | 2500.00ms | mfu 0.25%\n"
    found = read(
        tmp_path, line.format(n=1) + "step 20: train loss 8, val loss 9\n" + line.format(n=2)
    )
    assert (found["family"], found["first_step"], found["last_step"]) == ("nanogpt", 10, 20)
    assert (found["step_seconds_median"], found["loss_last"]) == (2.5, 8.5)


def test_litgpt_tells_its_end(tmp_path):
    line = "Epoch 1 | iter {n} step {n} | loss train: 1.5, val: n/a | iter time: 500.00 ms (step)\n"
    text = line.format(n=1) + line.format(n=2)
    assert read(tmp_path, text)["status"] == "interrupted"
    assert read(tmp_path, text + "Training time: 1.00s\n")["status"] == "completed"


def test_deepspeeds_timer_without_a_batch_leaves_the_time_to_the_clock(tmp_path):
    line = "[2031-08-02 00:0{n}:00,500] [INFO] [timer.py:189:stop] 0/{n}0, SamplesPerSec=8.4\n"
    found = read(tmp_path, "".join(line.format(n=n) for n in (1, 2, 3)))
    assert found["step_seconds_median"] == pytest.approx(6.0)  # 60 s between ten steps
    assert found["global_batch_size"] is None  # 8.4 is the mean since the start


def test_a_record_of_verl_goes_on_in_the_line_that_a_terminal_began(tmp_path):
    head = "(pid=1) step:{n} - actor/pg_loss:0.5 - response_length/cl\n"
    tail = "ip_ratio:0.004 - perf/throughput:640.0 - timing_s/step:{n}6.5 - x/y:1\n"
    found = read(
        tmp_path, (head + tail).format(n=1) + "other - line:1\n" + (head + tail).format(n=1)
    )
    assert (found["n_records"], found["step_seconds_median"]) == (1, 16.5)
    assert found["tokens_per_second_per_gpu_median"] == 640.0


def test_a_dict_that_was_pasted_without_its_first_sign_is_a_record(tmp_path):
    text = "'loss': 3.5, 'learning_rate': 1e-05, 'epoch': 0.5, 'global_step/max_steps': '5/90'}\n"
    found = read(tmp_path, text)
    assert (found["family"], found["first_step"], found["loss_first"]) == ("hf-trainer", 5, 3.5)


def test_a_bar_before_a_record_in_its_line_is_no_part_of_it(tmp_path):
    line = "  1%|#| {a}/90 [00:32<53:42,  3.25s/it, loss=9.5]Iter {b}: Train loss 8.5, It/sec 0.5\n"
    found = read(tmp_path, line.format(a=1, b=2) + line.format(a=2, b=3))
    assert (found["first_step"], found["loss_first"], found["step_seconds_median"]) == (2, 8.5, 2.0)


def test_three_stamped_steps_with_a_loss_are_a_log(tmp_path):
    line = "DLL 2031-08-02 00:0{n}:00.500000 - Training Iteration: {n}0  step_loss : 8.5\n"
    found = read(tmp_path, "".join(line.format(n=n) for n in (1, 2, 3)))
    assert (found["n_records"], found["last_step"], found["loss_last"]) == (3, 30, 8.5)
    assert found["step_seconds_median"] == pytest.approx(6.0)
    with pytest.raises(IngestError):
        read(tmp_path, "".join(line.format(n=n)[27:] for n in (1, 2, 3)))  # no stamps


def test_milliseconds_a_batch_are_the_time_and_a_validation_is_no_record(tmp_path):
    line = "| epoch 1 step {n}0 | {n}0 batches | lr 0.1 | ms/batch 2500.00 | loss 8.5 | ppl 9\n"
    valid = "| Eval 1 at step 25 | time: 99.5s | valid loss 4.5 | valid ppl 6\n"
    found = read(tmp_path, line.format(n=1) + line.format(n=2) + valid + line.format(n=3))
    assert (found["n_records"], found["step_seconds_median"], found["loss_last"]) == (3, 2.5, 8.5)


def test_records_that_a_mail_wrapped_at_words_are_put_together(tmp_path):
    words = (
        "[rank0]:[titan] 2031-08-02 00:00:0{n},500 - root - INFO - step:  {n}  loss: 8.5 "
        "grad_norm: 1.5  memory:  3.50GiB(2.17%)  tps: 1,500 tflops: 2.5  mfu: N/A"
    )
    text = "".join(textwrap.fill(words.format(n=n), 72) + "\n" for n in (1, 2, 3))
    assert len(text.splitlines()) == 9
    found = read(tmp_path, text)
    assert (found["n_records"], found["loss_last"]) == (3, 8.5)
    assert found["tokens_per_second_per_gpu_median"] == 1500.0
    assert found["tflops_per_second_per_gpu_logged_median"] == 2.5


def test_steps_of_coarse_epochs_are_even(tmp_path):
    # 24,128 steps an epoch: 0.02 is 483 +- 121, and every 500 fits 0.02 to 0.10
    epochs = ("0.02", "0.04", "0.06", "0.08", "0.1")
    dicts = [f"{{'loss': 8.5, 'learning_rate': 0.1, 'epoch': {epoch}}}\n" for epoch in epochs]
    bar = "  8%|#| 1999/24128 [1:52:09<20:27:23,  3.33s/it]\n"
    found = read(tmp_path, "".join(dicts[:3]) + bar + "".join(dicts[3:]))
    assert (found["first_step"], found["last_step"], found["log_interval"]) == (500, 2500, 500)


def told(found, *names):
    """Return several values of a summary."""
    return tuple(found[name] for name in names)


MLLOG = ':::MLLOG {"namespace": "", "time_ms": %d, "event_type": "POINT_IN_TIME", %s}\n'


def mllog(time, key, value, **metadata):
    """Return an event of MLPerf's logging."""
    event = json.dumps({"key": key, "value": value, "metadata": metadata})
    return MLLOG % (time, event[1:-1])


def test_mlperf_counts_steps_by_samples_and_times_them_by_its_events(tmp_path):
    text = mllog(0, "submission_benchmark", "llama2_70b_lora")
    text += mllog(0, "submission_platform", "4xMI325X") + mllog(0, "global_batch_size", 8)
    for n in range(1, 5):
        text += mllog(5000 * n, "train_loss", 4.5 - n / 2, samples_count=80 * n, lr=0.0004)
    found = read(tmp_path, text + mllog(20000, "run_stop", None, status="success"))
    assert told(found, "status", "n_records", "first_step", "last_step") == ("completed", 4, 10, 40)
    assert told(found, "loss_first", "loss_last", "step_seconds_median") == (4.0, 2.5, 0.5)
    assert (found["model"], found["device"]) == ("llama2-70b", "AMD Instinct MI325X")
    assert "(lora)" in found["tflops"]["reason"]


@pytest.mark.parametrize("first", [0, 1])
def test_a_record_of_step_zero_says_that_steps_begin_with_zero(tmp_path, first):
    of_mlperf = mllog(0, "global_batch_size", 512)
    for n in (first, first + 1):
        of_mlperf += mllog(n, "train_loss", 4.5, samples_count=512 * n)
    lines = "".join(f"step: {n} | loss: 4.5 | step_time: 2.0\n" for n in (first, first + 1))
    for text in (of_mlperf, lines):
        (tmp_path / "a.log").write_text(text)
        (job,) = logs.read(tmp_path / "a.log").jobs
        assert (job.first_number, job.first_step, job.last_step) == (first, first, first + 1)


def test_modules_that_nothing_recomputes_are_not_named(tmp_path):
    text = "  recompute_granularity ............ none\n"
    text += "  recompute_modules ................ ['core_attn', 'moe_act']\n"
    text += " iteration 1/ 9 | elapsed time per iteration (ms): 2500.0 | lm loss: 3.5E+00 |\n"
    (tmp_path / "run.log").write_text(text)
    off = observed_settings(observe(logs.read(tmp_path / "run.log").jobs[0]))
    assert off["recompute"] == "none" and "recompute_modules" not in off


def test_mlperf_without_a_batch_has_no_steps(tmp_path):
    text = "".join(mllog(n, "train_loss", 4.5, samples_count=64 * n) for n in (1, 2, 3))
    with pytest.raises(IngestError, match="contains no record"):
        read(tmp_path, text)


def test_mlperf_merges_two_events_of_a_step_and_takes_no_limit_for_a_length(tmp_path):
    text = mllog(0, "global_batch_size", 512) + mllog(0, "max_sequence_length", 65536)
    for n in (1, 2):
        loss = {"reduced_train_loss": -0.5 * n, "global_valid_toks": 2_000_000.0}
        text += mllog(n, "tracked_stats", loss, samples_count=512 * n)
        text += mllog(n, "tracked_stats", {"train_step_time": 500.0}, samples_count=512 * n)
    found = read(tmp_path, text)
    assert told(found, "n_records", "loss_last", "step_seconds_median") == (2, -1.0, 500.0)
    assert found["sequence_length"] is None


def test_the_throughput_of_gpt3_at_mlperf_is_in_tokens(tmp_path):
    text = mllog(0, "submission_benchmark", "gpt3") + mllog(0, "global_batch_size", 3072)
    text += mllog(9, "tracked_stats", {"throughput": 524288.0}, step=1_258_291_200)
    assert read(tmp_path, text)["whole_run_rates"] == {"tokens_per_second": 524288.0}


def test_a_script_on_deepspeed_adds_its_own_line_to_the_timer(tmp_path):
    text = "[INFO] [config.py:684:__init__] Config mesh_device None world_size = 8\n"
    text += (
        '  "train_batch_size": 16,\n[config.py:958:print]   bfloat16_enabled ............. True\n'
    )
    for n in range(1, 5):
        text += (
            f"[INFO] [logging.py:107:log_dist] [Rank 0] step={n}, skipped=0, lr=[0.00{n}], mom=[]\n"
        )
        if n > 2:  # the timer leaves the first steps out
            text += f"[timer.py:264:stop] epoch=0/micro_step={n}/global_step={n}, "
            text += "RunningAvgSamplesPerSec=8.5, CurrSamplesPerSec=8.0\n"
        text += f"[Step {n}/9] Loss: {5 - n / 4} | Global Tokens/s: 4096.0\n"
    found = read(tmp_path, text)
    assert told(found, "n_records", "first_step", "last_step") == (4, 1, 4)
    assert told(found, "loss_first", "loss_last", "world_size") == (4.75, 4.0, 8)
    assert told(found, "step_seconds_median", "tokens_per_second_median") == (2.0, 4096.0)
    twice = read(tmp_path, text.replace("[Step 2/9]", "[Step 2/9] Loss: 6.5\n[Step 2/9]"))
    assert twice["n_records"] == 4


def test_a_script_on_deepspeed_times_its_steps_by_the_latency_before_them(tmp_path):
    text = ""
    for n, own in (
        (1, "[Step 1/9] Loss: 5.5"),
        (2, "[Step 2/9] Loss: 5.0"),
        (3, "step 3, loss: 4"),
    ):
        text += f"[timer.py] epoch=0/micro_step={n}/global_step={n}, RunningAvgSamplesPerSec=8.5\n"
        text += f"E2E latency={n + 0.5}s, Gather latency=0.25s\n{own}\n"
    found = read(tmp_path, text)
    assert told(found, "n_records", "step_seconds_median", "loss_last") == (3, 2.5, 4.0)
    assert "step 3 of 9" in found["reason"]


def test_a_process_that_exits_well_ends_a_run_unless_another_failed(tmp_path):
    record = "[timer.py] epoch=0/micro_step=1/global_step={}, RunningAvgSamplesPerSec=8.5\n"
    text = record.format(10) + record.format(20)
    well = "[INFO] [launch.py:351:main] Process 71 exits successfully.\n"
    assert read(tmp_path, text)["status"] == "interrupted"
    assert told(read(tmp_path, text + well), "status", "reason") == ("completed", None)
    failed = read(tmp_path, text + well + "RuntimeError: a shape is wrong\n")
    assert failed["status"] == "failed"


@pytest.mark.parametrize(
    ("record", "steps", "first", "last", "rate"),
    [
        ("Epoch:[1/2]({n}0/40), loss: {loss}, lr: 0.0005, epoch_time: 49.0min", 80, 10, 30, None),
        ("Iteration {n}: loss={loss}", None, 1, 6, None),
        (
            "Epoch:[ 2/ 3], step:[ {n}/ 40], loss: {loss}, lr: 1e-4, global_norm: [2.5]",
            120,
            41,
            43,
            None,
        ),
        ("{n}0/90 train_loss: {loss} train_time: 0.8m tok/s: 4096", 90, 10, 60, 4096.0),
        (
            "step {n} | loss {loss} | lr 1e-4 | grad 0.5 | 4.1k tok/s | mfu 37.5%",
            None,
            1,
            6,
            4100.0,
        ),
    ],
)
def test_a_loss_and_a_step_are_a_record_without_a_time(tmp_path, record, steps, first, last, rate):
    count = 3 if "Epoch" in record else 6
    lines = [record.format(n=n, loss=5 - n / 4) for n in range(1, count + 1)]
    found = read(tmp_path, "\n".join(lines) + "\n")
    assert told(found, "family", "n_records", "first_step") == ("key-value", count, first)
    assert told(found, "last_step", "step_seconds_median", "loss_last") == (
        last,
        None,
        5 - count / 4,
    )
    assert found["tokens_per_second_median"] == rate
    assert observe(logs.read(tmp_path / "a.log").jobs[0]).size("steps") == steps


def test_a_percentage_of_nanochat_has_no_sign(tmp_path):
    line = (
        "step 0000{n}/00009 (0.00%) | loss: 3.5 | dt: 9.00ms | tok/sec: 4,096 | bf16_mfu: 0.75 |\n"
    )
    found = read(
        tmp_path,
        "COMPUTE_DTYPE: torch.float32\n" + "".join(line.format(n=n) for n in range(3)),
    )
    assert found["mfu_logged_median"] == pytest.approx(0.0075)


def test_a_job_that_reached_its_last_step_is_not_the_one_that_counts_anew(tmp_path):
    line = "step {n:05d}{of} | loss: {loss} | dt: 9.00ms | tok/sec: 4,096 |\n"
    text = "".join(line.format(n=n, of="/00004", loss=9 - n) for n in range(4))
    text += "now to another stage\n"
    text += "".join(line.format(n=n, of="", loss=5 - n) for n in range(1, 7))
    (tmp_path / "run.log").write_text(text)
    jobs = logs.read(tmp_path / "run.log").jobs
    assert [(job.first_step, job.last_step) for job in jobs] == [(0, 3), (1, 6)]


def test_validations_that_are_timed_are_records_and_lack_no_loss(tmp_path):
    text = "world_size:8 grad_accum_steps:1\ntrain_batch_tokens:16384 train_seq_len:1024 steps:9\n"
    text += "step:0/9 val_loss:9.5 train_time:0ms step_avg:0.0ms\n"
    for n in (1, 2, 3):
        text += f"step:{n}/9 train_loss:{9 - n} train_time:{80 * n}ms step_avg:80.0ms\n"
    text += "step:3/9 val_loss:6.5 train_time:240ms step_avg:80.0ms\n"
    text += "step:5/9 val_loss:6.0 train_time:400ms step_avg:80.0ms\n"
    text += "stopping_early: wallclock_cap\n"
    found = read(tmp_path, text + "peak memory allocated: 2048 MiB reserved: 4096 MiB\n")
    assert told(found, "status", "first_step", "last_step", "loss_last") == ("completed", 1, 5, 6.0)
    assert told(found, "world_size", "global_batch_size", "sequence_length") == (8, 16, 1024)
    assert found["step_seconds_median"] == pytest.approx(0.08)
    rows = (f"step:{n}00/900 val_loss:5.5 train_time:{n}0.5s step_avg:9ms\n" for n in range(1, 5))
    seconds = read(tmp_path, "".join(rows))
    assert told(seconds, "last_step", "step_seconds_median") == (400, pytest.approx(0.1))


@pytest.mark.parametrize(
    ("record", "seconds"),
    [
        (" {n:4d} 4.50 s run, {loss} loss, 0.000001 LR, 99.5 GB used,  1234.5 GFLOPS", 4.5),
        (" {n:4d} 450.00 ms run, 44.1 ms python, {loss} loss, 0.000001 LR, 9.5 GB used", 0.45),
        ("{loss} loss, 0.000001 LR, 99.5 GB used, 4.50 s", 4.5),
    ],
)
def test_tinygrad_puts_its_names_behind_the_figures(tmp_path, record, seconds):
    text = "BS=8 DP=8 SEQLEN=1024 python3 model_train.py\n"
    text += "".join(record.format(n=n, loss=9 - n / 2) + "\n" for n in range(1, 5))
    found = read(tmp_path, text)
    assert told(found, "n_records", "loss_first", "loss_last") == (4, 8.5, 7.0)
    assert told(found, "global_batch_size", "sequence_length") == (8, 1024)
    assert found["step_seconds_median"] == pytest.approx(seconds)


def test_a_bar_without_a_loss_shows_how_far_a_trainer_came(tmp_path):
    text = "  Instantaneous batch size per device = 1\n  Total optimization steps = 28\n"
    text += " 50%|#####     | 1/2 [00:01<00:01,  1.00s/it]\n"  # of something else
    text += "".join(f" {n}/28 [00:{30 * n:02d}<09:59, 30.00s/it]\n" for n in (0, 1))
    found = read(tmp_path, text)
    assert told(found, "family", "n_records", "last_step") == ("hf-trainer", 1, 1)
    assert told(found, "micro_batch_size", "status") == (1, "interrupted")


def test_a_batch_that_a_file_gives_twice_makes_no_world(tmp_path):
    text = "".join(
        f'"train_batch_size": {n},\n"train_micro_batch_size_per_gpu": 1,\n' for n in (8, 4)
    )
    text += "Gradient Accumulation steps = 1\n"
    text += "{'train_runtime': 9.0, 'train_samples_per_second': 2.0, 'epoch': 1.0}\n"
    assert read(tmp_path, text)["world_size"] is None


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        (
            "torch: Discovered settings of world_rank=5, local_rank=5, world_size=8, port=1",
            "world_size",
            8,
        ),
        ("INFO - Distributed world size: 4", "world_size", 4),
        ("Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/16", "world_size", 16),
        ("tensor parallel world size: 2", "world_size", None),
        ("engine: world_size=1 rank=0 distributed_init_method=env://", "world_size", None),
        ("cmd = run.py --per-device-train-batch-size 4 --seed 3", "micro_batch_size", 4),
        ("Effective batch size    : 32", "global_batch_size", 32),
        ("Effective batch size: 524,288 tokens", "global_batch_size", None),
    ],
)
def test_what_any_launcher_states_is_taken(tmp_path, line, name, value):
    rows = "".join(f"step: {n} loss: 3.5 dt: 2 s\n" for n in range(3))
    assert read(tmp_path, line + "\n" + rows)[name] == value


def test_a_bridge_gives_memory_in_gigabytes(tmp_path):
    record = " iteration {n}/ 9 | elapsed time per iteration (ms): 2500.0 | lm loss: 3.5E+00 |\n"
    memory = "memory (GB) | mem-allocated-gigabytes: 9.0 | mem-max-allocated-gigabytes: 10.737 | "
    memory += "mem-max-reserved-gigabytes: 21.475 | mem-alloc-retires: 0\n"
    (tmp_path / "run.log").write_text(record.format(n=1) + memory + record.format(n=2))
    details = logs.read(tmp_path / "run.log").jobs[0].details
    assert details["peak_allocated_gib"] == pytest.approx(10, rel=1e-3)
    assert details["peak_reserved_gib"] == pytest.approx(20, rel=1e-3)


def test_a_log_that_printed_no_step_still_says_what_was_run(tmp_path):
    text = "  world_size ...................................... 8\n[after training is done]\n"
    found = read(tmp_path, text)
    assert told(found, "status", "n_records", "world_size") == ("completed", 0, 8)
    with pytest.raises(IngestError):
        read(tmp_path, "[after training is done]\n")


def test_modules_that_are_recomputed_are_named(tmp_path):
    text = "  recompute_granularity ............ selective\n"
    text += "  recompute_modules ................ ['core_attn', 'moe_act']\n"
    text += "".join(
        f" iteration {n}/ 9 | elapsed time per iteration (ms): 2500.0 | lm loss: 3.5E+00 |\n"
        for n in (1, 2)
    )
    (tmp_path / "run.log").write_text(text)
    known = observe(logs.read(tmp_path / "run.log").jobs[0])
    assert observed_settings(known)["recompute_modules"] == "core_attn,moe_act"


def timer(step: int, clock: str, skipped: int) -> str:
    return (
        f"[2026-03-01 10:{clock},000] [INFO] [logging.py:96:log_dist] [Rank 0] step={step}, "
        f"skipped={skipped}, lr=[1e-05], mom=[(0.9, 0.95)]\n"
        f"[2026-03-01 10:{clock},000] [INFO] [timer.py:215:stop] epoch=0/micro_step={step}/"
        f"global_step={step}, RunningAvgSamplesPerSec=8.0, CurrSamplesPerSec=8.0\n"
    )


def test_starts_of_deepspeed_in_a_file_are_not_mixed(tmp_path):
    start = "[Rank 0] DeepSpeed info: version=0.16.4, git-hash=unknown\n"
    own = "".join(f"step {n} loss {loss}\n" for n, loss in ((1, 4.0), (2, 3.5)))
    one = f"{start}{own}{timer(1, '00:00', 3)}{timer(2, '00:40', 3)}"
    path = tmp_path / "a.log"
    path.write_text(one + one.replace("10:00:00", "10:05:00").replace("10:00:40", "10:05:50"))
    [resumed] = summaries(path, {})
    names = ("n_records", "loss_first", "step_seconds_median", "skipped_iterations")
    assert told(resumed, *names) == (2, 4.0, 50.0, 3)  # the last attempt
    assert resumed["not_used"] == {"repeated_steps": 2, "restarts": 1}
    other = own.replace("4.0", "2.0") + timer(1, "05:00", 0) + timer(2, "05:50", 0)
    path.write_text(one + start + other)
    first, last = summaries(path, {})
    assert told(first, *names) == (2, 4.0, 40.0, 3)
    assert told(last, *names) == (2, 2.0, 50.0, 0)


@pytest.mark.parametrize(
    "words",
    ["OVERFLOW! Rank 0 Skipping step.", "fp16 dynamic loss scale overflow! Skipping step."],
)
def test_steps_that_deepspeed_skips_are_counted_where_it_prints_no_total(tmp_path, words):
    timers = "".join(timer(n, f"00:0{n}", 0).partition("\n")[2] for n in (3, 4))
    found = read(tmp_path, f"{words} Attempted loss scale: 65536\n" * 2 + timers)
    assert found["skipped_iterations"] == 2
    assert "Iterations that the optimizer skipped: 2." in found["warnings"]


def test_a_time_of_torchtune_is_that_of_a_step(tmp_path):
    line = "Step {n:<2} | loss:2.5 lr:1e-05 time_per_step_s:{s} tokens_per_second_per_gpu:{r} \n"
    rows = ((1, 60.0, 50), (2, 12.5, 240), (3, 12.0, 250))
    found = read(tmp_path, "".join(line.format(n=n, s=s, r=r) for n, s, r in rows))
    assert told(found, "step_seconds_median", "step_seconds_median_excluding_first") == (
        12.5,
        12.25,
    )


@pytest.mark.parametrize(("tokens", "length"), [(40 * 2048, 2048), (40 * 2048 + 40 * 20, None)])
def test_composer_gives_the_length_of_samples_that_are_not_padded(tmp_path, tokens, length):
    text = "[batch=6/20]:\n" + "".join(
        f"\t Train {name}: {value}\n"
        for name, value in (
            ("time/batch", 5), ("time/sample", 40), ("time/token", tokens),
            ("loss/train/total", 3.5), ("throughput/samples_per_sec", 4.0),
        )
    )  # fmt: skip
    assert read(tmp_path, text)["sequence_length"] == length


def test_the_policy_of_trls_ppo_has_a_loss(tmp_path):
    row = (
        "{{'eps': 1, 'loss/policy_avg': {loss}, 'val/ratio': 1.0, 'lr': 3e-06, 'epoch': {epoch}}}\n"
    )
    bar = "| {n}/4 [{time}<00:30, 15.00s/it]\n"
    text = "".join(
        row.format(loss=loss, epoch=n / 4) + bar.format(n=n, time=time)
        for n, loss, time in ((1, -0.5, "00:15"), (2, -0.25, "00:30"), (3, -0.125, "00:45"))
    )
    found = read(tmp_path, text)
    assert told(found, "n_records", "first_step", "last_step", "loss_first", "loss_last") == (
        3, 1, 3, -0.5, -0.125
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rate", "tokens"),
    [("1.25 Mtok/s", 1.25e6), ("throughput: 80 ktok/s", 8e4), ("640 tok/s", 640.0)],
)
def test_a_prefix_of_a_rate_may_stand_with_its_unit(tmp_path, rate, tokens):
    found = read(tmp_path, "".join(f"step {n} | loss 2.5 | {rate} | lr 1e-4\n" for n in range(4)))
    assert found["tokens_per_second_median"] == tokens


@pytest.mark.parametrize(
    ("said", "gib"), [("4.0GiB", 4.0), ("4.294967296 GB", 4.0), ("512 MiB", 0.5), ("70%", None)]
)
def test_memory_behind_a_loss_is_read_by_its_unit(tmp_path, said, gib):
    path = tmp_path / "a.log"
    line = "Step: {n} | Loss: 2.5 | Tokens/s/GPU: 2.5K | Memory usage: {said}\n"
    path.write_text("".join(line.format(n=n, said=said) for n in range(4)))
    [job] = logs.read(path).jobs
    assert job.table.median("reserved_gib") == gib


def test_a_job_that_ray_calls_succeeded_is_complete(tmp_path):
    text = (LOGS / "maxtext.log").read_text()
    assert read(tmp_path, text + "Job 'raysubmit_a1' succeeded\n")["status"] == "completed"


BANNER = (
    "Batch size per device = 2 | Gradient accumulation steps = 4 | Total batch size (2 x 4) = 8\n"
)


@pytest.mark.parametrize(("banner", "is_log"), [(BANNER, True), ("", False)])
def test_a_text_with_a_banner_and_a_failure_is_a_run_without_steps(tmp_path, banner, is_log):
    path = tmp_path / "cell.txt"
    path.write_text(banner + "torch.OutOfMemoryError: CUDA out of memory.\n")
    if is_log:
        [found] = summaries(path, {})
        assert told(found, "status", "n_records", "global_batch_size") == ("out_of_memory", 0, 8)
    else:
        with pytest.raises(IngestError, match="not a known log"):
            summaries(path, {})


def titan(step: int, loss: float, clock: str, rate: int = 1000) -> str:
    return (
        f"[rank0]:[titan] 2026-03-01 {clock},000 - root - INFO - step: {step}  loss: {loss}  "
        f"memory: 10.00GiB(12.50%)  tps: {rate:,}  tflops: 50.00  mfu: 5.00%\n"
    )


@pytest.mark.parametrize(("loss", "jobs"), [(8.0, 1), (8.01, 1), (9.0, 2)])
def test_a_run_that_begins_afresh_with_another_loss_is_another_run(tmp_path, loss, jobs):
    path = tmp_path / "a.md"
    first = titan(1, 8.0, "10:00:00") + titan(2, 7.0, "10:01:00") + titan(3, 6.0, "10:02:00")
    path.write_text(f"{first}Starting again\n{titan(1, loss, '11:00:00')}")
    assert len(summaries(path, {})) == jobs


@pytest.mark.parametrize(("total", "day", "jobs"), [(900, 1, 2), (900, 3, 1), (500, 1, 1)])
def test_other_steps_in_all_at_an_earlier_time_are_of_another_run(tmp_path, total, day, jobs):
    line = (
        " [2026-03-0{day} 10:00:0{n}] iteration {step}/ {total} | "
        "elapsed time per iteration (ms): 1000.0 | lm loss: 3.5E+00 |\n"
    )
    path = tmp_path / "a.md"
    path.write_text(
        "".join(line.format(day=2, n=n, step=n, total=500) for n in (1, 2))
        + "Elsewhere:\n"
        + line.format(day=day, n=3, step=40, total=total)
    )
    assert len(summaries(path, {})) == jobs


@pytest.mark.parametrize(("end", "records"), [("1250.0 ", 2), ("1250.0", 1), ("1250", 1)])
def test_a_figure_that_a_blank_ends_is_whole_where_the_text_is_cut(tmp_path, end, records):
    line = " iteration {n}/ 9 | elapsed time per iteration (ms): "
    text = line.format(n=1) + "1000.0 | lm loss: 3.5E+00 |\n" + line.format(n=2) + end
    assert read(tmp_path, text)["n_records"] == records


@pytest.mark.parametrize(("weights", "world"), [((8192, 8192), 4), ((6144, 6200), None)])
def test_weights_that_change_are_not_the_tokens_of_a_step(tmp_path, weights, world):
    line = (
        "completed step: {n}, seconds: 2.000, TFLOP/s/device: 60.000, Tokens/s/device: 1024.000, "
        "total_weights: {w}, loss: 9.500\n"
    )
    found = read(tmp_path, "".join(line.format(n=n, w=w) for n, w in enumerate(weights, 3)))
    assert found["world_size"] == world


def test_a_printed_rate_of_a_gpu_stands_where_the_gpus_are_not_known(tmp_path):
    text = (
        "Training starts at step 1, with local batch size 1, global batch size 8, "
        "sequence length 4096, total steps 9\n"
    )
    rows = ((1, "10:00:00", 10), (2, "10:01:00", 500), (3, "10:02:00", 600))
    found = read(tmp_path, text + "".join(titan(n, 9.0 - n, clock, r) for n, clock, r in rows))
    assert found["world_size"] is None
    assert found["tokens_per_second_per_gpu_median"] == 550  # without the first step
    assert found["tokens_per_second_median"] == pytest.approx(8 * 4096 / 60)


def test_a_block_of_metrics_may_be_commented_out_and_a_dict_stand_on_several_lines(tmp_path):
    block = (
        "#***** train metrics *****\n#  train_runtime = 0:01:00.00\n"
        "#  train_samples_per_second = 64.0\n#  train_steps_per_second = 4.0\n"
    )
    assert told(read(tmp_path, block), "status", "global_batch_size") == ("completed", 16)
    record = (
        "{{'loss': {n}.5, \n 'grad_norm': 0.5, \n 'learning_rate': 1e-05, \n 'epoch': {n}.0}}\n"
    )
    text = "".join(f"| {n}/9 [00:1{n}<00:30, 1.00s/it]\n" + record.format(n=n) for n in (1, 2, 3))
    assert told(read(tmp_path, text), "n_records", "last_step", "loss_last") == (3, 3, 3.5)


def test_ranks_that_print_their_own_loss_at_once_are_one_run(tmp_path):
    text = "".join(
        titan(n, 9 - n + rank / 1000, f"10:0{n}:00").replace("[rank0]:", "")
        for n in range(1, 5)
        for rank in range(3)
    )
    found = read(tmp_path, text)
    assert told(found, "n_records", "step_seconds_median", "loss_first") == (4, 60.0, 8.0)
    assert found["not_used"] == {"other_rank_records": 8}


@pytest.mark.parametrize(
    "line",
    [
        "misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-a1 to 99 bytes",
        "OSError: unable to map /dev/shm/torch_1_2",
    ],
)
def test_a_full_dev_shm_is_named_whatever_the_words(tmp_path, line):
    found = read(tmp_path, titan(1, 9.0, "10:00:00") + titan(2, 8.0, "10:01:00") + line + "\n")
    assert found["status"] == "failed"
    assert found["reason"].startswith("Shared memory ran out")


@pytest.mark.parametrize(("rate", "remark"), [(0.1, False), (0.2, True)])
def test_a_summary_that_counts_steps_of_an_earlier_start_is_remarked_on(tmp_path, rate, remark):
    row = "{{'loss': {loss}, 'learning_rate': 1e-05, 'epoch': {epoch}}}\n"
    text = "".join(
        f"| {n}/8 [00:{10 * (n - 4)}<00:30, 10.00s/it]\n" + row.format(loss=9 - n, epoch=n / 8)
        for n in (5, 6, 7, 8)
    )
    text += f"{{'train_runtime': 40.0, 'train_steps_per_second': {rate}, 'epoch': 1.0}}\n"
    said = " ".join(read(tmp_path, text)["warnings"])
    assert ("0.2 steps per second, 2 times what its steps give" in said) is remark


def test_rates_of_hugging_face_are_as_fine_as_it_rounds_them(tmp_path):
    end = {"train_runtime": 240.0, "train_samples_per_second": 32.0, "train_steps_per_second": 0.5}
    history = [{"loss": 3.0, "step": 60}, {"loss": 2.5, "step": 120}, {**end, "step": 120}]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": history, "global_step": 120, "max_steps": 120}))
    [found] = summaries(path, {})
    assert found["global_batch_size"] == 64
    end["train_samples_per_second"], end["train_steps_per_second"] = (
        166.68,
        5.21,
    )  # 31 129 of 31 136
    text = str({**end, "train_loss": 2.5, "epoch": 1.0}) + "\n"
    assert read(tmp_path, text)["global_batch_size"] == 32


def test_a_trace_whose_events_lack_times_says_so(tmp_path):
    events = [{"ph": "X", "cat": "kernel", "name": "gemm", "tid": 7, "pid": 0} for _ in range(4)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    [found] = summaries(path, {})
    assert "4 of 4 device events have no valid time" in " ".join(found["warnings"])


@pytest.mark.parametrize(
    ("tokens", "length"),
    [("1.258B", 4096), ("1258291200", 4096), ("1.27B", None), ("1.255B", None)],
)
def test_a_total_of_tokens_in_few_digits_gives_a_length_only_where_one_fits(
    tmp_path, tokens, length
):
    text = (  # 307,200 samples of 4,096 tokens are 1,258,291,200
        " iteration 300/ 300 | consumed samples: 307200 | consumed tokens: {} | "
        "elapsed time per iteration (ms): 1000.0 | global batch size: 1024 | lm loss: 1.5E+00 |\n"
    )
    assert read(tmp_path, text.format(tokens))["sequence_length"] == length


def test_mlperf_times_steps_of_gpt3_by_its_tokens(tmp_path):
    def event(time: int, key: str, value: object, **metadata: object) -> str:
        head = {"namespace": "", "time_ms": time, "event_type": "POINT_IN_TIME", "key": key}
        return f":::MLLOG {json.dumps(head | {'value': value, 'metadata': metadata})}\n"

    text = event(0, "submission_benchmark", "gpt3") + event(0, "global_batch_size", 64)
    text += event(0, "max_sequence_length", 2048)
    for n, seconds in ((1, 12.0), (2, 10.0), (3, 10.5)):
        stats = {"train_step_timing in s": seconds}
        text += event(n * 10_000, "tracked_stats", stats, step=n * 64 * 2048)
    found = read(tmp_path, text)
    assert told(found, "n_records", "first_step", "last_step") == (3, 1, 3)
    assert found["step_seconds_median_excluding_first"] == 10.25
    assert found["tokens_per_second_median"] == pytest.approx(64 * 2048 / 10.25)


def test_what_fails_behind_the_last_step_is_a_failure_of_a_completed_run(tmp_path, capsys):
    line = " iteration {n}/ 2 | elapsed time per iteration (ms): 1000.0 | lm loss: {loss}.5E+00 |\n"
    text = line.format(n=1, loss=4) + line.format(n=2, loss=3)
    assert not any("after them" in said for said in read(tmp_path, text)["warnings"])
    found = read(tmp_path, text + "OSError: [Errno 28] No space left on device: '/c'\n")
    reason = "Every step was trained; what came after them failed. The file system is full."
    assert told(found, "status", "reason") == ("completed", reason)
    assert reason in found["warnings"]
    (made,), _ = ingest([tmp_path / "a.log"], tmp_path / "runs", {})
    record = store.read_record(made.path)
    assert (record.status, record.cause, record.reason) == ("completed", "no_space", reason)
    assert record.log_tail
    assert main(["list", "--runs", str(tmp_path / "runs")]) == 0
    assert f"{record.run_id}: {reason}" in capsys.readouterr().out


@pytest.mark.parametrize(("step", "jobs"), [(3, 2), (2, 2), (6, 1)])
def test_quoted_blocks_whose_steps_go_back_are_other_runs(tmp_path, step, jobs):
    first = "".join(titan(n, 9.0 - n, f"10:0{n}:00") for n in (2, 3, 4))
    path = tmp_path / "a.md"
    path.write_text(f"```\n{first}```\n\nLater:\n\n```\n{titan(step, 6.5, '11:00:00')}```\n")
    found = summaries(path, {})
    assert len(found) == jobs
    remark = "Its records stand in several quoted blocks: they may be of other runs."
    assert (remark in found[0]["warnings"]) is (jobs == 1)


def test_records_that_a_trainer_held_back_are_placed_by_their_epochs(tmp_path):
    loading = "Loading checkpoint shards: 100%|###| 4/4 [00:54<00:00, 13.50s/it]\n"
    entry = "{{'loss': {n}.5, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': {epoch}}}\n"

    def bars(first: int, last: int) -> str:
        elapsed = ((n, 6 * n // 60, 6 * n % 60) for n in range(first, last))
        return "".join(f" {n}/80 [{m:02d}:{s:02d}<09:59,  6.00s/it]\r" for n, m, s in elapsed)

    def dicts(*steps: int) -> str:
        return "".join(entry.format(n=9 - n // 10, epoch=round(n / 40, 2)) for n in steps)

    text = loading + bars(1, 46) + dicts(10, 20, 30, 40) + bars(46, 81) + dicts(50, 60, 70, 80)
    found = read(tmp_path, text + "{'train_runtime': 480.0, 'train_loss': 4.5, 'epoch': 2.0}\n")
    assert told(found, "n_records", "first_step", "last_step", "log_interval") == (8, 10, 80, 10)
    assert told(found, "step_seconds_median", "loss_first", "status") == (6.0, 8.5, "completed")


def test_names_and_values_of_an_iteration_line_may_have_no_colon_between_them(tmp_path):
    line = " iteration {n}/ 900 | elapsed time per iteration (ms): 2000.0 | learning rate 1.0E-05 |"
    losses = {100: "6.5E+00", 200: "NAN", 300: "4.5E+00"}
    text = "".join(
        line.format(n=n) + f" lm loss {x} | loss scale 4.0 |\n" for n, x in losses.items()
    )
    found = read(tmp_path, text)
    assert told(found, "n_records", "loss_first", "loss_last") == (3, 6.5, 4.5)
    assert "The loss is not a number in 1 of 3 records." in found["warnings"]
    many = [line.format(n=n) + f" lm loss {n}.5E+00 |\n" for n in range(1, 101)]
    assert told(read(tmp_path, "".join(many)), "loss_first", "loss_last") == (1.5, 100.5)


@pytest.mark.parametrize(("unit", "seconds"), [("250.0ms", 0.25), ("2.5 s", 2.5)])
def test_litgpt_names_the_unit_of_its_time(tmp_path, unit, seconds):
    line = "Epoch 1 | iter {n} step {n} | loss train: 2.5, val: n/a | iter time: {unit} (step)\n"
    text = "".join(line.format(n=n, unit=unit) for n in (4, 5, 6))
    assert read(tmp_path, text)["step_seconds_median"] == seconds


def test_a_time_without_a_unit_is_in_milliseconds_where_the_clock_says_so(tmp_path):
    line = "[2026-01-02 10:00:{s:02d}] step={n} loss={l}.5 dt={t} mfu=40.0\n"
    text = "".join(line.format(s=n, n=n, l=50 - n, t=1000.0) for n in range(1, 9))
    found = read(tmp_path, text)
    assert found["step_seconds_median"] == 1.0
    assert (
        "The step time has no unit. By the time stamps it is in milliseconds." in found["warnings"]
    )
    assert read(tmp_path, text.replace("dt=1000.0", "dt=1.0"))["step_seconds_median"] == 1.0
    assert read(tmp_path, text.replace("dt=1000.0", "dt=200.0"))["step_seconds_median"] == 0.2
    assert read(tmp_path, text.replace(" dt=1000.0", ""))["step_seconds_median"] is None


def test_a_bar_at_zero_with_a_loss_shows_the_loss_of_the_step_to_come(tmp_path):
    bar = "Train: 0%| | {n}/900 [00:0{n}<09:59, {rate}s/it, loss: {loss}]\r"
    text = bar.format(n=0, rate="?", loss=9.5)
    for n, loss in ((1, 9.5), (2, 8.5), (3, 7.5)):
        text += bar.format(n=n, rate=1.0, loss=loss) + bar.format(n=n, rate=1.0, loss=loss - 1)
    found = read(tmp_path, text + bar.format(n=4, rate=1.0, loss=6.5))
    assert told(found, "n_records", "first_step", "loss_first", "loss_last") == (4, 1, 9.5, 6.5)
    set_behind = "".join(bar.format(n=n, rate=1.0, loss=9.5 - n) for n in (1, 2, 3))
    assert told(read(tmp_path, set_behind), "n_records", "loss_first") == (3, 8.5)


def test_a_step_of_an_epoch_of_fairseq_counts_the_epochs_before(tmp_path):
    line = "| epoch {e:03d}  {n} / 5000 loss={l} (2.5), wps=900, wpb=800, bsz=32, lr=0.001\n"
    text = "".join(line.format(e=3, n=n, l=5000 / n) for n in (2000, 3000, 4000))
    text += "| epoch 003 | train loss 1.5 | words/s    900 | words/batch    906 | bsz    32\n"
    found = read(tmp_path, text + line.format(e=4, n=1000, l=1.125))
    assert told(found, "n_records", "first_step", "last_step") == (4, 12_000, 16_000)


def test_a_gradient_that_is_no_number_makes_a_loss_of_zero_none(tmp_path):
    entry = "{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': 1e-05, 'epoch': {epoch}}}\n"
    text = entry.format(loss=2.5, norm=0.5, epoch=0.5) + entry.format(loss=0.0, norm="nan", epoch=1)
    found = read(tmp_path, text)
    assert told(found, "status", "reason") == (
        "diverged", "The loss is not a number in the last record.",
    )  # fmt: skip
    assert read(tmp_path, text.replace("nan", "0.25"))["status"] == "interrupted"


@pytest.mark.parametrize(
    ("line", "model"),
    [
        ("Loading base model: Qwen/Qwen2.5-3B-Instruct", "qwen2.5-3b"),
        ("train.py --model_name_or_path /data/hub/Llama-2-7b-hf --bf16", "llama2-7b"),
        ("  base_model: mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("teacher_model_name_or_path: Qwen/Qwen2.5-3B", None),
        ("HEAD https://example.com/api/models/meta/Llama-3.1-8B/config.json", None),
        ("model: acme/Qwen2.5-3B-Pruned", None),
    ],
)
def test_a_model_of_the_catalog_is_known_by_its_published_name(tmp_path, line, model):
    steps = "".join(f"step: {n} loss: {9 - n}.5 step time: 2.0s\n" for n in (1, 2, 3))
    assert read(tmp_path, f"{line}\n{steps}")["model"] == model


def test_a_launch_of_one_node_says_how_many_processes_there_are(tmp_path):
    steps = "".join(f"step: {n} loss: {9 - n}.5 step time: 2.0s\n" for n in (1, 2, 3))
    command = "torchrun --nproc-per-node=4 {}train.py\n"
    assert read(tmp_path, command.format("") + steps)["world_size"] == 4
    assert read(tmp_path, command.format("--nnodes=2 ") + steps)["world_size"] != 4


def test_litgpt_times_no_step_of_which_a_second_micro_batch_follows(tmp_path):
    line = "Epoch 1 | iter {i} step {s} | loss train: 2.5, val: n/a | iter time: 250.0 ms\n"
    text = "".join(line.format(i=i, s=(i + 1) // 2) for i in (1, 2, 3, 4))
    assert told(read(tmp_path, text), "n_records", "step_seconds_median") == (2, None)


def test_of_several_bars_in_a_line_the_last_one_is_before_the_record(tmp_path):
    bar = "^M  4%|# | {n}/900 [11:{s:02d}<5:08:51,  2.00s/it]"
    entry = "^M {{'loss': {loss}, 'learning_rate': 0.001}}\n"
    text = "".join(
        bar.format(n=n - 1, s=2 * n - 2) + bar.format(n=n, s=2 * n) + entry.format(loss=9.5 - n)
        for n in (5, 6, 7)
    )
    assert told(read(tmp_path, text), "n_records", "first_step", "last_step") == (3, 5, 7)


def test_a_time_that_mlperf_prints_of_a_block_is_of_its_last_step(tmp_path):
    text = mllog(0, "global_batch_size", 8) + mllog(0, "run_start", None)
    for n in range(1, 7):
        text += mllog(n * 10_000, "tracked_stats", {"train_loss": 9.5 - n}, samples_count=n * 80)
        text += mllog(n * 10_000, "tracked_stats", {"train_loss": 99.5}, samples_count=-1 + n)
        if n % 2 == 0:
            text += mllog(
                n * 10_000 + 1, "tracked_stats", {"train_step_time": 1.25}, samples_count=160
            )
    found = read(tmp_path, text)
    assert told(found, "n_records", "first_step", "last_step", "log_interval") == (6, 10, 60, 10)
    assert found["step_seconds_median"] == 1.25


def test_an_exception_that_the_interpreter_ignores_is_no_failure(tmp_path):
    steps = "".join(f"0: step: {n} loss: {9 - n}.5 step time: 2.0s\n" for n in (1, 2, 3))
    raised = 'Traceback (most recent call last):\n0:   File "a.py", line 1, in b\n0: OSError: no\n'
    ignored = "0: Exception ignored in atexit callback: <function a at 0x7f>\n0: " + raised
    assert read(tmp_path, steps + ignored)["status"] == "interrupted"
    assert read(tmp_path, steps + ignored + "0: " + raised)["status"] == "failed"


def test_torchtune_once_printed_memory_in_bytes(tmp_path):
    line = "Step {n} | loss:{loss}.5 lr:2e-05 gpu_resources:{size}\n"
    path = tmp_path / "a.log"
    path.write_text("".join(line.format(n=n, loss=9 - n, size=n * 2**31) for n in (1, 2, 3)))
    assert logs.read(path).jobs[0].table.values("allocated_gib") == [2.0, 4.0, 6.0]


def test_nemo_without_a_timing_still_prints_losses(tmp_path):
    line = "Training epoch 0, iteration {n}/9 | lr: 0.001 | global_batch_size: 8 | global_step: {n}"
    text = "".join(line.format(n=n) + f" | reduced_train_loss: {9 - n}.5\n" for n in range(3))
    found = read(tmp_path, text + line.format(n=3) + " | reduced_train_loss: 6")
    assert told(found, "n_records", "last_step", "loss_last") == (3, 2, 7.5)
    assert found["step_seconds_median"] is None


def test_verl_may_break_off_before_its_times(tmp_path):
    line = (
        "`(main_task pid=7) step:5 - actor/pg_loss:0.250 - actor/lr:0.000 - prom\npt_length/min:5"
    )
    found = read(tmp_path, line + " - timing_s/gen:62.0 - timing_s/s")
    assert told(found, "n_records", "first_step", "loss_first") == (1, 5, 0.25)
    assert found["step_seconds_median"] is None


def test_a_bar_that_is_drawn_twice_a_step_shows_its_own_loss_the_second_time(tmp_path):
    bar = "Epoch 0: 6%|# | {n}/18 [00:0{n}<00:18,  1.00s/it, loss={loss}]\r"
    text = bar.format(n=1, loss=9.5)
    for n in (2, 3, 4):
        text += bar.format(n=n, loss=11.5 - n) + bar.format(n=n, loss=10.5 - n)
    found = read(tmp_path, text)
    assert told(found, "n_records", "loss_first", "loss_last") == (4, 9.5, 6.5)


def test_a_bar_that_ended_before_the_first_record_is_not_that_of_the_training(tmp_path):
    bars = " 67%|###| 2/3 [00:01<00:00,  1.68it/s]\n"
    bars += "".join(f" 32%|# | {n}/873 [25:{n - 260}<46:00,  5.00s/it]\n" for n in (281, 282, 283))
    entry = "{'loss': 0.5, 'learning_rate': 0.001, 'epoch': 0.97}\n"
    behind = " 33%|# | 284/873 [25:49<45:20,  4.62s/it]\n"
    assert told(read(tmp_path, bars + entry + behind), "n_records", "first_step") == (1, 283)


def test_olmo_prints_memory_in_millions_of_bytes(tmp_path):
    line = (
        "[step={n}/9,epoch=0]\n    train/CrossEntropyLoss=2.5\n    System/Peak GPU Memory (MB)={m}"
    )
    path = tmp_path / "a.log"
    path.write_text("".join(line.format(n=n, m="1,073.741824") + "\n" for n in (1, 2)))
    assert logs.read(path).jobs[0].table.values("allocated_gib") == [1.0, 1.0]


def test_memory_under_a_name_that_ends_in_mb_is_in_mib(tmp_path):
    entry = "{'loss': 0.5, 'learning_rate': 1e-05, 'epoch': 1.0, "
    path = tmp_path / "a.log"
    path.write_text(entry + "'total_peak_memory_allocated_MB': 2048.0}\n")
    assert logs.read(path).jobs[0].table.values("allocated_gib") == [2.0]


def test_an_iteration_line_may_have_equals_signs_and_underscores(tmp_path):
    line = (
        "[2026-03-01 10:00:0{n},250000][I][megatron/training_log:402]  iteration=  10{n}/  900 | "
        "consumed_samples=   {n}00 | elapsed_time_per_iteration_ms={ms}.0 | learning_rate=2e-05 | "
        "global_batch_size=  100 | lm loss={loss}.5 | actual_seqlen= 512 | "
        "number_of_skipped_iterations=  {n} | number_of_nan_iterations=  0 | "
        "tokens_per_gpu_per_second_tgs=640.0 | [LM]TFLOPs=50.00 |\n"
    )
    text = "".join(line.format(n=n, ms=m, loss=9 - n) for n, m in ((1, 900), (2, 400), (3, 500)))
    found = read(tmp_path, text)
    assert told(found, "n_records", "first_step", "last_step", "loss_first") == (3, 101, 103, 8.5)
    assert found["step_seconds_median_excluding_first"] == pytest.approx(0.45)
    assert told(found, "global_batch_size", "sequence_length") == (100, 512)
    assert told(found, "skipped_iterations", "nan_iterations") == (6, 0)
    each = found["tokens_per_second_per_gpu_median"]
    assert (each, found["tflops_per_second_per_gpu_logged_median"]) == (640.0, 50.0)


ITERATION = " iteration {n}/ 9 | elapsed time per iteration (ms): 500.0 | lm loss: {loss} |\n"


def test_megatron_says_the_groups_that_it_initialised(tmp_path):
    text = "> initialized tensor model parallel with size 8\n"
    text += "> initialized pipeline model parallel with size 2\n" + ITERATION.format(n=1, loss=5.0)
    assert told(read(tmp_path, text), "tensor_parallel_size", "pipeline_parallel_size") == (8, 2)


def test_deepspeed_counts_replicas_and_old_megatrons_batch_is_a_micro_batch(tmp_path):
    text = (
        "using world size: 64 and model-parallel size: 4\n"
        "  batch_size ...................... 48\n"
        "[INFO] [config.py:9:print]   train_batch_size ............. 768\n"
        "[INFO] [config.py:9:print]   world_size ................... 16\n"
    )
    found = read(tmp_path, text + ITERATION.format(n=1, loss=5.0))
    assert told(found, "world_size", "data_parallel_size") == (64, 16)
    assert told(found, "global_batch_size", "micro_batch_size") == (768, 48)


@pytest.mark.parametrize("before", ["7: ", "2026-03-01 ", "INFO "])
def test_a_wrapped_loss_behind_other_figures_is_missing_not_wrong(tmp_path, before):
    record = ITERATION.format(n=1, loss="\n" + before + "2.5").lstrip()
    found = read(tmp_path, "Ready.\n" + record)
    assert told(found, "n_records", "loss_first") == (1, None)
    assert read(tmp_path, ITERATION.format(n=1, loss="\n2.5"))["loss_first"] == 2.5


def test_a_stage_of_a_pipeline_that_has_no_loss_prints_none(tmp_path):
    line = "step: {n}  loss: -1.00000  memory: 9.00GiB(20.00%)  tps: 4,096  mfu: 30.00%\n"
    found = read(tmp_path, line.format(n=1) + line.format(n=2))
    assert told(found, "n_records", "loss_first", "loss_last") == (2, None, None)


def test_ms_swift_prints_the_rates_of_a_gpu_and_of_the_job(tmp_path):
    entry = (
        "{{'loss': '2.0', 'epoch': '0.0{n}', 'global_step/max_steps': '{n}/9', "
        "'tokens_per_gpu_per_sec': '{n}00.5', 'tokens_global_per_sec': '{n}000'}}\n"
    )
    found = read(tmp_path, "".join(entry.format(n=n) for n in (1, 2, 3, 4)))
    assert told(found, "n_records", "tokens_per_second_median") == (4, 3000)
    assert found["tokens_per_second_per_gpu_median"] == 300.5


def test_mlperf_of_gpt3_counts_tokens_and_times_its_steps(tmp_path):
    event = ':::MLLOG {{"time_ms": 1, "key": "{key}", "value": {value}, "metadata": {{{more}}}}}\n'
    text = event.format(key="submission_benchmark", value='"gpt3"', more="")
    text += event.format(key="global_batch_size", value=16, more="")
    text += event.format(key="max_sequence_length", value=2048, more="")
    for n in (1, 2, 3):
        value = f'{{"train_step_timing": {n}.5}}'
        text += event.format(key="tracked_stats", value=value, more=f'"step": {n * 16 * 2048}')
    found = read(tmp_path, text)
    assert told(found, "n_records", "first_step", "last_step") == (3, 1, 3)
    assert found["step_seconds_median_excluding_first"] == 3.0
    assert found["tokens_per_second_median"] == pytest.approx(16 * 2048 / 3)


@pytest.mark.parametrize(("second", "jobs"), [("12.2611", 2), ("12.2256", 1)])
def test_runs_of_one_model_begin_with_nearly_the_same_loss(tmp_path, second, jobs):
    line = "step: {n}  loss: {loss}  memory: 9.00GiB(20.00%)  tps: 4,096  mfu: 30.00%\n"
    text = line.format(n=1, loss="12.2254") + line.format(n=10, loss="10.7069")
    text += "\nCompare it with bfloat16:\n\n" + line.format(n=1, loss=second)
    path = tmp_path / "a.log"
    path.write_text(text + line.format(n=10, loss="10.4260"))
    assert len(logs.read(path).jobs) == jobs


def test_a_bar_of_nemo_without_a_rate_gives_the_step_that_is_rounded(tmp_path):
    bar = (
        "Epoch 0: :   0%|          | 2000/603000 [1:03:17<317:00:58, v_num=, "
        "reduced_train_loss=2.600, global_step=2e+3, train_step_timing in s=1.900]\n"
    )
    found = read(tmp_path, bar)
    assert told(found, "n_records", "first_step", "loss_first") == (1, 1999, 2.6)
    assert found["step_seconds_median"] == 1.9


@pytest.mark.parametrize(("epoch", "step"), [(0, 10), (1, None)])
def test_an_iteration_of_a_later_epoch_is_no_step(tmp_path, epoch, step):
    line = f"Training epoch {epoch}, iteration 10/999 | lr: 0.001 | reduced_train_loss: 5.0 | "
    found = read(tmp_path, line + "train_step_timing in s: 46.84\n")
    assert told(found, "n_records", "first_step") == (1, step)


def test_a_page_of_two_hugging_face_runs_has_two_jobs_with_the_steps_of_their_epochs(tmp_path):
    entry = "{{'loss': {loss}, 'grad_norm': 0.2, 'learning_rate': 4e-05, 'epoch': {epoch}}}\n"
    end = "{'train_runtime': 200.0, 'train_samples_per_second': 5.0, 'epoch': 1.0}\n"
    end += "100%|####| 125/125 [03:20<00:00,  1.60s/it]\n"
    text = "Loading checkpoint shards: 100%|##| 2/2 [00:01<00:00,  1.00s/it]\n"
    for first in (2.5, 1.5):
        losses = [first - 0.1 * n for n in range(6)]
        epochs = (0.16, 0.32, 0.48, 0.64, 0.8, 0.96)
        text += "".join(
            entry.format(loss=f"{loss:.1f}", epoch=at)
            for loss, at in zip(losses, epochs, strict=True)
        )
        text += end + "\nNow without adapters:\n\n"
    (path := tmp_path / "a.md").write_text(text)
    jobs = logs.read(path).jobs
    assert [list(job.table.column("step")) for job in jobs] == [[20, 40, 60, 80, 100, 120]] * 2
    assert [job.table.column("loss")[0] for job in jobs] == [2.5, 1.5]


def test_a_dict_that_two_ranks_print_is_one_record(tmp_path):
    entry = "[rank{rank}]: {{'loss': {loss}, 'grad_norm': 0.5, 'lr': 1e-05, 'epoch': {epoch}}}\n"
    text = "".join(
        entry.format(rank=rank, loss=5 - epoch, epoch=epoch)
        for epoch in (1, 2, 3)
        for rank in (0, 1)
    )
    assert told(read(tmp_path, text), "n_records", "loss_first", "loss_last") == (3, 4, 2)


def test_a_record_of_composer_without_its_head_is_left_out(tmp_path):
    record = (
        "         Train loss/train/total: {loss}\n         Train throughput/samples_per_sec: 2.5\n"
    )
    text = "ner/global_step: 2\n" + record.format(loss=5.5)
    found = read(tmp_path, text + "[batch=15/15]:\n" + record.format(loss=4.5))
    assert told(found, "n_records", "first_step", "loss_first") == (1, 15, 4.5)


def test_an_inner_iteration_is_no_step_and_a_part_of_the_loss_is_no_loss(tmp_path):
    line = (
        "train | inner iter: {n}/ 8 | global iter: 1{n}/ 5000| tot_loss: {n}.5 | rl_loss: -0.25 | "
        "lr: 2.5e-07 | time: 1.5\n"
    )
    found = read(tmp_path, "".join(line.format(n=n) for n in (2, 3, 4)))
    assert told(found, "n_records", "first_step", "loss_first", "loss_last") == (3, 12, 2.5, 4.5)


def test_rwkv_says_the_step_behind_the_epoch(tmp_path):
    line = "miniE {n} s {s} prog 20.00% : ppl 5.4 loss 1.{n} lr 3e-04: "
    line += "100%|# | 8/8 [00:04<00:00, 2.00it/s]"
    found = read(tmp_path, "".join(line.format(n=n, s=n * 8) + "\n" for n in (1, 2, 3)))
    assert told(found, "n_records", "first_step", "last_step", "loss_last") == (3, 8, 24, 1.3)
    assert found["step_seconds_median"] == 0.5


def test_sizes_may_be_said_in_short(tmp_path):
    text = "iter 0: loss 9.5, iter time: 500.00ms\niter 4: loss 8.5, iter time: 250.00ms\n"
    found = read(tmp_path, text + "Seq Length: 4096\nMicro BS: 2\nGlobal BS: 6\n")
    names = ("sequence_length", "micro_batch_size", "global_batch_size")
    assert told(found, *names) == (4096, 2, 6)


def test_quoted_blocks_at_another_pace_behind_a_gap_are_other_runs(tmp_path):
    line = "step {n} | epoch 1 | loss {loss} | mem 9.00 GiB | tps {tps}.50({tps}.25/gpu)\n"

    def page(*blocks: str) -> list[dict[str, Any]]:
        path = tmp_path / "a.md"
        path.write_text("".join(f"## Run\n```\n{block}```\n" for block in blocks))
        return summaries(path, {})

    def block(first: int, loss: float, tps: int) -> str:
        steps = range(first, first + 3)
        return "".join(line.format(n=n, loss=loss - n / 1000, tps=tps) for n in steps)

    first = block(30, 2.0, 4000)
    jobs = page(first, block(90, 1.5, 6000))
    assert [told(job, "first_step", "last_step", "n_records") for job in jobs] == [
        (30, 32, 3), (90, 92, 3),
    ]  # fmt: skip
    assert [job["tokens_per_second_per_gpu_median"] for job in jobs] == [4000.25, 6000.25]
    assert len(page(first, block(90, 3.0, 4000))) == 2  # the loss of a training does not rise so
    assert len(page(first, block(90, 1.5, 4000))) == 1  # goes on
    assert len(page(first, block(33, 1.5, 6000))) == 1  # no gap: another node, as fast as it is
    assert len(page(first, line.format(n=90, loss=1.5, tps=9000))) == 1  # one record is no pace


def test_a_step_with_its_share_of_all_steps_is_a_step(tmp_path):
    line = (
        "step: {n}/50 = {share}.0000%  loss:  8.5  memory: 9.00GiB(20.00%)  tps: 4,096  mfu: 3%\n"
    )
    found = read(tmp_path, line.format(n=40, share=80) + line.format(n=50, share=100))
    assert told(found, "n_records", "last_step", "status") == (2, 50, "completed")


def test_lines_that_begin_or_end_with_a_bar_belong_together(tmp_path):
    nemo = (
        "# job/0 Training epoch 0, iteration 1{n}/14 | lr: 1e-06 | global_batch_size: 64\n"
        "# | reduced_train_loss: 8.5 | train_step_timing in s: 2.5\n# | TFLOPS_per_GPU: 500.0\n"
    )
    found = read(tmp_path, nemo.format(n=0))
    assert told(found, "n_records", "step_seconds_median", "loss_first") == (1, 2.5, 8.5)
    patch = (
        "    iteration        1/      50 | elapsed time per iteration (ms): 2000.0 |\n"
        "    memory usage/free/total: 9.00GiB/9.00GiB(50.00%) | loss: 8.5E+00 |\n"
        "    tokens per GPU (tokens/s/GPU): 4096.5 | grad norm: 1.5 |\n"
    )
    found = read(tmp_path, patch)
    assert told(found, "n_records", "loss_first") == (1, 8.5)
    assert found["tokens_per_second_per_gpu_median"] == 4096.5


@pytest.mark.parametrize(
    ("said", "sizes"),
    [
        ("MBS=3 \\\nGBS=24 \\\nTP=2 \\\nexport SEQ_LENGTH=512\n", {M: 3, G: 24, T: 2, S: 512}),
        ("$ SEQ_LENGTH=512 PP=2 ./train.sh\n", {S: 512, P: 2}),
        ("[INFO|DP=0|PP=0|TP=3]: ready\n", {}),  # ranks
        ("$ ./run.sh --training.local_batch_size=3 --training.seq_len=512\n", {M: 3, S: 512}),
        ("$ mpirun --np 16 bash train.sh\n", {W: 16}),
        ("$ mpirun -np 2 torchrun train.py\n", {}),  # launchers, not ranks
        ("$ deepspeed --num_gpus 8 train.py\n", {W: 8}),
        ("$ deepspeed --num_gpus 8 --num_nodes 2 train.py\n", {W: 16}),
        ("$ accelerate launch --num_processes 4 train.py\n", {W: 4}),
        ("  seq_length: 512\n", {S: 512}),
    ],
)
def test_a_command_or_a_script_above_the_log_gives_sizes(tmp_path, said, sizes):
    line = " iteration {n}/ 9 | elapsed time per iteration (ms): 1000.0 | lm loss: 2.5 |\n"
    found = read(tmp_path, said + line.format(n=1) + line.format(n=2))
    assert {size: found[size] for size in (W, T, P, C, E, G, M, S) if found[size]} == sizes


def test_steps_of_an_orchestrator_have_a_time_and_a_reward(tmp_path):
    line = "22:4{n}:19 SUCCESS Step {n} | 2{n}.5s | Reward 0.5000 | Turns 3.0\n"
    found = read(tmp_path, line.format(n=1) + line.format(n=2))
    assert told(found, "family", "n_records", "loss_first") == ("prime-rl", 2, None)
    assert found["step_seconds_median"] == 22.0


def test_samples_of_nvidia_smi_without_a_header_are_in_the_usual_order(tmp_path):
    line = "2031/06/01 11:27:0{n}.177, NVIDIA A100-SXM4-40GB, 00000000:3B:00.0, 545.23.08, P0, "
    line += "4, 4, 4{n}, {n}0 %, 0 %, 40960 MiB, 38912 MiB, 2048 MiB\n"
    mean = read(tmp_path, line.format(n=1) + line.format(n=3))["telemetry"]["mean"]
    assert mean["temperature_celsius"] == 42 and mean["memory_used_gib"] == 2
    assert mean["gpu_busy_fraction"] == pytest.approx(0.2)


def test_a_length_does_not_follow_from_a_clock_that_is_too_coarse(tmp_path):
    # 4,113 tokens/s x 0.503 s is 2,068.8 +- 4.1: many whole numbers, and no multiple of 128
    text = "$ ./run.sh --training.global_batch_size=1\nBuilding device mesh with ['dp'], [1]\n"
    for n in range(4):
        clock = f"2026-01-01 10:00:0{503 * n // 1000},{503 * n % 1000:03d}"
        text += f"[titan] {clock} - root - INFO - step: {n + 1}  loss: 8.5  tps: 4,113\n"
    found = read(tmp_path, text)
    assert found["step_seconds_median"] == pytest.approx(0.503)
    assert told(found, G, W, S) == (1, 1, None)


def test_a_whole_iteration_line_without_any_time_is_a_record(tmp_path):
    line = " iteration {n}/ 9 | consumed samples: {n}00 | lm loss: {n}.5E+00 | grad norm: 1.5 |\n"
    found = read(tmp_path, line.format(n=1) + line.format(n=9))
    assert told(found, "n_records", "loss_last", "step_seconds_median") == (2, 9.5, None)
    cut = " iteration 9/ 9 | lm loss: 9.5E+00 | elapsed time per iteration (ms): \n"
    assert read(tmp_path, line.format(n=1) + cut)["n_records"] == 1


@pytest.mark.parametrize(("records", "first", "last"), [(12, 1, 12), (11, None, None)])
def test_epochs_that_are_too_coarse_for_steps_hide_no_record(tmp_path, records, first, last):
    banner = "    Total batch size = 8 | Total steps = 12\n"
    entry = "{{'loss': {loss}, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': {epoch}}}\n"
    dicts = [entry.format(loss=9.5 - n / 4, epoch=round(n / 300, 2)) for n in range(1, records + 1)]
    end = "{'train_runtime': 60.5, 'train_loss': 5.5, 'epoch': 0.04}\n"
    for bar in ("", " 12/12 [01:00<00:00, 5.00s/it]\n"):
        found = read(tmp_path, banner + "".join(dicts) + bar + end)
        assert told(found, "n_records", "first_step", "last_step") == (records, first, last)


def test_several_losses_of_torchtune_may_stand_in_a_line(tmp_path):
    found = read(tmp_path, "1|1|Loss: 2.5   1|4|Loss: 2.25\n2|10|Loss: 1.5   2|17|Loss: 1.25\n")
    assert told(found, "n_records", "first_step", "last_step", "loss_last") == (4, 1, 17, 1.25)


def test_a_loss_with_a_gradient_is_a_record_and_one_of_a_validation_is_none(tmp_path):
    line = "step {n} | epoch 1 | loss {n}.5 | grad_norm 1.5 | num_label_tokens 645\n"
    text = "".join(line.format(n=n) for n in (5, 6, 7))
    found = read(tmp_path, text + "[val] step 6 | loss 9.5 -> [val] step 7 | loss 9.0\n")
    assert told(found, "n_records", "last_step", "loss_last") == (3, 7, 7.5)


def test_a_dump_of_sizes_without_a_step_is_a_run_that_printed_none(tmp_path):
    dump = "  batch_size ....... 4\n  seq_length ....... 512\n  world_size ....... 8\n"
    found = read(tmp_path, dump)
    assert told(found, "n_records", "status", W, M, S) == (0, "interrupted", 8, 4, 512)
    (few := tmp_path / "b.log").write_text("  world_size ....... 8\n")
    with pytest.raises(IngestError, match="not a known log"):
        summaries(few, {})


def iterations(steps: dict[int, float], fields: str = "") -> str:
    """Return records of Megatron-LM by step and seconds, with further fields."""
    return "".join(
        f" iteration {n:8d}/ 100 | elapsed time per iteration (ms): {1e3 * s:.1f} | "
        f"global batch size: 64 | lm loss: {9 - n / 50:.6E} | {fields}\n"
        for n, s in steps.items()
    )


@pytest.mark.parametrize(
    ("steps", "interval"),
    [((1, 10, 20, 30), 10), ((1, 2, 3), 1), ((1, 10), 1), ((1, 7, 9), 1), ((5, 10, 15), 5)],
)
def test_a_first_step_that_is_printed_as_well_is_not_the_interval(tmp_path, steps, interval):
    found = read(tmp_path, iterations({n: 2.0 + n / 100 for n in steps}))
    assert found["log_interval"] == interval


def test_rates_and_lengths_in_an_iteration_line_give_the_number_of_gpus(tmp_path):
    field = "tokens per GPU (tokens/s/GPU): {:.1f} | seq_length: 1024 |"
    times = (9.0, 2.0, 2.5, 1.6)
    text = "".join(iterations({n: s}, field.format(8192 / s)) for n, s in enumerate(times, 1))
    assert told(read(tmp_path, text), "world_size", "sequence_length") == (8, 1024)
    # Of padded batches: no number of GPUs fits all records.
    mixed = text.replace("ms): 2500.0", "ms): 2600.0").replace("ms): 9000.0", "ms): 8000.0")
    assert read(tmp_path, mixed)["world_size"] is None
    both = "toks/s: 32768 | toks/s/gpu: 4096 | avg_seq_len: 900.5 |"
    found = read(tmp_path, iterations({1: 2.0, 2: 2.0}, both))
    assert told(found, "world_size", "sequence_length") == (8, 1024)


@pytest.mark.parametrize("field", ["mfu: 41.25%", "MFU: 0.4125", "mfu: 41.25"])
def test_mfu_in_an_iteration_line_is_a_percentage_or_a_fraction(tmp_path, field):
    found = read(tmp_path, iterations({1: 2.0, 2: 2.1}, f"{field} |"))
    assert found["mfu_logged_median"] == pytest.approx(0.4125)


TITAN = "".join(
    f"[titan] 2026-04-01 10:00:{n:02d},123 - root - INFO - step: {n:2}  loss:  9.50000  "
    f"memory: 30.10GiB(38.00%)  tps: {n + 5000:,}  tflops: 12.34  mfu: 1.20%\n"
    for n in (1, 10, 20)
)
TUNE = "".join(
    f"Step {n} | loss:1.{n} lr:2e-05 tokens_per_second_per_gpu:40{n}.5\n" for n in (1, 2)
)
AUTO = "".join(
    f"INFO | root | step {n} | epoch 0 | loss 1.{n} | mem 4 GiB | tps 800.00(100.00/gpu)\n"
    for n in (1, 2)
)
JAX = "".join(
    f"completed step: {n}, seconds: 2.0, TFLOP/s/device: 9.0, Tokens/s/device: 512.0, loss: 9.{n}\n"
    for n in (0, 1)
)
DUMPS: list[tuple[str, str, dict[str, int | None]]] = [
    ('[titan] Running with configs: {\n  "training": {\n    "local_batch_size": 2,\n    "seq_len": '
     '4096\n  },\n  "parallelism": {\n    "tensor_parallel_degree": 2\n  },\n  "validation": {\n'
     '    "local_batch_size": 8,\n    "seq_len": 2048\n  }\n}\n', TITAN,
     {"micro_batch_size": 2, "sequence_length": 4096, "tensor_parallel_size": 2}),
    ("[titan] Running with args: {'training': {'batch_size': 8, 'seq_len': 2048, 'steps': 20}, "
     "'experimental': {'pipeline_parallel_degree': 2}, 'validation': {'seq_len': 64}}\n", TITAN,
     {"micro_batch_size": 8, "sequence_length": 2048, "pipeline_parallel_size": 2}),
    ("Training starts at step 1, with local batch size: 8, global batch size: 64, sequence length: "
     "2048, total steps: 1000(200)\n", TITAN, {"micro_batch_size": 8, "global_batch_size": 64}),
    ("batch_size: 2\ntensor_parallel_dim: 4\n", TUNE,
     {"micro_batch_size": 2, "tensor_parallel_size": 4}),
    ("distributed:\n  tp_size: 2\n  cp_size: 1\n  dp_size: none\n", AUTO,
     {"tensor_parallel_size": 2, "context_parallel_size": 1, "data_parallel_size": None}),
    ("Config param dcn_pipeline_parallelism: 2\nConfig param ici_pipeline_parallelism: 2\n"
     "Config param ici_tensor_parallelism: 1\nConfig param per_device_batch_size: 4.0\n", JAX,
     {"pipeline_parallel_size": 4, "tensor_parallel_size": 1, "micro_batch_size": None}),
    ("python train.py base.yml ici_tensor_parallelism=1 max_target_length=8192 "
     "per_device_batch_size=4\n", JAX,
     {"sequence_length": 8192, "micro_batch_size": 4, "tensor_parallel_size": 1}),
    ("pretrain --factory x trainer.strategy.tensor_model_parallel_size=4 data.seq_length=512 "
     "data.validation_ds.micro_batch_size=8\n", iterations({1: 2.0, 2: 2.1}),
     {"tensor_parallel_size": 4, "sequence_length": 512, "micro_batch_size": None}),
    ("Building 1-D device mesh with ['dp_shard'], [8]\n", iterations({1: 2.0, 2: 2.1}),
     {"world_size": 8}),
    ("job_a/0   micro_batch_size: 2\njob_a/0   seq_length: 512\n",
     "".join(f"job_a/0 {line}\n" for line in iterations({1: 2.0, 2: 2.1}).splitlines()),
     {"micro_batch_size": 2, "sequence_length": 512}),
    ("TrainArgs(save_interval=9, global_batch_size=64, micro_batch_size=4, max_seq_length=None)\n",
     "iter 1 step 1: loss 2.5, iter time: 301.00ms\niter 2 step 2: loss 2.4, iter time: 302.00ms\n",
     {"global_batch_size": 64, "micro_batch_size": 4}),
    ("[INFO|DP=0|PP=0|TP=0|a]: mbs: 8 | grad_accum: 2 | cp: 1 | sequence_length: 512 | "
     "global_batch_size: 256 | train_steps: 9\n",
     "".join(f"iteration: {n} / 9 | consumed_tokens: 131K | time_per_iteration_ms: 2.0{n}K | "
             "tokens_per_sec: 65K | lm_loss: 9.1 |\n" for n in (1, 2)),
     {"micro_batch_size": 8, "context_parallel_size": 1, "global_batch_size": 256}),
    ("[config.py:9:print]   train_batch_size ............. 32\n[config.py:9:print]   train_micro_"
     "batch_size_per_gpu  4\n[config.py:9:print]   world_size ................... 8\n",
     "".join(f"[INFO] 0/{n}, SamplesPerSec=1{n}.5\n" for n in (10, 20, 30)),
     {"micro_batch_size": 4, "global_batch_size": 32, "world_size": 8}),
]  # fmt: skip


@pytest.mark.parametrize(("dump", "records", "sizes"), DUMPS)
def test_each_trainers_dump_of_its_configuration_gives_the_sizes(tmp_path, dump, records, sizes):
    found = read(tmp_path, dump + records)
    assert {name: found[name] for name in sizes} == sizes


def test_a_batch_of_a_fine_tuner_is_micro_batch_times_accumulation_times_processes(tmp_path):
    sizes = {"gradient_accumulation_steps": 2, "micro_batch_size": 4, "world_size": 2}
    text = "".join(
        f"{{'loss': 2.{n}, 'learning_rate': 1e-05, 'epoch': 0.{n}}}\n"
        f" 10%| | {n}/10 [00:0{n}<00:09,  1.00it/s]\n"
        for n in (1, 2, 3)
    )
    dump = json.dumps(sizes, indent=2) + "\n"
    assert read(tmp_path, dump + text)["global_batch_size"] == 16


def test_composer_records_of_a_run_limited_by_tokens_have_the_steps_of_their_batches(tmp_path):
    text = "".join(
        f"[token={n}00/900]:\n\t Train time/batch: {n - 1}\n\t Train time/sample: {64 * (n - 1)}\n"
        f"\t Train loss/train/total: {9 - n / 10}\n\t Train throughput/samples_per_sec: {n}.0\n"
        for n in (10, 20, 30)
    )
    found = read(tmp_path, text)
    assert told(found, "n_records", "first_step", "last_step", "loss_last") == (3, 10, 30, 6.0)


def test_litgpt_calls_an_iterations_time_a_train_time_too(tmp_path):
    line = "iter {n} step {n}: loss 2.{n}, train time: 30{n}.00ms (optimizer.step)\n"
    found = read(tmp_path, line.format(n=1) + line.format(n=2))
    assert (found["family"], found["loss_first"]) == ("litgpt", 2.1)
    assert found["step_seconds_median"] == pytest.approx(0.3015)


def test_olmo_core_prints_flops_and_refused_steps(tmp_path):
    line = (
        "[step={n}/100,epoch=1]\n    optim/step skipped=1.0\n"
        "    throughput/device/flopsPS=4.5E+14\n    throughput/device/TPS=8,000\n"
        "    train/CE loss={n}.5\n"
    )
    found = read(tmp_path, line.format(n=1) + line.format(n=2))
    assert found["tflops_per_second_per_gpu_logged_median"] == pytest.approx(450)
    assert found["skipped_iterations"] == 2


def test_a_rate_of_a_device_behind_a_speed_is_that_of_a_device(tmp_path):
    line = "iter {n}: loss 2.{n}, time: 30{n}.00ms, speed: 2600{n} toks/s/device\n"
    found = read(tmp_path, "".join(line.format(n=n) for n in (1, 2, 3)))
    assert found["tokens_per_second_per_gpu_median"] == 26002.5
    assert found["tokens_per_second_median"] is None


def test_a_printed_rate_goes_before_one_by_a_clock_that_runs_on(tmp_path):
    mesh = "Building 1-D device mesh with ['dp_shard'], [8]\n"
    sizes = "local batch size 2, global batch size 16, sequence length 4096, total steps 50\n"
    found = read(tmp_path, mesh + sizes + TITAN)
    assert found["tokens_per_second_per_gpu_median"] == 5015


def test_a_line_may_hold_many_records_of_litgpt(tmp_path):
    one = (
        "Epoch 3 | iter {n} step {n} | loss train: 0.{n}, val: 1.0 | iter time: 62{n}.00 ms (step) "
    )
    found = read(tmp_path, "".join(one.format(n=n) for n in (7, 8, 9)) + "\n")
    assert told(found, "n_records", "first_step", "last_step", "loss_last") == (3, 7, 9, 0.9)


def test_deepspeeds_pipeline_prints_further_losses_between_loss_and_time(tmp_path):
    line = (
        "steps: {n} loss: 2.{n} lm_loss: 1.5 aux_loss: 0.01 iter time (s): 1.{n} samples/sec: 4.5\n"
    )
    found = read(tmp_path, line.format(n=1) + line.format(n=2))
    assert told(found, "n_records", "loss_first", "loss_last") == (2, 2.1, 2.2)
    assert found["step_seconds_median"] == pytest.approx(1.15)


@pytest.mark.parametrize("first", [0, 4])
def test_the_loss_of_a_step_is_that_of_the_rank_that_has_one(tmp_path, first):
    mesh = "[rank0]:[titan] Building 2-D device mesh with ['pp', 'dp_shard'], [2, 4]\n"
    text = "".join(
        titan(n, 9.5 - n if rank else -1.0, f"10:0{n}:00").replace("rank0", f"rank{rank}")
        for n in (1, 2)
        for rank in (first, 4 - first)
    )
    found = read(tmp_path, mesh + text)
    assert told(found, "n_records", "loss_first", "loss_last") == (2, 8.5, 7.5)
    assert told(found, "world_size", "pipeline_parallel_size") == (8, 2)
