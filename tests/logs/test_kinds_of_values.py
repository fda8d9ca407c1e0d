"""Times and sizes that stand for something else than they seem to; formats without either."""

from __future__ import annotations

import json

import pytest
from log_texts import jobs, read

from scalebook.logs.ingest.ingestion import ingest
from scalebook.logs.setting_lines import partial_training


def speedrun(n: int, ms: int) -> str:
    return f"step:{n}/40 train_loss:{9 - n / 10:.4f} train_time:{n * ms}ms step_avg:{ms:.2f}ms\n"


SOURCE = """import copy
from pathlib import Path

class Hyperparameters:
    train_seq_len = 4096
    world_size = dist.get_world_size() if distributed else 1
    batch_size=64
"""


def test_source_code_between_two_runs_sets_nothing(tmp_path):
    """Each run has 8 GPUs, and 16 samples of 1,024 tokens take 0.25 s: 8,192 tokens/s per GPU."""
    said = "world_size:8 grad_accum_steps:1\ntrain_batch_tokens:16384 train_seq_len:1024\n"
    run = said + "".join(speedrun(n, 250) for n in range(10, 50, 10))
    both = jobs(tmp_path, f"{run}{SOURCE}{'=' * 100}\n" * 2 + run)
    assert [(one["world_size"], one["sequence_length"]) for one in both] == [(8, 1024)] * 3
    each = [one["tokens_per_second_per_gpu_median"] for one in both]
    assert each == pytest.approx([16 * 1024 / 0.25 / 8] * 3)


def test_a_default_in_a_line_of_code_is_no_setting(tmp_path):
    text = "world_size = dist.get_world_size() if distributed else 1\n"
    text += speedrun(1, 9) + speedrun(2, 9)
    assert read(tmp_path, text)["world_size"] is None


def test_code_in_a_fence_hides_no_log_behind_it(tmp_path):
    text = "```\nimport a\nimport b\n```\n" + speedrun(1, 9) + speedrun(2, 9) + "=" * 60 + "\n"
    assert read(tmp_path, text)["n_records"] == 2


def test_a_mean_under_a_short_name_does_not_hide_the_time_since_the_start(tmp_path):
    text = "".join(
        f"step:{n}/4000 loss:3.{n} t:{n * 92}ms avg:92.0ms\n" for n in (1000, 2000, 3000)
    )
    assert read(tmp_path, text)["step_seconds_median"] == pytest.approx(0.092)


def test_the_log_of_llm_c_has_steps_and_losses(tmp_path):
    lines = "".join(f"s:{n} trl:{9 - n / 4:.4f} lr:0.000100 norm:1.20\n" for n in range(5))
    found = read(tmp_path, f"s:0 tel:9.1000\n{lines}s:5 tel:7.9000\n", "main.log")
    assert (found["family"], found["n_records"], found["last_step"]) == ("nanogpt", 5, 4)
    assert (found["loss_first"], found["loss_last"]) == (9.0, 8.0)


def test_a_record_without_a_time_does_not_hide_that_the_others_count_from_the_start(tmp_path):
    lines = "".join(
        f"step {n} | loss {9 - n / 100:.4f} | {n * 0.49:.1f}s\n" for n in range(10, 90, 10)
    )
    assert read(tmp_path, lines + "step 88 | loss 8.1\n")["step_seconds_median"] == pytest.approx(
        0.49, rel=0.02
    )


def of_nemo(n: int, form: str) -> str:
    """Return a batch of which four make a step: 2.5 s each, and 2.9 s with the optimizer's."""
    seconds, step, loss = 2.9 if n % 4 == 3 else 2.5, (n + 1) // 4, 9 - n / 10
    if form == "lines":
        return (
            f"Training epoch 0, iteration {n}/99 | lr: 1e-05 | global_batch_size: 16 | "
            f"global_step: {step} | reduced_train_loss: {loss:.3f} | "
            f"train_step_timing in s: {seconds}\n"
        )
    return (
        f"Epoch 0: {n}%|# | {n + 1}/100 [00:{n:02}<10:00, 2.6s/it, reduced_train_loss={loss:.3f}, "
        f"global_step={step}.000, train_step_timing in s={seconds}]\r"
    )


