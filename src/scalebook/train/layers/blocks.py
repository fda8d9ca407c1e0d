"""Attention by torch's fused kernels where its own function would need a mask.

The ranks of context parallelism attend to a sequence by two or three products each: a causal
square of a rank's own queries and keys, and one without a mask for the keys of earlier ranks and
for those of later ranks. Each call gives its softmax's log-sum-exp, by which the outputs are
weighed, as in ring attention (arXiv 2310.01889).

A window is an argument of FlashAttention 2, which skips what it hides. A sink adds a term to the
softmax's denominator: the output is scaled by what that takes away, and the backward pass, which
computes the probabilities from output and log-sum-exp, is given the new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, bias, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from scalebook.train.layers import fused
from scalebook.train.world import distributed

lower_right: Any = getattr(bias, "causal_lower_right")  # noqa: B009
aten: Any = torch.ops.aten
_linalg: Any = torch.linalg
TRIED = 512  # tokens of a trial, for which nothing is compiled
_order: Any = ExitStack()  # of torch's kernels, for as long as the process lives
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


@dataclass(frozen=True, slots=True)
class Shares:
    """A sequence over the ranks of a group: rank r holds chunks r and 2 x size - 1 - r."""

    rank: int
    size: int
    group: Any

    def gather(self, pair: Tensor) -> tuple[Tensor, Callable[[], Any]]:
        """Begin to gather keys and values; return where they come to, and what waits for them."""
        every = pair.new_empty((self.size, *pair.shape))
        whole = every.flatten(0, 1)
        work = distributed.all_gather_into_tensor(whole, pair, group=self.group, async_op=True)
        return every, work.wait

    def scatter(self, sent: Tensor) -> tuple[Tensor, Callable[[], Any]]:
        """Begin to add up what all ranks send to each; return where it comes to, and the wait."""
        own = torch.empty_like(sent[0])
        whole = sent.flatten(0, 1)
        work = distributed.reduce_scatter_tensor(own, whole, group=self.group, async_op=True)
        return own, work.wait

    def others(self, length: int) -> Iterator[tuple[slice, tuple[slice, slice]]]:
        """Yield which of ``length`` own queries see other keys, with the keys' ranks and tokens.

        The first chunks of earlier ranks lie before all own tokens, both chunks of later ranks
        between the two here: no mask is needed, nor the order of the sequence.
        """
        half = length // 2
        if self.rank:
            yield slice(None), (slice(0, self.rank), slice(0, half))
        if self.rank + 1 < self.size:
            yield slice(half, None), (slice(self.rank + 1, None), slice(None))


def _merge(output: Tensor, total: Tensor, other: Tensor, other_total: Tensor) -> None:
    """Weigh another output of the same queries in, in place; likewise the log-sum-exps."""
    share = torch.sigmoid(other_total - total).unsqueeze(-1)
    output.copy_(torch.lerp(output.to(share.dtype), other.to(share.dtype), share))
    total.copy_(torch.logaddexp(total, other_total))


def _heads_first(tensor: Tensor) -> Tensor:
    return tensor.permute(1, 2, 0, 3)


def _keys(every: Tensor, place: tuple[slice, slice]) -> tuple[Tensor, Tensor]:
    ranks, tokens = place
    pair = every[ranks, :, tokens].transpose(0, 1).flatten(1, 2)
    return _heads_first(pair[0]), _heads_first(pair[1])


class _Shared(torch.autograd.Function):
    """A rank's queries see its own keys while those of the others are on their way to it.

    In the backward pass the gradients of other ranks' keys leave before its own are computed.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, pair: Tensor, scale: float, shares: Shares) -> Tensor:
        every, arrived = shares.gather(pair)
        wide = _heads_first(query)
        key, value = _heads_first(pair[0]), _heads_first(pair[1])
        output, total, rest = _forward(wide, key, value, True, scale)
        rests, rows = [rest], total.view(output.shape[:3])
        compiles = query.is_cuda and query.shape[0] > TRIED and fused.can_compile()
        merge = fused.compiled_in_place(_merge) if compiles else _merge
        arrived()
        for queries, place in shares.others(query.shape[0]):
            key, value = _keys(every, place)
            part, part_total, rest = _forward(wide[:, :, queries], key, value, False, scale)
            part_rows = part_total.view(part.shape[:3])
            merge(output[:, :, queries], rows[:, :, queries], part, part_rows)
            rests.append(rest)
        ctx.save_for_backward(query, every, output, total)
        ctx.rests, ctx.scale, ctx.shares = rests, scale, shares
        return output.permute(2, 0, 1, 3)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        query, every, output, total = ctx.saved_tensors
        shares, (own_rest, *rests) = ctx.shares, ctx.rests
        wide, grad = _heads_first(query), _heads_first(grad_outputs[0])
        sent, parts = torch.zeros_like(every), list[tuple[slice, Tensor]]()
        others = zip(shares.others(query.shape[0]), rests, strict=True)
        for (queries, (ranks, tokens)), rest in others:
            seen = wide[:, :, queries], *_keys(every, (ranks, tokens)), output[:, :, queries]
            tensors = *seen, total[:, :, queries].contiguous()
            made = _backward(grad[:, :, queries], tensors, rest, False, ctx.scale)
            parts.append((queries, made[0]))
            for kind, one in enumerate(made[1:]):
                slot = sent[ranks, kind, tokens]
                slot.copy_(one.permute(2, 0, 1, 3).reshape(slot.shape))
        pair, arrived = shares.scatter(sent)
        tensors = wide, *map(_heads_first, every[shares.rank]), output, total
        grad_query, *grads = _backward(grad, tensors, own_rest, True, ctx.scale)
        for queries, part in parts:
            grad_query[:, :, queries] += part
        arrived()
        for kind, one in enumerate(grads):
            pair[kind] += one.permute(2, 0, 1, 3)
        return grad_query.permute(2, 0, 1, 3), pair, None, None


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
    return fused.apply(_Seen, _How(window, scale, square), sinks, *tensors)


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
    keys = (1, 2, 256 if square else 384, width)
    sizes = (1, 2 * groups, 256, width), keys, keys, *([(2 * groups,)] if sinks else [])
    how = _How(40 if windowed else 0, width**-0.5, square)

    def ours(*given: Tensor) -> Tensor:
        return fused.apply(_Seen, how, given[3] if sinks else None, *given[:3])

    def plain(*given: Tensor) -> Tensor:
        return _under_mask(how, given[3] if sinks else None, *given[:3])

    return _agree(_drawn(device, dtype, *sizes), ours, plain)


