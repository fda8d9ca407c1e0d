"""Every model of the catalog trains on the CPU at small width, or is refused in a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from train_forked import trained
from train_worlds import SMALL, Finished, train

from scalebook.config import RunConfig
from scalebook.facts import catalog
from scalebook.facts.catalog.types import ModelShape
from scalebook.facts.flops.parameters import parameter_count
from scalebook.facts.legality.untrained import untrained
from scalebook.settings import SWITCHES

pytestmark = pytest.mark.slow

PARTS = ("moe", "mla", "hybrid")
LAYERS = 3  # with a window in one of 2, and a dense first layer, each kind of layer
TENSOR = {"world_size": 2, "tensor_parallel_size": 2, "sequence_parallel": True}
LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "sinks, windows and biased experts, TP=2 and EP=2": (
        "gpt-oss-20b",
        {**TENSOR, "expert_parallel_size": 2},
    ),
    "windows over CP=2": ("mistral-7b", {"world_size": 2, "context_parallel_size": 2}),
    "whole queries over TP=2": ("deepseek-v2-lite", TENSOR),
    "experts evened out by a bias, EP=2": (
        "deepseek-v3",
        {**TENSOR, "expert_parallel_size": 2, "mtp_layers": 1},
    ),
}
ON_GPU = any(Path("/dev").glob("nvidia[0-9]")) or Path("/dev/kfd").exists()
GPU: dict[str, Any] = {"platform": "h200", "precision": "bf16", "layer_spec": "torch"}
PLAIN: dict[str, Any] = {"fused_attention": "off", "grouped_gemm": "off"}


def small(shape: ModelShape) -> ModelShape:
    """Return a model with the same kinds of layer, narrow and shallow."""
    groups = 4 if shape.num_query_groups == shape.num_attention_heads else 2
    moe, mla = shape.moe, shape.mla
    if moe is not None:
        shared = 32 if moe.shared_ffn_hidden_size else 0
        dense = min(moe.first_dense_layers, 1)
        moe = replace(
            moe,
            num_experts=8,
            top_k=2,
            ffn_hidden_size=32,
            shared_ffn_hidden_size=shared,
            first_dense_layers=dense,
        )
    if mla is not None:
        mla = catalog.MLAShape(24 if mla.q_lora_rank else 0, 16, 16, 8, 16)
    hybrid = shape.hybrid and catalog.HybridShape("ME*", "*E", 4, 16, 2, 16, 32)
    return replace(
        shape,
        num_layers=LAYERS,
        hidden_size=64,
        ffn_hidden_size=96,
        num_attention_heads=4,
        num_query_groups=1 if shape.num_query_groups == 1 else groups,
        head_dim=16,
        vocab_size=256,
        padded_vocab_size=None,
        learned_positions=64 if shape.learned_positions else 0,
        max_sequence_length=64,
        sliding_window=8 if shape.sliding_window else 0,
        moe=moe,
        mla=mla,
        hybrid=hybrid,
    )


def kinds() -> dict[str, ModelShape]:
    """Return a small model for each kind of the catalog, by the first model of that kind."""
    found: dict[ModelShape, str] = {}
    for shape in catalog.models():
        bare = replace(small(shape), name="small", source="small", rope_theta=1e4)
        found.setdefault(bare, shape.name)
    return {name: shape for shape, name in found.items()}


def asked(name: str, **changes: Any) -> RunConfig:
    return RunConfig(**{**SMALL, "model": name, **changes})


KINDS = kinds()
TRAINED = [name for name, shape in KINDS.items() if not any(untrained(asked(name), shape))]
REFUSED = [name for name in KINDS if name not in TRAINED]


def _row(name: str, shape: ModelShape) -> str:
    """Return the row of a user's catalog that makes a model of this shape."""
    values = {key: value for key, value in asdict(shape).items() if value is not None}
    values |= {"name": name, "source": "test"}
    parts: dict[str, dict[str, Any]] = {key: values[key] for key in PARTS if key in values}
    lines = [f"{key} = {json.dumps(values[key])}" for key in values if key not in parts]
    for key, part in parts.items():
        inner = ", ".join(f"{one} = {json.dumps(value)}" for one, value in part.items())
        lines.append(f"{key} = {{ {inner} }}")
    return "\n".join(["[[models]]", *lines, ""])


def _plain(shape: ModelShape) -> dict[str, Any]:
    # Megatron-Core's own attention takes queries and values of one width only.
    return {**PLAIN, "fused_attention": "auto"} if shape.mla else PLAIN


def _ours(shape: ModelShape) -> dict[str, Any]:
    asked = {"mtp_layers": shape.mtp_layers, "fused_weight_gradient": "on"}
    return asked | ({"grouped_gemm": "on"} if shape.moe else {})


