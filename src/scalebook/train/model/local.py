"""Torch-native pieces of a transformer layer, for machines without Transformer Engine.

They replace Megatron-Core's local norms (which refuse sequence parallelism), its unfused core
attention (which refuses context parallelism and stores the s x s scores), and wrap its linear
layers so that they can free their input (recompute mode ``pointwise``).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, rms_norm, scaled_dot_product_attention

from scalebook.train import mcore
from scalebook.train.experts import mlp
from scalebook.train.layers import async_tensor_parallel, blocks, fused, latent, remake
from scalebook.train.layers.remake import HostCopy
from scalebook.train.model.switches import Switches


class Norm(nn.Module):
    """RMSNorm or LayerNorm whose parameters are marked for sequence parallelism."""

    def __init__(
        self, config: Any, hidden_size: int, eps: float = 1e-5, *, compiled: bool, **_: Any
    ) -> None:
        super().__init__()
        shape = (hidden_size,)
        self.weight = nn.Parameter(torch.ones(shape, dtype=config.params_dtype))
        norm: Any = fused.rms_norm if compiled else rms_norm
        if config.normalization != "RMSNorm":
            norm = layer_norm
            self.bias = nn.Parameter(torch.zeros_like(self.weight))
        self.normalise = partial(norm, normalized_shape=shape, eps=eps)
        for parameter in self.parameters():
            # Each tensor-parallel rank sees a part of the sequence; this mark makes Megatron-Core
            # add up the ranks' gradients.
            setattr(parameter, "sequence_parallel", config.sequence_parallel)  # noqa: B010
        self.remade = False  # see remake_norms

    def forward(self, hidden: Tensor) -> Tensor:
        """Return ``hidden`` [..., hidden size] with unit mean square (or variance), scaled."""
        # The module's own dictionary: a search for its parameters takes the host longer.
        normalise = partial(self.normalise, **self._parameters)
        normalised = normalise(hidden)
        if self.remade and torch.is_grad_enabled():
            return remake.made_by(normalised, normalise, hidden)
        return normalised


class ColumnParallelLinear(mcore.ColumnParallelLinear):
    """Megatron-Core's, which frees its input where that can be recomputed."""

    def forward(self, input_: Tensor, *given: Any, **options: Any) -> Any:
        """Return (output, bias) as Megatron-Core's layer does."""
        parent: Any = super()
        output, bias = parent.forward(input_, *given, **options)
        remake.release(input_, output)
        return output, bias


class RowParallelLinear(mcore.RowParallelLinear):
    """Megatron-Core's, which frees its input where that can be recomputed."""

    host: HostCopy | None = None  # see offload.install
    below: HostCopy | None = None

    def forward(self, input_: Tensor) -> Any:
        """Return (output, bias) as Megatron-Core's layer does."""
        parent: Any = super()
        output, bias = parent.forward(input_)
        remake.release(input_, output, self.host, self.below)
        return output, bias


class ExpertRow(mcore.RowParallelLinear):
    """Megatron-Core's, for an expert whose MLP adds a bias to what this returns, in place."""

    def forward(self, input_: Tensor) -> Any:
        """Return (output, bias) as Megatron-Core's layer does."""
        parent: Any = super()
        output, bias = parent.forward(input_)
        # Autograd forbids writing into what a custom function returned as it got it.
        return (output if bias is None else output.clone()), bias


def remake_norms(chunk: Any) -> None:
    """Let the norms of a model chunk that feed only one linear layer say how they are made."""
    for layer in chunk.decoder.layers:
        # Two down projections of multi-latent attention read it.
        layer.input_layernorm.remade = not layer.config.multi_latent_attention
        # Before experts, the router and the dispatcher keep the norm's output as well.
        layer.pre_mlp_layernorm.remade = isinstance(layer.mlp, mcore.MLP)


def pieces(on: Switches, *, remakes: bool) -> mcore.Pieces:
    """Return the classes of which Megatron-Core builds its layers.

    ``remakes``: experts recompute their activation.
    """
    overlapped = on.overlap_tensor_parallel
    experts = mlp.styled(compiled=on.fused_activation, remakes=remakes)
    return mcore.Pieces(
        norm=mcore.ModuleSpec(module=Norm, params={"compiled": on.fused_norm}),
        core_attention=CoreAttention if on.fused_attention else mcore.DotProductAttention,
        column=async_tensor_parallel.OverlappedColumn if overlapped else ColumnParallelLinear,
        row=async_tensor_parallel.OverlappedRow if overlapped else RowParallelLinear,
        expert_row=ExpertRow,
        experts=experts if on.grouped_gemm else None,
        latent_attention=latent.LatentAttention,
    )


def takes_grouped_heads(query: Tensor) -> bool:
    """Return whether a fused kernel of torch takes fewer key than query heads for this query.

    On GPUs only the kernels for half precision do; others would store the s x s scores.
    """
    return not (query.is_cuda and query.dtype == torch.float32)


