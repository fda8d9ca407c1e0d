"""FLOPs per trained token by named convention, split by where they are spent.

A multiplication and an addition count as two. Forward and backward together are three forwards
(Kaplan 2020, arXiv 2001.08361). Left out by every convention: norms, activations, softmax, rotary
embedding, the router, the optimizer. MaxText counts as ``megatron_causal``, its own vocabulary
and the router with it (2 h per expert and layer).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from scalebook.errors import ConfigError, unknown
from scalebook.facts.catalog.types import ATTENTION, HybridShape, ModelShape
from scalebook.facts.flops.parameters import (
    attention_projections,
    compressed_projections,
    delta_projections,
    dense_layers,
    hybrid_layer,
    kimi_projections,
    layer_parameters,
    mla_up_elements,
    parameter_count,
)

DEFAULT_CONVENTION = "megatron_causal"

# Those that frameworks print come first: where several fit within the printed digits, the first is
# the likeliest.
CONVENTIONS: Mapping[str, str] = MappingProxyType(
    {
        "megatron_causal": "matrix products, attention halved for its mask, padded vocabulary "
        "(Megatron-LM since core 0.12, Megatron-Bridge, NeMo)",
        "full_attention": "matrix products, the whole attention square (Megatron-LM before, "
        "NeMo 24.07, DGX Cloud recipes, nanotron)",
        "sliding_window": "as megatron_causal, layers with a window or chunks count the pairs in "
        "them (Megatron-Bridge since 26.06 for gpt-oss)",
        "torchtitan": "6 (N without position table and untied input embedding) + 12 L q s "
        "(torchtitan)",
        "llm_foundry": "6 (N without untied input embedding) + 12 L q s (llm-foundry)",
        "palm_6n": "6 N + 12 L q s, input embedding counted (PaLM appendix B, arXiv 2204.02311; "
        "picotron)",
        "six_n": "6 N, active N for a mixture of experts (Kaplan 2020, arXiv 2001.08361)",
        "hf_total_flos": "6 (N without embedding tables), all experts counted, no attention "
        "(Hugging Face Trainer, total_flos)",
        "narayanan_printed": "96 l h^2 (1 + s/6h + V/16lh) as printed, whatever the MLP and the "
        "key-value groups, so hardware FLOPs (arXiv 2104.04473, equation 3)",
        "narayanan_2021": "narayanan_printed generalised: the whole square of this model's own "
        "matrices with every layer recomputed, so hardware FLOPs",
        "exact_causal": "matrix products, attention counted as s (s + 1) / 2 pairs",
    }
)

# Conventions whose model FLOPs contain a second forward pass of every layer.
RECOMPUTED = ("narayanan_printed", "narayanan_2021")

# What is trained -> share of the matrix products' FLOPs that are due. A frozen weight has no
# gradient of its own: its product runs forward and once backward, for the gradient of its input.
# Attention has no weights: its backward pass is due in full wherever there is one. The adapters'
# own products (below 1 %) are left out (Hu 2021, arXiv 2106.09685).
TRAINED: Mapping[str, float] = MappingProxyType({"all": 1.0, "lora": 2 / 3, "forward": 1 / 3})


@dataclass(frozen=True, slots=True)
class FlopParts:
    """FLOPs per token, forward and backward, by where they are spent."""

    layers: float  # projections and MLPs of all layers
    attention_core: float  # query-key scores and their product with the values
    logits: float  # output layer (and, for 6 N conventions, every table they count)
    mtp: float  # multi-token prediction modules

    @property
    def total(self) -> float:
        return self.layers + self.attention_core + self.logits + self.mtp

    def due(self, trained: str) -> FlopParts:
        """Return what is due where only ``trained`` (of ``TRAINED``) has gradients.

        Raises:
            ConfigError: it is not one of them.
        """
        if trained not in TRAINED:
            raise ConfigError(unknown("trained part", trained, TRAINED))
        share = TRAINED[trained]
        core = self.attention_core * (share if trained == "forward" else 1.0)
        return FlopParts(self.layers * share, core, self.logits * share, self.mtp * share)


def _mlp_elements(shape: ModelShape, *, dense: bool) -> int:
    """Return the MLP matrix elements that a token meets in one layer."""
    moe = shape.moe
    if moe is None or dense:
        width = shape.ffn_hidden_size
    else:
        width = moe.ffn_hidden_size * moe.top_k + moe.shared_ffn_hidden_size
    return shape.mlp_matrices * shape.hidden_size * width


def module_elements(shape: ModelShape, module: str) -> int:
    """Return the matrix elements that a token meets in a module of ``RECOMPUTE_MODULES``.

    Of all layers, as Megatron-Core cuts them: ``moe`` has the shared experts and no router. Norms
    and activations have none, nor has the attention core.
    """
    dense = dense_layers(shape)
    letters = shape.hybrid.pattern if shape.hybrid else "-" * dense
    mixed = letters.count("E") if shape.hybrid else shape.num_layers - dense
    if module == "mlp":
        return letters.count("-") * _mlp_elements(shape, dense=True)
    if module == "moe" and mixed:
        return mixed * _mlp_elements(shape, dense=False)
    if module == "shared_experts" and shape.moe:
        width = shape.moe.shared_ffn_hidden_size
        return mixed * shape.mlp_matrices * shape.hidden_size * width
    if module == "mla_up_proj" and shape.mla:
        return shape.attention_layers * mla_up_elements(shape, shape.mla)
    return 0


def _latent_norms(shape: ModelShape) -> int:
    """Return the latent norm terms that Megatron-LM's formula counts for MLA, one layer."""
    return shape.mla.q_lora_rank + shape.mla.kv_lora_rank if shape.mla else 0


