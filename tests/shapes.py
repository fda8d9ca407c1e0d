"""Small shapes whose dimensions tell the rules of legality apart."""

from __future__ import annotations

from dataclasses import replace

from scalebook.facts.catalog import ModelShape, MoEShape

DENSE = ModelShape(
    name="dense",
    num_layers=6,
    hidden_size=64,
    ffn_hidden_size=96,
    num_attention_heads=8,
    num_query_groups=2,
    head_dim=8,
    vocab_size=500,
    gated_mlp=True,
    tied_embeddings=False,
    normalization="rms",
    attention_bias="none",
    mlp_bias=False,
    qk_norm=False,
    learned_positions=0,
    max_sequence_length=128,
    rope_theta=10000.0,
    moe=None,
    mla=None,
    mtp_layers=0,
    source="test",
)
SHAPES = {
    "dense": DENSE,
    # tp=3 divides the heads, and neither divides nor is a multiple of the groups.
    "odd-groups": replace(DENSE, name="odd-groups", num_attention_heads=12, num_query_groups=4),
    # tp=3 divides heads and groups, not the FFN.
    "odd-ffn": replace(
        DENSE, name="odd-ffn", num_attention_heads=12, num_query_groups=3, ffn_hidden_size=88
    ),
    "moe": replace(
        DENSE,
        name="moe",
        num_layers=4,
        moe=MoEShape(
            num_experts=12,
            top_k=2,
            ffn_hidden_size=50,
            shared_ffn_hidden_size=0,
            first_dense_layers=0,
        ),
    ),
    # tp=4 divides everything but the shared expert.
    "shared": replace(
        DENSE,
        name="shared",
        num_layers=4,
        moe=MoEShape(
            num_experts=8,
            top_k=2,
            ffn_hidden_size=48,
            shared_ffn_hidden_size=50,
            first_dense_layers=0,
        ),
    ),
    # Each token meets one expert.
    "single": replace(
        DENSE,
        name="single",
        num_layers=4,
        moe=MoEShape(
            num_experts=8,
            top_k=1,
            ffn_hidden_size=48,
            shared_ffn_hidden_size=0,
            first_dense_layers=0,
        ),
    ),
}
