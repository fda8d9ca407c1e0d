"""Compare NeMo's own FLOPs formulas with ours, and write the differences as CSV.

Run with a Python that has nemo-toolkit 2.7.3 and pydantic, beside this checkout:

    PYTHONPATH=src python tests/benchmarks/nemo_flops.py > tests/golden/nemo_flops.csv

Both count a token's forward and backward of one model; ``difference_percent`` is NeMo's over ours.
"""

from __future__ import annotations

import csv
import sys
from importlib import import_module
from typing import Any

from scalebook.facts import catalog, flops
from scalebook.facts.catalog.types import ModelShape

# The formula that NeMo's FLOPsMeasurementCallback takes for the family of each model.
FORMULAS = {
    "gpt3-175b": "gpt3",
    "llama2-7b": "llama2",
    "llama2-70b": "llama2",
    "llama3.1-8b": "llama3",
    "llama3.1-70b": "llama3",
    "llama3.1-405b": "llama3",
    "qwen2.5-7b": "transformer",
    "qwen3-8b": "qwen3",
    "qwen3-32b": "qwen3",
    "qwen3-30b-a3b": "qwen3",
    "mixtral-8x7b": "mixtral",
    "mixtral-8x22b": "mixtral",
    "nemotron4-15b": "nemotron",
    "nemotron4-340b": "nemotron",
    "deepseek-v3": "deepseekv3",
}
# Why a formula counts otherwise than ours; empty: it does not.
REASONS = {
    "gpt3": "NeMo pads GPT-3's vocabulary of 50,257 to 51,200 rows whatever the configuration says",
    "transformer": "NeMo's general formula has two matrices in every MLP: a gated one has three",
}
LENGTHS = (2048, 4096, 8192)


def arguments(shape: ModelShape, length: int) -> dict[str, Any]:
    """Return the fields of NeMo's FLOPSConfig for one sample of a model."""
    found: dict[str, Any] = {
        "gbs": 1,
        "enc_seq_len": length,
        "hs": shape.hidden_size,
        "layers": shape.num_layers,
        "ffn_hs": shape.ffn_hidden_size,
        "attention_heads": shape.num_attention_heads,
        "query_groups": shape.num_query_groups,
        "kv_channels": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "causal_self_attn": True,
    }
    if shape.moe:
        found["moe_router_topk"] = shape.moe.top_k
        found["moe_ffn_hidden_size"] = shape.moe.ffn_hidden_size
        found["moe_shared_expert_intermediate_size"] = shape.moe.shared_ffn_hidden_size
        dense = shape.moe.first_dense_layers
        found["moe_layer_freq"] = [0] * dense + [1] * (shape.num_layers - dense)
    if shape.mla:
        found["q_lora_rank"] = shape.mla.q_lora_rank
        found["kv_lora_rank"] = shape.mla.kv_lora_rank
        found["qk_head_dim"] = shape.mla.qk_nope_head_dim
        found["qk_pos_emb_head_dim"] = shape.mla.qk_rope_head_dim
        found["v_head_dim"] = shape.mla.v_head_dim
    if shape.moe and not shape.mla and "mixtral" in shape.name:
        found["ffn_hs"] = shape.moe.ffn_hidden_size
    return found


def row(name: str, length: int) -> dict[str, object]:
    """Return one comparison."""
    formulas: Any = import_module("nemo.utils.flops_formulas")
    shape = catalog.model(name)
    formula = FORMULAS[name]
    config = formulas.FLOPSConfig(**arguments(shape, length))
    theirs = getattr(formulas, formula)(config) / length
    ours = flops.flops_per_token(shape, length, vocab_size=shape.vocab_size)
    return {
        "model": name,
        "sequence_length": length,
        "formula": formula,
        "nemo_gflops_per_token": f"{theirs / 1e9:.6g}",
        "ours_gflops_per_token": f"{ours / 1e9:.6g}",
        "difference_percent": f"{100 * (theirs / ours - 1) + 0.0:.3f}",
        "reason": REASONS.get(formula, ""),
    }


def main() -> None:
    """Print the comparison of every model at every length."""
    rows = [row(name, length) for name in FORMULAS for length in LENGTHS]
    writer = csv.DictWriter(sys.stdout, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


if __name__ == "__main__":
    main()
