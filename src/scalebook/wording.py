"""Settings in the words that readers know them by, and which of them a name tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

WORDS = {
    "cuda_graph": "CUDA graph",
    "fused_rope": "fused RoPE",
    "fp8_recipe": "FP8 recipe",
    "fp8_primary_weights": "FP8 primary weights",
    "gradient_precision": "gradients in",
    "expert_balance": "experts' balance",
    "expert_tensor_parallel_size": "expert TP",
    "data_parallel_sharding": "sharding",
    "warmup_steps": "warm-up steps",
    "profile_steps": "profiled steps",
    "offload_layers": "layers offloaded",
    "mtp_layers": "MTP modules",
    "megatron_core": "megatron-core",
    "transformer_engine": "Transformer Engine",
}
VALUES = {  # settings whose value says it all
    ("layer_spec", "transformer_engine"): "Transformer Engine's layers",
    ("layer_spec", "torch"): "torch's layers",
}
COUNTS = ("nodes", "steps", "warmup_steps", "profile_steps", "offload_layers", "mtp_layers")
OFF = (None, False, "off", "none")
MOST = 3  # deviations named one by one

# Sizes are named on every run where they vary; of a switch, only the value that is not usual.
SIZES = {"micro_batch_size": "micro batch", "global_batch_size": "global batch"}
# In the name of a group, in the split, or without an effect on what is computed and how fast.
NAMED = frozenset({
    "platform", "model", "world_size", "engine", "strategy", "precision", "sequence_length",
    "tensor_parallel_size", "pipeline_parallel_size", "virtual_pipeline_parallel_size",
    "context_parallel_size", "expert_parallel_size", "sequence_parallel",
    "repeat", "time_limit_seconds", *SIZES,
})  # fmt: skip
# Named only where nothing else tells two runs apart: they leave the speed of a step alone.
MINOR = frozenset({
    "steps", "warmup_steps", "learning_rate", "seed", "data", "step_split", "profile_steps",
    "profile_all_ranks", "checkpoint_interval", "checkpoint_async", "checkpoint_keep",
    "load_checkpoint", "max_restarts",
})  # fmt: skip
# Named off their default, unless all runs of the model share the value: they change what a step
# keeps in memory or how long it takes. Full sharding is in the split.
TELLING = (
    "recompute", "gradient_precision", "offload_layers", "fp8_recipe", "fp8_primary_weights",
    "expert_balance", "mtp_layers", "last_pipeline_stage_layers",
)  # fmt: skip
# Named only where nothing else tells two runs apart, and what makes them no repeats.
VERSIONS = ("torch", "megatron_core")
NO_USUAL = frozenset({"fp8_recipe"})  # where runs differ in these, each says what it has


def in_words(changes: Sequence[tuple[str, Any]], most: int | None = MOST) -> list[str]:
    """Return changes in words, many switches of one kind together; with ``most`` None, all."""
    fusions = [name for name, value in changes if name.startswith("fused_") and value in OFF]
    together = [f"{len(fusions)} fusions off"] if len(fusions) > 2 else []
    rest = [change for change in changes if not together or change[0] not in fusions]
    words = together + [_words(name, value) for name, value in rest]
    if most is None or len(words) <= most:
        return words
    return [*words[: most - 1], f"{len(words) - most + 1} more"]


def setting_words(name: str) -> str:
    """Return a setting as readers call it: ``CUDA graph``."""
    return (WORDS | SIZES).get(name, name.replace("_", " "))


def _words(name: str, value: Any) -> str:
    if (name, str(value)) in VALUES:
        return VALUES[name, str(value)]
    word = setting_words(name)
    if name in COUNTS:
        return f"{value} {word}"
    if value in OFF:
        return f"no {word}"
    return word if value is True or value == "on" else f"{word} {value}"
