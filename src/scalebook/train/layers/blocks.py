"""Attention of the last queries of a sequence to all of its keys, as two products of fused kernels.

The kernels that are fastest align a causal mask with the first key, so the queries' own keys are
one call (a causal square) and the keys before them another (without a mask). Each call gives its
softmax's log-sum-exp, by which the two are weighed, as in ring attention (arXiv 2310.01889).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, bias
from torch.nn.functional import scaled_dot_product_attention

lower_right: Any = getattr(bias, "causal_lower_right")  # noqa: B009
aten: Any = torch.ops.aten
Call = tuple[Tensor, Tensor, tuple[Any, ...]]  # output, log-sum-exp, what the backward pass needs


def _forward(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> Call:
    if query.is_cuda:
        kernel = aten._scaled_dot_product_cudnn_attention
        output, total, *rest, _ = kernel(query, key, value, None, True, 0.0, causal, scale=scale)
        return output, total, tuple(rest)
    kernel = aten._scaled_dot_product_flash_attention_for_cpu
    output, total = kernel(query, key, value, 0.0, causal, scale=scale)
    return output, total, ()


def _backward(
    grad: Tensor, tensors: tuple[Tensor, ...], rest: tuple[Any, ...], causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value; ``tensors``: those, output, log-sum-exp."""
    if grad.is_cuda:
        query_ends, key_ends, queries, keys, seed, offset = rest
        ends = query_ends, key_ends, queries, keys
        kernel = aten._scaled_dot_product_cudnn_attention_backward
        return kernel(grad, *tensors, seed, offset, None, *ends, 0.0, causal, scale=scale)
    kernel = aten._scaled_dot_product_flash_attention_for_cpu_backward
    return kernel(grad, *tensors, 0.0, causal, scale=scale)


class _LastQueries(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        before = key.shape[2] - query.shape[2]
        past, past_total, past_rest = _forward(
            query, key[:, :, :before], value[:, :, :before], False, scale
        )
        own, own_total, own_rest = _forward(
            query, key[:, :, before:], value[:, :, before:], True, scale
        )
        share = torch.sigmoid(own_total - past_total).view(*query.shape[:3], 1)
        output = torch.lerp(past.to(share.dtype), own.to(share.dtype), share).to(query.dtype)
        ctx.save_for_backward(query, key, value, output, torch.logaddexp(own_total, past_total))
        ctx.rest, ctx.scale = (past_rest, own_rest), scale
        return output

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, total = ctx.saved_tensors
        before = key.shape[2] - query.shape[2]
        made: list[tuple[Tensor, Tensor, Tensor]] = []
        for part, rest, causal in (
            (slice(0, before), ctx.rest[0], False),
            (slice(before, None), ctx.rest[1], True),
        ):
            tensors = query, key[:, :, part], value[:, :, part], output, total
            made.append(_backward(grad_outputs[0], tensors, rest, causal, ctx.scale))
        (past_query, *past), (own_query, *own) = made
        joined = (torch.cat(parts, dim=2) for parts in zip(past, own, strict=True))
        return past_query + own_query, *joined, None


def attend(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Return the context of the last queries of a sequence, each [batch, heads, tokens, dim]."""
    function: Any = _LastQueries
    context: Tensor = function.apply(query, key, value, scale)
    return context


@cache
def can_attend(device: torch.device, dtype: torch.dtype, width: int, groups: int) -> bool:
    """Return whether ``attend`` is right here, and its kernel the one that torch would choose.

    ``width`` of a head; ``groups`` queries share a key. Tried on 256 queries of 768 keys.
    """
    generator = torch.Generator(device).manual_seed(1)
    options: dict[str, Any] = {"device": device, "generator": generator}
    sizes = ((2 * groups, 256), (2, 768), (2, 768))
    tensors = [torch.randn(1, heads, keys, width, **options).to(dtype) for heads, keys in sizes]
    scale, grouped = width**-0.5, groups > 1
    try:
        if not _chosen(tensors[0], tensors[1][:, :, -256:], grouped):
            return False
        ours = _trial(tensors, partial(attend, scale=scale))
        mask: Any = {"attn_mask": lower_right(256, 768), "scale": scale, "enable_gqa": grouped}
        plain = _trial(tensors, partial(scaled_dot_product_attention, **mask))
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return False
    pairs = zip(ours, plain, strict=True)
    return all(torch.allclose(a.float(), b.float(), rtol=2e-2, atol=2e-2) for a, b in pairs)


def _chosen(query: Tensor, key: Tensor, grouped: bool) -> bool:
    wanted = SDPBackend.CUDNN_ATTENTION if query.is_cuda else SDPBackend.FLASH_ATTENTION
    choice: Any = getattr(torch, "_fused_sdp_choice")  # noqa: B009
    return SDPBackend(choice(query, key, key, is_causal=True, enable_gqa=grouped)) == wanted


@torch.enable_grad()  # also where a layer is to be recomputed
def _trial(tensors: list[Tensor], attention: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    """Return the context and the gradients of fresh copies of the tensors."""
    given = [tensor.clone().requires_grad_() for tensor in tensors]
    context = attention(*given)
    return (context.detach(), *torch.autograd.grad(context, given, context.detach()))
