"""Activations that are recomputed in the backward pass because that costs no matrix product.

A norm's output and an activation function's product are each a pass over their input, which is
kept anyway. Under recompute mode ``pointwise`` the linear layer that reads them gives their memory
back once it has multiplied, and fills it again when its own gradient arrives. What the recipe
reads may wait in host memory meanwhile (``scalebook.train.layers.offload``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scalebook.train.layers.offload import HostCopy

ATTRIBUTE = "made_by"  # set on the tensor object; lost where something else is made of it


@dataclass(frozen=True, slots=True)
class Recomputation:
    """How to make a tensor again from tensors that the graph keeps."""

    function: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]

    def make(self) -> Tensor:
        """Return the tensor, as it was."""
        with torch.no_grad():
            return self.function(*self.inputs)


def made_by(tensor: Tensor, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Return ``tensor`` with the note that ``function(*inputs)`` made it."""
    recipe = Recomputation(function, tuple(part.detach() for part in inputs))
    setattr(tensor, ATTRIBUTE, recipe)
    return tensor


def release(
    tensor: Tensor, output: Tensor, host: HostCopy | None = None, below: HostCopy | None = None
) -> None:
    """Free ``tensor`` until the gradient of ``output`` arrives, if it can be recomputed.

    Nothing but the function that made ``output`` may need the tensor from here on. What it is made
    of waits at ``host``, if given; ``below`` is the next one that the backward pass will need.
    """
    recipe: Recomputation | None = getattr(tensor, ATTRIBUTE, None)
    if recipe is None or not output.requires_grad:
        return
    delattr(tensor, ATTRIBUTE)
    storage = tensor.untyped_storage()
    size = storage.nbytes()
    # The hook outlives its turn by the rest of the backward pass and the next forward pass: it must
    # not hold the layer's tensors any longer than it needs them.
    kept = [(recipe, storage)]

    def refill(_: Tensor) -> None:
        made, place = kept.pop()
        if host is not None:
            host.fetch()
        if below is not None:
            below.start()
        place.resize_(size)
        # Past autograd's count of versions, which would take this for a change of the value.
        place.copy_(made.make().contiguous().untyped_storage())

    untyped: Any = output
    untyped.register_hook(refill)
    storage.resize_(0)
    if host is not None:
        host.store(recipe.inputs[0])
