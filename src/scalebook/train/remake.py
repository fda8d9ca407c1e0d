"""Activations that are made again in the backward pass because that costs no matrix product.

A norm's output and an activation function's product are each a pass over their input, which is
kept anyway. The linear layer that reads them saves them for its weight gradient; under recompute
mode ``pointwise`` it saves how to make them instead.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

ATTRIBUTE = "made_by"  # set on the tensor object; lost where something else is made of it


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make a tensor again from tensors that the graph keeps."""

    function: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]

    def make(self) -> Tensor:
        """Return the tensor, as it was."""
        with torch.no_grad():
            return self.function(*self.inputs)


def made_by(tensor: Tensor, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Return ``tensor`` with the note that ``function(*inputs)`` made it."""
    recipe = Recipe(function, tuple(part.detach() for part in inputs))
    setattr(tensor, ATTRIBUTE, recipe)
    return tensor


def instead_of_saving(tensor: Tensor) -> AbstractContextManager[None]:
    """Return a context in which ``tensor`` is not saved for the backward pass if a recipe is known.

    Only what lies in the same memory with the same shape is replaced: weights are saved as ever.
    """
    recipe: Recipe | None = getattr(tensor, ATTRIBUTE, None)
    if recipe is None:
        return nullcontext()
    where, shape = tensor.data_ptr(), tensor.shape

    def pack(saved: Tensor) -> Tensor | Recipe:
        return recipe if saved.data_ptr() == where and saved.shape == shape else saved

    def unpack(kept: Tensor | Recipe) -> Tensor:
        return kept.make() if isinstance(kept, Recipe) else kept

    return saved_tensors_hooks(pack, unpack)
