"""The input embedding with a gradient that is added where it lies.

Megatron-Core's makes a gradient of the whole table for each micro batch, zero but for the rows of
its tokens, and adds it to the main gradient: about 12 bytes moved for each element of the table.
Here only the rows of the tokens are added, in an order that does not change between runs; and
without asking the device for a size, which a graph capture forbids.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from scalebook.train import mcore


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, inside: Tensor | None, weight: Tensor) -> Tensor:
        ctx.save_for_backward(rows, inside, weight)
        found = functional.embedding(rows, weight)
        return found if inside is None else found * inside.unsqueeze(-1)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        rows, inside, weight = ctx.saved_tensors
        gradient = grad_outputs[0] if inside is None else grad_outputs[0] * inside.unsqueeze(-1)
        main: Tensor = weight.main_grad
        main.index_put_((rows.flatten(),), gradient.flatten(0, -2).to(main.dtype), accumulate=True)
        weight.grad_added_to_main_grad = True
        # A place-holder, so that the hook that counts finished gradients runs.
        return None, None, torch.empty_like(weight)


class Embedding(mcore.VocabParallelEmbedding):
    """Vocabulary-parallel embedding that adds its gradient to the main gradient itself."""

    def forward(self, input_: Tensor) -> Tensor:
        """Return [batch, sequence, hidden], or [sequence / ranks, batch, hidden] scattered."""
        inside = None
        if self.tp_group.size() > 1:
            inside = (input_ >= self.vocab_start_index) & (input_ < self.vocab_end_index)
            input_ = (input_ - self.vocab_start_index) * inside
        rows: Any = _Rows
        found: Tensor = rows.apply(input_, inside, self.weight)
        if self.reduce_scatter_embeddings:
            turned = found.transpose(0, 1).contiguous()
            return mcore.tensor_parallel.reduce_scatter_to_sequence_parallel_region(
                turned, group=self.tp_group
            )
        return mcore.tensor_parallel.reduce_from_tensor_model_parallel_region(
            found, group=self.tp_group
        )


def install(chunk: Any) -> None:
    """Let a model chunk's embedding, if it has one of its own, be this one.

    A table that is used twice (tied to the output layer, or by multi-token prediction) has every
    gradient in its main gradient then. Megatron-Core would add the place-holders too.
    """
    if getattr(chunk, "embedding", None) is not None:
        table = chunk.embedding.word_embeddings
        # Only the forward pass differs: the module and its parameter stay as they were built.
        table.__class__ = Embedding
        table.weight.zero_out_wgrad = False
