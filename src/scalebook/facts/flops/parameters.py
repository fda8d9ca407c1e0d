"""How many parameters a model shape has, part by part."""

from __future__ import annotations

from dataclasses import dataclass

from scalebook.facts.catalog.types import HybridShape, MLAShape, ModelShape


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """Parameters of a transformer layer by part; ``mlp`` is the dense MLP or shared expert."""

    attention: int  # projections with their biases, latent and query-key norms, sinks
    norms: int
    mlp: int
    router: int
    experts: int  # all routed experts
    active_experts: int  # the top-k that a token visits

    @property
    def total(self) -> int:
        return self.attention + self.norms + self.mlp + self.router + self.experts

    @property
    def active(self) -> int:
        """The parameters that one token meets."""
        return self.total - self.experts + self.active_experts


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters of a model. ``total`` and ``active`` leave multi-token prediction (mtp) out."""

    total: int
    active: int  # what one token meets: top-k of the experts
    embedding: int  # the input table, which is also the output where they are tied
    lm_head: int  # 0 where tied to the input table
    positions: int  # learned position table
    final_norm: int
    layers: int  # all transformer layers
    active_layers: int
    mtp: int  # of all multi-token prediction modules, without the tables that they share


def _norm(shape: ModelShape, width: int) -> int:
    return width * (2 if shape.normalization == "layer" else 1)


def mla_projections(shape: ModelShape, mla: MLAShape) -> int:
    """Return the matrix elements of multi-latent attention's projections in one layer."""
    hidden = shape.hidden_size
    down = hidden * (mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope_head_dim)
    return down + mla_up_elements(shape, mla) + shape.num_attention_heads * mla.v_head_dim * hidden


def mla_up_elements(shape: ModelShape, mla: MLAShape) -> int:
    """Return the elements of the projections that make queries, keys and values of the latents.

    Without a query latent the queries are made of the hidden state, in the same step.
    """
    query = (mla.q_lora_rank or shape.hidden_size) * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    return shape.num_attention_heads * (
        query + mla.kv_lora_rank * (mla.qk_nope_head_dim + mla.v_head_dim)
    )


def attention_projections(shape: ModelShape) -> int:
    """Return the matrix elements of one layer's attention projections, biases left out."""
    if shape.mla is not None:
        return mla_projections(shape, shape.mla)
    query = shape.num_attention_heads * shape.head_dim
    key_value = shape.num_query_groups * shape.head_dim
    return shape.hidden_size * (query + 2 * key_value) + query * shape.hidden_size


def _attention_vectors(shape: ModelShape) -> int:
    """Return the biases, inner norms and sinks of one layer's attention."""
    sinks = shape.num_attention_heads if shape.attention_sinks else 0
    if shape.mla is not None:
        return _norm(shape, shape.mla.q_lora_rank) + _norm(shape, shape.mla.kv_lora_rank) + sinks
    query = shape.num_attention_heads * shape.head_dim
    key_value = shape.num_query_groups * shape.head_dim
    count = sinks
    if shape.attention_bias != "none":
        count += query + 2 * key_value
    if shape.attention_bias == "all":
        count += shape.hidden_size
    if shape.qk_norm:
        widths = (query, key_value) if shape.qk_norm_full_width else (shape.head_dim,) * 2
        count += sum(_norm(shape, width) for width in widths)
    return count


def _mlp(shape: ModelShape, width: int) -> int:
    matrices = shape.mlp_matrices
    biases = (matrices - 1) * width + shape.hidden_size if shape.mlp_bias and width else 0
    return matrices * shape.hidden_size * width + biases


def layer_parameters(shape: ModelShape, *, dense: bool) -> LayerParameters:
    """Return the parameters of a layer: a dense one, or one as the last layer of the model is."""
    attention = attention_projections(shape) + _attention_vectors(shape)
    norms = shape.norms_per_layer * _norm(shape, shape.hidden_size)
    moe = shape.moe
    if moe is None or dense:
        mlp = _mlp(shape, shape.ffn_hidden_size)
        return LayerParameters(attention, norms, mlp, 0, 0, 0)
    expert = _mlp(shape, moe.ffn_hidden_size)
    router = shape.hidden_size * moe.num_experts + (moe.num_experts if moe.router_bias else 0)
    return LayerParameters(
        attention,
        norms,
        _mlp(shape, moe.shared_ffn_hidden_size),
        router,
        moe.num_experts * expert,
        moe.top_k * expert,
    )


def _mamba(shape: ModelShape, hybrid: HybridShape) -> int:
    """Return the parameters of a Mamba-2 mixer: projections, convolution of 4, A, D, dt, norm."""
    inner = hybrid.mamba_num_heads * hybrid.mamba_head_dim
    states = 2 * hybrid.mamba_num_groups * hybrid.mamba_state_dim
    entering = shape.hidden_size * (2 * inner + states + hybrid.mamba_num_heads)
    convolution = (4 + 1) * (inner + states)
    return entering + convolution + 3 * hybrid.mamba_num_heads + inner + inner * shape.hidden_size


def delta_projections(shape: ModelShape, hybrid: HybridShape) -> int:
    """Return the matrix elements of a gated delta net: in, the convolution of 4, and out."""
    keys = hybrid.delta_key_heads * hybrid.delta_key_dim
    values = hybrid.delta_value_heads * hybrid.delta_value_dim
    entering = shape.hidden_size * (2 * keys + 2 * values + 2 * hybrid.delta_value_heads)
    return entering + 4 * (2 * keys + values) + shape.hidden_size * values


