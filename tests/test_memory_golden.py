"""Published memory figures come out of the conventions that they name, at their printed digits."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from scalebook import catalog
from scalebook.catalog import ModelShape
from scalebook.flops import padded_vocab_size, parameter_count
from scalebook.memory import conventions
from scalebook.parallelism import Parallelism

MODELS = {
    "Megatron 22B (Korthikanti)": "megatron-22b",
    "GPT-3 175B": "gpt3-175b",
}
STATES = {
    "megatron bf16+fp32 grad, no dist-opt": "megatron_bf16",
    "megatron bf16+fp32 grad, dist-opt": "megatron_bf16_distributed",
    "megatron fp16+fp16 grad, dist-opt": "megatron_fp16_distributed",
    "megatron fp32, dist-opt": "megatron_fp32_distributed",
    "ZeRO-0 (fp16/bf16 w+g, fp32 m,v,master)": "zero_0",
    "ZeRO-1": "zero_1",
    "ZeRO-2": "zero_2",
    "ZeRO-3/FSDP": "zero_3",
    "nanotron bf16+fp32 grad accum": "nanotron_bf16",
}
MODES = {
    "no recompute, TP only": "tensor",
    "TP+SP+selective": "tensor_sequence_selective",
    "tp+sp": "tensor_sequence",
    "tp+selective": "tensor_selective",
    "tp+sp+selective": "tensor_sequence_selective",
    "full": "full",
}
# The tensor-parallel size of the ratios; the other sizes cancel out.
RATIO = {"tensor": 8, "micro_batch_size": 1, "sequence": 2048}


def shape_of(name: str) -> ModelShape:
    return catalog.model(MODELS.get(name, name.lower().replace(" ", "-")))


def number(name: str, config: str, default: int = 1) -> int:
    found = re.search(rf"\b{name}=(\d+)", config)
    return int(found[1]) if found else default


def split(config: str, names: tuple[str, str, str, str]) -> Parallelism:
    """The parallelism of a row; ``names`` are its letters for tp, pp, virtual stages and dp."""
    tensor, stages, chunks, data = (number(name, config) for name in names)
    return Parallelism(tensor * stages * data, tensor, stages, chunks)


def activation(row: dict[str, str]) -> float:
    mode = next(mode for words, mode in MODES.items() if words in row["config"])
    return conventions.korthikanti_gib(
        shape_of(row["name"]),
        mode,
        split(row["config"], ("t", "p", "v", "d")),
        micro_batch_size=number("b", row["config"]),
        sequence=number("s", row["config"]),
    )


def ratio(row: dict[str, str]) -> float:
    shape = shape_of(row["name"])
    mode = MODES[row["config"].split(" / ")[0]]
    kept = conventions.korthikanti_layer_bytes(shape, mode, **RATIO)
    return 100 * kept / conventions.korthikanti_layer_bytes(shape, "tensor", **RATIO)


def layers_only(row: dict[str, str]) -> float:
    shape, config = shape_of(row["name"]), row["config"]
    matrices = 12 * shape.num_layers * shape.hidden_size**2
    ranks = number("t", config) * number("p", config)
    per_parameter = conventions.state_bytes_per_parameter("megatron_bf16", 1)
    return matrices / ranks * per_parameter / conventions.GIB


def per_parameter(row: dict[str, str]) -> float:
    shards = number("d", row["config"])
    return conventions.state_bytes_per_parameter(STATES[row["name"]], shards)


def vocabulary(row: dict[str, str]) -> int:
    return padded_vocab_size(shape_of(row["name"]).vocab_size)


def shard(row: dict[str, str]) -> float:
    parallelism = split(row["config"], ("TP", "PP", "VP", "DP"))
    shape = shape_of(row["name"])
    return conventions.megatron_parameters(shape, parallelism, vocabulary(row)) / 1e9


def states(row: dict[str, str]) -> float:
    parallelism = split(row["config"], ("TP", "PP", "VP", "DP"))
    return conventions.megatron_states_mib(shape_of(row["name"]), parallelism, vocabulary(row))


def estimator(row: dict[str, str]) -> float:
    config = row["config"]
    return conventions.megatron_activations_mib(
        shape_of(row["name"]),
        split(config, ("TP", "PP", "VP", "DP")),
        vocabulary(row),
        micro_batch_size=number("mbs", config),
        sequence=number("s", config),
    )


def whole_model(name: str, shards: int) -> Callable[[dict[str, str]], float]:
    def value(row: dict[str, str]) -> float:
        parameters = parameter_count(shape_of(row["name"])).total
        return parameters * conventions.state_bytes_per_parameter(name, shards) / 1e9

    return value


def logits(row: dict[str, str]) -> float:
    size = 4 if "fp32" in row["config"] else 2
    tokens = number("s", row["config"]) * number("b", row["config"])
    return conventions.logits_gib(vocabulary(row), tokens=tokens, bytes_per_element=size)


KINDS = {
    "activation": activation,
    "activation ratio": ratio,
    "weights+optimizer": layers_only,
    "bytes per param": per_parameter,
    "megatron weight+optimizer": states,
    "megatron params on most loaded shard": shard,
    "megatron activation (SP+selective)": estimator,
    "ZeRO-0 model states": whole_model("zero_0", 1),
    "ZeRO-3 over 8": whole_model("zero_3", 8),
    "logits": logits,
}


def test_every_golden_row_is_reproduced(shared: Path) -> None:
    with (shared / "facts" / "memory_golden.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) > 80
    wrong = [
        (row["kind"], row["name"], row["config"], row["value"], value)
        for row in rows
        if (value := KINDS[row["kind"]](row)) != pytest.approx(float(row["value"]), rel=1e-9)
    ]
    assert wrong == []


def test_published_measurements_are_within_their_error(shared: Path) -> None:
    with (shared / "facts" / "memory_golden.csv").open(encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["reference"]]
    assert len(rows) > 20
    for row in rows:
        error = 100 * (KINDS[row["kind"]](row) / float(row["reference"]) - 1)
        assert error == pytest.approx(float(row["rel_err_pct"]), abs=1e-3), row


def test_megatrons_estimator_counts_a_gated_mlp_lower_than_its_tensors() -> None:
    shape = catalog.model("llama3.1-8b")
    # Per token and layer in 16 bit: 18 h + 4 f by the estimator, 3 f alone by tensors is 6 f bytes.
    estimate = conventions.megatron_activations_mib(
        shape, Parallelism(1, 1, 2), 128256, micro_batch_size=1, sequence=8192
    )
    tensors = 32 * 8192 * (8 * 4096 + 2 * (2 * 4096 + 2 * 1024) + 6 * 14336) / conventions.MIB
    assert estimate < 0.97 * tensors
