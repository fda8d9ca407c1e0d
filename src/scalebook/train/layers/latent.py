"""Multi-latent attention (DeepSeek-V2, arXiv 2405.04434) from torch-native pieces.

Megatron-Core splits the down projections over the tensor-parallel ranks where it has no
Transformer Engine, and gathers what they make. The rotary part of the keys is shared by all heads;
each rank's heads give it a gradient, and the gather keeps that of one rank alone. Here the down
projections are whole on every rank, as with Transformer Engine, and the gradients are added up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from scalebook.train import mcore
from scalebook.train.layers import fused
from scalebook.train.world import distributed


class _AddedUp(torch.autograd.Function):
    """A tensor that all ranks of a group hold alike, and each uses for a part of the loss."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        total = grad_outputs[0].clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total, group=ctx.group)
        return total, None


def added_up(tensor: Tensor, group: Any) -> Tensor:
    """Return the same tensor, whose gradient is the sum of the group's ranks'.

    Megatron-Core's own loses the sum of a gradient that is not contiguous, as one of some columns.
    """
    return fused.apply(_AddedUp, tensor, group)


class UnsplitLinear(nn.Module):
    """A linear layer that every tensor-parallel rank holds whole.

    With sequence parallelism it multiplies the rank's part of the sequence; its mark makes
    Megatron-Core add up the ranks' weight gradients. Without, the last ``shared`` columns of the
    output get the sum of the ranks' gradients, because each rank's heads use them.
    """

    def __init__(self, config: Any, outputs: int, shared: int, group: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.empty(
                (outputs, config.hidden_size),
                dtype=config.params_dtype,
                device=torch.cuda.current_device(),
            )
        )
        parallel: bool = config.sequence_parallel
        setattr(self.weight, "sequence_parallel", parallel)  # noqa: B010
        self.columns = [outputs - shared, shared]
        self.added_up = shared > 0 and group.size() > 1 and not parallel
        self.group = group

    def forward(self, hidden: Tensor) -> tuple[Tensor, None]:
        """Return (output [sequence, batch, outputs], no bias)."""
        output = linear(hidden, self.weight)
        if not self.added_up:
            return output, None
        own, shared = torch.split(output, self.columns, dim=-1)
        return torch.cat([own, added_up(shared, self.group)], dim=-1), None


class LatentAttention(mcore.MLASelfAttention):
    """Megatron-Core's, with complete down projections on every rank."""

    def __init__(self, config: Any, submodules: Any, *given: Any, **options: Any) -> None:
        # Megatron-Core takes known classes alone here; what it builds is replaced below.
        plain = dict.fromkeys(
            ("linear_q_down_proj", "linear_kv_down_proj"), mcore.ColumnParallelLinear
        )
        parent: Any = super()
        parent.__init__(config, replace(submodules, **plain), *given, **options)
        group = self.pg_collection.tp
        if config.q_lora_rank is not None:
            self.linear_q_down_proj = UnsplitLinear(config, config.q_lora_rank, 0, group)
        rotary = config.qk_pos_emb_head_dim
        self.linear_kv_down_proj = UnsplitLinear(
            config, config.kv_lora_rank + rotary, rotary, group
        )

    def _resolve_qk_norm_config(self, submodules: Any) -> dict[str, Any]:
        """Return the projections and norms as specified; called by 0.19 and newer.

        Megatron-Core's own refuses a query norm, or adds one, where no query is compressed.
        """
        names = ("linear_q_proj", "linear_q_up_proj", "linear_kv_up_proj")
        return {name: getattr(submodules, name) for name in (*names, "q_layernorm", "kv_layernorm")}
