"""Activations that are recomputed in the backward pass because that costs no matrix product.

A norm's output and an activation function's product are each a pass over their input, which is
kept anyway. Under recompute mode ``pointwise`` the linear layer that reads them gives their memory
back once it has multiplied, and fills it again when its own gradient arrives.

What the recipe reads may wait in host memory meanwhile (``HostCopy``). Under ``pointwise`` the
product of a layer's first MLP matrix (gate and up) is all that the MLP keeps, and nothing reads it
between the passes, so that it can be copied to page-locked memory and back in a stream beside the
computation. The layers at the model's beginning do so, because their backward pass comes last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_cuda: Any = torch.cuda


class HostCopy:
    """The place in host memory of one layer's tensor; one micro batch uses it at a time."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream  # None on a CPU, where copies are plain
        self.buffer: Tensor | None = None
        self.storage: Any = None  # of the tensor that is away, or on its way back
        self.back: Any = None  # the event after which the tensor is whole again

    def store(self, tensor: Tensor) -> None:
        """Copy the memory of a tensor to the host and give the device's back."""
        self.storage = tensor.untyped_storage()
        size = self.storage.nbytes()
        if self.buffer is None or self.buffer.numel() != size:
            locked = self.stream is not None
            self.buffer = torch.empty(size, dtype=torch.uint8, pin_memory=locked)
        self._copy(to_host=True)
        self.storage.resize_(0)

    def start(self) -> None:
        """Begin to bring the tensor back, unless that has begun."""
        if self.storage is None or self.buffer is None or self.storage.nbytes():
            return
        self.storage.resize_(self.buffer.numel())
        self._copy(to_host=False)

    def fetch(self) -> None:
        """Have the tensor whole before whatever the current stream does next."""
        self.start()
        if self.back is not None:
            _cuda.current_stream().wait_event(self.back)
        self.storage = self.back = None

    def _copy(self, *, to_host: bool) -> None:
        assert self.buffer is not None
        there = torch.empty(0, dtype=torch.uint8, device=self.storage.device).set_(self.storage)
        source, target = (there, self.buffer) if to_host else (self.buffer, there)
        if self.stream is None:
            target.copy_(source)
            return
        # Earlier kernels of the current stream wrote the tensor, or used the memory it gets now.
        self.stream.wait_stream(_cuda.current_stream())
        with _cuda.stream(self.stream):
            target.copy_(source, non_blocking=True)
            if not to_host:
                self.back = self.stream.record_event()
        if to_host:
            # The allocator gives the memory to nobody before this copy has ended.
            there.record_stream(self.stream)


def install(chunk: Any, layers: int) -> None:
    """Let the MLPs of a model chunk's first ``layers`` layers keep their widest tensor here."""
    first = next(chunk.parameters())
    stream = _cuda.Stream() if first.is_cuda else None
    before: HostCopy | None = None
    for number, layer in enumerate(chunk.decoder.layers):
        second = layer.mlp.linear_fc2
        # While a layer's gradients are made, the tensor of the layer below comes back.
        second.below = before
        before = HostCopy(stream) if number < layers else None
        second.host = before


Recipe = tuple[Callable[..., Tensor], list[Tensor]]  # what makes a tensor again, and of what
ATTRIBUTE = "made_by"  # set on the tensor object; lost where something else is made of it


def made_by(tensor: Tensor, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Return ``tensor`` with the note that a function made it, of what the graph keeps."""
    setattr(tensor, ATTRIBUTE, (function, [part.detach() for part in inputs]))
    return tensor


def release(
    tensor: Tensor, output: Tensor, host: HostCopy | None = None, below: HostCopy | None = None
) -> None:
    """Free ``tensor`` until the gradient of ``output`` arrives, if it can be recomputed.

    Nothing but the function that made ``output`` may need the tensor from here on. What it is made
    of waits at ``host``, if given; ``below`` is the next one that the backward pass will need.
    """
    recipe: Recipe | None = getattr(tensor, ATTRIBUTE, None)
    if recipe is None or not output.requires_grad:
        return
    delattr(tensor, ATTRIBUTE)
    storage = tensor.untyped_storage()
    size = storage.nbytes()
    # The hook outlives its turn by the rest of the backward pass and the next forward pass: it must
    # not hold the layer's tensors any longer than it needs them.
    kept = [(recipe, storage)]

    def refill(_: Tensor) -> None:
        (function, inputs), place = kept.pop()
        if host is not None:
            host.fetch()
        if below is not None:
            below.start()
        place.resize_(size)
        with torch.no_grad():
            made = function(*inputs).contiguous()
        # Past autograd's count of versions, which would take this for a change of the value.
        place.copy_(made.untyped_storage())

    untyped: Any = output
    untyped.register_hook(refill)
    storage.resize_(0)
    if host is not None:
        host.store(recipe[1][0])


def part_bias(_mlp: Any, _given: Any, made: tuple[Tensor, Tensor | None]) -> Any:
    """Keep the bias that a recomputed MLP returns from becoming its own checkpoint's output."""
    output, bias = made
    return output, bias if bias is None or torch.is_grad_enabled() else bias.detach()