@pytest.mark.parametrize("form", ["lines", "bars"])
def test_a_step_of_nemo_takes_the_time_of_the_batches_that_it_accumulates(tmp_path, form):
    found = read(tmp_path, "".join(of_nemo(n, form) for n in range(24)))
    assert (found["n_records"], found["last_step"]) == (7, 6)
    assert found["step_seconds_median"] == pytest.approx(3 * 2.5 + 2.9)
    assert found["reason"] == "The log ends at step 6 of 25 and does not say how the run ended."


def test_a_bar_of_nemo_shows_the_batch_before_it_first(tmp_path):
    """Four batches of 2.5 s, or more by hundredths, are a step; each bar is drawn twice."""
    shown = [
        f"reduced_train_loss={9 - n / 10:.3f}, global_step={(n + 1) // 4}.000, "
        f"train_step_timing in s={2.5 + n / 100:.2f}"
        for n in range(24)
    ]
    text = "".join(
        f"Epoch 0: {n}%|# | {n + 1}/100 [00:{n:02}<10:00, 2.6s/it, {of}]\r"
        for n in range(1, 24)
        for of in shown[n - 1 : n + 1]
    )
    found = read(tmp_path, text)
    assert (found["n_records"], found["last_step"]) == (7, 6)
    assert found["step_seconds_median"] == pytest.approx(4 * (2.5 + (11 + 12 + 13 + 14) / 400))


def test_a_bar_of_nemo_that_shows_the_step_before_it_first_accumulates_nothing(tmp_path):
    text = "".join(
        f"Epoch 0: {n}%|# | {n + 1}/100 [00:{n:02}<10:00, 2.6s/it, reduced_train_loss={9 - of}.1, "
        f"global_step={of}.000, train_step_timing in s=2.{of}]\r"
        for n in (1, 2)
        for of in (n - 1, n)
    )
    found = read(tmp_path, text)
    assert (found["n_records"], found["step_seconds_median"]) == (3, 2.1)


def test_the_bar_of_an_evaluation_is_not_of_a_step(tmp_path):
    """Levanter's bars: training at 2 s per step, with an evaluation of 20 batches between them."""
    form = "INFO tqdm_logging Progress on:{of} {n}.0it/{total}it rate:{rate} remaining:01:00 "
    form += "elapsed:{passed} postfix:loss={loss}\n"
    train = [
        form.format(of="train", n=n, total=100, rate="2.0s/it", passed=f"00:{2 * n:02}", loss=9 - n)
        for n in (1, 2, 3, 4)
    ]
    evaluated = [
        form.format(of="eval", n=n, total=20, rate="9.0it/s", passed="00:01", loss=5.5)
        for n in (1, 9, 20)
    ]
    found = read(tmp_path, "".join([*train[:2], *evaluated, *train[2:]]))
    assert (found["n_records"], found["last_step"], found["loss_last"]) == (4, 4, 5)
    assert found["step_seconds_median"] == 2


@pytest.mark.parametrize("known", [True, False])
def test_the_summary_of_hugging_face_gives_steps_without_times_their_mean(tmp_path, known):
    """600 s x 0.02 steps/s, or 600 s x 0.64 / 32, are 12 steps, in 600 s less 120 s."""
    total = "  Total train batch size (w. parallel, distributed & accumulation) = 32\n" * known
    records = "".join(
        f"{{'loss': {4 - n / 10}, 'learning_rate': 1e-05, 'epoch': {n / 10}}}\n"
        for n in range(1, 4)
    )
    text = f"{total}{records}{{'eval_loss': 3.0, 'eval_runtime': 120.0, 'epoch': 0.3}}\n"
    text += "{'train_runtime': 600.0, 'train_samples_per_second': 0.64, "
    text += "'train_steps_per_second': 0.02, 'train_loss': 3.0, 'epoch': 0.3}\n"
    found = read(tmp_path, text)
    assert found["step_seconds_median"] == pytest.approx(480 / 12)


