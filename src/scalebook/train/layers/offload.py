"""Activations that wait in host memory from the forward to the backward pass of a micro batch.

The widest tensor of a layer is what its first MLP product makes (gate and up). Under recompute mode
``pointwise`` it is all that the MLP keeps, and nothing reads it between the passes, so that it can
be copied to page-locked host memory and back, in a stream beside the computation. The layers of
the model's beginning do so, because their backward pass comes last.
"""

from __future__ import annotations

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