def attend_shared(query: Tensor, pair: Tensor, scale: float, shares: Shares) -> Tensor:
    """Return the context [tokens, batch, heads, dim] of this rank's tokens of a shared sequence.

    ``pair``: keys and values [2, tokens, batch, groups, dim].
    """
    return fused.apply(_Shared, query, pair, scale, shares)


@dataclass(frozen=True, slots=True)
class _Rehearsed(Shares):
    """One of the ranks played by this process: nothing is sent."""

    every: Tensor
    sent: dict[int, Tensor]

    def gather(self, pair: Tensor) -> tuple[Tensor, Callable[[], Any]]:
        return self.every, bool

    def scatter(self, sent: Tensor) -> tuple[Tensor, Callable[[], Any]]:
        self.sent[self.rank] = sent
        return torch.stack([one[self.rank] for one in self.sent.values()]).sum(0), bool


def rehearse(size: int, scale: float, *tensors: Tensor) -> Tensor:
    """Return the context of a whole sequence, as ``size`` ranks compute it by ``attend_shared``.

    ``tensors``: query, key and value, each [batch, heads, tokens, dim]. The second backward pass
    is right: only then is known what every rank sends.
    """
    query, *pair = (one.permute(2, 0, 1, 3).chunk(2 * size) for one in tensors)
    chunks = [(rank, 2 * size - 1 - rank) for rank in range(size)]
    pairs = [torch.stack([torch.cat([one[i] for i in both]) for one in pair]) for both in chunks]
    every, sent = torch.stack(pairs).detach(), dict[int, Tensor]()
    shares = [_Rehearsed(rank, size, None, every, sent) for rank in range(size)]
    parts: dict[int, Tensor] = {}
    for both, one, share in zip(chunks, pairs, shares, strict=True):
        own = torch.cat([query[i] for i in both])
        parts |= zip(both, attend_shared(own, one, scale, share).chunk(2), strict=True)
    return torch.cat([parts[i] for i in range(2 * size)]).permute(1, 2, 0, 3)


