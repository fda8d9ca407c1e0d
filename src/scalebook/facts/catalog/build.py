"""Turn checked rows into the frozen values of the catalog."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from scalebook.facts.catalog.rows import TomlRow
from scalebook.facts.catalog.types import (
    Accelerator,
    HybridShape,
    MLAShape,
    ModelShape,
    MoEShape,
    Platform,
    Strategy,
)
from scalebook.settings import PARALLEL_SIZES

PRECISIONS = ("fp32", "fp32_matrix", "tf32", "bf16", "fp16", "fp8", "fp4", "int8")
ACTIVATIONS = ("silu", "gelu", "squared_relu")
_MEASURES = (
    *("memory_bandwidth_tb_per_second", "interconnect_gb_per_second"),
    *("tdp_watts", "peak_clock_mhz"),
)
VENDORS = ("nvidia", "amd", "intel", "google", "aws")


def accelerator(row: TomlRow) -> Accelerator:
    """Return the accelerator of a row."""
    value = Accelerator(
        name=row.text("name"),
        vendor=row.text("vendor"),
        architecture=row.text("architecture", ""),
        memory_gb=row.number("memory_gb"),
        **{name: row.optional_number(name) for name in _MEASURES},
        peak_tflops=MappingProxyType(row.numbers("peak_tflops", PRECISIONS)),
        sparse_peak_tflops=MappingProxyType(row.numbers("sparse_peak_tflops", PRECISIONS)),
        best_product_tflops=MappingProxyType(row.numbers("best_product_tflops", PRECISIONS)),
        device_names=row.texts("device_names"),
        compute_capability=row.text("compute_capability", ""),
        confidence=row.text("confidence", "high"),
        source=row.text("source"),
        notes=row.text("notes", ""),
        form_factor=row.text("form_factor", ""),
        retrieved=row.optional_text("retrieved"),
    )
    row.finish()
    for name, dense in value.peak_tflops.items():
        if value.sparse_peak_tflops.get(name, dense) < dense:
            raise row.error(f"sparse {name} peak is below the dense one.", "sparse_peak_tflops")
    for name, best in value.best_product_tflops.items():
        if best > value.peak_tflops.get(name, best):
            raise row.error(f"no {name} product is above the peak.", "best_product_tflops")
    return value


def _moe(row: TomlRow | None, num_layers: int) -> MoEShape | None:
    if row is None:
        return None
    value = MoEShape(
        num_experts=row.integer("num_experts"),
        top_k=row.integer("top_k"),
        ffn_hidden_size=row.integer("ffn_hidden_size"),
        shared_ffn_hidden_size=row.integer("shared_ffn_hidden_size", 0, minimum=0),
        first_dense_layers=row.integer("first_dense_layers", 0, minimum=0),
        router_bias=row.flag("router_bias", False),
    )
    row.finish()
    if value.top_k > value.num_experts:
        raise row.error(f"top_k={value.top_k} is more than num_experts={value.num_experts}.")
    if value.first_dense_layers >= num_layers:
        raise row.error(f"first_dense_layers must be below num_layers={num_layers}.")
    return value


def _mla(row: TomlRow | None) -> MLAShape | None:
    if row is None:
        return None
    sizes = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    rank = row.integer("q_lora_rank", 0, minimum=0)
    value = MLAShape(rank, *(row.integer(name) for name in sizes))
    row.finish()
    return value


def _hybrid(row: TomlRow | None, num_layers: int) -> HybridShape | None:
    if row is None:
        return None
    value = HybridShape(
        pattern=row.text("pattern"),
        mtp_pattern=row.text("mtp_pattern", ""),
        **{name: row.integer(name, 0, minimum=0) for name in _HYBRID_SIZES},
        attention_gate=row.flag("attention_gate", False),
        shared_expert_gate=row.flag("shared_expert_gate", False),
    )
    row.finish()
    letters, many = value.pattern + value.mtp_pattern, len(value.pattern)
    pairs = many == 2 * num_layers and not set(value.pattern[::2]) & set("E-")
    if set(letters) - set("MGK*LWCHE-") or not (many == num_layers or pairs):
        raise row.error(
            f"pattern needs a letter of M G K * L W C H E - for each of {num_layers} layers, or "
            "two."
        )
    for letter, sizes in _NEEDED.items():
        if letter in letters and not all(getattr(value, name) for name in sizes):
            raise row.error(f"pattern has {letter}, which needs {', '.join(sizes)}.")
    return value


_HYBRID_SIZES = (
    "mamba_num_heads", "mamba_head_dim", "mamba_num_groups", "mamba_state_dim",
    "expert_latent_size", "delta_key_heads", "delta_key_dim", "delta_value_heads",
    "delta_value_dim", "attention_chunk", "query_rank", "output_rank", "output_groups",
    "attention_window", "index_heads", "index_dim", "index_top_k",
)  # fmt: skip
_PARTS = {"M": (0, 4), "G": (5, 9), "K": (5, 7), "L": (9, 10), "W": (10, 14), "C": (10, 17)}
_NEEDED = {letter: _HYBRID_SIZES[slice(*part)] for letter, part in _PARTS.items()}
_NEEDED["H"] = _NEEDED["W"]


_SIZES = (
    *("hidden_size", "ffn_hidden_size", "num_query_groups", "head_dim", "vocab_size"),
    "max_sequence_length",
)
_COUNTS = ("learned_positions", "mtp_layers", "sliding_window")
_FLAGS = ("mlp_bias", "qk_norm", "qk_norm_full_width", "attention_sinks")


def model(row: TomlRow) -> ModelShape:
    """Return the model shape of a row."""
    num_layers = row.integer("num_layers")
    heads = row.integer("num_attention_heads")
    gated = row.flag("gated_mlp")
    padded = row.integer("padded_vocab_size") if "padded_vocab_size" in row.values else None
    row.texts("aliases")
    given: dict[str, Any] = {name: row.integer(name) for name in _SIZES}
    given |= {name: row.integer(name, 0, minimum=0) for name in _COUNTS}
    given |= {name: row.flag(name, False) for name in _FLAGS}
    value = ModelShape(
        name=row.label("name"),
        num_layers=num_layers,
        num_attention_heads=heads,
        gated_mlp=gated,
        tied_embeddings=row.flag("tied_embeddings"),
        normalization=row.choice("normalization", ("rms", "layer")),
        attention_bias=row.choice("attention_bias", ("none", "qkv", "all")),
        rope_theta=row.number("rope_theta", 10000.0),  # Megatron's --rotary-base
        moe=_moe(row.part("moe"), num_layers),
        mla=_mla(row.part("mla")),
        source=row.text("source"),
        activation=row.choice("activation", ACTIVATIONS, "silu" if gated else "gelu"),
        padded_vocab_size=padded,
        norms_per_layer=row.integer("norms_per_layer", 2),
        sliding_window_every=row.integer("sliding_window_every", 1),
        hybrid=_hybrid(row.part("hybrid"), num_layers),
        **given,
    )
    row.seen.add("padded_vocab_size")
    row.finish()
    if heads % value.num_query_groups:
        raise row.error(
            f"num_attention_heads={heads} is not a multiple of "
            f"num_query_groups={value.num_query_groups}.",
            "num_query_groups",
        )
    if padded is not None and padded < value.vocab_size:
        raise row.error("padded_vocab_size is below vocab_size.", "padded_vocab_size")
    return value


def platform(row: TomlRow) -> Platform:
    """Return the platform of a row."""
    value = Platform(
        name=row.label("name"),
        vendor=row.choice("vendor", ("cpu", *VENDORS)),
        accelerator=row.optional_text("accelerator"),
        gpus_per_node=row.integer("gpus_per_node"),
        default_precision=row.choice("default_precision", ("bf16", "fp16", "fp8", "fp32")),
        source=row.text("source"),
        network_gbps=row.optional_number("network_gbps"),
        network_source=row.text("network_source", ""),
    )
    row.finish()
    if (value.network_gbps is None) != (value.network_source == ""):
        raise row.error("network_gbps and network_source belong together.", "network_source")
    if (value.accelerator is None) != (value.vendor == "cpu"):
        raise row.error("every platform but a cpu names its accelerator.", "accelerator")
    return value


def strategy(row: TomlRow) -> Strategy:
    """Return the strategy of a row."""
    value = Strategy(
        name=row.label("name"),
        platform=row.text("platform", "*"),
        model=row.text("model", "*"),
        **{name: row.integer(name, 1) for name in PARALLEL_SIZES},
        aliases=row.texts("aliases"),
        source=row.text("source"),
    )
    row.finish()
    return value
