"""Experts whose matrix products are one call for all of them, made only of torch.

Megatron-Core's own grouped experts need Transformer Engine or the package grouped_gemm; without
them it runs expert after expert, which leaves a GPU idle between many small products.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from scalebook.train import mcore
from scalebook.train.experts import grouped
from scalebook.train.layers import fused, remake

_mapping: Any = import_module("megatron.core.dist_checkpointing.mapping")


class GroupedExperts(mcore.MegatronModule):
    """All experts of a rank, in the place of Megatron-Core's SequentialMLP.

    Both weights hold [experts, out, in], so that each expert's matrix lies as a linear layer's.
    With expert tensor parallelism the dispatcher gathers tokens and adds up the parts. Biases are
    added as a product with the choice of experts, whose backward pass sums them up as a product.
    """

    compiled = False  # the activation
    remakes = False  # recompute mode pointwise

    def __init__(self, num_local_experts: int, config: Any, *_: Any, **given: Any) -> None:
        super().__init__(config=config)  # pyright: ignore[reportUnknownMemberType]
        groups = given["pg_collection"]
        self.num_local_experts = num_local_experts
        self.expert_group, self.tensor_group = groups.ep, groups.expt_tp
        self.data_group = groups.expt_dp
        self.gated: bool = config.gated_linear_unit
        width = config.moe_ffn_hidden_size // self.tensor_group.size()
        wide = 2 * width if self.gated else width
        self.weight1 = self._weight((wide, config.hidden_size), split=1)
        self.weight2 = self._weight((config.hidden_size, width), split=2)
        self.biased: bool = config.add_bias_linear
        if self.biased:
            # A name that ends in .bias is what the optimizer spares from weight decay.
            self.bias1 = nn.ParameterDict({"bias": self._weight((wide,), split=1)})
            self.bias2 = nn.ParameterDict({"bias": self._weight((config.hidden_size,), split=1)})

    def _weight(self, shape: tuple[int, ...], split: int) -> nn.Parameter:
        """Return the experts' weight, marked for the optimizer as Megatron-Core's layers are."""
        config: Any = self.config
        weight: Any = nn.Parameter(
            torch.empty(
                (self.num_local_experts, *shape),
                dtype=config.params_dtype,
                device=torch.cuda.current_device(),
            )
        )
        mcore.tensor_parallel.set_tensor_model_parallel_attributes(weight, True, split, 1)
        weight.allreduce = config.expert_model_parallel_size == 1
        weight.holds_experts = True
        return weight

    def forward(
        self, tokens: Tensor, tokens_per_expert: Any, weights: Tensor
    ) -> tuple[Tensor, None]:
        """Return each token's expert's output times its weight; tokens lie expert by expert."""
        config: Any = self.config
        compiled = self.compiled and tokens.shape[0] > 0
        groups = grouped.Groups.of(tokens_per_expert, tokens.device)
        multiply = partial(
            grouped.product,
            groups=groups,
            add=bool(config.gradient_accumulation_fusion),
            compiled=compiled,
        )
        activate = fused.weighted_compiled if compiled else fused.weighted
        doubled, column = multiply(tokens, self.weight1), weights.unsqueeze(-1)
        choice = groups.choice(tokens) if self.biased else None
        if choice is not None:
            doubled = torch.addmm(doubled, choice, self.bias1["bias"])
        active = activate(doubled, column, self.gated)
        if self.remakes and torch.is_grad_enabled():
            remake.made_by(active, partial(activate, gated=self.gated), doubled, column)
        output = multiply(active, self.weight2)
        remake.release(active, output)
        if choice is not None:
            output = torch.addmm(output, choice * column.to(choice.dtype), self.bias2["bias"])
        return output, None

    def backward_dw(self) -> None:
        """Do nothing: weight gradients are made in the backward pass."""

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None
    ) -> dict[str, Any]:
        """Return the weights under the names that SequentialMLP gives them, all experts stacked."""
        build = partial(self._sharded, tuple(sharded_offsets))
        sharded: dict[str, Any] = {}
        for name, parameter in self.named_parameters():
            own = name.removesuffix(".bias")
            key = f"{prefix}experts.linear_fc{own[-1]}.{own[:-1]}"
            sharded[f"{prefix}{name}"] = build(parameter, key)
        return sharded

    def _sharded(self, offsets: tuple[Any, ...], weight: Any, key: str) -> Any:
        replica = (0, 0, self.data_group.rank())
        first = len(offsets)
        experts = (first, self.expert_group.rank(), self.expert_group.size())
        rank, size = self.tensor_group.rank(), self.tensor_group.size()

        def part(name: str, tensor: Tensor, place: int, places: int) -> Any:
            split = (first + weight.partition_dim, place, places)
            return _mapping.ShardedTensor.from_rank_offsets(
                name, tensor, *offsets, experts, split, replica_id=replica, prepend_axis_num=first
            )

        if not (self.gated and ".linear_fc1." in key):
            return part(key, weight, rank, size)

        def build(name: str, tensor: Tensor, _replica: Any, _range: Any) -> list[Any]:
            gate, up = tensor.chunk(2, dim=1)  # each is split over the ranks by itself
            return [part(name, gate, rank, 2 * size), part(name, up, size + rank, 2 * size)]

        join = partial(torch.cat, dim=1)
        return _mapping.ShardedTensorFactory(key, weight, build, join, replica)


def styled(*, compiled: bool, remakes: bool) -> type[GroupedExperts]:
    """Return the class of experts that compute the same mathematics in this way."""
    return type("GroupedExperts", (GroupedExperts,), {"compiled": compiled, "remakes": remakes})
