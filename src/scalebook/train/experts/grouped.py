"""Matrix products of groups of rows, each with a matrix of its own, as one call of torch.

torch has a grouped product since 2.8, for CUDA and ROCm, and computes it one by one on a CPU. What
this device's is worth is found out by trying it on groups of odd sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from scalebook.parallelism import MOST_SINGLE_GRADIENTS
from scalebook.train.layers import fused

torch_any: Any = torch  # some of its functions are typed only in part


@dataclass(frozen=True, slots=True)
class Groups:
    """Which rows belong to which group: group i ends before row ``ends[i]``, int32 [groups].

    ``counts`` are the rows of each group, None where the device alone knows them.
    """

    ends: Tensor
    counts: tuple[int, ...] | None = None

    @classmethod
    def of(cls, counts: Tensor | Sequence[int], device: torch.device) -> Groups:
        """Return the groups of these sizes; sizes on the device stay there."""
        sizes: Any = torch.as_tensor(counts, dtype=torch.int64)
        ends = sizes.cumsum(0, dtype=torch.int32)
        if sizes.device.type != "cpu":
            return cls(ends)
        return cls(ends.to(device, non_blocking=True), tuple(sizes.tolist()))

    def choice(self, rows: Tensor) -> Tensor:
        """Return a one in the column of each row's group [rows, groups], of the rows' type."""
        number = torch.arange(rows.shape[0], device=rows.device).unsqueeze(1)
        ends: Any = self.ends
        before = (number < ends).to(rows.dtype)
        return before.diff(dim=1, prepend=before.new_zeros(rows.shape[0], 1))

    def sizes(self) -> list[int]:
        """Return the rows of each group; waits for the device where it alone knows them."""
        if self.counts is not None:
            return list(self.counts)
        ends: Any = self.ends
        sizes: list[int] = ends.diff(prepend=ends.new_zeros(1)).tolist()
        return sizes


def grouped_mm(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Return the product of each group of rows; group i of them ends before ``ends[i]``.

    ``matrices`` [groups, in, out] for rows [tokens, in]; for two dimensions, [in, tokens] and
    [tokens, out], the products [groups, in, out].
    """
    function = getattr(nn.functional, "grouped_mm", None) or torch_any._grouped_mm
    product: Tensor = function(rows, matrices, offs=ends)
    return product


def _split(rows: Any, groups: Groups) -> tuple[Tensor, ...]:
    """Return each group's rows."""
    return rows.split(groups.sizes())


def _one_by_one(rows: Tensor, matrices: Tensor, groups: Groups) -> Tensor:
    parts = zip(_split(rows, groups), matrices, strict=True)
    return torch.cat([part @ matrix for part, matrix in parts])


def _gradients_one_by_one(grads: Tensor, rows: Tensor, groups: Groups) -> Tensor:
    parts = zip(_split(grads, groups), _split(rows, groups), strict=True)
    return torch.stack([grad.t() @ row for grad, row in parts])


def _trial(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor, Groups]:
    """Return rows, matrices and groups of odd sizes, one of them empty."""
    counts = [3, 0, 13, 1]
    generator = torch.Generator(device).manual_seed(1)
    options: dict[str, Any] = {"device": device, "generator": generator}
    rows = torch.randn(sum(counts), 32, **options).to(dtype)
    matrices = torch.randn(len(counts), 64, 32, **options).to(dtype)
    return rows, matrices, Groups.of(counts, device)


def _close(found: Tensor, expected: Tensor) -> bool:
    return found.shape == expected.shape and torch.allclose(
        found.float(), expected.float(), rtol=2e-2, atol=0.2
    )


@cache
def can_group(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether this device's grouped product is right, in both layouts of the weights."""
    rows, matrices, groups = _trial(device, dtype)
    try:
        forward = grouped_mm(rows, matrices.transpose(1, 2), groups.ends)
        backward = grouped_mm(forward, matrices, groups.ends)
    except (RuntimeError, TypeError, AttributeError):
        return False
    expected = _one_by_one(rows, matrices.transpose(1, 2), groups)
    # Relative to its size: the second product sums over twice as many numbers.
    again = _one_by_one(forward, matrices, groups)
    return _close(forward, expected) and _close(backward / 8, again / 8)


@cache
def can_group_gradient(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether this device's grouped product over the tokens, of any number, is right."""
    rows, matrices, groups = _trial(device, dtype)
    grads = _one_by_one(rows, matrices.transpose(1, 2), groups)
    try:
        found = grouped_mm(grads.t(), rows, groups.ends)
    except (RuntimeError, TypeError, AttributeError):
        return False
    return _close(found / 8, _gradients_one_by_one(grads, rows, groups) / 8)


def weight_gradient(grads: Tensor, rows: Tensor, groups: Groups) -> Tensor:
    """Return the gradient [experts, out, in] of all experts' weights."""
    if can_group_gradient(rows.device, rows.dtype):
        return grouped_mm(grads.t(), rows, groups.ends)
    return _gradients_one_by_one(grads, rows, groups)


def _plus(total: Tensor, gradient: Tensor) -> None:
    total.add_(gradient)


def _add_gradient(
    weight: Any, grads: Tensor, rows: Tensor, groups: Groups, *, compiled: bool
) -> Tensor:
    """Add the gradient to the weight's fp32 sum."""
    total: Tensor = weight.main_grad
    if len(groups.ends) > MOST_SINGLE_GRADIENTS:
        # torch's own sum of two types reads and writes at two thirds of the speed
        add = fused.compiled_in_place(_plus) if compiled else _plus
        add(total, weight_gradient(grads, rows, groups))
    else:
        parts = zip(total, _split(grads, groups), _split(rows, groups), strict=True)
        for own, grad, row in parts:
            if row.shape[0]:
                fused.accumulate_weight_gradient(row, grad, own)
    return fused.in_main_gradient(weight)


class _Product(torch.autograd.Function):
    """rows [tokens, in] x weight [experts, out, in]^T -> [tokens, out]."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, groups: Groups, *how: bool) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.groups, ctx.how = groups, how
        if not rows.shape[0]:
            return rows.new_zeros(0, weight.shape[1])
        return grouped_mm(rows, weight.transpose(1, 2), groups.ends)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (rows, weight), (add, compiled) = ctx.saved_tensors, ctx.how
        grads = grad_outputs[0].contiguous()
        if not rows.shape[0]:  # no token came here; the optimizer still waits for a gradient
            return torch.zeros_like(rows), torch.zeros_like(weight), None, None, None
        grad_rows = grouped_mm(grads, weight, ctx.groups.ends)
        if add:
            gradient = _add_gradient(weight, grads, rows, ctx.groups, compiled=compiled)
        else:
            gradient = weight_gradient(grads, rows, ctx.groups)
        return grad_rows, gradient, None, None, None


def product(
    rows: Tensor, weight: Tensor, groups: Groups, *, add: bool, compiled: bool = False
) -> Tensor:
    """Return rows [tokens, in] times each group's matrix of ``weight`` [groups, out, in].

    With ``add`` the weight's gradient is added to its ``main_grad``, by compiled code if asked.
    """
    return fused.apply(_Product, rows, weight, groups, add, compiled)
