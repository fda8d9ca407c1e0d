"""Turn checked rows into the frozen values of the catalog."""

from __future__ import annotations

from types import MappingProxyType

from scalebook.facts.catalog.rows import TomlRow
from scalebook.facts.catalog.types import (
    Accelerator,
    HybridShape,
    MLAShape,
    ModelShape,
    MoEShape,
    Platform,
)

PRECISIONS = ("fp32", "fp32_matrix", "tf32", "bf16", "fp16", "fp8", "fp4", "int8")
ACTIVATIONS = ("silu", "gelu", "squared_relu")
VENDORS = ("nvidia", "amd", "intel", "google", "aws")


def accelerator(row: TomlRow) -> Accelerator:
    tables = ("peak_tflops", "sparse_peak_tflops", "best_product_tflops")
    peaks = {name: MappingProxyType(row.numbers(name, PRECISIONS)) for name in tables}
    value = row.built(Accelerator, **peaks)
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
    value = row.built(MoEShape)
    if value.top_k > value.num_experts:
        raise row.error(f"top_k={value.top_k} is more than num_experts={value.num_experts}.")
    if value.first_dense_layers >= num_layers:
        raise row.error(f"first_dense_layers must be below num_layers={num_layers}.")
    return value


def _hybrid(row: TomlRow | None, num_layers: int) -> HybridShape | None:
    if row is None:
        return None
    value = row.built(HybridShape)
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


_DELTA = ("delta_key_heads", "delta_key_dim")
_WINDOW = ("query_rank", "output_rank", "output_groups", "attention_window")
_NEEDED = {
    "M": ("mamba_num_heads", "mamba_head_dim", "mamba_num_groups", "mamba_state_dim"),
    "G": (*_DELTA, "delta_value_heads", "delta_value_dim"),
    "K": _DELTA,
    "L": ("attention_chunk",),
    "W": _WINDOW,
    "H": _WINDOW,
    "C": (*_WINDOW, "index_heads", "index_dim", "index_top_k"),
}


def model(row: TomlRow) -> ModelShape:
    layers, mla = row.integer("num_layers"), row.part("mla")
    row.texts("aliases")
    value = row.built(
        ModelShape,
        name=row.label("name"),
        normalization=row.choice("normalization", ("rms", "layer")),
        attention_bias=row.choice("attention_bias", ("none", "qkv", "all")),
        activation=row.choice(
            "activation", ACTIVATIONS, "silu" if row.values.get("gated_mlp") else "gelu"
        ),
        moe=_moe(row.part("moe"), layers),
        mla=mla and mla.built(MLAShape, q_lora_rank=mla.integer("q_lora_rank", 0, minimum=0)),
        hybrid=_hybrid(row.part("hybrid"), layers),
    )
    heads, padded = value.num_attention_heads, value.padded_vocab_size
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
    value = row.built(
        Platform,
        name=row.label("name"),
        vendor=row.choice("vendor", ("cpu", *VENDORS)),
        default_precision=row.choice("default_precision", ("bf16", "fp16", "fp8", "fp32")),
    )
    if (value.network_gbps is None) != (value.network_source == ""):
        raise row.error("network_gbps and network_source belong together.", "network_source")
    if (value.accelerator is None) != (value.vendor == "cpu"):
        raise row.error("every platform but a cpu names its accelerator.", "accelerator")
    return value
