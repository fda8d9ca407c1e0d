"""The commands check and plan: what they print and how they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scalebook.cli import main, predict

QWEN = ("check", "--model", "qwen2.5-7b", "--platform", "h100", "--gpus", "8")


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]):
    """Return a function that runs a command with --json and returns its code and its value."""

    def run(*arguments: str) -> tuple[int, Any]:
        code = main([*arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def test_an_illegal_size_is_answered_with_its_problem_and_the_nearest_legal_ones(ask) -> None:
    code, result = ask(*QWEN, "--tensor-parallel-size", "8")
    assert code == 1
    assert result["legal"] is False
    assert [one["rule"] for one in result["problems"]] == ["attention_heads"]
    assert [one["tensor_parallel_size"] for one in result["nearest"]] == [4, 2]
    assert result["memory_gib"] is None
    assert result["fits"] is None
    assert "illegal" in result["fits_reason"]


def test_a_legal_size_is_answered_with_its_memory_by_part(ask) -> None:
    code, result = ask(*QWEN, "--tensor-parallel-size", "4")
    assert code == 0
    assert (result["legal"], result["fits"], result["problems"]) == (True, True, [])
    parts = dict(result["memory_gib"])
    total = parts.pop("total")
    assert total == pytest.approx(sum(parts.values()))
    assert result["device_memory_gib"] == 80
    assert result["data_parallel_size"] == 2


def test_what_was_not_given_is_stated(ask) -> None:
    _, result = ask("check", "--model", "gpt3-6.7b", "--platform", "h100")
    assert result["defaults"] == {
        "world_size": 8,
        "nodes": 1,
        "precision": "bf16",
        "micro_batch_size": 1,
        "sequence_length": 2048,
        "sequence_parallel": False,
        "global_batch_size": 8,
    }


@pytest.mark.parametrize("gpus", ["1", "2", "4", "8", "16"])
@pytest.mark.parametrize("size", ["1", "2", "4"])
def test_defaults_alone_never_make_a_configuration_illegal(ask, gpus: str, size: str) -> None:
    flags = ("--tensor-parallel-size", size, "--pipeline-parallel-size", "1")
    code, result = ask("check", "--model", "tiny-moe", "--platform", "cpu", "--gpus", gpus, *flags)
    assert (code == 0) == (int(gpus) % int(size) == 0), result["problems"]


def test_a_strategy_stands_for_its_sizes(ask) -> None:
    _, result = ask(*QWEN, "--strategy", "balanced")
    config = result["config"]
    assert (config["tensor_parallel_size"], config["pipeline_parallel_size"]) == (2, 2)


def test_a_device_without_the_precision_is_a_problem(ask) -> None:
    code, result = ask(
        "check", "--model", "llama3.1-8b", "--platform", "a100", "--precision", "fp8"
    )
    assert code == 1
    assert [one["rule"] for one in result["problems"]] == ["precision"]
    assert result["nearest"][0]["precision"] == "bf16"


def test_memory_of_the_cpu_is_null_with_a_reason(ask) -> None:
    _, result = ask("check", "--model", "tiny-llama", "--platform", "cpu", "--gpus", "2")
    assert result["fits"] is None
    assert "not known" in result["fits_reason"]


BAD = {
    "Did you mean 'qwen2.5-7b'": ("check", "--model", "qwen2.5-7bb", "--platform", "h100"),
    "Unknown platform 'h10'": ("check", "--model", "qwen2.5-7b", "--platform", "h10"),
    "Unknown strategy 'fast'": (*QWEN, "--strategy", "fast"),
    "sets tensor_parallel_size": (*QWEN, "--strategy", "balanced", "--tensor-parallel-size", "2"),
    "cannot be read": ("plan", "--platform", "h100", "--plan", "none.toml"),
}


@pytest.mark.parametrize("expected", BAD)
def test_bad_input_ends_with_code_2_and_one_line(
    expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(BAD[expected]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("value", ["0", "-1", "nan", "1.5"])
def test_sizes_that_are_no_sizes_are_refused(
    value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*QWEN, "--tensor-parallel-size", value])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_verdict_for_people_names_the_worst_stage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QWEN, "--pipeline-parallel-size", "4"]) == 0
    text = capsys.readouterr().out
    assert "qwen2.5-7b on 8 x h100: legal" in text
    assert "stage 0" in text
    assert "assumed: nodes=1" in text


@pytest.mark.parametrize(
    ("platform", "samples", "line"),
    [
        # 4,096 tokens of 2 x 18,944 values of 2 bytes are 296 MiB, in places of 512: 28 layers.
        ("h100", "1", "host memory: 14 GiB per rank, 112 GiB per node of 2,048 GB\n"),
        ("h100", "64", "host memory: 896 GiB per rank, 7,168 GiB per node of 2,048 GB: does not"),
        ("b200", "1", "host memory: 14 GiB per rank, 112 GiB per node\n"),  # of unknown size
    ],
)
def test_offloading_names_the_memory_of_the_host_that_it_takes(
    platform: str, samples: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--model", "qwen2.5-7b", "--platform", platform, "--micro-batch-size", samples]
    asked += ["--gpus", "8", "--sequence-length", "4096", "--recompute", "pointwise"]
    assert main(["check", *asked, "--offload-layers", "28"]) == 0
    assert line in capsys.readouterr().out
    assert main(["check", *asked]) == 0
    assert "host memory" not in capsys.readouterr().out
    if samples == "1":
        assert main(["predict", *asked, "--set", "offload_layers=28"]) == 0
        assert line in capsys.readouterr().out


def test_a_plan_prints_every_run_with_legality_and_memory(ask, root: Path) -> None:
    path = str(root / "runs" / "plans" / "strategies.toml")
    code, result = ask("plan", "--platform", "h100", "--plan", path)
    assert code == 0
    assert len(result["runs"]) == 10
    run = result["runs"][0]
    assert run["legal"] is True
    assert run["memory_gib"]["total"] > 0
    assert run["config"]["strategy"] == "maximum_performance"


def test_a_plan_for_people_explains_what_is_illegal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(
        '[[runs]]\nmodel = "qwen2.5-7b"\ntensor_parallel_size = [4, 8]\n'
        "global_batch_size = 8\nsequence_length = 32768\n"
    )
    assert main(["plan", "--platform", "h100", "--plan", str(path)]) == 0
    text = capsys.readouterr().out
    assert "#2 error: tensor_parallel_size=8 does not fit qwen2.5-7b" in text
    assert "2 runs, 1 legal" in text


def test_check_says_what_a_rank_sends_and_the_bubble(capsys: pytest.CaptureFixture[str]):
    sizes = ("--tensor-parallel-size", "2", "--pipeline-parallel-size", "4")
    arguments = ("check", "--model", "llama3.1-8b", "--platform", "h100", "--gpus", "8", *sizes)
    assert main([*arguments, "--global-batch-size", "8", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    # (p - 1) / (m + p - 1) with 4 stages and 8 microbatches.
    assert answer["pipeline_bubble"] == pytest.approx(3 / 11)
    sent = answer["communication_bytes"]
    # 9 layers on each stage but the last, 8 microbatches, 10 (t - 1) / t b s h 2 bytes with
    # sequence parallelism.
    assert answer["defaults"]["last_pipeline_stage_layers"] == 5
    assert sent["tensor"] == 9 * 8 * 10 * 0.5 * 4096 * 4096 * 2
    assert sent["data"] == sent["context"] == sent["expert"] == 0


def test_a_plan_is_named_first_and_the_platform_is_that_of_this_machine(capsys, root):
    path = str(root / "runs/plans/quick.toml")
    assert main(["plan", path, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(["plan", "--plan", path, "--platform", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == first["name"] == "quick"
    assert main(["plan", path, "--platform", "cpu", "--csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(first["runs"])


def test_a_plan_names_what_it_varies_and_takes_the_runs_of_its_predictions(
    capsys, tmp_path, monkeypatch
):
    path, asked = tmp_path / "one.toml", []
    path.write_text(
        '[[runs]]\nmodel = "llama3.1-8b"\nglobal_batch_size = 32\nsequence_length = 4096\n'
        'tensor_parallel_size = 2\nrecompute = ["none", "full"]\n'
    )
    forecast = predict.forecast
    monkeypatch.setattr(predict, "forecast", lambda *of: (asked.append(of), forecast(*of))[1])
    assert main(["plan", str(path), "--platform", "h100", "--runs", str(tmp_path)]) == 0
    first, second = capsys.readouterr().out.splitlines()[2:4]
    assert "TP2 DP4, micro batch 1, bf16" in first
    assert "TP2 DP4, micro batch 1, full recomputation, bf16" in second
    assert asked == [("h100", tmp_path)]


def test_a_plan_named_twice_or_never_is_refused(capsys):
    for words in (["plan"], ["plan", "a.toml", "--plan", "b.toml"]):
        assert main(words) == 2
        assert capsys.readouterr().err == "scalebook: Name one plan: scalebook plan FILE.\n"


def test_a_rate_that_needs_more_memory_than_there_is_says_so(capsys):
    # 70.55e9 weights in 2 and gradients in 4 bytes are 394 GiB on each of 8 devices of 80 GB.
    assert main(["predict", "--model", "llama3.1-70b", "--platform", "h100", "--gpus", "8"]) == 0
    said = capsys.readouterr().out
    assert "does not fit, so it cannot run. 'scalebook recommend' ranks the layouts" in said
    assert said.startswith("llama3.1-70b on 8 x h100, global batch 8: does not fit; without that")


def test_a_layout_that_cannot_run_has_no_days_and_no_cost(capsys):
    priced = ("--tokens", "1T", "--price-per-gpu-hour", "2.5", "--platform", "h100")
    command = ("predict", "--model", "llama3.1-70b", *priced)
    assert main([*command, "--gpus", "8"]) == 0
    said = capsys.readouterr().out
    assert said.endswith("No days or cost: this layout cannot run.\n")
    assert "gpu_hours" not in said
    assert main([*command, "--gpus", "8", "--json"]) == 0
    assert "economics" not in json.loads(capsys.readouterr().out)
    sizes = ("--gpus", "16,64", "--tensor-parallel-size", "8", "--json")  # one node fits nothing
    assert main([*command, *sizes, "--pipeline-parallel-size", "2"]) == 0
    rows = json.loads(capsys.readouterr().out)["weak"]
    assert [("economics" in row) == (row["fits"] is not False) for row in rows] == [True, True]
    assert main([*command, *sizes[:-1]]) == 0  # as a table


UNEVEN = (
    "check", "--model", "llama3.1-70b", "--platform", "h100", "--gpus", "128",
    "--tensor-parallel-size", "4", "--pipeline-parallel-size", "16",
)  # fmt: skip


def test_a_layout_that_only_an_assumed_last_stage_makes_legal_is_illegal_as_stated(ask, capsys):
    """80 layers on 16 stages are 5 each; two chunks of a stage have 3 and 2 of them."""
    chunks = ("--virtual-pipeline-parallel-size", "2")
    code, result = ask(*UNEVEN, *chunks)
    assert (code, result["legal"]) == (1, False)
    assert result["legal_with"] == {"last_pipeline_stage_layers": 5}
    assert [one["rule"] for one in result["problems"]] == ["layers"]
    assert (
        "Use last_pipeline_stage_layers=5, which allows uneven chunks of 3 and 2 (5 on"
        in (result["problems"][0]["message"])
    )
    assert result["nearest"][0]["changes"] == {"virtual_pipeline_parallel_size": 1}
    assert result["fits"] is True
    stated_code, stated = ask(*UNEVEN, *chunks, "--last-pipeline-stage-layers", "5")
    assert (stated_code, stated["legal"], stated["legal_with"]) == (0, True, {})
    assert [stated[name] for name in ("memory_gib", "prediction")] == [
        result[name] for name in ("memory_gib", "prediction")
    ]
    assert main([*UNEVEN, *chunks]) == 1
    said = capsys.readouterr().out
    assert said.startswith(
        "llama3.1-70b on 128 x h100: illegal as stated: 80 layers do not divide by 32; legal with "
        "--last-pipeline-stage-layers 5 (assumed below)\n"
    )
    assert "tokens/s per GPU" in said and "GiB predicted" in said


def test_a_layout_that_is_legal_either_way_stays_legal(ask):
    code, result = ask(*UNEVEN)
    assert (code, result["legal"], result["legal_with"]) == (0, True, {})
    code, result = ask(
        *UNEVEN, "--virtual-pipeline-parallel-size", "2", "--last-pipeline-stage-layers", "0"
    )
    assert (code, result["legal"], result["legal_with"]) == (1, False, {})
    assert result["memory_gib"] is None


def test_layers_that_do_not_divide_by_the_stages_are_illegal_as_stated(ask):
    """61 layers: 7 stages of 8 and one of 5."""
    sizes = ("--pipeline-parallel-size", "8", "--expert-parallel-size", "32", "--recompute", "full")
    words = ("check", "--model", "deepseek-v3", "--platform", "gb200", "--gpus", "256", *sizes)
    code, result = ask(*words)
    assert (code, result["legal_with"]) == (1, {"last_pipeline_stage_layers": 5})
    assert ask(*words, "--last-pipeline-stage-layers", "5")[0] == 0


def test_a_model_that_is_not_trained_here_may_be_legal_elsewhere(ask) -> None:
    layout = ("--gpus", "64", "--nodes", "16", "--tensor-parallel-size", "4")
    layout += ("--pipeline-parallel-size", "8", "--expert-parallel-size", "4")
    asked = ("check", "--model", "nemotron-3-super-120b", "--platform", "gh200", *layout)
    code, result = ask(*asked, "--global-batch-size", "64")
    assert (code, result["legal"], result["trained_here"]) == (0, True, False)
    assert (result["data_parallel_size"], result["num_microbatches"]) == (2, 32)
    assert result["memory_gib"] is None and "no engine here" in result["fits_reason"]
    code, result = ask(*asked, "--global-batch-size", "63")
    assert (code, result["legal"]) == (1, False)