def attention_width(shape: ModelShape) -> float:
    """Return q, the width of the attention core: a d, or for MLA the mean over scores and values.

    The core takes 12 q s FLOPs per token and layer over the whole square: 4 q s forward.
    """
    if shape.mla is None:
        return shape.num_attention_heads * shape.head_dim
    mla = shape.mla
    widths = mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim
    return shape.num_attention_heads * widths / 2


def _pairs_per_token(
    shape: ModelShape, sequence_length: float, convention: str, chunk: int = 0
) -> float:
    """Return the score pairs a token takes part in, the mean over tokens and layers.

    Chunks of ``chunk`` tokens, the last being what is left, are counted as MaxText does: halved.
    """
    causal = sequence_length / 2  # the halved square, without the half of the diagonal
    if convention in ("sliding_window", "exact_causal") and 0 < chunk < sequence_length:
        whole, rest = divmod(sequence_length, chunk)
        itself = 1 if convention == "exact_causal" else 0
        return (whole * chunk * (chunk + itself) + rest * (rest + itself)) / 2 / sequence_length
    if convention in ("full_attention", "narayanan_2021"):
        return sequence_length
    if convention == "exact_causal":
        return (sequence_length + 1) / 2
    window = shape.sliding_window
    if convention != "sliding_window" or not 0 < window < sequence_length:
        return causal
    inside = min(window - window * (window - 1) / (2 * sequence_length), causal)
    windowed = -(-shape.num_layers // shape.sliding_window_every)  # the first of each such group
    share = windowed / shape.num_layers
    return share * inside + (1 - share) * causal


def _six_n_parts(
    shape: ModelShape, sequence_length: float, convention: str, mtp_layers: int
) -> FlopParts:
    """6 N and what some add for attention; ``layers`` holds 6 N of the layers only."""
    count = parameter_count(shape)
    outside = count.active - count.active_layers
    every_expert = convention == "hf_total_flos"
    grown = max(0, math.ceil(sequence_length) - shape.learned_positions) * shape.hidden_size
    if shape.learned_positions and convention != "torchtitan":  # a table of so many rows at least
        outside += grown
    if every_expert:  # every table of nn.Embedding is left out, and with it an output tied to it
        outside -= count.positions + grown * bool(shape.learned_positions) + count.embedding
    elif convention in ("torchtitan", "llm_foundry"):
        outside -= 0 if shape.tied_embeddings else count.embedding
        outside -= count.positions if convention == "torchtitan" else 0
    core = 0.0
    if convention not in ("six_n", "hf_total_flos"):
        core = 12 * attention_width(shape) * sequence_length
    hybrid = shape.hybrid
    last = [layer_parameters(shape, dense=False)]
    if hybrid:
        last = [hybrid_layer(shape, hybrid, letter) for letter in hybrid.mtp_pattern]
    met = sum(one.total if every_expert else one.active for one in last)
    module = 6 * (met + 2 * shape.hidden_size**2) + core
    layers = 6 * (count.layers if every_expert else count.active_layers)
    return FlopParts(layers, shape.attention_layers * core, 6 * outside, mtp_layers * module)


def _printed_parts(shape: ModelShape, sequence_length: float, mtp_layers: int) -> FlopParts:
    """Narayanan's equation 3 by part: 72 l h^2 forward and backward and a third of it again."""
    hidden = shape.hidden_size
    layer, core, logits = 96 * hidden**2, 16 * hidden * sequence_length, 6 * hidden * _rows(shape)
    many = shape.num_layers
    return FlopParts(many * layer, many * core, logits, mtp_layers * (layer + core + logits))


def _rows(shape: ModelShape) -> int:
    """Return the output rows that published Megatron results of the model count."""
    return shape.padded_vocab_size or shape.vocab_size


def _hybrid_elements(shape: ModelShape, hybrid: HybridShape, letter: str) -> float:
    """Return the matrix elements that a token meets in a layer of a hybrid stack."""
    hidden, moe, latent = shape.hidden_size, shape.moe, hybrid.expert_latent_size
    if letter in "*L":
        gate = shape.num_attention_heads * shape.head_dim * hidden if hybrid.attention_gate else 0
        return attention_projections(shape) + _latent_norms(shape) + gate
    if letter not in "E-":
        return _mixer_elements(shape, hybrid, letter)
    if letter == "-" or moe is None or not latent:
        return _mlp_elements(shape, dense=letter == "-")
    matrices = shape.mlp_matrices
    routed = matrices * latent * moe.ffn_hidden_size * moe.top_k + 2 * hidden * latent
    return routed + matrices * hidden * moe.shared_ffn_hidden_size


def _mixer_elements(shape: ModelShape, hybrid: HybridShape, letter: str) -> float:
    """Return the elements of a mixer as frameworks count it.

    Megatron-LM counts an inner width of 2 h for Mamba, whatever its heads are, and 7 FLOPs per
    element of the state for its scan; for delta nets four products of a head's state and a value.
    Megatron-Bridge counts the output gate of Kimi delta attention whole, as Kimi K3 has it.
    """
    hidden = shape.hidden_size
    if letter == "G":
        state = hybrid.delta_value_heads * hybrid.delta_value_dim**2
        return delta_projections(shape, hybrid) + 4 * state
    if letter == "M":
        states = 2 * hybrid.mamba_num_groups * hybrid.mamba_state_dim
        projections = hidden * (4 * hidden + states + hybrid.mamba_num_heads) + 2 * hidden**2
        return projections + 7 / 2 * 2 * hidden * hybrid.mamba_state_dim
    if letter == "K":
        dim, width = hybrid.delta_key_dim, hybrid.delta_key_heads * hybrid.delta_key_dim
        gates = hidden * (width + dim) + dim * width
        return kimi_projections(shape, hybrid) + gates + 4 * width * dim
    return compressed_projections(shape, hybrid, letter) + hybrid.query_rank + shape.head_dim


def _core(shape: ModelShape, hybrid: HybridShape, letter: str, length: float, name: str) -> float:
    """Return the FLOPs per token of comparing tokens in a layer of a hybrid stack.

    DeepSeek-V4's as Megatron-Bridge counts them, whatever the convention: the window without its
    beginning, the causal half of the compressed tokens, every score of the indexer.
    """
    width = attention_width(shape)
    if letter in "*L":
        chunk = hybrid.attention_chunk if letter == "L" else 0
        return 12 * width * _pairs_per_token(shape, length, name, chunk)
    pairs, index = float(hybrid.attention_window), 0.0
    if letter == "H":
        pairs += length / 128 / 2
    elif letter == "C":
        chosen = min(float(hybrid.index_top_k), length // 4)
        pairs += chosen * (1 - 4 * chosen / (2 * length))
        index = hybrid.index_heads * hybrid.index_dim * length / 4
    return 12 * width * pairs + 6 * index


def _hybrid_parts(
    shape: ModelShape, length: float, name: str, mtp_layers: int, logits: float
) -> FlopParts:
    """Sum over a hybrid stack as Megatron-LM's num_floating_point_operations (hybrid_flops).

    Where each layer has two letters, as its transformer_flops: with the projection of two hidden
    states into a module for a further token.
    """
    hybrid = shape.hybrid
    assert hybrid is not None

    def layers(pattern: str) -> float:
        return 6 * sum(_hybrid_elements(shape, hybrid, letter) for letter in pattern)

    def cores(pattern: str) -> float:
        kinds = {letter: pattern.count(letter) for letter in ATTENTION if letter in pattern}
        return sum(many * _core(shape, hybrid, each, length, name) for each, many in kinds.items())

    joint = 6 * shape.hidden_size * (2 * shape.hidden_size + 3)
    joint *= len(hybrid.pattern) > shape.num_layers
    module = layers(hybrid.mtp_pattern) + cores(hybrid.mtp_pattern) + joint + logits
    pattern = hybrid.pattern
    return FlopParts(layers(pattern), cores(pattern), logits, mtp_layers * module)


def _matmul_parts(
    shape: ModelShape, sequence_length: float, convention: str, mtp_layers: int, vocab_size: int
) -> FlopParts:
    """Sum of the matrix products, 6 FLOPs an element, and 12 q FLOPs a score pair."""
    logits = 6 * shape.hidden_size * vocab_size
    if shape.hybrid:
        return _hybrid_parts(shape, sequence_length, convention, mtp_layers, logits)
    pairs = _pairs_per_token(shape, sequence_length, convention)
    megatron = convention in ("megatron_causal", "sliding_window")
    projections = attention_projections(shape) + (_latent_norms(shape) if megatron else 0)
    n_dense = dense_layers(shape)
    n_other = shape.num_layers - n_dense
    last = projections + _mlp_elements(shape, dense=False)
    elements = n_dense * (projections + _mlp_elements(shape, dense=True)) + n_other * last
    width = attention_width(shape)
    hidden = shape.hidden_size
    joint = 2 * hidden * hidden + (3 * hidden if megatron else 0)
    # A module for a further token sees all before it, where only some layers have a window.
    alike = convention != "sliding_window" or shape.sliding_window_every == 1
    seen = pairs if alike else _pairs_per_token(shape, sequence_length, DEFAULT_CONVENTION)
    module = 6 * (last + joint) + 12 * width * seen + logits
    core = 12 * shape.num_layers * width * pairs
    return FlopParts(6 * elements, core, logits, mtp_layers * module)


def flop_parts(
    shape: ModelShape,
    sequence_length: float,
    convention: str = DEFAULT_CONVENTION,
    *,
    mtp_layers: int = 0,
    vocab_size: int | None = None,
) -> FlopParts:
    """Return FLOPs per token, forward and backward, by part.

    ``vocab_size`` is the number of output rows that the matrix-product conventions count; the
    default is what published Megatron results of the model count, else the model's own.
    ``narayanan_2021`` generalises the paper's formula: 4/3 of the layers of ``full_attention``,
    which is ``narayanan_printed`` for the paper's models.

    Raises:
        ConfigError: the convention is unknown or the sequence length is not above zero.
    """
    if convention not in CONVENTIONS:
        raise ConfigError(unknown("convention", convention, CONVENTIONS))
    if not math.isfinite(sequence_length) or sequence_length <= 0:
        raise ConfigError(f"sequence_length={sequence_length} must be above zero.")
    if convention in ("palm_6n", "six_n", "torchtitan", "llm_foundry", "hf_total_flos"):
        return _six_n_parts(shape, sequence_length, convention, mtp_layers)
    if convention == "narayanan_printed":
        return _printed_parts(shape, sequence_length, mtp_layers)
    rows = vocab_size
    if rows is None:
        rows = shape.vocab_size if convention == "exact_causal" else _rows(shape)
    found = _matmul_parts(shape, sequence_length, convention, mtp_layers, rows)
    if convention != "narayanan_2021":
        return found
    return FlopParts(found.layers * 4 / 3, found.attention_core * 4 / 3, found.logits, found.mtp)
