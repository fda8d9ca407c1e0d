"""Forms in which trainers of any kind print steps and their configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scalebook.logs.ingest.ingestion import ingest, summaries
from scalebook.store import read_run

STEP = "step {n}/90 | loss {loss:.3f} | step_time {t:.3f}s"


def log(form: str = STEP, count: int = 6, first: int = 1) -> str:
    """Return a log of steps of 1.51 s and on, whose loss falls from 9.5 by 0.5 a step."""
    steps = range(first, first + count)
    return "".join(form.format(n=n, loss=10 - n / 2, t=1.5 + n / 100) + "\n" for n in steps)


def read(tmp_path: Path, text: str) -> dict[str, Any]:
    """Return the summary of a log, with the settings of the run."""
    path = tmp_path / "a.log"
    path.write_text(text)
    (run,), _ = ingest([path], tmp_path / "runs", {})
    return {**run.summary, **read_run(run.path).record.observed}


FORMS = {
    "{{'step': {n}, 'train_loss': {loss}, 'lr': 2e-05, 'step_time_ms': 1535.0}}": {},
    "[{n}/500] loss: {loss:.3f} | iter: {t:.3f}s": {},
    "step {n} | loss {loss:.3f} | lr 1e-4 | ({t:.3f} s | 27,303 tok/s)": {},
    "step={n} loss={loss:.3f} step_ms=1535 throughput=54.6k tok/s (6.825k tok/s/gpu)":
        {"world_size": 8},
    "step {n}: loss={loss:.3f} time=1535ms tokens/s=43.68K tokens/s/gpu=5.46K": {"world_size": 8},
    "[Iter {n}] loss: {loss:.3f}, 1.535s/it, 21,700 tok/s/GPU":
        {"tokens_per_second_per_gpu_median": 21700},
    "INFO:a:step: {n}, train/loss: {loss:.3f}, perf/step_time_s: 1.535, perf/mfu: 0.41":
        {"mfu_logged_median": 0.41},
    'time="2031-03-04T10:10:1{n}Z" msg="step" step={n} loss={loss:.3f} step_time=1.535': {},
    "Step {n}/90\n  Loss: {loss:.3f}\n  Step time: 1.535 s\n  MFU: 41.0 %\n":
        {"mfu_logged_median": 0.41},
    "step: {n}\nloss: {loss}\nallocated memory: 53687091200\ncurrent step time: 1.535": {},
    "{n} / 90 steps Progress on:train {n}.0it/100it rate:1.535s/it remaining:02:11 elapsed:00:1{n} "
    "postfix:loss={loss}": {},
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_step_is_read_in_any_form(tmp_path: Path, form: str):
    found = read(tmp_path, log(form))
    assert (found["n_records"], found["first_step"], found["last_step"]) == (6, 1, 6)
    assert (found["loss_first"], found["loss_last"]) == (9.5, 7.0)
    assert found["step_seconds_median"] == pytest.approx(1.535, rel=2e-3)
    assert {name: found[name] for name in FORMS[form]} == pytest.approx(FORMS[form])


TABLES = {
    "┃ Step ┃ Loss ┃ Time (s) ┃ Tokens/s ┃\n": "│ {n} │ {loss:.3f} │ {t:.3f} │ 87,000 │",
    "epoch    step      loss      s/step    tok/s\n": "    0  {n}   {loss:.3f}  {t:.3f}     87,000",
    "| step | loss | lr | step time | tokens/s |\n|---|---|---|---|---|\n":
        "| {n} | {loss:.3f} | 1e-4 | {t:.3f} | 87000 |",
}  # fmt: skip


@pytest.mark.parametrize("head", TABLES)
def test_a_table_gives_its_rows_the_names_of_its_columns(tmp_path: Path, head: str):
    found = read(tmp_path, head + log(TABLES[head]))
    assert (found["n_records"], found["loss_last"]) == (6, 7.0)
    assert found["step_seconds_median"] == pytest.approx(1.535)
    assert found["tokens_per_second_median"] == pytest.approx(87000)


W, T, P, D = (
    "world_size", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"
)  # fmt: skip
G, M, S, F = ("global_batch_size", "micro_batch_size", "sequence_length", "precision")
DUMPS: dict[str, dict[str, int | str]] = {
    "Namespace(tp=2, pp=2, dp=4, seq_len=2048, micro_batch_size=2, dtype='bf16')":
        {W: 16, T: 2, P: 2, D: 4, S: 2048, M: 2, F: "bf16"},
    "config: Train(model=Config(seq_len=512), batch=Config(global_batch_size=64), "
    "eval=EvalConfig(global_batch_size=8, seq_len=128))": {S: 512, G: 64},
    "│ seq_len           8192  │\n│ micro_batch_size  2     │\n│ dtype  bfloat16 │":
        {S: 8192, M: 2, F: "bf16"},
    "| sequence length T     | 1024      |\n| num_processes         | 8         |\n"
    "| precision             | BF16      |\ntotal_batch_size=524288":
        {S: 1024, W: 8, F: "bf16", G: 512},
    "torchrun --nproc_per_node 8 --nnodes 4 a.py --tp 2 --pp 4 --seq-length 4096 --bf16":
        {W: 32, T: 2, P: 4, D: 4, S: 4096, F: "bf16"},
    "trainer:\n  gpus_per_node: 8\n  num_nodes: 4\n  tensor_parallel: 4\n  pipeline_parallel: 2":
        {W: 32, T: 4, P: 2, D: 4},
    "training on 32 devices (GPUs/TPUs)": {W: 32},
    "Total number of GPUs determined to be: 8": {W: 8},
    "==> world size: 32 (nodes=4, gpus/node=8)": {W: 32},
    "{'devices': 4, 'num_nodes': 2, 'precision': 'bf16-mixed', 'train': {'micro_batch_size': 4}}":
        {W: 8, F: "bf16", M: 4},
    "Rank 0 has tensor model parallel group: [0, 1]\n"
    "Rank 0 has pipeline model parallel group: [0]\n"
    "Rank 0 has data parallel group : [0, 2, 4, 6]\nworld_size: 8\nglobal_batch_size: 32\n"
    "setting number of microbatches to constant 8": {W: 8, T: 2, P: 1, D: 4, M: 1},
    "Global batch size (w. parallel) = 256 (524,288 tokens)": {G: 256, S: 2048},
    "524288 tokens per train step, maximum context length 8192": {S: 8192, G: 64},
    "args.mixed_precision = fp16": {F: "fp16"},
    "using torch.float16 for parameters ...": {F: "fp16"},
    "run.py --bf16 --fp8-format hybrid": {F: "fp8"},
    "run.py --torch_dtype bfloat16 --max_length 4096 --packing true": {F: "bf16", S: 4096},
    "Config param model_name: llama3.1-8b": {"model": "llama3.1-8b"},
    "train_config(model_variant='llama2_7b', low_cpu=True)": {"model": "llama2-7b"},
    "tune run full_finetune_distributed --config llama2/7B_full": {"model": "llama2-7b"},
}  # fmt: skip


@pytest.mark.parametrize("dump", DUMPS)
def test_the_configuration_is_read_in_any_form(tmp_path: Path, dump: str):
    found = read(tmp_path, f"{dump}\n{log()}")
    assert {name: found.get(name) for name in DUMPS[dump]} == DUMPS[dump]


@pytest.mark.parametrize(
    "line",
    [
        "EngineArgs(tensor_parallel_size=2, max_seq_len=512)",
        "evaluation: {'global_batch_size': 8, 'seq_len': 64}",
        "max_seq_length: 2048",  # a cap, as nothing is packed
        "a batch size of 8 of 9",
        "torch_dtype of the config.json: \"torch_dtype\": \"float16\"",
    ],
)  # fmt: skip
def test_what_is_not_said_of_the_training_stays_empty(tmp_path: Path, line: str):
    found = read(tmp_path, f"{line}\n{log()}")
    assert [found.get(name) for name in (T, G, S, F)] == [None] * 4


def runs(tmp_path: Path, text: str) -> list[dict[str, Any]]:
    path = tmp_path / "a.log"
    path.write_text(text)
    return summaries(path, {})


def test_a_start_from_the_first_step_with_another_pace_is_another_run(tmp_path: Path):
    launch = "using world size: 16, data-parallel size: 16\n"
    same, faster = log(), log(STEP.replace("{t:.3f}", "0.9{n}0"))
    assert len(runs(tmp_path, launch + same + launch + faster)) == 2
    (again,) = runs(tmp_path, launch + same + launch + same)
    assert again["n_records"] == 6


def test_a_step_of_litgpt_takes_all_its_micro_batches(tmp_path: Path):
    text = "".join(
        f"Epoch 1 | iter {n} step {n // 2} | loss train: {5 - n / 10}, val: n/a | iter time: "
        f"{500 + n}.00 ms{'' if n % 2 else ' (step)'}\n"
        for n in range(1, 7)
    )
    found = read(tmp_path, text)
    assert (found["n_records"], found["first_step"], found["last_step"]) == (3, 1, 3)
    assert found["step_seconds_median"] == pytest.approx(0.503 + 0.504)


def test_a_device_that_the_catalog_does_not_know_gets_a_remark(tmp_path: Path):
    path = tmp_path / "a.log"
    path.write_text("GPU 0: NVIDIA H900 (UUID: GPU-1)\n" + log())
    (found,) = summaries(path, {"platform": "h100"})
    assert any("'NVIDIA H900'" in text and "h100" in text for text in found["warnings"])


def test_a_time_that_rises_as_far_as_the_steps_count_is_of_the_whole_run(tmp_path: Path):
    """34 s for each 20 steps: 1.7 s a step, whatever the total says at the end."""
    found = read(tmp_path, "".join(f"step {n}/500 | loss {9 - n / 90:.3f} | {n * 1.7:.0f}s\n"
                                   for n in range(20, 240, 20)))  # fmt: skip
    assert found["step_seconds_median"] == pytest.approx(1.7)


SCRIPT = """import os
class Loader:
    def __init__(self, rank=0, world_size=1):
        self.batch_size = 4