def prefer_cudnn(device: torch.device, tokens: int) -> None:
    """Let torch take cuDNN's kernel first on Hopper, where FlashAttention takes 1.7 times as long.

    It does so itself unless cuDNN is 9.15.0 or older, as the system's may be, which Transformer
    Engine puts in the place of torch's: right for multiples of 128 ``tokens``, measured is 9.14.
    """
    nvidia = device.type == "cuda" and torch.version.cuda and tokens % 128 == 0
    hopper = nvidia and torch.cuda.get_device_capability(device)[0] == 9
    if hopper and getattr(torch, "_C")._cudnn.getRuntimeVersion() >= (9, 14):  # noqa: B009
        first = [SDPBackend(number) for number in (3, 1, 2, 0)]  # cuDNN, flash, efficient, math
        _order.enter_context(sdpa_kernel(first, set_priority=True))


@cache
def can_share(device: torch.device, dtype: torch.dtype, width: int, groups: int) -> bool:
    """Return whether ``attend_shared`` is right here, and its kernel the one torch would choose.

    ``width`` of a head; ``groups`` queries share a key. Tried with two ranks.
    """
    sizes = ((1, heads, TRIED, width) for heads in (2 * groups, 2, 2))
    tensors, scale = _drawn(device, dtype, *sizes), width**-0.5
    given: Any = {"is_causal": True, "enable_gqa": groups > 1}
    wanted = SDPBackend.CUDNN_ATTENTION if device.type == "cuda" else SDPBackend.FLASH_ATTENTION
    choice: Any = getattr(torch, "_fused_sdp_choice", None)
    if choice is None or SDPBackend(choice(*tensors, **given)) != wanted:
        return False
    plain = partial(scaled_dot_product_attention, scale=scale, **given)
    return _agree(tensors, partial(rehearse, 2, scale), plain)


def _drawn(device: torch.device, dtype: torch.dtype, *sizes: tuple[int, ...]) -> list[Tensor]:
    """Return random tensors, the same each time."""
    options: dict[str, Any] = {
        "device": device,
        "generator": torch.Generator(device).manual_seed(1),
    }
    return [torch.randn(size, **options).to(dtype) for size in sizes]


def _agree(
    tensors: list[Tensor], ours: Callable[..., Tensor], plain: Callable[..., Tensor]
) -> bool:
    """Return whether values and gradients differ by no more than half precision makes them.

    Its errors are below 1e-2. Against fp32: under a mask, sinks are rounded once more.
    """
    try:
        found, expected = _trial(tensors, ours), _trial([one.float() for one in tensors], plain)
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return False
    pairs = [(one.float(), two) for one, two in zip(found, expected, strict=True)]
    size = _linalg.vector_norm
    return all(bool(size(one - two) < 2e-2 * size(two)) for one, two in pairs)


@torch.enable_grad()  # also where a layer is to be recomputed
def _trial(tensors: list[Tensor], attention: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    """Return the context and the gradients of fresh copies of the tensors."""
    given = [tensor.clone().requires_grad_() for tensor in tensors]
    context = attention(*given)
    for again in (True, False):  # see rehearse
        made = torch.autograd.grad(context, given, context.detach(), retain_graph=again)
    return (context.detach(), *made)
