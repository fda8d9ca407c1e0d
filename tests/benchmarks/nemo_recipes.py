"""Build every recipe that engine ``nemo`` names with NeMo's own classes, and check what arrives.

Needs no GPU and trains nothing: recipes are trees of configurations. Run with a Python that has
nemo-toolkit 2.7.3, nemo-run, megatron-core 0.15.3 and what nemo.collections.llm imports:

    PYTHONPATH=src python tests/benchmarks/nemo_recipes.py
"""

from __future__ import annotations

import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from scalebook.config import RunConfig
from scalebook.engines import mapping, nemo_train
from scalebook.facts import catalog

SIZES = {
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "num_query_groups": "num_query_groups",
    "kv_channels": "head_dim",
    "ffn_hidden_size": "ffn_hidden_size",
}


def asked(model: str) -> RunConfig:
    """Return a configuration in which every mapped field differs from the recipes' own."""
    return RunConfig(
        platform="h100",
        model=model,
        engine="nemo",
        world_size=8,
        tensor_parallel_size=2,
        sequence_parallel=True,
        global_batch_size=16,
        sequence_length=4096,
        precision="fp8",
        fp8_recipe="tensorwise",
        recompute="full",
        steps=7,
        warmup_steps=2,
        overlap_grad_reduce="off",
    )


def differences(config: RunConfig, output: Path) -> list[str]:
    """Return what did not arrive in the objects that NeMo would train with."""
    build: Any = import_module("fiddle").build
    recipe = nemo_train.build_recipe(config, output, nemo_train.recipe_settings(config))
    strategy, data = build(recipe.trainer.strategy), build(recipe.data)
    precision = build(recipe.trainer.plugins)
    shape = catalog.model(config.model)
    expected: list[tuple[str, Any, Any]] = [
        ("max_steps", recipe.trainer.max_steps, config.steps),
        ("devices", recipe.trainer.devices, 8),
        ("tensor_parallel_size", strategy.tensor_model_parallel_size, 2),
        ("sequence_parallel", strategy.sequence_parallel, True),
        ("overlap_grad_reduce", strategy.ddp_config.overlap_grad_reduce, False),
        ("use_distributed_optimizer", strategy.ddp_config.use_distributed_optimizer, True),
        ("global_batch_size", data.global_batch_size, 16),
        ("micro_batch_size", data.micro_batch_size, 1),
        ("sequence_length", data.seq_length, 4096),
        ("vocab_size", data.tokenizer.vocab_size, shape.vocab_size),
        ("fp8_recipe", precision.dtype_config.fp8_recipe, "tensorwise"),
        ("learning_rate", recipe.optim.config.lr, config.learning_rate),
    ]
    model = recipe.model.config
    if hasattr(model, "apply_rope_fusion"):
        model.apply_rope_fusion = False  # needs Transformer Engine, and changes no size
    built = build(model)
    expected += [("recompute", built.recompute_granularity, "full")]
    for theirs, ours in SIZES.items():
        if not (shape.mla and ours == "head_dim"):  # latent attention has widths of its own
            expected.append((ours, getattr(built, theirs), getattr(shape, ours)))
    return [f"{name}: {found!r}, not {want!r}" for name, found, want in expected if found != want]


def main() -> int:
    """Print one line a model; return how many recipes could not be built or differ."""
    bad = 0
    for model in mapping.known("nemo"):
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = differences(asked(model), Path(folder))
            except Exception as error:  # noqa: BLE001  a recipe may need what only an image has
                found = [f"not built: {' '.join(str(error).split())[:160]}"]
        bad += bool(found)
        print(f"{model}: {'; '.join(found) or 'as asked for'}", flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(main())
