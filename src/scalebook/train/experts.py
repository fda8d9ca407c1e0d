"""Experts whose matrix products are one call for all of them, made of torch alone.

Megatron-Core's own grouped experts need Transformer Engine or the package grouped_gemm; without
them it runs expert after expert, which leaves a GPU idle between many small products. torch has a
grouped product since 2.8, for CUDA and ROCm, and computes it one by one on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from scalebook.train import fused, mcore, remake

_mapping: Any = import_module("megatron.core.dist_checkpointing.mapping")
torch_any: Any = torch  # some of its functions are typed only in part

# Up to so many experts a rank, weight gradients are added to the fp32 sum by a GEMM an expert;
# beyond, those are too small, and one grouped product is made first and added then.
MOST_SINGLE_GRADIENTS = 16


def grouped_mm(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Return the product of each group of rows; group i of them ends before ``ends[i]``.

    ``matrices`` [groups, in, out] for rows [tokens, in]; for two dimensions, [in, tokens] and
    [tokens, out], the products [groups, in, out].
    """
    function = getattr(nn.functional, "grouped_mm", None) or torch_any._grouped_mm
    product: Tensor = function(rows, matrices, offs=ends)
    return product


def _split(rows: Any, counts: Sequence[int]) -> tuple[Tensor, ...]:
    """Return each group's rows."""
    return rows.split(list(counts))


def _one_by_one(rows: Tensor, matrices: Tensor, counts: Sequence[int]) -> Tensor:
    parts = zip(_split(rows, counts), matrices, strict=True)
    return torch.cat([part @ matrix for part, matrix in parts])


def _gradients_one_by_one(grads: Tensor, rows: Tensor, counts: Sequence[int]) -> Tensor:
    parts = zip(_split(grads, counts), _split(rows, counts), strict=True)
    return torch.stack([grad.t() @ row for grad, row in parts])


