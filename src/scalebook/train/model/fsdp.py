"""Fully sharded data parallelism by torch's FSDP2: parameters, gradients and optimizer in parts.

Each transformer layer is gathered (in the run's precision) just before it is needed and its
gradient is summed (in fp32, unless told otherwise) and scattered just after; the fp32 parameters
that are updated stay in parts. With parameter_gather ``step`` a layer stays gathered from its first
forward pass in a step to its last backward pass. Megatron-Core's tensor and context parallelism
work inside; pipelines and experts do not.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from scalebook.train import mcore
from scalebook.train.world import World, distributed

# What Megatron-Core notes on a parameter, which FSDP's own parameters must keep.
NOTES = ("tensor_model_parallel", "sequence_parallel")


class Sharded(nn.Module):
    """A model chunk under FSDP, with what the training step asks of Megatron-Core's wrapper."""

    def __init__(self, config: Any, module: nn.Module, *, once: bool) -> None:
        super().__init__()
        self.config = config
        self.module = module
        self.once = once  # parameters are gathered once per step

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Return what the module returns."""
        return self.module(*inputs, **options)

    @contextmanager
    def gathered(self) -> Generator[None]:
        """Keep the parameters gathered after the backward pass as well."""
        chunk: Any = self.module
        chunk.set_reshard_after_backward(False)
        yield
        chunk.set_reshard_after_backward(True)

    def zero_grad_buffer(self) -> None:
        """Drop the gradients."""
        self.zero_grad(set_to_none=True)


def shard(
    config: Any, chunk: Any, world: World, types: tuple[torch.dtype, torch.dtype], *, once: bool
) -> Sharded:
    """Return a model chunk, its weights initialised in fp32, in parts over data-parallel ranks.

    ``types``: that in which layers are gathered and computed, and that in which their gradients
    are added up. ``once``: layers are gathered once per step.
    """
    api: Any = import_module("torch.distributed.fsdp")
    mesh_type: Any = import_module("torch.distributed.device_mesh").DeviceMesh
    group = mcore.parallel_state.get_data_parallel_group(with_context_parallel=True)
    options: dict[str, Any] = {
        "mesh": mesh_type.from_group(group, world.device.type),
        # Inputs are not cast: rotary angles need fp32.
        "mp_policy": api.MixedPrecisionPolicy(
            param_dtype=types[0], reduce_dtype=types[1], cast_forward_inputs=False
        ),
    }
    kept = {**options, "reshard_after_forward": False}
    options = kept if once else options
    notes = {
        name: {note: getattr(parameter, note, False) for note in NOTES}
        for name, parameter in chunk.named_parameters()
    }
    for layer in chunk.decoder.layers:
        api.fully_shard(layer, **options)
    if not chunk.share_embeddings_and_output_weights:
        # Its backward pass does not read it; that of the output layer follows at once.
        api.fully_shard(chunk.embedding, **options).set_unshard_in_backward(False)
        api.fully_shard([chunk.decoder.final_layernorm, chunk.output_layer], **kept)
    api.fully_shard(chunk, **options)
    for name, parameter in chunk.named_parameters():
        for note, value in notes[name].items():
            setattr(parameter, note, value)
    return Sharded(config, chunk, once=once)


def _gradients(chunk: nn.Module) -> Iterator[tuple[nn.Parameter, Tensor]]:
    for parameter in chunk.parameters():
        if parameter.grad is not None:
            gradient: Any = parameter.grad
            yield parameter, gradient.to_local()


def finalize(chunks: list[Any], *_: Any, **__: Any) -> None:
    """Add up the gradients of parameters that each tensor-parallel rank applied to its tokens."""
    group = mcore.parallel_state.get_tensor_model_parallel_group()
    if group.size() == 1:
        return
    for chunk in chunks:
        for parameter, gradient in _gradients(chunk):
            if getattr(parameter, "sequence_parallel", False):
                distributed.all_reduce(gradient, group=group)


class FullyShardedAdam:
    """AdamW of torch over the sharded fp32 parameters, with Megatron-Core's clipping by norm."""

    def __init__(self, chunks: list[Any], options: Any, *, fused: bool) -> None:
        self.chunks = chunks
        self.clip = options.clip_grad
        parameters = [parameter for chunk in chunks for parameter in chunk.parameters()]
        # As Megatron-Core: neither biases nor norms decay.
        decayed = [one for one in parameters if one.ndim > 1]
        others = [one for one in parameters if one.ndim <= 1]
        groups = [{"params": decayed, "wd_mult": 1.0}, {"params": others, "wd_mult": 0.0}]
        self.adam: Any = torch.optim.AdamW(
            groups,
            lr=options.lr,
            betas=(options.adam_beta1, options.adam_beta2),
            eps=options.adam_eps,
            weight_decay=options.weight_decay,
            fused=fused,
        )

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of parameters, as the learning-rate schedule wants them."""
        return self.adam.param_groups

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Return the loss as it is: neither bf16 nor fp32 needs a scale."""
        return loss

    def zero_grad(self) -> None:
        """Drop the gradients."""
        self.adam.zero_grad(set_to_none=True)

    def step(self) -> tuple[bool, float, None]:
        """Update the parameters; return (updated, norm of the gradient, None) as Megatron-Core."""
        norm = self._norm()
        finite = bool(torch.isfinite(norm))
        if finite:
            scale = (self.clip / (norm + 1e-6)).clamp(max=1.0)
            for chunk in self.chunks:
                for _, gradient in _gradients(chunk):
                    gradient.mul_(scale.to(gradient.dtype))
            self.adam.step()
        return finite, float(norm), None

    def _norm(self) -> Tensor:
        ranks = mcore.parallel_state
        tensor_group = ranks.get_tensor_model_parallel_group()
        first = tensor_group.rank() == 0
        squares = [
            gradient.float().square().sum()
            for chunk in self.chunks
            for parameter, gradient in _gradients(chunk)
            # A parameter that every tensor-parallel rank holds whole counts once.
            if first or getattr(parameter, "tensor_model_parallel", False)
        ]
        device = next(self.chunks[0].parameters()).device
        total = torch.stack(squares).sum() if squares else torch.zeros((), device=device)
        data_group = ranks.get_data_parallel_group(with_context_parallel=True)
        for group in (data_group, tensor_group):
            distributed.all_reduce(total, group=group)
        return total.sqrt()
