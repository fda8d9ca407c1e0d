"""The frozen values that catalog rows become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Names of models made for a CPU: they say nothing about an accelerator, and nobody else means them.
TINY = "tiny-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device as the driver counts it (an MI250X is two).

    Peaks are dense TFLOP/s per device by precision name (``bf16``, ``fp16``, ``fp8``, ``fp4``,
    ``fp32``, ``tf32``, ``int8``); a precision that the device lacks, or whose peak nobody
    published, is absent. ``sparse_peak_tflops`` holds the 2:4 figures that vendors advertise and
    is used only to recognise them in other people's claims. ``best_product_tflops`` is the fastest
    matrix product that somebody measured on the device (ml-engineering, compute/accelerator).
    """

    name: str
    vendor: str
    architecture: str = ""
    memory_gb: float
    memory_bandwidth_tb_per_second: float | None
    interconnect_gb_per_second: float | None
    tdp_watts: float | None
    peak_clock_mhz: float | None  # at which the peaks hold, where it is published
    peak_tflops: Mapping[str, float]
    sparse_peak_tflops: Mapping[str, float]
    best_product_tflops: Mapping[str, float]
    device_names: tuple[str, ...]
    compute_capability: str = ""
    confidence: str = "high"
    source: str
    notes: str = ""
    form_factor: str = ""
    retrieved: str | None = None  # the day when the source was read


@dataclass(frozen=True, slots=True)
class MoEShape:
    """Mixture-of-experts part of a model: every layer after ``first_dense_layers`` is MoE."""

    num_experts: int
    top_k: int
    ffn_hidden_size: int
    shared_ffn_hidden_size: int = 0
    first_dense_layers: int = 0
    router_bias: bool = False  # one learned number an expert


@dataclass(frozen=True, slots=True)
class MLAShape:
    """Multi-latent attention (DeepSeek-V2, arXiv 2405.04434); ``q_lora_rank`` 0 means none."""

    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


ATTENTION = "*LWCH"  # the letters of a hybrid stack whose layers compare tokens


@dataclass(frozen=True, slots=True)
class HybridShape:
    """Layers of several kinds in one stack, each a mixer or an MLP only (arXiv 2504.03624).

    A letter per layer, as Megatron-LM writes its pattern: ``M`` Mamba-2 (arXiv 2405.21060), ``G``
    gated delta net (arXiv 2412.06464), ``K`` Kimi delta attention (arXiv 2510.26692), ``*``
    attention, ``L`` the same inside chunks of ``attention_chunk`` tokens, ``E`` experts, ``-`` a
    dense MLP. DeepSeek-V4's attention sees a window of tokens (``W``), and before it the best of
    every 4 tokens as one (``C``) or every 128 (``H``). Where a layer of the model is a mixer and an
    MLP, it has two letters.
    """

    pattern: str
    mtp_pattern: str = ""  # of one multi-token prediction module
    mamba_num_heads: int = 0
    mamba_head_dim: int = 0
    mamba_num_groups: int = 0
    mamba_state_dim: int = 0
    expert_latent_size: int = 0  # width in which routed experts work; 0: the hidden size
    delta_key_heads: int = 0
    delta_value_heads: int = 0
    delta_key_dim: int = 0  # of a head
    delta_value_dim: int = 0
    attention_chunk: int = 0  # tokens
    query_rank: int = 0  # of DeepSeek-V4: queries and the output are made in two steps each
    output_rank: int = 0
    output_groups: int = 0
    attention_window: int = 0  # tokens
    index_heads: int = 0  # of the indexer that chooses
    index_dim: int = 0
    index_top_k: int = 0
    attention_gate: bool = False  # queries have a gate of their own width
    shared_expert_gate: bool = False  # one learned number per token and element of the hidden size

    @property
    def words(self) -> str:
        """What its layers are, for a sentence on what they rule out."""
        kinds = (("M", "Mamba layers"), ("G", "gated delta net layers"))
        kinds += (("K", "Kimi delta attention"), ("C", "compressed sparse attention"))
        return next((name for one, name in kinds if one in self.pattern), "layers of two kinds")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The architecture of a decoder-only model, enough to count its FLOPs and bytes."""

    name: str
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    head_dim: int
    vocab_size: int
    gated_mlp: bool
    tied_embeddings: bool
    normalization: str  # "rms" or "layer"
    attention_bias: str  # "none", "qkv" or "all"
    mlp_bias: bool = False
    qk_norm: bool = False
    learned_positions: int = 0  # rows of a learned position table; 0 for rotary or none
    max_sequence_length: int
    rope_theta: float = 10000.0  # Megatron's --rotary-base
    moe: MoEShape | None = None
    mla: MLAShape | None = None
    mtp_layers: int = 0
    source: str
    activation: str = "silu"  # "gelu" or "squared_relu": no part of any count of FLOPs
    padded_vocab_size: int | None = None  # what published Megatron results count; None: vocab_size
    norms_per_layer: int = 2
    qk_norm_full_width: bool = False  # one norm over all heads instead of one head
    attention_sinks: bool = False  # one learned logit a head
    sliding_window: int = 0  # tokens; 0: none
    sliding_window_every: int = 1  # of how many layers one has the window
    hybrid: HybridShape | None = None  # None: each layer is attention and an MLP

    @property
    def mlp_matrices(self) -> int:
        """The matrices of an MLP: a gated one has a third."""
        return 3 if self.gated_mlp else 2

    @property
    def attention_layers(self) -> int:
        """The layers that have attention."""
        pattern = self.hybrid.pattern if self.hybrid else "*" * self.num_layers
        return sum(pattern.count(letter) for letter in ATTENTION)

    @property
    def num_experts(self) -> int:
        """Experts of a layer that has them; 0 in a dense model."""
        return self.moe.num_experts if self.moe else 0


@dataclass(frozen=True, slots=True)
class Platform:
    """What a user names on the command line: a node type and the accelerator that it holds."""

    name: str
    vendor: str  # "cpu", "nvidia", "amd"
    accelerator: str | None  # a name in accelerators.toml; None for cpu
    gpus_per_node: int
    default_precision: str
    source: str
    network_gbps: float | None = None  # between nodes, of one device in one direction
    network_source: str = ""
    host_memory_gb: float | None = None  # of a node


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A named parallelism for a model on a platform, for the number of GPUs it was written for."""

    name: str
    platform: str = "*"  # a platform name, a vendor, or "*"
    model: str = "*"  # a model name or "*"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    context_parallel_size: int = 1
    expert_parallel_size: int = 1
    aliases: tuple[str, ...]
    source: str