seq_len = 1024
print("Loss is nan, stopping training")
{line}
"""


def test_a_script_in_front_of_the_log_of_its_run_sets_nothing(tmp_path: Path):
    text = "world_size:8 grad_accum_steps:1 train_seq_len:2048\n" + log()
    found = read(tmp_path, SCRIPT.format(line="=" * 100) + text)
    assert (found["world_size"], found["sequence_length"]) == (8, 2048)
    assert not any("world size as" in one for one in found["warnings"])


def test_a_pipeline_stage_that_prints_no_loss_has_not_diverged(tmp_path: Path):
    form = "step: {n:2d}  loss: -1.00000  grad_norm:  1.1  memory: 2.66GiB(8.47%)  tps: 5,816\n"
    found = read(tmp_path, "".join(form.format(n=n) for n in range(1, 8)))
    assert (found["family"], found["status"]) == ("torchtitan", "interrupted")
    assert found["loss_last"] is None


SWIFT = (
    '{{"loss": {loss}, "grad_norm": 1.5, "learning_rate": 1e-05, "epoch": 0.01, '
    '"global_step/max_steps": "{n}/6", "train_speed(s/it)": {mean:.6f}}}\n'
)


def test_the_lines_of_ms_swift_are_steps_and_the_history_behind_them_is_not(tmp_path: Path):
    """Steps of 2 s behind a first one of 5 s: the printed speed is the mean since the start."""
    lines = [SWIFT.format(n=n, loss=4 - n / 4, mean=(3 + 2 * n) / n) for n in range(1, 7)]
    history = '{"global_step": 6, "log_history": [{"loss": 9.0, "epoch": 0.01, "step": 1}]}\n'
    found = read(tmp_path, "".join(lines) + history)
    assert (found["n_records"], found["last_step"]) == (6, 6)
    assert (found["status"], found["loss_last"]) == ("completed", 2.5)
    assert found["step_seconds_median"] == pytest.approx(2.0, rel=1e-5)


@pytest.mark.parametrize("seconds", [2.4, 1.6])
def test_whole_seconds_of_a_bar_do_not_hide_the_time_of_a_short_step(tmp_path: Path, seconds):
    bar = "{{'loss': {loss}, 'learning_rate': 1e-05, 'epoch': {e:.2f}, 'num_tokens': {n}.0}}\n"
    bar += "  {n}%|# | {n}/100 [00:{at:02d}<03:00,  {each:.2f}s/it]\n"
    lines = [bar.format(loss=3 - n / 9, e=n / 100, n=n, at=int(n * seconds), each=seconds)
             for n in range(1, 20)]  # fmt: skip
    found = read(tmp_path, "".join(lines))
    assert found["step_seconds_median"] == pytest.approx(seconds)
    assert found["tokens_per_second"] == pytest.approx(1 / seconds, rel=1e-2)


def test_each_run_of_a_wandb_export_is_a_run(tmp_path: Path):
    path = tmp_path / "a.csv"
    rows = (f'"{n}","{9 - n}","2.0","{8 - n}","2.5"\n' for n in range(1, 6))
    head = '"Step","a - train/loss","a - step_time","b - train/loss","b - step_time"\n'
    path.write_text(head + "".join(rows))
    found = summaries(path, {})
    assert [one["n_records"] for one in found] == [5, 5]
    assert [one["step_seconds_median"] for one in found] == [2.0, 2.5]
    assert [one["loss_last"] for one in found] == [4, 3]


UNFINISHED = {
    "maxtext": "completed step: {n}, seconds: 3.0, TFLOP/s/device: 400.1, loss: {loss:.3f}",
    "olmo-core": "INFO [step={n}/90,epoch=1]\n  throughput/device/TPS=81\n  train/CE loss={loss}",
}


@pytest.mark.parametrize("family", UNFINISHED)
def test_a_file_without_a_last_line_end_has_not_diverged(tmp_path: Path, family: str):
    found = read(tmp_path, log(UNFINISHED[family] + "\n")[:-1])
    assert (found["family"], found["status"], found["n_records"]) == (family, "interrupted", 6)


def test_the_mean_speed_of_a_resumed_run_counts_from_the_resume(tmp_path: Path):
    """From step 500 on: 25 s for the first 5 steps, then 18 s for each 5."""
    form = SWIFT.replace("{n}/6", "{n}/1000").replace("}}\n", ', "elapsed_time": "{at}"}}\n')
    seconds = [25 + 18 * n for n in range(8)]
    texts = [f"{s // 60}m {s % 60}s" if s > 59 else f"{s}s" for s in seconds]
    lines = [form.format(n=505 + 5 * n, loss=2 - n / 9, mean=s / (5 + 5 * n), at=at)
             for n, (s, at) in enumerate(zip(seconds, texts, strict=True))]  # fmt: skip
    found = read(tmp_path, "".join(lines))
    assert (found["first_step"], found["last_step"], found["n_records"]) == (505, 540, 8)
    assert found["step_seconds_median"] == pytest.approx(3.6, rel=1e-3)


MEGATRON = (
    " iteration {n}/ {total} | consumed samples: {n} | elapsed time per iteration (ms): 2000.0 | "
    "global batch size: 1 | lm loss: {loss:.6E} | number of skipped iterations: 0 |\n"
)


@pytest.mark.parametrize(
    ("numbers", "total", "status"),
    [((1, 2), 50, "interrupted"), ((1, 2), 2, "completed"), ((10, 20, 30), 35, "completed")],
)
def test_a_loop_that_is_done_has_completed_if_no_record_was_due(tmp_path, numbers, total, status):
    """Every tenth step is printed: 35 steps end behind step 30."""
    lines = [MEGATRON.format(n=n, total=total, loss=9 - n / 90) for n in numbers]
    found = read(tmp_path, "".join(lines) + "[after training is done] datetime: 2031-03-04\n")
    assert found["status"] == status
    assert status == "completed" or found["reason"].startswith("Training ended at step 2 of 50.")


def test_rows_that_name_their_run_are_of_that_run(tmp_path: Path):
    path = tmp_path / "a.csv"
    rows = (
        f"{run},{n},{9 - n},{each}\n" for n in range(1, 6) for run, each in (("a", 2), ("b", 3))
    )
    path.write_text("run,step,loss,step_time\n" + "".join(rows))
    found = summaries(path, {})
    assert [(one["n_records"], one["step_seconds_median"]) for one in found] == [(5, 2.0), (5, 3.0)]


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("step time 1.5 min", 90.0), ("step_time: 250 us", 250e-6), ("0.50 it/s", 2.0)],
)
def test_the_unit_behind_a_time_counts(tmp_path: Path, said: str, seconds: float):
    found = read(tmp_path, log("step {n}/90 | loss {loss:.3f} | " + said))
    assert found["step_seconds_median"] == pytest.approx(seconds)


def test_the_summary_of_each_run_in_a_page_is_held_against_its_own_steps(tmp_path: Path):
    text = ""
    for each in (5, 4):
        bars = (f"{{'loss': {3 - n / 9:.3f}, 'learning_rate': 1e-05, 'epoch': {n / 10:.1f}}}\n"
                f" {n * 10}/100 [{n * 10 * each // 60:02d}:{n * 10 * each % 60:02d}<1:00, "
                f"{each}.00s/it]\n" for n in range(1, 11))  # fmt: skip
        text += "".join(bars) + f"{{'train_runtime': {each}00.0, "
        text += f"'train_steps_per_second': {1 / each}, 'train_loss': 2.4, 'epoch': 1.0}}\n"
    path = tmp_path / "a.log"
    path.write_text(text)
    found = summaries(path, {})
    assert [one["whole_run_rates"]["steps_per_second"] for one in found] == [0.2, 0.25]
    assert not any("summary says" in text for one in found for text in one["warnings"])


def test_a_printed_rate_of_a_gpu_and_the_batch_give_the_number_of_gpus(tmp_path: Path):
    """8 samples of 8,192 tokens in 1.4 s at 5,857 tokens/s a GPU: 65,536 / 8,200 = 8 GPUs."""
    text = "Trainer is initialized with local batch size 1, global batch size 8, gradient "
    text += "accumulation steps 1, sequence length 8192, total steps 200 (warmup 20)\n"
    form = ("[titan] 2031-03-04 10:00:{at:06.3f} - root - INFO - step: {n}  loss: {loss}  "
            "grad_norm:  1.2  memory: 10.00GiB(12.50%)  tps: 5,857  tflops: 1.0\n")  # fmt: skip
    lines = (form.format(n=n, loss=9 - n / 9, at=1.4 * n).replace(".", ",", 1) for n in range(1, 9))
    found = read(tmp_path, text + "".join(lines))
    assert found["world_size"] == 8
    assert found["tokens_per_second_per_gpu"] == pytest.approx(5851, rel=1e-3)


def test_a_batch_that_doubles_with_the_time_of_a_step_changes_no_rate(tmp_path: Path):
    """64 samples in 8 s, then 128 in 16 s: 8 samples a second, however few the steps."""
    form = (" iteration {n}/ 24 | consumed samples: {n} | elapsed time per iteration (ms): {ms}.0 |"
            " global batch size: {batch} | lm loss: {loss} | loss scale: 1.0 |\n")  # fmt: skip
    steps = [
        (64, 24000),
        *[(64, 8000 + n) for n in range(11)],
        *[(128, 16000 + n) for n in range(12)],
    ]
    lines = [form.format(n=n + 1, ms=ms, batch=batch, loss=9 - n / 90)
             for n, (batch, ms) in enumerate(steps)]  # fmt: skip
    text = "using world size: 8, data-parallel size: 8\n  seq_length ........ 1000\n"
    found = read(tmp_path, text + "".join(lines))
    assert found["tokens_per_second"] == pytest.approx(8000, rel=2e-3)


def test_ranks_that_share_a_sample_do_not_count_it_eight_times(tmp_path: Path):
    """16 samples of 1,000 tokens in 5 s, which each of 8 context-parallel ranks counts."""
    text = '{"context_parallel_size": 8, "micro_batch_size": 16, "gradient_accumulation_steps": 1, '
    text += '"sequence_len": 1000, "world_size": 8}\n'
    bar = "{{'loss': {loss}, 'learning_rate': 1e-05, 'epoch': {e}}}\n"
    bar += " {n}/16 [00:{at}<01:00, 5.00s/it]\n"
    text += "".join(
        bar.format(loss=9 - n / 9, e=n / 10, n=n, at=f"{3 * n:02d}") for n in range(1, 17)
    )
    text += "{'train_runtime': 80.0, 'train_samples_per_second': 25.6, "
    found = read(tmp_path, text + "'train_steps_per_second': 0.2, 'epoch': 1.6}\n")
    assert (found["global_batch_size"], found["data_parallel_size"]) == (16, 1)
    assert found["tokens_per_second"] == pytest.approx(3200)


def test_a_step_that_generates_its_samples_is_said_to(tmp_path: Path):
    form = "step:{n} - actor/pg_loss:0.1 - timing_s/gen:20.0 - timing_s/step:{t}"
    found = read(tmp_path, log(form))
    assert any("generation" in one for one in found["warnings"])
