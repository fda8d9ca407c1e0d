"""Published memory formulas, each as its authors wrote it, to compare with and to test against.

``memory.estimate`` does not use the activation formulas here: they were written for two-matrix MLPs
with dropout masks and count a gated MLP too low.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scalebook.errors import ConfigError, unknown
from scalebook.facts.catalog.types import ModelShape
from scalebook.parallelism import Parallelism

MIB = 2**20
GIB = 2**30


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes a parameter of weights, gradients and optimizer states, and which are shared out."""

    weights: float
    gradients: float
    optimizer: float
    sharded: frozenset[str] = frozenset()

    def per_parameter(self, shards: int) -> float:
        """Return bytes a parameter on one of ``shards`` data-parallel ranks."""
        parts = {
            "weights": self.weights,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
        }
        return sum(size / shards if part in self.sharded else size for part, size in parts.items())


_OPTIMIZER = frozenset({"optimizer"})
# megatron: docs/source/api-guide/dist_optimizer.md; zero: arXiv 1910.02054, figure 1; nanotron
# keeps fp32 accumulated gradients beside the bf16 ones.
STATE_CONVENTIONS: dict[str, StateBytes] = {
    "megatron_bf16": StateBytes(2, 4, 12),
    "megatron_bf16_distributed": StateBytes(2, 4, 12, _OPTIMIZER),
    "megatron_fp16_distributed": StateBytes(2, 2, 16, _OPTIMIZER),
    "megatron_fp32_distributed": StateBytes(4, 4, 8, _OPTIMIZER),
    "zero_0": StateBytes(2, 2, 12),
    "zero_1": StateBytes(2, 2, 12, _OPTIMIZER),
    "zero_2": StateBytes(2, 2, 12, frozenset({"optimizer", "gradients"})),
    "zero_3": StateBytes(2, 2, 12, frozenset({"optimizer", "gradients", "weights"})),
    "nanotron_bf16": StateBytes(2, 2 + 4, 12),
}


def state_bytes_per_parameter(convention: str, shards: int) -> float:
    """Return bytes a parameter of model states on each of ``shards`` data-parallel ranks."""
    if convention not in STATE_CONVENTIONS:
        raise ConfigError(unknown("state convention", convention, STATE_CONVENTIONS))
    return STATE_CONVENTIONS[convention].per_parameter(shards)


Korthikanti = Literal[
    "tensor",
    "tensor_sequence",
    "tensor_selective",
    "tensor_sequence_selective",
    "full",
]


def korthikanti_layer_bytes(
    shape: ModelShape, mode: Korthikanti, *, tensor: int, micro_batch_size: int, sequence: int
) -> float:
    """Return activation bytes of one layer (arXiv 2205.05198, table 2).

    Written for a GPT layer (ffn = 4 h, all heads have keys and values) with 16-bit activations and
    one-byte dropout masks: s b h (34 + 5 a s / h) unsplit. ``full`` keeps the layer's input alone.
    """
    tokens_hidden = sequence * micro_batch_size * shape.hidden_size
    scores = 5 * shape.num_attention_heads * sequence / (shape.hidden_size * tensor)
    factors = {
        "tensor": 10 + 24 / tensor + scores,
        "tensor_sequence": 34 / tensor + scores,
        "tensor_selective": 10 + 24 / tensor,
        "tensor_sequence_selective": 34 / tensor,
        "full": 2,
    }
    return tokens_hidden * factors[mode]


def korthikanti_gib(
    shape: ModelShape,
    mode: Korthikanti,
    parallelism: Parallelism,
    *,
    micro_batch_size: int,
    sequence: int,
) -> float:
    """Return activations (GiB) of the first stage with its pipeline full (equations 2 to 6).

    1F1B keeps ``p`` microbatches of ``L / p`` layers; interleaving keeps 1 + (p - 1) / (p v) times
    that. The embedding's dropout mask and the head are left out.
    """
    layer = korthikanti_layer_bytes(
        shape,
        mode,
        tensor=parallelism.tensor_parallel_size,
        micro_batch_size=micro_batch_size,
        sequence=sequence,
    )
    return shape.num_layers * layer * _interleaving(parallelism) / GIB


def _interleaving(parallelism: Parallelism) -> float:
    stages, chunks = (
        parallelism.pipeline_parallel_size,
        parallelism.virtual_pipeline_parallel_size,
    )
    return 1.0 if chunks == 1 else 1 + (stages - 1) / (stages * chunks)


def megatron_parameters(shape: ModelShape, parallelism: Parallelism, vocabulary: int) -> float:
    """Return parameters of the most loaded shard as Megatron-LM's estimator counts them.

    megatron/training/theoretical_memory_usage.py: layers and the last norm spread over all stages,
    one vocabulary matrix on the loaded one (two without a pipeline, unless tied); biases of linear
    layers left out. Norms are counted whole on every tensor-parallel rank, where the original
    splits them. ``vocabulary`` is the padded size. Dense models without latent attention only.
    """
    hidden, layers = shape.hidden_size, shape.num_layers
    tensor, stages = parallelism.tensor_parallel_size, parallelism.pipeline_parallel_size
    queries = shape.num_attention_heads * shape.head_dim
    keys = shape.num_query_groups * shape.head_dim
    matrices = 3 if shape.gated_mlp else 2
    layer = hidden * (2 * queries + 2 * keys) + matrices * hidden * shape.ffn_hidden_size
    norm = hidden if shape.normalization == "rms" else 2 * hidden
    copies = 2 if stages == 1 and not shape.tied_embeddings else 1
    split = layers * layer / stages + copies * vocabulary * hidden
    return split / tensor + (2 * layers + 1) * norm / stages


def megatron_states_mib(
    shape: ModelShape, parallelism: Parallelism, vocabulary: int, *, distributed: bool = True
) -> float:
    """Return weights, gradients and optimizer states (MiB) by Megatron-LM's estimator, in bf16."""
    name = "megatron_bf16_distributed" if distributed else "megatron_bf16"
    per_parameter = state_bytes_per_parameter(name, parallelism.data_parallel_size)
    return megatron_parameters(shape, parallelism, vocabulary) * per_parameter / MIB


def megatron_activations_mib(
    shape: ModelShape,
    parallelism: Parallelism,
    vocabulary: int,
    *,
    micro_batch_size: int,
    sequence: int,
) -> float:
    """Return activations (MiB) by Megatron-LM's estimator: sequence parallel, selective recompute.

    s b h (18 + 4 f / h) a layer, then the embedding, the interleaving penalty and, without a
    pipeline, the head. A gated MLP keeps 6 f a token, not 4 f: this counts it too low.
    """
    stages = parallelism.pipeline_parallel_size
    tokens, hidden = sequence * micro_batch_size, shape.hidden_size
    layer = tokens * hidden * (18 + 4 * shape.ffn_hidden_size / hidden)
    total = shape.num_layers * layer + 8 * tokens * stages + tokens * hidden * stages
    total *= _interleaving(parallelism)
    if stages == 1:
        total += tokens * hidden * 4 * (1 + vocabulary / hidden)
    return total / parallelism.tensor_parallel_size / MIB


def logits_gib(vocabulary: int, *, tokens: int, bytes_per_element: int) -> float:
    """Return the size (GiB) of the logits of ``tokens`` tokens."""
    return tokens * vocabulary * bytes_per_element / GIB
