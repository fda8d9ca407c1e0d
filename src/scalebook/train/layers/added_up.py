"""A tensor that all ranks of a group hold alike, and each uses for a part of the loss."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

distributed: Any = import_module("torch.distributed")


class _AddedUp(torch.autograd.Function):
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
    function: Any = _AddedUp
    same: Tensor = function.apply(tensor, group)
    return same
