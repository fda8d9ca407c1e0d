"""How many parameters one rank holds, by pipeline stage."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from scalebook.facts.catalog.types import ModelShape
from scalebook.facts.flops import padded_vocab_size
from scalebook.facts.flops.parameters import LayerParameters, layer_parameters, parameter_count
from scalebook.parallelism import Parallelism, chunk_sizes


@dataclass(frozen=True, slots=True)
class Count:
    """Parameters of one rank.

    ``dense`` are shared out over the dp x cp ranks, ``expert`` over the ranks that hold the same
    experts. ``linear`` says how many of all belong to the layers' matrix products (FP8 keeps
    copies of those).
    """

    dense: float = 0.0
    expert: float = 0.0
    linear: float = 0.0

    def __add__(self, other: Count) -> Count:
        return Count(
            self.dense + other.dense, self.expert + other.expert, self.linear + other.linear
        )

    @property
    def total(self) -> float:
        return self.dense + self.expert


def is_moe(shape: ModelShape, layer: int) -> bool:
    """Return whether layer number ``layer`` (from 0) has experts."""
    return shape.moe is not None and layer >= shape.moe.first_dense_layers


def stage_layers(shape: ModelShape, parallelism: Parallelism, stage: int) -> list[list[int]]:
    """Return the layer numbers of each model chunk of a stage (chunks alternate over stages)."""
    stages = parallelism.pipeline_parallel_size
    chunks = parallelism.virtual_pipeline_parallel_size
    last = parallelism.last_pipeline_stage_layers
    if last and stages > 1:
        sizes = chunk_sizes(shape.num_layers, stages, chunks, last)
        order = [sizes[place][chunk] for chunk in range(chunks) for place in range(stages)]
        starts = [sum(order[: chunk * stages + stage]) for chunk in range(chunks)]
        return [
            list(range(start, min(start + size, shape.num_layers)))
            for start, size in zip(starts, sizes[stage], strict=True)
        ]
    # Ceiling, so that a split which is not even (and not legal) still has an upper bound.
    width = -(-shape.num_layers // (stages * chunks))
    starts = [(chunk * stages + stage) * width for chunk in range(chunks)]
    return [list(range(start, min(start + width, shape.num_layers))) for start in starts]


def layer_count(shape: ModelShape, parallelism: Parallelism, *, moe: bool) -> Count:
    """Return the parameters of one layer on one rank.

    Norms, the router and the down-projections of latent attention are held whole by every
    tensor-parallel rank, and so are the biases that follow a row-parallel product.
    """
    parts = layer_parameters(shape, dense=not moe)
    whole = _whole(shape, parts)
    split = (parts.total - parts.experts - whole) / parallelism.tensor_parallel_size
    ranks = parallelism.expert_parallel_size * parallelism.expert_tensor_parallel_size
    experts = parts.experts / ranks
    return Count(split + whole, experts, split + experts)


@lru_cache(maxsize=4096)
def stage_count(
    shape: ModelShape, parallelism: Parallelism, stage: int, *, mtp_layers: int = 0
) -> Count:
    """Return the parameters that one rank of a pipeline stage holds.

    Tied embeddings are held by both the first and the last stage of a pipeline; modules of
    multi-token prediction by the last.
    """
    last = parallelism.pipeline_parallel_size - 1
    total = Count()
    for layer in (layer for chunk in stage_layers(shape, parallelism, stage) for layer in chunk):
        total += layer_count(shape, parallelism, moe=is_moe(shape, layer))
    tensor = parallelism.tensor_parallel_size
    rows = padded_vocab_size(shape.vocab_size, tensor)
    outside = parameter_count(shape, rows)
    if stage == 0:
        total += Count(outside.embedding / tensor + outside.positions)
    if stage == last:
        total += Count(outside.final_norm + outside.lm_head / tensor)
        if shape.tied_embeddings and last > 0:
            total += Count(outside.embedding / tensor)
        for _ in range(mtp_layers):
            total += _further_token_count(shape, parallelism)
    return total


def _further_token_count(shape: ModelShape, parallelism: Parallelism) -> Count:
    """A layer like the last, a projection from 2 h to h, three norms (arXiv 2412.19437, 2.2)."""
    projection = 2 * shape.hidden_size**2 / parallelism.tensor_parallel_size
    norms = 3 * shape.hidden_size * (2 if shape.normalization == "layer" else 1)
    layer = layer_count(shape, parallelism, moe=is_moe(shape, shape.num_layers - 1))
    return layer + Count(projection + norms, linear=projection)


def _whole(shape: ModelShape, parts: LayerParameters) -> int:
    hidden, wide = shape.hidden_size, 2 if shape.normalization == "layer" else 1
    whole = parts.norms + parts.router
    if shape.mla is not None:
        down = shape.mla.kv_lora_rank + shape.mla.q_lora_rank
        return whole + hidden * (down + shape.mla.qk_rope_head_dim) + wide * down
    if shape.attention_bias == "all":
        whole += hidden
    if shape.mlp_bias and parts.mlp:
        whole += hidden
    if shape.qk_norm and not shape.qk_norm_full_width:
        whole += 2 * wide * shape.head_dim
    return whole
