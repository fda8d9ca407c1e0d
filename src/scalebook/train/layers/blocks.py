"""Attention by torch's fused kernels where its own function would need a mask.

The last queries of a sequence attend to all of its keys by two products. The kernels that are
fastest align a causal mask with the first key, so the queries' own keys are one call (a causal
square) and the keys before them another (without a mask). Each call gives its softmax's
log-sum-exp, by which the two are weighed, as in ring attention (arXiv 2310.01889).

A window is an argument of FlashAttention 2, which skips what it hides. A sink adds a term to the
softmax's denominator: the output is scaled by what that takes away, and the backward pass, which
computes the probabilities from output and log-sum-exp, is given the new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, bias
from torch.nn.functional import pad, scaled_dot_product_attention

lower_right: Any = getattr(bias, "causal_lower_right")  # noqa: B009
aten: Any = torch.ops.aten
_linalg: Any = torch.linalg
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


def _flash(query: Tensor, key: Tensor, value: Tensor, window: int, scale: float) -> Call:
    """Return causal attention whose queries see the last ``window`` keys (0: all)."""
    if query.is_cuda:
        sizes: tuple[Any, ...] = None, None, query.shape[2], key.shape[2], 0.0, True
        around: Any = {"window_size_left": window - 1, "window_size_right": 0} if window else {}
        turned = (tensor.transpose(1, 2) for tensor in (query, key, value))
        kernel = aten._flash_attention_forward
        output, total, *rest, _ = kernel(*turned, *sizes, False, scale=scale, **around)
        return output.transpose(1, 2), total, (sizes, rest, around)
    hidden = ~_seen_keys(query, key, window)
    mask = torch.zeros_like(hidden, dtype=query.dtype).masked_fill_(hidden, -torch.inf)
    kernel = aten._scaled_dot_product_flash_attention_for_cpu
    return (*kernel(query, key, value, 0.0, False, attn_mask=mask, scale=scale), (mask,))


def _flash_backward(
    grad: Tensor, tensors: tuple[Tensor, ...], rest: tuple[Any, ...], scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    *wide, total = tensors
    if grad.is_cuda:
        sizes, random, around = rest
        turned = (tensor.transpose(1, 2) for tensor in (grad, *wide))
        kernel = aten._flash_attention_backward
        made = kernel(*turned, total, *sizes, *random, scale=scale, **around)
        query, key, value = (tensor.transpose(1, 2) for tensor in made)
        return query, key, value
    kernel = aten._scaled_dot_product_flash_attention_for_cpu_backward
    return kernel(grad, *wide, total, 0.0, False, attn_mask=rest[0], scale=scale)


def _seen_keys(query: Tensor, key: Tensor, window: int) -> Tensor:
    """Return which keys [queries, keys] the last queries see."""
    keys = torch.arange(key.shape[2], device=query.device)
    behind = keys[-query.shape[2] :].unsqueeze(1) - keys
    return (behind >= 0) & (behind < (window or key.shape[2]))


@dataclass(frozen=True, slots=True)
class _How:
    window: int  # keys that a query sees; 0: all before it
    scale: float
    square: bool  # by the kernel for queries that are all of a sequence


class _Seen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, how: _How, sinks: Tensor | None, *tensors: Tensor) -> Tensor:
        query, key, value = tensors
        if how.square:
            made: Any = _forward(query, key, value, True, how.scale)
        else:
            made = _flash(query, key, value, how.window, how.scale)
        output, total, rest = made
        if sinks is not None:
            own, every = sinks.to(total.dtype).view(1, -1, 1), total.view(output.shape[:3])
            # In place: no copy in the wider type is made.
            output.mul_(torch.sigmoid(every - own).unsqueeze(-1))
            total = torch.logaddexp(every, own).view(total.shape)
        ctx.save_for_backward(*tensors, output, total, sinks)
        ctx.rest, ctx.how = rest, how
        return output

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, sinks = ctx.saved_tensors
        grad, how = grad_outputs[0], ctx.how
        if how.square:
            made = _backward(grad, tuple(tensors), ctx.rest, True, how.scale)
        else:
            made = _flash_backward(grad, tuple(tensors), ctx.rest, how.scale)
        if sinks is None:
            return None, None, *made
        # The sink's probability times what it takes from the output, since its value is 0.
        output, total = tensors[3:]
        share = torch.exp(sinks.to(total.dtype).view(1, -1, 1) - total.view(output.shape[:3]))
        taken = (grad * output).sum(-1, dtype=total.dtype)
        return None, (share * taken).sum((0, 2)).neg().to(sinks.dtype), *made


def _with_sink(
    query: Tensor, key: Tensor, value: Tensor, logits: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Put a key before the sequence whose score is each head's sink, and whose value is zero.

    The score comes from further dimensions, in which the queries hold the sink and that key 1.
    Eight of them, because fused kernels take heads of a multiple of 8; fused kernels then need
    neither a mask of every head nor the softmax's denominator (gpt-oss, arXiv 2508.10925).
    """
    wide = query.new_zeros(*query.shape[:3], 8)
    wide[..., 0] = logits.to(query.dtype).unsqueeze(-1)
    mark = key.new_zeros(key.shape[-1] + 8)
    mark[-8] = 1
    first = mark.expand(*key.shape[:2], 1, -1)
    key = torch.cat([first, pad(key, (0, 8))], dim=2)
    return torch.cat([query, wide], dim=-1), key, pad(value, (0, 8, 1, 0))