def kimi_projections(shape: ModelShape, hybrid: HybridShape) -> int:
    """Return the elements of Kimi delta attention that see the hidden state, its gates left out.

    Queries, keys, values and the output, a number per head, and the convolutions of 4.
    """
    heads, dim = hybrid.delta_key_heads, hybrid.delta_key_dim
    return shape.hidden_size * heads * (4 * dim + 1) + 4 * 3 * heads * dim


def compressed_projections(shape: ModelShape, hybrid: HybridShape, letter: str) -> int:
    """Return the matrix elements of DeepSeek-V4's attention: projections, compressor, indexer.

    One head of ``head_dim`` is both key and value of all; of every 4 tokens two are kept apart.
    """
    hidden, width = shape.hidden_size, shape.num_attention_heads * shape.head_dim
    entering = hybrid.query_rank * (hidden + width) + hidden * shape.head_dim
    leaving = hybrid.output_rank * (width + hybrid.output_groups * hidden)
    compressor = {"H": 2, "C": 4}.get(letter, 0) * hidden * shape.head_dim
    index = 0
    if letter == "C":
        index = hidden * (4 * hybrid.index_dim + hybrid.index_heads)
        index += hybrid.query_rank * hybrid.index_heads * hybrid.index_dim
    return entering + leaving + compressor + index


def _mixer(shape: ModelShape, hybrid: HybridShape, letter: str) -> int:
    if letter == "M":
        return _mamba(shape, hybrid)
    if letter == "G":  # and A, dt and a norm over a head
        vectors = 2 * hybrid.delta_value_heads + hybrid.delta_value_dim
        return delta_projections(shape, hybrid) + vectors
    if letter == "K":  # two gates of low rank, and A, dt and a norm over a head
        heads, dim = hybrid.delta_key_heads, hybrid.delta_key_dim
        gates = 2 * dim * (shape.hidden_size + heads * dim) + heads + (heads + 1) * dim
        return kimi_projections(shape, hybrid) + gates
    # The places within a group that a compressor learns, and hyper-connections, are left out.
    vectors = hybrid.query_rank + shape.head_dim + shape.num_attention_heads
    return compressed_projections(shape, hybrid, letter) + vectors


def hybrid_layer(shape: ModelShape, hybrid: HybridShape, letter: str) -> LayerParameters:
    """Return the parameters of a layer of a hybrid stack; a mixer counts as ``attention``."""
    norm = _norm(shape, shape.hidden_size)
    if letter in "MGKWCH":
        return LayerParameters(_mixer(shape, hybrid, letter), norm, 0, 0, 0, 0)
    whole = layer_parameters(shape, dense=letter != "E")
    if letter in "*L":
        width = shape.num_attention_heads * shape.head_dim if hybrid.attention_gate else 0
        attention = whole.attention + shape.hidden_size * width
        return LayerParameters(attention, norm, 0, 0, 0, 0)
    mlp, moe, latent = whole.mlp, shape.moe, hybrid.expert_latent_size
    if letter == "-" or moe is None:
        return LayerParameters(0, norm, mlp, 0, 0, 0)
    expert = whole.experts // moe.num_experts
    mlp += shape.hidden_size if hybrid.shared_expert_gate else 0
    if latent:  # experts work between a projection down and one up
        mlp += 2 * shape.hidden_size * latent
        expert = expert // shape.hidden_size * latent
    experts = moe.num_experts * expert, moe.top_k * expert
    return LayerParameters(0, norm, mlp, whole.router, *experts)


def dense_layers(shape: ModelShape) -> int:
    """Return how many layers have a dense MLP; the others are mixture-of-experts layers."""
    return shape.num_layers if shape.moe is None else shape.moe.first_dense_layers


def _stack(shape: ModelShape) -> tuple[list[LayerParameters], list[LayerParameters]]:
    """Return every layer, and those of a multi-token prediction module."""
    if (hybrid := shape.hybrid) is not None:
        letters = {*hybrid.pattern, *hybrid.mtp_pattern}
        kinds = {letter: hybrid_layer(shape, hybrid, letter) for letter in letters}
        return [kinds[one] for one in hybrid.pattern], [kinds[one] for one in hybrid.mtp_pattern]
    dense, other = (layer_parameters(shape, dense=flag) for flag in (True, False))
    n_dense = dense_layers(shape)
    return [dense] * n_dense + [other] * (shape.num_layers - n_dense), [other]


def parameter_count(shape: ModelShape, vocab_size: int | None = None) -> ParameterCount:
    """Return the parameters of a model with its own vocabulary, or with ``vocab_size`` rows.

    DeepSeek-V3's multi-token prediction module holds two norms on its inputs, a projection from
    2h to h, one more layer and a norm (arXiv 2412.19437, section 2.2); it shares both tables.
    """
    rows = shape.vocab_size if vocab_size is None else vocab_size
    hidden, norm = shape.hidden_size, _norm(shape, shape.hidden_size)
    stack, module = _stack(shape)
    layers, active_layers = (sum(one.total for one in stack), sum(one.active for one in stack))
    embedding = rows * hidden
    lm_head = 0 if shape.tied_embeddings else rows * hidden
    positions = shape.learned_positions * hidden
    outside = embedding + lm_head + positions + norm
    # A hybrid model has one module, which runs as often as there are predictions.
    modules = min(shape.mtp_layers, 1) if shape.hybrid else shape.mtp_layers
    return ParameterCount(
        total=layers + outside,
        active=active_layers + outside,
        embedding=embedding,
        lm_head=lm_head,
        positions=positions,
        final_norm=norm,
        layers=layers,
        active_layers=active_layers,
        mtp=modules * (2 * hidden * hidden + 3 * norm + sum(one.total for one in module)),
    )