RESULTS = {
    "epoch": 3.0, "train_loss": 2.4, "train_runtime": 500.0, "train_samples_per_second": 0.8,
    "train_steps_per_second": 0.1,
}  # fmt: skip


def test_the_results_of_hugging_face_are_the_rates_of_a_run(tmp_path):
    found = read(tmp_path, json.dumps(RESULTS, indent=4), "train_results.json")
    assert found["whole_run_rates"] == {"samples_per_second": 0.8, "steps_per_second": 0.1}
    assert (found["status"], found["global_batch_size"]) == ("completed", 8)


def test_results_next_to_the_history_of_their_run_are_not_another_run(tmp_path):
    history = [{"loss": 4 - n, "step": n, "epoch": n} for n in (1, 2)] + [{**RESULTS, "step": 2}]
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "trainer_state.json").write_text(
        json.dumps({"log_history": history, "global_step": 2, "max_steps": 2})
    )
    for name in ("all_results.json", "train_results.json"):
        (folder / name).write_text(json.dumps(RESULTS, indent=4))
    found, _ = ingest([folder], tmp_path / "runs", {})
    assert [one.files[0].name for one in found] == ["trainer_state.json"]


def test_the_batch_of_one_of_several_ranks_is_not_that_of_a_step(tmp_path):
    """32 ranks with 4 samples each: 128 samples in 8 s are 16 per second, not 4 in 0.25 s."""
    text = "srun train.py --train_batch_size=4 --max_context_width=2048\nseq_length: 2048\n"
    text += "".join(
        f"2025-04-11 16:58:{8 * n:02} I Batch {n} Loss: {9 - n}, Speed: 16 samples/sec, lr: 1e-5\n"
        for n in range(6)
    )
    found = read(tmp_path, text)
    assert (found["global_batch_size"], found["micro_batch_size"]) == (None, 4)
    assert found["step_seconds_median"] is None
    assert found["tokens_per_second_median"] == 16 * 2048


def test_torchtitan_says_that_it_trains_adapters(tmp_path):
    form = "step: {n:2d}  loss: {loss}  grad_norm:  1.1  memory: 2.66GiB(8.47%)  tps: 5,816\n"
    text = "LoRA training active with rank=16, alpha=32.0 (all Linear layers)\n"
    text += "".join(form.format(n=n, loss=9.0 - n) for n in (1, 2, 3))
    reason = read(tmp_path, text)["tflops"]["reason"]
    assert "Not all weights were trained" in reason


def test_steps_that_wait_in_turn_for_the_device_belong_to_the_training(tmp_path):
    """Of 10 steps of 16 x 1,024 tokens nine return at once: they take 9 x 0.01 + 4.91 s."""
    text = "seq_length: 1024\nglobal_batch_size: 16\n" + "".join(
        f"step: {n} | loss: {9 - n / 100:.2f} | step time: {4.91 if n % 10 == 9 else 0.01}s\n"
        for n in range(1, 51)
    )
    rate = read(tmp_path, text)["tokens_per_second"]
    assert rate == pytest.approx(16 * 1024 / 0.5, rel=0.05)


def of_factory(n: int, seconds: int, loss: float, total: int = 50) -> str:
    passed = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return json.dumps({
        "current_steps": n, "total_steps": total, "loss": loss, "lr": 1e-5, "epoch": n / total,
        "elapsed_time": passed, "remaining_time": "0:10:00",
    }) + "\n"  # fmt: skip


