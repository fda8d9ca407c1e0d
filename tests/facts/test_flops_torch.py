"""``full_attention`` against the matrix products that torch counts on real small models."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scalebook.facts.catalog import MLAShape, MoEShape, model
from scalebook.facts.flops import flops_per_token

torch = pytest.importorskip("torch")
BATCH, LENGTH = 2, 24


def weight(rows, columns):
    return torch.nn.Parameter(torch.randn(rows, columns) * 0.02)


def heads(x, count):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


class Attention(torch.nn.Module):
    """Grouped-query attention with an explicit score matrix."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        query = shape.num_attention_heads * shape.head_dim
        group = shape.num_query_groups * shape.head_dim
        sizes = ((shape.hidden_size, query), (shape.hidden_size, group))
        self.q, self.k, self.v = weight(*sizes[0]), weight(*sizes[1]), weight(*sizes[1])
        self.o = weight(query, shape.hidden_size)

    def forward(self, x):
        shape = self.shape
        repeat = shape.num_attention_heads // shape.num_query_groups
        q = heads(x @ self.q, shape.num_attention_heads)
        k, v = (
            heads(x @ w, shape.num_query_groups).repeat_interleave(repeat, dim=1)
            for w in (self.k, self.v)
        )
        scores = (q @ k.transpose(-1, -2)).softmax(-1)
        return (scores @ v).transpose(1, 2).flatten(2) @ self.o


class LatentAttention(torch.nn.Module):
    """Multi-latent attention as DeepSeek-V2 describes it, without norms and rotation."""

    def __init__(self, shape):
        super().__init__()
        self.shape, mla = shape, shape.mla
        count, score = shape.num_attention_heads, mla.qk_nope_head_dim + mla.qk_rope_head_dim
        self.q_down = weight(shape.hidden_size, mla.q_lora_rank)
        self.q_up = weight(mla.q_lora_rank, count * score)
        self.kv_down = weight(shape.hidden_size, mla.kv_lora_rank + mla.qk_rope_head_dim)
        self.kv_up = weight(mla.kv_lora_rank, count * (mla.qk_nope_head_dim + mla.v_head_dim))
        self.o = weight(count * mla.v_head_dim, shape.hidden_size)

    def forward(self, x):
        mla, count = self.shape.mla, self.shape.num_attention_heads
        q = heads(x @ self.q_down @ self.q_up, count)
        latent, rope = (x @ self.kv_down).split([mla.kv_lora_rank, mla.qk_rope_head_dim], -1)
        k, v = heads(latent @ self.kv_up, count).split([mla.qk_nope_head_dim, mla.v_head_dim], -1)
        k = torch.cat([k, heads(rope, 1).expand(-1, count, -1, -1)], -1)
        scores = (q @ k.transpose(-1, -2)).softmax(-1)
        return (scores @ v).transpose(1, 2).flatten(2) @ self.o


class MLP(torch.nn.Module):
    def __init__(self, hidden, width, gated):
        super().__init__()
        self.up, self.down = weight(hidden, width), weight(width, hidden)
        self.gate = weight(hidden, width) if gated else None

    def forward(self, x):
        inner = x @ self.up
        if self.gate is not None:
            inner = inner * torch.nn.functional.silu(x @ self.gate)
        return inner @ self.down


class Experts(torch.nn.Module):
    """Experts that every token visits (top-k equals their number), so that counts are exact."""

    def __init__(self, shape):
        super().__init__()
        hidden, moe = shape.hidden_size, shape.moe
        self.experts = torch.nn.ModuleList(
            MLP(hidden, moe.ffn_hidden_size, shape.gated_mlp) for _ in range(moe.num_experts)
        )
        self.shared = MLP(hidden, moe.shared_ffn_hidden_size, shape.gated_mlp)

    def forward(self, x):
        return self.shared(x) + sum(expert(x) for expert in self.experts)


class Model(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.embedding = torch.nn.Embedding(shape.vocab_size, shape.hidden_size)
        attention = LatentAttention if shape.mla else Attention
        self.attention = torch.nn.ModuleList(attention(shape) for _ in range(shape.num_layers))
        dense = shape.moe.first_dense_layers if shape.moe else shape.num_layers
        self.mlp = torch.nn.ModuleList(
            MLP(shape.hidden_size, shape.ffn_hidden_size, shape.gated_mlp)
            if index < dense
            else Experts(shape)
            for index in range(shape.num_layers)
        )
        self.head = weight(shape.hidden_size, shape.vocab_size)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for attention, mlp in zip(self.attention, self.mlp, strict=True):
            x = x + attention(x)
            x = x + mlp(x)
        return x @ self.head


TINY = replace(model("tiny-llama"), num_layers=3, hidden_size=32, ffn_hidden_size=48, vocab_size=96)
SHAPES = {
    "grouped queries, head width unlike h/a": TINY,
    "plain MLP, all heads": replace(TINY, gated_mlp=False, num_query_groups=8),
    "experts, shared expert, dense first layer": replace(
        TINY, moe=MoEShape(3, 3, 20, 12, first_dense_layers=1)
    ),
    "multi-latent attention": replace(TINY, mla=MLAShape(12, 10, 6, 4, 5)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_full_attention_agrees_with_torchs_count_to_the_product(name):
    from torch.utils.flop_counter import FlopCounterMode

    shape = SHAPES[name]
    network = Model(shape)
    tokens = torch.randint(shape.vocab_size, (BATCH, LENGTH))
    counter = FlopCounterMode(display=False)
    with counter:
        network(tokens).sum().backward()
    expected = flops_per_token(shape, LENGTH, "full_attention") * BATCH * LENGTH
    assert counter.get_total_flops() == expected
