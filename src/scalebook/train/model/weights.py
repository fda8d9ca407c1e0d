"""Initial weights that do not depend on how the model is split.

Every parameter is drawn whole, from a seed made of its name in the whole model, and each rank
keeps its shard. So a pipeline stage, a tensor shard or an expert starts from the same numbers
in every layout (on the same kind of device: CPU and GPU generators differ).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scalebook.train import mcore

INIT_STD = 0.02
_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.")
_EXPERT = re.compile(r"\.local_experts\.(\d+)\.")
_GROUPED_EXPERT = re.compile(r"\.experts\.(linear_fc[12])\.(weight|bias)(\d+)$")
_STACKED_EXPERTS = re.compile(r"\.experts\.(weight|bias)([12])(\.bias)?$")
_NORM = re.compile(r"(layernorm\.weight|layer_norm_weight)$")
# Projections into the residual stream start smaller, by 1 / sqrt(2 x layers) (GPT-2).
_RESIDUAL = re.compile(r"\.(linear_proj|linear_fc2)\.")


@dataclass(frozen=True, slots=True)
class Shard:
    """Where a parameter of this rank lies in the whole model."""

    name: str  # in the whole model: global layer and expert numbers
    parameter: Any
    is_expert: bool
    dimension: int | None  # split over the tensor-parallel ranks; None where replicated
    rank: int
    size: int

    @property
    def whole_shape(self) -> list[int]:
        """The shape of the parameter before it was split."""
        shape = list(self.parameter.shape)
        if self.dimension is not None:
            shape[self.dimension] *= self.size
        return shape


def global_name(name: str, chunk: Any, tied: bool) -> str:
    """Return the name that a parameter of one model chunk has in the whole model."""
    if tied and name == "output_layer.weight":
        return "embedding.word_embeddings.weight"
    layer = _LAYER.match(name)
    if layer:
        number = chunk.decoder.layers[int(layer[1])].layer_number - 1
        name = f"decoder.layers.{number}.{name[layer.end() :]}"
    # The layer of a module for further tokens: Megatron-Core 0.17 renamed it.
    name = name.replace(".mtp_model_layer.", ".transformer_layer.")
    config = chunk.config
    if config.num_moe_experts:
        ranks = mcore.parallel_state
        local = config.num_moe_experts // ranks.get_expert_model_parallel_world_size()
        first = ranks.get_expert_model_parallel_rank() * local
        name = _EXPERT.sub(lambda found: f".local_experts.{first + int(found[1])}.", name)
        # Transformer Engine's grouped experts keep weight0, weight1, ... in one module.
        name = _GROUPED_EXPERT.sub(
            lambda found: f".experts.local_experts.{first + int(found[3])}.{found[1]}.{found[2]}",
            name,
        )
    return name


def _parameters(chunk: Any) -> Iterator[tuple[str, Any, int | None]]:
    """Yield name, parameter and split dimension; experts in one tensor are yielded one by one."""
    for name, parameter in chunk.named_parameters():
        split = getattr(parameter, "tensor_model_parallel", False)
        dimension = parameter.partition_dim if split else None
        stacked = _STACKED_EXPERTS.search(name)
        if stacked is None:
            yield name, parameter, dimension
            continue
        prefix = name[: stacked.start()]
        for index, own in enumerate(parameter.detach()):
            place = f"{prefix}.experts.local_experts.{index}.linear_fc{stacked[2]}.{stacked[1]}"
            yield place, own, None if dimension is None else dimension - 1


def shards(chunks: list[Any], tied: bool) -> Iterator[Shard]:
    """Yield every parameter of this rank's model chunks with its place in the whole model."""
    ranks = mcore.parallel_state
    tensor = (ranks.get_tensor_model_parallel_rank(), ranks.get_tensor_model_parallel_world_size())
    expert = (
        ranks.get_expert_tensor_parallel_rank(),
        ranks.get_expert_tensor_parallel_world_size(),
    )
    for chunk in chunks:
        for local_name, parameter, split_along in _parameters(chunk):
            name = global_name(local_name, chunk, tied)
            is_expert = ".local_experts." in name
            rank, size = expert if is_expert else tensor
            dimension = split_along if size > 1 else None
            yield Shard(name, parameter, is_expert, dimension, rank, size)


def _whole(shard: Shard, config: Any, vocab_size: int, seed: int) -> Tensor:
    """Return the whole parameter in float32 on the parameter's device."""
    shape, device = shard.whole_shape, shard.parameter.device
    if _NORM.search(shard.name):
        return torch.ones(shape, device=device)
    if shard.name.endswith(("bias", "softmax_offset")):
        return torch.zeros(shape, device=device)
    digest = hashlib.sha256(f"{seed}:{shard.name}".encode()).digest()
    generator = torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big"))
    scale = 1 / math.sqrt(2 * config.num_layers) if _RESIDUAL.search(shard.name) else 1.0
    if "word_embeddings" in shard.name or "output_layer" in shard.name:
        # Padding depends on the tensor-parallel size; only the rows of the vocabulary are drawn.
        whole = torch.zeros(shape, device=device)
        whole[:vocab_size].normal_(0, INIT_STD * scale, generator=generator)
        return whole
    return torch.empty(shape, device=device).normal_(0, INIT_STD * scale, generator=generator)


def _own_part(whole: Tensor, shard: Shard, gated: bool) -> Tensor:
    if shard.dimension is None:
        return whole
    if gated and ".linear_fc1." in shard.name:
        # Rows are [gate; up]; each rank holds its part of both.
        halves = (half.chunk(shard.size)[shard.rank] for half in whole.chunk(2))
        return torch.cat(list(halves))
    return whole.chunk(shard.size, dim=shard.dimension)[shard.rank]


@torch.no_grad()
def initialise(chunks: list[Any], config: Any, *, vocab_size: int, tied: bool, seed: int) -> None:
    """Set every parameter of this rank's model chunks to its part of the whole model."""
    for shard in shards(chunks, tied):
        own = _own_part(_whole(shard, config, vocab_size, seed), shard, config.gated_linear_unit)
        shard.parameter.copy_(own)
        # The optimizer starts from what Transformer Engine drew before a weight became FP8.
        if hasattr(shard.parameter, "get_high_precision_init_val"):
            shard.parameter.get_high_precision_init_val().copy_(own)


def parameter_count(chunks: list[Any], tied: bool) -> int:
    """Return the number of parameters of this pipeline stage's part of the whole model."""
    experts = mcore.parallel_state.get_expert_model_parallel_world_size()
    total = 0
    seen: set[str] = set()
    for shard in shards(chunks, tied):
        copied = tied and shard.name.startswith("embedding.word") and not chunks[0].pre_process
        if shard.name in seen or copied:  # the last stage's copy of the input embedding
            continue
        seen.add(shard.name)
        total += math.prod(shard.whole_shape) * (experts if shard.is_expert else 1)
    # The bias that evens experts out is learned without a gradient, so it is no parameter.
    buffers = (buffer for chunk in chunks for buffer in chunk.named_buffers())
    return total + sum(values.numel() for name, values in buffers if name.endswith("expert_bias"))
