"""Files of rows: names that trainers give columns, records in parts, and JSON documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scalebook.errors import IngestError
from scalebook.logs.ingest.ingestion import summaries


def ingested(folder: Path, content: Any, name: str = "a.json") -> list[dict[str, Any]]:
    """Return the summaries of a file of this content."""
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return summaries(path, {})


def told(found: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(found[name] for name in names)


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


SPAN = ("n_records", "first_step", "last_step", "loss_first", "loss_last")


@pytest.mark.parametrize(
    "head",
    [
        "event,step,Train Loss,tokens_per_sec_window",
        "epoch,step,train_loss_step,performance/tokens_per_second",
        "epoch,iteration,training/loss,tokens / sec",
    ],
)
def test_names_of_columns_are_known_in_any_spelling(tmp_path, head):
    text = head + "\n" + "".join(f"0,{n},{9 - n / 10},4096.5\n" for n in range(10, 50, 10))
    [found] = ingested(tmp_path, text, "a.csv")
    assert told(found, *SPAN) == (4, 10, 40, 8.0, 5.0)
    assert found["tokens_per_second_median"] == 4096.5


def test_a_loss_of_an_evaluation_is_no_loss_of_training(tmp_path):
    kinds = ("train", "train", "eval", "train", "validation")
    text = "event,step,loss\n" + "".join(f"{k},{n},{9 - n}\n" for n, k in enumerate(kinds, 1))
    [found] = ingested(tmp_path, text, "a.csv")
    assert told(found, *SPAN) == (3, 1, 4, 8.0, 5.0)


def test_records_of_one_step_in_several_rows_are_one_and_no_restart(tmp_path):
    rows: list[dict[str, Any]] = []
    for n in range(0, 200, 50):
        rows += [
            {"step": n, "timestamp": 1e9 + 2 * n, "lr/group": 0.5},
            {"step": n, "timestamp": 1e9 + 2 * n + 0.5, "train/loss": 9 - n / 50},
            {"step": n, "timestamp": 1e9 + 2 * n + 0.75, "performance/tokens_per_second": 512.0},
        ]
    rows += [{"step": 200, "timestamp": 1e9 + 400, "summary/final_train_loss": 1.0}]
    for content, name in ((lines(rows), "a.jsonl"), (rows, "a.json")):
        [found] = ingested(tmp_path, content, name)
        assert told(found, *SPAN) == (4, 0, 150, 9.0, 6.0)
        assert told(found, "step_seconds_median", "tokens_per_second_median") == (2.0, 512.0)
        assert not any("restart" in one for one in found["warnings"])


def test_two_losses_of_one_step_are_not_put_together(tmp_path):
    rows = [{"step": n, "loss": loss} for n, loss in ((1, 5.0), (2, 4.0), (2, 3.0), (3, 2.0))]
    rows[2]["lr"] = 0.5
    [found] = ingested(tmp_path, lines(rows))
    assert found["not_used"]["other_rank_records"] == 1


@pytest.mark.parametrize(("printed", "mfu"), [(41.5, 0.415), (0.415, 0.415), (1.7, 0.017)])
def test_a_column_of_mfu_above_what_a_fraction_can_be_is_in_percent(tmp_path, printed, mfu):
    rows = [{"step": n, "loss": 5.0, "step_time": 1.5, "mfu": printed} for n in range(1, 5)]
    [found] = ingested(tmp_path, lines(rows))
    assert found["mfu_logged_median"] == pytest.approx(mfu)


STEPS = [{"step": n, "loss": 9.0 - n, "step_time": 0.5 * n} for n in range(1, 6)]


@pytest.mark.parametrize(
    "document",
    [
        STEPS,
        {
            "config": {"lr": 1},
            "steps": STEPS,
            "eval_steps": [{"step": n, "loss": 1.0} for n in (1, 3, 5)],
        },
        {"run": {"metrics": STEPS}},
        {str(n): {"loss": 9.0 - n, "step_time": 0.5 * n} for n in range(1, 6)} | {"alloc": 7.5},
        {"steps": [1, 2, 3, 4, 5], "losses": [8, 7, 6, 5, 4], "step_times": [0.5, 1, 1.5, 2, 2.5]},
        {"start_step": 1, "loss_values": [8, 7, 6, 5, 4], "step_times": [0.5, 1, 1.5, 2, 2.5]},
    ],
)
def test_steps_are_read_wherever_a_document_has_them(tmp_path, document):
    [found] = ingested(tmp_path, document)
    assert told(found, *SPAN) == (5, 1, 5, 8.0, 4.0)
    assert found["step_seconds_median"] == 1.5


def test_each_list_of_a_document_is_a_run(tmp_path):
    later = [{**row, "loss": row["loss"] / 2} for row in STEPS]
    first, second = ingested(tmp_path, {"base": STEPS, "tuned": later})
    assert (first["loss_last"], second["loss_last"]) == (4.0, 2.0)
    assert (first["n_records"], second["n_records"]) == (5, 5)


def test_a_document_tells_its_sizes_and_device(tmp_path):
    env = {"gpu": "NVIDIA H100 80GB HBM3", "world_size": 8, "precision": "bf16-mixed"}
    [found] = ingested(tmp_path, {"env": env, "config": {"seq_len": 4096}, "log": STEPS})
    assert told(found, "device", "world_size", "sequence_length") == (env["gpu"], 8, 4096)
    assert "precision" not in found["missing"]


RESULT = {
    "config": {"num_gpus": 2, "seq_len": 8192, "device_name": "Tesla T4"},
    "metrics": {"mfu": {"mean": 13.5, "std": 0.5}, "step_time": {"mean": 2.5, "max": 3.5}},
}


def test_the_result_of_a_benchmark_is_one_mean_step(tmp_path):
    [found] = ingested(tmp_path, RESULT)
    assert told(found, "n_records", "step_seconds_median", "mfu_logged_median") == (1, 2.5, 0.135)
    assert told(found, "world_size", "sequence_length", "device") == (2, 8192, "Tesla T4")
    assert found["status"] == "completed"


@pytest.mark.parametrize(
    "document",
    [
        {"h100": {"batch_1": {"throughput_tok_per_sec": 38.5, "avg_latency_ms": 3353.5}}},
        {"step_time": {"mean": 2.5}, "images": 8},  # nothing of training
        [{"event": "metric", "metric_name": "tokens_per_second", "metric_value": 41.5}],
    ],
)
def test_results_that_are_not_of_training_are_refused(tmp_path, document):
    with pytest.raises(IngestError):
        ingested(tmp_path, document)


def test_a_header_that_comes_again_begins_a_run_and_is_no_record(tmp_path):
    head, row = "step,loss,step_time\n", "{n},{loss},{s}\n"
    first = "".join(row.format(n=n, loss=5 - n / 10, s=0.9) for n in range(1, 9))
    second = "".join(row.format(n=n, loss=4 - n / 10, s=0.6) for n in range(1, 9))
    one, two = ingested(tmp_path, head + first + head + second, "a.csv")
    assert told(one, "n_records", "step_seconds_median", "status")[:2] == (8, 0.9)
    assert told(two, "n_records", "step_seconds_median")[:2] == (8, 0.6)


def test_a_flat_result_with_means_is_one_mean_step(tmp_path):
    result = {"world_size": 2, "seq_len": 2048, "tokens_per_sec": 8369.5, "mean_loss": 6.5}
    [found] = ingested(tmp_path, {**result, "mean_step_time_sec": 0.5})
    assert told(found, "step_seconds_median", "world_size", "loss_first") == (0.5, 2, 6.5)
    assert found["tokens_per_second_median"] == 8369.5


def test_the_time_of_evaluations_is_no_time_of_steps(tmp_path):
    history: list[dict[str, Any]] = []
    for n in (10, 20):
        history += [{"loss": 3.0 - n / 20, "step": n}, {"eval_runtime": 30.0, "step": n}]
    end = {"train_runtime": 100.0, "train_samples_per_second": 1.6, "train_steps_per_second": 0.2}
    document = {"log_history": [*history, {**end, "step": 20}], "global_step": 20, "max_steps": 20}
    [found] = ingested(tmp_path, document)
    assert found["step_seconds_median"] == pytest.approx(2.0)  # (100 - 60) / 20
    assert "less the 60 s of its evaluations" in " ".join(found["warnings"])
    assert found["global_batch_size"] == 8


def test_the_configuration_of_dllogger_tells_the_precision(tmp_path):
    head = {"step": "PARAMETER", "data": {"cfg/fp8": True, "cfg/precision": "bf16-mixed"}}
    row = {"data": {"reduced_train_loss": 9.5, "train_step_timing in s": 12.5}}
    text = lines([head, *({"step": n, **row} for n in range(5))])
    [found] = ingested(tmp_path, text)
    assert "precision" not in found["missing"]


def test_a_loss_under_another_name_is_of_something_else(tmp_path):
    rows: list[dict[str, Any]] = [{"step": n, "loss": 9.0 - n / 10} for n in range(10, 50, 10)]
    rows += [{"epoch": 1, "step": 45, "train_loss": 6.5, "val_loss": 7.5}]
    [found] = ingested(tmp_path, lines(rows))
    assert told(found, *SPAN) == (4, 10, 40, 8.0, 5.0)


def test_a_size_in_a_record_is_a_setting(tmp_path):
    rows = [{"step": n, "loss": 9.0 - n, "lr": 0.5, "world_size": 2} for n in range(4)]
    [found] = ingested(tmp_path, lines(rows))
    assert told(found, "family", "world_size") == ("rows", 2)


def test_a_table_of_runs_is_refused_and_says_what_to_export(tmp_path):
    text = '"Name","State","Runtime","iter","train/loss"\n"a","finished","9","100","1.5"\n'
    with pytest.raises(IngestError, match="export the history of each run"):
        ingested(tmp_path, text, "a.csv")


def test_kernels_of_rocprof_are_those_of_the_processes_of_its_devices(tmp_path):
    named = {2: "CPU HIP API", 1: "COPY", 6: "GPU0"}
    events: list[dict[str, Any]] = [
        {"args": {"name": name}, "ph": "M", "pid": pid, "name": "process_name"}
        for pid, name in named.items()
    ]
    events += [
        {"ph": "X", "name": "op", "pid": str(pid), "tid": "1", "ts": str(at), "dur": str(dur)}
        for pid, at, dur in ((2, 1000, 900), (1, 1000, 20), (6, 1000, 50), (6, 2000, 30))
    ]
    [found] = ingested(tmp_path, {"traceEvents": events})
    assert found["trace"]["kernel_seconds"] == pytest.approx(80e-6)


def test_rows_that_are_cut_too_long_or_below_the_steps_are_no_records(tmp_path):
    long = f"3,1.7,{'x' * 200_000}\n"
    text = (
        "step,loss,note\n1,2.0,a\n2,1.9,b\n" + long + "4,1.6\nmean,1.9,c\n=cmd|'/C calc'!A0,9.9,d\n"
    )
    (found,) = ingested(tmp_path, text, "a.csv")
    assert told(found, *SPAN) == (2, 1, 2, 2.0, 1.9)
    assert found["not_used"]["broken_records"] >= 2


def test_the_mfu_of_levanter_is_in_percent_behind_the_throughput(tmp_path):
    rows = [{"step": i, "train/loss": 2.0, "throughput/mfu": 41.2} for i in range(4)]
    (found,) = ingested(tmp_path, lines(rows), "tracker_metrics.jsonl")
    assert found["mfu_logged_median"] == pytest.approx(0.412)


@pytest.mark.parametrize(("rate", "flops"), [(250.0, 5.5e13), (250_000.0, 5.5e16)])
def test_the_rates_of_an_autotuner_that_takes_ms_for_microseconds_are_divided(
    tmp_path, rate, flops
):
    """32 samples in 128 ms are 250 per second."""
    (found,) = ingested(tmp_path, {"latency": 128.0, "FLOPS_per_gpu": flops, "throughput": rate})
    assert found["step_seconds_median"] == 0.128
    assert found["tflops_per_second_per_gpu_logged_median"] == 55.0
    assert (rate > 1000) == any("a thousand times" in one for one in found["warnings"])


@pytest.mark.parametrize(
    ("tokens", "rate"),
    [((65_536, 131_072, 196_608), 32_768), ((65_536, 60_000, 66_000, 61_000), None)],
)
def test_tokens_that_grow_with_the_steps_are_their_total(tmp_path, tokens, rate):
    """65,536 tokens every 2 s; what falls as often is no total."""
    rows = [
        {"_step": at, "_runtime": 2.0 * at, "train/loss": 2.0, "train/tokens": count}
        for at, count in enumerate(tokens)
    ]
    (found,) = ingested(tmp_path, lines(rows), "history.jsonl")
    assert told(found, "step_seconds_median", "tokens_per_second_median") == (2.0, rate)
