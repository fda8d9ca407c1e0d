"""Settings in the words that readers know them by."""

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
}
VALUES = {  # settings whose value says it all
    ("layer_spec", "transformer_engine"): "Transformer Engine's layers",
    ("layer_spec", "torch"): "torch's layers",
}
COUNTS = ("nodes", "steps", "warmup_steps", "profile_steps", "offload_layers", "mtp_layers")
OFF = (False, "off", "none")
MOST = 3  # deviations named one by one


def in_words(changes: Sequence[tuple[str, Any]]) -> list[str]:
    """Return changes in words, many switches of one kind together."""
    fusions = [name for name, value in changes if name.startswith("fused_") and value in OFF]
    together = [f"{len(fusions)} fusions off"] if len(fusions) > 2 else []
    rest = [change for change in changes if not together or change[0] not in fusions]
    words = together + [_words(name, value) for name, value in rest]
    return words if len(words) <= MOST else [*words[: MOST - 1], f"{len(words) - MOST + 1} more"]


def setting_words(name: str) -> str:
    """Return a setting as readers call it: ``CUDA graph``."""
    return WORDS.get(name, name.replace("_", " "))


def _words(name: str, value: Any) -> str:
    if (name, str(value)) in VALUES:
        return VALUES[name, str(value)]
    word = setting_words(name)
    if name in COUNTS:
        return f"{value} {word}"
    if value in OFF:
        return f"no {word}"
    return word if value is True or value == "on" else f"{word} {value}"