@pytest.fixture(scope="module")
def small_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each small model in the catalog, under its name after ``small-``."""
    rows = tmp_path_factory.mktemp("models") / "models.toml"
    rows.write_text("\n".join(_row(f"small-{name}", KINDS[name]) for name in TRAINED))
    with pytest.MonkeyPatch.context() as patch:
        named = [str(rows), os.environ.get("SCALEBOOK_CATALOG", "")]
        patch.setenv("SCALEBOOK_CATALOG", os.pathsep.join(filter(None, named)))
        yield


@pytest.fixture(scope="module")
def runs(small_models: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finished]:
    """Two steps of every small model, with our pieces and with Megatron-Core's own."""
    changes: dict[str, dict[str, Any]] = {}
    for name in TRAINED:
        shape = KINDS[name]
        base = {"model": f"small-{name}", "steps": 2, "warmup_steps": 0, "global_batch_size": 2}
        changes[name] = {**base, **_ours(shape)}
        changes[f"{name}, plain"] = {**base, **_plain(shape), "mtp_layers": shape.mtp_layers}
    for layout, (name, more) in LAYOUTS.items():
        changes[layout] = {**changes[name], **more}
    return trained(tmp_path_factory.mktemp("runs"), changes)


@pytest.fixture(scope="module")
def gpu_runs(small_models: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finished]:
    """Five steps of every small model on a GPU in bf16: all switches on, and all off."""
    changes: dict[str, dict[str, Any]] = {}
    for name in TRAINED:
        shape = KINDS[name]
        base = {"model": f"small-{name}", "steps": 5, "warmup_steps": 0, **GPU}
        base["mtp_layers"] = shape.mtp_layers
        graph = "auto" if shape.moe or shape.mtp_layers else "on"
        changes[name] = {**base, "cuda_graph": graph}
        off = dict.fromkeys(SWITCHES, "off") | ({"fused_attention": "auto"} if shape.mla else {})
        changes[f"{name}, plain"] = {**base, **off}
    folder = tmp_path_factory.mktemp("gpu")
    with ThreadPoolExecutor(8) as pool:  # a forked process cannot use a GPU
        started = {
            name: pool.submit(train, folder / str(number), **asked)
            for number, (name, asked) in enumerate(changes.items())
        }
        return {name: future.result() for name, future in started.items()}


def _trains_alike(ours: Finished, plain: Finished, steps: int, loss: float, norm: float) -> None:
    """Check that both trained, with losses and gradient norms this close, relative to them."""
    assert ours.code == 0, ours.log
    assert plain.code == 0, plain.log
    assert len(ours.losses) == steps
    assert ours.losses == pytest.approx(plain.losses, rel=loss)
    norms = [step.grad_norm for step in ours.steps]
    assert norms == pytest.approx([step.grad_norm for step in plain.steps], rel=norm)


@pytest.mark.parametrize("name", TRAINED)
def test_catalog_model_trains_as_the_plain_spec_does(name: str, runs: dict[str, Finished]):
    ours = runs[name]
    _trains_alike(ours, runs[f"{name}, plain"], 2, 1e-5, 1e-4)
    count = parameter_count(KINDS[name])
    assert ours.observed["parameter_count"] == count.total + count.mtp


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="no GPU here")
@pytest.mark.parametrize("name", TRAINED)
def test_catalog_model_trains_on_a_gpu_as_the_plain_spec_does(
    name: str, gpu_runs: dict[str, Finished]
):
    _trains_alike(gpu_runs[name], gpu_runs[f"{name}, plain"], 5, 5e-4, 1e-2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_kind_of_layer_trains_the_same_in_parallel(layout: str, runs: dict[str, Finished]):
    split, alone = runs[layout], runs[LAYOUTS[layout][0]]
    assert split.code == 0, split.log
    assert split.losses == pytest.approx(alone.losses, rel=1e-5)
    norms = [step.grad_norm for step in split.steps]
    assert norms == pytest.approx([step.grad_norm for step in alone.steps], rel=1e-3)
    assert split.observed["parameter_count"] == alone.observed["parameter_count"]


def test_what_does_not_train_is_refused_in_a_line():
    hybrids = {"nemotron-3-nano-30b", "nemotron-3-super-120b", "qwen3-next-80b-a3b", "qwen3.5-27b",
               "kimi-linear-48b-a3b", "primus-gdn-300m"}  # fmt: skip
    others = {"gemma2-9b", "palm-540b", "olmo2-7b", "llama4-scout", "deepseek-v4-flash"}
    assert set(REFUSED) == {"minimax-m2.5", *others, *hybrids}
    for name in REFUSED:
        (sentence,) = untrained(asked(name), catalog.model(name))
        assert sentence.startswith(f"{name} has ")
        assert "\n" not in sentence
    split = asked("gpt-oss-20b", expert_tensor_parallel_size=2)
    assert "biases" in next(untrained(split, catalog.model("gpt-oss-20b")))