class CoreAttention(mcore.MegatronModule):
    """Causal attention by torch's fused kernels, with grouped queries and context parallelism.

    With context parallelism, keys and values are gathered over the group and every rank computes
    its own queries: the all-gather form of Llama 3 (arXiv 2407.21783, section 3.3.2). Sequences
    are cut in 2 x size chunks and rank r holds chunks r and 2 x size - 1 - r, as in Megatron-LM.
    The gather runs while the own keys are attended to, unless a window or a sink forbids it.
    """

    def __init__(self, config: Any, softmax_scale: float | None, **given: Any) -> None:
        super().__init__(config=config)  # pyright: ignore[reportUnknownMemberType]
        self.softmax_scale = softmax_scale
        self.context_group = given["pg_collection"].cp
        self.context_size: int = config.context_parallel_size
        layer: int = given["layer_number"] - 1
        size: Any = config.window_size
        self.window = 0  # tokens that a query sees; 0: all before it
        if size is not None and config.window_attn_skip_freq[layer]:
            self.window = int(size[0]) + 1
        self.softmax_offset: Any = None  # the sinks: one learned logit per head of this rank
        if config.softmax_type == "learnable":
            self._add_sinks(config, given["pg_collection"].tp)

    def _add_sinks(self, config: Any, group: Any) -> None:
        heads = config.num_attention_heads // group.size()
        device = torch.cuda.current_device()
        sinks = nn.Parameter(torch.zeros(heads, dtype=config.params_dtype, device=device))
        mcore.tensor_parallel.set_tensor_model_parallel_attributes(sinks, True, 0, 1)
        self.softmax_offset = sinks
        self.tensor_group = group

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None
    ) -> dict[str, Any]:
        """Return the sinks, if there are any, as Megatron-Core's own attention saves them."""
        if self.softmax_offset is None:
            return {}
        sharded: dict[str, Any] = mcore.make_sharded_tensors_for_checkpoint(
            self.state_dict(prefix="", keep_vars=True),
            prefix,
            {"softmax_offset": 0},
            sharded_offsets,
            tp_group=self.tensor_group,
            dp_cp_group=metadata["dp_cp_group"] if metadata else None,
        )
        return sharded

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **_: Any
    ) -> Tensor:
        """Return the context [sequence, batch, heads x dim]; inputs keep heads and dim apart."""
        if self.context_size > 1 and self._can_share(query, key, value):
            group = self.context_group
            shares = blocks.Shares(group.rank(), group.size(), group)
            scale = self.softmax_scale or query.shape[-1] ** -0.5
            return blocks.attend_shared(query, torch.stack([key, value]), scale, shares).flatten(2)
        # The values are a part of the tensor that holds queries and keys as well, of which new ones
        # were made: as a view they would keep all of it.
        value = value.contiguous()
        if self.context_size == 1:
            context = self._attend(query, key, value)
        else:
            context = self._attend_over_group(query, key, value)
        return context.flatten(2)

    def _can_share(self, query: Tensor, key: Tensor, value: Tensor) -> bool:
        """Return whether the gather can run while the own keys are attended to."""
        width, groups = query.shape[-1], query.shape[2] // key.shape[2]
        if self.softmax_offset is not None or width != value.shape[-1]:
            return False
        if 0 < self.window < key.shape[0] * self.context_size:
            return False
        return blocks.can_share(query.device, query.dtype, width, groups)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return attention of the last queries of a sequence to all its keys and values."""
        width = query.shape[-1]
        scale = self.softmax_scale or width**-0.5
        groups = query.shape[2] // key.shape[2]
        if groups > 1 and not takes_grouped_heads(query):
            key, value = (tensor.repeat_interleave(groups, dim=2) for tensor in (key, value))
            groups = 1
        q, k, v = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        window = self.window if self.window < key.shape[0] else 0
        if window or self.softmax_offset is not None or query.shape[0] != key.shape[0]:
            context = blocks.attend_seen(window, scale, self.softmax_offset, q, k, v)
        else:
            options: dict[str, Any] = {"scale": scale, "enable_gqa": groups > 1}
            context = scaled_dot_product_attention(q, k, v, is_causal=True, **options)
        return context.permute(2, 0, 1, 3)

    def _attend_over_group(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = self._whole_sequence(key), self._whole_sequence(value)
        rank = self.context_group.rank()
        chunk = query.shape[0] // 2
        first, second = (rank + 1) * chunk, (2 * self.context_size - rank) * chunk
        return torch.cat(
            [
                self._attend(query[:chunk], keys[:first], values[:first]),
                self._attend(query[chunk:], keys[:second], values[:second]),
            ]
        )

    def _whole_sequence(self, tensor: Tensor) -> Tensor:
        """Return the chunks of every rank of the group in the order of the sequence."""
        gathered: Tensor = mcore.tensor_parallel.gather_from_sequence_parallel_region(
            tensor.contiguous(), tensor_parallel_output_grad=True, group=self.context_group
        )
        chunks = gathered.chunk(2 * self.context_size)
        # Gathered order is 0, n-1, 1, n-2, ...: even places ascend, odd places descend.
        return torch.cat(chunks[0::2] + chunks[1::2][::-1])
