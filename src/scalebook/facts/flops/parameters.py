"""How many parameters a model shape has, part by part."""

from __future__ import annotations

from dataclasses import dataclass

from scalebook.facts.catalog.types import MLAShape, ModelShape


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
        """All parameters of the layer."""
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

    @property
    def excluding_input_embedding(self) -> int:
        """All parameters but the input and position tables."""
        return self.total - self.embedding - self.positions


def _norm(shape: ModelShape, width: int) -> int:
    return width * (2 if shape.normalization == "layer" else 1)


def mla_projections(shape: ModelShape, mla: MLAShape) -> int:
    """Return the matrix elements of multi-latent attention's projections in one layer."""
    heads, hidden = shape.num_attention_heads, shape.hidden_size
    query_width = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    query = hidden * query_width
    if mla.q_lora_rank:
        query = mla.q_lora_rank * (hidden + query_width)
    down = hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim)
    up = mla.kv_lora_rank * heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    return query + down + up + heads * mla.v_head_dim * hidden


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
    matrices = 3 if shape.gated_mlp else 2
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


def dense_layers(shape: ModelShape) -> int:
    """Return how many layers have a dense MLP; the others are mixture-of-experts layers."""
    return shape.num_layers if shape.moe is None else shape.moe.first_dense_layers


def parameter_count(shape: ModelShape, vocab_size: int | None = None) -> ParameterCount:
    """Return the parameters of a model with its own vocabulary, or with ``vocab_size`` rows.

    DeepSeek-V3's multi-token prediction module holds two norms on its inputs, a projection from
    2h to h, one more layer and a norm (arXiv 2412.19437, section 2.2); it shares both tables.
    """
    rows = shape.vocab_size if vocab_size is None else vocab_size
    hidden, norm = shape.hidden_size, _norm(shape, shape.hidden_size)
    dense, other = (layer_parameters(shape, dense=flag) for flag in (True, False))
    n_dense = dense_layers(shape)
    n_other = shape.num_layers - n_dense
    layers = n_dense * dense.total + n_other * other.total
    active_layers = n_dense * dense.active + n_other * other.active
    embedding = rows * hidden
    lm_head = 0 if shape.tied_embeddings else rows * hidden
    positions = shape.learned_positions * hidden
    outside = embedding + lm_head + positions + norm
    return ParameterCount(
        total=layers + outside,
        active=active_layers + outside,
        embedding=embedding,
        lm_head=lm_head,
        positions=positions,
        final_norm=norm,
        layers=layers,
        active_layers=active_layers,
        mtp=shape.mtp_layers * (2 * hidden * hidden + 3 * norm + other.total),
    )
