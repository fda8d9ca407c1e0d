"""Labels of runs: each says what tells the run from those beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from simulated import H100, config, write_run

from scalebook.report.base.frames import load
from scalebook.report.base.naming import devices, fact_words, titled, verb

GPU: dict[str, Any] = {"platform": "h100", "model": "llama3.1-8b", "precision": "bf16"}
USUAL: dict[str, Any] = {}


def names(tmp_path: Path, *changes: Mapping[str, Any], column: str = "name") -> list[str]:
    """Return the names of measured runs of these configurations, of which the first is fastest."""
    for i, change in enumerate(changes):
        made = config(**{**GPU, **change})
        write_run(tmp_path, f"run-{i}", made, seconds=0.1 + i, source="measured", device=H100)
    frame = load(tmp_path).runs.sort("run_id")
    return frame[column].to_list()


def test_a_run_is_named_by_the_switch_that_only_it_has(tmp_path: Path) -> None:
    changes = (USUAL, {"fused_attention": "off"}, {"cuda_graph": "on"}, {"recompute": "full"})
    assert names(tmp_path, *changes) == [
        "1 GPU",
        "1 GPU · no fused attention",
        "1 GPU · CUDA graph",
        "1 GPU · full recomputation",
    ]


def test_a_setting_off_its_default_is_named_also_where_it_is_usual(tmp_path: Path) -> None:
    full = {"recompute": "full"}
    found = names(tmp_path, full | {"fused_norm": "off"}, full, USUAL, full | {"cuda_graph": "on"})
    assert found == [
        "1 GPU · full recomputation · no fused norm",
        "1 GPU · full recomputation",
        "1 GPU",
        "1 GPU · full recomputation · CUDA graph",
    ]


def test_what_all_runs_of_a_model_share_is_not_named(tmp_path: Path) -> None:
    full = {"recompute": "full", "fused_norm": "off"}
    assert names(tmp_path, full, full | {"cuda_graph": "on"}) == ["1 GPU", "1 GPU · CUDA graph"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"recompute": "full"}, "full recomputation"),
        ({"gradient_precision": "bf16"}, "gradients in BF16"),
        ({"offload_layers": 4}, "4 layers offloaded"),
        ({"fused_attention": "off"}, "no fused attention"),
        ({"recompute": "full", "cuda_graph": "on"}, "full recomputation · CUDA graph"),
    ],
)
def test_a_split_that_no_other_run_has_hides_no_setting(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    four = {"world_size": 4}
    found = names(tmp_path, four | {"pipeline_parallel_size": 4}, four | change)
    assert found == ["PP4", f"DP4 · {said}"]


def test_a_run_alone_in_its_group_says_what_other_runs_of_its_model_do_not_have(
    tmp_path: Path,
) -> None:
    found = names(tmp_path, USUAL, {"precision": "fp8", "gradient_precision": "bf16"})
    assert found == ["1 GPU", "1 GPU · gradients in BF16"]


def test_whose_layers_ran_is_named_where_most_of_the_group_ran_others(tmp_path: Path) -> None:
    splits = ({"pipeline_parallel_size": 4}, {"tensor_parallel_size": 4}, {})
    for i, split in enumerate(splits):
        ran = {"layer_spec": "torch" if split else "transformer_engine"}
        made = config(**GPU, world_size=4, **split)
        write_run(tmp_path, f"run-{i}", made, seconds=0.1 + i, source="measured", observed=ran)
    found = load(tmp_path).runs.sort("run_id")["name"].to_list()
    assert found == ["PP4", "TP4", "DP4 · Transformer Engine's layers"]


def test_runs_of_two_versions_are_no_repeats_of_one_another(tmp_path: Path) -> None:
    for i, version in enumerate(("0.16.1", "0.16.1", "0.19.2")):
        settings = config(**GPU, repeat=i)
        environment = {"accelerator": H100, "torch": "2.11.0", "megatron_core": version}
        write_run(
            tmp_path, f"run-{i}", settings, seconds=0.1 + i, source="measured",
            environment=environment,
        )  # fmt: skip
    found = load(tmp_path).runs.sort("run_id")["name"].to_list()
    assert found == ["1 GPU", "1 GPU · repeat 2", "1 GPU · megatron-core 0.19.2"]


def test_every_way_of_scaling_is_named_where_they_differ(tmp_path: Path) -> None:
    recipes = ("delayed", "tensorwise", "blockwise")
    found = names(tmp_path, *({"precision": "fp8", "fp8_recipe": recipe} for recipe in recipes))
    assert found == [f"1 GPU · FP8 recipe {recipe}" for recipe in recipes]


def test_many_fusions_are_named_together(tmp_path: Path) -> None:
    fusions: dict[str, Any] = dict.fromkeys(("fused_attention", "fused_norm", "fused_rope"), "off")
    found = names(tmp_path, USUAL, fusions | {"recompute": "full"})
    assert found[1] == "1 GPU · 3 fusions off · full recomputation"


def test_sizes_of_a_batch_are_named_on_each_run_where_they_vary(tmp_path: Path) -> None:
    found = names(
        tmp_path, {"micro_batch_size": 1}, {"micro_batch_size": 4, "recompute": "full"},
        {"micro_batch_size": 4}, {"micro_batch_size": 4, "cuda_graph": "on"},
    )  # fmt: skip
    assert found[0] == "1 GPU · micro batch 1"
    assert found[1] == "1 GPU · micro batch 4 · full recomputation"
    assert found[2] == "1 GPU · micro batch 4"


def test_a_switch_is_named_also_where_a_size_differs_with_it(tmp_path: Path) -> None:
    large = {"micro_batch_size": 4, "recompute": "full"}
    found = names(tmp_path, {"micro_batch_size": 1}, {"micro_batch_size": 1, "repeat": 1}, large)
    assert found[2] == "1 GPU · micro batch 4 · full recomputation"


def test_only_one_configuration_again_is_a_repeat(tmp_path: Path) -> None:
    found = names(tmp_path, {"repeat": 1}, {"repeat": 0}, {"repeat": 2, "time_limit_seconds": 9})
    assert found == ["1 GPU · repeat 2", "1 GPU", "1 GPU · repeat 3"]


def test_a_setting_without_effect_on_speed_is_named_where_nothing_else_tells(
    tmp_path: Path,
) -> None:
    found = names(tmp_path, USUAL, {"steps": 100, "cuda_graph": "on"}, {"steps": 100})
    assert found == ["1 GPU", "1 GPU · CUDA graph", "1 GPU · 100 steps"]


def test_a_record_that_does_not_tell_its_settings_is_told_apart_by_its_id(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path, name, config(), requested={"world_size": 1})
    assert load(tmp_path).runs["name"].to_list() == [
        "1 GPU [simulated] · a",
        "1 GPU [simulated] · b",
    ]


@pytest.mark.parametrize(
    ("change", "label"),
    [
        ({"sequence_length": 4096}, "Llama 3.1 8B · seq 4,096 · 1 GPU"),
        ({"precision": "fp8"}, "Llama 3.1 8B · FP8 · 1 GPU"),
        ({"platform": "mi300x"}, "Llama 3.1 8B · MI300X · 1 GPU"),
        ({"model": "qwen2.5-7b"}, "Qwen 2.5 7B · 1 GPU"),
    ],
)
def test_a_label_names_what_tells_groups_of_one_model_apart(
    tmp_path: Path, change: dict[str, Any], label: str
) -> None:
    found = names(tmp_path, USUAL, change, column="label")
    assert found[1] == label
    assert found[0] != label


def test_every_label_is_unique_and_none_is_numbered(root: Path) -> None:
    runs = load(root / "runs" / "examples").runs
    assert runs["label"].n_unique() == runs.height
    assert not runs["label"].str.contains(r"\(\d+\)").any()


def test_a_recorded_fact_and_a_text_of_another_part_are_written_for_readers() -> None:
    assert fact_words("host.cpu_cores") == "CPU cores"
    assert fact_words("variables.NCCL_NVLS_ENABLE") == "NCCL_NVLS_ENABLE"
    assert titled("products of llama3.1-8b/tp1/bf16") == "products of Llama 3.1 8B/tp1/BF16"
    assert titled("--precision=fp8, runs/llama3.1-8b-w4") == "--precision=fp8, runs/llama3.1-8b-w4"


def test_several_layers_of_a_model_take_a_verb_in_the_plural() -> None:
    assert [verb("llama3.1-8b", one) for one in ("keep", "reach")] == ["keeps", "reaches"]
    assert [verb("llama3.1-8b@8", one) for one in ("keep", "reach")] == ["keep", "reach"]
    assert verb("mixtral-8x7b@1", "reach") == "reaches"


def test_no_label_of_the_examples_needs_an_id_and_kernels_are_named(root: Path) -> None:
    labels = dict(load(root / "runs/examples").runs.select("run_id", "label").iter_rows())
    assert not [label for label in labels.values() if re.search(r"\b[0-9a-f]{12}\b", label)]
    ways = [label for run, label in labels.items() if run.endswith("2c9ec5c7603d")]
    assert ways == [ways[0], f"{ways[0]} · keys gathered first"]
    older = "20261129-114150-gpt-oss-20b-2-w1-063d71669a05"
    assert labels[older].endswith("windows by an unknown kernel")


@pytest.mark.parametrize(
    ("size", "platform", "words"),
    [
        (1, "cpu", "1 CPU process"), (2, "cpu", "2 CPU processes"),
        (1, "h200", "one H200"), (4, "h200", "4 H200 GPUs"),
    ],
)  # fmt: skip
def test_what_a_run_ran_on_is_counted_in_words(size: int, platform: str, words: str) -> None:
    assert devices({"world_size": size, "platform": platform}) == words