def _trial(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    """Return rows, matrices and ends of groups of odd sizes, one of them empty."""
    counts = [3, 0, 13, 1]
    generator = torch.Generator(device).manual_seed(1)
    options: dict[str, Any] = {"device": device, "generator": generator}
    rows = torch.randn(sum(counts), 32, **options).to(dtype)
    matrices = torch.randn(len(counts), 64, 32, **options).to(dtype)
    return rows, matrices, _ends(counts, device), counts


def _ends(counts: Sequence[int], device: torch.device) -> Tensor:
    totals = torch.tensor(counts, dtype=torch.int64).cumsum(0, dtype=torch.int32)
    return totals.to(device, non_blocking=True)


def _close(found: Tensor, expected: Tensor) -> bool:
    return found.shape == expected.shape and torch.allclose(
        found.float(), expected.float(), rtol=2e-2, atol=0.2
    )


@cache
def can_group(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether this device's grouped product is right, in both layouts of the weights."""
    rows, matrices, ends, counts = _trial(device, dtype)
    try:
        forward = grouped_mm(rows, matrices.transpose(1, 2), ends)
        backward = grouped_mm(forward, matrices, ends)
    except (RuntimeError, TypeError, AttributeError):
        return False
    expected = _one_by_one(rows, matrices.transpose(1, 2), counts)
    # Relative to its size: the second product sums over twice as many numbers.
    again = _one_by_one(forward, matrices, counts)
    return _close(forward, expected) and _close(backward / 8, again / 8)


@cache
def can_group_gradient(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether this device's grouped product over the tokens, of any number, is right."""
    rows, matrices, ends, counts = _trial(device, dtype)
    grads = _one_by_one(rows, matrices.transpose(1, 2), counts)
    try:
        found = grouped_mm(grads.t(), rows, ends)
    except (RuntimeError, TypeError, AttributeError):
        return False
    return _close(found / 8, _gradients_one_by_one(grads, rows, counts) / 8)


def weight_gradient(grads: Tensor, rows: Tensor, ends: Tensor, counts: Sequence[int]) -> Tensor:
    """Return the gradient [experts, out, in] of all experts' weights."""
    if can_group_gradient(rows.device, rows.dtype):
        return grouped_mm(grads.t(), rows, ends)
    return _gradients_one_by_one(grads, rows, counts)


def _add_gradient(
    weight: Any, grads: Tensor, rows: Tensor, ends: Tensor, counts: Sequence[int]
) -> Tensor:
    """Add the gradient to the weight's fp32 sum; return a place-holder for the hook that counts."""
    total: Tensor = weight.main_grad
    if len(counts) > MOST_SINGLE_GRADIENTS:
        total.add_(weight_gradient(grads, rows, ends, counts))
    else:
        parts = zip(total, _split(grads, counts), _split(rows, counts), strict=True)
        for own, grad, row in parts:
            if row.shape[0]:
                fused.accumulate_weight_gradient(row, grad, own)
    weight.grad_added_to_main_grad = True
    return torch.empty_like(weight)


class _Grouped(torch.autograd.Function):
    """rows [tokens, in] x weight [experts, out, in]^T -> [tokens, out]."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, ends: Tensor, counts_and_add: tuple[list[int], bool]
    ) -> Tensor:
        ctx.save_for_backward(rows, weight, ends)
        ctx.counts, ctx.add = counts_and_add
        if not rows.shape[0]:
            return rows.new_zeros(0, weight.shape[1])
        return grouped_mm(rows, weight.transpose(1, 2), ends)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, ends = ctx.saved_tensors
        grads = grad_outputs[0].contiguous()
        if not rows.shape[0]:  # no token came here; the optimizer still waits for a gradient
            return torch.zeros_like(rows), torch.zeros_like(weight), None, None
        grad_rows = grouped_mm(grads, weight, ends)
        make = partial(_add_gradient, weight) if ctx.add else weight_gradient
        return grad_rows, make(grads, rows, ends, ctx.counts), None, None


def _weighted(doubled: Tensor, weights: Tensor, gated: bool) -> Tensor:
    """Return the activation times the router's weight [tokens, 1], in the activation's type."""
    active = fused.swiglu(doubled) if gated else nn.functional.gelu(doubled)
    return (active * weights).to(doubled.dtype)


@cache
def _compiled() -> Any:
    return torch_any.compile(_weighted)


def _weighted_compiled(doubled: Tensor, weights: Tensor, gated: bool) -> Tensor:
    """Return the same in one pass; the number of tokens may change from call to call."""
    for tensor in (doubled, weights):
        torch_any._dynamo.maybe_mark_dynamic(tensor, 0)
    product: Tensor = _compiled()(doubled, weights, gated)
    return product


class GroupedExperts(mcore.MegatronModule):
    """All experts of a rank, in the place of Megatron-Core's SequentialMLP.

    Both weights hold [experts, out, in], so that each expert's matrix lies as a linear layer's.
    With expert tensor parallelism the dispatcher gathers tokens and adds up the parts.
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

    def _weight(self, shape: tuple[int, int], split: int) -> nn.Parameter:
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
        counts: list[int] = tokens_per_expert.tolist()
        ends = _ends(counts, tokens.device)
        options = (ends, (counts, bool(config.gradient_accumulation_fusion)))
        grouped: Any = _Grouped
        doubled: Tensor = grouped.apply(tokens, self.weight1, *options)
        function = _weighted_compiled if self.compiled and tokens.shape[0] else _weighted
        column = weights.unsqueeze(-1)
        product = function(doubled, column, self.gated)
        if self.remakes and torch.is_grad_enabled():
            remake.made_by(product, partial(function, gated=self.gated), doubled, column)
        output: Tensor = grouped.apply(product, self.weight2, *options)
        remake.release(product, output)
        return output, None

    def backward_dw(self) -> None:
        """Do nothing: weight gradients are made in the backward pass."""

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None
    ) -> dict[str, Any]:
        """Return the weights under the names that SequentialMLP gives them, all experts stacked."""
        build = partial(self._sharded, tuple(sharded_offsets))
        names = {"weight1": "linear_fc1", "weight2": "linear_fc2"}
        return {
            f"{prefix}{name}": build(getattr(self, name), f"{prefix}experts.{layer}.weight")
            for name, layer in names.items()
        }

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

        if not (self.gated and weight is self.weight1):
            return part(key, weight, rank, size)

        def build(name: str, tensor: Tensor, _replica: Any, _range: Any) -> list[Any]:
            gate, up = tensor.chunk(2, dim=1)  # each is split over the ranks by itself
            return [part(name, gate, rank, 2 * size), part(name, up, size + rank, 2 * size)]

        join = partial(torch.cat, dim=1)
        return _mapping.ShardedTensorFactory(key, weight, build, join, replica)


def styled(*, compiled: bool, remakes: bool) -> type[GroupedExperts]:
    """Return the class of experts that compute the same mathematics in this way."""
    return type("GroupedExperts", (GroupedExperts,), {"compiled": compiled, "remakes": remakes})
