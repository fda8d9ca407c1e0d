"""Matrix products of groups of rows, each with a matrix of its own, as one call of torch.

torch has a grouped product since 2.8, for CUDA and ROCm, and computes it one by one on a CPU. What
this device's is worth is found out by trying it on groups of odd sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from scalebook.train.layers import fused

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
    return rows, matrices, ends_of(counts, device), counts


def ends_of(counts: Sequence[int], device: torch.device) -> Tensor:
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


class _Product(torch.autograd.Function):
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


def product(rows: Tensor, weight: Tensor, counts: list[int], ends: Tensor, *, add: bool) -> Tensor:
    """Return rows [tokens, in] times each group's matrix of ``weight`` [groups, out, in].

    With ``add`` the weight's gradient is added to its ``main_grad``.
    """
    function: Any = _Product
    output: Tensor = function.apply(rows, weight, ends, (counts, add))
    return output


def weighted(doubled: Tensor, weights: Tensor, gated: bool) -> Tensor:
    """Return the activation times the router's weight [tokens, 1], in the activation's type."""
    active = fused.swiglu(doubled) if gated else nn.functional.gelu(doubled)
    return (active * weights).to(doubled.dtype)


@cache
def _compiled() -> Any:
    return torch_any.compile(weighted)


def weighted_compiled(doubled: Tensor, weights: Tensor, gated: bool) -> Tensor:
    """Return the same in one pass; the number of tokens may change from call to call."""
    for tensor in (doubled, weights):
        torch_any._dynamo.maybe_mark_dynamic(tensor, 0)
    product: Tensor = _compiled()(doubled, weights, gated)
    return product