def test_a_second_node_that_writes_each_step_half_a_minute_later_is_no_restart(tmp_path):
    """Both take 120 s per 10 steps; the losses of their samples differ in the last digit."""
    lines = [
        of_factory(n, 12 * n, 4 - n / 50) + of_factory(n, 12 * n + (n > 10) * 31, 4 - n / 50 - 1e-4)
        for n in range(10, 60, 10)
    ]
    found = read(tmp_path, "".join(lines), "trainer_log.jsonl")
    assert (found["n_records"], found["status"]) == (5, "completed")
    assert "restarts" not in found["not_used"]
    assert found["step_seconds_median"] == 12


def test_a_rounded_rate_of_a_summary_contradicts_no_step(tmp_path):
    """0.003 steps per second may be 0.0026: steps of 390 s."""
    history = [{"loss": 4 - n, "step": n, "epoch": n} for n in (1, 2, 3)]
    end = {"train_runtime": 1170.0, "train_steps_per_second": 0.003, "step": 3}
    state = {"log_history": [*history, end], "global_step": 3, "max_steps": 3}
    found = read(tmp_path, json.dumps(state), "trainer_state.json")
    assert found["step_seconds_median"] == 390
    assert not any("earlier start" in one for one in found["warnings"])


def test_a_validation_of_mlx_is_not_a_step(tmp_path):
    text = "Iter 1: Val loss 2.813, Val took 10.1s\n" + "".join(
        f"Iter {n}: Train loss {3 - n / 100}, It/sec 2.0, Tokens/sec 1600.0, Peak mem 1.4 GB\n"
        for n in (10, 20, 30)
    )
    found = read(tmp_path, text)
    assert (found["n_records"], found["first_step"], found["loss_first"]) == (3, 10, 2.9)


@pytest.mark.parametrize("form", ["pairs", "json"])
def test_the_step_time_of_fairseq_is_its_words_over_its_rate(tmp_path, form):
    """2,792 tokens per update at 2,327 per second: 1.2 s, which 0.8 updates per second hide."""
    cells = {
        "loss": "9.1",
        "wps": "2327",
        "ups": "0.8",
        "wpb": "2792",
        "num_updates": "",
        "lr": "1e-4",
    }
    text = ""
    for n in (100, 200, 300):
        cells |= {"num_updates": str(n), "loss": f"{9 - n / 1000}"}
        of = ", ".join(f"{name}={value}" for name, value in cells.items())
        line = json.dumps({"epoch": 1} | cells) if form == "json" else f"epoch 001: {n} / 999 {of}"
        text += f"2022-05-08 19:09:24 | INFO | train_inner | {line}\n"
    found = read(tmp_path, text)
    assert found["step_seconds_median"] == pytest.approx(2792 / 2327)
    assert found["tokens_per_second_median"] == 2327


def test_a_table_of_processes_that_are_starting_counts_no_gpus(tmp_path):
    """Of four GPUs two have a process, which has no memory yet: the others may follow."""
    card = "| N/A   32C    P0    98W / 700W |   {mib}MiB / 81559MiB |      0%      Default |\n"
    row = "|    {n}   N/A  N/A    1326{n}      C   /usr/bin/python3        {mib}MiB |\n"

    def table(cards: int, mib: int) -> str:
        rows = "".join(row.format(n=n, mib=mib) for n in (1, 2))
        return f"{card.format(mib=22) * cards}| Processes:      |\n{rows}"

    steps = speedrun(1, 9) + speedrun(2, 9)
    assert read(tmp_path, table(4, 0) + steps)["world_size"] is None
    assert read(tmp_path, table(4, 500) + steps)["world_size"] == 2
    assert read(tmp_path, table(2, 0) + steps)["world_size"] == 2