def _under_mask(how: _How, sinks: Tensor | None, *tensors: Tensor) -> Tensor:
    query, key, value = tensors
    if sinks is not None:
        query, key, value = _with_sink(query, key, value, sinks / how.scale)
    mask: Any = lower_right(query.shape[2], key.shape[2])
    if how.window:
        mask = _seen_keys(query, key, how.window)
        mask[:, 0] |= sinks is not None  # the sink's key lies before those of the sequence
    options: Any = {"enable_gqa": query.shape[1] != key.shape[1], "scale": how.scale}
    context = scaled_dot_product_attention(query, key, value, attn_mask=mask, **options)
    return context[..., : tensors[2].shape[-1]]


def attend_seen(window: int, scale: float, sinks: Tensor | None, *tensors: Tensor) -> Tensor:
    """Return the context of last queries that see ``window`` keys (0: all) and a sink per head.

    ``tensors``: query, key and value, each [batch, heads, tokens, dim].
    """
    square = fits(window, sinks is not None, *tensors)
    if square is None:
        return _under_mask(_How(window, scale, False), sinks, *tensors)
    function: Any = _Seen
    context: Tensor = function.apply(_How(window, scale, square), sinks, *tensors)
    return context


def fits(window: int, sinks: bool, query: Tensor, key: Tensor, value: Tensor) -> bool | None:
    """Return whether ``_Seen`` takes the kernel for a square; None where a mask must do."""
    if value.shape[-1] != query.shape[-1]:
        return None
    asked = query.device, query.dtype, query.shape[-1], query.shape[1] // key.shape[1]
    whole = query.shape[2] == key.shape[2] and not window
    kernels = (True, False) if whole else (False,)
    return next((one for one in kernels if _right(asked, window > 0, sinks, one)), None)


@cache
def _right(
    asked: tuple[torch.device, torch.dtype, int, int], windowed: bool, sinks: bool, square: bool
) -> bool:
    """Return whether ``_Seen`` is as attention under a mask, on 256 queries of 256 or 384 keys."""
    device, dtype, width, groups = asked
    generator = torch.Generator(device).manual_seed(1)
    options: dict[str, Any] = {"device": device, "generator": generator}
    keys = 256 if square else 384
    sizes = (2 * groups, 256), (2, keys), (2, keys)
    tensors = [torch.randn(1, heads, length, width, **options).to(dtype) for heads, length in sizes]
    tensors += [torch.randn(2 * groups, **options).to(dtype)] if sinks else []
    how, function = _How(40 if windowed else 0, width**-0.5, square), cast("Any", _Seen)

    def ours(*given: Tensor) -> Tensor:
        return function.apply(how, given[3] if sinks else None, *given[:3])

    def plain(*given: Tensor) -> Tensor:
        return _under_mask(how, given[3] if sinks else None, *given[:3])

    try:  # against fp32: a sink of half precision is rounded once more under a mask
        found, expected = _trial(tensors, ours), _trial([one.float() for one in tensors], plain)
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return False
    return _alike(found, expected)


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
    return _alike(ours, plain)


def _alike(ours: tuple[Tensor, ...], plain: tuple[Tensor, ...]) -> bool:
    """Return whether no tensor is off by more than half precision, whose errors are below 1e-2."""
    pairs = [(one.float(), two.float()) for one, two in zip(ours, plain, strict=True)]
    size = _linalg.vector_norm
    return all(bool(size(one - two) < 2e-2 * size(two)) for one, two in pairs)


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