def test_a_time_of_all_the_steps_of_a_record_is_divided_among_them(tmp_path):
    """Records of 50 steps come every 20 s, and print 20 s: 0.4 s per step."""
    form = "2025-04-11 16:{:02}:{:02} step: {} loss: {} time: 20.1\n"
    text = "".join(form.format(20 * n // 60, 20 * n % 60, 50 * n, 9 - n) for n in range(1, 6))
    found = read(tmp_path, text)
    assert found["step_seconds_median"] == pytest.approx(20.1 / 50)
    assert any("50 steps of a record" in one for one in found["warnings"])


@pytest.mark.parametrize(("unit", "seconds"), [("", 1.25), (" s", 1250.0), (".5", 1250.5)])
def test_a_whole_number_of_hundreds_without_a_unit_is_of_milliseconds(tmp_path, unit, seconds):
    text = "".join(f"step: {n} | loss: {9 - n} | step time: 1250{unit}\n" for n in (1, 2, 3))
    assert read(tmp_path, text)["step_seconds_median"] == seconds


def test_a_size_that_follows_is_not_asked_for_where_the_file_gives_several(tmp_path):
    """The sizes of the groups give 2 x 2 x 4 GPUs; launchers said 2 and 16."""
    text = "  world_size .............. 2\n  world_size .............. 16\n"
    text += "using tensor parallel size: 2, pipeline model parallel size: 2, "
    text += "data-parallel size: 4\n"
    text += "".join(
        f" iteration {n}/ 9 | elapsed time per iteration (ms): 2000.0 | lm loss: {9 - n} |\n"
        for n in (1, 2)
    )
    found = read(tmp_path, text)
    assert found["world_size"] == 16
    assert not any("none is used" in one for one in found["warnings"])


@pytest.mark.parametrize(("records", "seconds"), [(5, None), (60, 0.64)])
def test_the_lines_of_llama_factory_count_without_a_loss(tmp_path, records, seconds):
    """Ten steps take 6.4 s: whole seconds are too coarse for these, but not for 378 s."""
    text = "".join(
        f'{{"current_steps": {10 * n}, "total_steps": 999, "percentage": 9.9, "elapsed_time": '
        f'"0:{6.4 * n // 60:02.0f}:{int(6.4 * n % 60):02}", "remaining_time": "0:00:30"}}\n'
        for n in range(1, records + 1)
    )
    found = read(tmp_path, text, "trainer_log.jsonl")
    assert (found["n_records"], found["last_step"]) == (records, 10 * records)
    assert found["step_seconds_median"] == (seconds and pytest.approx(seconds, rel=0.005))


@pytest.mark.parametrize(
    ("form", "seconds"),
    [
        ("iter_dt 250.00ms; iter {n}: train loss {loss}", 0.25),  # minGPT
        ("INFO:tensorflow:loss = {loss}, step = {n} (25.000 sec)", 0.25),  # an Estimator
        ("logging_writer.py:48] [{n}] loss={loss}, timing/steps_per_second=4.0", 0.25),
        ("I0101 10:00:00 1 train.py:200] train[{n}]: loss={loss}, steps/s=4.0", 0.25),
    ],
)
def test_trainers_name_the_step_and_its_time_in_their_own_way(tmp_path, form, seconds):
    lines = [form.format(n=n, loss=9 - n / 100) for n in range(100, 600, 100)]
    found = read(tmp_path, "\n".join(lines) + "\n")
    assert (found["n_records"], found["last_step"], found["loss_last"]) == (5, 500, 4)
    assert found["step_seconds_median"] == pytest.approx(seconds)


def test_the_table_that_a_notebook_shows_of_a_trainer_has_steps_and_a_mean_time(tmp_path):
    """60 steps take 1 min 12 s."""
    text = "[60/60 01:12, Epoch 1/1]\nStep\tTraining Loss\n"
    text += "".join(f"{n}\t{3 - n / 100:.6f}\n" for n in range(10, 70, 10))
    found = read(tmp_path, text, "output.txt")
    assert (found["n_records"], found["last_step"], found["loss_last"]) == (6, 60, 2.4)
    assert found["step_seconds_median"] == 1.2


def test_a_step_above_a_thousand_may_have_commas(tmp_path):
    text = "".join(
        f"step {n:,}/2,000 | loss: {9 - n / 1000} | dt: 250ms\n" for n in (900, 1000, 1100)
    )
    found = read(tmp_path, text)
    assert (found["n_records"], found["last_step"], found["step_seconds_median"]) == (3, 1100, 0.25)
    assert (
        found["reason"] == "The log ends at step 1100 of 2000 and does not say how the run ended."
    )


def test_few_times_in_proportion_to_the_steps_are_since_the_start(tmp_path):
    """100 steps take 125 s."""
    text = "".join(f"Step {n} Loss: {9 - n / 100} Time: {1.25 * n:.1f}s\n" for n in (100, 200, 300))
    assert read(tmp_path, text)["step_seconds_median"] == pytest.approx(1.25)


def test_ten_steps_in_two_seconds_take_milliseconds(tmp_path):
    text = "".join(
        f"[2024-03-09 10:38:2{n}] step={85 + 5 * n} loss={3 - n / 10} dt=7{n}.5\n"
        for n in (0, 1, 2)
    )
    assert read(tmp_path, text)["step_seconds_median"] == pytest.approx(0.0715)


@pytest.mark.parametrize("first", [0, 1])
def test_the_bars_of_epochs_are_of_one_run(tmp_path, first):
    """Three epochs of 200 steps, with the bar of a validation behind each."""
    text = ""
    for epoch in range(3):
        for n in (100, 200):
            text += (
                f"Epoch {first + epoch}: {n // 2}%|### | {n}/200 [00:{n // 10}<00:00, 10.00it/s, "
            )
            text += f"loss={9 - epoch - n / 400}]\r"
        text += "\nValidation: 100%|### | 50/50 [00:02<00:00, 25.00it/s, loss=9.5]\n"
    found = read(tmp_path, text)
    assert (found["n_records"], found["last_step"], found["status"]) == (6, 600, "completed")
    assert (found["loss_first"], found["loss_last"]) == (8.75, 6.5)
    assert found["step_seconds_median"] == pytest.approx(0.1)


def test_an_iteration_of_litgpt_that_counts_from_zero_is_a_step_that_counts_from_one(tmp_path):
    text = "".join(
        f"iter {n} step {n + 1}: loss {9 - n / 10}, iter time: 2430.00ms (optimizer.step)\n"
        for n in range(0, 40, 10)
    )
    assert read(tmp_path, text)["step_seconds_median"] == pytest.approx(2.43)


@pytest.mark.parametrize(
    ("last", "status"),
    [
        ("command terminated with exit code 137", "failed"),
        ("Process finished with exit code 139", "failed"),
        ("Process finished with exit code 0", "completed"),
        ("Done training.", "completed"),
        ("Early stopping triggered after 8 steps", "completed"),
        ("Time limit reached. Saving checkpoint and exiting.", "interrupted"),
        ("pod default/train-0 terminated (Evicted)", "interrupted"),
        ("Job preempted: saving and exiting", "interrupted"),
    ],
)
def test_the_last_line_says_how_a_run_ended(tmp_path, last, status):
    steps = "".join(f"step: {n} | loss: {9 - n} | step time: 1.5s\n" for n in (1, 2, 3))
    found = read(tmp_path, f"{steps}{last}\n")
    assert found["status"] == status
    assert status != "failed" or "ended by a signal" in found["reason"]
    assert status != "interrupted" or last in found["reason"]


@pytest.mark.parametrize(
    ("line", "trained"),
    [
        (">> Fine-tuning method: LoRA", "lora"),
        (">> Fine-tuning method: Freeze", "freeze"),
        (">> Fine-tuning method: Full", None),
        ("Trainable parameters = 41,943,040/8,000,000,000 (0.52% trained)", "part"),
        ("Trainable parameters = 8,000,000,000/8,000,000,000 (100.00% trained)", "all"),
        ("SwiftModel: 3107.6M Params (18.35M Trainable [0.5905%]), 0.0001M Buffers.", "part"),
        ("SwiftModel: 3107.6M Params (3107.6M Trainable [100.0000%]), 0.0001M Buffers.", None),
        ("Frozen parameters: 7.61e+09 || Trainable parameters:2.02e+07 || Trainable:0.26%", "part"),
        ("Number of non-trainable parameters: 2,779,683,840", "part"),
        ("Number of non-trainable parameters: 0", None),
        ("Trainable: 13,631,488 / 8,043,892,736 (0.17%)", "part"),
        ("python train.py --use_peft --lora_r=16", "lora"),
        ("python train.py --use_peft False --lora_rank 0", None),
        ("Applied LoRA to 224 modules", "lora"),
        ("LoRA: enabled", "lora"),
        ("lora_rank: 32", None),
    ],
)
def test_trainers_say_that_a_part_of_the_weights_is_trained(line, trained):
    assert partial_training(line) == trained


@pytest.mark.parametrize(
    ("form", "first", "last"),
    [
        ("Epoch {epoch} | Step {n}/500 | Loss: {loss} | Time: 0.5s", 0, 1400),
        ("epoch: {epoch}, step: {n}, loss: {loss}, time: 0.5s", 0, 1202),
        ("epoch: {epoch}, step: {n}, loss: {loss}, time: 0.5s", 1, 1203),
    ],
)
def test_steps_that_count_afresh_in_each_epoch_are_of_one_run(tmp_path, form, first, last):
    """Steps 0, 100, .. 400 of 500, or 1, 101, .. 401, in each of three epochs."""
    text = "".join(
        form.format(epoch=epoch, n=first + n, loss=9 - epoch - n / 1000) + "\n"
        for epoch in range(3)
        for n in range(0, 500, 100)
    )
    found = read(tmp_path, text)
    assert (found["n_records"], found["last_step"], found["loss_last"]) == (15, last, 6.6)


def test_steps_that_go_on_over_the_epochs_stay_as_they_are(tmp_path):
    text = "".join(
        f"Epoch {n // 200} | Step {n}/600 | Loss: {9 - n / 100}\n" for n in range(0, 600, 50)
    )
    found = read(tmp_path, text)
    assert (found["n_records"], found["last_step"]) == (12, 550)


def test_the_benchmark_of_thunder_names_its_model_and_a_logger_tflops_per_second(tmp_path):
    steps = "".join(
        f"Step: {n} | Time: 15.2s | TFLOPs/s/GPU: 907.5 | Tokens/s/GPU: 2144 | Loss: {9 - n}\n"
        for n in (1, 2, 3)
    )
    found = read(tmp_path, f"{steps}Model name: Llama-2-7b-hf\n")
    assert (found["model"], found["tflops_per_second_per_gpu_logged_median"]) == (
        "llama2-7b",
        907.5,
    )


def test_two_runs_that_print_into_one_log_are_told_apart_by_their_lengths(tmp_path):
    """One is at step 20 when the other begins; the other prints each of its lines twice."""
    form = "step: {n}/{of} | loss: {loss} | step time: {seconds}s\n"
    one = [form.format(n=n, of=50, loss=9 - n / 10, seconds=4.0) for n in range(1, 31)]
    other = [form.format(n=n, of=80, loss=8 - n / 10, seconds=1.5) * 2 for n in range(1, 41)]
    mixed = [
        line for k, first in enumerate(one[20:]) for line in (first, *other[4 * k : 4 * k + 4])
    ]
    both = jobs(tmp_path, "".join([*one[:20], *mixed]))
    assert [(found["n_records"], found["last_step"]) for found in both] == [(30, 30), (40, 40)]
    assert [found["step_seconds_median"] for found in both] == [4.0, 1.5]


def test_an_evaluation_is_not_in_the_mean_of_a_coarse_clock(tmp_path):
    """Steps of 0.5 s by whole seconds, and a pause of 60 s behind the two hundredth."""
    text = ""
    for n in range(0, 500, 10):
        passed = n // 2 + (60 if n > 200 else 0)
        text += f"2025-04-11 16:{passed // 60:02}:{passed % 60:02} step: {n} loss: {9 - n / 100}\n"
    assert read(tmp_path, text)["step_seconds_median"] == pytest.approx(0.5)
